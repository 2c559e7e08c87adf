"""Words of axes that split a network, as positions, and the memory of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import AXES, SCHEDULES

__all__ = [
    "ACTIVATIONS_AWAY", "BEST_STAGES", "BUBBLES", "GRADIENTS_SHARDED", "MEMORY_KINDS", "OFFLOADS", "OPTIMIZER_SHARDED",
    "PER_STAGE", "RECOMPUTES", "SCHEDULES", "SCHEMES", "SHARD_GROUPS", "STAGES", "WEIGHTS_SHARDED", "SplitMemoryBytes",
]  # fmt: skip

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

    Attributes
    ----------
    stage : of which stage, from 0
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
    def joined(parts: Sequence[SplitMemoryBytes], at: IntArray) -> SplitMemoryBytes:
        """Return the plans of parts, one after the other, at positions."""
        names = [one.name for one in fields(SplitMemoryBytes)]
        return SplitMemoryBytes(**{name: np.concatenate([getattr(one, name) for one in parts])[at] for name in names})

    @property
    def allocated(self) -> FloatArray:
        """What tensors take."""
        state = self.weights + self.gradients + self.optimizer
        return state + self.activations + self.logits + self.gathered + self.messages + self.workspace

    @property
    def total(self) -> FloatArray:
        """Sum of all kinds on the device, shape (n,)."""
        return self.allocated + self.margin + self.framework
