"""Times of the messages of layers and ends: of one micro-batch on distinct stages, beside products or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
    RECOMPUTED,
    TENSOR,
    WEIGHT_GRADIENT,
    Message,
)
from planner.steps.compute import BESIDE, HEAD, PASSES
from planner.steps.split_costs import StepCosts
from planner.steps.split_stages import StageCases
from planner.workload.split_messages import BlockSends, embedding_messages, head_messages, layer_messages

__all__ = ["SENT_BETWEEN", "Sent", "StageMessages"]

_CORES = ("core", "core_backward")
_GROUP_TERMS = {
    TENSOR: "tensor_messages",
    CONTEXT: "context_messages",
    CONTEXT_NEIGHBOURS: "context_messages",
    EXPERT: "expert_messages",
    EXPERT_SHARDS: "expert_messages",
}
SENT_BETWEEN = tuple(_GROUP_TERMS)
"""Groups that the messages of a stage go between."""


class Sent(NamedTuple):
    """What messages take, and what they add to the forward and to the backward pass, each of shape (f,) [s]."""

    taken_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray


class StageMessages:
    """Messages of one micro-batch on each of the distinct stages of plans."""

    def __init__(self, costs: StepCosts, cases: StageCases) -> None:
        self.costs, self.cases = costs, cases

    def seconds(self, row: IntArray) -> dict[str, Sent]:
        """Return what messages take and add by term; ``row``: in the table of compute, of each case."""
        costs, plans, stage = self.costs, self.cases.plans, self.cases.stage
        by_term: dict[str, Sent] = {}
        beside = self._products_s(row)
        for block, alike in self._blocks():
            held, again = (counts[:, alike].sum(axis=1) for counts in (self.cases.blocks, self.cases.again))
            for one in layer_messages(block, plans, costs.message_rules):
                self._add(by_term, one, again if one.where == RECOMPUTED else held, beside)
        for messages, where in (
            (embedding_messages(costs.sends, plans, costs.message_rules), stage == 0),
            (head_messages(costs.sends, plans, costs.message_rules), self.cases.is_last),
        ):
            for one in messages:
                self._add(by_term, one, where.astype(np.float64), beside)
        return by_term

    def _blocks(self) -> list[tuple[BlockSends, list[int]]]:
        """Return what blocks send by, each with the distinct units that send alike."""
        alike: dict[BlockSends, list[int]] = {}
        sequence = self.cases.units.sequence[1:-1].tolist()
        for unit, sends in dict(zip(sequence, self.costs.sends.units[1:-1], strict=False)).items():
            alike.setdefault(sends, []).append(unit)
        return list(alike.items())

    def _add(
        self, by_term: dict[str, Sent], one: Message, layers: FloatArray, beside: Mapping[tuple[str, str], FloatArray]
    ) -> None:
        """Add what messages take, and expose of it; ``layers``: of every stage that send them, shape (f,)."""
        term, of = _GROUP_TERMS[one.group], self.cases.of
        each = self.costs.operation_s(one.operation, one.buffer_bytes, self.cases.groups(one.group))
        taken = layers * (one.count * each)[of]
        if one.hidden_under == CORE:
            exposed = layers * self._beside_attention_s(one, each, beside)
        elif (one.hidden_under, one.part) in beside:
            exposed = layers * one.count[of] * np.maximum(each[of] - beside[one.hidden_under, one.part], 0.0)
        else:
            exposed = taken
        is_forward = one.where in (LAYER_FORWARD, EMBEDDING_FORWARD, HEAD_FORWARD)
        nothing = np.zeros_like(taken)
        before = by_term.get(term, Sent(nothing, nothing, nothing))
        by_term[term] = Sent(
            before.taken_s + taken,
            before.forward_s + exposed if is_forward else before.forward_s,
            before.backward_s if is_forward else before.backward_s + exposed,
        )

    def _beside_attention_s(
        self, one: Message, each: FloatArray, beside: Mapping[tuple[str, str], FloatArray]
    ) -> FloatArray:
        """Return what the messages of a ring outlast the blocks of attention that they run beside, of one layer.

        A rank takes a block of attention a message; forward, nothing is sent beside the last.
        """
        of, is_backward = self.cases.of, one.where == LAYER_BACKWARD
        ranks = self.cases.plans.context_parallel[of]
        block = beside[CORE, "core_backward" if is_backward else "core"] / ranks
        return np.maximum((one.count * each)[of] - block * (ranks - (not is_backward)), 0.0)

    def _products_s(self, row: IntArray) -> dict[tuple[str, str], FloatArray]:
        """Return the products of one layer that messages run beside, by which gradient and part, (f,)."""
        overheads, of, columns = self.costs.overheads, self.cases.of, self.costs.compute.cases.columns
        counts = self.cases.blocks
        number = np.maximum(counts.sum(axis=1), 1.0)

        def of_layer(by_unit: FloatArray) -> FloatArray:
            """Return the mean over the layers of each stage, shape (cases of compute, U) to (f,)."""
            return np.asarray(np.einsum("fu,fu->f", counts, by_unit[row][of]) / number)

        kernels = columns.kernels_s(overheads)
        core = {(CORE, name): of_layer(kernels[:, PASSES.index(name)]) for name in _CORES}
        if not self.costs.overlaps_tensor:
            return core
        products = columns.products_s * overheads.scale_of("gemm")
        layers = {key: of_layer(products[:, at]) for at, key in enumerate(BESIDE)}
        last = products[:, :, self.cases.units.sequence[-1]]
        head = {(under, ""): last[row, BESIDE.index((under, HEAD))][of] for under in (WEIGHT_GRADIENT, INPUT_GRADIENT)}
        return core | layers | head
