"""Times of plans that split a network: stages from the units they hold, messages, pipeline, exchange and update.

T = pipeline(stages) + exposed exchange of gradients + tied embedding + update + gather of updated weights. A pass of
one micro-batch over a stage takes what its kernels and its host take together, and its messages. Of the stages the one
with the most work is shown: its own time, what the pipeline waits for besides (bubble), and what is sent between
stages; the sum is the step.

After a stage's last backward pass it exchanges gradients while stages above it still compute: only what outlasts the
pipeline adds to the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
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
    Groups,
)
from planner.domain.precision import precision_named
from planner.domain.split import RECOMPUTES, SCHEDULES, SHARD_GROUPS, SplitPlans
from planner.domain.transformer import Transformer
from planner.sources.sources import Sources
from planner.steps.compute import composed_s
from planner.steps.gathers import equal_backward_s, equal_forward_s
from planner.steps.pipeline import drain_s, exposed_exchange_s, pipeline_s
from planner.steps.split_compute import PASSES, RankCompute, SplitCompute
from planner.steps.split_messages import operation_s
from planner.steps.split_sent import Sent, StageMessages, counts_of_blocks
from planner.steps.tables import distinct_pairs
from planner.workload.placement import Placement
from planner.workload.split_memory import MemoryRules
from planner.workload.split_messages import (
    MessageRules,
    boundary_messages,
)
from planner.workload.transformer import padded_vocabulary
from planner.workload.units import stage_units

__all__ = ["SPLIT_TERMS", "SplitCosts", "SplitPart"]

SPLIT_TERMS = (
    "forward", "backward", "recompute", "host", "tensor_messages", "context_messages", "expert_messages",
    "sharded_weights", "host_to_device", "bubble", "stage_messages", "all_reduce", "embedding_all_reduce", "update",
    "updated_weights", "offload", "replica_wait", "load_input",
)  # fmt: skip
"""Terms of a step in the order of an answer."""
_ALL_RANKS = (GRADIENTS, NODE_SHARDS, NODE_REPLICAS)
_EXPERT_RANKS = (EXPERT_GRADIENTS, EXPERT_NODE_SHARDS, EXPERT_NODE_REPLICAS)
"""Groups that exchange gradients: of all parameters but experts, and of experts."""
SHARED_WEIGHTS = 3
"""The sharding that shares weights."""


class _Stages(NamedTuple):
    """One micro-batch on every stage, each of shape (p, n) [s]; ``kernels`` by pass without what the host adds."""

    forward_s: FloatArray
    backward_s: FloatArray
    recompute_s: FloatArray
    kernels_s: Mapping[str, FloatArray]
    messages_s: Mapping[str, Sent]  # by term
    weights_s: FloatArray  # of the backward pass, the gradients of weights
    layers: FloatArray
    parameters: FloatArray
    update_s: FloatArray


class SplitCosts:
    """What split plans of one precision share.

    Attributes
    ----------
    overheads : Overheads
    gradient_bytes : float
        Of an element, as it is sent.
    parameter : BytesOfParameter
    memory_rules : MemoryRules
    message_rules : MessageRules
    overlaps_tensor : bool
        Whether messages of tensor ranks run beside products of the backward pass.
    """

    def __init__(self, sources: Sources, precision: str) -> None:
        self.sources, self.precision = sources, precision
        self.overheads = sources.overheads(precision, "sync")
        settings = sources.problem.settings
        framework = settings.framework
        self.strategy = settings.overlap
        self.gradient_bytes = float(framework.gradient_bytes(precision))
        self.memory_rules = MemoryRules.of(precision, settings.optimizer, framework)
        self.parameter = self.memory_rules.parameter
        self.overlaps_tensor = framework.overlaps_tensor
        itemsize = precision_named(precision).activation_bytes
        self.message_rules = MessageRules(itemsize, scatters_boundary=framework.scatters_boundary)

    @property
    def of(self) -> Transformer:
        """The network in numbers; TypeError where it has none."""
        network = self.sources.problem.network
        if network.transformer is None:
            raise TypeError(f"{network.name} has no architecture in numbers")
        return network.transformer

    def operation_s(self, operation: str, buffer_bytes: FloatArray, groups: Groups) -> FloatArray:
        """Return times [s] of an operation, shape (n,); groups of one rank send nothing."""
        return operation_s(self.sources, operation, buffer_bytes, groups)


class SplitPart:
    """Plans of one number of stages and schedule; ``rank``: the rank of each in ``compute``, shape (n,)."""

    def __init__(self, costs: SplitCosts, plans: SplitPlans, compute: SplitCompute, rank: IntArray) -> None:
        self.costs, self.plans, self.compute = costs, plans, compute
        self.stages, self.schedule = int(plans.pipeline_parallel[0]), SCHEDULES[int(plans.schedule[0])]
        self.rank: RankCompute = compute.ranks[int(rank[0])]
        cluster = costs.sources.cluster
        nics = cluster.inter_node.nics_per_node if cluster.inter_node else 1
        self.placement = Placement(plans, nics)
        self._placed: dict[str, Groups] = {}
        self.m = plans.accumulation_steps.astype(np.float64)
        self.counts = stage_units(self.rank.units, self.stages)
        compute.cases.ensure(*distinct_pairs(rank, plans.sub_batch))
        self._row = compute.cases.rows(rank, plans.sub_batch)
        self._parameters_of_unit, self._experts_of_unit = compute.parameters[rank], compute.experts[rank]

    def host_s(self, name: str) -> FloatArray:
        """Return the host time of a pass over each stage of the first plan [s], shape (p,)."""
        host = self.compute.cases.columns.host_s(self.costs.overheads)[self._row[0], PASSES.index(name)]
        return np.asarray(self.counts @ host)

    def slowest_stage(self) -> int:
        """Return the stage of the first plan that has the most work."""
        return int(np.argmax(np.add(*self._passes(self._stages()))[:, 0]))

    def _passes(self, of: _Stages) -> tuple[FloatArray, FloatArray]:
        """Return the forward and the backward pass of a micro-batch on every stage, with all that they wait for."""
        forward, backward = self._alone(of)
        return self._gathered(of, forward, backward)

    def _alone(self, of: _Stages) -> tuple[FloatArray, FloatArray]:
        """Return the passes of a micro-batch, weights being there."""
        forward = of.forward_s + sum(one.forward_s for one in of.messages_s.values())
        backward = of.backward_s + of.recompute_s + sum(one.backward_s for one in of.messages_s.values())
        return forward, backward

    def terms(self) -> dict[str, tuple[FloatArray, FloatArray]]:
        """Return what each term takes and adds to the step, (n,) each."""
        costs, plans, m = self.costs, self.plans, self.m
        of = self._stages()
        forward, backward = self._alone(of)
        gathered_forward, gathered_backward = self._passes(of)
        own = m * (gathered_forward + gathered_backward)
        slowest = np.argmax(own, axis=0)[None]
        transfer = self._transfer_s()
        passes, m_of = (gathered_forward, gathered_backward), plans.accumulation_steps
        still = pipeline_s(*passes, np.zeros_like(transfer), m_of, **self._schedule(of))
        whole = pipeline_s(*passes, transfer, m_of, **self._schedule(of))

        def shown(per_stage: FloatArray) -> FloatArray:
            return np.asarray(np.take_along_axis(np.broadcast_to(per_stage, own.shape), slowest, axis=0)[0])

        kernels = {name: shown(one) for name, one in of.kernels_s.items()}
        alone = m * (kernels["forward"] + kernels["backward"] + kernels["recompute"])
        computed = m * shown(of.forward_s + of.backward_s + of.recompute_s)
        terms = {name: (m * kernels[name],) * 2 for name in ("forward", "backward", "recompute")}
        terms["host"] = (computed - alone,) * 2
        for name, sent in of.messages_s.items():
            terms[name] = m * shown(sent.taken_s), m * shown(sent.forward_s + sent.backward_s)
        waited = m * shown(np.maximum((gathered_forward - forward) + (gathered_backward - backward), 0.0))
        terms["sharded_weights"] = (waited,) * 2
        terms["bubble"] = (np.maximum(still - shown(own), 0.0) * (self.stages > 1),) * 2
        terms["stage_messages"] = ((whole - still),) * 2
        terms["all_reduce"] = self._exchange(of, gathered_backward, transfer)
        terms["embedding_all_reduce"] = (self._tied_s(),) * 2
        terms["update"] = (of.update_s.max(axis=0),) * 2
        terms["updated_weights"] = (self._updated_weights_s(of),) * 2
        share = np.where(plans.gpus > 1, costs.overheads.replica_wait, 0.0)
        terms["replica_wait"] = (share * (computed + terms["update"][0]),) * 2
        return terms

    def _stages(self) -> _Stages:
        costs, counts, row = self.costs, self.counts, self._row
        of_blocks = counts_of_blocks(self.rank.units, counts)
        table = self.compute.cases.columns
        kernels, host = (
            {name: one[row, at] for at, name in enumerate(PASSES)}
            for one in (table.kernels_s(costs.overheads), table.host_s(costs.overheads))
        )

        def both(name: str, held: FloatArray) -> tuple[FloatArray, FloatArray]:
            return held @ kernels[name].T, held @ host[name].T

        def passed(term: str, kernel: FloatArray, host_s: FloatArray) -> FloatArray:
            whole = composed_s(kernel, host_s, costs.overheads.exponent)
            return costs.sources.multiplied(term, whole, costs.precision)

        forward = both("forward", counts)
        again = self._again(both("forward", of_blocks), both("attention", of_blocks))
        first, later = both("backward", counts), both("accumulating", counts)
        share = (self.m - 1) / self.m

        def mean(of_first: FloatArray, of_later: FloatArray) -> FloatArray:
            return of_first + share * (of_later - of_first)

        update, weights = both("update", counts), both("weights", counts)[0]
        of_weights = np.divide(weights, first[0], out=np.zeros_like(weights), where=first[0] > 0)
        whole_backward = mean(passed("backward", *first), passed("backward", *later))
        sharded = np.where(self.plans.sharding > 0, self._shard_ranks(), 1.0)
        return _Stages(
            passed("forward", *forward),
            whole_backward,
            passed("forward", *again),
            {
                "forward": costs.sources.multiplied("forward", forward[0], costs.precision),
                "backward": costs.sources.multiplied("backward", mean(first[0], later[0]), costs.precision),
                "recompute": costs.sources.multiplied("forward", again[0], costs.precision),
            },
            StageMessages(costs, self.plans, self._groups, self.compute, counts).seconds(self._row),
            whole_backward * of_weights,
            counts.sum(axis=1)[:, None],
            self._parameters(counts),
            passed("update", update[0] / sharded, update[1]),
        )

    def _again(
        self, whole: tuple[FloatArray, FloatArray], attention: tuple[FloatArray, FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Return kernels and host time of what is computed again."""
        is_full = self.plans.recompute == RECOMPUTES.index("full")
        is_selective = self.plans.recompute == RECOMPUTES.index("selective")
        kernel, host = (
            np.where(is_full, one, np.where(is_selective, other, 0.0))
            for one, other in zip(whole, attention, strict=True)
        )
        return kernel, host

    def _parameters(self, counts: FloatArray) -> FloatArray:
        """Return the parameters of a rank of every stage, shape (p, n); the last stage copies a tied embedding."""
        held = counts @ self._parameters_of_unit.T
        if self.stages > 1 and self.costs.of.tied:
            held[-1] += self._table_elements()
        return held

    def _table_elements(self) -> FloatArray:
        """Return the elements of a rank's table of tokens, shape (n,)."""
        tensor = self.plans.tensor_parallel
        whole = self.costs.of.vocabulary
        rows = padded_vocabulary(whole, tensor) if self.costs.memory_rules.padded else whole
        return np.asarray(rows / tensor * float(self.costs.of.hidden))

    def _groups(self, name: str) -> Groups:
        if name not in self._placed:
            self._placed[name] = self.placement.groups(name)
        return self._placed[name]

    @staticmethod
    def _each_stage(seconds: Callable[[FloatArray], FloatArray], buffer_bytes: FloatArray) -> FloatArray:
        """Return times of what stages send, shape (p, n), worked out once for stages that send the same."""
        keys = [row.tobytes() for row in buffer_bytes]
        distinct = {key: seconds(buffer_bytes[keys.index(key)]) for key in dict.fromkeys(keys)}
        return np.stack([distinct[key] for key in keys])

    def _transfer_s(self) -> FloatArray:
        """Return the time of one micro-batch between neighbouring stages, shape (n,)."""
        if self.stages == 1:
            return np.zeros(self.m.size)
        parts = [
            one.count * self.costs.operation_s(one.operation, one.buffer_bytes, self._groups(one.group))
            for one in boundary_messages(self.costs.of, self.plans, self.costs.message_rules)
        ]
        return np.asarray(np.sum(parts, axis=0))

    def _schedule(self, of: _Stages) -> dict[str, Any]:
        """Return what says the schedule to planner.steps.pipeline."""
        v = self.plans.virtual_stages if self.schedule == "interleaved" else np.ones_like(self.plans.virtual_stages)
        return {"schedule": self.schedule, "virtual_stages": v, "weight_s": of.weights_s}

    def _shard_ranks(self) -> FloatArray:
        """Return how many ranks share sharded state, shape (n,)."""
        by_node = self.plans.shard_group == SHARD_GROUPS.index("node")
        return np.where(by_node, self._groups(NODE_SHARDS).ranks, self._groups(GRADIENTS).ranks).astype(np.float64)

    def _shard_s(self, operation: str, buffer_bytes: FloatArray) -> FloatArray:
        """Return an operation between the ranks that share sharded state, shape of ``buffer_bytes``: (n,)."""
        by_node = self.plans.shard_group == SHARD_GROUPS.index("node")
        inside = self.costs.operation_s(operation, buffer_bytes, self._groups(NODE_SHARDS)) if by_node.any() else 0.0
        whole = self.costs.operation_s(operation, buffer_bytes, self._groups(GRADIENTS))
        return np.where(by_node, inside, whole)

    def _gathered(self, of: _Stages, forward_s: FloatArray, backward_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the passes of a micro-batch with the gathers and scatters of sharded weights that they wait for."""
        shares = self.plans.sharding == SHARED_WEIGHTS
        if not shares.any():
            return forward_s, backward_s
        each = of.parameters / of.layers
        gather = self._each_stage(partial(self._shard_s, ALL_GATHER), self.costs.parameter.weight * each)
        scatter = self._each_stage(partial(self._shard_s, REDUCE_SCATTER), self.costs.gradient_bytes * each)
        ahead = equal_forward_s(forward_s / of.layers, gather, of.layers)
        back = equal_backward_s(backward_s / of.layers, gather, scatter, of.layers)
        return np.where(shares, ahead, forward_s), np.where(shares, back, backward_s)

    def _exchange(self, of: _Stages, backward_s: FloatArray, transfer_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what the exchange of gradients takes of the fullest stage, and what it adds to the step, (n,)."""
        strategy, is_whole = self.costs.strategy, self.plans.sharding == 0
        bytes_ = self.costs.gradient_bytes * of.parameters * (self.plans.sharding < SHARED_WEIGHTS)
        buckets = np.ones_like(bytes_)
        if strategy.overlap:
            size = strategy.bucket_bytes
            buckets = np.maximum(np.ceil(bytes_ / size), 1.0) if size else np.broadcast_to(of.layers, bytes_.shape)
        message = self._bucket_s(bytes_ / buckets, is_whole)
        taken = np.where(self.plans.sharding < SHARED_WEIGHTS, buckets * message, 0.0)
        if strategy.overlap:
            late = exposed_exchange_s(backward_s, transfer_s, message, buckets, **self._schedule(of))
        else:
            late = np.maximum(taken - drain_s(backward_s, transfer_s, **self._schedule(of)), 0.0)
        return taken.max(axis=0), np.where(taken > 0, late, 0.0).max(axis=0)

    def _bucket_s(self, buffer_bytes: FloatArray, is_whole: BoolArray) -> FloatArray:
        """Return the exchange of one bucket of each stage, shape (p, n); gradients of experts go to fewer ranks."""
        together = self._each_stage(partial(self._gradients_s, is_whole=is_whole), buffer_bytes)
        apart = self.plans.expert_parallel > 1
        if not apart.any():
            return together
        of_experts = buffer_bytes * (self.counts @ self._experts_of_unit.T) / (self.counts @ self._parameters_of_unit.T)
        parts = [
            self._each_stage(partial(self._gradients_s, is_whole=is_whole, names=names), some)
            for names, some in ((_ALL_RANKS, buffer_bytes - of_experts), (_EXPERT_RANKS, of_experts))
        ]
        return np.where(apart, parts[0] + parts[1], together)

    def _gradients_s(
        self, buffer_bytes: FloatArray, is_whole: BoolArray, names: tuple[str, str, str] = _ALL_RANKS
    ) -> FloatArray:
        """Return one exchange of gradients, shape (n,): summed on every rank, or scattered over those that share.

        ``names``: of the groups that hold the same parameters, of their ranks in a node, and of the like across nodes.
        """
        costs, plans = self.costs, self.plans
        everyone, inside, across = map(self._groups, names)
        summed = costs.operation_s(ALL_REDUCE, buffer_bytes, everyone)
        if is_whole.all():
            return summed
        scattered = costs.operation_s(REDUCE_SCATTER, buffer_bytes, everyone)
        by_node = plans.shard_group == SHARD_GROUPS.index("node")
        if by_node.any():
            shard_s = costs.operation_s(ALL_REDUCE, buffer_bytes / np.maximum(inside.ranks, 1), across)
            in_node = costs.operation_s(REDUCE_SCATTER, buffer_bytes, inside)
            scattered = np.where(by_node, in_node + shard_s, scattered)
        return np.where(is_whole, summed, scattered)

    def _tied_s(self) -> FloatArray:
        """Return the all-reduce of a tied embedding between the first and the last stage, shape (n,)."""
        if self.stages == 1 or not self.costs.of.tied or not self.costs.of.vocabulary:
            return np.zeros(self.m.size)
        bytes_ = self.costs.gradient_bytes * self._table_elements()
        return self.costs.operation_s(ALL_REDUCE, bytes_, self._groups(ENDS))

    def _updated_weights_s(self, of: _Stages) -> FloatArray:
        """Return the gather of weights whose state is shared, behind the update, shape (n,)."""
        shared = (self.plans.sharding > 0) & (self.plans.sharding < SHARED_WEIGHTS)
        if not shared.any():
            return np.zeros(self.m.size)
        fullest = self.costs.parameter.weight * of.parameters.max(axis=0)
        return np.where(shared, self._shard_s(ALL_GATHER, fullest), 0.0)
