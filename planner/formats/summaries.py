"""Documents that are hardly read (JSON): briefs for job schedulers, sweeps, why-not, validations.

A brief is the plan to take, alone: few flat keys that stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.domain.axes import AXES
from planner.domain.configuration import LARGEST_MINI_BATCH, OPTIMIZERS, Settings
from planner.domain.framework import STRATEGIES
from planner.domain.kernels import KernelRow
from planner.domain.objective import TERMS, objective_named
from planner.domain.prediction import Batch, Quantity, Run
from planner.domain.request import Subject
from planner.domain.runs import (
    ANY_TEXT,
    METRICS,
    ROW_AXES,
    ErrorSummary,
    MemoryScore,
    OrderRanking,
    RankingSummary,
    ScoredRow,
    Validation,
)
from planner.domain.samples import Verified, VerifiedTerm
from planner.domain.suggestion import Plan, RankedPlan, Suggestion, Sweep, SweptPlan, WhyNot
from planner.errors import PlannerError
from planner.formats.documents import Kind
from planner.formats.fields import (
    Field,
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
    refuse,
    values_of,
)
from planner.formats.parts import (
    CONFIGURATION_TABLE,
    GROUPS,
    LARGEST_PRODUCT,
    LOOSENING_TABLE,
    REQUEST_TABLE,
    SUBJECT_TABLE,
    axis_type,
    configuration_keys,
    plan_keys,
    subject_keys,
)
from planner.formats.prediction import QUANTITY, RANK_ORDER_FIELD, STAGE_LAYERS, stage_layers_keys

_NUMBER_OR_NULL = Nullable(Number())
_TIME_TABLE = Table(
    Field("value", _NUMBER_OR_NULL, "the prediction"),
    Field("low", _NUMBER_OR_NULL, "lower end of the central 90% interval; null: not known"),
    Field("high", _NUMBER_OR_NULL, "upper end; null: not known"),
    make=Quantity,
    title="seconds",
)
_SAMPLES = OneOf((Whole(most=LARGEST_MINI_BATCH), Number()), rule="a number of samples")
_BRIEF = Table(
    Table.of(
        Subject,
        Field("device", Text(("GPU", "CPU")), "what the cluster computes on; absent: GPU", "GPU"),
        omit=("usd_per_gpu_hour", "tokens", "parameters", "trained_parameters"),
    ),
    Table.of(
        Settings,
        Field("optimizer", Text(tuple(OPTIMIZERS)), "optimizer", None),
        Field("strategy", Text(tuple(STRATEGIES)), "how gradients are sent; absent: the framework's way", None),
        omit=("input",),
    ),
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
    Field("tokens_per_s", _NUMBER_OR_NULL, "tokens a second of a language model", None),
    STAGE_LAYERS,
    RANK_ORDER_FIELD,
    Field("memory_bytes", Whole(least=0, most=LARGEST_PRODUCT), "needed on one device", None),
    Field("epochs", Whole(), "as asked by --epochs", None),
    Field("tokens", Number(), "as asked by --tokens", None),
    Field("steps", Number(), "updates of these", None),
    Field("walltime_s", _TIME_TABLE, "the whole training; with --epochs, --tokens or --deadline", None),
    Field("position", Whole(), "rank of the plan", None),
    Field("why", Text(), "why it is taken", None),
    Field("certified", Flag(), "whether no better plan exists in the space", None),
    Field("loosen", ListOf(LOOSENING_TABLE), "what to loosen; where nothing fits alone", None),
    Field("warnings", ListOf(Text()), "codes of what a reader should know, each once"),
    doc="the plan to take; where nothing fits, what to loosen",
    title="brief",
)
BRIEF = Kind("brief", "json", _BRIEF)
BRIEFS = Kind("briefs", "json", Table(Field("briefs", ListOf(_BRIEF), "one a target, network, scenario and cluster")))


def brief_document(subject: Subject, suggestion: Suggestion) -> dict[str, Any]:
    """Return the document of the plan to take."""
    return BRIEF.document(_brief_keys(subject, suggestion))


def briefs_document(suggestions: Iterable[tuple[Subject, Suggestion]]) -> dict[str, Any]:
    """Return the document of the plans to take, and what each is of, in their order."""
    return BRIEFS.document({"briefs": [_brief_keys(*one) for one in suggestions]})


def _brief_keys(subject: Subject, suggestion: Suggestion) -> dict[str, Any]:
    plan = suggestion.chosen_plan or next(iter(suggestion.plans), None)
    of_plans = [warning for one in suggestion.plans for warning in one.prediction.warnings]
    common = [warning for warning in suggestion.warnings if warning not in of_plans]
    warnings = [*(plan.prediction.warnings if plan else ()), *common]
    codes = list(dict.fromkeys(warning.code for warning in warnings))
    about: dict[str, Any] = {"status": suggestion.status, "warnings": codes}
    if plan is None:
        return about | _names(subject) | {"loosen": suggestion.loosen}
    why = {"why": suggestion.choice or plan.why or None, "certified": suggestion.search.certified}
    return about | plan_figures(subject, plan, suggestion.run) | why


def _names(subject: Subject) -> dict[str, Any]:
    settings = subject.settings
    names = {"network": subject.network, "cluster": subject.cluster, "scenario": subject.scenario}
    return names | {"trainable": settings.trainable, "framework": settings.framework.label}


def plan_figures(subject: Subject, plan: Plan, run: Run | None = None) -> dict[str, Any]:
    """Return what a brief says of one plan, by key; ``subject``: what it shares with others; ``run``: the training."""
    own = plan.subject(subject)
    p, c, settings = plan.prediction, plan.prediction.configuration, own.settings
    is_async = c.mode == "async"
    return (
        _names(own)
        | plan_keys(c)
        | {
            "epochs": run.epochs if run and not run.tokens else None,
            "tokens": run.tokens or None if run else None,
            "steps": p.steps(run, subject.tokens) if run else None,
            "walltime_s": p.training_s(run, subject.tokens) if run else None,
            "layers": subject.layers or None,
            "device": subject.device,
            "optimizer": settings.optimizer,
            "strategy": None if settings.strategy == settings.framework.strategy else settings.strategy,
            "bucket_bytes": settings.bucket_bytes or None,
            "groups": c.groups,
            "ranks": c.nodes if is_async else c.gpus,
            "mini_batch": p.mini_batch.mean if is_async else c.samples_per_update,
            "iteration_s": p.iteration_s,
            "epoch_s": p.epoch_s or Quantity(math.nan),
            "samples_per_s": p.samples_per_s.value,
            "tokens_per_s": p.samples_per_s.value * subject.tokens or None,
            "stage_layers": stage_layers_keys(p),
            "rank_order": p.rank_order,
            "memory_bytes": round(p.memory_bytes["total"]),
            "position": plan.position,
        }
    )


@dataclass(frozen=True, slots=True)
class AnyTable(Type):
    """A document inside another, with a schema of its own."""

    words = "a document"

    def read(self, value: Any, place: str) -> dict[str, Any]:
        """Return the keys as they are."""
        return dict(value) if isinstance(value, Mapping) else refuse(place, self.words, value)

    def schema(self) -> dict[str, Any]:
        """Return a schema of type object."""
        return {"type": "object"}


ERROR = Kind(
    "error",
    "json",
    Table(
        Field("exit_code", Whole(), "of the command: 2 usage, 3 a file, 4 nothing fits, 5 not covered"),
        Field("code", Text(), "sort of error"),
        Field("message", Text(), "the sentence: what, rule, what was received, remedy"),
        Field("what", Text(), "what is refused; absent: the rule says it", None),
        Field("rule", Text(), "what it must be", None),
        Field("got", Text(), "what was received; absent: the rule says it", None),
        Field("remedy", Text(), "what to do instead", None),
        Field("line", Whole(), "of the request, from 1, in planner batch", None),
        Field("answer", AnyTable(), "where nothing fits in planner batch: the answer, with what to loosen", None),
        title="error",
    ),
)


_CHECK = Table(
    Field("part", Text(), "package, program, file or device"),
    Field("needed_for", Text(), "what needs it"),
    Field("state", Text(("ready", "missing", "broken")), "whether it can be used"),
    Field("found", Text(), "version, path or what is wrong"),
    Field("remedy", Text(), "what to do; empty: nothing", ""),
    Field("required", Flag(), "whether nothing works without it", default=False),
    title="check",
)
DOCTOR = Kind("doctor", "json", Table(Field("checks", ListOf(_CHECK), "parts, in the order of the text")))


def error_document(
    error: PlannerError, line: int | None = None, answer: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the document of an error; of a request of ``planner batch``, its line and the answer without a plan."""
    why = error.refusal
    return ERROR.document(
        {
            "exit_code": error.exit_code,
            "code": why.code,
            "message": str(error),
            "what": why.subject or None,
            "rule": why.rule,
            "got": why.got,
            "remedy": why.rest.lstrip("?.;, ") or None,
            "line": line,
            "answer": answer,
        }
    )


Table.of(
    SweptPlan,
    Field("configuration", CONFIGURATION_TABLE, "the best plan of this number of nodes and sub-batch"),
    Field("mini_batch", _SAMPLES, "samples behind an update; their mean when asynchronous"),
    make=dict,
    title="swept_plan",
)
_UNITS = tuple(f"{one.unit}{per}" for one in TERMS.values() for per in ("", "/sample"))
_SWEEP = Table.of(
    Sweep,
    Field("subject", SUBJECT_TABLE, "what the plans share"),
    Field("request", REQUEST_TABLE, "every value with its source"),
    Field("unit", Text((*_UNITS, "1")), "of the objective; 1: a weighted sum"),
    make=dict,
)
SWEEP = Kind("sweep", "json", _SWEEP)


def sweep_document(subject: Subject, sweep: Sweep) -> dict[str, Any]:
    """Return the document of a sweep."""
    framework, unit = subject.settings.framework, objective_named(str(sweep.request["objective"].value)).unit
    return SWEEP.document(
        values_of(
            sweep,
            subject=subject_keys(subject, None),
            unit=(unit if sweep.plans[0].epoch_s is not None else f"{unit}/sample") if unit else "1",
            plans=[
                values_of(one, configuration=configuration_keys(one.configuration, framework)) for one in sweep.plans
            ],
        )
    )


Table.of(KernelRow, title="kernel")
_REPLICAS = Table.of(
    Batch,
    Field("gpus", Whole(), "replicas, one a device"),
    Field("latency_s", QUANTITY, "what a batch takes"),
    Field("samples_per_s", Number(), "of all replicas"),
    make=dict,
    title="replicas",
)
_INFERENCE = Table(
    Field("subject", SUBJECT_TABLE, "what the batches share"),
    Field("batches", ListOf(_REPLICAS, least=1), "in the order asked for, or the best first"),
)
INFERENCE = Kind("inference", "json", _INFERENCE)


def inference_document(subject: Subject, plans: Iterable[tuple[Batch, int]]) -> dict[str, Any]:
    """Return the document of batches of inference, each with its number of replicas."""
    rows = [
        values_of(one, gpus=count, latency_s=one.latency, samples_per_s=one.samples_per_s * count)
        for one, count in plans
    ]
    return INFERENCE.document({"subject": subject_keys(subject, None), "batches": rows})


Table.of(
    RankedPlan, Field("configuration", CONFIGURATION_TABLE, "what the plan decides"), make=dict, title="ranked_plan"
)
_WHY_NOT = Table.of(
    WhyNot,
    Field("subject", SUBJECT_TABLE, "what the plans share"),
    Field("request", REQUEST_TABLE, "every value with its source"),
    Field("status", Text(("ranked", "outside", "refused")), "whether the request tries and allows such plans"),
    make=dict,
)
WHY_NOT = Kind("why_not", "json", _WHY_NOT)


def why_not_document(subject: Subject, answer: WhyNot) -> dict[str, Any]:
    """Return the document of an answer."""

    def plan(one: RankedPlan | None) -> dict[str, Any] | None:
        if one is None:
            return None
        configuration = configuration_keys(one.configuration, subject.settings.framework, one.framework)
        return values_of(one, configuration=configuration)

    return WHY_NOT.document(
        values_of(
            answer,
            subject=subject_keys(subject, None),
            status=answer.status,
            first=plan(answer.first),
            best=plan(answer.best),
        )
    )


_ERRORS = Table.of(ErrorSummary, title="errors")
Table.of(MemoryScore, title="memory")
Table.of(
    OrderRanking,
    Table.of(RankingSummary),
    make=dict,
    omit=("figures",),
    title="order",
    split=lambda one: values_of(one.figures, order=one.order, plans=one.plans),
)
_METRIC = Nullable(Text(METRICS))
Table.of(
    ScoredRow,
    Field("metric", _METRIC, "what the figures are; null where the row could not be read"),
    Field("refused_reason", Nullable(Text()), "why it is not predicted"),
    Field("refused_code", Nullable(Text()), "the same for programs; absent where it is predicted", None),
    make=dict,
    title="row",
    split=lambda row: values_of(
        row,
        metric=row.metric or None,
        refused_reason=row.refused and str(row.refused),
        refused_code=row.refused and row.refused.code,
    ),
)
_BY_NAME = Table(*(Field(axis, MapOf(_ERRORS, pattern=ANY_TEXT), f"by {axis}") for axis in ROW_AXES))
_VALIDATION = Table.of(
    Validation,
    Field("by", _BY_NAME, "the same by property of the row"),
    Field(
        "omitted",
        Whole(least=0),
        "rows that are not listed, as there are too many: they could not be read, or stand beyond the most",
    ),
    make=dict,
)
VALIDATION = Kind("validation", "json", _VALIDATION)


def validation_document(validation: Validation, omitted: int = 0) -> dict[str, Any]:
    """Return the document of a validation; ``omitted`` counts the rows that it does not list."""
    return VALIDATION.document(values_of(validation, omitted=omitted))


Table.of(VerifiedTerm, Field("ratio", Number(), "measured over predicted"), make=dict, title="verified_term")
VERIFICATION = Kind("verification", "json", Table.of(Verified, make=dict))


def verification_document(verified: Verified) -> dict[str, Any]:
    """Return the document of real steps beside their prediction."""
    return VERIFICATION.document(verified)
