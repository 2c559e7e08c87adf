"""Texts of options to values: lists, ranges, choices.

Each parser takes (what, text); ``what`` names the option in errors. Nothing here imports NumPy, because
``planner --help`` loads this module.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from typing import NamedTuple, cast

from planner.domain.axes import BEST_ORDER, check_rank_order, trainable_of
from planner.domain.framework import framework_parts, strategy_and_size
from planner.domain.objective import LIMITS, TERMS, is_sum, weights_of
from planner.errors import ParameterError, UnknownNameError, nearest_name
from planner.units import parse_fraction, parse_number, parse_quantity

Parser = Callable[[str, str], object]

LARGEST_COUNT = 10**9
"""Largest count an option accepts, as in the domain records."""
MOST_VALUES = 10**6
"""Most values a range or list may have."""
LARGEST_TARGET = 10**8
"""Largest mini-batch asked for; the largest ever trained with is about a hundredth of it."""

EVERY = "every:"
"""Of recompute: ``every:K`` is ``full`` of each K-th layer."""
_DIGITS = re.compile(r"[0-9]{1,18}")
_RANGE = "whole numbers as a list a,b or a range lo:hi[:step], each at least"
_FRAMEWORK = re.compile(r"[A-Za-z][\w.+-]*(?::[\w.+-]+)?(?:@[\w.+-]+)?(?::[\w.+-]+)?", re.ASCII)
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


count = whole(1, LARGEST_COUNT)


def threads(what: str, value: str) -> int:
    """Return a number of threads that this machine has; ``all`` of them."""
    most = os.cpu_count() or 1
    return most if value == "all" else cast("int", whole(1, most)(what, value))


def numbers(least: int, most: int = 0) -> Parser:
    """Return a parser of a comma list of whole numbers and ranges ``lo:hi[:step]``, in order, each once.

    ``1,4:6`` gives (1, 4, 5, 6); ``8:64:8`` gives (8, 16, ..., 64). Empty, reversed and oversized ranges are refused,
    as are numbers below ``least`` and above ``most``; 0: above the largest count.
    """
    largest = most or LARGEST_COUNT

    def parse(what: str, value: str) -> tuple[int, ...]:
        spans = []
        for item in value.split(","):
            parts = item.strip().split(":")
            if len(parts) > 3 or not all(_DIGITS.fullmatch(part) for part in parts):
                raise ParameterError(what, f"{_RANGE} {least}", value)
            ends = [*parts, *parts] if len(parts) == 1 else parts
            low, high, step = (int(part) for part in [*ends, "1"][:3])
            if min(low, high) < least or step < 1 or max(low, high) > largest or step > LARGEST_COUNT:
                raise ParameterError(what, f"{_RANGE} {least} and at most {largest}", value)
            if high < low:
                raise ParameterError(what, "a range lo:hi with lo at most hi", value, f"write {high}:{low}")
            spans.append(range(low, high + 1, step))
        if sum(len(span) for span in spans) > MOST_VALUES:
            raise ParameterError(what, f"a list or range of at most {MOST_VALUES} values", value)
        return tuple(dict.fromkeys(number for span in spans for number in span))

    return parse


counts = numbers(1)


def targets(what: str, value: str) -> object:
    """Return a mini-batch, or those of a list or range; each is answered."""
    each = cast("tuple[int, ...]", numbers(1, LARGEST_TARGET)(what, value))
    return each[0] if len(each) == 1 else each


def words(what: str, value: str) -> tuple[str, ...]:
    """Return what a shell makes of a command, at least a word."""
    try:
        return tuple(shlex.split(text(what, value)))
    except ValueError as error:
        raise ParameterError(what, "words as a shell reads them", value, str(error)) from None


def pairs(what: str, value: str) -> dict[str, str]:
    """Return a comma list of ``key=value`` as a mapping, each key once."""
    parts = [one.partition("=") for one in value.split(",")]
    if any(not key.strip() or not sign or not rest.strip() for key, sign, rest in parts):
        raise ParameterError(what, "a list key=value,...", value, "write for example nodes=16,precision=fp16")
    mapping = {key.strip(): rest.strip() for key, _, rest in parts}
    if len(mapping) < len(parts):
        raise ParameterError(what, "a list key=value,... with each key once", value)
    return mapping


class AskedPart(NamedTuple):
    """What a node group is to do in a plan."""

    group: str
    nodes: int = 1
    sub_batch: int = 1
    accumulation: int = 1

    def __str__(self) -> str:
        """Return it as it is typed."""
        return f"{self.group}:nodes={self.nodes},sub-batch={self.sub_batch},accumulation={self.accumulation}"


def group(what: str, value: str) -> AskedPart:
    """Return a node group with what it does in a plan, ``NAME:sub-batch=32[,nodes=2][,accumulation=4]``."""
    name, colon, rest = value.partition(":")
    keys = [key.replace("_", "-") for key in AskedPart._fields[1:]]
    if not name.strip() or not colon:
        raise ParameterError(what, "NAME:nodes=N,sub-batch=N[,...]", value)
    given = pairs(what, rest)
    for key in given:
        if key not in keys:
            raise UnknownNameError(f"key of {what} {name}", key, keys)
    if "sub-batch" not in given:
        raise ParameterError(what, "NAME:nodes=N,sub-batch=N[,...]", value, "say the samples of one pass of a GPU")
    numbers_given = {key.replace("-", "_"): count(f"{key} in {what}", text) for key, text in given.items()}
    return AskedPart(name.strip(), **{key: cast("int", one) for key, one in numbers_given.items()})


def limits(what: str, value: str) -> dict[str, float]:
    """Return a list such as ``epoch=1h,nodes=32`` in the units of :data:`planner.domain.objective.LIMITS`."""
    most: dict[str, float] = {}
    for name, text in pairs(what, value).items():
        choice(*(one for one, of in LIMITS.items() if not of.option))(what, name)
        key, unit = f"{name} in {what}", LIMITS[name].unit
        if unit == "share":
            most[name] = parse_fraction(text, key)
            if not 0 < most[name] <= 1:
                raise ParameterError(key, "a share such as 50% or 0.5, above 0 and at most 1", text)
        else:
            most[name] = parse_quantity(text, "time", key) if unit == "s" else parse_number(text, key)
    return most


def tokens(what: str, value: str) -> float:
    """Return a number of tokens, such as ``15e12``."""
    return parse_number(value, what, "write for example 15e12")


def choice(*words: str) -> Parser:
    """Return a parser of one of ``words``."""

    def parse(what: str, value: str) -> str:
        if value not in words:
            near = nearest_name(value, words)
            raise ParameterError(what, "one of " + ", ".join(words), value, f"did you mean {near!r}?" if near else "")
        return value

    return parse


def choices(*words: str) -> Parser:
    """Return a parser of a comma list of ``words``, in order, each once."""
    one = choice(*words)

    def parse(what: str, value: str) -> tuple[object, ...]:
        return tuple(dict.fromkeys(one(what, item.strip()) for item in value.split(",")))

    return parse


def recomputes(*words: str) -> Parser:
    """Return a parser of a comma list of ``words``, or of periods alone, ``every:K``: K at least 1."""
    several = choices(*words, "every:K")

    def parse(what: str, value: str) -> object:
        items = [item.strip() for item in value.split(",")]
        periods = [item.removeprefix(EVERY) for item in items if item.startswith(EVERY)]
        if not periods:
            return several(what, value)
        if len(periods) < len(items):
            rule, remedy = f"of {', '.join(words)}, or every:K alone", "ask for each of them by itself"
            raise ParameterError(what, rule, value, remedy)
        if not all(_DIGITS.fullmatch(one) and 1 <= int(one) <= LARGEST_COUNT for one in periods):
            raise ParameterError(what, f"every:K with a whole number K from 1 to {LARGEST_COUNT}", value)
        return tuple(dict.fromkeys(f"{EVERY}{int(one)}" for one in periods))

    return parse


def rank_order(what: str, value: str) -> tuple[str, ...]:
    """Return the names of a comma list that has each of planner.domain.axes.RANK_ORDER once, or BEST_ORDER."""
    order = tuple(item.strip() for item in value.split(","))
    if order != BEST_ORDER:
        check_rank_order(what, order)
    return order


def strategy(*words: str) -> Parser:
    """Return a parser of one of ``words``, or of a size behind the one that takes it."""
    one = choice(*words)

    def parse(what: str, value: str) -> object:
        return value if strategy_and_size(value, what)[1] else one(what, value)

    return parse


def trainable(what: str, value: str) -> str:
    """Check a value of --trainable and return it."""
    trainable_of(value, what)
    return value


def only(parser: Parser, *values: object) -> Parser:
    """Return a parser that checks the rule of ``parser``, then refuses all but the values supported so far."""
    text = " or ".join(",".join(one) if isinstance(one, tuple) else str(one) for one in values)
    which = "the only value" if len(values) == 1 else "the only values"

    def parse(what: str, value: str) -> object:
        parsed_value = parser(what, value)
        if parsed_value not in values:
            raise ParameterError(what, f"{text}, {which} supported yet", value)
        return parsed_value

    return parse


def objective(what: str, value: str) -> str:
    """Return one of TERMS, or a weighted sum of them, such as ``epoch-time:1+cost:0.2``."""
    if not is_sum(value):
        return str(only(choice(*TERMS, "time-to-accuracy"), *TERMS)(what, value))
    return "+".join(f"{term}:{weight:.12g}" for term, weight in weights_of(value, what).items())


def fraction(what: str, value: str) -> float:
    """Return ``25%`` or ``0.25``; above 1 only with the per cent sign, because ``25`` is most likely a slip."""
    share = parse_fraction(value, what)
    if share > 1 and not value.strip().endswith("%"):
        raise ParameterError(what, "a fraction such as 25% or 0.25", value, f"write {value.strip()}% for per cent")
    return share


def tolerance(what: str, value: str) -> float:
    """Return a relative distance from the target, at most 100 %: a mini-batch has at least no sample."""
    share = fraction(what, value)
    if share > 1:
        raise ParameterError(what, "at most 100%", value)
    return share


def error_aim(what: str, value: str) -> float:
    """Return a relative error to reach, such as ``5%``: above 0, and at most 100 %."""
    share = fraction(what, value)
    if not 0 < share <= 1:
        raise ParameterError(what, "above 0 and at most 100%", value)
    return share


def budget(what: str, value: str) -> float:
    """Return a time with its unit, such as ``60s``, in s; at least 1 s and at most a day."""
    seconds = parse_quantity(value, "time", what)
    if not 1 <= seconds <= 86_400:
        raise ParameterError(what, "a time from 1s to 24h", value, f"write {'60s' if seconds < 1 else '24h'}")
    return seconds


def time_limit(what: str, value: str) -> float:
    """Return a time above 0 with its unit, such as ``2s``, in s."""
    return parse_quantity(value, "time", what)


def device(what: str, value: str) -> str:
    """Return ``cpu``, ``cuda`` or ``cuda:INDEX``."""
    if not _DEVICE.fullmatch(value):
        raise ParameterError(what, "cpu, cuda or cuda:INDEX", value)
    return value


def framework(what: str, value: str) -> str:
    """Return ``NAME[@version][:switch+switch]``, or a TOML file in place of NAME; what there is the catalog knows."""
    if not (_FRAMEWORK.fullmatch(value) or framework_parts(value)[0].endswith(".toml")):
        raise ParameterError(what, "NAME, NAME@version, NAME:switch+switch or a .toml file", value)
    return value


def frameworks(what: str, value: str) -> str | tuple[str, ...]:
    """Return one as :func:`framework`, or those of a comma list, each once."""
    each = tuple(dict.fromkeys(framework(what, item.strip()) for item in value.split(",")))
    return each[0] if len(each) == 1 else each
