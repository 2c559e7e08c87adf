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

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "NOTHING",
    "CoverageError",
    "InputFileError",
    "MissingPackageError",
    "NothingFitsError",
    "OutputError",
    "ParameterError",
    "PlannerError",
    "UnknownNameError",
    "UsageError",
    "VersionError",
    "nearest_name",
    "nearest_names",
    "printable",
    "shortened",
    "shown",
]


class PlannerError(Exception):
    """Root of the failures that a user can mend; everything else is a bug."""

    exit_code = 1


class UsageError(PlannerError):
    """The command line asks for something that is not there."""

    exit_code = 2


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

    def __init__(self, what: str, rule: str, value: Any, remedy: str = "") -> None:
        super().__init__(f"{what} must be {rule}, got {shown(value)}" + (f"; {remedy}" if remedy else ""))
        self.what, self.rule, self.value, self.remedy = what, rule, value, remedy


class UnknownNameError(UsageError):
    """No bundled or user thing of that name; the nearest known names are offered."""

    def __init__(self, what: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        names = sorted(known)
        near = nearest_names(name, names)
        guess = f"; did you mean {' or '.join(map(repr, near))}?" if near else "." if names or remedy else ""
        listing = f" Known: {', '.join(names)}." if names and not remedy else ""
        more = f"{listing}{' ' + remedy if remedy else ''}"
        super().__init__(f"{what} must be a known name, got {shown(name)}{guess}{more}")
        self.what, self.name, self.nearest = what, name, next(iter(near), None)


class OutputError(UsageError):
    """An output exists already or cannot be written."""


class MissingPackageError(UsageError):
    """An optional package or device is not installed; the sentence says how to get it."""


class InputFileError(PlannerError):
    """A file is wrong: unreadable, truncated, unknown key, value against its rule.

    Parameters
    ----------
    path : str
        The file, as the user named it.
    problem : str
        The sentence.
    where : str, optional
        Place inside the file, such as ``links.intra_node.bandwidth_GBps`` or ``line 7``.
    """

    exit_code = 3

    def __init__(self, path: str, problem: str, where: str = "") -> None:
        place = shortened(printable(where)) + ": " if where else ""
        super().__init__(f"{printable(path)}: {place}{problem}")
        self.path, self.problem, self.where = path, problem, where


class VersionError(InputFileError):
    """A file was written by a newer program than this one."""


class NothingFitsError(PlannerError):
    """No plan satisfies the request; the sentence says what to loosen."""

    exit_code = 4


class CoverageError(PlannerError):
    """The calibration does not cover the request; the sentence names the command that mends it."""

    exit_code = 5


class _Nothing:
    """What was received where something had to be given; unlike text it is not quoted."""

    def __str__(self) -> str:
        return "nothing"


NOTHING = _Nothing()
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
    return shortened(str(value))


def shortened(text: str) -> str:
    """Return a text, or its first LONGEST_SHOWN characters."""
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


def printable(text: str) -> str:
    """Return a text with escapes in place of characters that a terminal obeys or does not show."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


MOST_OFFERED = 3
"""Names that are offered instead of an unknown one."""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the first of :func:`nearest_names`, else None."""
    return next(iter(nearest_names(name, known)), None)


def nearest_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the shortest known names that begin with ``name``, else the one that is nearest, if any is near."""
    if len(name) > LONGEST_SHOWN:  # no name is so long, and comparing takes long
        return ()
    by_lower = {candidate.lower(): candidate for candidate in known}
    wanted = name.lower()
    longer = sorted((one for one in by_lower if len(wanted) > 2 and one.startswith(wanted)), key=len)
    found = longer[:MOST_OFFERED] or difflib.get_close_matches(wanted, by_lower, n=1, cutoff=0.6)
    return tuple(by_lower[one] for one in found)
