"""Split-conformal intervals: half-widths taken from residuals of groups that no fit has seen.

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
from collections.abc import Mapping, Sequence

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.provenance import INTERVAL_LEVEL, ConformalScore
from planner.errors import ParameterError
from planner.scoring.groups import numbered

__all__ = ["conformal_score", "log_scores", "scores_of"]

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
