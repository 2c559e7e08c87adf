"""How a space was searched, and what to loosen where nothing fits, as tables of documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.domain.suggestion import SearchReport
from planner.formats.fields import Field, ListOf, Table
from planner.formats.values import Flag, Text, Whole

__all__ = ["LOOSENING_TABLE", "SEARCH_TABLE", "search_keys", "search_of"]

_CODES = {
    "precision ": "precision",
    "mode ": "mode",
    "accumulation ": "accumulation",
    "mini-batch below": "below_window",
    "mini-batch above": "above_window",
    "sub-batch above": "above_window",
    "sub-batch larger": "memory",
}
"""Beginning of a reason why plans are refused -> its code; any other reason is of code ``other``."""
_REFUSED = Table(
    (
        Field("code", Text((*dict.fromkeys(_CODES.values()), "other")), "for programs"),
        Field("reason", Text(), "for people"),
        Field("count", Whole(least=0, most=10**18), "plans that are refused for it"),
    ),
    dict[str, Any],
)
SEARCH_TABLE = Table(
    (
        Field("method", Text(), "how the space was searched"),
        Field("certified", Flag(), "whether no better plan exists in it"),
        Field("candidates", Whole(least=0, most=10**18), "plans of the space: those ranked and those refused"),
        Field("evaluated", Whole(least=0, most=10**18), "plans that satisfy the request and were ranked"),
        Field("refused", ListOf(_REFUSED), "all other plans, by the reason why they were refused"),
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


def search_keys(search: SearchReport) -> dict[str, Any]:
    """Return the keys of how a space was searched."""
    refused = [{"code": _code(why), "reason": why, "count": count} for why, count in search.refused.items()]
    return {key: getattr(search, key) for key in ("method", "certified", "candidates", "evaluated")} | {
        "refused": refused
    }


def search_of(keys: Mapping[str, Any]) -> SearchReport:
    """Return how a space was searched."""
    return SearchReport(**{**keys, "refused": {one["reason"]: one["count"] for one in keys["refused"]}})


def _code(reason: str) -> str:
    return next((code for beginning, code in _CODES.items() if reason.startswith(beginning)), "other")
