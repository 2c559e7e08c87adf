"""Compute cases of split networks: what one micro-batch takes of each unit of the network, on one of its ranks.

A unit is what no pipeline divides: what stands before the first block, each block, and what stands behind the last one.
Units of equal structure are one. A rank computes its shard (:mod:`planner.workload.shards`), whose kernels are priced
as those of any network. With sequence parallelism what a shard leaves whole between the products, such as
normalisation, dropout and sums, is shared by positions.

Whole layers are computed again by their forward pass, attention weights (``selective``) by that of attention where it
keeps them: fused attention keeps none.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from planner.domain.arrays import LARGEST_COUNT, BoolArray, FloatArray, IntArray
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, MATRIX_KINDS, UPDATE, KernelCalls
from planner.domain.layers.record import Layer, Shape
from planner.domain.messages import INPUT_GRADIENT, WEIGHT_GRADIENT
from planner.domain.shapes import layer_shapes
from planner.sources.overheads import Overheads
from planner.sources.source import Source
from planner.sources.sources import Sources
from planner.steps.compute import STAGES, Compute, call_times_s
from planner.steps.tables import CaseTable
from planner.workload.shards import columns_of, context_shard, expert_shard, second_products, tensor_shard
from planner.workload.split_messages import ATTENTION, FEED_FORWARD
from planner.workload.units import Units, units_of

__all__ = ["BESIDE", "HEAD", "PASSES", "RankCompute", "SplitCompute", "UnitTable"]

_GRADIENT_OF = {BACKWARD_WEIGHT: WEIGHT_GRADIENT, BACKWARD_DATA: INPUT_GRADIENT}
PASSES = ("forward", "attention", "backward", "accumulating", "update", "core", "core_backward", "weights")
"""Passes over a unit, and parts of them: ``attention`` is the forward pass of what selective recompute repeats,
``core`` and ``core_backward`` are those of all attention, ``weights`` is gradients of weights in the backward pass."""


HEAD = "head"
PARTS = (ATTENTION, FEED_FORWARD, HEAD)
BESIDE = tuple((under, part) for under in (WEIGHT_GRADIENT, INPUT_GRADIENT) for part in PARTS)
"""Gradients and parts of a layer whose products messages may run beside: behind what is gathered, or summed."""


@dataclass(frozen=True, slots=True)
class UnitTable:
    """What c cases take by distinct unit, without what a framework adds.

    Attributes
    ----------
    matrix_s, traffic_s : ndarray of float, shape (c, len(PASSES), U)
        On the device: kernels of MATRIX_KINDS, and all others.
    calls, measured_calls : ndarray of float, shape (c, len(PASSES), U)
        Kernel calls, all and those whose times are not specified.
    layers : ndarray of float, shape (c, len(PASSES), U)
        That host time counts.
    products_s : ndarray of float, shape (c, len(BESIDE), U)
        Products of the backward pass of what is split by columns.
    """

    matrix_s: FloatArray
    traffic_s: FloatArray
    calls: FloatArray
    measured_calls: FloatArray
    layers: FloatArray
    products_s: FloatArray

    def kernels_s(self, overheads: Overheads) -> FloatArray:
        """Return times on the device, scaled as the framework's overheads say, shape (c, len(PASSES), U)."""
        return overheads.scale_of("gemm") * self.matrix_s + overheads.kernel_scale * self.traffic_s

    def host_s(self, overheads: Overheads) -> FloatArray:
        """Return times of the framework, same shape; a specified kernel's launch stands for an assumed one."""
        calls = self.measured_calls if overheads.matched == "assumed" else self.calls
        return overheads.host_s_per_call * calls + overheads.host_s_per_layer * self.layers


class RankCompute(Compute):
    """Compute of one rank's shard; ``shared``: layers whose work is divided by positions among so many ranks."""

    def __init__(self, sources: Sources, precision: str, is_shared: BoolArray, ranks: int) -> None:
        super().__init__(sources, precision)
        self._shared, self._ranks = is_shared, ranks
        self.units: Units

    def lowered(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        """Return the kernel calls, those of shared layers with their share of the work."""
        calls = super().lowered(sub_batch)
        return tuple(self._divided(one) for one in calls) if self._ranks > 1 else calls

    def _divided(self, calls: KernelCalls) -> KernelCalls:
        mine = self._shared[calls.layer]
        if calls.direction == UPDATE or calls.kind in MATRIX_KINDS or not mine.any():
            return calls
        part = np.where(mine, 1.0 / self._ranks, 1.0)
        return replace(calls, work={name: column * part for name, column in calls.work.items()})

    def unit_table(self, units: Units, sub_batch: IntArray) -> UnitTable:
        """Return the times of micro-batches, shape (s,)."""
        by_stage = self.calls_with_sources(sub_batch) if sub_batch.size else {stage: [] for stage in STAGES}
        passes: dict[str, list[tuple[KernelCalls, Source]]] = {
            **by_stage,
            **dict.fromkeys(("attention", "core"), by_stage["forward"]),
            "core_backward": by_stage["backward"],
            "weights": [one for one in by_stage["backward"] if one[0].direction == BACKWARD_WEIGHT],
        }
        every, core = np.ones(self.program.site.size), units.is_attention.astype(np.float64)
        of_layers = {"core": core, "core_backward": core}
        table = _empty(sub_batch.size, units.distinct)
        for at, name in enumerate(PASSES):
            for calls, source in passes[name]:
                where = of_layers.get(name, every)[calls.layer]
                if name == "attention":
                    where = self._repeated(units, calls.kind in MATRIX_KINDS)[calls.layer]
                if where.any():
                    self._add(table, at, (calls, source), where, units)
            if name in STAGES:
                table.layers[:, at] = units.slots if name == "update" else units.layers
        return table

    def _add(
        self, table: UnitTable, at: int, call: tuple[KernelCalls, Source], where: FloatArray, units: Units
    ) -> None:
        calls, source = call
        shape = table.layers.shape[0], calls.layer.size
        times = np.broadcast_to(call_times_s(source.entry, calls, self.itemsize) * where, shape)
        counts = np.broadcast_to(calls.count * where, shape).astype(np.float64)

        def of_units(each: FloatArray) -> FloatArray:
            return units.by_unit(self.program.by_segment(each, calls.layer))

        (table.matrix_s if calls.kind in MATRIX_KINDS else table.traffic_s)[:, at] += of_units(times)
        table.calls[:, at] += of_units(counts)
        if source.origin != "specified":
            table.measured_calls[:, at] += of_units(counts)
        under = _GRADIENT_OF.get(calls.direction) if calls.kind == "gemm" and PASSES[at] == "backward" else None
        for part in PARTS if under else ():
            is_part = np.isin(calls.layer, self._columns[part])
            table.products_s[:, BESIDE.index((under, part))] += of_units(times * is_part)

    def _repeated(self, units: Units, is_product: bool) -> FloatArray:  # noqa: FBT001 - products or all others
        """Return the share of each layer's forward pass that selective recompute makes again, shape (L,)."""
        if self.sources.problem.settings.framework.selective == "attention":
            return units.repeats_attention.astype(np.float64)
        return second_products(self.network) if is_product else np.ones(len(self.network.layers))

    @cached_property
    def _columns(self) -> dict[str, IntArray]:
        """Positions of the first products of each part: those that are split by columns, and the logits."""
        columns: dict[str, list[int]] = {part: [] for part in PARTS}
        behind = {name: [one.kind for one in some] for name, some in columns_of(self.network)}
        for position, layer in enumerate(self.network.layers):
            if layer.name in behind:
                columns[_part_of(behind[layer.name])].append(position)
        return {part: np.array(positions, dtype=np.int64) for part, positions in columns.items()}


def _part_of(behind: list[str]) -> str:
    if behind[:1] == ["loss"]:
        return HEAD
    return FEED_FORWARD if behind[0].endswith("activation") else ATTENTION


def _empty(cases: int, units: int) -> UnitTable:
    one, two, three, four, five = np.zeros((5, cases, len(PASSES), units))
    return UnitTable(one, two, three, four, five, np.zeros((cases, len(BESIDE), units)))


class SplitCompute:
    """Compute cases of one precision: a rank of each tensor, context and expert degree, positions shared or not.

    Attributes
    ----------
    ranks : list of RankCompute
        Those that were asked for.
    cases : CaseTable of (position in ``ranks``, sub-batch)
    """

    def __init__(self, sources: Sources, precision: str) -> None:
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
            shard = expert_shard(tensor_shard(whole, tensor), experts)
            shapes = (layer_shapes(whole), layer_shapes(shard))
            is_shared = np.array([_is_between_products(one, *(of[one.name] for of in shapes)) for one in whole.layers])
            shard = context_shard(shard, context)
            rank = RankCompute(self.sources.of_network(shard), self.precision, is_shared, tensor if key[1] else 1)
            rank.units = units_of(whole, rank.program)
            self._place[key] = len(self.ranks)
            self.ranks.append(rank)
        return self._place[key]

    @property
    def parameters(self) -> FloatArray:
        """Parameters of one unit of each rank, shape (R, U)."""
        return np.stack([rank.units.parameters for rank in self.ranks])

    @property
    def experts(self) -> FloatArray:
        """Those of them that are of experts, shape (R, U)."""
        return np.stack([rank.units.experts for rank in self.ranks])

    def _made(self, rank: IntArray, sub_batch: IntArray) -> UnitTable:
        """Return the cases of ranks and sub-batches, shape (k,)."""
        table = _empty(sub_batch.size, self.ranks[0].units.distinct if self.ranks else 0)
        for place in np.unique(rank).tolist():
            rows, one = rank == place, self.ranks[place]
            part = one.unit_table(one.units, sub_batch[rows])
            for column in fields(UnitTable):
                getattr(table, column.name)[rows] = getattr(part, column.name)
        return table


def _is_between_products(layer: Layer, whole: Shape, of_rank: Shape) -> bool:
    """Tell whether tensor ranks leave a layer whole which sequence parallelism shares by positions."""
    return whole == of_rank and layer.kind not in ("linear", "attention", "embedding", "experts", "loss")
