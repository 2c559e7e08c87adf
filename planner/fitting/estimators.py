"""Estimators of coefficients; the only home of scikit-learn and SciPy.

X: features (n, p); t: measured times (n,) > 0; w: weights (n,) >= 0, 1 if not given; θ: coefficients (p,).

``relative-nnls``   min over θ >= 0 of sum w ((X·θ - t) / t)^2: errors count relatively. The default: plain least
                    squares lets the longest calls decide everything.
``gamma-nnls``      the same over m, what the fit before gave, in place of t, six times: the mean of times that scatter,
                    which relative errors place too low, as a short time weighs most.
``least-squares``   min over θ of sum w (X·θ - t)^2, signs free: what the SPRINT work used; can give negative times.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.domain.arrays import FloatArray
from planner.errors import UnknownNameError

HUBER = 3.0
"""Residual, in standard deviations, beyond which it counts linearly."""

__all__ = ["ESTIMATORS", "HUBER", "LEAST_SHARE", "robust_least_squares", "scaled_design", "solve"]

ESTIMATORS = ("relative-nnls", "gamma-nnls", "least-squares")
ROUNDS = 6
"""Of refits by what the fit before gave."""
LEAST_SHARE = 0.05
"""Of a measured time, at which what was fitted to it counts."""


def scaled_design(features: FloatArray, times: FloatArray, estimator: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the design whose columns have length 1, its target, and the lengths that were divided by.

    Rows are divided by the measured time but for ``least-squares``. A column of zeros keeps length 1.

    Parameters
    ----------
    features : ndarray of shape (n, p)
    times : ndarray of shape (n,)
    estimator : one of ESTIMATORS

    Returns
    -------
    design (n, p), target (n,), lengths (p,); θ = solution / lengths
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
    """Return the φ that minimises Σ w·huber(r(φ)) + Σ (φ / deviation)², and its covariance: a MAP estimate.

    Trust region (SciPy's ``least_squares``) from ``start``, with bounds one that meets them exactly. The covariance is
    the inverse of JᵀWJ + diag(1/deviation²), W with the weights that the Huber loss leaves at the solution.

    Parameters
    ----------
    residuals : φ (p,) -> r (n,), in standard deviations
    jacobian : φ (p,) -> dr/dφ (n, p)
    start, deviations : ndarray of shape (p,)
        The prior of every φ is normal around 0.
    weights : ndarray of shape (n,)
    tolerance : float
        Relative change, of the loss or of φ, at which the search ends.
    huber : float
        Residual beyond which it counts linearly; infinite: none does.
    least : ndarray of shape (p,), optional
        What φ does not fall below.

    Returns
    -------
    φ (p,), covariance (p, p)
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
        lambda x: np.concatenate([root * residuals(x), x / deviations]),
        start,
        jac=lambda x: np.concatenate([root[:, None] * jacobian(x), np.diag(1 / deviations)]),
        loss=loss,
        method="trf" if least is None else "dogbox",
        bounds=(-np.inf if least is None else least, np.inf),
        x_scale=deviations,
        ftol=tolerance,
        xtol=tolerance,
        gtol=min(1e-6, tolerance),
        max_nfev=100,
    )
    huber_weights = np.minimum(1.0, huber / np.maximum(np.abs(residuals(result.x)), 1e-300))
    slopes = jacobian(result.x) * (root * np.sqrt(huber_weights))[:, None]
    return result.x, np.linalg.inv(slopes.T @ slopes + np.diag(1 / deviations**2))
