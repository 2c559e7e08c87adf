"""Texts of options to values: lists, ranges, choices.

Each parser takes (what, text); ``what`` names the option in errors. Nothing here imports NumPy, because
``planner --help`` loads this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from planner.errors import ParameterError, nearest_name
from planner.units import parse_fraction, parse_quantity

__all__ = [
    "Parser",
    "choice",
    "choices",
    "count",
    "counts",
    "error_aim",
    "fraction",
    "framework",
    "only",
    "text",
    "whole",
]

Parser = Callable[[str, str], object]

LARGEST = 10**9
"""Largest count an option accepts, as in the domain records."""
LONGEST = 10**6
"""Most values a range or list may have."""
LARGEST_TARGET = 10**8
"""Largest mini-batch asked for; the largest ever trained with is about a hundredth of it."""

_DIGITS = re.compile(r"[0-9]{1,18}")
_RANGE = "whole numbers as a list a,b or a range lo:hi[:step], each at least 1"
_FRAMEWORK = re.compile(r"[A-Za-z][\w.+-]*(@[\w.+-]+)?", re.ASCII)
_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")


def text(what: str, value: str) -> str:
    """Return the text; empty is refused."""
    if not value.strip():
        raise ParameterError(what, "not empty", value)
    return value


def whole(least: int, most: int) -> Parser:
    """Return a parser of one whole number from ``least`` to ``most``."""

    def parse(what: str, value: str) -> int:
        if not _DIGITS.fullmatch(value.strip()) or not least <= int(value) <= most:
            raise ParameterError(what, f"a whole number from {least} to {most}", value)
        return int(value)

    return parse


count = whole(1, LARGEST)


def counts(what: str, value: str) -> tuple[int, ...]:
    """Return the numbers of a comma list of whole numbers and ranges ``lo:hi[:step]``, in order, each once.

    ``1,4:6`` gives (1, 4, 5, 6); ``8:64:8`` gives (8, 16, ..., 64). Empty, reversed and oversized ranges are refused.
    """
    spans = [_span(what, item, value) for item in value.split(",")]
    if sum(len(span) for span in spans) > LONGEST:
        raise ParameterError(what, f"a list or range of at most {LONGEST} values", value)
    return tuple(dict.fromkeys(number for span in spans for number in span))


def _span(what: str, item: str, value: str) -> range:
    parts = item.strip().split(":")
    if len(parts) > 3 or not all(_DIGITS.fullmatch(part) for part in parts):
        raise ParameterError(what, _RANGE, value)
    low, high, step = (int(part) for part in (parts + parts[:1] + ["1"] if len(parts) == 1 else [*parts, "1"])[:3])
    if min(low, high, step) < 1 or max(low, high, step) > LARGEST:
        raise ParameterError(what, f"{_RANGE} and at most {LARGEST}", value)
    if high < low:
        raise ParameterError(what, "a range lo:hi with lo at most hi", value, f"write {high}:{low}")
    return range(low, high + 1, step)


def choice(*known: str) -> Parser:
    """Return a parser of one of ``known``."""

    def parse(what: str, value: str) -> str:
        if value not in known:
            near = nearest_name(value, known)
            raise ParameterError(what, "one of " + ", ".join(known), value, f"did you mean {near!r}?" if near else "")
        return value

    return parse


def choices(*known: str) -> Parser:
    """Return a parser of a comma list of ``known``, in order, each once."""
    one = choice(*known)

    def parse(what: str, value: str) -> tuple[object, ...]:
        return tuple(dict.fromkeys(one(what, item.strip()) for item in value.split(",")))

    return parse


def only(parser: Parser, *supported: object) -> Parser:
    """Return a parser that checks the rule of ``parser``, then refuses all but the values supported so far."""
    shown = " or ".join(",".join(one) if isinstance(one, tuple) else str(one) for one in supported)
    which = "the only value" if len(supported) == 1 else "the only values"

    def parse(what: str, value: str) -> object:
        parsed = parser(what, value)
        if parsed not in supported:
            raise ParameterError(what, f"{shown}, {which} supported yet", value)
        return parsed

    return parse


def fraction(what: str, value: str) -> float:
    """Return ``25%`` or ``0.25``; above 1 only with the per cent sign, because ``25`` is most likely a slip."""
    parsed = parse_fraction(value, what)
    if parsed > 1 and not value.strip().endswith("%"):
        raise ParameterError(what, "a fraction such as 25% or 0.25", value, f"write {value.strip()}% for per cent")
    return parsed


def error_aim(what: str, value: str) -> float:
    """Return a relative error to reach, such as ``5%``: above 0, and at most 100 %."""
    parsed = fraction(what, value)
    if not 0 < parsed <= 1:
        raise ParameterError(what, "above 0 and at most 100%", value)
    return parsed


def budget(what: str, value: str) -> float:
    """Return a time with its unit, such as ``60s``, in s; at least 1 s and at most a day."""
    parsed = parse_quantity(value, "time", what)
    if not 1 <= parsed <= 86_400:
        raise ParameterError(what, "a time from 1s to 24h", value, f"write {'60s' if parsed < 1 else '24h'}")
    return parsed


def device(what: str, value: str) -> str:
    """Return ``cpu``, ``cuda`` or ``cuda:INDEX``."""
    if not _DEVICE.fullmatch(value):
        raise ParameterError(what, "cpu, cuda or cuda:INDEX", value)
    return value


def framework(what: str, value: str) -> str:
    """Return ``NAME``, ``NAME@version`` or the path of a TOML file; which names there are is the catalog's business."""
    if not (_FRAMEWORK.fullmatch(value) or value.endswith(".toml")):
        raise ParameterError(what, "NAME, NAME@version or a .toml file", value)
    return value
