"""Compute cases: what one sub-batch takes on one device, tabled by precision and sub-batch.

Backward runs in reverse order of the layers. A slot is a layer with parameters; its segment holds its own backward
time and that of the parameterless layers behind it, so that a slot's gradient is ready when its segment is done. What
stands before the first slot is the head: computed last, with no gradient of its own. Of equal segments one is timed
(:mod:`planner.workload.program`).

Of several sub-batches before an update, each but the first adds its gradients to those that are there: its backward
pass holds one more kernel a layer with parameters, ``accumulating`` (read, read, write).

A step of a framework takes ((Σ scale·GPU)^p + host^p)^(1/p) of all its kernels and all that the host starts: p = 1
adds, a large p takes the longer. The host runs ahead from stage to stage, so that kernels of a long backward pass hide
what it takes for the update too (:data:`TOGETHER`). Stages and layers share that in proportion to their GPU time. So
does a step of each stage of a pipeline.

What kernels take by themselves depends on neither overheads nor messages: it is kept for problems that differ in
those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from planner.costs.terms import evaluate
from planner.costs.work import transposition
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Entry
from planner.domain.configuration import Configurations
from planner.domain.framework import PYTORCH
from planner.domain.kernels import BACKWARD_DATA, FORWARD, MATRIX_KINDS, UPDATE, KernelCalls
from planner.domain.precision import precision_named
from planner.domain.split import SplitMemoryBytes
from planner.numbers import constant
from planner.sources.overheads import Overheads
from planner.sources.plan_points import plan_point_factors
from planner.sources.sources import Source, Sources
from planner.sources.usable import check_precision
from planner.steps.host_and_gpu import STAGES, TOGETHER, CallCounts, call_counts, together_s
from planner.steps.synchronous import ready_s
from planner.steps.tables import CaseTable
from planner.workload.composition import composed_calls
from planner.workload.fusion import fused_calls
from planner.workload.gradients import GradientSlots, gradient_slots
from planner.workload.lowering import lower
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from planner.workload.program import Program, program
from planner.workload.updates import transposes, updated_calls

__all__ = ["Compute", "ComputeTable", "call_work", "host_s", "memory_rules", "started", "term_of"]

GRAPH_S_PER_CALL = constant("overheads.graph_s_per_call")
"""Host time of a kernel call in a graph that was recorded once (docs/numbers.md)."""
LAUNCH_S = constant("overheads.launch_s")
"""Host time of a kernel beyond the first of an operation, on a GPU (docs/numbers.md)."""
KERNEL_S: Mapping[str, float] = {"graph": GRAPH_S_PER_CALL, "compiled": LAUNCH_S}
"""How kernels are launched without a framework's dispatch -> what one takes [s]: in a graph, or by compiled code."""

Counts = float | FloatArray


def term_of(stage: str) -> str:
    """Return the term that a stage is part of, or takes what it does of."""
    return {"accumulating": "backward", "recompute": "forward"}.get(stage, stage)


def _stages_of(direction: str) -> tuple[str, ...]:
    """Return the stages that hold calls of a direction."""
    return (direction,) if direction in (FORWARD, UPDATE) else ("backward", "accumulating")


def call_work(calls: KernelCalls, itemsize: int) -> dict[str, IntArray | FloatArray | float]:
    """Return the columns that a feature map takes: work and the bytes of an element, or where a table has the calls."""
    if calls.looked_up:
        return dict(calls.looked_up)
    return {**calls.work, **transposition(calls.kind, calls.direction), "itemsize": float(itemsize)}


def call_times_s(entry: Entry, calls: KernelCalls, itemsize: int) -> FloatArray:
    """Return GPU times [s] of calls times their count, shape (s, k)."""
    return np.atleast_2d(evaluate(entry, call_work(calls, itemsize))) * calls.count


def memory_rules(sources: Sources, precision: str, mode: str = "sync") -> MemoryRules:
    """Return what the memory of all plans of a problem is counted by.

    A scenario that lets fp32 plans hold larger sub-batches stores what grows with samples in as many fewer bytes: what
    if they computed in fp16. Weights and gradients stay.
    """
    settings, scenario = sources.problem.settings, sources.problem.scenario
    return MemoryRules.of(
        precision,
        settings.optimizer,
        settings.framework,
        settings.placed_by,
        device_kind=sources.accelerator.kind,
        mode=mode,
        convolution=sources.convolution_lowering(precision),
        shrunk=scenario.sub_batch_factor if precision == "fp32" else 1.0,
    )


def started(sources: Sources, overheads: Overheads, counts: CallCounts) -> tuple[Counts, Counts]:
    """Return how many operations take the learned host time, and what the host takes besides on a GPU [s].

    What was learned of a call is of an operation that starts one kernel; each further kernel takes a launch, and so
    do all of a compiled program. In a replayed graph they take next to nothing. A specified kernel's launch stands
    for an assumed host time.
    """
    calls, launch = counts.measured_calls if overheads.matched == "assumed" else counts.calls, _launch(sources)
    factor = sources.problem.scenario.host_factor * (sources.accelerator.kind == "gpu")
    if launch in KERNEL_S:
        return 0, KERNEL_S[launch] * factor * (calls + counts.launches)
    return calls, LAUNCH_S * factor * counts.launches


def host_s(sources: Sources, overheads: Overheads, counts: CallCounts, layers: Counts) -> Counts:
    """Return the framework's host time of passes over so many layers [s], of the shape of ``counts``."""
    calls, besides_s = started(sources, overheads, counts)
    per_layer = 0.0 if _launch(sources) in KERNEL_S else overheads.host_s_per_layer
    return overheads.host_s_per_call * calls + besides_s + per_layer * layers


def _launch(sources: Sources) -> str:
    return sources.problem.settings.framework.launch


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """What the kernels of a stage take by themselves, s sub-batches.

    Attributes
    ----------
    matrix_s, traffic_s : ndarray of float, shape (s, D)
        Kernels of MATRIX_KINDS and all others, by distinct segment.
    counts : CallCounts
    """

    matrix_s: FloatArray
    traffic_s: FloatArray
    counts: CallCounts


@dataclass(frozen=True, slots=True)
class KernelCosts:
    """What s sub-batches take whatever the overheads and messages: kernel times by stage, and memory by mode."""

    kernels: Mapping[str, KernelTimes]
    sync_bytes: FloatArray
    async_bytes: FloatArray


@dataclass(frozen=True, slots=True)
class ComputeTable:
    """Times of c compute cases of one precision.

    Attributes
    ----------
    forward_s, update_s, host_to_device_s : ndarray of float, shape (c,)
    backward_s : ndarray of float, shape (c, 2)
        A pass without and one with adding to gradients.
    ready_s : ndarray of float, shape (c, 2, J)
        When each slot's gradient is ready, from the start of either backward pass.
    memory_bytes, async_memory_bytes : ndarray of float, shape (c,)
        Of a synchronous and of an asynchronous plan.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    update_s: FloatArray
    host_to_device_s: FloatArray
    ready_s: FloatArray
    memory_bytes: FloatArray
    async_memory_bytes: FloatArray


class Compute:
    """The compute cases of one precision and mode.

    ``like``: of a problem that differs in overheads and collectives alone; what its kernels take is used again.
    ``is_checked``: the precision is known to be served.
    """

    def __init__(
        self,
        sources: Sources,
        precision: str,
        mode: str = "sync",
        like: Compute | None = None,
        *,
        is_checked: bool = False,
    ) -> None:
        if like is None and not is_checked:
            check_precision(sources, precision)
        self.sources = sources
        self.overheads = sources.overheads(precision, mode)
        self.beside = TOGETHER[mode]
        self.precision = precision_named(precision)
        self.network = sources.problem.network
        self.convolution: str = like.convolution if like else sources.convolution_lowering(precision)
        self.itemsize = self.precision.activation_bytes
        settings = sources.problem.settings
        self.framework, self.optimizer = settings.framework, settings.optimizer
        self.program: Program = program(self.network, input_gradient=settings.framework.input_gradient)
        self.slots: GradientSlots = gradient_slots(self.network)
        self.kernel_costs: dict[bytes, KernelCosts] = like.kernel_costs if like else {}

    @cached_property
    def cases(self) -> CaseTable[ComputeTable]:
        """A row a sub-batch that was asked for."""
        return CaseTable(self._table_of)

    @property
    def table(self) -> ComputeTable:
        """The cases that were asked for."""
        return self.cases.columns

    def lowered(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        """Return the kernel calls of sub-batches, shape (s,), but those that accumulation adds."""
        settings = self.sources.problem.settings
        calls = lower(
            self.network,
            sub_batch,
            convolution=self.convolution,
            optimizer=settings.optimizer,
            input_gradient=settings.framework.input_gradient,
        )
        return fused_calls(calls, self.program, settings.framework.fuses, self.itemsize)

    def calls_with_sources(self, sub_batch: IntArray) -> dict[str, list[tuple[KernelCalls, Source]]]:
        """Return the kernel calls of sub-batches, shape (s,), and what serves them, by stage.

        Calls of one kind are apart where some were measured as they are, or run in another precision.
        """
        by_stage: dict[str, list[tuple[KernelCalls, Source]]] = {stage: [] for stage in STAGES}
        for calls in self.lowered(sub_batch):
            for part, own_source, precision in self.sources.split(calls, sub_batch, self.precision.name):
                source = own_source or self.sources.kernel(part.kind, part.direction, precision)
                served = [*self._as_made(part, source, precision), *self._transposes(part, source, precision)]
                for stage in _stages_of(part.direction):
                    by_stage[stage] += served
        if self.accumulation_source is not None:
            by_stage["accumulating"].append((self._accumulation, self.accumulation_source))
        return by_stage

    def _as_made(self, calls: KernelCalls, source: Source, precision: str) -> Iterator[tuple[KernelCalls, Source]]:
        """Yield calls as the framework makes them, and what serves them: updates by layer, operation or list.

        Measured updates stay as they were timed; what is computed from primitives was timed as one kernel.
        """
        if calls.direction == UPDATE and not calls.looked_up:
            narrow = self.framework.state_type == "bf16"
            calls = updated_calls(calls, self.program, self.framework.update, self.optimizer, narrow_state=narrow)
        composed = composed_calls(calls, self.program, self.framework.composes) if self.framework.composes else None
        yield composed[0] if composed else calls, source
        if composed:
            yield composed[1], self.sources.kernel(composed[1].kind, calls.direction, precision)

    def _transposes(self, calls: KernelCalls, source: Source, precision: str) -> Iterator[tuple[KernelCalls, Source]]:
        """Yield the transposes around convolutions of matrix units, unless they were timed with them, and their source.

        PyTorch's were: tensors lie channel by channel where nothing else is asked for. For TF32 none are counted.
        """
        is_apart = calls.kind == "convolution" and not source.entry.library.startswith(PYTORCH.name)
        is_narrow = precision_named(precision).activation_bytes < precision_named("fp32").activation_bytes
        has_units = is_narrow and self.sources.accelerator.has_matrix_units(precision)
        if is_apart and self.framework.layout == "nchw" and has_units:
            moved = transposes(calls)
            if moved is not None:
                yield moved, self.sources.kernel(moved.kind, moved.direction, precision)

    @cached_property
    def accumulation_source(self) -> Source | None:
        """What serves adding to gradients: the kernel of sums, else that of updates, which does the like; or None.

        A specification goes behind both.
        """
        keys = (("add", BACKWARD_DATA), ("update", UPDATE))
        rest = self.sources.rest_precision(self.precision.name)
        sources = [source for key in keys if (source := self.sources.find_kernel(*key, rest))]
        return min(sources, key=lambda source: source.origin == "specified", default=None)

    def check_accumulation(self) -> None:
        """Raise CoverageError where nothing serves adding to gradients."""
        if self.accumulation_source is None:
            self.sources.kernel("add", BACKWARD_DATA, self.sources.rest_precision(self.precision.name))

    @cached_property
    def _accumulation(self) -> KernelCalls:
        """Sums of a new gradient and the one that is there: two are read, one is written."""
        rows = [
            (site.position, count, site.parameters) for site, count in self.program.site_counts() if site.parameters
        ]
        layer, count, elements = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        traffic_bytes = (
            3 * self.sources.problem.settings.framework.gradient_bytes(self.precision.name) * elements[None, :]
        )
        work = {"elements": elements[None, :], "traffic": np.zeros_like(traffic_bytes), "fixed_bytes": traffic_bytes}
        return KernelCalls("add", BACKWARD_DATA, layer, count, work)

    def memory(self, sub_batch: IntArray, mode: str) -> SplitMemoryBytes:
        """Return bytes on one device by kind, each of shape (s,)."""
        ledger = Memory(self.network, memory_rules(self.sources, self.precision.name, mode))
        return ledger.fullest(Configurations.having(sub_batch=sub_batch))

    def host_s(self, stage: str, counts: CallCounts) -> float:
        """Return the framework's host time of a stage [s]."""
        layers = self.slots.layer.size if stage == UPDATE else len(self.network.layers)
        return float(host_s(self.sources, self.overheads, counts, layers))

    def kernels_alone(self, sub_batch: IntArray) -> list[KernelTimes]:
        """Return what kernels of sub-batches, shape (s,), take by themselves, in the order of STAGES."""
        kernels = self._kernel_costs(sub_batch).kernels
        return [kernels[stage] for stage in STAGES]

    def alone(self, sub_batch: IntArray) -> FloatArray:
        """Return what makes the time and memory of sub-batches on one device, shape (s, 12).

        GPU time by stage and host time by stage [s], in the order of STAGES; memory [bytes], the share that replicas
        wait, and the exponent that composes the times and its negative: where no column is larger, no step is longer.
        """
        overheads, alone = self.overheads, self._kernel_costs(sub_batch)
        kernels = [alone.kernels[stage] for stage in STAGES]
        gpu_s = [overheads.kernel_scale * (overheads.matrix_scale * one.matrix_s + one.traffic_s) for one in kernels]
        host_s = [self.host_s(stage, one.counts) for stage, one in zip(STAGES, kernels, strict=True)]
        rest = (overheads.replica_wait, overheads.exponent, -overheads.exponent)
        return np.column_stack(
            [
                *(self.program.total(one) for one in gpu_s),
                np.broadcast_to(host_s, (sub_batch.size, len(STAGES))),
                alone.sync_bytes if self.beside is TOGETHER["sync"] else alone.async_bytes,
                np.broadcast_to(rest, (sub_batch.size, len(rest))),
            ]
        )

    def host_to_device_s(self, sub_batch: IntArray) -> FloatArray:
        """Return the copy of a sub-batch to the device [s], shape (s,); 0 where the input is synthetic or on a CPU."""
        source = self.sources.host_to_device
        if source is None:
            return np.zeros(sub_batch.size)
        work = {"bytes": sub_batch.astype(np.float64) * self.input_bytes}
        return self.sources.multiplied("host_to_device", evaluate(source.entry, work))

    @property
    def input_bytes(self) -> float:
        """Bytes of one sample on the device."""
        return float(prod(self.network.input_shape) * self.itemsize)

    def _table_of(self, sub_batch: IntArray) -> ComputeTable:
        alone = self._kernel_costs(sub_batch)
        points = self.sources.plan_points(self.precision.name)
        stages = {
            stage: seconds * plan_point_factors(points, stage, sub_batch)[:, None]
            for stage, seconds in self._stages_s(alone.kernels).items()
        }
        passes = (stages[stage][:, self.program.segment] for stage in ("backward", "accumulating"))
        ready = np.stack([ready_s(one) for one in passes], axis=1)
        return ComputeTable(
            self.program.total(stages["forward"]),
            # The sum in the order of the suffix sums: nothing is exposed by rounding.
            ready[:, :, 0],
            self.program.total(stages["update"]),
            self.host_to_device_s(sub_batch),
            np.ascontiguousarray(ready[:, :, 1:]),
            alone.sync_bytes,
            alone.async_bytes,
        )

    def _kernel_costs(self, sub_batch: IntArray) -> KernelCosts:
        key = sub_batch.tobytes()
        if key not in self.kernel_costs:
            sync, later = (self.memory(sub_batch, mode).total for mode in ("sync", "async"))
            self.kernel_costs[key] = KernelCosts(self._kernel_times(sub_batch), sync, later)
        return self.kernel_costs[key]

    def _kernel_times(self, sub_batch: IntArray) -> dict[str, KernelTimes]:
        """Return kernel times by stage; what stages share is timed once."""
        by_stage = self.calls_with_sources(sub_batch) if sub_batch.size else {stage: [] for stage in STAGES}
        shape = (2, sub_batch.size, self.program.repeats.size)
        gpu_s = {stage: np.zeros(shape) for stage in STAGES}
        in_backward = {id(calls) for calls, _ in by_stage["backward"]}
        for stage in STAGES:
            for calls, source in by_stage[stage]:
                if stage == "accumulating" and id(calls) in in_backward:
                    continue
                part = 0 if calls.kind in MATRIX_KINDS else 1
                times = np.broadcast_to(call_times_s(source.entry, calls, self.itemsize), (shape[1], calls.layer.size))
                gpu_s[stage][part] += self.program.by_segment(times, calls.layer)
        gpu_s["accumulating"] += gpu_s["backward"]
        return {stage: KernelTimes(gpu_s[stage][0], gpu_s[stage][1], call_counts(by_stage[stage])) for stage in STAGES}

    def _stages_s(self, kernels: Mapping[str, KernelTimes]) -> dict[str, FloatArray]:
        """Return the stages by distinct segment [s], shape (s, D) each."""
        overheads = self.overheads
        gpu_s = {
            stage: overheads.kernel_scale * (overheads.matrix_scale * one.matrix_s + one.traffic_s)
            for stage, one in kernels.items()
        }
        totals = np.column_stack([self.program.total(gpu_s[stage]) for stage in STAGES])
        host_s = np.array([self.host_s(stage, kernels[stage].counts) for stage in STAGES])
        wholes = together_s(totals, np.broadcast_to(host_s, totals.shape), self.beside, overheads.exponent)
        seconds = {}
        for stage, total, whole in zip(STAGES, totals.T, wholes.T, strict=True):
            factor = np.divide(whole, total, out=np.zeros_like(total), where=total > 0)
            even_share = np.where(total > 0, 0.0, whole / self.program.segment.size)
            by_segment = gpu_s[stage] * factor[:, None] + even_share[:, None]
            seconds[stage] = self.sources.multiplied(term_of(stage), by_segment, self.precision.name)
        return seconds
