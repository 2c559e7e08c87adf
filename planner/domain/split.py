"""Words of axes that split a network, as positions, and the memory of one rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import AXES, SCHEDULES

_WORDS = {axis.name: axis.words for axis in AXES}
RECOMPUTES = _WORDS["recompute"]
"""What the backward pass computes again: nothing, attention weights, whole layers, or on each stage the least of these
that fits."""
PER_STAGE = RECOMPUTES.index("per-stage")
STAGES = _WORDS["stages"]
"""How layers are dealt out to stages: evenly, or so that the slowest is fastest."""
BEST_STAGES = STAGES.index("best")
SHARD_GROUPS = _WORDS["shard_group"]
"""Which replicas share shards: all of them, or those of one node."""
BUBBLES = tuple(SCHEDULES.index(name) for name in ("gpipe", "1f1b", "interleaved"))
"""Schedules, as positions, whose last stage waits for the first micro-batch and does nothing else meanwhile."""
OPTIMIZER_SHARDED, GRADIENTS_SHARDED, WEIGHTS_SHARDED = 1, 2, 3
"""What replicas share, of ``sharding``: each shares what those before it do."""
OFFLOADS = _WORDS["offload"]
"""What lies in the host's memory."""
ACTIVATIONS_AWAY = [OFFLOADS.index(name) for name in ("activations", "paged-activations")]


SCHEMES = ("samples", "filters", "inputs", "channels", "space", "whole", "rounds")
"""How the devices of a group share a layer of a network without blocks (:mod:`planner.workload.schemes`)."""
MEMORY_KINDS = (
    "weights", "gradients", "optimizer", "activations", "workspace", "framework", "logits", "gathered", "messages",
    "margin", "trials", "host",
)  # fmt: skip
"""What memory is shown by: fields of SplitMemoryBytes; all but trials and the host's add up to the total."""


@dataclass(frozen=True, slots=True)
class SplitMemoryBytes:
    """Bytes on the device with the fullest stage by what they are for; each ndarray of float, shape (n,).

    ``stage``: of which stage, from 0.
    """

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    activations: FloatArray
    workspace: FloatArray
    framework: FloatArray
    logits: FloatArray
    gathered: FloatArray
    messages: FloatArray
    margin: FloatArray
    trials: FloatArray
    host: FloatArray
    to_host: FloatArray
    to_device: FloatArray
    stage: IntArray

    @staticmethod
    def of(make: Callable[..., Any], *parts: SplitMemoryBytes) -> SplitMemoryBytes:
        """Return what a function makes of the same column of each part."""
        names = [one.name for one in fields(SplitMemoryBytes)]
        return SplitMemoryBytes(**{name: make(*(getattr(one, name) for one in parts)) for name in names})

    @staticmethod
    def joined(parts: Sequence[SplitMemoryBytes], at: IntArray) -> SplitMemoryBytes:
        """Return the plans of parts, one after the other, at positions."""
        return SplitMemoryBytes.of(lambda *columns: np.concatenate(columns)[at], *parts)

    @property
    def allocated(self) -> FloatArray:
        """What tensors take."""
        state = self.weights + self.gradients + self.optimizer
        return state + self.activations + self.logits + self.gathered + self.messages + self.workspace

    @property
    def total(self) -> FloatArray:
        """Sum of all kinds on the device, shape (n,)."""
        return self.allocated + self.margin + self.framework


class StageLayers(NamedTuple):
    """The layers, or units, of f stages, each of shape (f,).

    From ``first`` up to ``end``, of which the first ones, ``again`` in number, are computed again.
    """

    first: IntArray
    end: IntArray
    again: IntArray


def stage_places(number: int, pipeline: IntArray, deals: str = "blocks") -> tuple[IntArray, IntArray, IntArray]:
    """Return the places of layers on stages that are dealt out evenly, and those left free on the first and the last.

    ``deals``: one of :data:`planner.domain.framework.DEALS`.
    """
    if deals == "ends":
        free = np.where(pipeline > 0, 1, 0)
        return number + 2 * free, free, free
    each = -(-number // pipeline)
    short = each * pipeline - number
    free = np.where((deals == "equal") & (short <= 2 * each), short, 0)
    return number + free, free // 2, free - free // 2


def even_layers(
    number: int, pipeline: IntArray, stage: IntArray, deals: str = "blocks", last: IntArray | None = None
) -> StageLayers:
    """Return the layers of stages that are dealt out evenly: the first stages have one more. All may be made again.

    ``deals``: as of :data:`planner.domain.framework.DEALS`; ``last``: the stage with the last layers.
    """
    total, at_first, at_last = stage_places(number, pipeline, deals)
    each, more = total // pipeline, total % pipeline
    last = pipeline - 1 if last is None else last

    def ahead(of: IntArray) -> IntArray:
        return np.asarray(of * each + np.minimum(of, more) - at_first * (of > 0) - at_last * (of > last))

    first, end = ahead(np.asarray(stage)), ahead(np.asarray(stage) + 1)
    return StageLayers(first, end, end - first)
