"""Suggestions as documents (JSON).

History, newest first
---------------------
suggestion 1, suggestions 1 : first versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from planner.domain.request import Subject
from planner.domain.suggestion import Plan, SearchReport, Suggestion
from planner.formats.asked import REQUEST_TABLE, request_keys
from planner.formats.fields import Field, ListOf, Nullable, Table
from planner.formats.kinds import Kind
from planner.formats.prediction import (
    CONFIGURATION_TABLE,
    PREDICTION_TABLE,
    WARNING_TABLE,
    configuration_keys,
    prediction_keys,
)
from planner.formats.values import Flag, Text, Whole

__all__ = ["SUGGESTION", "SUGGESTIONS", "suggestion_document", "suggestions_document"]

_PLAN = Table(
    (
        Field("position", Whole(), "rank"),
        Field("configuration", CONFIGURATION_TABLE, "what the plan decides"),
        Field("prediction", PREDICTION_TABLE, "what it takes"),
        Field("why", Text(empty=True), "why it stands there"),
    ),
    dict[str, Any],
    title="plan",
)
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
_SEARCH = Table(
    (
        Field("method", Text(), "how the space was searched"),
        Field("certified", Flag(), "whether no better plan exists in it"),
        Field("candidates", Whole(least=0, most=10**18), "plans of the space: those ranked and those refused"),
        Field("evaluated", Whole(least=0, most=10**18), "plans that satisfy the request and were ranked"),
        Field("refused", ListOf(_REFUSED), "all other plans, by the reason why they were refused"),
    ),
    dict[str, Any],
)
_LOOSENING = Table(
    (
        Field("option", Text(), "option to loosen"),
        Field("value", Text(), "value that suffices"),
        Field("message", Text(), "what is reached then"),
    ),
    dict[str, Any],
)
_SUGGESTION = Table(
    (
        Field("request", REQUEST_TABLE, "every value with its source"),
        Field("status", Text(("found", "none_feasible")), "whether any plan fits"),
        Field("plans", ListOf(_PLAN), "best first"),
        Field(
            "pareto", Nullable(ListOf(_PLAN)), "front of the objective, GPUs and distance from the target, where asked"
        ),
        Field("search", _SEARCH, "how the space was searched"),
        Field("nearest", ListOf(_PLAN), "plans nearest to the target, when none fits"),
        Field("loosen", ListOf(_LOOSENING), "what to loosen, when none fits"),
        Field("warnings", ListOf(WARNING_TABLE), "what a reader should know"),
    ),
    dict[str, Any],
)
SUGGESTION = Kind("suggestion", 1, "json", _SUGGESTION)
SUGGESTIONS = Kind(
    "suggestions",
    1,
    "json",
    Table((Field("suggestions", ListOf(_SUGGESTION), "one a network and scenario"),), dict[str, Any]),
)


def suggestion_document(subject: Subject, suggestion: Suggestion) -> dict[str, Any]:
    """Return the document of one suggestion."""
    return SUGGESTION.document(_suggestion_keys(subject, suggestion))


def suggestions_document(suggestions: Iterable[tuple[Subject, Suggestion]]) -> dict[str, Any]:
    """Return the document of suggestions and what each is about, in their order."""
    return SUGGESTIONS.document({"suggestions": [_suggestion_keys(*one) for one in suggestions]})


def _suggestion_keys(subject: Subject, suggestion: Suggestion) -> dict[str, Any]:
    def rows(plans: Sequence[Plan]) -> list[dict[str, Any]]:
        return [_plan_keys(subject, plan) for plan in plans]

    asked = suggestion.request.get("pareto")
    return {
        "request": request_keys(suggestion.request),
        "status": suggestion.status,
        "plans": rows(suggestion.plans),
        "pareto": rows(suggestion.pareto) if suggestion.pareto or (asked is not None and asked.value) else None,
        "search": _search_keys(suggestion.search),
        "nearest": rows(suggestion.nearest),
        "loosen": suggestion.loosen,
        "warnings": suggestion.warnings,
    }


def _plan_keys(subject: Subject, plan: Plan) -> dict[str, Any]:
    return {
        "position": plan.position,
        "configuration": configuration_keys(subject, plan.prediction.configuration),
        "prediction": prediction_keys(subject, plan.prediction),
        "why": plan.why,
    }


def _search_keys(search: SearchReport) -> dict[str, Any]:
    refused = [{"code": _code(why), "reason": why, "count": count} for why, count in search.refused.items()]
    return {key: getattr(search, key) for key in ("method", "certified", "candidates", "evaluated")} | {
        "refused": refused
    }


def _code(reason: str) -> str:
    return next((code for beginning, code in _CODES.items() if reason.startswith(beginning)), "other")
