"""Suggestions as documents (JSON).

History, newest first
---------------------
suggestion 1, suggestions 1 : first versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.domain.configuration import Settings
from planner.domain.request import Sourced
from planner.domain.suggestion import Plan, Suggestion
from planner.formats.fields import Field, ListOf, MapOf, Nullable, Table
from planner.formats.kinds import Kind
from planner.formats.prediction import (
    CONFIGURATION_TABLE,
    PREDICTION_TABLE,
    WARNING_TABLE,
    configuration_keys,
    prediction_keys,
)
from planner.formats.values import Anything, Flag, Text, Whole

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
_SOURCED = Table(
    (Field("value", Anything(), "the value"), Field("source", Text(), "where it comes from")), dict[str, Any]
)
_SEARCH = Table(
    (
        Field("method", Text(), "how the space was searched"),
        Field("certified", Flag(), "whether no better plan exists in it"),
        Field("candidates", Whole(least=0, most=10**18), "plans of the space"),
        Field("evaluated", Whole(least=0, most=10**18), "plans that were priced"),
        Field("refused", MapOf(Whole(least=0, most=10**18)), "plans refused, by reason"),
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
        Field("request", MapOf(_SOURCED), "every value with its source"),
        Field("status", Text(("found", "none_feasible")), "whether any plan fits"),
        Field("plans", ListOf(_PLAN), "best first"),
        Field("pareto", Nullable(ListOf(_PLAN)), "front of epoch time, GPUs and distance from the target, where asked"),
        Field("search", _SEARCH, "how the space was searched"),
        Field("nearest", ListOf(_PLAN), "plans nearest to the target, when none fits"),
        Field("loosen", ListOf(_LOOSENING), "what to loosen, when none fits"),
        Field("warnings", ListOf(WARNING_TABLE), "what a reader should know"),
    ),
    dict[str, Any],
)
SUGGESTION = Kind("suggestion", 1, "json", _SUGGESTION)
SUGGESTIONS = Kind(
    "suggestions", 1, "json", Table((Field("suggestions", ListOf(_SUGGESTION), "one a scenario"),), dict[str, Any])
)


def suggestion_document(suggestion: Suggestion, settings: Settings | None = None) -> dict[str, Any]:
    """Return the document of one suggestion."""
    return SUGGESTION.document(_suggestion_keys(suggestion, settings))


def suggestions_document(suggestions: Sequence[Suggestion], settings: Settings | None = None) -> dict[str, Any]:
    """Return the document of several suggestions, one a scenario, in their order."""
    return SUGGESTIONS.document({"suggestions": [_suggestion_keys(one, settings) for one in suggestions]})


def _suggestion_keys(suggestion: Suggestion, settings: Settings | None) -> dict[str, Any]:
    found = settings or _settings_of(suggestion.request)
    pareto = [_plan_keys(plan, found) for plan in suggestion.pareto]
    asked = suggestion.request.get("pareto")
    return {
        "request": {key: {"value": _plain(one.value), "source": one.source} for key, one in suggestion.request.items()},
        "status": suggestion.status,
        "plans": [_plan_keys(plan, found) for plan in suggestion.plans],
        "pareto": pareto if pareto or (asked is not None and asked.value) else None,
        "search": suggestion.search,
        "nearest": [_plan_keys(plan, found) for plan in suggestion.nearest],
        "loosen": suggestion.loosen,
        "warnings": suggestion.warnings,
    }


def _settings_of(request: Mapping[str, Sourced[object]]) -> Settings | None:
    names = ("optimizer", "strategy", "input", "framework")
    if not all(name in request for name in names):
        return None
    return Settings(**{name: str(request[name].value) for name in names})


def _plan_keys(plan: Plan, settings: Settings | None) -> dict[str, Any]:
    return {
        "position": plan.position,
        "configuration": configuration_keys(plan.prediction.configuration, settings),
        "prediction": prediction_keys(plan.prediction, settings),
        "why": plan.why,
    }


def _plain(value: object) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
