"""What answers share as tables: the request with its sources, warnings, citations, how a space was searched.

A value of a request is absent where the plan decides; whole numbers to try are a list, or, where an even range is long,
its first, last and step. Each warning stands once, with the positions of what it is about unless it is about all of it;
citations of one source stand together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from planner.domain.axes import AXES, MODES, Axis
from planner.domain.objective import LIMITS
from planner.domain.prediction import Citation, PlanWarning
from planner.domain.ranks import BEST_ORDER, RANK_ORDER
from planner.domain.request import DEFAULT, Sourced
from planner.domain.suggestion import CHOICES, Loosening, Refused, SearchReport
from planner.errors import Refusal
from planner.formats.fields import (
    REQUIRED,
    Field,
    FieldError,
    Flag,
    ListOf,
    MapOf,
    Nullable,
    Number,
    OneOf,
    Table,
    Text,
    Type,
    Whole,
    without_none,
)

__all__ = [
    "CITATIONS", "LONGEST_LIST", "LOOSENING_TABLE", "REFUSAL_TABLE", "REQUEST_TABLE", "SEARCH_TABLE", "citation_keys",
    "citations_of", "request_keys", "request_of", "warning_keys", "warning_table", "warnings_of",
]  # fmt: skip


Lists = Mapping[str, Mapping[int, Sequence[PlanWarning]]]
"""Key of a list -> position in it -> warnings of what stands there."""


def warning_table(**lists: str) -> Table[dict[str, Any]]:
    """Return the table of a warning with a key for each list of positions, of that description."""
    subject = Field("subject", Text(), "what it is about", "")
    of = (subject, *(Field(key, ListOf(Whole()), doc, None) for key, doc in lists.items()))
    again = ListOf(Table(*of, title="_".join(("said_again", *lists))), least=1)
    own = (Field("code", Text(), "for programs"), Field("message", Text(), "for people"))
    also = Field("also", again, "other subjects of the same sentence", ())
    return Table(*own, *of, also, title="_".join(("warning", *lists)))


def warning_keys(first: Iterable[PlanWarning], lists: Lists) -> tuple[dict[str, Any], ...]:
    """Return the keys of every warning once: the ``first`` ones, then those that stand in lists alone, in order.

    The positions of one that all of a list have are left out.
    """
    of_lists = (warning for rows in lists.values() for warnings in rows.values() for warning in warnings)
    by_sentence: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in dict.fromkeys((*first, *of_lists)):
        subject: dict[str, Any] = {"subject": one.subject}
        for key, rows in lists.items():
            positions = [at for at, warnings in rows.items() if one in warnings]
            if len(positions) < len(rows):
                subject[key] = positions
        by_sentence.setdefault((one.code, one.message), []).append(subject)
    return tuple(
        {"code": code, "message": message, **own, "also": tuple(also)}
        for (code, message), (own, *also) in by_sentence.items()
    )


def warnings_of(rows: Iterable[Mapping[str, Any]], key: str = "", position: int = 0) -> tuple[PlanWarning, ...]:
    """Return the warnings of rows; with ``key`` those of what stands at a position of its list."""
    return tuple(
        PlanWarning(row["code"], one["subject"], row["message"])
        for row in rows
        for one in (row, *row["also"])
        if not key or one[key] is None or position in one[key]
    )


_CITATION = Table(
    Field("names", ListOf(Text(), least=1), "names of calibrations"),
    Field("origin", Text(), "measured, published, ..."),
    Field("source", Text(), "where it comes from", ""),
    Field("date", Text(), "ISO date of that", ""),
    title="citation",
)
CITATIONS = Field("citations", ListOf(_CITATION), "of the calibrations that the answer rests on", ())


def citation_keys(citations: Sequence[Citation]) -> tuple[dict[str, Any], ...]:
    """Return the keys of citations."""
    names: dict[Citation, list[str]] = {}
    for one in citations:
        names.setdefault(replace(one, name=""), []).append(one.name)
    return tuple({**asdict(one), "names": of_one} for one, of_one in names.items())


def citations_of(keys: Iterable[Mapping[str, Any]]) -> tuple[Citation, ...]:
    """Return what the keys say."""
    return tuple(Citation(name, one["origin"], one["source"], one["date"]) for one in keys for name in one["names"])


_CODES = ("precision", "mode", "accumulation", "below_window", "above_window", "memory", "degrees", "limit", "other")
REFUSAL_TABLE = Table(
    Field("code", Text(_CODES), "for programs"),
    Field("reason", Text(), "for people"),
    Field("count", Whole(least=0, most=10**18), "plans that are refused for it"),
    make=Refused,
)
SEARCH_TABLE = Table(
    Field("method", Text(), "how the space was searched"),
    Field("certified", Flag(), "whether no better plan exists in it"),
    Field("candidates", Whole(least=0, most=10**18), "plans of the space: those ranked, refused and discarded"),
    Field("evaluated", Whole(least=0, most=10**18), "plans that satisfy the request and were ranked"),
    Field("refused", ListOf(REFUSAL_TABLE), "plans that do not satisfy it, by the reason why they were refused"),
    Field("discarded", Whole(least=0, most=10**18), "plans that a bound, or the end of the search, left out", 0),
    Field("trials", Whole(least=0, most=10**18), "plans that Optuna tried; absent: none", 0),
    Field("gap", Number(), "part of the best value by which another plan may be better at most", None),
    make=SearchReport,
)


def _loosening(option: str, value: str, message: str) -> Loosening:
    """Return a constraint to loosen; FieldError where it has not as many values as options."""
    options, values = option.split(), value.split()
    if len(options) != len(values):
        raise FieldError("loosen", Refusal("value", f"value must be one for each of {option}", got=value))
    return Loosening(tuple(zip(options, values, strict=True)), message)


LOOSENING_TABLE = Table(
    Field("option", Text(), "option to loosen"),
    Field("value", Text(), "value that suffices"),
    Field("message", Text(), "what is reached then"),
    make=_loosening,
)
LONGEST_LIST = 256
"""Values up to which an even range is a list."""

_RANGE = Table(
    Field("first", Whole(), "least value"),
    Field("last", Whole(), "largest value"),
    Field("step", Whole(), "from each value to the next"),
)
_COUNTS = Nullable(OneOf((ListOf(Whole(least=0), least=1), _RANGE, Whole(least=0)), "counts"))
"""One number alone, as in older documents of degrees."""
_NAMES = ListOf(Text(), least=1)


def _type_of(axis: Axis) -> Type:
    words: Type = ListOf(Text(axis.words), least=1)
    if axis.splits:
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
    "limit": (
        MapOf(Number(), choices=tuple(LIMITS)),
        "what a plan may take at most: epoch [s], cost [USD], numbers; window: the least share of updates inside it",
    ),
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
    return Table(own, Field("source", Text(), "where it comes from; absent: default", DEFAULT))


REQUEST_TABLE = Table(
    *(
        Field(key, _sourced_table(kind, doc), doc, REQUIRED if key == "target_batch" else None)
        for key, (kind, doc) in _TYPES.items()
    ),
    make=without_none,
    doc="every value with its source",
)


def request_keys(request: Mapping[str, Sourced[object]]) -> dict[str, Any]:
    """Return the keys of a request: values by option name, each with its source."""
    return {key: {"value": _as_range(one.value), "source": one.source} for key, one in request.items()}


def _as_range(value: object) -> object:
    """Return many whole numbers that are evenly spaced as first, last and step; anything else as it is."""
    if isinstance(value, tuple) and len(value) > LONGEST_LIST and all(isinstance(one, int) for one in value):
        first, last, step = value[0], value[-1], value[1] - value[0]
        if step > 0 and value == tuple(range(first, last + 1, step)):
            return {"first": first, "last": last, "step": step}
    return value


def request_of(keys: Mapping[str, Mapping[str, Any]]) -> dict[str, Sourced[object]]:
    """Return the values of a request with their sources, in the order of the options."""
    return {key: Sourced(_from_range(one["value"]), one["source"]) for key, one in keys.items()}


def _from_range(value: Any) -> object:
    is_range = isinstance(value, dict) and "step" in value
    return tuple(range(value["first"], value["last"] + 1, value["step"])) if is_range else value
