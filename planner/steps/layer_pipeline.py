"""Prices of plans that cut a network without blocks, such as a CNN, into stages of layers.

Its stages are laid out as its cuts say and priced as all others. A stage sends on every tensor that was made before its
end and is read behind it, and is sent as many bytes of their gradients. GPipe takes the sum over all cuts, so that
their mean serves; of other schedules the widest cut stands for all, an upper figure. Gradients are sent in the buckets
that the framework fills.

Where a pipeline cuts a network without an architecture in numbers, such as a CNN: stages of layers, by their time.

Stages are cut where the slowest is as fast as it can be: both passes, kernels and host time together. A cut may lie
before any layer with parameters. Cuts are laid down once for sub-batches that differ in their fifth significant binary
digit, or later ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from planner.domain.configuration import Configurations
from planner.domain.messages import NEIGHBOURS, SEND_RECEIVE
from planner.domain.split import BEST_STAGES, RECOMPUTES, SplitMemoryBytes, StageLayers
from planner.errors import ParameterError
from planner.sources.sources import Sources
from planner.steps.compute import PASSES, RankCompute
from planner.steps.host_and_gpu import STAGES
from planner.steps.layer_groups import GroupPricer
from planner.steps.price import Priced, Pricer
from planner.steps.stage_cases import OfStages, StageCases, StageLayout
from planner.steps.state import Elements, StageExchange
from planner.steps.step_costs import StepCosts, units_s
from planner.steps.step_part import OneStage, StepPart
from planner.steps.synchronous import Runs
from planner.workload.placement import Placement
from planner.workload.program import Partition, best_cuts, block_starts, gradient_buckets
from planner.workload.rank_sizes import SUMS
from planner.workload.schemes import Segments, segments_of

Both = tuple[FloatArray, FloatArray]


def step_pricer(sources: Sources, precision: str, like: StepCosts | None = None) -> Pricer:
    """Return the pricer of synchronous plans of the network of a problem."""
    kind = Pricer if block_starts(sources.problem.network) else LayerPricer
    return kind(sources, precision, like)


class LayerPricer(Pricer):
    """Prices plans whose stages hold layers."""

    def __init__(self, sources: Sources, precision: str, like: StepCosts | None = None) -> None:
        super().__init__(sources, precision, like)
        self.cuts = LayerCuts(self, self.ledger.whole.crossing)
        self._best: dict[tuple[int, ...], IntArray] = {}

    @cached_property
    def groups(self) -> GroupPricer:
        """What prices plans whose groups share single layers."""
        return GroupPricer(self)

    def apart(self, plans: Configurations) -> list[tuple[IntArray, Pricer]]:
        """Return rows of plans with the pricer of each, this one or that of groups that share layers."""
        shares = plans.rows.tensor_parallel > 1
        parts = [(np.flatnonzero(~shares), self), (np.flatnonzero(shares), self.groups if shares.any() else self)]
        return [(rows, pricer) for rows, pricer in parts if rows.size]

    def price(self, configurations: Configurations) -> Priced:
        """Price configurations, rows of shape (n,)."""
        if not np.any(configurations.tensor_parallel > 1):
            return super().price(configurations)
        each = self.apart(configurations)
        parts = [pricer.price(configurations.take(rows)) for rows, pricer in each]
        return Priced.joined(parts, np.argsort(np.concatenate([rows for rows, _ in each])))

    def totals(self, plans: Configurations) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the step in later epochs and in the first [s], and the memory of the fullest rank [bytes] of plans."""
        if not np.any(plans.tensor_parallel > 1):
            makes_again = bool(np.any(plans.recompute == RECOMPUTES.index("full")))
            return self._in_full(plans) if makes_again else super().totals(plans)
        rows, totals = plans.rows, np.zeros((3, plans.size))
        for some, pricer in self.apart(plans):
            totals[:, some] = pricer.totals(rows.take(some))
        step_s, first_s, memory = totals.reshape(3, *plans.shape)
        return step_s, first_s, memory

    @cached_property
    def segments(self) -> Segments:
        """Which activations are made again where a device has the whole network: the least that fits."""
        sums = self.ledger.whole.sums
        own, joined = (sums[SUMS.index(name)] for name in ("own", "joined"))
        is_reached = (self.cuts.rank.units.reached > 0)[self.cuts.rank.units.sequence]
        forward_s = is_reached * np.diff(self.cuts.ahead_of("forward", np.array([_SAMPLES]))[0][0])
        return segments_of(own, joined, self.cuts.crossing[:-1], forward_s)

    def makes_again(self, plans: Configurations) -> BoolArray:
        """Tell which plans without a pipeline make activations again, of the plans' shape."""
        return np.asarray((plans.recompute == RECOMPUTES.index("full")) & (plans.pipeline_parallel == 1))

    def _kept(self, plans: Configurations) -> tuple[IntArray, SplitMemoryBytes]:
        """Return how much such plans keep, a way of ``segments`` each, and their memory."""
        whole, rules = self.ledger.fullest(plans.but(recompute=0)), self.ledger.rules
        samples = plans.sub_batch / rules.shrunk
        room = (self.sources.accelerator.memory_bytes - whole.total) / (1 + rules.margin)
        every = self.segments.kept_bytes
        ways = self.segments.fitting(room / samples + every[-1])
        freed = (every[-1] - every[ways]) * samples
        lean = replace(whole, activations=whole.activations - freed, margin=whole.margin - rules.margin * freed)
        return ways, lean

    def stages_of(self, plans: Configurations, stages: OfStages = StageCases) -> OfStages:
        """Return what makes the stages of plans without a pipeline, given what does where all is kept."""
        again = self.makes_again(plans)
        if not again.any():
            return stages
        ways = np.full(plans.size, -1, dtype=np.int64)
        ways[again] = self._kept(plans.take(np.flatnonzero(again)))[0]
        return partial(_Segmented, segments=self.segments, ways=ways)

    def one_stage(self, plans: Configurations, stages: OfStages = StageCases) -> OneStage:
        """Return the steps of plans without a pipeline."""
        return super().one_stage(plans, self.stages_of(plans, stages))

    def memory(self, plans: Configurations) -> SplitMemoryBytes:
        """Return the memory of each plan's fullest rank."""
        again = self.makes_again(plans)
        if again.any():
            rows, others = np.flatnonzero(again), np.flatnonzero(~again)
            lean = [self._kept(plans.take(rows))[1], *([self.memory(plans.take(others))] if others.size else [])]
            return SplitMemoryBytes.joined(lean, np.argsort(np.concatenate([rows, others])))
        if np.any(plans.tensor_parallel > 1):
            each = self.apart(plans)
            memories = [pricer.memory(plans.take(rows)) for rows, pricer in each if pricer is not self]
            memories = [self.memory(plans.take(rows)) for rows, pricer in each if pricer is self] + memories
            return SplitMemoryBytes.joined(memories, np.argsort(np.concatenate([rows for rows, _ in each])))
        if np.all(plans.pipeline_parallel == 1):
            return super().memory(plans)
        parts, (first, which) = [], self.cut_alike(plans)
        for at, row in enumerate(first.tolist()):
            some = plans.take(np.flatnonzero(which == at))
            parts.append(self.ledger.of_cuts(self.cuts_of(plans.take(np.array([row]))), some))
        return SplitMemoryBytes.joined(parts, np.argsort(np.argsort(which, kind="stable")))

    def cut_alike(self, plans: Configurations) -> tuple[IntArray, IntArray]:
        """Return one of each kind of plans that are cut alike, and the kind of each; best cuts are those that fit."""
        fitted = plans.stages == BEST_STAGES
        sub_batch = np.where(fitted, plans.sub_batch, cut_at(plans.sub_batch))
        memory = (np.where(fitted, one, 0) for one in (plans.accumulation_steps, plans.schedule))
        return distinct_rows(plans.pipeline_parallel, plans.stages, sub_batch, plans.recompute, *memory)

    def cuts_of(self, plan: Configurations) -> IntArray:
        """Return the unit that each stage starts with, and V, shape (p + 1,); ``plan`` of shape (1,).

        Best stages fit the device where any do; where none do, the fullest needs the least that it can.
        """
        stages, sub_batch = int(plan.pipeline_parallel[0]), int(plan.sub_batch[0])
        if plan.stages[0] != BEST_STAGES or stages == 1:
            return self.cuts.cuts(stages, sub_batch)
        key = stages, sub_batch, *(int(one[0]) for one in (plan.accumulation_steps, plan.schedule, plan.recompute))
        if key not in self._best:
            ends = np.arange(self.cuts.crossing.size)
            first, end = np.minimum(ends[:, None], ends[-1] - 1), ends[None]
            layers = StageLayers(first, end, np.maximum(end - first, 0))
            memory = self.ledger.of_stages(plan, np.arange(stages)[:, None, None], layers).total
            time_s = self.cuts.stage_s(int(cut_at(plan.sub_batch)[0]))
            fits = np.where(memory <= self.sources.accelerator.memory_bytes, time_s, np.inf)
            crossing = self.cuts.crossing
            cuts = best_cuts(fits, memory, crossing)
            self._best[key] = cuts if cuts is not None else _least(memory, crossing)
        return self._best[key]

    def is_laid_out(self, plans: Configurations) -> BoolArray:
        """Tell which plans have stages that are laid out: all that have several."""
        return np.asarray(plans.pipeline_parallel > 1)

    def layouts(self, plans: Configurations) -> list[StageLayout]:
        """Return what the stages of each plan hold; plans that are cut alike share one."""
        first, which = self.cut_alike(plans)
        each = [self._layout(plans.take(np.array([row]))) for row in first.tolist()]
        return [each[at] for at in which.tolist()]

    def _layout(self, plan: Configurations) -> StageLayout:
        cuts = self.cuts_of(plan)
        layers = StageLayers(cuts[:-1], cuts[1:], np.diff(cuts))
        return StageLayout(np.arange(cuts.size - 1), layers, np.full(cuts.size - 1, plan.recompute[0]))

    def first_layers(self, layout: StageLayout) -> tuple[str, ...]:
        """Return the names of the layers that stages start with."""
        starts = self.cuts.rank.units.starts[layout.layers.first]
        return tuple(self.cuts.rank.network.layers[at].name for at in starts.tolist())


def _least(memory: FloatArray, crossing: FloatArray) -> IntArray:
    """Return the cuts whose fullest stage needs least memory."""
    cuts = best_cuts(memory, memory, crossing)
    if cuts is None:
        raise ParameterError("pipeline stages", f"from 1 to the {crossing.size - 1} units", len(memory))
    return cuts


class _Segmented(StageCases):
    """Cases of one stage, some of which make activations again; ``ways``: of ``segments``, -1: a plan keeps all."""

    def __init__(self, *given: Any, segments: Segments, ways: IntArray) -> None:
        super().__init__(*given, (ways + 1, segments.kept_bytes.size + 1))
        of_case = np.full(self.plans.size, -1, dtype=np.int64)
        of_case[self.case] = ways
        units, (case, unit) = self.units, np.nonzero(segments.again[of_case] & (of_case >= 0)[:, None])
        self._again = np.zeros((of_case.size, units.distinct))
        np.add.at(self._again, (case, units.sequence[unit]), units.reached[units.sequence[unit]] > 0)

    @property
    def again(self) -> FloatArray:
        """How many of each distinct unit a stage computes again, shape (f, U)."""
        return self._again[self.of]


class LayerPart(StepPart):
    """Plans whose stages hold layers: what they send between stages, and their gradients, depend on the cuts."""

    costs: LayerPricer

    @cached_property
    def _cut(self) -> tuple[IntArray, IntArray, IntArray]:
        """The sub-batches of distinct passes, the cuts of each, shape (k, p + 1), and which of them each plan has."""
        first, which = distinct_rows(self._pass)
        cuts = np.stack([self.costs.cuts_of(self.plans.take(np.array([row]))) for row in first.tolist()])
        return self.plans.sub_batch[first], cuts, which

    @cached_property
    def transfer_s(self) -> FloatArray:
        """What one micro-batch takes between neighbouring stages of each plan [s], shape (n,)."""
        sub_batch, cuts, which = self._cut
        if cuts.shape[1] == 2:
            return np.zeros(which.size)
        crossing = self.costs.cuts.crossing[cuts[:, 1:-1]]
        sizes = sub_batch * (crossing.mean(axis=1) if self.schedule == "gpipe" else crossing.max(axis=1))
        seconds = self.costs.operation_s(SEND_RECEIVE, sizes[which], self._placement.groups(NEIGHBOURS))
        return self.costs.sources.multiplied("stage_messages", seconds)

    @cached_property
    def _placement(self) -> Placement:
        return self.costs.placement(self.plans.rows)

    @cached_property
    def exchange_s(self) -> Both:
        """What the exchange of gradients takes of the fullest stage, and what it adds to the step, (n,)."""
        ways, which = list(self._buckets()), self._cut[2]
        at, both = self._at(self.state.cases, self._rows)[0], np.zeros((2, which.size))
        step = max(1, _MOST_MESSAGES // max(share.shape[0] * share.shape[1] for share, _ in ways))
        for start in range(0, which.size, step):
            rows = np.arange(start, min(start + step, which.size))

            def runs(share: FloatArray, bytes_: FloatArray, rows: IntArray = rows) -> Runs:
                of, stages = bytes_[..., which[rows]], at[:, rows]
                first, inverse = np.unique(stages, return_index=True, return_inverse=True)[1:]
                each = (of / self.costs.gradient_bytes).reshape(of.shape[0], -1)[:, first].T
                exchange = StageExchange(self.costs, self.state.cases, stages.ravel()[first])
                message_s = exchange.sum_s(Elements(np.zeros_like(each), each))[inverse.reshape(stages.shape)]
                return Runs(share[..., which[rows]], np.moveaxis(message_s, -1, 0), (of > 0).astype(np.float64))

            both[:, rows] = self._exchange_s((runs(*way) for way in ways), slice(start, start + step))
        return both[0], both[1]

    def _buckets(self) -> Iterator[Both]:
        """Yield every way to send gradients: of each message its share of the backward pass, and bytes, (R, p, k)."""
        sub_batch, every_cut, _ = self._cut
        strategy, trained = self.costs.strategy, self.costs.compute.elements(trained=True)[0][0]
        bytes_ = self.costs.gradient_bytes * trained[self.costs.compute.ranks[0].units.sequence]
        computed = np.diff(self.costs.cuts.ahead_of("backward", sub_batch)[0], axis=1)
        whole = float(bytes_.sum())
        sizes = [(strategy.first_bucket_bytes, strategy.bucket_bytes)] if strategy.overlap else [(whole, whole)]
        if strategy.best_buckets:
            sizes = [(0.0, 0.0), *((whole / number,) * 2 for number in 2 ** np.arange(_MOST_HALVED))]
        for first, size in sizes:
            stages = [
                [_messages(bytes_[start:end], times[start:end], (first, size)) for start, end in pairwise(cuts)]
                for cuts, times in zip(every_cut.tolist(), computed, strict=True)
            ]
            most = max(one.shape[1] for of_case in stages for one in of_case)
            padded = [[np.pad(one, ((0, 0), (0, most - one.shape[1]))) for one in of_case] for of_case in stages]
            share, sent = np.array(padded).transpose(2, 3, 1, 0)
            yield share, sent


LayerPricer.part = LayerPart
_SAMPLES = 32
"""At which forward passes of units are compared."""
_MOST_MESSAGES = 1 << 21
"""Messages of stages whose times are worked out at once."""
_MOST_HALVED = 8
"""Sizes of best buckets that are tried: all gradients in one, and each half of the one before."""


def _messages(bytes_: FloatArray, computed_s: FloatArray, size: tuple[float, float]) -> FloatArray:
    """Return the messages of a stage of some units: share of its backward pass, and bytes, shape (2, R)."""
    lowest = gradient_buckets(bytes_, *size)
    share = np.add.reduceat(computed_s, lowest) / max(float(computed_s.sum()), 1e-300)
    return np.stack([share, np.add.reduceat(bytes_, lowest)])


SIGNIFICANT = 4
"""Of resnet50, vgg16 and alexnet on V100 the slowest stage is within 1 % of what cuts at each sub-batch would make it;
with one digit, powers of two, it is up to 15 % slower."""


def cut_at(sub_batch: IntArray) -> IntArray:
    """Return each sub-batch rounded down to SIGNIFICANT binary digits, at which its plans are cut."""
    _, exponent = np.frexp(sub_batch.astype(np.float64))
    dropped = np.maximum(exponent.astype(np.int64) - SIGNIFICANT, 0)
    return np.left_shift(np.right_shift(sub_batch, dropped), dropped)


class LayerCuts:
    """Cuts of one network in one precision; those that were asked for stay.

    ``crossing``: bytes of a sample that cross a cut before each unit, and behind the last nothing, shape (V + 1,).
    """

    def __init__(self, costs: StepCosts, crossing: FloatArray) -> None:
        self.costs, self.crossing = costs, crossing
        self._partitions: dict[int, Partition] = {}
        self._cuts: dict[tuple[int, int], IntArray] = {}

    @property
    def rank(self) -> RankCompute:
        """The network itself, of which a rank computes a stage."""
        return self.costs.compute.ranks[0]

    def cuts(self, stages: int, sub_batch: int) -> IntArray:
        """Return the unit that each stage starts with, and the number of units, shape (p + 1,)."""
        key = stages, int(cut_at(np.array(sub_batch)))
        if key not in self._cuts:
            if key[1] not in self._partitions:
                self._partitions[key[1]] = Partition(self.stage_s(key[1]), self.crossing)
            self._cuts[key] = self._partitions[key[1]].cuts(stages)
        return self._cuts[key]

    def stage_s(self, sub_batch: int) -> FloatArray:
        """Return both passes of a micro-batch over a stage from one unit up to another, shape (V + 1, V + 1) [s]."""
        size = self.rank.units.sequence.size + 1
        first, end = np.triu_indices(size, 1)
        kernels, host = np.zeros((2, first.size, len(STAGES) + 1))
        for at, name in enumerate(STAGES):
            for one, each in zip((kernels, host), self.ahead_of(name, np.array([sub_batch])), strict=True):
                one[:, at] = each[0, end] - each[0, first]
        taken = self.costs.stages_s(kernels, host)
        stage_s = np.zeros((size, size))
        stage_s[first, end] = taken["forward"] + taken["backward"]
        return stage_s

    def ahead_of(self, name: str, sub_batch: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return kernels and host time of a pass over all that stands before each unit, shape (k, V + 1) [s]."""
        cases, of = self.costs.compute.cases, np.zeros(sub_batch.size, dtype=np.int64)
        cases.ensure(of, sub_batch)
        row, sequence, at = cases.rows(of, sub_batch), self.rank.units.sequence, PASSES.index(name)
        kernels, host = (
            np.pad(np.cumsum(each[row, at][:, sequence], axis=1), ((0, 0), (1, 0)))
            for each in self.costs.of_rows(units_s)
        )
        return kernels, host
