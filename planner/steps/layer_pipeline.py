"""Prices of plans that cut a network without an architecture in numbers, such as a CNN, into stages of layers.

T = pipeline(stages) + exposed exchange of gradients + update, as of split transformers
(:mod:`planner.steps.split_part`), with whole layers on every stage.

A stage sends on every tensor that was made before its end and is read behind it, and is sent as many bytes of their
gradients. GPipe takes the sum over all cuts, so that their mean serves; of other schedules the widest cut stands for
all, an upper figure. The first stage copies its samples to the device; loading them is hidden behind the step before
where input is prefetched, and a later epoch's is taken for the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_rows
from planner.domain.configuration import Configurations
from planner.domain.messages import ALL_REDUCE, GRADIENTS, NEIGHBOURS, SEND_RECEIVE
from planner.domain.split import BEST_STAGES, SCHEDULES, SplitMemoryBytes, SplitPlans
from planner.errors import ParameterError
from planner.sources.sources import Sources
from planner.steps.epoch import Input
from planner.steps.host_and_gpu import STAGES
from planner.steps.layer_cuts import LayerCuts, cut_at
from planner.steps.pipeline import pipeline_s
from planner.steps.pipeline_drain import exchange_s
from planner.steps.split_part import SPLIT_TERMS
from planner.steps.split_price import SplitPriced, SplitPricer, plans_of
from planner.steps.synchronous import Runs
from planner.workload.blocks import block_starts
from planner.workload.gradients import gradient_buckets
from planner.workload.partition import best_cuts
from planner.workload.units import StageLayers, cut_units

__all__ = ["LayerPart", "LayerPricer", "split_pricer"]

Both = tuple[FloatArray, FloatArray]


def split_pricer(sources: Sources, precision: str, like: SplitPricer | None = None) -> SplitPricer:
    """Return the pricer of plans that split the network of a problem."""
    kind = SplitPricer if block_starts(sources.problem.network) else LayerPricer
    return kind(sources, precision, like)


class LayerPricer(SplitPricer):
    """Prices plans whose stages hold layers.

    Attributes
    ----------
    cuts : LayerCuts
    input : Input
    """

    def __init__(self, sources: Sources, precision: str, like: SplitPricer | None = None) -> None:
        super().__init__(sources, precision, like)
        self.cuts = LayerCuts(self, self.ledger.whole.crossing)
        self.input = Input(sources)
        self._best: dict[tuple[int, ...], IntArray] = {}

    def memory(self, plans: SplitPlans) -> SplitMemoryBytes:
        """Return the memory of each plan's fullest rank."""
        parts, (first, which) = [], self.cut_alike(plans)
        for at, row in enumerate(first.tolist()):
            some = plans.take(np.flatnonzero(which == at))
            parts.append(self.ledger.of_cuts(self.cuts_of(plans.take(np.array([row]))), some))
        back = np.argsort(np.argsort(which, kind="stable"))
        names = [one.name for one in fields(SplitMemoryBytes)]
        none = np.zeros(0, np.int64)
        columns = {name: np.concatenate([none, *(getattr(one, name) for one in parts)])[back] for name in names}
        return SplitMemoryBytes(**columns)

    def cut_alike(self, plans: SplitPlans) -> tuple[IntArray, IntArray]:
        """Return one of each kind of plans that are cut alike, and the kind of each; best cuts are those that fit."""
        fitted = plans.stages == BEST_STAGES
        sub_batch = np.where(fitted, plans.sub_batch, cut_at(plans.sub_batch))
        memory = (np.where(fitted, one, 0) for one in (plans.accumulation_steps, plans.schedule))
        return distinct_rows(plans.pipeline_parallel, plans.stages, sub_batch, *memory)

    def cuts_of(self, plan: SplitPlans) -> IntArray:
        """Return the unit that each stage starts with, and V, shape (p + 1,); ``plan`` of shape (1,).

        Best stages fit the device where any do; where none do, the fullest needs the least that it can.
        """
        stages, sub_batch = int(plan.pipeline_parallel[0]), int(plan.sub_batch[0])
        if plan.stages[0] != BEST_STAGES or stages == 1:
            return self.cuts.cuts(stages, sub_batch)
        key = stages, sub_batch, int(plan.accumulation_steps[0]), int(plan.schedule[0])
        if key not in self._best:
            ends = np.arange(self.cuts.crossing.size)
            first, end = np.minimum(ends[:, None], ends[-1] - 1), ends[None]
            layers = StageLayers(first, end, np.zeros_like(first))
            memory = self.ledger.of_stages(plan, np.arange(stages)[:, None, None], layers).total
            time_s = self.cuts.stage_s(int(cut_at(plan.sub_batch)[0]))
            fits = np.where(memory <= self.sources.accelerator.memory_bytes, time_s, np.inf)
            crossing = self.cuts.crossing
            cuts = best_cuts(fits, memory, crossing)
            self._best[key] = cuts if cuts is not None else _least(memory, crossing)
        return self._best[key]

    def totals(self, configurations: Configurations) -> tuple[FloatArray, FloatArray]:
        """Return the step [s] and the memory of the fullest rank [bytes] of configurations alone, (n,) each."""
        return self._in_full(configurations)

    def _priced(self, configurations: Configurations) -> SplitPriced:
        """Price configurations whose ranks are numbered alike, rows of shape (n,)."""
        plans = plans_of(configurations)
        terms = {name: np.zeros((2, configurations.size)) for name in SPLIT_TERMS}
        slowest = np.zeros(configurations.size, dtype=np.int64)
        first, which = distinct_rows(plans.pipeline_parallel, plans.schedule)
        for at in range(first.size):
            rows = np.flatnonzero(which == at)
            part = LayerPart(self, plans.take(rows))
            slowest[rows] = part.slowest
            for name, both in part.terms().items():
                terms[name][:, rows] = both
        terms["load_input"][:] = self._load(plans, np.sum([exposed for _, exposed in terms.values()], axis=0))
        seconds, exposed = ({name: both[at] for name, both in terms.items()} for at in range(2))
        return SplitPriced(np.sum(list(exposed.values()), axis=0), seconds, exposed, self.memory(plans), slowest)

    def _load(self, plans: SplitPlans, step_s: FloatArray) -> Both:
        """Return what loading samples takes and adds; the ranks of the first stage load, one of each copy."""
        copies, samples = self.placement(plans).groups(GRADIENTS), plans.sub_batch * plans.accumulation_steps
        in_node = np.ceil(copies.ranks_per_node).astype(np.int64)
        load = self.input.times(samples, in_node, copies.nodes, first_epoch=False).node_s
        return load, np.maximum(load - step_s, 0.0) if self.strategy.prefetch else load


def _least(memory: FloatArray, crossing: FloatArray) -> IntArray:
    """Return the cuts whose fullest stage needs least memory."""
    cuts = best_cuts(memory, memory, crossing)
    if cuts is None:
        raise ParameterError("pipeline stages", f"from 1 to the {crossing.size - 1} units", len(memory))
    return cuts


class LayerPart:
    """Plans of one number of stages and schedule, shape (n,), with k distinct sub-batches and cuts.

    Attributes
    ----------
    plans : SplitPlans
    rank : RankCompute
    cuts : ndarray of int, shape (k, p + 1)
        The unit that each stage starts with, and the number of units.
    """

    def __init__(self, costs: LayerPricer, plans: SplitPlans) -> None:
        self.costs, self.plans, self.rank = costs, plans, costs.cuts.rank
        self.stages, self.schedule = int(plans.pipeline_parallel[0]), SCHEDULES[int(plans.schedule[0])]
        self.m = plans.accumulation_steps.astype(np.float64)
        kind = costs.cut_alike(plans)[1]
        first, self._of = distinct_rows(plans.sub_batch, kind)
        self._sub_batch = plans.sub_batch[first]
        self.cuts = np.stack([costs.cuts_of(plans.take(np.array([row]))) for row in first.tolist()])
        self.placement = costs.placement(plans)

    @property
    def counts(self) -> FloatArray:
        """How many of each distinct unit the stages of the first plan hold, shape (p, U)."""
        return cut_units(self.rank.units, self.cuts[self._of[0]])

    @property
    def first_layers(self) -> tuple[str, ...]:
        """The layers that the stages of the first plan start with."""
        starts = self.rank.units.starts[self.cuts[self._of[0], :-1]]
        return tuple(self.rank.network.layers[at].name for at in starts.tolist())

    @property
    def slowest(self) -> IntArray:
        """The stage with the most work, shape (n,)."""
        return np.asarray(np.argmax(np.add(*self.passes()), axis=0))

    def on_stages(self, name: str) -> Both:
        """Return kernels and host time of a pass over each stage, shape (p, n) [s]."""
        ahead = self.costs.cuts.ahead_of(name, self._sub_batch)
        kernels, host = (np.diff(np.take_along_axis(one, self.cuts, axis=1), axis=1).T[:, self._of] for one in ahead)
        return kernels, host

    @cached_property
    def stage_s(self) -> dict[str, FloatArray]:
        """What the passes and the update of each stage take, kernels and host together [s], shape (p, n)."""
        nothing = np.zeros((self.stages, self.m.size))
        by_stage = [*(self.on_stages(name) for name in STAGES), (nothing, nothing)]
        kernels, host = (np.stack(each, axis=-1) for each in zip(*by_stage, strict=True))
        return self.costs.stages_s(kernels, host)

    def _backward(self) -> FloatArray:
        """Return the mean of m backward passes, of which the first only writes gradients."""
        first, later = self.stage_s["backward"], self.stage_s["accumulating"]
        return np.asarray(first + (self.m - 1) / self.m * (later - first))

    def copy_s(self) -> FloatArray:
        """Return the copy of a micro-batch to the device, of the first stage, shape (p, n)."""
        copy = np.zeros((self.stages, self.m.size))
        copy[0] = self.rank.host_to_device_s(self.plans.sub_batch)
        return copy

    def passes(self) -> Both:
        """Return the forward and the backward pass of a micro-batch on every stage, shape (p, n) [s]."""
        return self.stage_s["forward"] + self.copy_s(), self._backward()

    def terms(self) -> dict[str, Both]:
        """Return what each term takes and adds to the step, (n,) each."""
        m, passes = self.m, self.passes()
        own = m * (passes[0] + passes[1])
        slowest = np.argmax(own, axis=0)[None]
        transfer, steps = self.transfer_s(), self.plans.accumulation_steps
        schedule: dict[str, Any] = {"schedule": self.schedule}
        if self.schedule == "zero-bubble":
            schedule["weight_s"] = self._weights_s(passes[1])
        still = pipeline_s(*passes, np.zeros_like(transfer), steps, **schedule)
        whole = pipeline_s(*passes, transfer, steps, **schedule)

        def shown(per_stage: FloatArray) -> FloatArray:
            return np.asarray(np.take_along_axis(per_stage, slowest, axis=0)[0])

        update = self.stage_s["update"].max(axis=0)
        wait = np.where(self.plans.gpus > 1, self.costs.overheads.replica_wait, 0.0)
        once = {
            "forward": m * shown(self.stage_s["forward"]),
            "backward": m * shown(passes[1]),
            "host_to_device": m * shown(self.copy_s()),
            "bubble": np.maximum(still - shown(own), 0.0) * (self.stages > 1),
            "stage_messages": whole - still,
            "update": update,
            "replica_wait": wait * (still + update),
        }
        return {name: (one, one) for name, one in once.items()} | {
            "all_reduce": self._exchange(passes[1], transfer, schedule)
        }

    def _weights_s(self, backward_s: FloatArray) -> FloatArray:
        """Return the part of the backward pass that is gradients of weights, shape (p, n)."""
        weights, whole = (self.on_stages(name)[0] for name in ("weights", "backward"))
        return backward_s * np.divide(weights, whole, out=np.zeros_like(weights), where=whole > 0)

    def transfer_s(self) -> FloatArray:
        """Return the time of one micro-batch between neighbouring stages, shape (n,)."""
        if self.stages == 1:
            return np.zeros(self.m.size)
        crossing = self.costs.cuts.crossing[self.cuts[:, 1:-1]]
        sizes = (crossing.mean(axis=1) if self.schedule == "gpipe" else crossing.max(axis=1))[self._of]
        groups = self.placement.groups(NEIGHBOURS)
        return self.costs.operation_s(SEND_RECEIVE, sizes * self.plans.sub_batch, groups)

    def _exchange(self, backward_s: FloatArray, transfer_s: FloatArray, schedule: dict[str, Any]) -> Both:
        """Return what the exchange of gradients takes of the fullest stage, and what it adds to the step, (n,)."""
        ways = list(self._buckets())
        groups, both = self.placement.groups(GRADIENTS), np.zeros((2, self.m.size))
        step = max(1, _MOST_MESSAGES // max(share.shape[0] * share.shape[1] for share, _ in ways))
        for start in range(0, self.m.size, step):
            rows = np.arange(start, min(start + step, self.m.size))

            def runs(share: FloatArray, bytes_: FloatArray, rows: IntArray = rows) -> Runs:
                of = bytes_[..., self._of[rows]]
                ranks = groups.rows(np.tile(rows, of.shape[0] * of.shape[1]))
                message_s = self.costs.operation_s(ALL_REDUCE, of.ravel(), ranks).reshape(of.shape)
                return Runs(share[..., self._of[rows]], message_s, (of > 0).astype(np.float64))

            some = {name: value[:, rows] if name == "weight_s" else value for name, value in schedule.items()}
            every = (runs(*way) for way in ways)
            overlap = self.costs.strategy.overlap
            both[:, rows] = exchange_s(backward_s[:, rows], transfer_s[rows], every, overlaps=overlap, **some)
        return both[0], both[1]

    def _buckets(self) -> Iterator[Both]:
        """Yield every way to send gradients: of each message its share of the backward pass, and bytes, (R, p, k)."""
        strategy, bytes_ = self.costs.strategy, self.costs.gradient_bytes * self.costs.ledger.whole.sums[:2].sum(axis=0)
        computed = np.diff(self.costs.cuts.ahead_of("backward", self._sub_batch)[0], axis=1)
        whole = float(bytes_.sum())
        sizes = [(strategy.first_bucket_bytes, strategy.bucket_bytes)] if strategy.overlap else [(whole, whole)]
        if strategy.best_buckets:
            sizes = [(0.0, 0.0), *((whole / number,) * 2 for number in 2 ** np.arange(_MOST_HALVED))]
        for first, size in sizes:
            stages = [
                [_messages(bytes_[start:end], times[start:end], (first, size)) for start, end in pairwise(cuts)]
                for cuts, times in zip(self.cuts.tolist(), computed, strict=True)
            ]
            most = max(one.shape[1] for of_case in stages for one in of_case)
            padded = [[np.pad(one, ((0, 0), (0, most - one.shape[1]))) for one in of_case] for of_case in stages]
            share, sent = np.array(padded).transpose(2, 3, 1, 0)
            yield share, sent


_MOST_MESSAGES = 1 << 21
"""Messages of stages whose times are worked out at once."""
_MOST_HALVED = 8
"""Sizes of best buckets that are tried: all gradients in one, and each half of the one before."""


def _messages(bytes_: FloatArray, computed_s: FloatArray, size: tuple[float, float]) -> FloatArray:
    """Return the messages of a stage of some units: share of its backward pass, and bytes, shape (2, R)."""
    lowest = gradient_buckets(bytes_, *size)
    share = np.add.reduceat(computed_s, lowest) / max(float(computed_s.sum()), 1e-300)
    return np.stack([share, np.add.reduceat(bytes_, lowest)])
