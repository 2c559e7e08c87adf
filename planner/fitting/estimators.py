"""Estimators of coefficients, and what a fit can and cannot say; the only home of scikit-learn and SciPy.

X: features (n, p); t: measured times (n,) > 0; w: weights (n,) >= 0, 1 if not given; θ: coefficients (p,).

``relative-nnls``   min over θ >= 0 of sum w ((X·θ - t) / t)^2: errors count relatively. The default: plain least
                    squares lets the longest calls decide everything.
``gamma-nnls``      the same over m, what the fit before gave, in place of t, six times: the mean of times that scatter,
                    which relative errors place too low, as a short time weighs most.
``least-squares``   min over θ of sum w (X·θ - t)^2, signs free: what the SPRINT work used; can give negative times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.errors import UnknownNameError

HUBER = 3.0
"""Residual, in standard deviations, beyond which it counts linearly."""

ESTIMATORS = ("relative-nnls", "gamma-nnls", "least-squares")
ROUNDS = 6
"""Of refits by what the fit before gave."""
LEAST_SHARE = 0.05
"""Of a measured time, at which what was fitted to it counts."""


def scaled_design(features: FloatArray, times: FloatArray, estimator: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the design (n, p) whose columns have length 1, its target (n,), and the lengths (p,) divided by.

    Rows are divided by the measured time but for ``least-squares``. A column of zeros keeps length 1. θ is the solution
    over the lengths.

    ``features``: ndarray of shape (n, p); ``times``: ndarray of shape (n,); ``estimator``: one of ESTIMATORS.
    """
    if estimator not in ESTIMATORS:
        raise UnknownNameError("estimator", estimator, ESTIMATORS)
    by = np.ones_like(times) if estimator == "least-squares" else times
    rows = features / by[:, None]
    lengths = np.linalg.norm(rows, axis=0)
    lengths[lengths == 0] = 1.0
    return rows / lengths, times / by, lengths


def solve(
    features: FloatArray, times: FloatArray, estimator: str = "relative-nnls", weights: FloatArray | None = None
) -> FloatArray:
    """Return the coefficients θ, shape (p,), that minimise the estimator's sum of squares.

    Parameters
    ----------
    features : ndarray of shape (n, p)
    times : ndarray of shape (n,), > 0 but for ``least-squares``
    estimator : one of ESTIMATORS
    weights : ndarray of shape (n,), optional
    """
    from sklearn.linear_model import LinearRegression  # noqa: PLC0415 - heavy, and only fitting needs it

    design, target, lengths = scaled_design(features, times, estimator)
    root = np.sqrt(np.ones_like(times) if weights is None else weights)
    model = LinearRegression(positive=estimator != "least-squares", fit_intercept=False)
    model.fit(design * root[:, None], target * root)
    for _ in range(ROUNDS if estimator == "gamma-nnls" else 0):
        again = root / np.maximum(design @ model.coef_, LEAST_SHARE)
        model.fit(design * again[:, None], target * again)
    return np.asarray(model.coef_, dtype=np.float64) / lengths


def robust_least_squares(
    residuals: Callable[[FloatArray], FloatArray],
    jacobian: Callable[[FloatArray], FloatArray],
    start: FloatArray,
    deviations: FloatArray,
    weights: FloatArray,
    *,
    tolerance: float = 1e-6,
    huber: float = HUBER,
    least: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return the φ (p,) that minimises Σ w·huber(r(φ)) + Σ (φ / deviation)², and its covariance (p, p): a MAP estimate.

    Trust region (SciPy's ``least_squares``) from ``start``, with bounds one that meets them exactly. The covariance is
    the inverse of JᵀWJ + diag(1/deviation²), W with the weights that the Huber loss leaves at the solution.

    Parameters
    ----------
    residuals : φ (p,) -> r (n,), in standard deviations
    jacobian : φ (p,) -> dr/dφ (n, p)
    start, deviations : ndarray of shape (p,); the prior of every φ is normal around 0
    weights : ndarray of shape (n,)
    tolerance : relative change, of the loss or of φ, at which the search ends
    huber : residual beyond which it counts linearly; infinite: none does
    least : ndarray of shape (p,); what φ does not fall below
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - slow to import, and only fitting needs it

    root = np.sqrt(weights)
    count = weights.size

    def loss(squares: FloatArray) -> FloatArray:
        """Huber's loss of weighted squares, as value and two derivatives; the prior's own squares stay as they are."""
        rho = np.stack([squares, np.ones_like(squares), np.zeros_like(squares)])
        plain = np.divide(squares[:count], weights, out=np.zeros(count), where=weights > 0)
        far = np.flatnonzero(plain > huber**2)
        size = np.sqrt(plain[far])
        rho[0, far] = weights[far] * (2 * huber * size - huber**2)
        rho[1, far] = huber / size
        rho[2, far] = -huber / (2 * size**3 * weights[far])
        return rho

    result = least_squares(
        lambda x: np.concatenate([root * residuals(x), x / deviations]), start,
        jac=lambda x: np.concatenate([root[:, None] * jacobian(x), np.diag(1 / deviations)]), loss=loss,
        method="trf" if least is None else "dogbox", bounds=(-np.inf if least is None else least, np.inf),
        x_scale=deviations, ftol=tolerance, xtol=tolerance, gtol=min(1e-6, tolerance), max_nfev=100,
    )  # fmt: skip
    huber_weights = np.minimum(1.0, huber / np.maximum(np.abs(residuals(result.x)), 1e-300))
    slopes = jacobian(result.x) * (root * np.sqrt(huber_weights))[:, None]
    return result.x, np.linalg.inv(slopes.T @ slopes + np.diag(1 / deviations**2))


RANK_TOLERANCE = 1e-8
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
    """Return the time [s] of every row predicted without its fold, shape (n,), and what a fold is.

    Parameters
    ----------
    refit : takes the rows to fit, returns a function that predicts times [s] of rows
    groups : ndarray of int, shape (n,), or None; ``of``: what rows of one group have in common
    """
    fold, by = folds(size, groups, of)
    predicted = np.empty(size)
    for value in np.unique(fold):
        out = fold == value
        predicted[out] = refit(~out)(out)
    return predicted, by
