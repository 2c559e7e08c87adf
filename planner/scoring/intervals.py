"""Held-out answers -> conformal scores by kind of prediction, and intervals that such scores make.

An answer states a standard deviation s of log(p); its residual is z = abs(log(p / v)) / s. Rows of one network on one
GPU miss together, and so are one group. Of each kind of prediction (see
:data:`planner.domain.calibration.PREDICTION_KINDS`) the score of what does not extrapolate covers a row of a new group,
that of what does covers all rows of a new group at once; both are calibrated on all rows of the kind, whether these
extrapolate or not, so that the second is never below the first. See :mod:`planner.scoring.conformal`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import INSIDE, OUTSIDE, ConformalScore
from planner.domain.network import family_of
from planner.domain.validation import ScoredRow
from planner.scoring.conformal import conformal_scores, log_scores, scores_of
from planner.scoring.evaluate import Answer
from planner.steps.intervals import LARGEST_REACH, NORMAL_90

__all__ = ["rescaled", "scores"]


class _Residuals(NamedTuple):
    """Columns of n rows: kind without suffix, z (NaN where there is none) and group."""

    kind: list[str]
    z: FloatArray
    group: list[str]

    @classmethod
    def of(cls, rows: Sequence[ScoredRow]) -> _Residuals:
        """Return the residuals of rows; those that a calibration has seen have none."""
        kinds = [INSIDE.get(row.kind, "") for row in rows]
        is_used = [row.error is not None and not row.in_sample and row.kind != "" for row in rows]
        figures = [
            (row.predicted, row.measured) if is_used_ else (None, None)
            for row, is_used_ in zip(rows, is_used, strict=True)
        ]
        predicted, measured = np.array(figures, dtype=np.float64).reshape(-1, 2).T
        groups = [f"{family_of(row.network)} on {row.gpu}" for row in rows]
        deviations = np.array([row.deviation for row in rows], dtype=np.float64)
        return cls(kinds, log_scores(predicted, measured, deviations), groups)

    def scores(self, mask: BoolArray) -> dict[str, ConformalScore]:
        """Return the scores of the masked rows by kind; only kinds that have a residual."""
        at = np.flatnonzero(mask & np.isfinite(self.z)).tolist()
        kinds, groups, z = [self.kind[i] for i in at], [self.group[i] for i in at], self.z[at]
        by_kind: dict[str, ConformalScore] = {}
        for unit in ("group", "maximum"):
            of_kinds = conformal_scores(kinds, z, groups, unit)
            by_kind |= {OUTSIDE[kind] if unit == "maximum" else kind: one for kind, one in of_kinds.items()}
        return dict(sorted(by_kind.items()))


def scores(answers: Sequence[Answer]) -> dict[str, ConformalScore]:
    """Return the conformal scores of kinds of predictions, as :class:`planner.domain.calibration.Calibration` has them.

    Parameters
    ----------
    answers : sequence of Answer
        To runs that took no part in the fit that predicts them. Rows without a kind, a deviation or a measured value,
        and those that a calibration has seen, do not count.

    Returns
    -------
    dict of str to ConformalScore
        By name; a kind with too few groups has no score and says why.
    """
    residuals = _Residuals.of([one.row for one in answers])
    return residuals.scores(np.ones(len(answers), dtype=np.bool_))


def rescaled(
    answers: Sequence[Sequence[Answer]], left_out: Sequence[str], counts: Sequence[Sequence[bool]] | None = None
) -> list[list[Answer]]:
    """Return answers with intervals by the scores of the rows of all other groups: never by residuals of their own.

    Where the other groups are too few for a score, the interval is the one that the deviation states. Scores that
    calibrations hold do not count. Predictions of the other groups may rest on fits to this one, as always in
    cross-validation.

    Parameters
    ----------
    answers : sequence of m sequences of Answer
    left_out : sequence of str, m
        What was left out of the fit behind each sequence of answers.
    counts : sequence of m sequences of bool, optional
        Rows whose residuals make scores; default: all.
    """
    flat = [one for some in answers for one in some]
    names = np.array([name for some, name in zip(answers, left_out, strict=True) for _ in some], dtype=np.str_)
    rows = [one.row for one in flat]
    residuals, by_row = _Residuals.of(rows), np.full(len(rows), np.nan)
    used = np.array([True] * len(rows) if counts is None else [one for some in counts for one in some], dtype=np.bool_)
    for name in np.unique(names):
        own = names == name
        kinds = [row.kind for row, is_own in zip(rows, own.tolist(), strict=True) if is_own]
        by_row[own] = scores_of(kinds, residuals.scores(~own & used))
    answers_ = map(_with_interval, flat, np.where(np.isnan(by_row), NORMAL_90, by_row).tolist())
    return [[next(answers_) for _ in some] for some in answers]


def _with_interval(answer: Answer, score: float) -> Answer:
    row = answer.row
    if row.predicted is None or row.deviation is None or not row.kind:
        return answer
    reach = math.exp(min(score * row.deviation, math.log(LARGEST_REACH)))
    return replace(answer, row=replace(row, low=row.predicted / reach, high=row.predicted * reach))
