"""What copies of a stage exchange: gradients, and weights whose state they share; experts apart from all else.

Of the c·D copies of everything else each x-th has the same experts: these c·D/x ranks sum and share what belongs to
experts (MODEL 10.8; Megatron-LM's expert data-parallel group). Where shards lie within nodes, gradients are scattered
in a node and then summed with the same shards of other nodes: with each micro-batch where weights are shared too (Zhao
et al. 2023, arXiv:2304.11277, hybrid sharding).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    EXPERT_GRADIENTS,
    EXPERT_NODE_REPLICAS,
    EXPERT_NODE_SHARDS,
    GRADIENTS,
    NODE_REPLICAS,
    NODE_SHARDS,
    REDUCE_SCATTER,
)
from planner.domain.split import SHARD_GROUPS
from planner.steps.split_costs import StepCosts
from planner.steps.split_stages import StageCases
from planner.workload.placement import shard_ranks

__all__ = ["Elements", "StageExchange"]

Ranks = tuple[str, str, str]
"""Groups that hold the same parameters, their ranks in a node, and those with the same shard on each node."""
_ALL_RANKS = (GRADIENTS, NODE_SHARDS, NODE_REPLICAS)
_EXPERT_RANKS = (EXPERT_GRADIENTS, EXPERT_NODE_SHARDS, EXPERT_NODE_REPLICAS)


class Elements(NamedTuple):
    """Elements of a rank of every distinct stage, of experts and of all other parameters, of shape (f,) or (f, k)."""

    experts: FloatArray
    others: FloatArray

    @property
    def total(self) -> FloatArray:
        """All of them."""
        return self.experts + self.others

    def over(self, parts: FloatArray | IntArray) -> Elements:
        """Return the elements of one of so many equal parts."""
        return Elements(self.experts / parts, self.others / parts)


class StageExchange:
    """Exchanges of the distinct stages of plans, or of some of them. Times have the shape of the elements.

    ``only``: which stages, shape (f,); None: all.
    """

    def __init__(self, costs: StepCosts, cases: StageCases, only: IntArray | None = None) -> None:
        self.costs, self.cases = costs, cases
        self._of = cases.of if only is None else cases.of[only]
        self._in_node = (cases.plans.shard_group == SHARD_GROUPS.index("node"))[self._of]

    def gather_s(self, weights: Elements) -> FloatArray:
        """Return the gather of weights from the ranks that share them or their state [s]."""
        return self._of_both(self._gather_s, weights, self.costs.parameter.weight)

    def scatter_s(self, gradients: Elements) -> FloatArray:
        """Return the scatter of gradients over the ranks that share them [s]."""
        return self._of_both(self._scatter_s, gradients, self.costs.gradient_bytes)

    def across_s(self, gradients: Elements) -> FloatArray:
        """Return the sum of what nodes scattered with the same shards of other nodes [s]; 0 where all ranks share."""
        return self._of_both(self._across_s, gradients, self.costs.gradient_bytes)

    def sum_s(self, gradients: Elements) -> FloatArray:
        """Return the sum of gradients [s]: on every rank, or scattered over those that share what is updated."""
        return self._of_both(self._sum_s, gradients, self.costs.gradient_bytes)

    def update_share(self, of: Elements) -> FloatArray:
        """Return the share of its parameters that a rank updates."""
        plans = self.cases.plans
        experts, others = (shard_ranks(plans, self.costs.rank_order, experts=one)[self._of] for one in (True, False))
        shards = of.experts / experts + of.others / others
        share = np.divide(shards, of.total, out=np.ones_like(shards), where=of.total > 0)
        return np.where(plans.sharding[self._of] > 0, share, 1.0)

    def _of_both(
        self, seconds: Callable[[Ranks, FloatArray], FloatArray], elements: Elements, itemsize: float
    ) -> FloatArray:
        """Return the times of what goes between all copies, and of experts between those that have the same."""
        apart = _along((self.cases.plans.expert_parallel > 1)[self._of], elements.others)
        together = _of_something(partial(seconds, _ALL_RANKS), itemsize * (elements.total - elements.experts * apart))
        if not apart.any():
            return together
        return together + _of_something(partial(seconds, _EXPERT_RANKS), itemsize * elements.experts * apart)

    def _gather_s(self, ranks: Ranks, buffer_bytes: FloatArray) -> FloatArray:
        everyone, inside, _ = ranks
        whole = self._operation_s(ALL_GATHER, buffer_bytes, everyone)
        return self._where_in_node(lambda: self._operation_s(ALL_GATHER, buffer_bytes, inside), whole)

    def _scatter_s(self, ranks: Ranks, buffer_bytes: FloatArray) -> FloatArray:
        everyone, inside, _ = ranks
        whole = self._operation_s(REDUCE_SCATTER, buffer_bytes, everyone)
        return self._where_in_node(lambda: self._operation_s(REDUCE_SCATTER, buffer_bytes, inside), whole)

    def _across_s(self, ranks: Ranks, buffer_bytes: FloatArray) -> FloatArray:
        _, inside, across = ranks

        def of_shards() -> FloatArray:
            shards = np.maximum(self.cases.groups(inside).ranks, 1)[self._of]
            return self._operation_s(ALL_REDUCE, buffer_bytes / _along(shards, buffer_bytes), across)

        return self._where_in_node(of_shards, np.zeros_like(buffer_bytes))

    def _sum_s(self, ranks: Ranks, buffer_bytes: FloatArray) -> FloatArray:
        is_whole: BoolArray = (self.cases.plans.sharding == 0)[self._of]
        whole = self._operation_s(self.costs.gradient_operation, buffer_bytes, ranks[0])
        if is_whole.all():
            return whole
        shards = self._scatter_s(ranks, buffer_bytes) + self._across_s(ranks, buffer_bytes)
        return np.where(_along(is_whole, whole), whole, shards)

    def _where_in_node(self, seconds: Callable[[], FloatArray], otherwise: FloatArray) -> FloatArray:
        return np.where(_along(self._in_node, otherwise), seconds(), otherwise) if self._in_node.any() else otherwise

    def _operation_s(self, operation: str, buffer_bytes: FloatArray, group: str) -> FloatArray:
        send = self.costs.between_copies_s if group == GRADIENTS else self.costs.operation_s
        return send(operation, buffer_bytes, self.cases.groups(group).rows(self._of))


def _of_something(seconds: Callable[[FloatArray], FloatArray], buffer_bytes: FloatArray) -> FloatArray:
    """Return times of what stages send; 0 of nothing."""
    return np.where(buffer_bytes > 0, seconds(buffer_bytes), 0.0)


def _along(of_stages: Any, like: FloatArray) -> Any:
    """Return an array of shape (f,) so that it broadcasts with one of shape (f,) or (f, k)."""
    return of_stages.reshape(-1, *[1] * (like.ndim - 1))
