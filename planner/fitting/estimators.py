"""Estimators of coefficients; the only home of scikit-learn.

X: features (n, p); t: measured times (n,) > 0; w: weights (n,) >= 0, 1 if not given; θ: coefficients (p,).

``relative-nnls``   min over θ >= 0 of sum w ((X·θ - t) / t)^2: errors count relatively. The default: plain least
                    squares lets the longest calls decide everything.
``least-squares``   min over θ of sum w (X·θ - t)^2, signs free: what the SPRINT work used; can give negative times.
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray
from planner.errors import UnknownNameError

__all__ = ["ESTIMATORS", "scaled_design", "solve"]

ESTIMATORS = ("relative-nnls", "least-squares")


def scaled_design(features: FloatArray, times: FloatArray, estimator: str) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the design whose columns have length 1, its target, and the lengths that were divided by.

    Rows are divided by the measured time for ``relative-nnls``. A column of zeros keeps length 1.

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
    by = times if estimator == "relative-nnls" else np.ones_like(times)
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
    times : ndarray of shape (n,), > 0 for ``relative-nnls``
    estimator : one of ESTIMATORS
    weights : ndarray of shape (n,), optional
    """
    from sklearn.linear_model import LinearRegression  # noqa: PLC0415 - heavy, and only fitting needs it

    design, target, lengths = scaled_design(features, times, estimator)
    root = np.sqrt(np.ones_like(times) if weights is None else weights)
    model = LinearRegression(positive=estimator == "relative-nnls", fit_intercept=False)
    model.fit(design * root[:, None], target * root)
    return np.asarray(model.coef_, dtype=np.float64) / lengths
