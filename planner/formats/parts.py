"""What answers share as tables: warnings, citations, how a space was searched, what to loosen.

Each warning stands once, with the positions of what it is about unless it is about all of it; citations of one source
stand together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from planner.domain.citation import Citation
from planner.domain.prediction import PlanWarning
from planner.domain.suggestion import Loosening, Refused, SearchReport
from planner.errors import Refusal
from planner.formats.fields import Field, ListOf, Table
from planner.formats.values import FieldError, Flag, Number, Text, Whole

__all__ = [
    "CITATIONS", "LOOSENING_TABLE", "REFUSAL_TABLE", "SEARCH_TABLE", "citation_keys", "citations_of",
    "loosening_of", "search_of", "warning_keys", "warning_table", "warnings_of",
]  # fmt: skip

Lists = Mapping[str, Mapping[int, Sequence[PlanWarning]]]
"""Key of a list -> position in it -> warnings of what stands there."""


def warning_table(**lists: str) -> Table[dict[str, Any]]:
    """Return the table of a warning with a key for each list of positions, of that description."""
    subject = Field("subject", Text(), "what it is about", "")
    of = (subject, *(Field(key, ListOf(Whole()), doc, None) for key, doc in lists.items()))
    again = ListOf(Table(of, dict[str, Any], title="_".join(("said_again", *lists))), least=1)
    own = (Field("code", Text(), "for programs"), Field("message", Text(), "for people"))
    also = Field("also", again, "other subjects of the same sentence", None)
    return Table((*own, *of, also), dict[str, Any], title="_".join(("warning", *lists)))


def warning_keys(first: Iterable[PlanWarning], lists: Lists) -> list[dict[str, Any]]:
    """Return the keys of every warning once: the ``first`` ones, then those that stand in lists alone, in order."""
    of_lists = (warning for rows in lists.values() for warnings in rows.values() for warning in warnings)
    by_sentence: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in dict.fromkeys((*first, *of_lists)):
        by_sentence.setdefault((one.code, one.message), []).append({"subject": one.subject, **_positions(one, lists)})
    return [
        {"code": code, "message": message, **own, "also": also or None}
        for (code, message), (own, *also) in by_sentence.items()
    ]


def _positions(warning: PlanWarning, lists: Lists) -> dict[str, list[int] | None]:
    """Return the positions of a warning in each list; None: all of them."""
    positions_by_list = {
        key: [at for at, warnings in rows.items() if warning in warnings] for key, rows in lists.items()
    }
    return {
        key: positions if len(positions) < len(lists[key]) else None for key, positions in positions_by_list.items()
    }


def warnings_of(rows: Iterable[Mapping[str, Any]], key: str = "", position: int = 0) -> tuple[PlanWarning, ...]:
    """Return the warnings of rows; with ``key`` those of what stands at a position of its list."""
    return tuple(
        PlanWarning(row["code"], one["subject"], row["message"])
        for row in rows
        for one in (row, *(row["also"] or ()))
        if not key or one[key] is None or position in one[key]
    )


_CITATION = Table(
    (
        Field("names", ListOf(Text(), least=1), "names of calibrations"),
        Field("origin", Text(), "measured, published, ..."),
        Field("source", Text(), "where it comes from", ""),
        Field("date", Text(), "ISO date of that", ""),
    ),
    dict[str, Any],
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
    (
        Field("code", Text(_CODES), "for programs"),
        Field("reason", Text(), "for people"),
        Field("count", Whole(least=0, most=10**18), "plans that are refused for it"),
    ),
    dict[str, Any],
)
SEARCH_TABLE = Table(
    (
        Field("method", Text(), "how the space was searched"),
        Field("certified", Flag(), "whether no better plan exists in it"),
        Field("candidates", Whole(least=0, most=10**18), "plans of the space: those ranked, refused and discarded"),
        Field("evaluated", Whole(least=0, most=10**18), "plans that satisfy the request and were ranked"),
        Field("refused", ListOf(REFUSAL_TABLE), "plans that do not satisfy it, by the reason why they were refused"),
        Field("discarded", Whole(least=0, most=10**18), "plans that a bound, or the end of the search, left out", 0),
        Field("trials", Whole(least=0, most=10**18), "plans that Optuna tried; absent: none", 0),
        Field("gap", Number(), "part of the best value by which another plan may be better at most", None),
    ),
    dict[str, Any],
)
LOOSENING_TABLE = Table(
    (
        Field("option", Text(), "option to loosen"),
        Field("value", Text(), "value that suffices"),
        Field("message", Text(), "what is reached then"),
    ),
    dict[str, Any],
)


def loosening_of(keys: Mapping[str, str]) -> Loosening:
    """Return a constraint to loosen; FieldError where it has not as many values as options."""
    options, values = keys["option"].split(), keys["value"].split()
    if len(options) != len(values):
        rule = f"value must be one for each of {keys['option']}"
        raise FieldError("loosen", Refusal("value", rule, got=keys["value"]))
    return Loosening(tuple(zip(options, values, strict=True)), keys["message"])


def search_of(keys: Mapping[str, Any]) -> SearchReport:
    """Return how a space was searched."""
    refused = tuple(Refused(**one) for one in keys["refused"])
    return SearchReport(**{**keys, "refused": refused})
