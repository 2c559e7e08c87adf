"""Predictions against runs, row by row, and scores of all of them.

Runs of one problem are predicted together, each distinct configuration once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, frozen_map
from planner.domain.axes import AXES
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations
from planner.domain.network import family_of
from planner.domain.prediction import Prediction, Quantity
from planner.domain.request import Problem
from planner.domain.runs import MEMORY_METRIC, ROW_AXES, Locked, MemoryScore, RefusedRow, Run, ScoredRow, Validation
from planner.errors import ParameterError, PlannerError, Refusal
from planner.scoring.errors import (
    Figures,
    Outcomes,
    as_times,
    comparable,
    explaining_terms,
    growths,
    rank_by_rules,
    rank_groups,
    summaries_by,
    summarise,
    summarise_ranking,
)
from planner.steps.predict import Evaluator


def score(
    rows: Sequence[ScoredRow], terms: Sequence[str] = (), shares: FloatArray | None = None, hold_out: str | None = None
) -> Validation:
    """Return what rows add up to.

    Held-out rows that were predicted count; those that a calibration has seen have their errors apart, but count for
    memory, which no fit learns. Rows measured as out of memory have no error, but may be a group's first choice.

    Parameters
    ----------
    rows : sequence of ScoredRow, n
    terms : sequence of str, t; names of the columns of ``shares``
    shares : ndarray of shape (n, t), optional
        What part of the predicted time each term is exposed; 0 where a row has no such term or was refused.
    hold_out : what was left out in turn
    """
    columns = ([getattr(row, name) for row in rows] for name in Figures._fields)
    figures = Figures(*(np.array(column, dtype=np.float64) for column in columns))  # None becomes NaN
    called_out, out = (
        np.array([getattr(row, name) == "out_of_memory" for row in rows], dtype=np.bool_)
        for name in ("status_predicted", "status_measured")
    )
    metrics = [row.metric for row in rows]
    figures.measured[out] = np.nan
    in_sample = np.array([row.in_sample for row in rows], dtype=np.bool_)
    is_memory = np.array([metric == MEMORY_METRIC for metric in metrics], dtype=np.bool_)
    is_predicted = np.isfinite(figures.predicted)
    is_held_out = ~in_sample & is_predicted & ~is_memory
    predicted_s, measured_s = as_times(figures.predicted, metrics), as_times(figures.measured, metrics)
    metrics_of = defaultdict(set)
    for row in rows:
        metrics_of[row.group].add(row.metric)
    names = [  # a group of several metrics falls apart into one a metric
        f"{row.group} ({row.metric})" if row.group and len(metrics_of[row.group]) > 1 else row.group for row in rows
    ]
    outcomes = Outcomes(predicted_s, measured_s, called_out, out)
    groups = rank_groups(names, outcomes, is_held_out)
    nodes = np.array([row.nodes for row in rows], dtype=np.int64)
    counts = (out | np.isfinite(figures.measured)) & ~np.array([row.repeats_run for row in rows], dtype=np.bool_)

    def memory_of(mask: BoolArray) -> MemoryScore:
        return memory_score(figures, (called_out, out), mask & counts, mask & is_memory)

    sources = np.array([row.source for row in rows], dtype=np.str_)
    names_of_memory = sorted(set(sources[is_predicted & (is_memory | out | called_out)].tolist()))
    shares = np.zeros((len(rows), 0)) if shares is None else shares
    exposed_s = shares * predicted_s[:, None]
    counted = {"GPUs": "gpus", "nodes": "nodes", "the sub-batch": "sub_batch"}
    axes = {name: np.array([getattr(row, key) for row in rows], dtype=np.int64) for name, key in counted.items()}
    alike, both = [f"{row.source} {row.network} {row.gpu}" for row in rows], (predicted_s, measured_s)
    by_term = dict(zip(terms, shares.T, strict=False))
    return Validation(
        summary=summarise(figures, is_held_out),
        by={axis: summaries_by([getattr(row, axis) for row in rows], figures, is_held_out) for axis in ROW_AXES},
        ranking=summarise_ranking(groups),
        groups=groups,
        memory=memory_of(is_predicted),
        memory_by={name: memory_of(is_predicted & (sources == name)) for name in names_of_memory},
        terms=explaining_terms(terms, exposed_s, predicted_s, measured_s, is_held_out),
        in_sample=summarise(figures, in_sample & ~is_memory),
        rows=tuple(rows),
        hold_out=hold_out,
        rankings=rank_by_rules(names, outcomes, nodes, is_held_out),
        growth=growths(axes, alike, by_term, both, is_held_out),
    )


def memory_score(
    figures: Figures, statuses: tuple[BoolArray, BoolArray], called: BoolArray, read: BoolArray
) -> MemoryScore:
    """Return the calls of the rows ``called``, and the errors of the rows ``read``.

    Parameters
    ----------
    figures : Figures of shape (n,), in bytes where ``read``
    statuses : pair of ndarray of bool, shape (n,); called out of memory, and ran out of memory
    called, read : ndarray of bool, shape (n,)
        Rows with a prediction and an outcome, of one run each; rows of memory, of which those with both figures count.
    """
    called_out, ran_out = statuses
    cell = 2 * called_out[called].astype(np.int64) + ran_out[called]
    true_ok, false_ok, false_call, true_call = np.bincount(cell, minlength=4).tolist()
    use = read & comparable(figures.predicted, figures.measured)
    if not use.any():
        return MemoryScore(true_call, false_call, true_ok, false_ok)
    logs = np.log(figures.predicted[use] / figures.measured[use])
    error, bias = (float(np.expm1(np.mean(some))) for some in (np.abs(logs), logs))
    covered = summarise(figures, use).coverage_90
    return MemoryScore(true_call, false_call, true_ok, false_ok, int(use.sum()), error, bias, covered)


SLICE_PLANS = 1024
"""Configurations priced at once: a full prediction and the tables behind it are large, and a row keeps little."""
MEAN_METRICS: Mapping[str, Callable[[Prediction], float]] = {
    "mini_batch_mean": lambda prediction: prediction.mini_batch.mean,
    "staleness_mean": lambda prediction: prediction.staleness.mean,
}
"""Metrics that are means of random variables, not times or rates."""
NO_SHARES: Mapping[str, float] = frozen_map({})


@dataclass(frozen=True, slots=True)
class Answer:
    """A row, and the exposed part of its predicted time by term; no parts where the metric is not a time or rate."""

    row: ScoredRow
    shares: Mapping[str, float] = field(default_factory=lambda: NO_SHARES)


def unread(row: RefusedRow) -> Answer:
    """Return the answer to a row that is no run."""
    nothing = ScoredRow(
        id=row.id, line=row.line, metric="", predicted=None, low=None, high=None, measured=None, status_predicted=None,
        status_measured=None, in_sample=False, refused=row.reason,
    )  # fmt: skip
    return Answer(nothing)


def refused(run: Run, reason: Refusal, cluster: Cluster | None = None) -> Answer:
    """Return the answer to a run that is not predicted; without ``cluster`` that is named as it was written."""
    return Answer(_row(run, cluster, refused=reason))


def _row(run: Run, cluster: Cluster | None, refused: Refusal | None = None) -> ScoredRow:
    """Return the row of a run without a prediction."""
    is_question = run.value is None and run.status == "ok"
    return ScoredRow(
        id=run.id,
        line=run.line,
        metric=run.metric,
        predicted=None,
        low=None,
        high=None,
        measured=run.value,
        status_predicted=None,
        status_measured=None if is_question else run.status,
        in_sample=False,
        refused=refused,
        network=run.network,
        cluster=cluster.name if cluster else run.cluster,
        gpu=cluster.node.accelerator.name if cluster else "",
        source=run.source,
        group=run.group,
        nodes=run.nodes,
        gpus=run.nodes * (run.gpus_per_node or 0),
        sub_batch=run.sub_batch or 0,
    )


@dataclass(frozen=True)
class Sorted:
    """Runs of one problem by plan.

    ``plans``: positions of the runs of each plan that can be priced; ``refused``: mapping of int to Refusal, position
    -> why the run is not predicted.
    """

    plans: Mapping[Configuration, list[int]]
    refused: Mapping[int, Refusal]


def sort_runs(problem: Problem, runs: Sequence[Run]) -> Sorted:
    """Return runs of one problem by plan.

    A run is refused where its plan is not supported yet, does not fit on the cluster, or nothing prices it; so is one
    on unequal nodes, which is predicted (:func:`answers_of`), but is no plan of its own.
    """
    uneven = [at for at, run in enumerate(runs) if run.is_uneven]
    planned_runs = _planned(problem, {at: run for at, run in enumerate(runs) if not run.is_uneven})
    plans, refusals = dict(planned_runs.plans), dict(planned_runs.refused)
    for at in uneven:
        in_words = "+".join(str(count) for count in runs[at].placement)
        rule = "as many GPUs on every node, of a plan that is fitted"
        refusals[at] = ParameterError("placement", rule, in_words).refusal
    for evaluator, some in _slices(problem, plans):
        for one, reason in _refusals(evaluator, some).items():
            refusals |= dict.fromkeys(plans.pop(one), reason)
    return Sorted(plans, refusals)


def _planned(problem: Problem, runs: Mapping[int, Run]) -> Sorted:
    """Return runs by plan, whether it can be priced or not; refused are those without one."""
    refusals: dict[int, Refusal] = {}
    plans: dict[Configuration, list[int]] = {}
    for at, run in runs.items():
        try:
            plans.setdefault(_configuration(run, problem), []).append(at)
        except ParameterError as error:
            refusals[at] = error.refusal
    return Sorted(plans, refusals)


def _slices(
    problem: Problem, plans: Iterable[Configuration], like: Evaluator | None = None, mean_ranks: float | None = None
) -> Iterator[tuple[Evaluator, list[Configuration]]]:
    """Yield SLICE_PLANS plans at a time, those of like sub-batches together, with an evaluator of their own."""
    in_order = sorted(plans, key=lambda one: (one.precision, one.mode, one.sub_batch))
    for first in range(0, len(in_order), SLICE_PLANS):
        yield Evaluator(problem, like, mean_ranks), in_order[first : first + SLICE_PLANS]


def answers_of(problem: Problem, runs: Sequence[Run], like: Evaluator | None = None) -> list[Answer]:
    """Return the answers to runs of one problem, in their order.

    See :class:`planner.steps.predict.Evaluator` for ``like``, and for what is predicted where nodes hold unequal
    numbers of GPUs.
    """
    by_mean: dict[float | None, dict[int, Run]] = {}
    for at, run in enumerate(runs):
        mean = (run.gpus or 0) / run.nodes if run.is_uneven else None
        by_mean.setdefault(mean, {})[at] = run
    answers: dict[int, Answer] = {}
    for mean, some in by_mean.items():
        answers |= _answers_of(problem, some, like, mean)
    return [answers[at] for at in range(len(runs))]


def _answers_of(
    problem: Problem, runs: Mapping[int, Run], like: Evaluator | None, mean_ranks: float | None
) -> dict[int, Answer]:
    planned_runs = _planned(problem, runs)
    answers = {at: refused(runs[at], reason, problem.cluster) for at, reason in planned_runs.refused.items()}
    for evaluator, some in _slices(problem, planned_runs.plans, like, mean_ranks):
        reasons = _refusals(evaluator, some)
        for one, reason in reasons.items():
            answers |= {at: refused(runs[at], reason, problem.cluster) for at in planned_runs.plans[one]}
        priced = [one for one in some if one not in reasons]
        for one, prediction in zip(priced, evaluator.describe(Configurations.of(priced)), strict=True):
            shares = _shares(prediction)
            positions = planned_runs.plans[one]
            answers |= {at: _answer(runs[at], prediction, problem, shares) for at in positions}
            if any(runs[at].metric != MEMORY_METRIC for at in positions):
                again = {at: answers[at] for at in positions if runs[at].metric == MEMORY_METRIC}
                answers |= {at: replace(one, row=replace(one.row, repeats_run=True)) for at, one in again.items()}
    return answers


def _configuration(run: Run, problem: Problem) -> Configuration:
    """Return the plan of a run, or raise ParameterError saying why it is not predicted."""
    if run.is_uneven and (run.metric != "iteration_s" or run.mode != "sync" or run.data_parallel != run.gpus):
        in_words = "+".join(str(count) for count in run.placement)
        rule = "as many GPUs on every node, but for steps (iteration_s) that every GPU takes with the whole network"
        raise ParameterError("placement", rule, in_words)
    if problem.dataset is None and "storage" in (run.input, problem.settings.input):
        raise ParameterError("dataset", f"given where input is storage, as {run.network} has none of its own", "")
    if problem.dataset is None and run.metric == "epoch_s":
        raise ParameterError("dataset", f"given for an epoch, as {run.network} has none of its own", "")
    on_cluster = run.on(problem.cluster.node.gpus)
    values: dict[str, Any] = {axis.name: getattr(on_cluster, axis.name) or axis.least for axis in AXES}
    return Configuration(**values)


def _refusals(evaluator: Evaluator, plans: list[Configuration]) -> dict[Configuration, Refusal]:
    """Return the configurations that cannot be priced, with the reasons: those depend on precision, mode and place."""
    if not plans or not _reason(evaluator, plans):
        return {}
    reasons: dict[tuple[object, ...], Refusal | None] = {}
    for one in plans:
        key = _case(one)
        if key not in reasons:
            reasons[key] = _reason(evaluator, [one])
    pairs = ((one, reasons[_case(one)]) for one in plans)
    return {one: reason for one, reason in pairs if reason is not None}


def _case(one: Configuration) -> tuple[object, ...]:
    split = () if one.is_replicated else (one,)
    return (one.precision, one.mode, one.nodes, one.gpus_per_node, *split)


def _reason(evaluator: Evaluator, plans: list[Configuration]) -> Refusal | None:
    """Return why configurations cannot be priced together; None where they can."""
    try:
        evaluator.evaluate(Configurations.of(plans))
    except PlannerError as error:
        return error.refusal
    return None


def _shares(prediction: Prediction) -> dict[str, Mapping[str, float]]:
    """Return the exposed parts of a prediction by thread: one map for all rows of a plan."""
    by_thread: dict[str, dict[str, float]] = {}
    for term in prediction.terms:
        if term.share:
            by_thread.setdefault(term.thread, {})[term.name] = term.share
    return {thread: frozen_map(shares) for thread, shares in by_thread.items()}


def _answer(run: Run, prediction: Prediction, problem: Problem, shares: Mapping[str, Mapping[str, float]]) -> Answer:
    value: Quantity | None
    thread = "step" if run.mode == "sync" else "update" if run.metric == "update_s" else "gpu"
    if run.metric in MEAN_METRICS:  # without an interval
        value, thread = Quantity(MEAN_METRICS[run.metric](prediction)), ""
    elif run.metric == MEMORY_METRIC:
        value, thread = prediction.memory(run.memory_reading), ""
    else:
        value = getattr(prediction, run.metric)
    if value is None or not math.isfinite(value.value):
        figure = "none" if value is None else f"{value.value:g}"
        why = Refusal("not_finite", f"the predicted {run.metric} must be a finite number", run.metric, figure)
        return refused(run, why, problem.cluster)
    ends = [end if end is not None and math.isfinite(end) else None for end in (value.low, value.high)]
    low, high = ends if None not in ends else (None, None)
    memory, network, cluster = prediction.memory_bytes, problem.network.name, problem.cluster.name
    # What serves the prediction has seen the run, or what it is one of.
    names = {run.source, run.group, run.network, network, family_of(network), run.cluster, cluster} - {""}
    has_seen = any(not names.isdisjoint(one.seen) for term in prediction.terms for one in term.provenance)
    row = replace(
        _row(run, problem.cluster),
        predicted=value.value,
        low=low,
        high=high,
        status_predicted="out_of_memory" if memory["total"] > memory["capacity"] else "ok",
        in_sample=run.metric != MEMORY_METRIC and has_seen,
        bottleneck=prediction.bottleneck,
    )
    if run.metric != MEMORY_METRIC:
        row = replace(row, kind=prediction.kind, deviation=value.deviation)
    return Answer(row, shares.get(thread, NO_SHARES))


def validation_of(answers: Sequence[Answer], hold_out: str | None = None) -> Validation:
    """Return what answers add up to; ``hold_out``: what coefficients were refitted without, in turn."""
    terms = sorted({name for one in answers for name in one.shares})
    place = {name: at for at, name in enumerate(terms)}
    shares = np.zeros((len(answers), len(terms)))
    for at, one in enumerate(answers):
        for name, share in one.shares.items():
            shares[at, place[name]] = share
    return score([one.row for one in answers], terms, shares, hold_out)


def validation_with_locked(answers: Sequence[Answer], locked: BoolArray, hold_out: str | None = None) -> Validation:
    """Return what answers add up to, without anything that tells of single locked rows, networks or clusters of them.

    ``answers``: sequence of Answer, n; ``locked``: ndarray of bool, shape (n,); ``hold_out``: what coefficients were
    refitted without, in turn.
    """
    whole = validation_of(answers, hold_out)
    if not locked.any():
        return whole
    rest = validation_of(list(compress(answers, ~locked)), hold_out)
    rows = [one.row for one in compress(answers, locked)]
    told = Locked(
        tuple(dict.fromkeys(row.source for row in rows)), len(rows), sum(row.predicted is not None for row in rows)
    )
    by = {**rest.by, "source": whole.by["source"]}
    return replace(whole, by=by, groups=rest.groups, terms=rest.terms, rows=rest.rows, locked=told)
