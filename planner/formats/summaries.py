"""Documents that are hardly read (JSON): briefs for job schedulers, sweeps, why-not, validations.

A brief is the plan to take, alone: few flat keys that stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from planner.domain.axes import ALL, AXES
from planner.domain.configuration import LARGEST_MINI_BATCH, OPTIMIZERS
from planner.domain.framework import STRATEGIES
from planner.domain.objective import TERMS, objective_named
from planner.domain.prediction import Batch, Quantity
from planner.domain.request import Subject
from planner.domain.runs import METRICS, ORDERS, ROW_AXES, STATUSES, Validation
from planner.domain.suggestion import Plan, RankedPlan, Suggestion, Sweep, WhyNot
from planner.domain.training import Verified
from planner.errors import PlannerError
from planner.formats.documents import Kind
from planner.formats.fields import AnyTable, Field, Flag, ListOf, MapOf, Nullable, Number, OneOf, Table, Text, Whole
from planner.formats.parts import (
    CONFIGURATION_TABLE,
    GROUPS,
    LARGEST_PRODUCT,
    LOOSENING_TABLE,
    REFUSAL_TABLE,
    REQUEST_TABLE,
    SUBJECT_TABLE,
    axis_type,
    configuration_keys,
    plan_keys,
    request_keys,
    subject_keys,
)
from planner.formats.prediction import QUANTITY, RANK_ORDER_FIELD, STAGE_LAYERS, stage_layers_keys

__all__ = [
    "BRIEF", "BRIEFS", "DOCTOR", "ERROR", "INFERENCE", "SWEEP", "VALIDATION", "VERIFICATION", "WHY_NOT",
    "brief_document", "briefs_document", "error_document", "inference_document", "plan_figures", "sweep_document",
    "validation_document", "verification_document", "why_not_document",
]  # fmt: skip


_NUMBER_OR_NULL = Nullable(Number())
_TIME_TABLE = Table(
    Field("value", _NUMBER_OR_NULL, "the prediction"),
    Field("low", _NUMBER_OR_NULL, "lower end of the central 90% interval; null: not known"),
    Field("high", _NUMBER_OR_NULL, "upper end; null: not known"),
    title="seconds",
)
_SAMPLES = OneOf((Whole(most=LARGEST_MINI_BATCH), Number()), rule="a number of samples")
_BRIEF = Table(
    Field("network", Text(), "network that is trained"),
    Field("cluster", Text(), "cluster that it is trained on"),
    Field("trainable", Text(), f"which parameters are trained; absent: {ALL}", None),
    Field("scenario", Text(), "what-if, as it was written; absent: things as they are", None),
    Field("framework", Text(), "training framework"),
    Field("layers", Whole(), "blocks of the network; absent: it has none", None),
    Field("device", Text(("GPU", "CPU")), "what the cluster computes on; absent: GPU", "GPU"),
    Field("optimizer", Text(tuple(OPTIMIZERS)), "optimizer", None),
    Field("strategy", Text(tuple(STRATEGIES)), "how gradients are sent; absent: the framework's way", None),
    Field("bucket_bytes", Number(), "gradients of a bucket; absent: the framework's", None),
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
    about_plan = plan.subject(subject) if plan else subject
    of_plans = [warning for one in suggestion.plans for warning in one.prediction.warnings]
    common = [warning for warning in suggestion.warnings if warning not in of_plans]
    warnings = [*(plan.prediction.warnings if plan else ()), *common]
    about: dict[str, Any] = {
        "network": subject.network,
        "cluster": subject.cluster,
        "trainable": None if subject.settings.trainable == ALL else subject.settings.trainable,
        "scenario": subject.scenario or None,
        "framework": about_plan.settings.framework.label,
        "status": suggestion.status,
        "warnings": list(dict.fromkeys(warning.code for warning in warnings)),
    }
    if plan is None:
        return about | {"loosen": suggestion.loosen}
    run, tokens = suggestion.run, subject.tokens
    return (
        about
        | plan_figures(subject, plan)
        | {
            "epochs": run.epochs if run and not run.tokens else None,
            "tokens": run.tokens or None if run else None,
            "steps": plan.prediction.steps(run, tokens) if run else None,
            "walltime_s": plan.prediction.training_s(run, tokens) if run else None,
            "why": suggestion.choice or plan.why or None,
            "certified": suggestion.search.certified,
        }
    )


def plan_figures(subject: Subject, plan: Plan) -> dict[str, Any]:
    """Return what a brief says of one plan, by key; ``subject``: what it shares with others."""
    p, c, settings = plan.prediction, plan.prediction.configuration, plan.subject(subject).settings
    is_async = c.mode == "async"
    return plan_keys(c) | {
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


_SWEPT_PLAN = Table(
    Field("rank", Whole(), "among the plans of the sweep, from 1"),
    Field("configuration", CONFIGURATION_TABLE, "the best plan of this number of nodes and sub-batch"),
    Field("objective", Number(), "what is minimised"),
    Field("iteration_s", Number(), "one update; asynchronous: one period of a device's thread"),
    Field("epoch_s", Number(), "a later epoch; absent: no data set", None),
    Field("samples_per_s", Number(), "samples a second"),
    Field("mini_batch", _SAMPLES, "samples behind an update; their mean when asynchronous"),
    Field("memory_bytes", Whole(least=0, most=LARGEST_PRODUCT), "needed on one device"),
    title="swept_plan",
)
_SWEEP = Table(
    Field("subject", SUBJECT_TABLE, "what the plans share"),
    Field("request", REQUEST_TABLE, "every value with its source"),
    Field(
        "unit",
        Text((*(f"{one.unit}{per}" for one in TERMS.values() for per in ("", "/sample")), "1")),
        "of the objective; 1: a weighted sum",
    ),
    Field("plans", ListOf(_SWEPT_PLAN, least=1), "by nodes, then sub-batch; those without a plan are absent"),
    Field("candidates", Whole(least=0, most=10**18), "plans of the space"),
    Field("evaluated", Whole(least=0, most=10**18), "plans that satisfy the request"),
    Field("complete", Flag(), "whether all plans were priced; false: it was interrupted", True, "is_complete"),  # noqa: FBT003
)
SWEEP = Kind("sweep", "json", _SWEEP)


def sweep_document(subject: Subject, sweep: Sweep) -> dict[str, Any]:
    """Return the document of a sweep."""
    plans = [
        {field.name: getattr(one, field.name) for field in _SWEPT_PLAN.fields}
        | {"configuration": configuration_keys(one.configuration, subject.settings.framework)}
        for one in sweep.plans
    ]
    unit = objective_named(str(sweep.request["objective"].value)).unit
    return SWEEP.document(
        {
            "subject": subject_keys(subject, None),
            "request": request_keys(sweep.request),
            "unit": (unit if sweep.plans[0].epoch_s is not None else f"{unit}/sample") if unit else "1",
            "plans": plans,
            **{name: getattr(sweep, name) for name in ("candidates", "evaluated", "is_complete")},
        }
    )


_KERNEL = Table(
    Field("kind", Text(), "of kernel"),
    Field("direction", Text(), "pass"),
    Field("precision", Text(), "that it computes in"),
    Field("layer", Text(), "the first that makes the call"),
    Field("shape", Text(), "sizes in words"),
    Field("calls", Number(), "how often it is made; what follows is of all of them"),
    Field("flop", Number(), "two a multiply-add"),
    Field("bytes", Number(), "read and written, each tensor once"),
    Field("seconds", Number(), "time"),
    Field("roof_s", Number(), "least time by the roofline"),
    Field("bound", Text(), "compute, memory or launch"),
    title="kernel",
)
_REPLICAS = Table(
    Field("precision", Text(), "of the engine"),
    Field("sub_batch", Whole(), "samples of a batch"),
    Field("gpus", Whole(), "replicas, one a device"),
    Field("latency_s", QUANTITY, "what a batch takes"),
    Field("samples_per_s", Number(), "of all replicas"),
    Field("memory_bytes", MapOf(Number()), "of one device, by kind"),
    Field("kernels", ListOf(_KERNEL), "of a batch, those of longest time first"),
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
        {**{field.name: getattr(one, field.name, None) for field in _REPLICAS.fields}, "gpus": count}
        | {"latency_s": {field.name: getattr(one.latency, field.name) for field in QUANTITY.fields}}
        | {"samples_per_s": one.samples_per_s * count, "kernels": [asdict(row) for row in one.kernels]}
        for one, count in plans
    ]
    return INFERENCE.document({"subject": subject_keys(subject, None), "batches": rows})


_RANKED_PLAN = Table(
    Field("configuration", CONFIGURATION_TABLE, "what the plan decides"),
    Field("objective", Number(), "what is minimised: s or USD of an epoch (no data set: of a sample), or a sum"),
    title="ranked_plan",
)
_WHY_NOT = Table(
    Field("subject", SUBJECT_TABLE, "what the plans share"),
    Field("request", REQUEST_TABLE, "every value with its source"),
    Field("values", MapOf(Text()), "what is asked about, by option"),
    Field("framework", Text(), "of the plans asked about, one of several; absent: that of the subject", None),
    Field("status", Text(("ranked", "outside", "refused")), "whether the request tries and allows such plans"),
    Field("first", _RANKED_PLAN, "the best plan of the request; absent: nothing satisfies it", None),
    Field("best", _RANKED_PLAN, "the best plan with the values; absent: none of them satisfies the request", None),
    Field("rank", Whole(), "of best among all plans, each precision by itself, from 1", None),
    Field("evaluated", Whole(least=0, most=10**18), "plans that satisfy the request"),
    Field("outside", ListOf(Text()), "values that the request does not try, or the cluster has not", ()),
    Field("candidates", Whole(least=0, most=10**18), "candidates with the values"),
    Field("refused", ListOf(REFUSAL_TABLE), "of them, by the reason", ()),
    Field("loosen", ListOf(LOOSENING_TABLE), "what else to change; where all are refused", ()),
)
WHY_NOT = Kind("why_not", "json", _WHY_NOT)


def why_not_document(subject: Subject, answer: WhyNot) -> dict[str, Any]:
    """Return the document of an answer."""

    def plan(one: RankedPlan | None) -> dict[str, Any] | None:
        if one is None:
            return None
        configuration = configuration_keys(one.configuration, subject.settings.framework, one.framework)
        return {"configuration": configuration, "objective": one.objective}

    names = ("values", "status", "rank", "evaluated", "outside", "candidates", "refused", "loosen")
    return WHY_NOT.document(
        {name: getattr(answer, name) for name in names}
        | {
            "subject": subject_keys(subject, None),
            "request": request_keys(answer.request),
            "framework": answer.framework or None,
            "first": plan(answer.first),
            "best": plan(answer.best),
        }
    )


_SIGNED = Nullable(Number(signed=True))
_ROWS = Whole(least=0)
_ERRORS = Table(
    Field("n", _ROWS, "rows"),
    Field("mape", _NUMBER_OR_NULL, "mean of abs(predicted / measured - 1)"),
    Field("median_ape", _NUMBER_OR_NULL, "its median"),
    Field("p90_ape", _NUMBER_OR_NULL, "its 90% quantile"),
    Field("bias", _SIGNED, "mean of predicted / measured - 1"),
    Field("coverage_90", _NUMBER_OR_NULL, "share of the rows with an interval whose measured value lies in it"),
    title="errors",
)
_RANKING = Table(
    Field("groups", _ROWS, "groups of at least two plans that ran"),
    Field("spearman", _SIGNED, "rank correlation of predicted and measured times, mean over groups"),
    Field("top1", _NUMBER_OR_NULL, "share of groups whose first choice is the fastest"),
    Field("regret_mean", _NUMBER_OR_NULL, "time of the first choice over the least, minus 1, mean over groups"),
    Field("regret_max", _NUMBER_OR_NULL, "its largest value"),
    Field("regret_best3", _NUMBER_OR_NULL, "the same of the best of the first three choices, mean over groups"),
    Field("regret_best3_max", _NUMBER_OR_NULL, "its largest value"),
    Field("chose_out_of_memory", _NUMBER_OR_NULL, "share of groups whose first choice ran out of memory"),
)
_ORDERED = Table(
    Field("order", Text(ORDERS), "what orders plans: predictions, chance, or a rule of one line"),
    Field("plans", Text(), "how many plans the groups have"),
    *_RANKING.fields,
    title="order",
)
_LOCKED = Table(
    Field("sources", ListOf(Text()), "names of their sources, which are locked"),
    Field("rows", _ROWS, "how many there are"),
    Field("predicted", _ROWS, "how many of them are predicted"),
)
_GROUP = Table(
    Field("group", Text(), "name of the group"),
    Field("n", Whole(least=2), "plans with a prediction that ran"),
    Field("spearman", _SIGNED, "rank correlation of predicted and measured times"),
    Field("top1", Number(), "probability that the first choice is the fastest"),
    Field("regret", Number(), "time of the first choice over the least, minus 1"),
    Field("regret_best3", Number(), "the same of the best of the first three choices"),
    Field("chose_out_of_memory", Number(), "probability that the first choice ran out of memory"),
)
_MEMORY = Table(
    Field("true_out_of_memory", _ROWS, "rows called out of memory that ran out"),
    Field("false_out_of_memory", _ROWS, "rows called out of memory that ran"),
    Field("true_ok", _ROWS, "rows called ok that ran"),
    Field("false_ok", _ROWS, "rows called ok that ran out of memory"),
    Field("n", _ROWS, "rows of which memory was read", 0),
    Field("error", _NUMBER_OR_NULL, "exp(mean of abs(ln(predicted / measured))) - 1 of these", None),
    Field("bias", _SIGNED, "exp(mean of ln(predicted / measured)) - 1", None),
    Field("coverage_90", _NUMBER_OR_NULL, "share of these inside their interval", None),
    title="memory",
)
_TERM = Table(
    Field("term", Text(), "term that explains part of what predictions miss"),
    Field("scale", Number(), "factor on it that explains most"),
    Field("n", Whole(), "rows"),
    Field("mape", Number(), "mean error as predicted"),
    Field("scaled_mape", Number(), "mean error with the term scaled, each row by what the others ask for"),
)
_GROWTH = Table(
    Field("axis", Text(), "along which errors grow"),
    Field("slope", Number(), "of log(predicted / measured), a doubling"),
    Field("term", Text(empty=True), "term whose share grows most along it; empty: none does"),
    Field("n", Whole(), "rows"),
    Field("groups", Whole(), "groups of rows with several values of the axis"),
)
_ROW = Table(
    Field("id", Text(empty=True), "name of the run"),
    Field("line", Whole(least=0), "where it stands in its file"),
    Field("metric", Nullable(Text(METRICS)), "what the figures are; null where the row could not be read"),
    Field("predicted", _NUMBER_OR_NULL, "as if memory sufficed; null where refused"),
    Field("low", _NUMBER_OR_NULL, "lower end of the central 90% interval"),
    Field("high", _NUMBER_OR_NULL, "upper end"),
    Field("measured", _NUMBER_OR_NULL, "null where the run gave no value"),
    Field("status_predicted", Nullable(Text(STATUSES)), "whether memory suffices; null where refused"),
    Field("in_sample", Flag(), "whether a calibration that predicts the row has seen it"),
    Field("refused_reason", Nullable(Text()), "why it is not predicted"),
    Field("refused_code", Nullable(Text()), "the same for programs; absent where it is predicted", None),
    title="row",
)
_VALIDATION = Table(
    Field("summary", _ERRORS, "errors of rows that were predicted and that no calibration has seen"),
    Field(
        "by",
        Table(*(Field(axis, MapOf(_ERRORS, pattern=r"[\s\S]*"), f"by {axis}") for axis in ROW_AXES)),
        "the same by property of the row",
    ),
    Field("ranking", _RANKING, "how well plans of one group are ordered"),
    Field("groups", ListOf(_GROUP), "the same group by group"),
    Field("memory", _MEMORY, "predicted against observed shortage of memory, and against memory that was read"),
    Field("memory_by", MapOf(_MEMORY, pattern=r"[\s\S]*"), "the same by source that tells of memory", {}),
    Field("terms", ListOf(_TERM), "terms that explain what predictions miss, the best explanation first"),
    Field("growth", ListOf(_GROWTH), "axes along which errors grow, the steepest first", ()),
    Field("in_sample", _ERRORS, "errors of rows that a calibration has seen"),
    Field("hold_out", Nullable(Text()), "what coefficients were refitted without, in turn"),
    Field(
        "omitted",
        _ROWS,
        "rows that are not listed, as there are too many: they could not be read, or stand beyond the most",
    ),
    Field("rows", ListOf(_ROW), "every row, file by file in its order, but for locked ones"),
    Field("rankings", ListOf(_ORDERED), "ranking of large and of small groups, beside chance and simple rules", ()),
    Field(
        "free_numbers",
        Whole(least=0),
        "fitted values of the step model, the most of one fit; absent: nothing was refitted",
        None,
    ),
    Field(
        "unknown_frameworks",
        MapOf(Whole(), pattern=r"[\s\S]*"),
        "rows by a framework that nobody knows, answered as those of any",
        {},
    ),
    Field("locked", _LOCKED, "rows that are in sums alone, not in rows, groups, terms nor by network", None),
)
VALIDATION = Kind("validation", "json", _VALIDATION)


def validation_document(validation: Validation, omitted: int = 0) -> dict[str, Any]:
    """Return the document of a validation; ``omitted`` counts the rows that it does not list."""
    keys = {one.name: getattr(validation, one.name) for one in fields(Validation)}
    rankings = tuple({"order": one.order, "plans": one.plans, **asdict(one.figures)} for one in validation.rankings)
    rows = (
        {one.name: getattr(row, one.name, None) for one in _ROW.fields}
        | {"metric": row.metric or None, "refused_reason": row.refused and str(row.refused)}
        | {"refused_code": row.refused and row.refused.code}
        for row in validation.rows
    )
    return VALIDATION.document(keys | {"rows": rows, "omitted": omitted, "rankings": rankings})


_VERIFIED = Table(
    Field("name", Text(), "forward, backward, update, or step, their sum"),
    Field("predicted_s", Number(), "for the device that ran"),
    Field("measured_s", Number(), "median of the repeats"),
    Field("spread_s", Number(), "scaled median absolute deviation of the repeats"),
    Field("ratio", Number(), "measured over predicted"),
    title="verified_term",
)
VERIFICATION = Kind(
    "verification",
    "json",
    Table(
        Field("position", Whole(), "of the plan in its document"),
        Field("ran", Text(), "which part of the network ran, in words"),
        Field("network", Text(), "of the plan"),
        Field("device", Text(), "what it ran on, and is predicted for"),
        Field("sub_batch", Whole(), "samples of a pass"),
        Field("precision", Text(), "that it computes in"),
        Field("calibrations", ListOf(Text()), "that predict it", ()),
        Field("terms", ListOf(_VERIFIED, least=1), "of one pass and an update"),
        Field("not_run", ListOf(Text()), "what of the plan's step did not run, in words", ()),
        Field("repeats", Whole(), "steps that were timed"),
        Field("slower", Number(), "times slower than in quiet the machine was"),
    ),
)


def verification_document(verified: Verified) -> dict[str, Any]:
    """Return the document of real steps beside their prediction."""
    terms = [{**asdict(one), "ratio": one.ratio} for one in verified.terms]
    return VERIFICATION.document({**asdict(verified), "terms": terms})
