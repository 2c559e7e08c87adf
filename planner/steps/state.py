"""What a step does once with the parameters of each stage: exchange of gradients, update, gathers of shards.

What copies of a stage exchange: gradients, and weights whose state they share; experts apart from all else.

Of the c·D copies of everything else each x-th has the same experts: these c·D/x ranks sum and share what belongs to
experts (MODEL 10.8; Megatron-LM's expert data-parallel group). Where shards lie within nodes, gradients are scattered
in a node and then summed with the same shards of other nodes: with each micro-batch where weights are shared too (Zhao
et al. 2023, arXiv:2304.11277, hybrid sharding).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.axes import TENSOR
from planner.domain.configuration import Configurations
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
from planner.domain.split import GRADIENTS_SHARDED, OPTIMIZER_SHARDED, SHARD_GROUPS, WEIGHTS_SHARDED
from planner.steps.stage_cases import OfStages, StageCases
from planner.steps.step_costs import StepCosts
from planner.steps.synchronous import equal_backward_s, equal_forward_s
from planner.workload.placement import shard_ranks
from planner.workload.shards import padded_vocabulary, tied_table

_SAME_STATE = ("sub_batch", "accumulation_steps", "virtual_stages", "recompute", "schedule", "offload")
"""Fields of plans on which nothing depends that a step does once."""


class State:
    """What a step does once, of each distinct stage, shape (f,), or of each case, shape (c,).

    Attributes
    ----------
    layers, reached : ndarray of float, shape (f,); units of a stage, and those that have a backward pass
    parameters, trained : of a rank of each stage; those that have gradients
    gather_s, scatter_s, across_s : ndarray of float, shape (f,)
        Of one layer where weights are sharded, else 0: its weights, its gradients, and their sum over nodes.
    update_share : ndarray of float, shape (f,); of its parameters that a rank updates
    updated_weights_s, tied_s, norms_s : ndarray of float, shape (c,); the gather of weights behind the update, the
        all-reduce of a tied embedding, and that of gradients that tensor ranks have of their own positions alone
    """

    def __init__(self, costs: StepCosts, plans: Configurations, rank: IntArray, stages: OfStages = StageCases) -> None:
        # Ranks that share gradients send what those do that share the optimizer's state alone.
        plans = plans.with_bases(
            lambda some: some.but(
                sharding=np.where(some.sharding == GRADIENTS_SHARDED, OPTIMIZER_SHARDED, some.sharding)
            )
        )
        self._tied = tied_table(costs.sources.problem.network)
        self.costs, self.cases = costs, stages(costs, plans, rank, _SAME_STATE)
        self.exchange = StageExchange(costs, self.cases)
        self.layers: FloatArray = self.cases.counts.sum(axis=1)
        self.reached: FloatArray = self.cases.counts @ (self.cases.units.reached > 0)
        self._trains_tied = self._tied is not None and costs.ledger.trains_tied
        self.parameters, self.trained = (self._elements(trained=one) for one in (False, True))
        self.update_share = self.exchange.update_share(self.trained)
        self._gathers()
        self.tied_s, self.norms_s = self._tied_s(), self._norms_s()

    def _elements(self, *, trained: bool) -> Elements:
        """Return the parameters of a rank of every stage; the last of several stages copies a tied embedding."""
        cases, compute = self.cases, self.costs.compute
        every, experts = (
            np.einsum("fu,fu->f", cases.counts, one[cases.rank][cases.of]) for one in compute.elements(trained=trained)
        )
        copies = cases.is_last & (cases.stage > 0) & (self._trains_tied if trained else self._tied is not None)
        return Elements(experts, every - experts + copies * self._table_elements()[cases.of])

    def _table_elements(self) -> FloatArray:
        """Return the elements of a rank's table of tokens, shape (c,)."""
        tensor, (rows, features) = self.cases.plans.tensor_parallel, self._tied or (0, 0)
        all_rows = padded_vocabulary(rows, tensor) if self.costs.ledger.rules.sizes.is_padded else rows
        return np.asarray(all_rows / tensor * float(features))

    def _gradients(self) -> Elements:
        """Return what each part of a stage exchanges once a step, before blocks, of blocks and behind, (3, f) each."""
        cases, compute = self.cases, self.costs.compute
        of_units = (cases.counts * one[cases.rank][cases.of] for one in compute.elements(trained=True))
        every, experts = (cases.in_parts(one) for one in of_units)
        every[-1] += self.trained.total - every.sum(axis=0)  # the copy of a tied embedding
        exchanges = (cases.plans.sharding < WEIGHTS_SHARDED)[cases.of]
        return Elements(experts * exchanges, (every - experts) * exchanges)

    def _gathers(self) -> None:
        """Work out the gathers of sharded weights, layer by layer, and behind the update."""
        sharding, exchange = self.cases.plans.sharding, self.exchange
        each, trained = self.parameters.over(self.layers), self.trained.over(np.maximum(self.reached, 1.0))
        self.gather_s = self.scatter_s = self.across_s = np.zeros(self.layers.size)
        self.updated_weights_s = np.zeros(sharding.size)
        if (shares := sharding == WEIGHTS_SHARDED).any():
            self.gather_s, self.scatter_s, self.across_s = (
                np.where(shares[self.cases.of], seconds, 0.0)
                for seconds in (exchange.gather_s(each), exchange.scatter_s(trained), exchange.across_s(trained))
            )
        if (shares := sharding == OPTIMIZER_SHARDED).any():
            longest = self.cases.most(exchange.gather_s(self.trained))
            self.updated_weights_s = np.where(shares, longest, 0.0)

    @cached_property
    def bucket_bytes(self) -> FloatArray:
        """Bytes at which a bucket of gradients is full, shape (c,)."""
        strategy, plans = self.costs.strategy, self.cases.plans
        grown = self.costs.gradient_bytes * strategy.rank_parameters * plans.weight_copies
        return np.asarray(np.maximum(grown, strategy.bucket_bytes))

    @property
    def exchanges(self) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Every way to exchange gradients once a step: time of a message, and how many there are, (3, f) each.

        Blocks are sent in equal messages. What stands before or behind them is one message, ready with its last
        gradient: an embedding is one tensor, which no bucket divides. Where it is smaller than a bucket it is sent with
        blocks. Of best messages the blocks are sent in as many equal ones as are best, at most one a layer.
        """
        strategy, gradients = self.costs.strategy, self._gradients()
        bytes_ = self.costs.gradient_bytes * gradients.total
        blocks = np.maximum(self.cases.blocks @ (self.cases.units.trained > 0), 1.0)
        if not strategy.overlap:
            yield self._in_buckets(gradients, bytes_.sum(axis=0))
        elif strategy.best_buckets:
            yield self._in_buckets(gradients, bytes_.sum(axis=0))
            for number in range(1, int(blocks.max(initial=1)) + 1):
                yield self._in_buckets(gradients, bytes_[1] / np.minimum(blocks, number))
        elif strategy.bucket_bytes:
            later = strategy.later_stages_whole & (self.cases.stage > 0)
            yield self._in_buckets(gradients, np.where(later, bytes_.sum(axis=0), self.bucket_bytes[self.cases.of]))
        else:
            yield self._sent(gradients, (bytes_ > 0) * np.stack([np.ones_like(blocks), blocks, np.ones_like(blocks)]))

    def _in_buckets(self, gradients: Elements, bucket_bytes: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what :meth:`_sent` says of buckets of so many bytes, (f,); ends of at most one go with blocks."""
        moves = self.costs.gradient_bytes * gradients.total <= bucket_bytes
        parts = Elements(*(_with_blocks(one, moves) for one in gradients))
        ends = parts.total > 0
        number = np.ceil(self.costs.gradient_bytes * parts.total[1] / np.maximum(bucket_bytes, 1.0))
        return self._sent(parts, np.where([[False], [True], [False]], number, ends))

    def _sent(self, parts: Elements, number: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the time of a message of each part that is sent in a number of them, 0 of nothing, (3, f) each."""
        each = parts.over(np.maximum(number, 1))
        none = np.zeros(self.layers.size)
        seconds = [
            self.exchange.sum_s(Elements(*(one[at] for one in each))) if number[at].any() else none for at in range(3)
        ]
        return np.stack(seconds), number

    def gathered_s(self, at: IntArray, forward_s: FloatArray, backward_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return passes over stages of sharded weights with the gathers and scatters that they wait for [s]."""
        layers, reached, gather, scatter, across = (
            one[at] for one in (self.layers, self.reached, self.gather_s, self.scatter_s, self.across_s)
        )
        slower, slower_back = ((1 - 1 / self.costs.slowdown) * (one > 1) for one in (layers, reached))
        some = np.maximum(reached, 1.0)
        back = equal_backward_s(
            backward_s / some + slower_back * (gather + scatter + across), gather, scatter, some, across
        )
        return (
            equal_forward_s(forward_s / layers + slower * gather, gather, layers),
            np.where(reached > 0, back, backward_s),
        )

    @cached_property
    def gathers_by_unit(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The gather of the weights of each unit, the scatter of its gradients, and their sum over nodes, (c, V) [s].

        Of cases of one stage.
        """
        cases, compute = self.cases, self.costs.compute
        each, trained = (
            Elements(experts, every - experts)
            for every, experts in (
                (one[cases.rank][:, cases.units.sequence] for one in compute.elements(trained=of_trained))
                for of_trained in (False, True)
            )
        )
        of = self.exchange
        return of.gather_s(each), of.scatter_s(trained), of.across_s(trained)

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
        most = cases.most(np.einsum("fu,fu->f", cases.counts, self.costs.compute.whole[cases.rank][cases.of]))
        seconds = self.costs.operation_s(ALL_REDUCE, self.costs.gradient_bytes * most, cases.groups(TENSOR))
        return np.where(alone, seconds, 0.0)

    def _tied_s(self) -> FloatArray:
        """Return the all-reduce of a tied embedding between the first and the last stage, shape (c,)."""
        if not self._trains_tied:
            return np.zeros(self.cases.rank.size)
        bytes_ = self.costs.gradient_bytes * self._table_elements()
        seconds = self.costs.operation_s(ALL_REDUCE, bytes_, self.cases.groups(ENDS))
        return np.where(self.cases.plans.last_stage > 0, seconds, 0.0)


def _with_blocks(parts: FloatArray, moves: BoolArray) -> FloatArray:
    """Return parts of stages, (3, f), with those that move as part of the blocks."""
    moved = np.where(moves, parts, 0.0)
    kept = parts - moved
    kept[1] += moved.sum(axis=0)
    return kept


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
