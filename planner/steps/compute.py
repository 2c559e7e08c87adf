"""Compute cases: what one sub-batch takes on one device, tabled by precision and sub-batch.

Backward runs in reverse order of the layers. A slot is a layer with parameters; its segment holds its own backward
time and that of the parameterless layers behind it, so that a slot's gradient is ready when its segment is done. What
stands before the first slot is the head: computed last, with no gradient of its own.

A stage (forward, backward, update) of a framework takes ((scale·ΣGPU)^p + host^p)^(1/p): p = 1 adds, a large p takes
the longer. The stage is spread over its layers in proportion to their GPU time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import prod

import numpy as np

from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Entry
from planner.domain.kernels import FORWARD, UPDATE, KernelCalls, MemoryBytes
from planner.domain.precision import precision_named
from planner.steps.sources import Overheads, Source, Sources
from planner.steps.synchronous import ready_s
from planner.steps.tables import Index
from planner.workload.gradients import gradient_slots
from planner.workload.lowering import lower
from planner.workload.memory import memory_bytes

__all__ = ["STAGES", "Compute", "ComputeTable", "call_times_s", "call_work", "composed_s", "stage_of"]

STAGES = ("forward", "backward", "update")


def stage_of(direction: str) -> str:
    """Return the stage that a kernel direction belongs to."""
    return direction if direction in (FORWARD, UPDATE) else "backward"


def call_work(calls: KernelCalls, itemsize: int) -> dict[str, IntArray | float]:
    """Return the work columns that a feature map takes: those of the calls, and the bytes of an element."""
    return {**calls.work, "itemsize": float(itemsize)}


def call_times_s(entry: Entry, calls: KernelCalls, itemsize: int) -> FloatArray:
    """Return GPU times [s] of calls times their count, shape (s, k)."""
    return np.atleast_2d(evaluate(entry, call_work(calls, itemsize))) * calls.count


def composed_s(gpu_s: FloatArray, host_s: float, overheads: Overheads) -> FloatArray:
    """Return ((scale·GPU)^p + host^p)^(1/p) [s], shape of ``gpu_s``; see :class:`Overheads`."""
    scaled = overheads.kernel_scale * gpu_s
    if overheads.exponent == 1.0:
        return scaled + host_s
    longer = np.maximum(scaled, host_s)
    parts = np.divide(np.minimum(scaled, host_s), longer, out=np.zeros_like(longer), where=longer > 0)
    return longer * (1 + parts**overheads.exponent) ** (1 / overheads.exponent)


@dataclass(frozen=True, slots=True)
class ComputeTable:
    """Times of c compute cases of one precision, in ascending order of sub-batch.

    Attributes
    ----------
    sub_batch : ndarray of int, shape (c,)
    forward_s, backward_s, update_s, host_to_device_s : ndarray of float, shape (c,)
    ready_s : ndarray of float, shape (c, J)
        When each slot's gradient is ready, from the start of the backward pass.
    memory_bytes, async_memory_bytes : ndarray of float, shape (c,)
        Of a synchronous and of an asynchronous plan.
    """

    sub_batch: IntArray
    forward_s: FloatArray
    backward_s: FloatArray
    update_s: FloatArray
    host_to_device_s: FloatArray
    ready_s: FloatArray
    memory_bytes: FloatArray
    async_memory_bytes: FloatArray

    def joined(self, other: ComputeTable) -> ComputeTable:
        """Return the cases of both, sorted."""
        order = np.argsort(np.concatenate([self.sub_batch, other.sub_batch]))
        return ComputeTable(
            **{f.name: np.concatenate([getattr(self, f.name), getattr(other, f.name)])[order] for f in fields(self)}
        )


class Compute:
    """The compute cases of one precision; the table grows as sub-batches are asked for."""

    def __init__(self, sources: Sources, precision: str) -> None:
        sources.check_precision(precision)
        self.sources = sources
        self.precision = precision_named(precision)
        self.network = sources.problem.network
        self.convolution = sources.convolution_lowering(precision)
        self.itemsize = self.precision.activation_bytes
        self.slots = gradient_slots(self.network)
        self.table = self._priced(np.zeros(0, dtype=np.int64))
        self.index = Index(self.table.sub_batch)
        self._cases: dict[int, tuple[KernelCalls, ...]] = {}

    def lowered(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        """Return the kernel calls of sub-batches, shape (s,)."""
        optimizer = self.sources.problem.settings.optimizer
        return lower(self.network, sub_batch, convolution=self.convolution, optimizer=optimizer)

    def case(self, sub_batch: int) -> tuple[KernelCalls, ...]:
        """Return the kernel calls of one sub-batch, kept for plans that share it."""
        if sub_batch not in self._cases:
            self._cases[sub_batch] = self.lowered(np.array([sub_batch], dtype=np.int64))
        return self._cases[sub_batch]

    def source(self, calls: KernelCalls) -> Source:
        """Return what serves the calls."""
        return self.sources.kernel(calls.kind, calls.direction, self.precision.name)

    def ensure(self, sub_batch: IntArray) -> bool:
        """Add the cases of distinct sub-batches that are missing; tell whether there were any."""
        missing = np.setdiff1d(sub_batch, self.table.sub_batch)
        if missing.size:
            self.table = self.table.joined(self._priced(missing))
            self.index = Index(self.table.sub_batch)
        return bool(missing.size)

    def memory(self, sub_batch: IntArray, mode: str) -> MemoryBytes:
        """Return bytes on one device by kind, each of shape (s,)."""
        return memory_bytes(
            self.network,
            sub_batch,
            self.precision.name,
            self.sources.problem.settings.optimizer,
            self.sources.accelerator.kind,
            convolution=self.convolution,
            mode=mode,
        )

    @cached_property
    def segment(self) -> IntArray:
        """Segment of each layer, shape (L,): position of its slot plus 1; 0 is the head."""
        return np.searchsorted(self.slots.layer, np.arange(len(self.network.layers)), side="right")

    def hosted_calls(self, calls: KernelCalls) -> int:
        """Return how many calls take host time of their own: a specified kernel's launch stands for an assumed one."""
        includes_launch = self.sources.overheads.matched == "assumed" and self.source(calls).origin == "specified"
        return 0 if includes_launch else int(calls.count.sum())

    def host_s(self, stage: str, calls: int) -> float:
        """Return the framework's host time [s] of a stage of so many kernel calls."""
        overheads = self.sources.overheads
        layers = self.slots.layer.size if stage == UPDATE else len(self.network.layers)
        return overheads.host_s_per_call * calls + overheads.host_s_per_layer * layers

    def host_to_device_s(self, sub_batch: IntArray) -> FloatArray:
        """Return the copy of a sub-batch to the device [s], shape (s,); 0 where the input is synthetic or on a CPU."""
        source = self.sources.host_to_device
        if source is None:
            return np.zeros(sub_batch.size)
        copied = {"bytes": sub_batch.astype(np.float64) * self.input_bytes}
        return self.sources.multiplied("host_to_device", evaluate(source.entry, copied))

    @property
    def input_bytes(self) -> float:
        """Bytes of one sample on the device."""
        return float(prod(self.network.input_shape) * self.itemsize)

    def _priced(self, sub_batch: IntArray) -> ComputeTable:
        segments = self.slots.layer.size + 1
        gpu_s = {stage: np.zeros((sub_batch.size, segments)) for stage in STAGES}
        calls_of = dict.fromkeys(STAGES, 0)
        for calls in self.lowered(sub_batch) if sub_batch.size else ():
            stage = stage_of(calls.direction)
            owner = np.zeros((calls.layer.size, segments))
            owner[np.arange(calls.layer.size), self.segment[calls.layer]] = 1.0
            gpu_s[stage] += call_times_s(self.source(calls).entry, calls, self.itemsize) @ owner
            calls_of[stage] += self.hosted_calls(calls)
        staged = {stage: self._composed(stage, gpu_s[stage], calls_of[stage]) for stage in STAGES}
        totals = {stage: by_segment.sum(axis=1) for stage, by_segment in staged.items()}
        ready = ready_s(staged["backward"])
        return ComputeTable(
            sub_batch,
            totals["forward"],
            # The sum in the order of the suffix sums: nothing is exposed by rounding.
            ready[:, 0],
            totals["update"],
            self.host_to_device_s(sub_batch),
            np.ascontiguousarray(ready[:, 1:]),
            self.memory(sub_batch, "sync").total,
            self.memory(sub_batch, "async").total,
        )

    def _composed(self, stage: str, gpu_s: FloatArray, calls: int) -> FloatArray:
        """Return the stage by segment [s], shape (s, J + 1), from GPU times by segment."""
        total = gpu_s.sum(axis=1)
        whole = composed_s(total, self.host_s(stage, calls), self.sources.overheads)
        factor = np.divide(whole, total, out=np.zeros_like(total), where=total > 0)
        spread = np.where(total > 0, 0.0, whole / gpu_s.shape[1])
        return self.sources.multiplied(stage, gpu_s * factor[:, None] + spread[:, None], self.precision.name)
