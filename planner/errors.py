"""Every expected failure, one sentence each, with the exit code it maps to.

    PlannerError                    1
    ├── UsageError                  2   the command line asks for something that is not there
    │   ├── ParameterError              an argument breaks its rule
    │   ├── UnknownNameError            no bundled or user thing of that name
    │   ├── OutputError                 an output exists or cannot be written
    │   └── MissingPackageError         an optional package or device is not installed
    ├── InputFileError              3   a file is wrong
    │   └── VersionError                a file is newer than this program
    ├── NothingFitsError            4   no plan satisfies the request
    └── CoverageError               5   the calibration does not cover the request

The sentence form is "<what> must be <rule>, got <value>", then where, then the remedy.
"""

from __future__ import annotations

import copyreg
import difflib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from unicodedata import category

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Named = TypeVar("Named")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something is refused, in fields for programs; its sentence is made of them.

    Attributes
    ----------
    code : str
        What sort of refusal this is.
    rule : str
        "<subject> must be <rule>", or a whole clause.
    subject : str
        What is refused: an option, a field, a precision, a kernel; empty where it has no name.
    got : str or None
        What was received, as the sentence repeats it; None: the rule says it all.
    rest : str
        Where, and the remedy, with the punctuation before them.
    """

    code: str
    rule: str
    subject: str = ""
    got: str | None = None
    rest: str = ""

    def __str__(self) -> str:
        received = "" if self.got is None else f", got {self.got}"
        return f"{self.rule}{received}{self.rest}"


class PlannerError(Exception):
    """Root of the failures that a user can mend; everything else is a bug.

    Parameters
    ----------
    why : Refusal or str
        A sentence becomes a refusal of the error's own ``code``.
    """

    exit_code = 1
    code = "failed"

    def __init__(self, why: Refusal | str) -> None:
        super().__init__(str(why))
        self.refusal = why if isinstance(why, Refusal) else Refusal(self.code, why)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a copy is made of, as constructors take other arguments than the sentence."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(PlannerError):
    """The command line asks for something that is not there."""

    exit_code = 2
    code = "usage"


class ParameterError(UsageError):
    """An argument breaks its rule.

    Parameters
    ----------
    what : str
        The argument or field, as the user knows it.
    rule : str
        What it must be, continuing the words "must be".
    value : Any
        What was received.
    remedy : str, optional
        What to do instead, a whole clause.
    """

    code = "parameter"

    def __init__(self, what: str, rule: str, value: Any, remedy: str = "") -> None:
        rest = f"; {remedy}" if remedy else ""
        super().__init__(Refusal(self.code, f"{what} must be {rule}", what, shown(value), rest))
        self.what, self.rule, self.value, self.remedy = what, rule, value, remedy


class UnknownNameError(UsageError):
    """No bundled or user thing of that name; the nearest known names are offered."""

    code = "unknown_name"

    def __init__(self, what: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        names = sorted(known)
        near = nearest_names(name, names)
        guess = f"; did you mean {' or '.join(map(repr, near))}?" if near else "." if names or remedy else ""
        listing = f" Known: {', '.join(names)}." if names and not remedy else ""
        more = f"{listing}{' ' + remedy if remedy else ''}"
        super().__init__(Refusal(self.code, f"{what} must be a known name", what, shown(name), f"{guess}{more}"))
        self.what, self.name, self.nearest = what, name, next(iter(near), None)


def named(what: str, name: str, known: Mapping[str, Named]) -> Named:
    """Return what has a name among those known, or raise UnknownNameError."""
    if name not in known:
        raise UnknownNameError(what, name, known)
    return known[name]


class OutputError(UsageError):
    """An output exists already or cannot be written."""

    code = "output"


class MissingPackageError(UsageError):
    """An optional package or device is not installed; the sentence says how to get it."""

    code = "missing_package"


class InputFileError(PlannerError):
    """A file is wrong: unreadable, truncated, unknown key, value against its rule.

    Parameters
    ----------
    path : str
        The file, as the user named it.
    problem : str or Refusal
        The sentence.
    where : str, optional
        Place inside the file, such as ``links.intra_node.bandwidth_GBps`` or ``line 7``.
    """

    exit_code = 3
    code = "input_file"

    def __init__(self, path: str, problem: str | Refusal, where: str = "") -> None:
        refusal = problem if isinstance(problem, Refusal) else Refusal(self.code, problem)
        place = shortened(printable(where)) + ": " if where else ""
        named = path if len(path) < LONGEST_PATH else shortened(path)
        rule = f"{printable(named)}: {place}{refusal.rule}"
        super().__init__(replace(refusal, code=self.code, rule=rule, subject=where or path))
        self.path, self.problem, self.where = path, str(problem), where


class VersionError(InputFileError):
    """A file was written by a newer program than this one."""

    code = "newer_version"


class NothingFitsError(PlannerError):
    """No plan satisfies the request; the sentence says what to loosen."""

    exit_code = 4
    code = "nothing_fits"


class CoverageError(PlannerError):
    """The calibration does not cover the request; the sentence names the command that mends it."""

    exit_code = 5
    code = "not_covered"


class _Nothing:
    """What was received where something had to be given; unlike text it is not quoted."""

    def __str__(self) -> str:
        return "nothing"


NOTHING = _Nothing()
LONGEST_PATH = 4096
"""Characters of a path from which on no system has such a file."""
LONGEST_SHOWN = 200
"""Characters of a text that a sentence repeats."""
MOST_DIGITS = 40
"""Of a whole number that a sentence repeats; Python turns none of over 4300 into text."""


def shown(value: object) -> str:
    """Return what was received as a sentence repeats it: on one line, no character a terminal obeys, not too long."""
    if isinstance(value, str):
        return repr(shortened(value))
    if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
        return f"a whole number of over {MOST_DIGITS} digits"
    if isinstance(value, bool | list | dict):  # as it stands in a file
        return shortened(json.dumps(value, default=str, skipkeys=True))
    return shortened(str(value))


def shortened(text: str) -> str:
    """Return a text, or its first LONGEST_SHOWN characters."""
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


def printable(text: str) -> str:
    """Return a text with escapes in place of characters that a terminal obeys or does not show."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


TURNING_CHARACTERS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What turns the direction of writing: a terminal then shows other text than is there."""


def hidden(text: str, *, on_one_line: bool = True) -> str:
    """Return the first character of a text that a terminal would obey or not show; empty: there is none.

    These are the Unicode categories Cc, Cf, Cs, Zl and Zp. Not ``on_one_line``: of sentences rather than names, which
    may break lines, and may have what joins letters (Cf) but nothing that turns the direction of writing.
    """
    if text.isprintable():
        return ""
    free, categories = ("", {"Cc", "Cf", "Cs", "Zl", "Zp"}) if on_one_line else ("\n\t", {"Cc", "Cs"})
    return next(
        (one for one in text if one not in free and (category(one) in categories or one in TURNING_CHARACTERS)), ""
    )


MOST_OFFERED = 3
"""Names that are offered instead of an unknown one."""


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the first of :func:`nearest_names`, else None."""
    return next(iter(nearest_names(name, names)), None)


def nearest_names(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the shortest known names that begin with ``name`` or have it as a word, else the one that is nearest.

    None where none is near.
    """
    if len(name) > LONGEST_SHOWN:  # no name is so long, and comparing takes long
        return ()
    by_lower = {candidate.lower(): candidate for candidate in names}
    lower = name.lower()
    longer = sorted((one for one in by_lower if len(lower) > 2 and f"-{lower}" in f"-{one}"), key=len)
    near = longer[:MOST_OFFERED] or difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.6)
    return tuple(by_lower[one] for one in near)
