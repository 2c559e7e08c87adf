"""Compute cases: what one micro-batch takes of each unit of the network, on one of its ranks.

A unit is what no pipeline divides: what stands before the first block, each block, and what stands behind the last one;
of a network without blocks a layer with parameters and those behind it. Units of equal structure are one. A rank
computes its shard (:mod:`planner.workload.shards`); with sequence parallelism what a shard leaves whole between the
products, such as normalisation, dropout and sums, is shared by positions.

Backward runs in reverse order of the layers. A slot is a layer with parameters; its segment holds its own backward time
and that of the parameterless layers behind it, so that a slot's gradient is ready when its segment is done. What stands
before the first slot is the head: computed last, with no gradient of its own (:mod:`planner.workload.program`).

Of several sub-batches before an update, each but the first adds its gradients to those that are there: its backward
pass holds one more kernel a layer with parameters, ``accumulating`` (read, read, write).

Whole layers are computed again by their forward pass, attention weights (``selective``) by that of attention where it
keeps them: fused attention keeps none.

What kernels take by themselves depends on neither overheads nor messages: it is kept for problems that differ in
those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from planner.costs.terms import evaluate
from planner.costs.work import transposition
from planner.domain.arrays import LARGEST_COUNT, BoolArray, FloatArray, IntArray, distinct_rows
from planner.domain.calibration import Entry
from planner.domain.framework import PYTORCH
from planner.domain.kernels import (
    BACKWARD_DATA,
    BACKWARD_WEIGHT,
    CLASSES,
    FORWARD,
    MATRIX_KINDS,
    UPDATE,
    KernelCalls,
    class_of,
)
from planner.domain.messages import INPUT_GRADIENT, WEIGHT_GRADIENT
from planner.domain.network import Network, layer_shapes
from planner.domain.precision import precision_named
from planner.numbers import constant
from planner.sources.overheads import Overheads
from planner.sources.source import Source
from planner.sources.sources import Sources, check_precision
from planner.steps.host_and_gpu import STAGES, CallCounts
from planner.steps.tables import CaseTable
from planner.workload.calls import casts, lower, transposes, updated_calls
from planner.workload.fusion import composed_calls, fused_calls
from planner.workload.memory_rules import MemoryRules
from planner.workload.program import GradientSlots, Program, gradient_slots, program
from planner.workload.shards import columns_of, context_shard, expert_shard, tensor_shard, whole_parameters
from planner.workload.split_messages import ATTENTION, FEED_FORWARD
from planner.workload.units import Units, repeats, units_of

GRAPH_S_PER_CALL = constant("overheads.graph_s_per_call")
"""Host time of a kernel call in a graph that was recorded once (docs/numbers.md)."""
LAUNCH_S = constant("overheads.launch_s")
"""Host time of a kernel beyond the first of an operation, on a GPU (docs/numbers.md)."""
KERNEL_S: Mapping[str, float] = {"graph": GRAPH_S_PER_CALL, "compiled": LAUNCH_S}
"""How kernels are launched without a framework's dispatch -> what one takes [s]: in a graph, or by compiled code."""

MANY_CALLS = 1000
"""Of more calls equal ones are evaluated once."""
Counts = float | FloatArray


def scaled(seconds: FloatArray, overheads: Overheads) -> FloatArray:
    """Return times by class of kernels, shape (..., len(CLASSES), k), scaled and added up, shape (..., k).

    Class by class, as a product of matrices would round otherwise with other shapes.
    """
    convolution, product, traffic = overheads.scales.tolist()
    return np.asarray(convolution * seconds[..., 0, :] + product * seconds[..., 1, :] + traffic * seconds[..., 2, :])


def term_of(stage: str) -> str:
    """Return the term that a stage is part of, or takes what it does of."""
    return {"accumulating": "backward", "recompute": "forward"}.get(stage, stage)


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
    rules = MemoryRules.of(
        precision,
        settings.optimizer,
        settings.framework,
        settings.placed_by,
        device_kind=sources.accelerator.kind,
        mode=mode,
        convolution=sources.convolution_lowering(precision),
        shrunk=scenario.sub_batch_factor if precision == "fp32" else 1.0,
    )
    return replace(rules, device_bytes=sources.accelerator.memory_bytes)


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


_GRADIENT_OF = {BACKWARD_WEIGHT: WEIGHT_GRADIENT, BACKWARD_DATA: INPUT_GRADIENT}
PASSES = ("forward", "attention", "backward", "accumulating", "update", "core", "core_backward", "weights")
"""Passes over a unit, and parts of them: ``attention`` is the forward pass of what selective recompute repeats,
``core`` and ``core_backward`` are those of all attention, ``weights`` is gradients of weights in the backward pass."""


_Served = Mapping[str, list[tuple[KernelCalls, Source]]]
"""Stage -> its calls and what serves them."""
BACKWARD = ("backward", "accumulating")
"""Passes whose gradients become ready slot by slot."""
HEAD = "head"
PARTS = (ATTENTION, FEED_FORWARD, HEAD)
BESIDE = tuple((under, part) for under in (WEIGHT_GRADIENT, INPUT_GRADIENT) for part in PARTS)
"""Gradients and parts of a layer whose products messages may run beside: behind what is gathered, or summed."""


@dataclass(frozen=True, slots=True)
class UnitTable:
    """What c cases take by distinct unit, without what a framework adds.

    Attributes
    ----------
    kernel_s : ndarray of float, shape (c, len(PASSES), len(CLASSES), U); on the device, by class of kernels
    calls, measured_calls, launches : ndarray of float, shape (c, len(PASSES), U)
        See :class:`planner.steps.host_and_gpu.CallCounts`.
    layers : ndarray of float, shape (c, len(PASSES), U); that host time counts
    products_s : ndarray of float, shape (c, len(BESIDE), U); products of the backward pass of what is split by columns
    segment_s : ndarray of float, shape (c, len(BACKWARD), len(CLASSES), at least D)
        Of a backward pass what each segment takes, the head first, by class of kernels.
    """

    kernel_s: FloatArray
    calls: FloatArray
    measured_calls: FloatArray
    launches: FloatArray
    layers: FloatArray
    products_s: FloatArray
    segment_s: FloatArray

    def repeat(self, name: str, other: str) -> None:
        """Put the kernels of one pass into another."""
        for column in (self.kernel_s, self.calls, self.measured_calls, self.launches):
            column[:, PASSES.index(other)] = column[:, PASSES.index(name)]
        self.segment_s[:, BACKWARD.index(other)] = self.segment_s[:, BACKWARD.index(name)]

    @property
    def counts(self) -> CallCounts:
        """What the host has to start, same shape."""
        return CallCounts(self.calls, self.measured_calls, self.launches)


class RankCompute:
    """What one rank computes in one precision: the network, or its shard of it.

    ``shared``: layers whose work is divided by positions among so many ``ranks``.

    ``whole``: ndarray of float, shape (U,); parameters of one unit that every tensor rank has whole.
    """

    def __init__(self, sources: Sources, precision: str, shared: BoolArray, ranks: int) -> None:
        self.sources, self._shared, self._ranks = sources, shared, ranks
        self.precision = precision_named(precision)
        self.network = sources.problem.network
        self.convolution: str = sources.convolution_lowering(precision)
        self.itemsize = self.precision.activation_bytes
        settings = sources.problem.settings
        self.framework, self.optimizer = settings.framework, settings.optimizer
        self.program: Program = program(self.network, input_gradient=settings.framework.input_gradient)
        self.slots: GradientSlots = gradient_slots(self.network)
        self.units: Units
        self.whole: FloatArray

    def lowered(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        """Return the kernel calls of sub-batches, (s,), but those of accumulation; shared layers with their share."""
        settings = self.sources.problem.settings
        calls = lower(
            self.network,
            sub_batch,
            convolution=self.convolution,
            optimizer=settings.optimizer,
            input_gradient=settings.framework.input_gradient,
        )
        fused = fused_calls(calls, self.program, settings.framework.fuses, self.itemsize)
        return tuple(self._divided(one) for one in fused) if self._ranks > 1 else fused

    def calls_with_sources(self, sub_batch: IntArray) -> dict[str, list[tuple[KernelCalls, Source]]]:
        """Return the kernel calls of sub-batches, shape (s,), and what serves them, by stage.

        Calls of one kind are apart where some were measured as they are, or run in another precision.
        """
        by_stage: dict[str, list[tuple[KernelCalls, Source]]] = {stage: [] for stage in STAGES}
        for calls in self.lowered(sub_batch):
            for part, own_source, precision in self.sources.split(calls, sub_batch, self.precision.name):
                source = own_source or self.sources.kernel(part.kind, part.direction, precision)
                served = [*self._as_made(part, source, precision), *self._transposes(part, source, precision)]
                served += self._casts(part, precision)
                for stage in (part.direction,) if part.direction in (FORWARD, UPDATE) else BACKWARD:
                    by_stage[stage] += served
        if self.accumulation_source is not None:
            by_stage["accumulating"].append((self._accumulation, self.accumulation_source))
        return by_stage

    def _as_made(self, calls: KernelCalls, source: Source, precision: str) -> Iterator[tuple[KernelCalls, Source]]:
        """Yield calls as the framework makes them, and what serves them; measured updates stay as they were timed."""
        if calls.direction == UPDATE and not calls.looked_up:
            narrow = self.framework.state_type == "bf16"
            calls = updated_calls(calls, self.program, self.framework.update, self.optimizer, narrow_state=narrow)
        made = self.framework
        composed = composed_calls(calls, self.program, made.composes, made.launch) if made.composes else None
        yield composed[0] if composed else calls, source
        if composed:
            yield composed[1], self.sources.kernel(composed[1].kind, calls.direction, precision)

    def _transposes(self, calls: KernelCalls, source: Source, precision: str) -> Iterator[tuple[KernelCalls, Source]]:
        """Yield transposes around convolutions of matrix units that were not timed with them, as PyTorch's were."""
        # PyTorch's tensors lie channel by channel where nothing else is asked for. For TF32 none are counted.
        is_apart = calls.kind == "convolution" and not source.entry.library.startswith(PYTORCH.name)
        is_narrow = precision_named(precision).activation_bytes < precision_named("fp32").activation_bytes
        has_units = is_narrow and self.sources.accelerator.has_matrix_units(precision)
        if is_apart and self.framework.layout == "nchw" and has_units:
            moved = transposes(calls)
            if moved is not None:
                yield moved, self.sources.kernel(moved.kind, moved.direction, precision)

    def _casts(self, calls: KernelCalls, precision: str) -> Iterator[tuple[KernelCalls, Source]]:
        """Yield the casts of what products of a GPU read in 8 bits, and their source."""
        rest = self.sources.rest_precision(precision)
        if rest != precision and self.sources.accelerator.kind == "gpu":
            moved = casts(calls, precision)
            if moved is not None:
                yield moved, self.sources.kernel(moved.kind, moved.direction, rest)

    @cached_property
    def accumulation_source(self) -> Source | None:
        """What serves adding to gradients: the kernel of sums, else that of updates, which does the like; or None.

        A specification goes behind both.
        """
        keys = (("add", BACKWARD_DATA), ("update", UPDATE))
        rest = self.sources.rest_precision(self.precision.name)
        sources = [source for key in keys if (source := self.sources.find_kernel(*key, rest))]
        return min(sources, key=lambda source: source.origin == "specified", default=None)

    @cached_property
    def _accumulation(self) -> KernelCalls:
        """Sums of a new gradient and the one that is there: two are read, one is written."""
        rows = [(site.position, count, site.trained) for site, count in self.program.site_counts() if site.trained]
        layer, count, elements = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        traffic_bytes = (
            3 * self.sources.problem.settings.framework.gradient_bytes(self.precision.name) * elements[None, :]
        )
        work = {"elements": elements[None, :], "traffic": np.zeros_like(traffic_bytes), "fixed_bytes": traffic_bytes}
        return KernelCalls("add", BACKWARD_DATA, layer, count, work)

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

    def _divided(self, calls: KernelCalls) -> KernelCalls:
        mine = self._shared[calls.layer]
        if calls.direction == UPDATE or calls.kind in MATRIX_KINDS or not mine.any():
            return calls
        part = np.where(mine, 1.0 / self._ranks, 1.0)
        return replace(calls, work={name: column * part for name, column in calls.work.items()})

    def unit_table(self, served: _Served, times_s: Mapping[int, FloatArray], table: UnitTable) -> UnitTable:
        """Return what micro-batches take, put into an empty table of them.

        ``served``: their calls by stage; ``times_s``: of each of these, by its identity.
        """
        in_backward = {id(calls) for calls, _ in served["backward"]}
        for stage, of_stage in served.items():
            is_later = stage == "accumulating"  # and holds all of the backward pass, which stands before it
            if is_later:
                table.repeat("backward", stage)
            for calls, source in of_stage:
                if not (is_later and id(calls) in in_backward):
                    self._add(table, stage, (calls, source), times_s[id(calls)])
            counted = {"update": self.units.slots, **dict.fromkeys(BACKWARD, self.units.reached)}
            table.layers[:, PASSES.index(stage)] = counted.get(stage, self.units.layers)
        return table

    def _add(self, table: UnitTable, stage: str, served: tuple[KernelCalls, Source], times: FloatArray) -> None:
        """Add calls of a stage to the passes that have them; to parts of it those of some layers."""
        (calls, source), units = served, self.units
        share, of_class = units.share[self.program.site[calls.layer]], class_of(calls.kind)
        for name, where in self._parts_of(stage, calls, units).items():
            at = PASSES.index(name)
            table.kernel_s[:, at, of_class] += (times if where is None else times * where) @ share
            kernels = calls.count.astype(np.float64)
            made = kernels if calls.operations is None else calls.operations.astype(np.float64)
            more = kernels - made if calls.launches is None else kernels - made + calls.launches
            operations = (made if where is None else made * where) @ share
            table.calls[:, at] += operations
            if more.any():
                table.launches[:, at] += (more if where is None else more * where) @ share
            if source.origin != "specified":
                table.measured_calls[:, at] += operations
        if stage in BACKWARD:
            of_segments = self.program.by_segment(times, calls.layer)
            table.segment_s[:, BACKWARD.index(stage), of_class, : of_segments.shape[1]] += of_segments
        under = _GRADIENT_OF.get(calls.direction) if calls.kind == "gemm" and stage == "backward" else None
        for part in PARTS if under else ():
            is_part = self._columns[part][calls.layer]
            table.products_s[:, BESIDE.index((under, part))] += (times * is_part) @ share

    def _parts_of(self, stage: str, calls: KernelCalls, units: Units) -> dict[str, FloatArray | None]:
        """Return the passes that calls of a stage are in, and the share of each call that is, shape (k,); None: all."""
        core = units.is_attention[calls.layer].astype(np.float64)
        parts: dict[str, FloatArray] = {}
        if stage == "forward":
            selective = self.sources.problem.settings.framework.selective
            again = repeats(self.network, units, selective, is_product=calls.kind in MATRIX_KINDS)
            parts |= {"attention": again[calls.layer], "core": core}
        elif stage == "backward":
            parts["core_backward"] = core
        of_weights = {"weights": None} if stage == "backward" and calls.direction == BACKWARD_WEIGHT else {}
        return {stage: None, **of_weights, **{name: where for name, where in parts.items() if where.any()}}

    @cached_property
    def _columns(self) -> dict[str, BoolArray]:
        """Which layers, (L,), are the first products of each part: those that are split by columns, and the logits."""
        behind = {name: some[0].kind for name, some in columns_of(self.network)}
        kinds = [behind.get(layer.name, "") for layer in self.network.layers]
        heads, fed = ([one.endswith(kind) for one in kinds] for kind in ("loss", "activation"))
        part_of = np.select([heads, fed, [bool(one) for one in kinds]], [HEAD, FEED_FORWARD, ATTENTION], "")
        return {part: part_of == part for part in PARTS}


def _empty(cases: int, like: RankCompute | None) -> UnitTable:
    """Return a table of zeros, with room for twice as many distinct segments: those of a shard may differ in more."""
    units = like.units.distinct if like else 0
    segments = min(like.program.segment.size, 2 * like.program.repeats.size) if like else 0
    kernels, last = (
        np.zeros((cases, len(of), len(CLASSES), size)) for of, size in ((PASSES, units), (BACKWARD, segments))
    )
    one, two, three, four = np.zeros((4, cases, len(PASSES), units))
    return UnitTable(kernels, one, two, three, four, np.zeros((cases, len(BESIDE), units)), last)


def _times_s(parts: Iterable[tuple[_Served, int, int]]) -> dict[int, FloatArray]:
    """Return the times [s] of calls times their count by the identity of the calls, shape (s, k) or (1, k).

    Calls that one entry serves are one evaluation, of all ranks together. ``parts``: of each rank its calls, how many
    cases they are of, and the bytes of an element.
    """
    alike: dict[tuple[Any, ...], dict[int, tuple[Source, KernelCalls, tuple[int, int], int]]] = {}
    for served, cases, itemsize in parts:
        for calls, source in (one for of_stage in served.values() for one in of_stage):
            apart = id(calls) if calls.looked_up else ()
            key = id(source.entry), calls.kind, calls.direction, tuple(calls.work), itemsize, apart
            alike.setdefault(key, {})[id(calls)] = source, calls, (cases, calls.layer.size), itemsize
    times_s: dict[int, FloatArray] = {}
    for some in alike.values():
        (source, calls, _, itemsize), *others = some.values()
        if not others:
            times_s[id(calls)] = call_times_s(source.entry, calls, itemsize)
            continue
        work, each = call_work(calls, itemsize), list(some.values())
        ends = np.cumsum([rows * columns for _, _, (rows, columns), _ in each])
        columns = ([np.broadcast_to(one.work[name], shape).ravel() for _, one, shape, _ in each] for name in calls.work)
        rows: list[FloatArray] = [np.concatenate(some) for some in columns]
        first, number = distinct_rows(*rows) if ends[-1] > MANY_CALLS else (np.arange(ends[-1]),) * 2
        work |= {name: row[first] for name, row in zip(calls.work, rows, strict=True)}
        every = np.broadcast_to(evaluate(source.entry, work), first.shape)[number]
        for (_, one, shape, _), part in zip(each, np.split(every, ends[:-1]), strict=True):
            times_s[id(one)] = part.reshape(shape) * one.count
    return times_s


class ComputeCases:
    """Compute cases of one precision: a rank of each tensor, context and expert degree, positions shared or not.

    ``ranks``: those that were asked for; ``cases``: CaseTable of (position in ``ranks``, sub-batch).

    CoverageError: the precision cannot be priced.
    """

    def __init__(self, sources: Sources, precision: str) -> None:
        check_precision(sources, precision)
        self.sources, self.precision = sources, precision
        self.ranks: list[RankCompute] = []
        self._place: dict[tuple[int, ...], int] = {}
        self.rank_of(1, 0)  # of the whole network: it says how many units there are
        self.cases = CaseTable(self._made, LARGEST_COUNT + 1)

    def rank_of(self, tensor: int, shares_positions: int, context: int = 1, experts: int = 1) -> int:
        """Return the position of a rank in ``ranks``, made where it is new; ``experts``: ranks that share them."""
        key = tensor, shares_positions if tensor > 1 else 0, context, experts
        if key not in self._place:
            whole = self.sources.problem.network
            shard, shared, whole_parts = _shard_of(whole, tensor, context, experts)
            rank = RankCompute(self.sources.of_network(shard), self.precision, shared, tensor if key[1] else 1)
            rank.units = units_of(whole, rank.program)
            rank.whole = rank.units.of_distinct(whole_parts)
            self._place[key] = len(self.ranks)
            self.ranks.append(rank)
        return self._place[key]

    def elements(self, *, trained: bool) -> tuple[FloatArray, FloatArray]:
        """Return the parameters of one unit of each rank, and those of experts, shape (R, U); or those ``trained``."""
        names = ("trained", "trained_experts") if trained else ("parameters", "experts")
        every, experts = (np.stack([getattr(rank.units, name) for rank in self.ranks]) for name in names)
        return every, experts

    @property
    def whole(self) -> FloatArray:
        """Trained parameters of one unit that every tensor rank has whole, shape (R, U)."""
        return np.stack([rank.whole for rank in self.ranks])

    def _made(self, rank: IntArray, sub_batch: IntArray) -> UnitTable:
        """Return the cases of ranks and sub-batches, shape (k,)."""
        first = self.ranks[0] if self.ranks else None
        table = _empty(sub_batch.size, first)
        parts: list[tuple[BoolArray, RankCompute]]
        parts = [(rank == place, self.ranks[place]) for place in sorted(set(rank.tolist()))]
        served = [one.calls_with_sources(sub_batch[rows]) for rows, one in parts]
        sizes = [int(rows.sum()) for rows, _ in parts]
        times_s = _times_s(zip(served, sizes, (one.itemsize for _, one in parts), strict=True))
        for (rows, one), of_rank, size in zip(parts, served, sizes, strict=True):
            if size == sub_batch.size:
                return one.unit_table(of_rank, times_s, table)
            part = one.unit_table(of_rank, times_s, _empty(size, first))
            for column in fields(UnitTable):
                getattr(table, column.name)[rows] = getattr(part, column.name)
        return table


_SPLIT = ("linear", "adapter", "attention", "embedding", "experts", "loss")
"""Kinds of layers whose positions sequence parallelism does not share, though tensor ranks may have them whole."""
_LARGEST_CACHE = 64
_SHARDS: dict[tuple[int, ...], tuple[Network, Network, BoolArray, FloatArray]] = {}
"""Of the networks split last, by their identity, which holding them keeps, and degrees."""


def _shard_of(whole: Network, tensor: int, context: int, experts: int) -> tuple[Network, BoolArray, FloatArray]:
    """Return a rank's shard, and of its layers, shape (L,), two more.

    Which ones tensor ranks leave whole and may share by positions, and the parameters that each of these ranks has
    whole (:func:`planner.workload.shards.whole_parameters`).
    """
    key = id(whole), tensor, context, experts
    if key not in _SHARDS:
        split = tensor_shard(whole, tensor)
        shard = expert_shard(split, experts)
        shapes = layer_shapes(whole), layer_shapes(shard)
        is_whole = (shapes[0][one.name] == shapes[1][one.name] and one.kind not in _SPLIT for one in whole.layers)
        shared = np.array(list(is_whole))
        while len(_SHARDS) >= _LARGEST_CACHE:
            del _SHARDS[next(iter(_SHARDS))]
        _SHARDS[key] = whole, context_shard(shard, context), shared, whole_parameters(whole, split)
    return _SHARDS[key][1:]
