"""How a space was searched, and what to loosen where nothing fits, as tables of documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.domain.suggestion import Loosening, Refused, SearchReport
from planner.errors import Refusal
from planner.formats.fields import Field, ListOf, Table
from planner.formats.values import FieldError, Flag, Number, Text, Whole

__all__ = ["LOOSENING_TABLE", "REFUSAL_TABLE", "SEARCH_TABLE", "loosening_of", "search_of"]

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
