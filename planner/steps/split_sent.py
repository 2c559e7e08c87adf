"""Times of the messages of layers and ends: of one micro-batch on every stage, beside products or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.messages import (
    CONTEXT,
    CONTEXT_NEIGHBOURS,
    CORE,
    EMBEDDING_FORWARD,
    EXPERT,
    EXPERT_SHARDS,
    HEAD_FORWARD,
    INPUT_GRADIENT,
    LAYER_BACKWARD,
    LAYER_FORWARD,
    TENSOR,
    WEIGHT_GRADIENT,
    Groups,
    Message,
)
from planner.domain.split import SplitPlans
from planner.domain.transformer import Transformer
from planner.sources.overheads import Overheads
from planner.steps.split_compute import BESIDE, HEAD, PASSES, SplitCompute
from planner.workload.split_messages import MessageRules, embedding_messages, head_messages, layer_messages
from planner.workload.split_parameters import stage_blocks
from planner.workload.transformer import blocks
from planner.workload.units import Units

__all__ = ["Sent", "StageMessages", "counts_of_blocks"]

Placed = Callable[[str], Groups]
"""Where the groups of a name lie, of each plan."""
_CORES = ("core", "core_backward")
_GROUP_TERMS = {
    TENSOR: "tensor_messages",
    CONTEXT: "context_messages",
    CONTEXT_NEIGHBOURS: "context_messages",
    EXPERT: "expert_messages",
    EXPERT_SHARDS: "expert_messages",
}


class Sent(NamedTuple):
    """What messages take, and what they add to the forward and to the backward pass, each of shape (p, n) [s]."""

    taken_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray


class Costs(Protocol):
    """What plans share: see :class:`planner.steps.split_part.SplitCosts`."""

    overheads: Overheads
    message_rules: MessageRules
    overlaps_tensor: bool

    @property
    def of(self) -> Transformer:
        """The network in numbers."""

    def operation_s(self, operation: str, buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
        """Return times [s] of an operation, shape (n,)."""


def counts_of_blocks(units: Units, counts: FloatArray) -> FloatArray:
    """Return how many of each distinct unit every stage holds, without the ends, shape (p, U)."""
    ends = np.zeros(units.distinct, dtype=bool)
    ends[units.sequence[[0, -1]]] = True
    return np.where(ends, 0.0, counts)


class StageMessages:
    """Messages of n plans of one number of stages; ``counts``: of units by stage, shape (p, U)."""

    def __init__(
        self,
        costs: Costs,
        plans: SplitPlans,
        groups: Callable[[str], Groups],
        compute: SplitCompute,
        counts: FloatArray,
    ) -> None:
        self.costs, self.plans, self.groups, self.compute, self.counts = costs, plans, groups, compute, counts
        self.stages = counts.shape[0]

    def seconds(self, row: IntArray) -> dict[str, Sent]:
        """Return what messages of one micro-batch take and add by term; ``row``: of the cases."""
        costs, plans, shape = self.costs, self.plans, (self.stages, self.plans.shape[0])
        found: dict[str, Sent] = {}
        stage = np.arange(self.stages)[:, None]
        beside = self._products_s(row)
        held = dict(stage_blocks(costs.of, np.full((1, 1), self.stages), stage))
        for kind, _ in blocks(costs.of):
            for one in layer_messages(costs.of, plans, costs.message_rules, kind):
                self._add(found, one, np.broadcast_to(held[kind], shape), beside)
        for messages, where in (
            (embedding_messages(costs.of, plans, costs.message_rules), stage == 0),
            (head_messages(costs.of, plans, costs.message_rules), stage == plans.last_stage),
        ):
            for one in messages:
                self._add(found, one, np.broadcast_to(where * 1.0, shape), beside)
        return found

    def _add(
        self, found: dict[str, Sent], one: Message, held: FloatArray, beside: Mapping[tuple[str, str], FloatArray]
    ) -> None:
        """Add what messages take, and expose of it; ``held``: layers of every stage that send them, (p, n)."""
        term = _GROUP_TERMS[one.group]
        each = self.costs.operation_s(one.operation, one.buffer_bytes, self.groups(one.group))
        if one.hidden_under == CORE:
            exposed = self._beside_attention_s(one, each, beside)
        else:
            exposed = one.count * np.maximum(each - beside.get((one.hidden_under, one.part), 0.0), 0.0)
        is_forward = one.where in (LAYER_FORWARD, EMBEDDING_FORWARD, HEAD_FORWARD)
        more = (held * one.count * each, held * exposed * is_forward, held * exposed * (not is_forward))
        nothing = np.zeros_like(held)
        before = found.get(term, Sent(nothing, nothing, nothing))
        found[term] = Sent(*(old + new for old, new in zip(before, more, strict=True)))

    def _beside_attention_s(
        self, one: Message, each: FloatArray, beside: Mapping[tuple[str, str], FloatArray]
    ) -> FloatArray:
        """Return what the messages of a ring outlast the blocks of attention that they run beside, of one layer.

        A rank takes a block of attention a message; forward, nothing is sent beside the last.
        """
        ranks, is_backward = self.plans.context_parallel, one.where == LAYER_BACKWARD
        block = beside[CORE, "core_backward" if is_backward else "core"] / ranks
        return np.maximum(one.count * each - block * (ranks - (not is_backward)), 0.0)

    def _products_s(self, row: IntArray) -> dict[tuple[str, str], FloatArray]:
        """Return the products of one layer that messages run beside, by which gradient and part, (p, n)."""
        units, overheads = self.compute.ranks[0].units, self.costs.overheads
        blocks_of_stage = counts_of_blocks(units, self.counts)
        number = np.maximum(blocks_of_stage.sum(axis=1), 1.0)[:, None]
        kernels = self.compute.cases.columns.kernels_s(overheads)[row]
        core = {(CORE, name): blocks_of_stage @ kernels[:, PASSES.index(name)].T / number for name in _CORES}
        if not self.costs.overlaps_tensor:
            return core
        products = self.compute.cases.columns.products_s[row] * overheads.scale_of("gemm")
        layers = {key: blocks_of_stage @ products[:, at].T / number for at, key in enumerate(BESIDE)}
        last = products[:, :, units.sequence[-1]]
        head = {(under, ""): last[:, [BESIDE.index((under, HEAD))]].T for under in (WEIGHT_GRADIENT, INPUT_GRADIENT)}
        return core | layers | head
