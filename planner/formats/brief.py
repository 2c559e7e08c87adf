"""The plan to take, alone, for job schedulers (JSON): few flat keys that stay.

History, newest first
---------------------
brief 1, briefs 1 : first versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from planner.domain.axes import AXES
from planner.domain.configuration import LARGEST_MINI_BATCH
from planner.domain.prediction import Quantity
from planner.domain.request import Subject
from planner.domain.suggestion import Plan, Suggestion
from planner.formats.configuration import GROUPS, LARGEST_PRODUCT, axis_type, plan_keys
from planner.formats.fields import Field, ListOf, Nullable, OneOf, Table
from planner.formats.figures import RANK_ORDER_FIELD, STAGE_LAYERS, stage_layers_keys
from planner.formats.kinds import Kind
from planner.formats.parts import LOOSENING_TABLE
from planner.formats.values import Flag, Number, Text, Whole

__all__ = ["BRIEF", "BRIEFS", "brief_document", "briefs_document"]

_NUMBER_OR_NULL = Nullable(Number())
_TIME_TABLE = Table(
    (
        Field("value", _NUMBER_OR_NULL, "the prediction"),
        Field("low", _NUMBER_OR_NULL, "lower end of the central 90 % interval; null: not known"),
        Field("high", _NUMBER_OR_NULL, "upper end; null: not known"),
    ),
    dict[str, Any],
    title="seconds",
)
_SAMPLES = OneOf((Whole(most=LARGEST_MINI_BATCH), Number()), rule="a number of samples")
_BRIEF = Table(
    (
        Field("network", Text(), "network that is trained"),
        Field("cluster", Text(), "cluster that it is trained on"),
        Field("scenario", Text(), "what-if, as it was written; absent: things as they are", None),
        Field("framework", Text(), "training framework"),
        Field("status", Text(("found", "none_feasible")), "whether any plan fits; if none, loosen says what to change"),
        *(Field(a.name, axis_type(a), a.doc, None if a.always_said or a.is_degree else a.default) for a in AXES),
        GROUPS,
        Field("gpus", Whole(most=LARGEST_PRODUCT), "devices in all", None),
        Field(
            "ranks",
            Whole(most=LARGEST_PRODUCT),
            "processes to start: one a device; asynchronous: one a node, a thread a device",
            None,
        ),
        Field("data_parallel", Whole(most=LARGEST_PRODUCT), "copies of the network", None),
        Field("parallelism", Text(), "kinds of parallelism; absent: data", "data"),
        Field("mini_batch", _SAMPLES, "samples behind an update; their mean when asynchronous", None),
        Field("iteration_s", _TIME_TABLE, "one update; asynchronous: one period of a device's thread", None),
        Field("epoch_s", _TIME_TABLE, "a later epoch; value null without a data set", None),
        Field("samples_per_s", _NUMBER_OR_NULL, "samples a second", None),
        STAGE_LAYERS,
        RANK_ORDER_FIELD,
        Field("memory_bytes", Whole(least=0, most=LARGEST_PRODUCT), "needed on one device", None),
        Field("epochs", Whole(), "as asked by --epochs", None),
        Field("walltime_s", _TIME_TABLE, "all epochs: the first, then later ones; with --epochs", None),
        Field("position", Whole(), "rank of the plan", None),
        Field("why", Text(), "why it is taken", None),
        Field("certified", Flag(), "whether no better plan exists in the space", None),
        Field("loosen", ListOf(LOOSENING_TABLE), "what to loosen; where nothing fits alone", None),
        Field("warnings", ListOf(Text()), "codes of what a reader should know, each once"),
    ),
    dict[str, Any],
    "the plan to take; where nothing fits, what to loosen",
    title="brief",
)
BRIEF = Kind("brief", 1, "json", _BRIEF)
BRIEFS = Kind(
    "briefs",
    1,
    "json",
    Table((Field("briefs", ListOf(_BRIEF), "one a network and scenario"),), dict[str, Any]),
)
_NO_QUANTITY = Quantity(float("nan"))


def brief_document(subject: Subject, suggestion: Suggestion, epochs: int | None = None) -> dict[str, Any]:
    """Return the document of the plan to take; ``epochs`` of the whole training, of which it tells the time then."""
    return BRIEF.document(_keys(subject, suggestion, epochs))


def briefs_document(suggestions: Iterable[tuple[Subject, Suggestion]], epochs: int | None = None) -> dict[str, Any]:
    """Return the document of the plans to take, and what each is of, in their order."""
    return BRIEFS.document({"briefs": [_keys(*one, epochs) for one in suggestions]})


def _keys(subject: Subject, suggestion: Suggestion, epochs: int | None) -> dict[str, Any]:
    plan = suggestion.chosen_plan or next(iter(suggestion.plans), None)
    about_plan = plan.subject(subject) if plan else subject
    of_plans = [warning for one in suggestion.plans for warning in one.prediction.warnings]
    common = [warning for warning in suggestion.warnings if warning not in of_plans]
    warnings = [*(plan.prediction.warnings if plan else ()), *common]
    about: dict[str, Any] = {
        "network": subject.network,
        "cluster": subject.cluster,
        "scenario": subject.scenario or None,
        "framework": about_plan.settings.framework.label,
        "status": suggestion.status,
        "warnings": list(dict.fromkeys(warning.code for warning in warnings)),
    }
    if plan is None:
        return dict.fromkeys(field.name for field in _BRIEF.fields) | about | {"loosen": suggestion.loosen}
    why = suggestion.choice or plan.why or None
    of_plan = {"position": plan.position, "why": why, "certified": suggestion.search.certified, "loosen": None}
    return about | _configuration(plan) | _figures(plan, epochs) | of_plan


def _configuration(plan: Plan) -> dict[str, Any]:
    c = plan.prediction.configuration
    ranks = c.nodes if c.mode == "async" else c.gpus
    mini_batch = plan.prediction.mini_batch.mean if c.mode == "async" else c.samples_per_update
    return plan_keys(c) | {"groups": c.groups or None, "ranks": ranks, "mini_batch": mini_batch}


def _figures(plan: Plan, epochs: int | None) -> dict[str, Any]:
    p = plan.prediction
    training = p.training_s(epochs) if epochs else None
    return {
        "iteration_s": _time(p.iteration_s),
        "epoch_s": _time(p.epoch_s or _NO_QUANTITY),
        "samples_per_s": p.samples_per_s.value,
        "stage_layers": stage_layers_keys(p),
        "rank_order": list(p.rank_order) or None,
        "memory_bytes": round(p.memory_bytes["total"]),
        "epochs": epochs,
        "walltime_s": None if training is None else _time(training),
    }


def _time(quantity: Quantity) -> dict[str, float | None]:
    return {name: getattr(quantity, name) for name in ("value", "low", "high")}
