"""Types of single values in documents: text, flags, whole numbers, numbers with a unit.

A *type* is any object with ``words`` (the rule, continuing "must be"), ``read`` (file value -> record value, or
FieldError with the place), ``write`` (the inverse) and ``schema``; :mod:`planner.formats.fields` builds lists and
tables of them. Numbers with a unit are SI in records; in files the unit is the suffix of their key.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol
from unicodedata import category

from planner.domain.arrays import LARGEST_COUNT
from planner.errors import Refusal, shown
from planner.units import BOUNDS

__all__ = [
    "LARGEST_WHOLE",
    "LONGEST_NAME",
    "UNITS",
    "FieldError",
    "Flag",
    "Name",
    "Number",
    "Text",
    "Type",
    "Whole",
    "at",
    "hidden",
    "received",
    "refuse",
]

LONGEST_NAME = 200
"""Characters of a name: it is to stand in a table and in a sentence."""
TURNING_CHARACTERS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What turns the direction of writing: a terminal then shows other text than is there."""


@dataclass(frozen=True, slots=True)
class Unit:
    """SI value = number x times / over, two exact factors; a number is 0, or from ``least`` to ``most``."""

    dimension: str
    least: float
    most: float
    times: float
    over: float


def _unit(dimension: str, times: float = 1.0, over: float = 1.0) -> Unit:
    least, most = (bound * over / times for bound in BOUNDS[dimension])
    return Unit(dimension, least, most, times, over)


UNITS = {
    "GBps": _unit("bandwidth", 1e9),
    "GiB": _unit("bytes", 2.0**30),
    "MiB": _unit("bytes", 2.0**20),
    "ms": _unit("latency", over=1e3),
    "us": _unit("latency", over=1e6),
    "TFLOPps": _unit("rate", 1e12),
    **{name: _unit(name) for name in ("", "sample", "price", "share")},
}
LARGEST_WHOLE = 10**300


class FieldError(Exception):
    """A value that its key does not allow; the reader of the file adds the path."""

    def __init__(self, place: str, problem: str | Refusal) -> None:
        super().__init__(f"{place}: {problem}")
        self.place, self.problem = place, problem


class Type(Protocol):
    """What a value of a key may be; one with ``read_all`` takes many values at once."""

    @property
    def words(self) -> str:
        """The rule, continuing the words "must be"."""

    def read(self, value: Any, place: str) -> Any:
        """Return the record's value, or raise FieldError."""

    def write(self, value: Any) -> Any:
        """Return the file's value of a record's value."""

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema."""


def at(place: str, key: str | int) -> str:
    """Return the place of a key, or of a position, inside another place."""
    if isinstance(key, int):
        return f"{place}[{key}]"
    return f"{place}.{key}" if place else key


def refuse(place: str, rule: str, value: Any) -> NoReturn:
    """Raise the FieldError of a value that breaks its rule."""
    raise FieldError(place, Refusal("value", f"value must be {rule}", place, received(value)))


def received(value: Any) -> str:
    """Return a value of a file as a sentence repeats it."""
    if isinstance(value, Mapping | list):
        return "a table" if isinstance(value, Mapping) else "a list"
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else shown(value)


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


@dataclass(frozen=True, slots=True)
class Text:
    """A string; one of ``choices`` where there are any, and not empty unless ``empty``."""

    choices: Collection[str] = ()
    empty: bool = False

    @property
    def words(self) -> str:
        """The rule."""
        return "one of " + ", ".join(self.choices) if self.choices else "text"

    def read(self, value: Any, place: str) -> str:
        """Return the text."""
        choices = self.choices or (value,)
        if not isinstance(value, str) or value not in choices or not (value or self.empty):
            refuse(place, "text that is not empty" if value == "" and not self.choices else self.words, value)
        if hidden(value, on_one_line=False):
            refuse(place, "text without control characters", value)
        return value

    def write(self, value: Any) -> str:
        """Return the text."""
        return str(value)

    def schema(self) -> dict[str, Any]:
        """Return a schema of type string."""
        rule: dict[str, Any] = {"enum": list(self.choices)} if self.choices else {}
        return {"type": "string"} | rule | ({} if self.empty or self.choices else {"minLength": 1})


@dataclass(frozen=True, slots=True)
class Name:
    """What something is called: text on one line, shown as it is, of at most LONGEST_NAME characters."""

    empty: bool = False

    words = "text"

    def read_all(self, values: Sequence[Any]) -> Sequence[str] | None:
        """Return names that are plainly right; None where each is to be read on its own."""
        if not set(map(type, values)) <= {str} or not all(map(str.isprintable, values)):
            return None
        least, most = min(map(len, values), default=1), max(map(len, values), default=1)
        return values if (least or self.empty) and most <= LONGEST_NAME else None

    def read(self, value: Any, place: str) -> str:
        """Return the name."""
        name = Text(empty=self.empty).read(value, place)
        if hidden(name):
            refuse(place, "a name without control characters or hidden ones", name)
        if len(name) > LONGEST_NAME:
            raise FieldError(place, f"name must be of at most {LONGEST_NAME} characters, got {len(name):,}")
        return name

    def write(self, value: Any) -> str:
        """Return the name."""
        return str(value)

    def schema(self) -> dict[str, Any]:
        """Return a schema of type string."""
        return Text(empty=self.empty).schema() | {"maxLength": LONGEST_NAME}


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    words = "true or false"

    def read(self, value: Any, place: str) -> bool:
        """Return the flag."""
        if not isinstance(value, bool):
            refuse(place, self.words, value)
        return value

    def write(self, value: Any) -> bool:
        """Return the flag."""
        return bool(value)

    def schema(self) -> dict[str, Any]:
        """Return a schema of type boolean."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from ``least`` to ``most``; LARGEST_WHOLE is the most of one whose owner knows the limit."""

    least: int = 1
    most: int = LARGEST_COUNT

    @property
    def words(self) -> str:
        """The rule."""
        limits = f"from {self.least} to {self.most}" if self.most != LARGEST_WHOLE else f"of at least {self.least}"
        return f"a whole number {limits}"

    def read(self, value: Any, place: str) -> int:
        """Return the number."""
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            refuse(place, self.words, value)
        return value

    def write(self, value: Any) -> int:
        """Return the number."""
        return int(value)

    def schema(self) -> dict[str, Any]:
        """Return a schema of type integer."""
        most = {"maximum": self.most} if self.most != LARGEST_WHOLE else {}
        return {"type": "integer", "minimum": self.least} | most


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a unit: 0 unless ``above``, or of a size that the unit makes sense of; negative where ``signed``."""

    unit: str = ""
    above: bool = False
    signed: bool = False

    @property
    def scale(self) -> Unit:
        """The unit."""
        return UNITS[self.unit]

    @property
    def words(self) -> str:
        """The rule."""
        least, most = self.scale.least, self.scale.most
        unit = f" of {self.unit}" * (self.unit != self.scale.dimension)
        zero, sign = "0, or " * bool(least and not self.above), ", of either sign" * self.signed
        return f"{zero}a number{unit} from {least:.3g} to {most:.3g}{sign}"

    def read_all(self, values: Sequence[Any]) -> Sequence[float] | None:
        """Return numbers in SI that are plainly right; None where each is to be read on its own."""
        if not set(map(type, values)) <= {float, int}:
            return None
        if not all(map(self._is_lawful, values)):
            return None
        scale = self.scale
        return [float(value) * scale.times / scale.over for value in values] if self.unit else list(map(float, values))

    def read(self, value: Any, place: str) -> float:
        """Return the number in SI."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            in_key = isinstance(value, str) and self.unit != self.scale.dimension
            refuse(place, self.words + " (the unit stands in the key)" * in_key, value)
        if not self._is_lawful(value):
            refuse(place, self.words, value)
        return float(value) * self.scale.times / self.scale.over

    def _is_lawful(self, value: float) -> bool:
        """Return whether a number has a lawful size and sign."""
        scale, size = self.scale, abs(value) if self.signed else value
        return scale.least <= size <= scale.most or (size == 0 and not self.above)

    def write(self, value: Any) -> float | None:
        """Return the shortest number of units that reads as this; None: it is not finite; 0: it underflows."""
        number, scale = float(value), self.scale
        if not math.isfinite(number):
            return None
        exact = number * scale.over / scale.times
        if not self.above and abs(exact) < scale.least:
            return 0.0
        if scale.times == scale.over == 1.0:
            return number
        short = (float(f"{exact:.{digits}g}") for digits in (15, 16)) if self.unit else ()
        near = (*short, exact, math.nextafter(exact, 0), math.nextafter(exact, math.inf))
        return next((guess for guess in near if guess * scale.times / scale.over == number), exact)

    def schema(self) -> dict[str, Any]:
        """Return a schema of type number."""
        least, most = self.scale.least, self.scale.most
        return {"type": "number", "minimum": least if self.above else -most if self.signed else 0, "maximum": most}
