"""Which term explains what predictions miss: one term scaled at a time.

p: predicted times (n,), v: measured (n,), x: exposed time of each term over v (n, t), e = p / v - 1 (n,).

With term j scaled by 1 + d the error of row i is e_i + d·x_ij. The scale minimises

    sum over i of (e_i + d·x_ij)^2 + (mean of e^2 / PRIOR_DEVIATION^2)·d^2,    SCALE_RANGE[0] <= 1 + d <= SCALE_RANGE[1]

a parabola in d, solved exactly. The second part is the prior that a term is right within PRIOR_DEVIATION: few rows, or
a small share, cannot ask for a large scale. The error that is reported with it is that of each row with the scale that
all others ask for, so that no row explains itself. A term may stand in for another with which it grows: the scale is a
hint where to look, not a coefficient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.validation import Growth, TermScale
from planner.scoring.errors import comparable
from planner.scoring.groups import means, numbered

__all__ = ["explaining_terms", "growths"]

PRIOR_DEVIATION = 0.5
SCALE_RANGE = (0.25, 4.0)
LEAST_GAIN = 0.1
"""A term explains something if it takes away at least this share of the mean error."""


def explaining_terms(
    terms: Sequence[str],
    exposed_s: FloatArray,
    predicted_s: FloatArray,
    measured_s: FloatArray,
    mask: BoolArray | None = None,
) -> tuple[TermScale, ...]:
    """Return the terms whose scale takes away at least LEAST_GAIN of the mean error, best first; often none.

    Parameters
    ----------
    terms : sequence of str, t
    exposed_s : ndarray of shape (n, t)
        What each term adds to the predicted time; 0 where a row has no such term.
    predicted_s, measured_s : ndarray of shape (n,)
    mask : ndarray of bool, shape (n,), optional
        Rows that may count; of them those count that have both times.
    """
    use = comparable(predicted_s, measured_s)
    use &= True if mask is None else mask
    if not use.any() or not terms:
        return ()
    x = exposed_s[use] / measured_s[use, None]
    e = (predicted_s[use] / measured_s[use] - 1)[:, None]
    slope, curve = -(e * x).sum(axis=0), (x * x).sum(axis=0)
    prior = float(np.mean(e * e)) / PRIOR_DEVIATION**2
    change = _bounded(slope, curve + prior)
    others = _bounded(slope + e * x, np.maximum(curve - x * x, 0) + prior)
    before, after = float(np.abs(e).mean()), np.abs(e + others * x).mean(axis=0)
    scales = [
        TermScale(name, 1 + d, int(use.sum()), before, error)
        for name, d, error in zip(terms, change.tolist(), after.tolist(), strict=True)
        if error < (1 - LEAST_GAIN) * before
    ]
    return tuple(sorted(scales, key=lambda one: (one.scaled_mape, one.term)))


FEWEST_GROUPS = 3
"""Groups along an axis from which on errors are said to grow along it."""


def growths(
    axes: Mapping[str, IntArray],
    groups: Sequence[str],
    shares: Mapping[str, FloatArray],
    times_s: tuple[FloatArray, FloatArray],
    mask: BoolArray,
) -> tuple[Growth, ...]:
    """Return the axes along which errors grow within groups, the steepest first; often none.

    Of log(predicted / measured) and of each term's share the slopes by log2 of the axis, both less the means of groups.
    An axis is named where the slope that other groups ask for takes LEAST_GAIN from the errors of each.

    Parameters
    ----------
    axes : mapping of name to ndarray of int, shape (n,); 0: not known
    groups : sequence of str, n
    shares : mapping of term to ndarray of float, shape (n,), its share of the predicted time
    times_s : predicted and measured, ndarray of float, shape (n,)
    mask : ndarray of bool, shape (n,)
    """
    use, found = comparable(*times_s) & mask, list[Growth]()
    for name, values in axes.items():
        rows = use & (values > 0)
        names, code = numbered(groups, rows)

        def centred(of: FloatArray, code: IntArray = code, count: int = len(names)) -> FloatArray:
            return of - means(of, code, count)[code]

        x = centred(np.log2(values[rows]))
        e = centred(np.log(times_s[0][rows] / times_s[1][rows]))
        spread, product = (np.bincount(code, weights=one, minlength=len(names)) for one in (x * x, x * e))
        several = spread > 0
        if several.sum() < FEWEST_GROUPS:
            continue
        others = (product.sum() - product) / np.maximum(spread.sum() - spread, 1e-300)
        varies = several[code]
        before, after = (float(np.abs(one[varies]).mean()) for one in (e, e - others[code] * x))
        if after < (1 - LEAST_GAIN) * before:
            grown = {term: float((x * centred(share[rows])).sum()) for term, share in shares.items()}
            term = max((term for term in grown if grown[term] > 0), key=grown.__getitem__, default="")
            slope = float(product.sum() / spread.sum())
            found.append(Growth(name, slope, term, int(varies.sum()), int(several.sum())))
    return tuple(sorted(found, key=lambda one: -abs(one.slope)))


def _bounded(slope: FloatArray, curve: FloatArray) -> FloatArray:
    """Return the change of scale that minimises curve·d^2 / 2 - slope·d within SCALE_RANGE; 0 where nothing asks."""
    change = np.divide(slope, curve, out=np.zeros_like(slope), where=curve > 0)
    return np.clip(change, SCALE_RANGE[0] - 1, SCALE_RANGE[1] - 1)
