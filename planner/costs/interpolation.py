"""Interpolation as a feature map: Φ holds the weights of stored points, θ what was measured there.

Beyond the stored points the rate of the nearest one is kept, in FLOP/s, and :func:`planner.costs.terms.extrapolates`
says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from planner.costs.features import NUMBER, POINT, Column, FeatureMap, Settings, Work, vector
from planner.costs.roofline import physical_floor
from planner.costs.work import product
from planner.domain.arrays import FloatArray
from planner.errors import ParameterError

__all__ = ["FLOP_BEYOND", "GEMM_INTERPOLATION", "grid_name", "grid_points"]

FLOP_BEYOND = "log_flop_beyond"
AXES = ("m", "n", "k")


def hat_weights(x: FloatArray, knots: FloatArray) -> FloatArray:
    """Return weights, shape (..., len(knots)), of piecewise-linear interpolation, constant beyond the ends.

    Parameters
    ----------
    x : ndarray of shape (...)
    knots : ndarray of shape (q,), increasing
    """
    if knots.size == 0 or np.any(np.diff(knots) <= 0):
        raise ParameterError("knots", "increasing, at least one", knots)
    return np.stack([np.interp(x, knots, at_knots) for at_knots in np.eye(knots.size)], axis=-1)


def grid_name(m: float, n: float, k: float) -> str:
    """Return the feature name of a grid point."""
    return f"{m:.15g}x{n:.15g}x{k:.15g}"


def grid_points(settings: Settings) -> Iterator[tuple[float, float, float]]:
    """Yield m, n, k of the points of a grid, in the order of their columns."""
    yield from itertools.product(*(vector(settings, axis).tolist() for axis in AXES))


def _grid_columns(settings: Settings) -> tuple[Column, ...]:
    points = (Column(grid_name(*point), POINT) for point in grid_points(settings))
    return (*points, Column(FLOP_BEYOND, NUMBER))


def _grid_features(work: Work, settings: Settings) -> FloatArray:
    """Trilinear weights of log m, log n, log k, then log(FLOP / FLOP at the nearest point of the grid's box)."""
    products = product(work)
    shape = np.broadcast_shapes(*(np.shape(part) for part in products))
    weights = np.ones((*shape, 1))
    beyond = np.broadcast_to(np.log(products.batch), shape).copy()
    for axis, size in zip(AXES, (products.m, products.n, products.k), strict=True):
        knots = np.log(vector(settings, axis))
        place = np.broadcast_to(np.log(size), shape)
        beyond += place - np.clip(place, knots[0], knots[-1])
        one = hat_weights(place, knots)
        weights = (weights[..., :, None] * one[..., None, :]).reshape(*shape, -1)
    return np.concatenate([weights, beyond[..., None]], axis=-1)


GEMM_INTERPOLATION = FeatureMap(
    "gemm.interpolation",
    _grid_columns,
    _grid_features,
    link="log",
    doc="trilinear in log m, log n, log k of the logarithm of measured times (Oyama et al., SPRINT slides, 2016)",
    floor=physical_floor,
    stated={FLOP_BEYOND: 1.0},
)
LARGEST_GRID = math.prod((16, 16, 16))
"""More points than this make Φ of one call too large; a grid is thinned before it is stored."""
