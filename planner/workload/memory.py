"""Memory of one device in training, counted and never fitted: a ledger by stage, of any network and any plan.

weights, gradients, optimizer   parameters of the rank; weights in as many versions as a pipeline without a flush keeps,
                                and narrow copies of those whose products run in 8 bits; frozen ones are weights alone
activations                     what units of the stage keep (:mod:`planner.workload.rank_sizes`), times live
                                micro-batches (:mod:`planner.workload.memory_rules`); what stands before the blocks and
                                behind them times those of the first and the last chunk
logits                          at the peak of one micro-batch, and what others keep that wait for their backward pass;
                                see LOSS_BYTES; those of micro-batches that are done, where a pipeline keeps them
workspace                       what one unit's backward pass makes again, and gradients of activations, in so far as it
                                is more than the logits, and what units behind it kept, which are gone by then; or what
                                is there at an update alone, wide gradients and buffers, and where a framework frees
                                them all gradients, in so far as they are more than activations and logits
gathered                        where weights are sharded, the units in flight and the gradient of one
messages                        of a pipeline, two in and two out of what crosses a cut; the gathered input of sequence
                                parallelism; what experts dispatch and combine; buckets of whole replicas
framework, margin               a context and communicators, and a share of all tensors that the allocator loses,
                                assumed
trials                          workspace of convolutions that are tried, besides: it takes what is free

A network without a pipeline is one stage. A stage of layers of s positions, h features and a heads so keeps
n·s·h·(34 + 5·a·s/h) bytes a layer in mixed precision with dropout, the figure of Korthikanti et al. 2022,
arXiv:2205.05198, and 16·n·s more of its two normalisations.

With the optimizer on the host, its state and a 4-byte gradient lie there, and each step moves gradients out and weights
in (Ren et al. 2021, arXiv:2101.06840). Of activations, two layers' have to fit (Rhu et al. 2016, arXiv:1602.08124), and
those lie there that find no room on the device. In asynchronous training the host updates the weights: what that takes
is not counted here.

Recompute of whole layers keeps the input of every k-th layer of a stage (``recompute_every`` k), and makes a group of k
again at a time: Megatron-LM's ``uniform`` method (MODEL 13.7).

Not counted: statistics of batch normalisation (16 bytes a channel), other workspaces that libraries choose for
themselves, and the prefetched next sub-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from planner.domain import split
from planner.domain.arrays import LARGEST_COUNT, BoolArray, FloatArray, IntArray
from planner.domain.axes import AXES, SCHEDULES
from planner.domain.configuration import SHARD_AXES, Configurations
from planner.domain.network import Network
from planner.domain.split import SplitMemoryBytes, StageLayers, even_layers
from planner.workload import memory_rules
from planner.workload.memory_rules import WIDE_BYTES, MemoryRules
from planner.workload.placement import shard_ranks
from planner.workload.program import block_starts, program
from planner.workload.rank_sizes import MOST, SUMS, Ranks, RankSizes, ranks_of, transform_elements
from planner.workload.units import stage_of

_SELECTIVE, _FULL = split.RECOMPUTES.index("selective"), split.RECOMPUTES.index("full")
_OF_MICRO_BATCH = (
    *SHARD_AXES, "pipeline_parallel", "recompute", "recompute_every", "last_stage",
)  # fmt: skip
"""Fields and properties of plans that decide what one sample takes."""
_SAME_STATE = (
    "sub_batch", "accumulation_steps", "virtual_stages", "sequence_parallel", "recompute", "recompute_every",
)  # fmt: skip
"""Fields of plans on which nothing depends that is kept whatever micro-batches are."""
_SAME_PASSES = ("nodes", "shard_group", "gpus_per_node", "sharding")
"""Those on which nothing depends that micro-batches take, but for ``sharding`` where logits are buffered."""
_LIVE_TWICE = [SCHEDULES.index(name) for name in ("interleaved", "zero-bubble-h2", "zero-bubble-v")]
"""Schedules that have up to twice as many micro-batches alive as stages, somewhere: see in_flight."""
_MOST_RUNS = 4
"""Runs of equal blocks up to which the stages at their ends are looked at, in place of all."""
_LAYERS_ON_DEVICE = 2
_BUFFERS = 2
"""Of what crosses a cut, each way."""


class _Span(NamedTuple):
    """Units of stages: blocks from ``start`` up to ``stop``, the first ones, up to ``made``, computed again.

    ``first``, ``last``: whether what stands before the blocks, and behind them, is there too.
    """

    rank: IntArray
    start: IntArray
    stop: IntArray
    made: IntArray
    first: IntArray
    last: IntArray


class StateBytes(NamedTuple):
    """What a rank of a stage keeps whatever its micro-batches are, wherever it lies; parameters that it updates.

    ``updating``: bytes that an update takes besides; ``freed``: of gradients, what is there from backward pass to
    update alone, and not while one micro-batch makes its activations.
    """

    weights: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    gathered: FloatArray
    updated: FloatArray
    updating: FloatArray
    freed: FloatArray
    buckets: FloatArray


class MicroBatch(NamedTuple):
    """What one micro-batch, or a sample of it, takes on a rank of a stage.

    ``layers``, ``of_layers``: its layers, and bytes that they keep; ``working``: for one layer's backward pass;
    ``entry``, ``behind``: kept outside of layers, with the first and the last; ``logits``: elements.
    """

    layers: FloatArray
    of_layers: FloatArray
    working: FloatArray
    entry: FloatArray
    behind: FloatArray
    logits: FloatArray
    messages: FloatArray

    def at(self, which: IntArray) -> MicroBatch:
        """Return those at positions; what all have none of is held once."""
        nothing = np.zeros(())
        return MicroBatch(*((one[which] if one.any() else nothing) if one.ndim else one for one in self))

    def times(self, samples: FloatArray) -> MicroBatch:
        """Return what so many samples take."""
        layers, *others = self
        return MicroBatch(layers, *(one * samples for one in others))


class PassBytes(NamedTuple):
    """What micro-batches take on a rank of a stage.

    ``working``: for one layer's backward pass; ``rest``: of logits, what is gone by then; ``live``: micro-batches;
    ``away``: of each what may lie in the host's memory, ``stays``: what of all such has to be here; ``ending``: with
    what one layer keeps, where gradients are there by then.
    """

    activations: FloatArray
    working: FloatArray
    logits: FloatArray
    rest: FloatArray
    messages: FloatArray
    live: FloatArray
    away: FloatArray
    stays: FloatArray
    ending: FloatArray


def fullest_stage(of_stages: SplitMemoryBytes) -> SplitMemoryBytes:
    """Return the memory of the stage that needs most, along the first axis; of stages that need as much, the first.

    With the bytes that move of the stage that moves most.
    """
    worst = np.argmax(of_stages.total, axis=0)[None]

    of_worst = SplitMemoryBytes.of(lambda of_stage: np.take_along_axis(of_stage, worst, axis=0)[0], of_stages)
    return replace(of_worst, to_host=of_stages.to_host.max(axis=0), to_device=of_stages.to_device.max(axis=0))


class Memory:
    """The memory of all plans of one network."""

    def __init__(self, network: Network, rules: MemoryRules, ranks: Ranks | None = None) -> None:
        self.network, self.rules, self.ranks = network, rules, ranks or ranks_of(network)(rules.sizes)
        self._ends = int(bool(block_starts(network)))
        self.trains_tied = not any(layer.attributes.get("tied") and layer.is_frozen for layer in network.layers)
        self.frees = rules.frees_gradients and self._ends > 0
        sizes = np.concatenate([self.whole.sums, self.whole.most[: MOST.index("working")]])
        self._number = sizes.shape[1]
        of_blocks = sizes[:, self._ends : self._number - self._ends]
        self.blocks = of_blocks.shape[1]
        self._changes = (np.flatnonzero(np.any(np.diff(of_blocks, axis=1) != 0, axis=0)) + 1).tolist()

    @property
    def whole(self) -> RankSizes:
        """Sizes of the units of the network itself, of which a rank has some."""
        return self.ranks.sizes(0)

    def with_rules(self, **changes: Any) -> Memory:
        """Return the memory of the same network by rules that differ in some fields."""
        return Memory(self.network, replace(self.rules, **changes))

    def fullest(self, plans: Configurations) -> SplitMemoryBytes:
        """Return the memory of the rank that needs most, and of which stage it is; stages hold equally many units.

        Of the shape of the plans; of stages that need as much, the first.
        """
        shape, rows = plans.shape, plans.rows
        rank = self.ranks.rank(rows)
        each = [self._on(rows, rank, stage) for stage in self._fullest_stages(rows)]
        worst = fullest_stage(SplitMemoryBytes.of(lambda *stages: np.stack(stages), *each))
        return SplitMemoryBytes.of(lambda of_plans: of_plans.reshape(shape), worst)

    def of_stages(
        self, plans: Configurations, stage: IntArray | int, layers: StageLayers | None = None
    ) -> SplitMemoryBytes:
        """Return the memory of a rank of a stage, from 0; arrays of the shape that all arguments broadcast to.

        ``layers``: the blocks of each stage, or units of a network without blocks, where they are not dealt out evenly,
        or not all computed again.
        """
        rank = self.ranks.rank(plans.rows).reshape(plans.shape)
        return self._on(plans, rank, np.asarray(stage), layers)

    def of_cuts(self, cuts: IntArray, plans: Configurations) -> SplitMemoryBytes:
        """Return the memory of the fullest stage of plans, (n,), that are cut alike.

        ``cuts``: the unit that each stage starts with, and V, shape (p + 1,).
        """
        first, end = cuts[:-1, None], cuts[1:, None]
        layers = StageLayers(first, end, end - first)
        return fullest_stage(self.of_stages(plans, np.arange(cuts.size - 1)[:, None], layers))

    def totals(self, plans: Configurations) -> FloatArray:
        """Return the total of :meth:`fullest`, of plans with fields of shape (n,).

        Up to rounding, as parts are added in another order: what a rank keeps whatever its micro-batches are, and what
        these take, depend on different degrees. Each is worked out once for the plans that differ in it.
        """
        if not plans.shape[0]:
            return np.zeros(0)
        rules = self.rules
        names = [one.name for one in AXES]
        first, which_kept = plans.distinct(name for name in names if name not in _SAME_STATE)
        kept = plans.take(first).rows
        passing, steps, which_passing = self._saturated(plans)
        first, which_one = passing.distinct(_OF_MICRO_BATCH)
        ones, worst = passing.take(first).rows, np.zeros(plans.shape)
        of_kept, of_one, samples = self.ranks.rank(kept), self.ranks.rank(ones), self._samples(passing)
        stages = (self._fullest_stages(some) for some in (kept, passing, ones))
        for stage_kept, stage_passing, stage_of_one in zip(*stages, strict=True):
            state = self._state(kept, stage_kept, self._span(kept, of_kept, stage_kept))
            one = self._sample(ones, self._span(ones, of_one, stage_of_one)).at(which_one).times(samples)
            passes = self._passes(passing, stage_passing, one, steps)
            of_state = self._of_state(state, kept)
            of_passes = passes.activations + passes.logits + passes.messages
            # What a workspace adds while layers compute, and while wide gradients are updated.
            computing, fixed = self._workspace(np.zeros(()), passes), of_state[which_kept]
            if self.frees:
                fixed = fixed - np.where(plans.accumulation_steps == 1, state.freed[which_kept], 0.0)
            np.maximum(worst, fixed + (of_passes + computing)[which_passing], out=worst)
            if state.updating.any() or self.frees:
                left = of_passes - passes.activations - passes.rest + passes.ending
                np.maximum(worst, (of_state + state.updating)[which_kept] + left[which_passing], out=worst)
        return np.asarray((1 + rules.margin) * worst + rules.outside_bytes(plans))

    def largest_sub_batches(self, plans: Configurations, capacity_bytes: float | FloatArray) -> IntArray:
        """Return the largest sub-batch of each plan, all else as it is, whose memory fits; 0: not even one sample does.

        Memory is the largest of some straight lines in the samples, whose crossings with what there is are rounded.
        """
        rules, shape = self.rules, np.broadcast_shapes(plans.shape, np.shape(capacity_bytes))
        rows, most = plans.but(sub_batch=1).rows, np.full(shape, float(LARGEST_COUNT))
        rank = self.ranks.rank(rows)
        room = (capacity_bytes - rules.outside_bytes(plans)) / (1 + rules.margin)
        for stage in self._fullest_stages(rows):
            span = self._span(rows, rank, stage)
            state, passes = (
                self._state(rows, stage, span),
                self._passes(rows, stage, self._sample(rows, span).times(self._samples(rows)), rows.accumulation_steps),
            )
            fixed, slope = self._of_state(state, rows), passes.activations + passes.logits + passes.messages
            left = slope - passes.activations - passes.rest + passes.ending
            lines = (
                (fixed - self._freed(state, rows), slope + self._workspace(np.zeros(()), passes)),
                (fixed + state.updating, left),
            )
            for line in lines:
                start, rise = (one.reshape(plans.shape) for one in np.broadcast_arrays(*line))
                samples = (room - start) / np.maximum(rise, 1e-9)
                most = np.minimum(most, np.where(rise > 0, np.floor(samples), np.where(room >= start, most, 0)))
        found = np.clip(most, 0, LARGEST_COUNT).astype(np.int64)

        def fits(samples: IntArray) -> BoolArray:
            total = self.fullest(plans.but(sub_batch=np.maximum(samples, 1))).total
            return np.asarray((total <= capacity_bytes) & (samples <= LARGEST_COUNT))

        below = np.where(fits(found), found, np.maximum(found - 1, 0))
        return np.asarray(np.where(fits(found + 1), found + 1, below))

    def _fullest_stages(self, plans: Configurations) -> list[IntArray]:
        """Return stages, one of which needs most memory.

        Of stages between the ends that have blocks of one kind the first has most blocks and live micro-batches; others
        can need more where the kind changes.
        """
        p = plans.pipeline_parallel
        most = int(np.max(p, initial=1))
        if most == 1:
            return [np.zeros_like(p)]
        if len(self._changes) >= _MOST_RUNS:
            return [np.minimum(stage, p - 1) for stage in range(most)]
        stages = [np.zeros_like(p), np.minimum(1, p - 1)]
        for before in self._changes:
            changes = stage_of(before, self.blocks, p, self.rules.deals, plans.last_stage)
            stages += [np.clip(changes, 0, p - 1), np.clip(changes + 1, 0, p - 1)]
        return [*stages, p - 1]

    def _span(self, plans: Configurations, rank: IntArray, stage: IntArray, layers: StageLayers | None = None) -> _Span:
        first, end, again = layers or even_layers(
            self.blocks, plans.pipeline_parallel, stage, self.rules.deals, plans.last_stage
        )
        start = first + self._ends
        is_first, is_last = stage == 0, stage == plans.last_stage
        return _Span(rank, start, end + self._ends, start + again, self._ends * is_first, self._ends * is_last)

    def _on(
        self, plans: Configurations, rank: IntArray, stage: IntArray, layers: StageLayers | None = None
    ) -> SplitMemoryBytes:
        """Return the memory of a rank of a stage."""
        rules, span = self.rules, self._span(plans, rank, stage, layers)
        kept = self._state(plans, stage, span)
        one = self._sample(plans, span).times(self._samples(plans))
        passing = self._passes(plans, stage, one, plans.accumulation_steps)
        on_host = plans.offload == split.OFFLOADS.index("optimizer")
        by_host, passes = np.where(on_host, kept.updated, 0.0), plans.accumulation_steps
        computing, freed = self._workspace(np.zeros(()), passing), self._freed(kept, plans)
        workspace = self._workspace(kept.updating + freed + passing.ending, passing)
        there = np.minimum(freed, workspace - computing)
        values = {
            "weights": kept.weights,
            "gradients": kept.gradients - freed + there,
            "optimizer": np.where(on_host, 0.0, kept.optimizer),
            "activations": passing.activations,
            "workspace": workspace - there,
            "framework": rules.outside_bytes(plans),
            "logits": passing.logits,
            "gathered": kept.gathered,
            "messages": passing.messages + kept.buckets,
            "margin": np.float64(0.0),
            "trials": self._tried(self._samples(plans)),
            "host": np.where(on_host, kept.optimizer + WIDE_BYTES * kept.updated, 0.0),
            "to_host": rules.parameter.gradient * by_host,
            "to_device": rules.parameter.weight * by_host,
            "stage": stage,
        }
        shape = np.broadcast_shapes(plans.shape, stage.shape, span.start.shape, span.stop.shape)
        tensors = SplitMemoryBytes(
            **{name: np.broadcast_to(np.asarray(value), shape) for name, value in values.items()}
        )
        tensors = replace(tensors, margin=rules.margin * tensors.allocated)
        away = passing.live * passing.away
        room = passing.stays + (rules.device_bytes - tensors.total) / (1 + rules.margin)
        away = away - np.clip(room, 0, away)
        moved = passes * away / passing.live
        return replace(
            tensors, host=tensors.host + away, to_host=tensors.to_host + moved, to_device=tensors.to_device + moved
        )

    def _sum(self, name: str, rank: IntArray, start: IntArray, stop: IntArray) -> FloatArray:
        """Return what adds up of units from one up to another."""
        ahead = self.ranks.array("sums")[:, SUMS.index(name)]
        return np.asarray(ahead[rank, stop] - ahead[rank, start])

    def _most(self, name: str, rank: IntArray, start: IntArray, stop: IntArray) -> FloatArray:
        """Return the most that one of the units from one up to another has; 0 of none."""
        table, length = self.ranks.array("most")[:, MOST.index(name)], np.maximum(stop - start, 1)
        level = np.frexp(length)[1] - 1
        both = table[rank, level, start], table[rank, level, np.maximum(stop - np.left_shift(1, level), start)]
        return np.where(stop > start, np.maximum(*both), 0.0)

    def _of_all(self, name: str, span: _Span) -> FloatArray:
        """Return what adds up of the blocks of stages and of the ends."""
        total = self._sum(name, span.rank, span.start, span.stop)
        if self._ends:
            ahead = self.ranks.array("sums")[:, SUMS.index(name)]
            of_first, of_last = ahead[:, 1], ahead[:, -1] - ahead[:, -2]
            total = total + (span.first * of_first[span.rank] + span.last * of_last[span.rank])
        return np.asarray(total)

    def _most_of_all(self, name: str, span: _Span, of_blocks: FloatArray | None = None) -> FloatArray:
        """Return the most that one unit of stages has, the ends among them; ``of_blocks``: what blocks have instead."""
        most = self._most(name, span.rank, span.start, span.stop) if of_blocks is None else of_blocks
        if self._ends:
            of_units = self.ranks.array("most")[:, MOST.index(name), 0]
            most = np.maximum(
                most, np.maximum(span.first * of_units[span.rank, 0], span.last * of_units[span.rank, -2])
            )
        return most

    def _state(self, plans: Configurations, stage: IntArray, span: _Span) -> StateBytes:
        """Return what a rank of a stage keeps whatever its micro-batches are."""
        rules, each = self.rules, self.rules.parameter
        shared, experts, trained, trained_experts = (
            self._of_all(name, span) for name in ("shared", "experts", "trained", "trained_experts")
        )
        if self.ranks.array("sums")[:, SUMS.index("tied"), -1].any():  # a copy where the table is not
            copied = self._of_all("tied", span) * (span.start + 1 - span.first > 1)
            shared, trained = shared + copied, trained + copied * self.trains_tied
        weights = gradients = updated = sent = freed = buckets = np.zeros(())
        is_gathered, in_pipeline = np.zeros((), dtype=np.bool_), plans.pipeline_parallel > 1
        for every, count, of_experts in ((shared, trained, False), (experts, trained_experts, True)):
            if of_experts and not every.any():
                continue
            ranks = shard_ranks(plans, rules.rank_order, experts=of_experts)
            shard, sharding = count / ranks, np.where(ranks > 1, plans.sharding, 0)
            weight_shard, frozen = shard * each.keeps_weight_shards, every - count
            if frozen.any():
                weights = weights + np.where(sharding >= split.WEIGHTS_SHARDED, frozen / ranks, frozen) * each.weight
            weights = weights + np.where(sharding >= split.WEIGHTS_SHARDED, weight_shard, count) * each.weight
            written = np.where(sharding >= split.GRADIENTS_SHARDED, shard, count) * each.gradient
            if each.is_whole:
                written = np.where(in_pipeline & (sharding >= split.GRADIENTS_SHARDED), count * each.message, written)
            gradients, freed = gradients + written + count * each.narrow_gradient, freed + written * self.frees
            buckets = buckets + np.where((ranks > 1) & (sharding == 0), each.bucket * count, 0.0)
            updated = updated + np.where(sharding >= split.OPTIMIZER_SHARDED, shard, count)
            sent = sent + count * ((ranks > 1) & (sharding >= split.OPTIMIZER_SHARDED))
            is_gathered = is_gathered | (sharding == split.WEIGHTS_SHARDED)
        units = (1 + rules.prefetch) * each.weight * self._most_of_all("gathered", span)
        gathered = np.where(is_gathered, units + each.message * self._most_of_all("scattered", span), 0.0)
        copies = self._of_all("copies", span)
        if copies.any():
            weights = weights + np.where(is_gathered, 0.0, copies)
            gathered = gathered + np.where(is_gathered, self._most_of_all("copied", span), 0.0)
        buffers = (sent > 0) * (rules.buffer_elements + np.minimum(rules.buffer_elements, sent)) * each.message
        return StateBytes(
            weights * memory_rules.weight_versions(stage, plans), gradients, updated * each.updated, gathered, updated,
            updated * each.main_gradient + buffers, freed, buckets,
        )  # fmt: skip

    def _freed(self, state: StateBytes, plans: Configurations) -> FloatArray:
        """Return the gradients that are not there while activations are made: with one micro-batch a step."""
        return np.where(plans.accumulation_steps == 1, state.freed, 0.0)

    def _tried(self, samples: FloatArray) -> FloatArray:
        """Return the most that an algorithm of a convolution takes, which is tried where that is free."""
        if not self.rules.tries_convolutions or self.rules.sizes.itemsize < WIDE_BYTES:
            return np.zeros(())
        sizes = [transform_elements(site) for site in program(self.network).sites]
        return np.asarray(np.max([WIDE_BYTES * (fixed + each * samples) for fixed, each in sizes], axis=0))

    @staticmethod
    def _of_state(state: StateBytes, plans: Configurations) -> FloatArray:
        optimizer = np.where(plans.offload == split.OFFLOADS.index("optimizer"), 0.0, state.optimizer)
        return np.asarray(state.weights + state.gradients + optimizer + state.gathered + state.buckets)

    def _samples(self, plans: Configurations) -> FloatArray:
        """Return the samples of a micro-batch, as the scenario holds them."""
        return np.asarray(plans.sub_batch / self.rules.shrunk)

    def _sample(self, plans: Configurations, span: _Span) -> MicroBatch:
        """Return what one sample takes on a rank of a stage."""
        rank, start, stop, _, first, last = span
        crossing, units = self.ranks.array("crossing"), self._number
        entry = behind = np.zeros(())
        if self._ends:
            own = self.ranks.array("sums")[:, SUMS.index("own")]
            entry = first * (crossing[rank, 0] + own[rank, 1])
            behind = last * (crossing[rank, units - 1] + own[rank, units] - own[rank, units - 1])
        given, passed_on = crossing[rank, start], crossing[rank, stop]
        gathered, routed = (self.ranks.array(name)[rank] for name in ("gathered", "routed"))
        between = (plans.pipeline_parallel > 1) * _BUFFERS * (given * (start > 0) + passed_on)
        return MicroBatch(
            np.asarray(stop - start, dtype=np.float64),
            self._kept(plans, span, self.ranks.array("given")[rank, start]),
            self._working(plans, span),
            entry,
            behind,
            self._of_all("logits", span),
            between + gathered + routed,
        )

    def _kept(self, plans: Configurations, span: _Span, given: FloatArray) -> FloatArray:
        """Return the bytes of a sample that the blocks of a stage keep."""
        rank, start, stop, made, *_ = span
        is_full = plans.recompute >= _FULL
        whole = np.where(is_full, made, start)
        kept = self._sum("own", rank, whole, stop)
        kept = kept + self._sum("joined", rank, np.minimum(np.maximum(whole, start + 1), stop), stop)
        if (is_selective := plans.recompute == _SELECTIVE).any():
            kept = kept - np.where(is_selective, self._sum("freed", rank, start, made), 0.0)
        if is_full.any():
            again = made - start
            groups = np.ceil(again / plans.recompute_every)
            inputs = self._sum("made", rank, np.minimum(start + 1, made), made) / np.maximum(again - 1, 1)
            kept = kept + np.where(is_full, np.maximum(groups - 1, 0) * inputs, 0.0)
        return np.asarray(kept + given * (stop > start))

    def _working(self, plans: Configurations, span: _Span) -> FloatArray:
        """Return the bytes of a sample that the backward pass of one unit needs, besides what is kept.

        Less what units behind it have kept, which have run by then.
        """
        rank, start, stop, made, *_ = span

        def most(name: str, kinds: Mapping[str, int], begin: IntArray, end: IntArray) -> FloatArray:
            ahead = self.ranks.array("sums")
            kept = sum(sign * ahead[rank, SUMS.index(kind), end] for kind, sign in kinds.items())
            return np.asarray(np.where(end > begin, self._most(name, rank, begin, end) - kept, 0.0))

        keeps = {"own": 1, "joined": 1}
        of_blocks = most("working", keeps, start, stop)
        if (is_selective := plans.recompute == _SELECTIVE).any():
            of_blocks = np.where(is_selective, most("selective", keeps | {"freed": -1}, start, stop), of_blocks)
        if (is_full := plans.recompute >= _FULL).any():
            group = np.maximum(np.minimum(plans.recompute_every, made - start) - 1, 0)
            again = group * self._most("held", rank, start, made) + most("whole", {"made": 1}, start, made)
            of_blocks = np.where(is_full, np.maximum(again, most("working", keeps, made, stop)), of_blocks)
        return self._most_of_all("gradients", span, of_blocks)

    def _passes(self, plans: Configurations, stage: IntArray, one: MicroBatch, micro_batches: IntArray) -> PassBytes:
        """Return what so many micro-batches a step take on a rank of a stage, given what one does."""
        rules, m, p, v, schedule = (
            self.rules, micro_batches, plans.pipeline_parallel, plans.virtual_stages, plans.schedule_run,
        )  # fmt: skip
        live, in_last = (
            memory_rules.live_micro_batches(stage, m, p, v, schedule),
            memory_rules.live_in_last_chunk(m, p, schedule),
        )
        kept, away, stays = live * one.of_layers, np.zeros(()), np.zeros(())
        if (on_host := np.isin(plans.offload, split.ACTIVATIONS_AWAY)).any():
            largest = one.of_layers / np.maximum(one.layers, 1)
            kept = np.where(on_host, np.minimum(_LAYERS_ON_DEVICE, one.layers * live) * largest, kept)
            away, stays = np.where(on_host, one.of_layers, 0.0), np.where(on_host, kept, 0.0)
        activations = kept + (memory_rules.live_in_first_chunk(m, p, v, schedule) * one.entry + in_last * one.behind)
        narrow_kept, wide_kept, narrow_peak, wide_peak, if_split = memory_rules.LOSS_BYTES[rules.loss]
        waiting = (in_last - 1) * (narrow_kept * rules.sizes.itemsize + wide_kept)
        buffers = np.zeros(())
        if rules.output_buffers:
            is_buffered = (plans.sharding <= rules.output_sharding) & (p > 1)
            buffers = np.minimum(m, rules.output_buffers) * is_buffered
        # of one, the peak has the logits already
        peak = waiting + narrow_peak * rules.sizes.itemsize + wide_peak + WIDE_BYTES * np.maximum(buffers - 1, 0)
        peak = peak + if_split * (plans.tensor_parallel > 1)
        logits = one.logits * peak
        rest = logits - one.logits * WIDE_BYTES * buffers
        ending = one.working + one.of_layers / np.maximum(one.layers, 1) if self.frees else np.zeros(())
        return PassBytes(activations, one.working, logits, rest, one.messages, live, away, stays, ending)

    @staticmethod
    def _workspace(updating: FloatArray, passes: PassBytes) -> FloatArray:
        """Return the workspace of ranks whose update takes so many bytes."""
        return np.asarray(np.maximum(0.0, np.maximum(passes.working, updating - passes.activations) - passes.rest))

    def _saturated(self, plans: Configurations) -> tuple[Configurations, IntArray, IntArray]:
        """Return plans that differ in what micro-batches take, how many change that, and the plan each of n is like."""
        same = [name for name in _SAME_PASSES if name != "sharding" or not self.rules.output_buffers]
        names = [one.name for one in AXES if one.name not in (*same, "accumulation_steps")]
        steps = np.minimum(plans.accumulation_steps, plans.of_bases(self._most_steps))
        first, which = plans.distinct(names, (steps, int(steps.max(initial=0)) + 1))
        return plans.take(first), plans.at(steps, first), which

    def _most_steps(self, plans: Configurations) -> IntArray:
        """Return from how many micro-batches on more of them change nothing; gpipe keeps all."""
        twice = np.isin(plans.schedule_run, _LIVE_TWICE)
        most = np.maximum(plans.pipeline_parallel * np.where(twice, 2, 1), self.rules.output_buffers)
        return np.where(plans.schedule_run == SCHEDULES.index("gpipe"), LARGEST_COUNT, most)
