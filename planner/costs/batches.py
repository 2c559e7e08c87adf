"""Batches of several products in columns of their own: a library computes them with other kernels than one product."""

from __future__ import annotations

import numpy as np

from planner.costs.features import Work
from planner.costs.work import product
from planner.domain.arrays import FloatArray

__all__ = ["BATCHED_APART", "apart", "with_batched"]

BATCHED_APART = "batched_apart"
"""Setting of terms of products: not 0 where batches of several products have coefficients of their own."""


def with_batched(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of columns, and those of the same columns of batches."""
    return (*names, *(f"batched_{name}" for name in names))


def apart(features: FloatArray, work: Work) -> FloatArray:
    """Return features, shape (..., 2p): in the first p columns those of single products, then those of batches."""
    several = np.broadcast_to(product(work).batch > 1, features.shape[:-1])[..., None]
    return np.concatenate([features * ~several, features * several], axis=-1)
