"""Prices of plans whose groups of ranks share single layers of a network without blocks, such as a CNN.

A group of m neighbouring ranks computes one copy of the network, every layer by a scheme of its own
(:mod:`planner.workload.schemes`); the groups are data parallel. Schemes are chosen: the sum of all passes, of what
moves between layers and of a share of each layer's exchange of gradients is least over all assignments
(:mod:`planner.workload.schemes`); of the best ones at a few shares, and of pure data parallelism, that one is taken
whose step is shortest with the exchange beside the backward pass. Times of kernels alone decide, at the largest power
of two up to the sub-batch and to the nodes; a step is then priced as all others, with host time and buckets.

Messages between layers wait for nothing and hide nothing, but a halo hides under its layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import cast

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows, distinct_values
from planner.domain.axes import TENSOR
from planner.domain.configuration import Configurations
from planner.domain.kernels import UPDATE, KernelCalls
from planner.domain.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, GRADIENTS, REDUCE_SCATTER, SEND_RECEIVE, Groups
from planner.domain.prediction import SharedLayers
from planner.domain.split import SCHEMES, SplitMemoryBytes
from planner.sources.sources import Sources
from planner.steps.compute import PASSES, ComputeCases, RankCompute, scaled
from planner.steps.passes import Sent
from planner.steps.price import Pricer
from planner.steps.stage_cases import StageCases
from planner.steps.state import Elements, State
from planner.steps.step_costs import StepCosts
from planner.steps.step_part import SlotExchange
from planner.workload.calls import Ledger, ledger_of
from planner.workload.fusion import fused_calls
from planner.workload.memory import Memory
from planner.workload.program import GradientSlots, Program, gradient_buckets, program
from planner.workload.rank_sizes import Ranks, scheme_sizes
from planner.workload.schemes import (
    OPERATIONS,
    ROUNDS,
    SAMPLES,
    SPACE,
    SUMMED_BY_ALL,
    WHOLE,
    edges_of,
    halo_elements,
    kept_parts,
    lawful_schemes,
    least_assignment,
    named,
    operations,
    scheme_program,
    sent_bytes,
    units_by_layer,
)

SHARES = (0.0, 0.25, 0.5, 1.0)
"""Of the exchange of gradients that a choice of schemes counts."""
Schemes = tuple[int, ...]
_PASSES = [PASSES.index(name) for name in ("forward", "backward", "update", "accumulating")]


class _Rank(RankCompute):
    """What one of so many ranks computes by schemes of its layers; every layer is a unit."""

    def __init__(self, sources: Sources, precision: str, schemes: Schemes, ranks: int) -> None:
        network = sources.problem.network
        super().__init__(sources.of_parts(), precision, np.zeros(len(network.layers), dtype=np.bool_), 1)
        whole = program(network, input_gradient=self.framework.input_gradient, merged=False)
        self.schemes, self.group = schemes, ranks
        self.program: Program = scheme_program(whole, schemes, ranks)
        self.units = units_by_layer(self.program)
        self.whole = np.zeros(len(network.layers))
        elements = np.array([site.trained for site in self.program.sites], dtype=np.int64)[whole.slot]
        self.slots = GradientSlots(whole.slot, elements)
        self._by_part, self._by_round = np.isin(schemes, (SAMPLES, ROUNDS)), np.equal(schemes, ROUNDS)

    def lowered(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        """Return the kernel calls of sub-batches of the group, (s,); layers by samples, or rounds, take a part each."""
        part = -(-sub_batch // self.group)
        first = self._ledger.calls(part if self._by_part.all() else sub_batch)
        second = self._ledger.calls(part) if len({*self._by_part.tolist()}) > 1 else first
        calls = tuple(self._joined(*pair) for pair in zip(first, second, strict=True))
        return fused_calls(calls, self.program, self.framework.fuses, self.itemsize)

    @cached_property
    def _ledger(self) -> Ledger:
        return ledger_of(self.program, self.convolution, optimizer=self.sources.problem.settings.optimizer)

    def _joined(self, every: KernelCalls, part: KernelCalls) -> KernelCalls:
        mine, work, count = self._by_part[every.layer], every.work, part.count
        if every is not part:
            work = {name: np.where(mine, part.work[name], column) for name, column in work.items()}
        if self._by_round.any() and every.direction != UPDATE:
            count = count * np.where(self._by_round[every.layer], self.group, 1)
        return replace(every, work=work, count=count if every is part else np.where(mine, count, every.count))


class _Compute(ComputeCases):
    """Compute cases of ranks by schemes; the first rank is of the network as a whole."""

    def rank_of(self, tensor: int, shares_positions: int, context: int = 1, experts: int = 1) -> int:  # noqa: ARG002
        """Return the position of the rank of the whole network."""
        return self.of((WHOLE,) * len(self.sources.problem.network.layers), 1)

    def rank(self, place: int) -> _Rank:
        """Return the rank at a position."""
        return cast("_Rank", self.ranks[place])

    def of(self, schemes: Schemes, ranks: int) -> int:
        """Return the position of one of so many ranks in ``ranks``, made where it is new."""
        key = *schemes, ranks
        if key not in self._place:
            self._place[key] = len(self.ranks)
            self.ranks.append(_Rank(self.sources, self.precision, schemes, ranks))
        return self._place[key]


class _Exchange(SlotExchange):
    """Gradients of slots: those that all ranks have are summed by all of them, the others by one of each group.

    Experts go between other ranks than the rest in any exchange: here the slots that all ranks sum take their place.
    """

    is_simple = False

    def __init__(self, state: State, rank: int, bucket_bytes: float) -> None:
        super().__init__(state, rank, bucket_bytes)
        mine = np.isin(self._schemes, SUMMED_BY_ALL)
        total = self.by_slot.total
        self.by_slot = Elements(total * mine, total * ~mine)

    @property
    def _schemes(self) -> IntArray:
        rank = cast("_Rank", self._costs.compute.ranks[int(self._state.cases.rank[self.rows[0]])])
        return np.array(rank.schemes)[rank.slots.layer]

    def _buckets(self, *sizes: float) -> IntArray:
        """Return the lowest slot of each message: of neighbours that are summed by the same ranks."""
        if not self.slot_bytes.size:
            return np.zeros(0, dtype=np.int64)
        cuts = np.flatnonzero(np.diff(np.isin(self._schemes, SUMMED_BY_ALL).astype(np.int64))) + 1
        starts, parts = [0, *cuts.tolist()], np.split(self.slot_bytes, cuts)
        return np.concatenate([at + gradient_buckets(part, *sizes) for at, part in zip(starts, parts, strict=True)])

    def _sum_s(self, each: Elements) -> FloatArray:
        plans, costs = self._state.cases.plans.take(self.rows), self._costs
        of_all = costs.placement(_ungrouped(plans)).groups(GRADIENTS)
        between = costs.placement(plans).groups(GRADIENTS)
        both = ((each.experts, of_all), (each.others, between))
        seconds = np.zeros((plans.size, each.total.shape[-1]))
        for one, groups in both:
            buffers = np.broadcast_to(costs.gradient_bytes * one, seconds.shape)
            seconds += np.where(one > 0, costs.operation_s(ALL_REDUCE, buffers, groups), 0.0)
        return seconds


class GroupPricer(Pricer):
    """Prices synchronous plans with groups that share layers; neither pipelines, sharding nor offload.

    ``whole``: the pricer of plans whose devices have the whole network.
    """

    compute: _Compute
    slot_exchange = _Exchange

    def __init__(self, whole: Pricer) -> None:
        sources, precision = whole.sources, whole.precision
        super().__init__(sources, precision, StepCosts(sources, precision, _Compute(sources, precision)))
        self.whole, self.ring = whole, whole.ring
        self._chosen: dict[tuple[int, ...], int] = {}
        self._sizes: dict[int, Memory] = {}
        of = self.compute.ranks[0].program
        self.edges, self.itemsize = edges_of(of), self.compute.ranks[0].itemsize
        self.halo_elements = np.array([halo_elements(site) for site in of.sites], dtype=np.float64).T
        read = [(site.input_elements, site.input_elements * any(site.input_gradients)) for site in of.sites]
        self.read_elements = np.array(read, dtype=np.float64).T

    def ranks(self, plans: Configurations) -> IntArray:
        """Return the rank of each plan, whose schemes are chosen, shape (n,)."""
        axes = (
            plans.tensor_parallel, _power(plans.sub_batch), _power(np.maximum(plans.nodes, 1)), plans.gpus_per_node,
        )  # fmt: skip
        first, which = distinct_rows(*(np.broadcast_to(one, plans.shape) for one in axes))
        keys = list(zip(*(np.broadcast_to(one, plans.shape)[first].tolist() for one in axes), strict=True))
        new = [at for at, key in enumerate(keys) if key not in self._chosen]
        if new:
            some = plans.take(first[new])
            tensor, sub_batch, nodes, gpus = np.array([keys[at] for at in new], dtype=np.int64).T
            nodes = np.where(nodes * gpus % tensor, plans.nodes[first[new]], nodes)
            some = some.but(sub_batch=sub_batch, nodes=nodes)
            for at, rank in zip(new, self._choose(some), strict=True):
                self._chosen[keys[at]] = rank
        return np.array([self._chosen[key] for key in keys], dtype=np.int64)[which]

    def _choose(self, plans: Configurations) -> list[int]:
        """Return the rank of each plan by the schemes whose step is shortest."""
        ranks = [0] * plans.size
        for tensor in distinct_values(plans.tensor_parallel).tolist():
            rows = np.flatnonzero(plans.tensor_parallel == tensor)
            for row, schemes in zip(rows.tolist(), self._schemes(tensor, plans.take(rows)), strict=True):
                ranks[row] = self.compute.of(schemes, tensor)
        return ranks

    def _schemes(self, tensor: int, plans: Configurations) -> list[Schemes]:
        times = _Times(self, tensor, plans)
        candidates = [times.least(share) for share in SHARES]
        candidates.append(np.full_like(candidates[0], SAMPLES))
        steps = np.stack([times.step_s(one) for one in candidates])
        best = np.argmin(steps, axis=0)
        return [tuple(candidates[at][row].tolist()) for row, at in enumerate(best.tolist())]

    def is_laid_out(self, plans: Configurations) -> BoolArray:
        """Tell which plans have stages that are laid out: none."""
        return np.zeros(plans.shape, dtype=np.bool_)

    def samples_read(self, plans: Configurations) -> IntArray:
        """Return the samples of a micro-batch that one device reads: its part of those of a group."""
        return -(-plans.sub_batch // plans.tensor_parallel)

    def loads(self, plans: Configurations) -> list[FloatArray]:
        """Return what loading the samples of a step takes [s], as of data-parallel devices."""
        return super().loads(self._alone(plans))

    def _alone(self, plans: Configurations) -> Configurations:
        """Return data-parallel plans of as many devices and samples."""
        return _ungrouped(plans).but(sub_batch=self.samples_read(plans))

    def least_pass_s(self, plans: Configurations) -> FloatArray:
        """Return what kernels of one sub-batch take at least, whatever the schemes, shape (n,) [s]."""
        least = np.zeros(plans.size)
        for tensor in distinct_values(plans.tensor_parallel).tolist():
            rows = np.flatnonzero(plans.tensor_parallel == tensor)
            samples, which = np.unique(plans.sub_batch[rows], return_inverse=True)
            lawful, kernels = self.kernels_s(tensor, samples)
            passes = kernels[0] + np.minimum(kernels[1], kernels[3])
            of_layers = (passes[:, at, list(some)].min(axis=1) for at, some in enumerate(lawful))
            least[rows] = sum(of_layers, np.zeros(samples.size))[which]
        return least

    def kernels_s(self, ranks: int, sub_batch: IntArray) -> tuple[list[tuple[int, ...]], FloatArray]:
        """Return the schemes that each layer has, and its kernels by pass, sub-batch, layer and scheme [s].

        Of PASSES forward, backward, update and accumulating, shape (4, k, L, S); of a scheme that it does not have
        they say nothing.
        """
        lawful = [lawful_schemes(site, ranks) for site in self.compute.ranks[0].program.sites]
        places = [self.compute.of((scheme,) * len(lawful), ranks) for scheme in range(len(SCHEMES))]
        of, samples = np.repeat(places, sub_batch.size), np.tile(sub_batch, len(places))
        self.compute.cases.ensure(of, samples)
        some = self._kernels_s(self.compute.cases.rows(of, samples), _PASSES)
        return lawful, some.reshape(len(places), sub_batch.size, len(_PASSES), -1).transpose(2, 1, 3, 0)

    def _kernels_s(self, rows: IntArray, passes: list[int]) -> FloatArray:
        """Return times on the device of some rows of the table of compute and passes, shape (c, passes, L)."""
        return scaled(self.compute.cases.columns.kernel_s[rows][:, passes], self.overheads)

    def sent(self, cases: StageCases, row: IntArray) -> Mapping[str, Sent]:
        """Return what messages between layers, and of halos, take and add by term, shape (f,)."""
        taken, forward, backward = np.zeros((3, cases.of.size))
        for place in distinct_values(cases.rank).tolist():
            rank = self.compute.rank(place)
            stages = np.flatnonzero(cases.rank[cases.of] == place)
            of = cases.of[stages]
            moved = _Moved(self, rank.group, cases.plans.sub_batch[of], cases.groups(TENSOR).rows(of))
            schemes, hides = np.array(rank.schemes), self._kernels_s(row[of], _PASSES[:2])
            is_space = np.equal(schemes, SPACE)
            for at, added in enumerate((forward, backward)):
                between, beside = moved.between(schemes, at).sum(axis=1), is_space * moved.halo_s(at)
                rounds = np.equal(schemes, ROUNDS) * moved.gathered_s(at)
                taken[stages] += between + (beside + rounds).sum(axis=1)
                late = np.maximum(beside - hides[:, at], 0.0) + late_rounds_s(rounds, hides[:, at], rank.group)
                added[stages] = between + late.sum(axis=1)
        return {"tensor_messages": Sent(taken, forward, backward)}

    def memory(self, plans: Configurations) -> SplitMemoryBytes:
        """Return the memory of a rank of each plan."""
        ranks, parts, places = self.ranks(plans), [], []
        for place in distinct_values(ranks).tolist():
            rows = np.flatnonzero(ranks == place)
            parts.append(self._ledger(place).fullest(plans.take(rows)))
            places.append(rows)
        return SplitMemoryBytes.joined(parts, np.argsort(np.concatenate(places))) if parts else super().memory(plans)

    def _ledger(self, place: int) -> Memory:
        if place not in self._sizes:
            rank = self.compute.rank(place)
            parts = kept_parts(rank.program, self.edges, rank.schemes, rank.group)
            network, rules = self.sources.problem.network, self.ledger.rules
            sizes = scheme_sizes(network, rules.sizes, (rank.program, *parts))
            self._sizes[place] = Memory(network, rules, Ranks(network, rules.sizes, sizes))
        return self._sizes[place]

    def totals(self, plans: Configurations) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the step in later epochs and in the first [s], and the memory [bytes] of plans, of their shape."""
        return self._in_full(plans)

    def shared_layers(self, plans: Configurations) -> list[SharedLayers | None]:
        """Return how the groups of each plan share layers, and what data parallelism alone takes."""
        sizes, alone = (self.itemsize, self.gradient_bytes), self._alone(plans)
        data_s = self.whole.totals(alone)[0].tolist()
        every: list[SharedLayers | None] = []
        for row, place in enumerate(self.ranks(plans).tolist()):
            one = self.compute.rank(place)
            sent, of_data = (
                sent_bytes(of, self.edges, (int(some.sub_batch[row]), int(some.data_parallel[row])), sizes)
                for of, some in ((one, plans), (self.compute.rank(0), alone))
            )
            every.append(SharedLayers(dict(named(one.schemes, one.program)), sent, of_data, data_s[row]))
        return every


def late_rounds_s(sent_s: FloatArray, kernels_s: FloatArray, ranks: int) -> FloatArray:
    """Return what layers by rounds wait for what is sent, though the next round is sent beside one [s].

    x + (m - 1) max(x, t) + t, less m rounds of t. ``sent_s``, ``kernels_s``: of all rounds, of any shape.

    >>> x, t = 128 * 9216 * 4 / 130e9, 2 * 128 * 9216 * 4096 / 8 / 10e12  # fc6 of AlexNet on 8 ranks
    >>> 1e3 * float(8 * t + late_rounds_s(np.array(7 * x), np.array(8 * t), 8))  # doctest: +ELLIPSIS
    0.99...
    """
    each, computed = sent_s / ranks, kernels_s / ranks
    return np.asarray(np.where(sent_s > 0, each + (ranks - 1) * np.maximum(each - computed, 0.0), 0.0))


def _ungrouped(plans: Configurations) -> Configurations:
    """Return plans on as many devices of which each has a copy of the network."""
    return plans.but(tensor_parallel=1, data_parallel=plans.data_parallel * plans.tensor_parallel)


def _power(of: IntArray) -> IntArray:
    """Return the largest power of two up to each number."""
    return np.left_shift(1, np.frexp(of.astype(np.float64))[1].astype(np.int64) - 1)


class _Moved:
    """Messages between the layers of a group of so many ranks, of k plans."""

    def __init__(self, pricer: GroupPricer, ranks: int, samples: IntArray, groups: Groups) -> None:
        self._pricer, self._groups = pricer, groups
        self._bytes = pricer.itemsize * samples.astype(np.float64)[:, None]
        whole = self._bytes * pricer.edges.elements
        self._seconds = np.stack(
            [self._operation_s(name, whole / ranks if name == ALL_TO_ALL else whole) for name in OPERATIONS]
        )

    def _operation_s(self, name: str, buffers: FloatArray) -> FloatArray:
        return self._pricer.operation_s(name, buffers, self._groups) if buffers.shape[1] else buffers

    def between(self, schemes: IntArray, backward: int) -> FloatArray:
        """Return what each edge takes by schemes of layers, (L,) or (k, L), shape (k, E) [s]."""
        edges, each = self._pricer.edges, np.atleast_2d(schemes)
        which = operations(backward)[:, each[:, edges.made], each[:, edges.read]]
        seconds = (which * self._seconds).sum(axis=0)
        return np.asarray(seconds * edges.has_gradient if backward else seconds)

    def costs(self) -> list[FloatArray]:
        """Return what each edge takes both ways by the schemes of its layers, shape (k, S, S) each [s]."""
        ahead, back = (operations(one) for one in (0, 1))
        both = ahead[:, None] + back[:, None] * self._pricer.edges.has_gradient[:, None, None]
        return list(np.einsum("oeab,oke->ekab", both, self._seconds))

    def halo_s(self, backward: int) -> FloatArray:
        """Return what the halo of each layer takes, shape (k, L) [s]."""
        elements = self._pricer.halo_elements[backward]
        some, seconds = np.flatnonzero(elements), np.zeros((self._bytes.shape[0], elements.size))
        seconds[:, some] = self._operation_s(SEND_RECEIVE, self._bytes * elements[some])
        return seconds

    def gathered_s(self, backward: int) -> FloatArray:
        """Return what gathering all that each layer reads takes, or scattering its gradient, shape (k, L) [s]."""
        name = REDUCE_SCATTER if backward else ALL_GATHER
        return self._operation_s(name, self._bytes * self._pricer.read_elements[backward])


class _Times:
    """What every scheme of every layer takes in groups of so many ranks, of k plans [s]."""

    def __init__(self, pricer: GroupPricer, ranks: int, plans: Configurations) -> None:
        self._pricer = pricer
        self.lawful, every = pricer.kernels_s(ranks, plans.sub_batch)
        self.kernels = every[:3].copy()
        placement = pricer.placement(plans)
        self.moved = _Moved(pricer, ranks, plans.sub_batch, placement.groups(TENSOR))
        halo = np.stack([self.moved.halo_s(one) for one in (0, 1)])
        self.kernels[:2, ..., SPACE] += np.maximum(halo - self.kernels[:2, ..., SPACE], 0.0)
        sent = np.stack([self.moved.gathered_s(one) for one in (0, 1)])
        self.kernels[:2, ..., ROUNDS] += late_rounds_s(sent, self.kernels[:2, ..., ROUNDS], ranks)
        places = [pricer.compute.of((scheme,) * len(self.lawful), ranks) for scheme in range(len(SCHEMES))]
        self.exchange = self._exchange_s(places, plans)

    def _exchange_s(self, places: list[int], plans: Configurations) -> FloatArray:
        """Return the exchange of each layer's gradients by scheme, shape (k, L, S)."""
        pricer = self._pricer
        everyone = pricer.placement(_ungrouped(plans)).groups(GRADIENTS)
        between, exchange = pricer.placement(plans).groups(GRADIENTS), []
        for scheme, place in enumerate(places):
            elements = pricer.compute.ranks[place].units.trained
            groups = everyone if scheme in SUMMED_BY_ALL else between
            sent = np.broadcast_to(pricer.gradient_bytes * elements, (plans.size, elements.size))
            exchange.append(np.where(elements > 0, pricer.operation_s(ALL_REDUCE, sent, groups), 0.0))
        return np.stack(exchange, axis=-1)

    def least(self, share: float) -> IntArray:
        """Return the schemes, shape (k, L), whose sum is least with so much of the exchange counted."""
        total = self.kernels.sum(axis=0) + share * self.exchange
        nodes = [total[:, at, list(some)] for at, some in enumerate(self.lawful)]
        edges = self._pricer.edges
        pairs = list(zip(edges.made.tolist(), edges.read.tolist(), strict=True))
        costs = [
            one[:, list(self.lawful[a])][:, :, list(self.lawful[b])]
            for (a, b), one in zip(pairs, self.moved.costs(), strict=True)
        ]
        found = least_assignment(nodes, pairs, costs)
        return np.stack([np.array(some)[found[:, at]] for at, some in enumerate(self.lawful)], axis=1)

    def step_s(self, schemes: IntArray) -> FloatArray:
        """Return what steps take by schemes of layers, (k, L), with the exchange beside the backward pass, (k,)."""
        at = schemes[None, ..., None]
        every = np.take_along_axis(self.kernels, np.broadcast_to(at, (3, *at.shape[1:])), axis=-1)[..., 0]
        forward, backward, update = every
        sent = np.take_along_axis(self.exchange, at[0], axis=-1)[..., 0]
        edges = self._pricer.edges
        np.add.at(backward.T, edges.read, self.moved.between(schemes, 1).T)
        ready = np.cumsum(backward[:, ::-1], axis=1)[:, ::-1]
        whole = (forward + update).sum(axis=1) + self.moved.between(schemes, 0).sum(axis=1)
        if not self._pricer.strategy.overlap:
            return np.asarray(whole + ready[:, 0] + sent.sum(axis=1))
        ends = np.where(sent > 0, ready + np.cumsum(sent, axis=1), 0.0)
        return np.asarray(whole + np.maximum(ready[:, 0], ends.max(axis=1)))
