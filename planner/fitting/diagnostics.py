"""What a fit can and cannot say: rank, condition, standard errors, errors on rows left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.fitting.estimators import scaled_design

__all__ = [
    "HeldOut", "condition_number", "covariance", "errors_of", "folds", "held_out", "held_out_times", "identifiable",
]  # fmt: skip

RANK_TOLERANCE = 1e-8
LARGEST_COVARIANCE = 64
MOST_REFITS = 64
"""More rows than this are left out in folds, not one by one."""
MANY_ROWS, REFITS_OF_MANY = 5000, 16
"""Of more rows than this, a sixteenth left out is no great loss, and refits take long."""


def identifiable(features: FloatArray, times: FloatArray, estimator: str) -> BoolArray:
    """Tell which features the rows can tell apart, shape (p,).

    Columns of the scaled design are taken in order; one that the columns before it span (residual below 1e-8 of its
    length), or that is zero, is not identifiable.
    """
    design, _, _ = scaled_design(features, times, estimator)
    basis = np.zeros((features.shape[0], 0))
    mask = np.zeros(features.shape[1], dtype=np.bool_)
    for position in range(features.shape[1]):
        column = design[:, position]
        rest = column
        for _ in range(2):  # twice: once loses digits where columns are nearly parallel
            rest = rest - basis @ (basis.T @ rest)
        length = float(np.linalg.norm(rest))
        mask[position] = length > RANK_TOLERANCE and basis.shape[1] < features.shape[0]
        if mask[position]:
            basis = np.column_stack([basis, rest / length])
    return mask


def condition_number(features: FloatArray, times: FloatArray, estimator: str) -> float:
    """Return the ratio of the largest to the least singular value of the scaled design: doubt, not units."""
    if features.shape[1] == 0:
        return 1.0
    design, _, _ = scaled_design(features, times, estimator)
    values = np.linalg.svd(design, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def covariance(
    features: FloatArray, times: FloatArray, coefficients: FloatArray, estimator: str
) -> tuple[FloatArray, float] | None:
    """Return the covariance of the coefficients, shape (p, p), and the residual variance s^2; None: not determined.

    s^2·(Z'Z)^-1 with Z the weighted rows and s^2 = sum of squared residuals / (n - free coefficients). A coefficient
    held at its bound 0 has variance 0: the errors are those given the active set. As many free coefficients as
    rows meet every row, which says nothing of their errors.
    """
    design, target, lengths = scaled_design(features, times, estimator)
    free = (coefficients > 0) if estimator != "least-squares" else np.ones(coefficients.shape, dtype=np.bool_)
    degrees = times.size - int(free.sum())
    if degrees < 1:
        return None
    residual = design @ (coefficients * lengths) - target
    variance = float(residual @ residual) / degrees
    result = np.zeros((coefficients.size, coefficients.size))
    inner = design[:, free].T @ design[:, free]
    result[np.ix_(free, free)] = variance * np.linalg.pinv(inner) / np.outer(lengths[free], lengths[free])
    return result, variance


class HeldOut(NamedTuple):
    """Errors on rows left out: mean, median and largest absolute relative error, what was left out together.

    ``worst_row`` is the position of the row with the largest.
    """

    mean: float
    median: float
    worst: float
    by: str
    worst_row: int


def folds(size: int, groups: IntArray | None, of: str = "group") -> tuple[IntArray, str]:
    """Return the fold of every row, shape (n,), and what a fold is: ``of``, or ``row``.

    Groups where there are at least two, else single rows; more than MOST_REFITS of either, or REFITS_OF_MANY where
    there are more than MANY_ROWS rows, are left out in as many strided sets.
    """
    most = MOST_REFITS if size <= MANY_ROWS else REFITS_OF_MANY
    if groups is not None and np.unique(groups).size > 1:
        return np.unique(groups, return_inverse=True)[1].ravel() % most, of
    return np.arange(size) % min(size, most), "row"


def held_out(
    refit: Callable[[BoolArray], Callable[[BoolArray], FloatArray]],
    times: FloatArray,
    groups: IntArray | None,
    of: str = "group",
) -> HeldOut | None:
    """Return the errors on rows that took no part in the fit that predicts them; None with fewer than 2 rows.

    Parameters
    ----------
    refit : takes the rows to fit, returns a function that predicts times [s] of rows
    times : ndarray of shape (n,)
    groups : ndarray of int, shape (n,), or None
    of : str
        What rows of one group have in common.
    """
    if times.size < 2:
        return None
    return errors_of(*held_out_times(refit, times.size, groups, of), times)


def errors_of(predicted: FloatArray, by: str, times: FloatArray) -> HeldOut:
    """Return the errors of times [s] predicted for rows left out by ``by``, against those measured, shape (n,)."""
    errors = np.abs(predicted / times - 1)
    return HeldOut(float(errors.mean()), float(np.median(errors)), float(errors.max()), by, int(errors.argmax()))


def held_out_times(
    refit: Callable[[BoolArray], Callable[[BoolArray], FloatArray]],
    size: int,
    groups: IntArray | None,
    of: str = "group",
) -> tuple[FloatArray, str]:
    """Return the time [s] of every row predicted without its fold, shape (n,), and what a fold is."""
    fold, by = folds(size, groups, of)
    predicted = np.empty(size)
    for value in np.unique(fold):
        out = fold == value
        predicted[out] = refit(~out)(out)
    return predicted, by
