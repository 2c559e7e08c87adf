"""Relative errors of predictions and their summaries.

p: predicted (n,); v: measured (n,); e = p / v - 1 (n,). Rows count where p is finite and v finite and above 0: anything
else is a row without a prediction or without a value.

Sums and quantiles of rows by group, all groups at once, and leaving groups out in turn.

What is predicted takes no part in the fit that predicts it.

k: groups, numbered 0 ... k - 1; code (n,): the group of every row; sizes (k,): its rows.

Which term explains what predictions miss: one term scaled at a time.

p: predicted times (n,), v: measured (n,), x: exposed time of each term over v (n, t), e = p / v - 1 (n,).

With term j scaled by 1 + d the error of row i is e_i + d·x_ij. The scale minimises

    sum over i of (e_i + d·x_ij)^2 + (mean of e^2 / PRIOR_DEVIATION^2)·d^2,    SCALE_RANGE[0] <= 1 + d <= SCALE_RANGE[1]

a parabola in d, solved exactly. The second part is the prior that a term is right within PRIOR_DEVIATION: few rows, or
a small share, cannot ask for a large scale. The error that is reported with it is that of each row with the scale that
all others ask for, so that no row explains itself. A term may stand in for another with which it grows: the scale is a
hint where to look, not a coefficient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.validation import ErrorSummary, Growth, TermScale

__all__ = [
    "HOLD_OUTS", "Figures", "Split", "average_ranks", "comparable", "explaining_terms", "growths", "means", "numbered",
    "quantiles", "relative_errors", "runs", "splits", "summaries_by", "summarise",
]  # fmt: skip


def numbered(groups: Sequence[str], mask: BoolArray) -> tuple[list[str], IntArray]:
    """Return the names of the groups of the masked rows, sorted (k), and the group of every masked row (m,)."""
    names, code = np.unique(np.asarray(groups, dtype=np.str_)[mask], return_inverse=True)
    return names.tolist(), code.astype(np.int64)


def means(values: FloatArray, code: IntArray, count: int) -> FloatArray:
    """Return the mean of every group (k,); NaN where it has no row."""
    sizes = np.bincount(code, minlength=count)
    sums = np.bincount(code, weights=values, minlength=count)
    result = np.full(count, np.nan)
    np.divide(sums, sizes, out=result, where=sizes > 0)
    return result


def quantiles(values: FloatArray, code: IntArray, count: int, level: float) -> FloatArray:
    """Return the quantile of every group (k,), linear between its sorted values; NaN where it has no row."""
    result = np.full(count, np.nan)
    if values.size:
        in_order = values[np.lexsort((values, code))]
        sizes = np.bincount(code, minlength=count)
        some = sizes > 0
        first = (np.cumsum(sizes) - sizes)[some]
        place = level * (sizes[some] - 1)
        below = np.floor(place).astype(np.int64)
        above = np.minimum(below + 1, sizes[some] - 1)
        low, high = in_order[first + below], in_order[first + above]
        result[some] = low + (place - below) * (high - low)
    return result


def runs(*columns: IntArray | FloatArray | BoolArray) -> IntArray:
    """Return the number of the run of equal rows, counted from 0, that every row of sorted columns (n,) belongs to."""
    new = np.zeros(columns[0].size, dtype=np.bool_)
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.cumsum(new, dtype=np.int64)


def average_ranks(values: FloatArray, code: IntArray) -> FloatArray:
    """Return the rank (n,) of every row among the rows of its group, from 1; equal values share their mean rank."""
    order = np.lexsort((values, code))
    by_value = runs(code[order], values[order])
    first = np.searchsorted(code[order], code[order])  # position where the group starts
    position = (np.arange(values.size) - first + 1).astype(np.float64)
    ranks = np.empty(values.size)
    ranks[order] = means(position, by_value, int(by_value[-1]) + 1 if by_value.size else 0)[by_value]
    return ranks


HOLD_OUTS = ("network", "gpu", "cluster", "source")
"""Properties of a run whose values can be left out in turn."""


class Split(NamedTuple):
    """Rows to fit on and rows to predict, bool (n,); no row is in both, and ``name`` is in none of ``fit``."""

    name: str
    fit: BoolArray
    test: BoolArray


def splits(groups: Sequence[str], mask: BoolArray | None = None) -> Iterator[Split]:
    """Yield one split for every group of the masked rows, by name; every masked row is tested once.

    Of a single group nothing remains to fit on: ``fit`` is then False everywhere.

    Parameters
    ----------
    groups : sequence of str, n
        The value of the property that is left out.
    mask : ndarray of bool, shape (n,), optional
        Rows that take part at all.
    """
    use = np.ones(len(groups), dtype=np.bool_) if mask is None else mask
    names, code = numbered(groups, use)
    number = np.full(len(groups), -1, dtype=np.int64)
    number[use] = code
    for position, name in enumerate(names):
        test = number == position
        yield Split(name, use & ~test, test)


class Figures(NamedTuple):
    """What is compared, arrays of shape (n,) in one unit a row; NaN where there is none."""

    predicted: FloatArray
    measured: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None


def comparable(predicted: FloatArray, measured: FloatArray) -> BoolArray:
    """Return where there is both a prediction and a measured value above 0, shape (n,)."""
    return np.isfinite(predicted) & np.isfinite(measured) & (measured > 0)


def relative_errors(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Return e = predicted / measured - 1, shape (n,); NaN where the two cannot be compared."""
    result = np.full(predicted.shape, np.nan)
    np.divide(predicted, measured, out=result, where=comparable(predicted, measured))
    return result - 1


def summarise(figures: Figures, mask: BoolArray | None = None) -> ErrorSummary:
    """Return the summary of the masked rows that can be compared; of none, n = 0 and figures None."""
    of_all = summaries_by([""] * figures.predicted.size, figures, mask)
    return of_all.get("", ErrorSummary(0))


def summaries_by(groups: Sequence[str], figures: Figures, mask: BoolArray | None = None) -> dict[str, ErrorSummary]:
    """Return the summary of every group that has a row, by name, sorted.

    Parameters
    ----------
    groups : sequence of str, n
    figures : Figures of shape (n,)
    mask : ndarray of bool, shape (n,), optional
        Rows that may count.
    """
    errors = relative_errors(figures.predicted, figures.measured)
    use = np.isfinite(errors) if mask is None else mask & np.isfinite(errors)
    names, code = numbered(groups, use)
    count = len(names)
    sizes = np.bincount(code, minlength=count)
    e, ape = errors[use], np.abs(errors[use])
    columns = (
        means(ape, code, count),
        quantiles(ape, code, count, 0.5),
        quantiles(ape, code, count, 0.9),
        means(e, code, count),
        _coverage(figures, use, code, count),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {
        name: ErrorSummary(int(size), *(None if np.isnan(figure) else figure for figure in row))
        for name, size, row in zip(names, sizes, rows, strict=True)
    }


def _coverage(figures: Figures, use: BoolArray, code: IntArray, count: int) -> FloatArray:
    """Return the share (k,) of the used rows with an interval that it covers; NaN where none has one."""
    if figures.low is None or figures.high is None:
        return np.full(count, np.nan)
    low, high, measured = figures.low[use], figures.high[use], figures.measured[use]
    has = ~(np.isnan(low) | np.isnan(high))
    inside = (low <= measured) & (measured <= high)
    return means(inside[has].astype(np.float64), code[has], count)


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
