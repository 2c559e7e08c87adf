"""Plans that split a network, as arrays, and the memory of one rank of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from planner.domain.axes import AXES, SCHEDULES
from planner.errors import ParameterError

__all__ = [
    "BEST_STAGES",
    "BUBBLES",
    "GRADIENTS_SHARDED",
    "MEMORY_KINDS",
    "OFFLOADS",
    "OPTIMIZER_SHARDED",
    "PER_STAGE",
    "RECOMPUTES",
    "SCHEDULES",
    "SHARD_GROUPS",
    "STAGES",
    "WEIGHTS_SHARDED",
    "SplitMemoryBytes",
    "SplitPlans",
    "schedule_run",
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


def schedule_run(schedule: IntArray, virtual_stages: IntArray) -> IntArray:
    """Return the schedule that runs, as a position in SCHEDULES: 1f1b with virtual stages is interleaved."""
    interleaves = (virtual_stages > 1) & (schedule == SCHEDULES.index("1f1b"))
    return np.where(interleaves, SCHEDULES.index("interleaved"), schedule)


@dataclass(frozen=True, slots=True)
class SplitPlans:
    """n plans: one value of each for all, or ndarrays of int that broadcast to shape (n,).

    Attributes
    ----------
    sub_batch, accumulation_steps : samples of a micro-batch, b; micro-batches of a step, m
    data_parallel, tensor_parallel, context_parallel, pipeline_parallel : degrees D, t, c, p
    expert_parallel : x, of the c·D ranks that hold the same shards of everything else
    virtual_stages : chunks of each stage, v
    sequence_parallel : 1 where tensor ranks share the positions between products; else 0
    sharding : ZeRO's 0 to 3
    recompute, shard_group, schedule, stages, offload : positions in RECOMPUTES, SHARD_GROUPS, SCHEDULES, STAGES and
        OFFLOADS
    recompute_every : k, layers of which one input is kept, with recompute full
    gpus_per_node : what ``node`` shards over
    """

    sub_batch: IntArray
    accumulation_steps: IntArray
    data_parallel: IntArray
    tensor_parallel: IntArray
    context_parallel: IntArray
    expert_parallel: IntArray
    pipeline_parallel: IntArray
    virtual_stages: IntArray
    sequence_parallel: IntArray
    recompute: IntArray
    recompute_every: IntArray
    sharding: IntArray
    shard_group: IntArray
    schedule: IntArray
    stages: IntArray
    offload: IntArray
    gpus_per_node: IntArray

    @staticmethod
    def of(**values: int | IntArray) -> SplitPlans:
        """Return plans with values of some fields; the others are 1, ``none``, ``all``, or 0 as they say nothing.

        The schedule is 1f1b, and a node has 8 GPUs.
        """
        if unknown := set(values) - set(_NAMES):
            raise ParameterError("field of plans", "one of " + ", ".join(_NAMES), ", ".join(sorted(unknown)))
        zero = dict.fromkeys(("sequence_parallel", "recompute", "sharding", "shard_group", "stages", "offload"), 0)
        full = dict.fromkeys(_NAMES, 1) | zero | {"schedule": SCHEDULES.index("1f1b"), "gpus_per_node": 8} | values
        return SplitPlans(**{name: np.asarray(value, dtype=np.int64) for name, value in full.items()})

    @property
    def shape(self) -> tuple[int, ...]:
        """What the fields broadcast to."""
        return np.broadcast_shapes(*{getattr(self, name).shape for name in _NAMES})

    @property
    def gpus(self) -> IntArray:
        """GPUs of each plan."""
        return self.data_parallel * self.tensor_parallel * self.context_parallel * self.pipeline_parallel

    @property
    def rows(self) -> SplitPlans:
        """The same with fields of shape (n,)."""
        shape = self.shape
        return SplitPlans(**{name: np.broadcast_to(getattr(self, name), shape).ravel() for name in _NAMES})

    @property
    def is_laid_out(self) -> BoolArray:
        """Whether what each stage holds, or computes again, follows from what fits, of the shape of the plans."""
        return np.asarray((self.stages == BEST_STAGES) | (self.recompute == PER_STAGE))

    @property
    def last_stage(self) -> IntArray:
        """The stage with the last layers: that with the first ones, where the order of stages is a V."""
        return np.where(self.schedule == SCHEDULES.index("zero-bubble-v"), 0, self.pipeline_parallel - 1)

    def row(self, at: int) -> SplitPlans:
        """Return one plan, each field of shape ()."""
        shape = self.shape
        return SplitPlans(**{name: np.broadcast_to(getattr(self, name), shape).flat[at] for name in _NAMES})

    def distinct(self, names: Iterable[str], *more: tuple[IntArray, int]) -> tuple[IntArray, IntArray]:
        """Return :func:`planner.domain.arrays.distinct_rows` of some fields, or properties, of plans of shape (n,).

        ``more``: further columns of whole numbers from 0, and what they stay below.
        """
        return distinct_rows(*(getattr(self, name) for name in names), *(column for column, _ in more))

    def of_bases(self, function: Callable[[SplitPlans], BoolArray | FloatArray | IntArray]) -> Any:
        """Return what a function makes of plans, (n,), which looks at no sub-batch and no accumulation."""
        return function(self)

    def with_bases(self, change: Callable[[SplitPlans], SplitPlans]) -> SplitPlans:
        """Return plans that differ in other fields than sub-batch and accumulation, in which no change depends on."""
        return change(self)

    def take(self, at: IntArray) -> SplitPlans:
        """Return some of plans whose fields have shape (n,)."""
        return SplitPlans(**{name: getattr(self, name)[at] for name in _NAMES})

    def but(self, **values: int | IntArray) -> SplitPlans:
        """Return plans that differ in some fields."""
        return replace(self, **{name: np.asarray(value, dtype=np.int64) for name, value in values.items()})


_NAMES = tuple(field.name for field in fields(SplitPlans))


MEMORY_KINDS = (
    "weights", "gradients", "optimizer", "activations", "workspace", "framework", "logits", "gathered", "messages",
    "margin", "host",
)  # fmt: skip
"""What memory is shown by: fields of SplitMemoryBytes; all but the host's add up to the total."""


@dataclass(frozen=True, slots=True)
class SplitMemoryBytes:
    """Bytes on the device with the fullest stage by what they are for; each ndarray of float, shape (n,).

    Attributes
    ----------
    weights, gradients, optimizer, activations, workspace, framework
    logits : logits and what the loss makes of them
    gathered : whole units that were gathered from shards
    messages : buffers that are sent and received
    margin : what the allocator loses in pieces, assumed
    host : in the host's memory, of each rank
    to_host, to_device : moved in a step, of each rank
    stage : ndarray of int
        Of which stage, from 0.
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
    host: FloatArray
    to_host: FloatArray
    to_device: FloatArray
    stage: IntArray

    @property
    def allocated(self) -> FloatArray:
        """What tensors take."""
        state = self.weights + self.gradients + self.optimizer
        return state + self.activations + self.logits + self.gathered + self.messages + self.workspace

    @property
    def total(self) -> FloatArray:
        """Sum of all kinds on the device, shape (n,)."""
        return self.allocated + self.margin + self.framework
