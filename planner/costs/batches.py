"""Batches of several products in columns of their own: a library computes them with other kernels than one product."""

from __future__ import annotations

import numpy as np

from planner.costs.features import Column, Work
from planner.costs.work import product
from planner.domain.arrays import FloatArray

__all__ = ["BATCHED_APART", "apart", "with_batched"]

BATCHED_APART = "batched_apart"
"""Setting of terms of products: not 0 where batches of several products have coefficients of their own."""


def with_batched(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return columns, and the same columns of batches."""
    return (*columns, *(one._replace(name=f"batched_{one.name}") for one in columns))


def apart(features: FloatArray, work: Work) -> FloatArray:
    """Return features, shape (..., 2p): in the first p columns those of single products, then those of batches."""
    several = np.broadcast_to(product(work).batch > 1, features.shape[:-1])[..., None]
    return np.concatenate([features * ~several, features * several], axis=-1)
