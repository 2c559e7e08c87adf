"""What splitting a network is limited by, and which kinds of parallelism are tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, distinct_values
from planner.domain.axes import AXES, Axis
from planner.domain.configuration import Configurations
from planner.domain.framework import Framework
from planner.domain.network import Network
from planner.domain.request import SpaceRequest
from planner.workload.blocks import block_starts
from planner.workload.lawful import LAYER_AXES
from planner.workload.memory import Memory

__all__ = [
    "DATA",
    "HYBRID",
    "MODEL",
    "PIPELINE",
    "SplitLimits",
    "kinds_of",
    "kinds_to_try",
    "layer_axis_asked",
]

DATA, MODEL, PIPELINE, HYBRID = "data", "model", "pipeline", "hybrid"


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
    memory_bytes : (configurations of one precision, rows; precision) -> ndarray of float, shape (n,), needed on the
        fullest device
    capacity_bytes : of a device
    ledger : precision -> Memory, what counts memory
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
