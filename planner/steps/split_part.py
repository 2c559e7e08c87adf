"""Times of plans that split a network: stages from the units they hold, messages, pipeline, exchange and update.

T = pipeline(stages) + exposed exchange of gradients + tied embedding + update + gather of updated weights. A pass of
one micro-batch over a stage takes what its kernels and its host take together, and its messages. Of the stages the one
with the most work is shown: its own time, what the pipeline waits for besides (bubble), and what is sent between
stages; the sum is the step.

After a stage's last backward pass it exchanges gradients while stages above it still compute: only what outlasts the
pipeline adds to the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.messages import ALL_REDUCE, ENDS, TENSOR, Groups
from planner.domain.precision import precision_named
from planner.domain.split import RECOMPUTES, SCHEDULES, SplitPlans
from planner.domain.transformer import Transformer
from planner.sources.sources import Sources
from planner.steps.compute import composed_s
from planner.steps.gathers import equal_backward_s, equal_forward_s
from planner.steps.pipeline import pipeline_s
from planner.steps.pipeline_drain import drain_s, exposed_exchange_s
from planner.steps.split_compute import PASSES, RankCompute, SplitCompute
from planner.steps.split_exchange import Elements, StageExchange
from planner.steps.split_messages import operation_s
from planner.steps.split_sent import Sent, StageMessages, counts_of_blocks
from planner.steps.tables import distinct_pairs
from planner.workload.placement import Placement
from planner.workload.split_memory import MemoryRules
from planner.workload.split_messages import (
    MessageRules,
    boundary_messages,
)
from planner.workload.split_parameters import stage_parameters
from planner.workload.transformer import padded_vocabulary
from planner.workload.units import stage_units

__all__ = ["SPLIT_TERMS", "SplitCosts", "SplitPart"]

SPLIT_TERMS = (
    "forward", "backward", "recompute", "host", "tensor_messages", "context_messages", "expert_messages",
    "sharded_weights", "host_to_device", "bubble", "stage_messages", "all_reduce", "embedding_all_reduce", "update",
    "updated_weights", "offload", "replica_wait", "load_input",
)  # fmt: skip
"""Terms of a step in the order of an answer."""
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
    parameters: Elements
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
    rank_order : tuple of str
        How ranks are numbered, innermost first.
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
        self.rank_order = settings.placed_by
        self.memory_rules = MemoryRules.of(precision, settings.optimizer, framework, self.rank_order)
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
        self.placement = Placement(plans, nics, costs.rank_order)
        self._placed: dict[str, Groups] = {}
        self.exchange = StageExchange(costs, plans, self._groups)
        self.m = plans.accumulation_steps.astype(np.float64)
        self.last_stage = int(plans.last_stage[0])
        self.counts = stage_units(self.rank.units, self.stages, self.last_stage)
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
        norms = self._norm_gradients_s()
        if norms.any():
            taken, added = terms["tensor_messages"]
            terms["tensor_messages"] = taken + norms, added + norms
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
        parameters = self._parameters(counts)
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
            parameters,
            passed("update", update[0] * self.exchange.update_share(parameters), update[1]),
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

    def _parameters(self, counts: FloatArray) -> Elements:
        """Return the parameters of a rank of every stage; the last stage copies a tied embedding."""
        experts = counts @ self._experts_of_unit.T
        others = counts @ self._parameters_of_unit.T - experts
        if self.last_stage > 0 and self.costs.of.tied:
            others[-1] += self._table_elements()
        return Elements(experts, others)

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
        return {"schedule": self.schedule, "virtual_stages": self.plans.virtual_stages, "weight_s": of.weights_s}

    def _gathered(self, of: _Stages, forward_s: FloatArray, backward_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the passes of a micro-batch with the gathers and scatters of sharded weights that they wait for."""
        shares = self.plans.sharding == SHARED_WEIGHTS
        if not shares.any():
            return forward_s, backward_s
        each = of.parameters.over(of.layers)
        gather, scatter, across = (
            one(each) for one in (self.exchange.gather_s, self.exchange.scatter_s, self.exchange.across_s)
        )
        ahead = equal_forward_s(forward_s / of.layers, gather, of.layers)
        back = equal_backward_s(backward_s / of.layers, gather, scatter, of.layers, across)
        return np.where(shares, ahead, forward_s), np.where(shares, back, backward_s)

    def _exchange(self, of: _Stages, backward_s: FloatArray, transfer_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what the exchange of gradients takes of the fullest stage, and what it adds to the step, (n,)."""
        strategy = self.costs.strategy
        gradients = Elements(*(one * (self.plans.sharding < SHARED_WEIGHTS) for one in of.parameters))
        bytes_ = self.costs.gradient_bytes * gradients.total
        buckets = np.ones_like(bytes_)
        if strategy.overlap:
            size = strategy.bucket_bytes
            buckets = np.maximum(np.ceil(bytes_ / size), 1.0) if size else np.broadcast_to(of.layers, bytes_.shape)
        message = self.exchange.sum_s(gradients.over(buckets))
        taken = buckets * message
        if strategy.overlap:
            late = exposed_exchange_s(backward_s, transfer_s, message, buckets, **self._schedule(of))
        else:
            late = np.maximum(taken - drain_s(backward_s, transfer_s, **self._schedule(of)), 0.0)
        return taken.max(axis=0), np.where(taken > 0, late, 0.0).max(axis=0)

    def _norm_gradients_s(self) -> FloatArray:
        """Return the sum over tensor ranks of gradients that each has of its own positions alone, (n,).

        With sequence parallelism: of what every tensor rank has whole, once a step and in one message behind the
        exchange (MODEL 10.8; NVIDIA/Megatron-LM, core/distributed/finalize_model_grads, _allreduce_layernorm_grads:
        parameters marked ``sequence_parallel`` are norms, biases behind rows, routers and products that are not split).
        """
        alone = (self.plans.sequence_parallel > 0) & (self.plans.tensor_parallel > 1)
        if not alone.any():
            return np.zeros(self.m.size)
        stage = np.arange(self.stages)[:, None]
        most = stage_parameters(self.costs.of, self.plans, stage).whole.max(axis=0)
        seconds = self.costs.operation_s(ALL_REDUCE, self.costs.gradient_bytes * most, self._groups(TENSOR))
        return np.where(alone, seconds, 0.0)

    def _tied_s(self) -> FloatArray:
        """Return the all-reduce of a tied embedding between the first and the last stage, shape (n,)."""
        if self.last_stage == 0 or not self.costs.of.tied or not self.costs.of.vocabulary:
            return np.zeros(self.m.size)
        bytes_ = self.costs.gradient_bytes * self._table_elements()
        return self.costs.operation_s(ALL_REDUCE, bytes_, self._groups(ENDS))

    def _updated_weights_s(self, of: _Stages) -> FloatArray:
        """Return the gather of weights whose state is shared, behind the update, shape (n,)."""
        shared = (self.plans.sharding > 0) & (self.plans.sharding < SHARED_WEIGHTS)
        if not shared.any():
            return np.zeros(self.m.size)
        return np.where(shared, self.exchange.gather_s(of.parameters).max(axis=0), 0.0)
