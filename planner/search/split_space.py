"""What splitting a network is limited by, and which kinds of parallelism are tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_values
from planner.domain.axes import AXES, Axis
from planner.domain.configuration import Configurations
from planner.domain.framework import Framework
from planner.domain.network import Network
from planner.domain.request import SpaceRequest
from planner.errors import Refusal, UsageError
from planner.workload.blocks import block_starts
from planner.workload.lawful import LAYER_AXES
from planner.workload.memory import Memory

__all__ = [
    "DATA",
    "HYBRID",
    "MODEL",
    "PIPELINE",
    "SplitLimits",
    "check_passes",
    "kinds_of",
    "kinds_to_try",
    "layer_axis_asked",
    "passes_within",
    "values_to_try",
]

DATA, MODEL, PIPELINE, HYBRID = "data", "model", "pipeline", "hybrid"
MOST_PASSES = 2**17
"""Sub-batches with their accumulation steps, of a data-parallel degree, up to which they are searched."""


def kinds_of(network: Network, framework: Framework) -> tuple[str, ...]:
    """Return the kinds of parallelism that a network and a framework allow."""
    has_blocks = bool(block_starts(network))
    model = has_blocks and any(axis.ranks in framework.can for axis in AXES if axis.is_shard)
    pipeline = "pipeline" in framework.can and (has_blocks or framework.stages != "blocks")
    allowed = ((DATA, True), (MODEL, model), (PIPELINE, pipeline), (HYBRID, model and pipeline))
    return tuple(kind for kind, is_allowed in allowed if is_allowed)


def kinds_to_try(request: SpaceRequest, network: Network, framework: Framework) -> tuple[str, ...]:
    """Return the kinds asked for, else all that are allowed.

    Of networks whose stages the user has to write, pipelines are tried where their axes are asked for alone.
    """
    by_itself = bool(block_starts(network)) or framework.stages == "layers"
    allowed = kinds_of(network, framework) if by_itself or layer_axis_asked(request) else (DATA,)
    return request.parallelism or allowed


def layer_axis_asked(request: SpaceRequest) -> Axis | None:
    """Return the first axis of layer pipelines of which more than the default is asked for."""
    axes = (axis for axis in AXES if axis.name in LAYER_AXES)
    return next((axis for axis in axes if {*(request[axis.name] or ())} - {axis.default}), None)


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """What splitting a network is limited by.

    Attributes
    ----------
    network : Network
    framework : Framework
    memory_bytes : (configurations of one precision, rows; precision) -> ndarray of float, shape (n,)
        Needed on the fullest device.
    capacity_bytes : float
        Of a device.
    ledger : precision -> Memory
        What counts memory.
    """

    network: Network
    framework: Framework
    memory_bytes: Callable[[Configurations, str], FloatArray]
    capacity_bytes: float
    ledger: Callable[[str], Memory]

    def needed_bytes(self, rows: Configurations) -> FloatArray:
        """Return the memory of the fullest device of each, shape (n,)."""
        codes = distinct_values(rows.bases.precision).tolist()
        if len(codes) == 1:
            return self.memory_bytes(rows, rows.precisions[codes[0]])
        needed = np.zeros(rows.size)
        for code in codes:
            where = np.flatnonzero(rows.precision == code)
            needed[where] = self.memory_bytes(rows.take(where), rows.precisions[code])
        return needed

    def fits(self, rows: Configurations) -> BoolArray:
        """Return whether each fits in memory, shape (n,)."""
        return self.needed_bytes(rows) <= self.capacity_bytes


def values_to_try(axis: Axis, asked: tuple[Any, ...] | None, most: Mapping[str, int]) -> IntArray:
    """Return the values of an axis, ascending, as numbers or codes: those asked for, of the cluster, or the default."""
    if asked is None and axis.of_cluster:
        return np.arange(1 if axis.of_cluster == "any" else most[axis.name], most[axis.name] + 1)
    values = (axis.default,) if asked is None else asked
    return distinct_values(np.array([axis.code(one) for one in values], dtype=np.int64))


def passes_within(
    window: tuple[int, int], sub_batches: IntArray | None = None, steps: IntArray | None = None, copies: int = 1
) -> tuple[IntArray, IntArray]:
    """Return the sub-batches and accumulation steps whose product lies in a window, by sub-batch, then steps.

    Parameters
    ----------
    window : tuple of int
        Least and most samples between updates.
    sub_batches, steps : ndarray of int, ascending, or None
        Those to try; None: any.
    copies : int
        That take the samples together.

    Raises
    ------
    UsageError
        There are more than MOST_PASSES.
    """
    window = least, most = -(-max(window[0], 1) // copies), window[1] // copies
    root = math.isqrt(max(most, 0))
    if sub_batches is not None:
        return _factors(window, sub_batches, steps)
    if steps is not None:
        m, n = _factors(window, steps, None)
    else:  # of two factors one is at most the root: neither is listed up to the window
        small, large = _factors((least, most), np.arange(1, root + 1), None)
        above = large > root
        n, m = np.concatenate([small, large[above]]), np.concatenate([large, small[above]])
    order = np.lexsort((m, n))
    return n[order], m[order]


def check_passes(number: int, most: int = MOST_PASSES) -> None:
    """Raise UsageError where a window holds more sub-batches with their accumulation steps than are searched."""
    if number > most:
        rule = f"the window must hold at most {most:,} sub-batches with their accumulation steps"
        remedy = "; narrow --tolerance, or give --sub-batch and --accumulation"
        raise UsageError(Refusal("space_size", rule, "the window", f"{number:,}", remedy))


def _factors(window: tuple[int, int], first: IntArray, second: IntArray | None) -> tuple[IntArray, IntArray]:
    """Return first and second factors, ascending, whose product lies in a window; ``second`` None: any."""
    low, high = -(-max(window[0], 1) // first), window[1] // first
    if second is not None:
        low, high = np.searchsorted(second, low), np.searchsorted(second, high, side="right") - 1
    number = np.maximum(high - low + 1, 0)
    check_passes(int(number.sum()))
    owner = np.repeat(np.arange(first.size), number)
    other = low[owner] + np.arange(owner.size) - np.repeat(np.cumsum(number) - number, number)
    return first[owner], other if second is None else second[other]
