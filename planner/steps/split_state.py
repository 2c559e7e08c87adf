"""What a step does once with the parameters of each stage: exchange of gradients, update, gathers of shards."""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.messages import (
    ALL_GATHER,
    ALL_REDUCE,
    ENDS,
    EXPERT_GRADIENTS,
    EXPERT_NODE_REPLICAS,
    EXPERT_NODE_SHARDS,
    GRADIENTS,
    NODE_REPLICAS,
    NODE_SHARDS,
    REDUCE_SCATTER,
)
from planner.domain.split import GRADIENTS_SHARDED, OPTIMIZER_SHARDED, SHARD_GROUPS, WEIGHTS_SHARDED, SplitPlans
from planner.steps.split_compute import PASSES
from planner.steps.split_costs import SplitCosts
from planner.steps.split_stages import StageCases
from planner.workload.transformer import padded_vocabulary

__all__ = ["State"]

_SAME_STATE = ("sub_batch", "accumulation_steps", "virtual_stages", "recompute", "schedule", "offload")
"""Fields of plans on which nothing depends that a step does once."""
_ALL_RANKS = (GRADIENTS, NODE_SHARDS, NODE_REPLICAS)
_EXPERT_RANKS = (EXPERT_GRADIENTS, EXPERT_NODE_SHARDS, EXPERT_NODE_REPLICAS)
"""Groups that exchange gradients: of all parameters but experts, and of experts."""


class State:
    """What a step does once, of each distinct stage, shape (f,), or of each case, shape (c,).

    Attributes
    ----------
    cases : StageCases
    layers, parameters : ndarray of float, shape (f,)
    bucket_s, buckets : ndarray of float, shape (f,)
        Exchange of one bucket of gradients, and how many there are.
    exchange_s : ndarray of float, shape (f,)
        Of all of them; 0 where they go with sharded weights.
    gather_s, scatter_s : ndarray of float, shape (f,)
        Of one layer where weights are sharded, else 0: its weights, and its gradients.
    update_s, updated_weights_s, tied_s : ndarray of float, shape (c,)
        The longest update of a stage, the gather of weights behind it, and the all-reduce of a tied embedding.
    """

    def __init__(self, costs: SplitCosts, plans: SplitPlans, rank: IntArray) -> None:
        # Ranks that share gradients send what those do that share the optimizer's state alone.
        is_alike = plans.sharding == GRADIENTS_SHARDED
        plans = plans.but(sharding=np.where(is_alike, OPTIMIZER_SHARDED, plans.sharding))
        self.costs, self.cases = costs, StageCases(costs, plans, rank, _SAME_STATE)
        cases = self.cases
        self._sharding = cases.plans.sharding[cases.of]
        self._by_node = cases.plans.shard_group == SHARD_GROUPS.index("node")
        self.layers = cases.counts.sum(axis=1)
        self.parameters = self._of_units(costs.compute.parameters) + self._copied()
        self.update_s = cases.most(self._update_s())
        self._exchange()
        self._gathers()
        self.tied_s = self._tied_s()

    def _of_units(self, by_rank: FloatArray) -> FloatArray:
        """Return sums over the units of each stage, shape (R, U) to (f,)."""
        found: FloatArray = np.einsum("fu,fu->f", self.cases.counts, by_rank[self.cases.rank][self.cases.of])
        return found

    def _copied(self) -> FloatArray:
        """Return the parameters that the last of several stages has besides, a copy of a tied embedding, shape (f,)."""
        copies = self.cases.is_last & (self.cases.stage > 0) & self.costs.of.ties_logits
        return copies * self._table_elements()[self.cases.of]

    def _table_elements(self) -> FloatArray:
        """Return the elements of a rank's table of tokens, shape (c,)."""
        tensor, of = self.cases.plans.tensor_parallel, self.costs.of
        rows = padded_vocabulary(of.vocabulary, tensor) if self.costs.memory_rules.padded else of.vocabulary
        return np.asarray(rows / tensor * float(of.hidden))

    def _update_s(self) -> FloatArray:
        """Return the update of each stage, shape (f,); it depends on no sub-batch."""
        costs, cases = self.costs, self.cases
        row, table = cases.compute_rows(costs.compute), costs.compute.cases.columns
        both = (one(costs.overheads)[:, PASSES.index("update")][row] for one in (table.kernels_s, table.host_s))
        kernels, host = (np.einsum("fu,fu->f", cases.counts, one[cases.of]) for one in both)
        return costs.passed_s("update", kernels / self._shard_ranks()[cases.of], host)

    def _shard_ranks(self) -> FloatArray:
        """Return how many ranks share sharded state, shape (c,)."""
        inside, everyone = (self.cases.groups(name).ranks for name in (NODE_SHARDS, GRADIENTS))
        ranks = np.where(self._by_node, inside, everyone)
        return np.where(self.cases.plans.sharding > 0, ranks, 1).astype(np.float64)

    def _sent_s(self, operation: str, buffer_bytes: FloatArray, name: str, of: IntArray) -> FloatArray:
        """Return times of what is sent in groups of a name, shape of ``buffer_bytes`` and of their cases ``of``."""
        return self.costs.operation_s(operation, buffer_bytes, self.cases.groups(name).rows(of))

    def _shard_s(self, operation: str, buffer_bytes: FloatArray, of: IntArray) -> FloatArray:
        """Return an operation between the ranks that share sharded state, of the same shape."""
        whole = self._sent_s(operation, buffer_bytes, GRADIENTS, of)
        if not self._by_node.any():
            return whole
        return np.where(self._by_node[of], self._sent_s(operation, buffer_bytes, NODE_SHARDS, of), whole)

    def _exchange(self) -> None:
        """Work out the exchange of gradients; those of sharded weights are no part of it."""
        strategy, exchanges = self.costs.strategy, self._sharding < WEIGHTS_SHARDED
        bytes_ = self.costs.gradient_bytes * self.parameters * exchanges
        self.buckets = np.ones_like(bytes_)
        if strategy.overlap:
            size = strategy.bucket_bytes
            self.buckets = np.maximum(np.ceil(bytes_ / size), 1.0) if size else self.layers
        self.bucket_s = self._bucket_s(bytes_ / self.buckets)
        self.exchange_s = np.where(exchanges, self.buckets * self.bucket_s, 0.0)

    def _bucket_s(self, buffer_bytes: FloatArray) -> FloatArray:
        """Return the exchange of one bucket of each stage, shape (f,); gradients of experts go to fewer ranks."""
        together = self._gradients_s(buffer_bytes)
        apart = self.cases.plans.expert_parallel > 1
        if not apart.any():
            return together
        every, of_experts = map(self._of_units, (self.costs.compute.parameters, self.costs.compute.experts))
        experts = buffer_bytes * of_experts / every
        parts = self._gradients_s(buffer_bytes - experts), self._gradients_s(experts, _EXPERT_RANKS)
        return np.where(apart[self.cases.of], parts[0] + parts[1], together)

    def _gradients_s(self, buffer_bytes: FloatArray, names: tuple[str, str, str] = _ALL_RANKS) -> FloatArray:
        """Return one exchange of gradients, shape (f,): summed on every rank, or scattered over those that share.

        ``names``: of the groups that hold the same parameters, of their ranks in a node, and of the like across nodes.
        """
        everyone, inside, across = names
        is_whole, of = self._sharding == 0, self.cases.of
        summed = self._sent_s(ALL_REDUCE, buffer_bytes, everyone, of)
        if is_whole.all():
            return summed
        scattered = self._sent_s(REDUCE_SCATTER, buffer_bytes, everyone, of)
        if self._by_node.any():
            in_node = self._sent_s(REDUCE_SCATTER, buffer_bytes, inside, of)
            shard_bytes = buffer_bytes / np.maximum(self.cases.groups(inside).ranks, 1)[of]
            shards = self._sent_s(ALL_REDUCE, shard_bytes, across, of)
            scattered = np.where(self._by_node[of], in_node + shards, scattered)
        return np.where(is_whole, summed, scattered)

    def _gathers(self) -> None:
        """Work out the gathers of sharded weights, layer by layer, and behind the update."""
        sharding, nothing = self.cases.plans.sharding, np.zeros(self.layers.size)
        self.gather_s, self.scatter_s, self.updated_weights_s = nothing, nothing, np.zeros(sharding.size)
        weight = self.costs.parameter.weight
        if (sharding == WEIGHTS_SHARDED).any():
            each, shares, of = self.parameters / self.layers, self._sharding == WEIGHTS_SHARDED, self.cases.of
            self.gather_s = np.where(shares, self._shard_s(ALL_GATHER, weight * each, of), 0.0)
            self.scatter_s = np.where(shares, self._shard_s(REDUCE_SCATTER, self.costs.gradient_bytes * each, of), 0.0)
        if (sharding == OPTIMIZER_SHARDED).any():
            fullest = self._shard_s(ALL_GATHER, weight * self.cases.most(self.parameters), np.arange(sharding.size))
            self.updated_weights_s = np.where(sharding == OPTIMIZER_SHARDED, fullest, 0.0)

    def _tied_s(self) -> FloatArray:
        """Return the all-reduce of a tied embedding between the first and the last stage, shape (c,)."""
        if not self.costs.of.ties_logits:
            return np.zeros(self.cases.rank.size)
        bytes_ = self.costs.gradient_bytes * self._table_elements()
        return self.costs.operation_s(ALL_REDUCE, bytes_, self.cases.groups(ENDS))
