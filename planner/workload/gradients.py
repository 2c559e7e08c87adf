"""Gradient slots: the pieces in which gradients become ready and can be sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.network import Network
from planner.workload.program import program

__all__ = ["GradientSlots", "gradient_buckets", "gradient_slots"]


@dataclass(frozen=True, slots=True)
class GradientSlots:
    """One slot for every layer with parameters, in forward order; gradients become ready in reverse.

    Attributes
    ----------
    layer : position in ``Network.layers``, (j,)
    elements : gradient elements, as many as the layer's parameters; 0 of frozen ones, (j,)
    """

    layer: IntArray
    elements: IntArray


def gradient_slots(network: Network) -> GradientSlots:
    """Return the gradient slots of a network; ParameterError where a layer cannot read what it is given."""
    of = program(network)
    trained = np.array([site.trained for site in of.sites], dtype=np.int64)
    return GradientSlots(of.slot, trained[of.site[of.slot]])


def gradient_buckets(gradient_bytes: FloatArray, first_bytes: float, bucket_bytes: float) -> IntArray:
    """Return the lowest slot of each bucket, shape (b,), ascending: the one whose gradient is its last to be ready.

    Buckets are filled in reverse order of the slots, the order in which gradients become ready. One is full, and the
    next begins, when it holds at least its size: static buckets of Li et al., "PyTorch Distributed: Experiences on
    Accelerating Data Parallel Training", VLDB 2020, which fill them tensor by tensor where this takes whole layers.

    ``gradient_bytes``: by slot, in forward order, (j,); ``first_bytes``, ``bucket_bytes``: size of the first bucket to
    be filled and of the others; 0 gives every slot its own.
    """
    lowest: list[int] = []
    filling, size = 0.0, first_bytes
    for slot in range(gradient_bytes.size - 1, -1, -1):
        filling += float(gradient_bytes[slot])
        if filling and (filling >= size or slot == 0):  # frozen layers have none
            lowest.append(slot)
            filling, size = 0.0, bucket_bytes
    return np.array(lowest[::-1], dtype=np.int64)
