"""Whether memory suffices: predicted against what happened."""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import BoolArray
from planner.domain.validation import MemoryCalls

__all__ = ["memory_calls"]


def memory_calls(
    called_out_of_memory: BoolArray, ran_out_of_memory: BoolArray, mask: BoolArray | None = None
) -> MemoryCalls:
    """Return the four counts over the masked rows, which must have both a prediction and an outcome.

    Parameters
    ----------
    called_out_of_memory, ran_out_of_memory : ndarray of bool, shape (n,)
    mask : ndarray of bool, shape (n,), optional
    """
    use = np.ones(called_out_of_memory.shape, dtype=np.bool_) if mask is None else mask
    cell = 2 * called_out_of_memory[use].astype(np.int64) + ran_out_of_memory[use]
    true_ok, false_ok, false_call, true_call = np.bincount(cell, minlength=4).tolist()
    return MemoryCalls(true_call, false_call, true_ok, false_ok)
