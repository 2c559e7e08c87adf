"""Scored rows -> a validation: who counts where, and every figure of it, of times and of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.runs import MEMORY_METRIC
from planner.domain.validation import AXES, MemoryScore, ScoredRow, Validation
from planner.scoring.errors import Figures, comparable, explaining_terms, growths, summaries_by, summarise
from planner.scoring.ranking import Outcomes, as_times, rank_by_rules, rank_groups, summarise_ranking

__all__ = ["memory_score", "score"]


def score(
    rows: Sequence[ScoredRow],
    terms: Sequence[str] = (),
    shares: FloatArray | None = None,
    hold_out: str | None = None,
) -> Validation:
    """Return what rows add up to.

    Held-out rows that were predicted count; those that a calibration has seen have their errors apart, but count for
    memory, which no fit learns. Rows measured as out of memory have no error, but may be a group's first choice.

    Parameters
    ----------
    rows : sequence of ScoredRow, n
    terms : sequence of str, t
        Names of the columns of ``shares``.
    shares : ndarray of shape (n, t), optional
        What part of the predicted time each term is exposed; 0 where a row has no such term or was refused.
    hold_out : str, optional
        What was left out in turn.
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
    names, outcomes = _one_metric_groups(rows), Outcomes(predicted_s, measured_s, called_out, out)
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
        by={axis: summaries_by([getattr(row, axis) for row in rows], figures, is_held_out) for axis in AXES},
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


def _one_metric_groups(rows: Sequence[ScoredRow]) -> list[str]:
    """Return the group of every row; one of several metrics falls apart into one a metric."""
    metrics = defaultdict(set)
    for row in rows:
        metrics[row.group].add(row.metric)
    return [f"{row.group} ({row.metric})" if row.group and len(metrics[row.group]) > 1 else row.group for row in rows]


def memory_score(
    figures: Figures, statuses: tuple[BoolArray, BoolArray], called: BoolArray, read: BoolArray
) -> MemoryScore:
    """Return the calls of the rows ``called``, and the errors of the rows ``read``.

    Parameters
    ----------
    figures : Figures of shape (n,), in bytes where ``read``
    statuses : pair of ndarray of bool, shape (n,)
        Called out of memory, and ran out of memory.
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
