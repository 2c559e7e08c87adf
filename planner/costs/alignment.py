"""Products whose rows do not begin at multiples of 16 bytes.

Matrix units of Hopper are fed by copies that want 16 bytes; where a contiguous side of an operand or of the result is
no multiple of them, the library takes a kernel of an older generation, and where it is one of 2 bytes alone, one that
loads number by number. A side along which nothing is contiguous, such as the samples, may be any.
"""

from __future__ import annotations

import numpy as np

from planner.costs.features import Settings, Work, column, vector
from planner.costs.work import is_product, product
from planner.domain.arrays import FloatArray
from planner.domain.cluster import Accelerator
from planner.domain.precision import precision_named
from planner.numbers import constants

__all__ = ["MISALIGNED", "WHOLE_BYTES", "aligned_bytes", "misaligned_settings", "slowdown", "times_as_long"]

MISALIGNED = "misaligned"
"""Setting of a product's entry: times as long that calls take whose sides are multiples of 4 or 8 bytes, and of 2."""
WHOLE_BYTES, LEAST_BYTES = 16, 4
ARCHITECTURES = ("Hopper", "Blackwell")
"""Measured on the first, taken to hold for what came later."""


def misaligned_settings(accelerator: Accelerator, precision: str) -> dict[str, tuple[float, float]]:
    """Return the setting of products in a precision; empty where any side will do, as for CUDA cores."""
    if accelerator.architecture not in ARCHITECTURES or not accelerator.has_matrix_units(precision):
        return {}
    if precision_named(precision).weight_bytes == 1:  # refused by libraries where they are not aligned
        return {}
    times = constants("products.misaligned")
    return {MISALIGNED: (times["by_4_bytes"], times["by_2_bytes"])}


def aligned_bytes(work: Work) -> FloatArray:
    """Return the bytes, 16 at most, of which all contiguous sides of a product are multiples, shape (...)."""
    m, n, k, _ = product(work)
    inner = np.where(column(work, "trans_a") > 0, k, m), np.where(column(work, "trans_b") > 0, n, k)
    whole = np.gcd.reduce([side.astype(np.int64) for side in np.broadcast_arrays(m, *inner)])
    return np.asarray(np.gcd((whole * column(work, "itemsize")).astype(np.int64), WHOLE_BYTES), dtype=np.float64)


def slowdown(work: Work, settings: Settings) -> FloatArray:
    """Return how many times as long as aligned ones products take, shape (...) or (): 1 where settings say nothing."""
    if MISALIGNED not in settings or not is_product(work):
        return np.ones(())
    return np.where(column(work, "batch") <= 1, times_as_long(aligned_bytes(work), settings), 1.0)


def times_as_long(aligned: FloatArray, settings: Settings) -> FloatArray:
    """Return how many times as long products take whose sides are multiples of so many bytes, shape (...)."""
    by_4, by_2 = vector(settings, MISALIGNED)
    return np.where(aligned < LEAST_BYTES, by_2, np.where(aligned < WHOLE_BYTES, by_4, 1.0))
