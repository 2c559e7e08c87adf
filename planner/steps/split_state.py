"""What a step does once with the parameters of each stage: exchange of gradients, update, gathers of shards."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.messages import ALL_REDUCE, ENDS, TENSOR
from planner.domain.split import GRADIENTS_SHARDED, OPTIMIZER_SHARDED, WEIGHTS_SHARDED, SplitPlans
from planner.steps.gathers import equal_backward_s, equal_forward_s
from planner.steps.split_compute import PASSES
from planner.steps.split_costs import SplitCosts
from planner.steps.split_exchange import Elements, StageExchange
from planner.steps.split_stages import OfStages, StageCases, rows_of
from planner.workload.split_parameters import stage_parameters
from planner.workload.transformer import padded_vocabulary

__all__ = ["State"]

_SAME_STATE = ("sub_batch", "accumulation_steps", "virtual_stages", "recompute", "schedule", "offload")
"""Fields of plans on which nothing depends that a step does once."""


class State:
    """What a step does once, of each distinct stage, shape (f,), or of each case, shape (c,).

    Attributes
    ----------
    cases : StageCases
    exchange : StageExchange
    layers : ndarray of float, shape (f,)
    parameters : Elements
        Of a rank of each stage.
    bucket_s, buckets : ndarray of float, shape (f,)
        Exchange of one bucket of gradients, and how many there are; those of sharded weights are no part of it.
    gather_s, scatter_s, across_s : ndarray of float, shape (f,)
        Of one layer where weights are sharded, else 0: its weights, its gradients, and their sum over nodes.
    update_s, updated_weights_s, tied_s, norms_s : ndarray of float, shape (c,)
        The longest update of a stage, the gather of weights behind it, the all-reduce of a tied embedding, and that of
        gradients that tensor ranks have of their own positions alone.
    """

    def __init__(self, costs: SplitCosts, plans: SplitPlans, rank: IntArray, stages: OfStages = StageCases) -> None:
        # Ranks that share gradients send what those do that share the optimizer's state alone.
        plans = plans.with_bases(
            lambda some: some.but(
                sharding=np.where(some.sharding == GRADIENTS_SHARDED, OPTIMIZER_SHARDED, some.sharding)
            )
        )
        self.costs, self.cases = costs, stages(costs, plans, rank, _SAME_STATE)
        self.exchange = StageExchange(costs, self.cases)
        self.layers: FloatArray = self.cases.counts.sum(axis=1)
        self.parameters = self._parameters()
        self.update_s = self.cases.most(self._update_s())
        self.buckets = self._buckets()
        self.bucket_s = self.exchange.sum_s(self._gradients().over(self.buckets))
        self._gathers()
        self.tied_s, self.norms_s = self._tied_s(), self._norms_s()

    def _parameters(self) -> Elements:
        """Return the parameters of a rank of every stage; the last of several stages copies a tied embedding."""
        cases, compute = self.cases, self.costs.compute
        every, experts = (
            np.einsum("fu,fu->f", cases.counts, one[cases.rank][cases.of])
            for one in (compute.parameters, compute.experts)
        )
        copies = cases.is_last & (cases.stage > 0) & self.costs.of.ties_logits
        return Elements(experts, every - experts + copies * self._table_elements()[cases.of])

    def _table_elements(self) -> FloatArray:
        """Return the elements of a rank's table of tokens, shape (c,)."""
        tensor, of = self.cases.plans.tensor_parallel, self.costs.of
        rows = padded_vocabulary(of.vocabulary, tensor) if self.costs.memory_rules.padded else of.vocabulary
        return np.asarray(rows / tensor * float(of.hidden))

    def _gradients(self) -> Elements:
        """Return the gradients of each stage that are exchanged once a step."""
        exchanges = (self.cases.plans.sharding < WEIGHTS_SHARDED)[self.cases.of]
        return Elements(*(one * exchanges for one in self.parameters))

    def _update_s(self) -> FloatArray:
        """Return the update of each stage, shape (f,); it depends on no sub-batch."""
        costs, cases = self.costs, self.cases
        row, table = cases.compute_rows(costs.compute), costs.compute.cases.columns
        both = (one(costs.overheads)[:, PASSES.index("update")][row] for one in (table.kernels_s, table.host_s))
        kernels, host = (np.einsum("fu,fu->f", cases.counts, one[cases.of]) for one in both)
        return costs.passed_s("update", kernels * self.exchange.update_share(self.parameters), host)

    def _buckets(self) -> FloatArray:
        """Return how many buckets the gradients of each stage are sent in, shape (f,)."""
        strategy = self.costs.strategy
        if not strategy.overlap:
            return np.ones_like(self.layers)
        if not strategy.bucket_bytes:
            return self.layers
        bytes_ = self.costs.gradient_bytes * self._gradients().total
        return np.asarray(np.maximum(np.ceil(bytes_ / strategy.bucket_bytes), 1.0))

    def _gathers(self) -> None:
        """Work out the gathers of sharded weights, layer by layer, and behind the update."""
        sharding, each = self.cases.plans.sharding, self.parameters.over(self.layers)
        self.gather_s = self.scatter_s = self.across_s = np.zeros(self.layers.size)
        self.updated_weights_s = np.zeros(sharding.size)
        if (shares := sharding == WEIGHTS_SHARDED).any():
            self.gather_s, self.scatter_s, self.across_s = (
                np.where(shares[self.cases.of], one(each), 0.0)
                for one in (self.exchange.gather_s, self.exchange.scatter_s, self.exchange.across_s)
            )
        if (shares := sharding == OPTIMIZER_SHARDED).any():
            longest = self.cases.most(self.exchange.gather_s(self.parameters))
            self.updated_weights_s = np.where(shares, longest, 0.0)

    @property
    def exchanges(self) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Every way to exchange gradients once a step: time of one bucket, and how many there are, (f,) each.

        Of best buckets as many equal ones as are best, at most one a layer.
        """
        if not self.costs.strategy.best_buckets:
            yield self.bucket_s, self.buckets
            return
        for number in range(1, int(self.layers.max(initial=1)) + 1):
            buckets = np.minimum(self.layers, number)
            yield self.exchange.sum_s(self._gradients().over(buckets)), buckets

    def gathered_s(self, at: IntArray, forward_s: FloatArray, backward_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return passes over stages of sharded weights with the gathers and scatters that they wait for [s]."""
        layers, gather, scatter, across = (
            one[at] for one in (self.layers, self.gather_s, self.scatter_s, self.across_s)
        )
        return (
            equal_forward_s(forward_s / layers, gather, layers),
            equal_backward_s(backward_s / layers, gather, scatter, layers, across),
        )

    def _norms_s(self) -> FloatArray:
        """Return the sum over tensor ranks of gradients that each has of its own positions alone, shape (c,).

        With sequence parallelism: of what every tensor rank has whole, once a step and in one message behind the
        exchange (MODEL 10.8; NVIDIA/Megatron-LM, core/distributed/finalize_model_grads, _allreduce_layernorm_grads:
        parameters marked ``sequence_parallel`` are norms, biases behind rows, routers and products that are not split).
        """
        cases, plans = self.cases, self.cases.plans
        alone = (plans.sequence_parallel > 0) & (plans.tensor_parallel > 1)
        if not alone.any():
            return np.zeros(cases.rank.size)
        of_stages = rows_of(plans, cases.of), cases.stage
        most = cases.most(stage_parameters(self.costs.of, *of_stages, layers=cases.layers).whole)
        seconds = self.costs.operation_s(ALL_REDUCE, self.costs.gradient_bytes * most, cases.groups(TENSOR))
        return np.where(alone, seconds, 0.0)

    def _tied_s(self) -> FloatArray:
        """Return the all-reduce of a tied embedding between the first and the last stage, shape (c,)."""
        if not self.costs.of.ties_logits:
            return np.zeros(self.cases.rank.size)
        bytes_ = self.costs.gradient_bytes * self._table_elements()
        seconds = self.costs.operation_s(ALL_REDUCE, bytes_, self.cases.groups(ENDS))
        return np.where(self.cases.plans.last_stage > 0, seconds, 0.0)
