"""Sums and quantiles of rows by group, all groups at once, and leaving groups out in turn.

What is predicted takes no part in the fit that predicts it.

k: groups, numbered 0 ... k - 1; code (n,): the group of every row; sizes (k,): its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray

__all__ = ["HOLD_OUTS", "Split", "average_ranks", "means", "numbered", "quantiles", "runs", "splits"]


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
