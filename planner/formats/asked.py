"""The request inside a suggestion: a value of one type a key, each with its source; absent where the plan decides.

Whole numbers to try are a list, or, where an even range is long, its first, last and step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.domain.axes import AXES, MODES, Axis
from planner.domain.limits import LIMITS
from planner.domain.ranks import BEST_ORDER, RANK_ORDER
from planner.domain.request import DEFAULT, Sourced
from planner.domain.suggestion import CHOICES
from planner.formats.fields import REQUIRED, Field, ListOf, MapOf, Nullable, OneOf, Table, without_none
from planner.formats.values import Flag, Number, Text, Type, Whole

__all__ = ["LONGEST_LIST", "REQUEST_TABLE", "request_keys", "request_of"]

LONGEST_LIST = 256
"""Values up to which an even range is a list."""

_RANGE = Table(
    (
        Field("first", Whole(), "least value"),
        Field("last", Whole(), "largest value"),
        Field("step", Whole(), "from each value to the next"),
    ),
    dict[str, Any],
)
_COUNTS = Nullable(OneOf((ListOf(Whole(least=0), least=1), _RANGE, Whole(least=0)), "counts"))
"""One number alone, as in older documents of degrees."""
_NAMES = ListOf(Text(), least=1)


def _type_of(axis: Axis) -> Type:
    """Return the type of the values of an axis to try."""
    words: Type = ListOf(Text(axis.words), least=1)
    if axis.is_split:
        words = OneOf((words, Text(axis.words)), f"values of {axis.option}")
    return _COUNTS if not axis.words else Nullable(words) if axis.default_in_suggest else words


_TYPES: Mapping[str, tuple[Type, str]] = {
    "network": (Text(), "network to train"),
    "dataset": (Nullable(Text()), "data set of an epoch; absent: none"),
    "cluster": (Text(), "cluster to train on"),
    "calibration": (ListOf(Text()), "calibrations, first come first served"),
    "framework": (OneOf((Text(), ListOf(Text(), least=1)), "framework"), "training framework, or several to try"),
    **{axis.option: (_type_of(axis), axis.asked) for axis in sorted(AXES, key=lambda axis: axis.name != "mode")},
    "parallelism": (_NAMES, "kinds of parallelism to try"),
    "rank_order": (
        ListOf(Text((*RANK_ORDER, *BEST_ORDER))),
        "axes by which ranks are numbered, inner ones first; or best",
    ),
    "optimizer": (Text(), "optimizer"),
    "strategy": (Text(), "what overlaps in a synchronous step"),
    "input": (Text(), "where samples come from"),
    "scenario": (Nullable(Text()), "what-if, as it was written; absent: things as they are"),
    "task": (Text(), "what runs"),
    "target_batch": (Whole(most=10**15), "wanted mini-batch [samples]"),
    "tolerance": (MapOf(Number(), choices=MODES), "accepted distance from the target, relative to it, by mode"),
    "objective": (Text(), "what is minimised"),
    "limit": (MapOf(Number(), choices=tuple(LIMITS)), "what a plan may take at most: epoch [s], cost [USD], numbers"),
    "allow_specified": (Flag(), "whether fp8 and int8 are candidates by the data sheet alone"),
    "top": (Whole(), "plans to report"),
    "pareto": (Flag(), "whether the Pareto front is wanted"),
    "sensitivity": (Flag(), "whether a change of single inputs is told"),
    "epochs": (Whole(), "epochs of the whole training"),
    "choose": (Text(CHOICES), "which of the tied plans is taken"),
    "seed": (Whole(least=0, most=2**63 - 1), "seed of everything random"),
}


def _sourced_table(value: Type, doc: str) -> Table[dict[str, Any]]:
    own = Field("value", value, doc, None if isinstance(value, Nullable) else REQUIRED)
    return Table(
        (own, Field("source", Text(), "where it comes from; absent: default", DEFAULT)),
        dict[str, Any],
    )


REQUEST_TABLE = Table(
    tuple(
        Field(key, _sourced_table(kind, doc), doc, REQUIRED if key == "target_batch" else None)
        for key, (kind, doc) in _TYPES.items()
    ),
    without_none,
    "every value with its source",
    split=lambda values: dict.fromkeys(_TYPES) | dict(values),
)


def request_keys(request: Mapping[str, Sourced[object]]) -> dict[str, Any]:
    """Return the keys of a request: values by option name, each with its source."""
    return {key: {"value": _plain(one.value), "source": one.source} for key, one in request.items()}


def request_of(keys: Mapping[str, Mapping[str, Any]]) -> dict[str, Sourced[object]]:
    """Return the values of a request with their sources, in the order of the options."""
    return {key: Sourced(_numbers_of(one["value"]), one["source"]) for key, one in keys.items()}


def _numbers_of(value: Any) -> object:
    """Return a range as its numbers."""
    if isinstance(value, dict) and "step" in value:
        return tuple(range(value["first"], value["last"] + 1, value["step"]))
    return value


def _plain(value: object) -> Any:
    if isinstance(value, tuple) and len(value) > LONGEST_LIST and all(isinstance(one, int) for one in value):
        return _as_range(value)
    return list(value) if isinstance(value, tuple) else value


def _as_range(values: Sequence[int]) -> Any:
    """Return the first, last and step of numbers that are evenly spaced, else the numbers."""
    step = values[1] - values[0]
    if step > 0 and list(values) == list(range(values[0], values[-1] + 1, step)):
        return {"first": values[0], "last": values[-1], "step": step}
    return list(values)
