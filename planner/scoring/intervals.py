"""Held-out answers -> half-widths of intervals by kind of prediction, and the intervals that they make.

The residual of an answer is abs(log(p / v)). Rows of one network on one GPU miss together, and so are one group (see
:mod:`planner.scoring.intervals`). Kinds of predictions are ordered (:mod:`planner.domain.provenance`): by where, from
one GPU to several nodes; by what kernels rest on, from measured to specified; and by whether they extrapolate.
Half-widths follow that order, none is below that of a surer kind: with q(A) the conformal score of the rows of a set of
kinds, that of kind x is

    max over a <= x of  min over b >= x of  q({k: a <= k <= b}),

as isotonic regression has it [1]_, over ranges of kinds with at least :data:`LEAST_OWN_GROUPS` groups. So kinds of few
rows, and those that would break the order, share the rows of their neighbours. Where all rows together are fewer
groups, they are one range.

References
----------
.. [1] Robertson, Wright, Dykstra (1988), Order Restricted Statistical Inference, Wiley

Split-conformal intervals: half-widths taken from residuals of groups that no fit has seen.

s = abs(log(p / v)) (n,), p predicted and v measured; K groups, n_g rows of group g. Rows of a group miss together, so
that groups are exchangeable and rows are not. The score is the least q at which

    sum over g, i of [s_gi <= q] / ((K + 1) n_g)  >=  level                                                      [1]_

so that every group has one weight and the group to come has one too, at infinity. The interval p·exp(±q) then covers a
random row of a new group with a probability of at least ``level``, whatever the distributions. Scores must come from
rows that took no part in the fit.

References
----------
.. [1] Lee, Barber, Willett (2023), Distribution-free inference with hierarchical data, arXiv:2306.06342
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.network import family_of
from planner.domain.provenance import INTERVAL_LEVEL, PREDICTION_KINDS, ConformalScore, PredictionKind
from planner.domain.validation import ScoredRow
from planner.errors import ParameterError
from planner.scoring.errors import numbered
from planner.scoring.evaluate import Answer
from planner.steps.intervals import LARGEST_REACH

__all__ = ["LEAST_OWN_GROUPS", "conformal_score", "log_scores", "rescaled", "scores", "scores_of"]

LEAST_GROUPS = 10
ROUNDING = 1e-9
"""Of sums of weights that reach the level exactly."""


def log_scores(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Return s = abs(log(predicted / measured)), shape (n,); NaN where either is missing or not above 0.

    Parameters
    ----------
    predicted, measured : ndarray of shape (n,), in one unit
    """
    columns = np.stack([predicted, measured])
    is_known = np.all(np.isfinite(columns) & (columns > 0), axis=0)
    result = np.full(predicted.shape, np.nan)
    result[is_known] = np.abs(np.log(predicted[is_known]) - np.log(measured[is_known]))
    return result


def conformal_score(scores: FloatArray, groups: Sequence[str], level: float = INTERVAL_LEVEL) -> ConformalScore:
    """Return the score q of the module's formula, or the reason why there are too few groups for one.

    Parameters
    ----------
    scores : ndarray of shape (n,); rows with NaN do not count
    groups : sequence of str, n
    level : float, > 0 and < 1

    Raises
    ------
    ParameterError
        A level outside its range.
    """
    if not 0 < level < 1:
        raise ParameterError("level", "above 0 and below 1", level)
    use = ~np.isnan(scores)
    names, code = numbered(groups, use)
    count, s = len(names), scores[use]
    least = max(LEAST_GROUPS, math.ceil(level / (1 - level) - ROUNDING))  # fewer cannot reach K / (K + 1) >= level
    if count < least:
        reason = f"groups of measured runs must be at least {least} for an interval of {level:.0%}, got {count}"
        return ConformalScore(None, level, count, s.size, reason)
    weights = 1 / ((count + 1) * np.bincount(code)[code])
    order = np.argsort(s, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), level - ROUNDING))
    return ConformalScore(float(s[order][place]), level, count, int(use.sum()))


def scores_of(quantities: Sequence[str], by_quantity: Mapping[str, ConformalScore]) -> FloatArray:
    """Return the score of each row's quantity, shape (n,); NaN where there is none."""
    by_name = {name: math.nan if one.half_width is None else one.half_width for name, one in by_quantity.items()}
    return np.array([by_name.get(name, math.nan) for name in quantities], dtype=np.float64)


LEAST_OWN_GROUPS = 20
"""Groups of a range of kinds: with fewer, the group to come would stand for more than half of the 10 % left uncovered,
and the score be about the largest residual."""
_KINDS = tuple(PREDICTION_KINDS.values())
_ENDS = _KINDS[0], _KINDS[-1]


class _Residuals(NamedTuple):
    """Columns of n rows: ranks of the kind (n, 3), residual (NaN where there is none) and group."""

    ranks: FloatArray
    residual: FloatArray
    group: list[str]

    @classmethod
    def of(cls, rows: Sequence[ScoredRow]) -> _Residuals:
        """Return the residuals of rows; those that a calibration has seen, or of no kind, have none."""
        is_used = [row.error is not None and not row.in_sample and row.kind in PREDICTION_KINDS for row in rows]
        figures = [
            (row.predicted, row.measured) if is_used_ else (None, None)
            for row, is_used_ in zip(rows, is_used, strict=True)
        ]
        predicted, measured = np.array(figures, dtype=np.float64).reshape(-1, 2).T
        kinds = [PREDICTION_KINDS.get(row.kind) for row in rows]
        ranks = np.array([(-1, -1, -1) if kind is None else kind.ranks for kind in kinds], dtype=np.float64)
        groups = [f"{family_of(row.network)} on {row.gpu}" for row in rows]
        return cls(ranks.reshape(-1, 3), log_scores(predicted, measured), groups)

    def masked(self, mask: BoolArray) -> _Residuals:
        """Return the masked rows that have a residual."""
        at = np.flatnonzero(mask & np.isfinite(self.residual))
        return _Residuals(self.ranks[at], self.residual[at], [self.group[i] for i in at.tolist()])

    def scores(self) -> dict[str, ConformalScore]:
        """Return the scores by kind; none without any row."""
        if not self.group:
            return {}
        ranges = dict(self._ranges())
        every = self._within(*_ENDS)
        return {name: _isotonic(kind, ranges) or every for name, kind in PREDICTION_KINDS.items()}

    def _ranges(self) -> Iterator[tuple[tuple[PredictionKind, PredictionKind], ConformalScore]]:
        """Yield the scores of all ranges of kinds, by ends, that have the groups."""
        for low in PREDICTION_KINDS.values():
            for high in PREDICTION_KINDS.values():
                if low.is_as_sure_as(high):
                    found = self._within(low, high)
                    if found.groups >= LEAST_OWN_GROUPS:
                        yield (low, high), found

    def _within(self, low: PredictionKind, high: PredictionKind) -> ConformalScore:
        chosen = np.all((self.ranks >= low.ranks) & (self.ranks <= high.ranks), axis=1)
        return conformal_score(self.residual[chosen], [self.group[i] for i in np.flatnonzero(chosen).tolist()])


def _isotonic(
    kind: PredictionKind, ranges: Mapping[tuple[PredictionKind, PredictionKind], ConformalScore]
) -> ConformalScore | None:
    """Return the score of a kind by the formula of the module; None where no range holds it."""
    narrowest: dict[PredictionKind, ConformalScore] = {}
    for (low, high), score in ranges.items():
        if low.is_as_sure_as(kind) and kind.is_as_sure_as(high):
            narrowest[low] = min(narrowest.get(low, score), score, key=_width)
    return max(narrowest.values(), key=_width, default=None)


def _width(score: ConformalScore) -> float:
    return math.inf if score.half_width is None else score.half_width


def scores(answers: Sequence[Answer]) -> dict[str, ConformalScore]:
    """Return the conformal scores of kinds of predictions, as :class:`planner.domain.calibration.Calibration` has them.

    Parameters
    ----------
    answers : sequence of Answer
        To runs that took no part in the fit that predicts them. Rows without a kind or a measured value, and those that
        a calibration has seen, do not count.

    Returns
    -------
    dict of str to ConformalScore
        Of all kinds, by name; with too few groups each says why it has no half-width. Empty without any row.
    """
    return _Residuals.of([one.row for one in answers]).masked(np.ones(len(answers), dtype=np.bool_)).scores()


def rescaled(
    answers: Sequence[Sequence[Answer]], left_out: Sequence[str], counts: Sequence[Sequence[bool]] | None = None
) -> list[list[Answer]]:
    """Return answers with intervals by the scores of the rows of all other groups: never by residuals of their own.

    Where the other groups are too few for a score, there is none. Scores that calibrations hold do not count.
    Predictions of the other groups may rest on fits to this one, as always in cross-validation.

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
    residuals, half_widths = _Residuals.of(rows), np.full(len(rows), np.nan)
    used = np.array([True] * len(rows) if counts is None else [one for some in counts for one in some], dtype=np.bool_)
    for name in np.unique(names):
        own = names == name
        kinds = [row.kind for row, is_own in zip(rows, own.tolist(), strict=True) if is_own]
        half_widths[own] = scores_of(kinds, residuals.masked(~own & used).scores())
    answers_ = map(_with_interval, flat, half_widths.tolist())
    return [[next(answers_) for _ in some] for some in answers]


def _with_interval(answer: Answer, half_width: float) -> Answer:
    row = answer.row
    if row.predicted is None or not row.kind:
        return answer
    if math.isnan(half_width):
        return replace(answer, row=replace(row, low=None, high=None))
    reach = math.exp(min(half_width, math.log(LARGEST_REACH)))
    return replace(answer, row=replace(row, low=row.predicted / reach, high=row.predicted * reach))
