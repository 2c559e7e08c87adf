"""Relative errors of predictions and their summaries.

p: predicted (n,); v: measured (n,); e = p / v - 1 (n,). Rows count where p is finite and v finite and above 0: anything
else is a row without a prediction or without a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.validation import ErrorSummary
from planner.scoring.groups import means, numbered, quantiles

__all__ = ["Figures", "comparable", "relative_errors", "summaries_by", "summarise"]


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
