"""The search for the best plans: all candidates of a small space, those that bounds leave of a large one.

Parts of the space are taken in the order of the least that their plans can take, and the search ends where the next
part can have none of the best: what it finds is what pricing every candidate would find. A part is a *site* with a
sub-batch: a place of plans that split the network, or a data-parallel degree of those with a whole network on every
device. Bounds of all parts of a block come from a few vectorised calls (MODEL 10.12).

What is chosen for each plan by itself, its stages and its recompute, is no part of a search: it would be chosen for
every candidate. The leaders of a search without it are refined instead; a refined plan takes the place of all that
differ from it in nothing else, where it is better than these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows, distinct_values
from planner.domain.axes import AXES, SCHEDULES
from planner.domain.configuration import Configurations, splits
from planner.domain.network import Network
from planner.domain.request import SpaceRequest
from planner.domain.split import BUBBLES
from planner.search.bases import SplitLimits
from planner.search.block import Kinds, Plans, Runs, each, members, spans
from planner.search.exhaustive import Asked, Outcome, Progress, Rules, Stopped, batches, search_among
from planner.search.ranking import (
    LAWFUL,
    OUT_OF_MEMORY,
    SLACK,
    Evaluator,
    Order,
    PricedPlans,
    Stairs,
    pareto_front,
    rounded,
    seconds_allowed,
)
from planner.search.space import Space
from planner.workload.lawful import is_lawful, most_stages, starts_even
from planner.workload.program import block_starts

__all__ = [
    "REFINED", "OpenBounds", "Refined", "Searcher", "first_plan", "least_values", "refinement", "search",
    "without_refinement",
]  # fmt: skip

PRICED_WHOLE = 2**14
"""Candidates in the window up to which all are priced: bounds would save no time."""
MOST_PRICED = 2**22
"""Candidates in the window up to which a key that leads the order is heeded: no bound is known of it."""
SEEDED = 2**11
"""Plans priced at once, of more those first that would be a front by their bounds: they rule out most of the others."""
FEWEST_PARTS, MOST_PARTS = 2**8, 2**13
"""Parts that are opened at once, at first and at most."""
MOST_BOUNDED = 2**18
"""Candidates of which each has its bound; of more those of parts of the space are used."""
REFINED = {"stages": "best", "recompute": "per-stage"}
"""Axis -> its value that is chosen for each plan by itself."""
LEADERS = 100
"""Plans that are refined."""
CHUNKED = 10
"""Of these, plans that are given virtual stages."""
_BY_NAME = {axis.name: axis for axis in AXES}
_APART = ("virtual_stages", "schedule", "recompute")
"""What tells bases of a site apart besides what their ranks share."""
_Promises = Callable[[FloatArray, IntArray, IntArray], BoolArray]
"""Of least epochs [s], or objectives, of GPUs, and of mini-batches, or distances from the target [samples], shape (n,)
each: whether plans with these may be among those looked for."""


def parts_of(space: Space, evaluator: Evaluator) -> list[Parts]:
    """Return the parts of every block that can be priced."""
    return [
        (Parts if plans.mode == "sync" else _Unbounded)(plans, evaluator, kinds) for plans, kinds in space.open_blocks()
    ]


@dataclass(frozen=True)
class Parts:
    """The parts of plans in a precision, k of them: of sites each with a run of its data-parallel degree."""

    plans: Plans
    evaluator: Evaluator
    kinds: Kinds

    @property
    def _has_choices(self) -> bool:
        """Whether plans of a site differ in more than what is open in every bound."""
        return not self.plans.bases.counts_outside

    @cached_property
    def _site(self) -> tuple[IntArray, IntArray]:
        """The first base of each site, and the site of each base."""
        bases = self.plans.bases
        return distinct_rows(bases.lawful[0] if self._has_choices else bases.copies)

    @cached_property
    def _columns(self) -> dict[str, IntArray]:
        """Axes of the places of the first base of each site."""
        first, bases = self._site[0], self.plans.bases
        return {name: column[bases.lawful[0][first]] for name, column in bases.places.items()}

    @cached_property
    def _parts(self) -> tuple[IntArray, Runs, IntArray]:
        """The site of each part, the runs of all degrees, and which of them each part has."""
        degrees, which = np.unique(self._columns["data_parallel"], return_inverse=True)
        runs = self.plans.searched(degrees)
        site, run = members(*spans(runs.group, which))
        return site, runs, run

    @cached_property
    def gpus(self) -> IntArray:
        """The least GPUs of a plan of each, shape (k,)."""
        (first, of), bases = self._site, self.plans.bases
        least = np.full(first.size, np.iinfo(np.int64).max)
        np.minimum.at(least, of, bases.column("nodes") * bases.column("gpus_per_node"))
        return least[self._parts[0]]

    @cached_property
    def unit(self) -> IntArray:
        """What divides the mini-batch of every plan of each [samples], 0 where it is random, shape (k,)."""
        site, runs, run = self._parts
        return self._columns["data_parallel"][site] * runs.sub_batch[run]

    @cached_property
    def least_s(self) -> FloatArray:
        """The least epoch of a plan of each [s], without a data set of a sample, shape (k,); 0 where none is known."""
        site = self._parts[0]
        least_s = np.full(site.size, np.inf)
        coarse = self._openings(())
        for part, opening in each(*spans(coarse["site"], site)):
            np.minimum.at(least_s, part, self._bounds(coarse, opening, part, closely=False))
        return least_s

    @cached_property
    def _fine(self) -> tuple[dict[str, IntArray], IntArray, IntArray]:
        """Openings that tell recompute and schedules apart, the bases by opening, and where those of each start."""
        openings = self._openings(_APART)
        bases = np.argsort(openings.pop("which"), kind="stable")
        return openings, bases, np.cumsum(openings["bases"]) - openings["bases"]

    def _openings(self, apart: tuple[str, ...]) -> dict[str, IntArray]:
        """Return what bounds tell apart of the bases of a site: the site and columns of axes, by site.

        Without ``apart``: of the virtual stages the most, a schedule without a bubble where some base has one, and no
        recompute. ``which``: the opening of each base; ``bases``: how many each has.
        """
        of, site = self.plans.bases, self._site[1]
        names = ("sequence_parallel", "expert_parallel", *apart)
        first, which = distinct_rows(site, *map(of.column, names))
        columns = {name: of.column(name, first) for name in (*names, *_APART)}
        if not apart:
            columns["recompute"] = np.zeros(first.size, dtype=np.int64)
            columns["virtual_stages"] = columns["virtual_stages"].copy()  # a column that is alike is read-only
            np.maximum.at(columns["virtual_stages"], which, of.column("virtual_stages"))
            has_none = np.zeros(first.size, dtype=np.bool_)
            np.logical_or.at(has_none, which, ~np.isin(of.column("schedule"), BUBBLES))
            columns["schedule"] = np.where(has_none, SCHEDULES.index("zero-bubble"), SCHEDULES.index("1f1b"))
        return columns | {"site": site[first], "which": which, "bases": np.bincount(which, minlength=first.size)}

    def _bounds(self, openings: dict[str, IntArray], some: IntArray, part: IntArray, *, closely: bool) -> FloatArray:
        """Return the least epoch of plans of some openings, each with the most micro-batches of a part [s]."""
        (site, runs, which), names = self._parts, ("sequence_parallel", "expert_parallel", *_APART)
        run = which[part]
        columns = {name: openings[name][some] for name in names} | {"sub_batch": runs.sub_batch[run]}
        columns["accumulation_steps"] = self.plans.steps(runs.first[run] + runs.inside[run] - 1)
        columns |= {name: one[site[part]] for name, one in self._columns.items() if name != "data_parallel"}
        rows = self.plans.configurations(columns, self.kinds)
        return self.evaluator.least_epoch_s(rows, split=self._has_choices, closely=closely)

    def open(self, parts: IntArray, promises: _Promises, progress: Progress) -> Iterator[Configurations]:
        """Yield candidates of some parts that may be among the best, some at a time."""
        (site, runs, run), (openings, bases, starts) = self._parts, self._fine
        gpus, unit, of = self.gpus[parts], self.unit[parts], run[parts]
        if not self._has_choices:  # no bound is closer than that of the part
            part, at = members(*spans(self._site[1][bases], site[parts]))
            yield from self.plans.made(bases[at], runs.sub_batch[of[part]], self.kinds)
            return
        first, last = (self.plans.steps(at) for at in (runs.first[of], runs.first[of] + runs.inside[of] - 1))
        target = self.plans.bases.request.target_batch
        nearest = unit * np.clip(np.rint(target / unit).astype(np.int64), first, last)
        for part, opening in each(*spans(openings["site"], site[parts])):
            whatever = promises(np.full(part.size, np.inf), gpus[part], nearest[part]).all()
            for closely in () if whatever else (False, True):
                seconds = self._bounds(openings, opening, parts[part], closely=closely)
                keeps = promises(seconds, gpus[part], nearest[part])
                part, opening = part[keeps], opening[keeps]  # noqa: PLW2901 - fewer
            for pair, at in each(starts[opening], openings["bases"][opening]):
                some = bases[at], runs.sub_batch[of[part[pair]]], first[part[pair]]
                yield from self._promising(some, promises, progress)

    def _promising(
        self, some: tuple[IntArray, IntArray, IntArray], promises: _Promises, progress: Progress
    ) -> Iterator[Configurations]:
        """Yield bases, each with a sub-batch, and steps of which those that do not fit tell that no more of them do."""
        base, sub_batch, steps = some
        fits = progress.rules.fits(self.plans.rows(base, sub_batch, steps, self.kinds))
        progress.counts[OUT_OF_MEMORY] += int(self.plans.span(base[~fits], sub_batch[~fits])[1].sum())
        for rows in self.plans.made(base[fits], sub_batch[fits], self.kinds):
            seconds = self.evaluator.least_epoch_s(rows, split=True, closely=True)
            yield rows.where(promises(seconds, rows.gpus, rows.synchronous_mini_batch))


class _Unbounded(Parts):
    """One part of all plans, of whose epochs and mini-batches nothing is known."""

    gpus = cached_property(lambda _: np.ones(1, dtype=np.int64))
    least_s = cached_property(lambda _: np.zeros(1))
    unit = cached_property(lambda _: np.zeros(1, dtype=np.int64))

    def open(self, *_: object) -> Iterator[Configurations]:
        """Yield all candidates."""
        return self.plans.candidates(self.kinds)


def least_values(plans: Configurations, evaluator: Evaluator, order: Order) -> FloatArray:
    """Return a lower bound of the objective of each plan, shape (n,); 0 where none is known."""
    seconds = np.zeros(plans.size)
    kind = np.where(plans.is_async, -1, plans.precision * 2 + plans.of_bases(splits))
    for value in distinct_values(kind[kind >= 0]).tolist():
        rows = np.flatnonzero(kind == value)
        seconds[rows] = evaluator.least_epoch_s(plans.take(rows), split=bool(value % 2), closely=True)
    return order.value_of(seconds, plans.gpus)


@dataclass(frozen=True)
class OpenBounds:
    """What plans of a space that were not tried can reach."""

    space: Space
    evaluator: Evaluator
    order: Order
    rules: Rules

    def least(self, tried: FloatArray) -> float:
        """Return what plans beside those tried take at least, inf where there are none; 0: not known.

        ``tried``: bounds of those that fit in memory, which may differ by rounding.
        """
        number = tried.size if self._is_by_plan else 0
        missing = np.flatnonzero(np.sort(tried)[:number] > self._every[:number] * (1 + SLACK))
        first = int(missing[0]) if missing.size else number
        return float(self._every[first]) if first < self._every.size else np.inf

    @property
    def _is_by_plan(self) -> bool:
        return self.space.inside <= MOST_BOUNDED

    @cached_property
    def _every(self) -> FloatArray:
        """Bounds of all plans that fit in memory, ascending; of more than MOST_BOUNDED those of parts of the space."""
        return np.sort(np.concatenate([np.zeros(0), *self._bounds()]))

    def _bounds(self) -> Iterator[FloatArray]:
        if self._is_by_plan:
            for chunk in self.space.chunks():
                yield least_values(chunk.where(self.rules.fits(chunk)).rows, self.evaluator, self.order)
        else:
            for part in parts_of(self.space, self.evaluator):
                yield self.order.value_of(part.least_s, part.gpus)


class Searcher(Protocol):
    """What looks for the best plans of a request."""

    def __call__(self, asked: Asked, *, keep: int, pareto: bool, beside: Sequence[Outcome] = ()) -> Outcome:
        """Return the best ``keep`` plans, and how the space was searched; ``beside`` as of :func:`search`."""


def search(
    asked: Asked,
    *,
    keep: int,
    pareto: bool = False,
    stopped: Stopped | None = None,
    beside: Sequence[Outcome] = (),
) -> Outcome:
    """Return the best ``keep`` of all candidates of a request, or the best so far once it is to end.

    ``beside``: of searches whose plans share one ranking with these. Synchronous plans behind as many of one of these
    are left out then, but for the first, and so are the smallest where one of these is ahead of them.

    ParameterError, UnknownNameError: as :func:`planner.search.space.space_of`; UsageError: ended without a plan.
    """
    space, evaluator, order = asked.space, asked.evaluator, asked.order
    if order.leading is not None or space.inside <= PRICED_WHOLE:
        return search_among(space, asked, keep=keep, pareto=pareto, stopped=stopped)
    rules, parts = asked.rules(space), _AllParts(parts_of(space, evaluator), order)
    rivals = _reached(beside if asked.request.modes == ("sync",) else (), order, keep)
    first = Progress(evaluator, order, rules, keep, wants_pareto=pareto, wants_smallest=False)
    best = _Bounded(parts, first, rivals=rivals)
    best.find_best(stopped)
    more = Progress(evaluator, order, rules, 1, wants_pareto=pareto, pareto=first.pareto)
    others = _Bounded(parts, more, rivals=rivals)
    if first.best is not None:
        others.find_others(stopped)
    outcome = best.outcome(space)
    return replace(
        outcome,
        smallest=others.progress.smallest if others.remaining is None else None,
        pareto=others.progress.pareto,
        parts=parts.blocks,
        certified=outcome.certified and (others.remaining is None or not pareto),
    )


_Rivals = tuple[float, tuple[float, float]]
_ALONE: _Rivals = (math.inf, (math.inf, math.inf))


def _reached(beside: Sequence[Outcome], order: Order, keep: int) -> _Rivals:
    """Return the least objective of the last of ``keep`` plans, and GPUs and objective of the first on the fewest."""
    lasts = [order.values(one.best)[-1] for one in beside if one.best is not None and one.best.size == keep]
    smallest = [one.smallest for one in beside if one.smallest is not None]
    firsts = [(float(one.configurations.gpus[0]), float(order.values(one)[0])) for one in smallest]
    return min(lasts, default=math.inf) * (1 + SLACK), min(firsts, default=_ALONE[1])


def first_plan(asked: Asked, *, most: float | None = None, found: Outcome | None = None) -> PricedPlans | None:
    """Return the first plan in order and nothing beside it; None: nothing satisfies the request.

    In a space of more than MOST_PRICED the first one in the order without its leading key. Where ``most`` of the
    objective is given, plans that exceed it need not be looked for, nor any that takes longer than limits allow.
    ``found``: of a search that differs in limits and order alone, whose prices and bounds are used again.
    """
    space, evaluator, order = asked.space, asked.evaluator, asked.order
    if order.leading is not None and space.inside > MOST_PRICED:
        order = replace(order, leading=None)
    rules = replace(asked.rules(space), order=order)
    if found is not None and found.lawful is not None:
        return order.best(rules.within_limits(found.lawful), 1)
    progress = Progress(evaluator, order, rules, keep=1, wants_smallest=False)
    if order.leading is None and (most is not None or space.inside > PRICED_WHOLE):
        most = math.inf if most is None else most * (1 + SLACK)
        most_s = seconds_allowed(asked.request.most, order) * (1 + SLACK)
        parts = found.parts if found is not None and found.parts else parts_of(space, evaluator)
        _Bounded(_AllParts(parts, order, most_s), progress, most).find_best(None)
    else:
        for batch in batches(progress.sift(chunk) for chunk in space.chunks()):
            progress.price(batch)
    return progress.best


class _AllParts:
    """The parts of all blocks, k of them; ``gpus`` and ``value``: the least GPUs and objective of each, shape (k,).

    ``most_s``: seconds of an epoch, or of a sample, above which no plan is looked for.
    """

    def __init__(self, blocks: Sequence[Parts], order: Order, most_s: float = math.inf) -> None:
        self.blocks, self.order, self.most_s = blocks, order, most_s
        sizes = [one.gpus.size for one in blocks]
        self._block = np.repeat(np.arange(len(blocks)), sizes)
        self._place = np.concatenate([np.zeros(0, np.int64), *(np.arange(size) for size in sizes)])
        self.gpus = np.concatenate([np.zeros(0, np.int64), *(one.gpus for one in blocks)])
        least_s = np.concatenate([np.zeros(0), *(one.least_s for one in blocks)])
        self.value = np.where(least_s <= most_s, order.value_of(least_s, self.gpus), np.inf)
        unit = np.concatenate([np.zeros(0, np.int64), *(one.unit for one in blocks)])
        rest = order.target_batch % np.maximum(unit, 1)
        self.distance = np.where(unit > order.target_batch, unit - order.target_batch, np.minimum(rest, unit - rest))

    def open(self, some: IntArray, promises: _Promises, progress: Progress) -> Iterator[Configurations]:
        """Yield the candidates of some parts whose objective, GPUs and distance from the target promise something."""

        def may_be(seconds: FloatArray, gpus: IntArray, mini_batch: IntArray) -> BoolArray:
            distance = np.abs(mini_batch - self.order.target_batch)
            is_timely = np.isinf(seconds) | (seconds <= self.most_s)
            return is_timely & promises(self.order.value_of(seconds, gpus), gpus, distance)

        for at, block in enumerate(self.blocks):
            mine = some[self._block[some] == at]
            if mine.size:
                yield from block.open(self._place[mine], may_be, progress)


class _Bounded:
    """A search through parts until none promises anything of what is looked for; ``rivals``: see :func:`_reached`."""

    def __init__(self, parts: _AllParts, progress: Progress, most: float = math.inf, rivals: _Rivals = _ALONE) -> None:
        self.parts, self.progress, self.most, self.rivals = parts, progress, most, rivals
        self.remaining: float | None = None  # where it was stopped: the least objective of the part it was in
        self._stairs: tuple[PricedPlans, Stairs] | None = None

    def find_best(self, stopped: Stopped | None) -> None:
        """Look for the plans with the least objective, ``most`` at most."""
        self._open(np.lexsort((self.parts.gpus, self.parts.value)), self._may_be_best, stopped)

    def find_others(self, stopped: Stopped | None) -> None:
        """Look for those on the fewest GPUs, and of them for those with the least objective; and for the front.

        Where that is wanted, of each number of GPUs the part that promises most is opened first: what it holds rules
        out most of the others.
        """
        by_gpus = np.lexsort((self.parts.value, self.parts.gpus))
        if not self.progress.wants_pareto:
            self._open(by_gpus, self._may_be_fewest, stopped)
            return
        starts = np.flatnonzero(np.diff(self.parts.gpus[by_gpus], prepend=-1))
        rank = np.arange(by_gpus.size) - np.repeat(starts, np.diff(starts, append=by_gpus.size))
        self._open(by_gpus[np.argsort(rank, kind="stable")], self._may_be_another, stopped)

    def _open(self, queue: IntArray, promises: _Promises, stopped: Stopped | None) -> None:
        """Open the parts that promise something, those that do most first, until none does, or the search is to end."""
        number, parts = FEWEST_PARTS, self.parts
        while queue.size:
            some, queue = queue[:number], queue[number:]
            some = some[promises(parts.value[some], parts.gpus[some], parts.distance[some])]
            opened = parts.open(some, promises, self.progress)
            for batch in batches(self.progress.sift(rows) for rows in opened):
                self._price(batch, promises)
                if stopped is not None and stopped():
                    self.remaining = float(parts.value[some[0]])
                    self.progress.check_found()
                    return
            number = min(2 * number, MOST_PARTS << 5 * self.progress.wants_pareto)  # a front opens most of them

    def _price(self, batch: Configurations, promises: _Promises) -> None:
        """Price plans, those that would be a front if all took what their bounds say first, as far as they promise."""
        order = self.parts.order
        if self.progress.wants_pareto and batch.size > SEEDED:
            batch = batch.rows
            value, gpus = least_values(batch, self.progress.evaluator, order), batch.gpus
            distance = np.abs(batch.synchronous_mini_batch - order.target_batch)
            far = distance.astype(np.float64)
            front = pareto_front(value, gpus, far)
            is_first = value <= Stairs(value[front], gpus[front], far[front]).least(gpus, far) * (1 + SLACK)
            self.progress.price(batch.where(is_first))
            batch = batch.where(~is_first & (batch.is_async | promises(value, gpus, distance)))
        if batch.size:
            self.progress.price(batch)

    def _may_be_best(self, value: FloatArray, *_: IntArray) -> BoolArray:
        best, most = self.progress.best, self.most
        if best is not None:
            last = self._last(best) if best.size == self.progress.keep else most
            most = min(last, max(self.rivals[0], self._last(best.take(slice(1)))))
        return np.asarray(value <= most)

    def _may_be_another(self, value: FloatArray, gpus: IntArray, distance: IntArray) -> BoolArray:
        return self._may_be_in_front(value, gpus, distance) | self._may_be_fewest(value, gpus)

    def _may_be_fewest(self, value: FloatArray, gpus: IntArray, *_: IntArray) -> BoolArray:
        found, (fewest, first) = self.progress.smallest, self.rivals[1]
        is_ahead = np.asarray((gpus < fewest) | ((gpus == fewest) & (value <= first * (1 + SLACK))))
        if found is None:
            return is_ahead
        least, is_enough = found.configurations.gpus[-1], found.size == len(found.configurations.precisions)
        is_before = (gpus < least) | ((gpus == least) & ((value <= self._last(found)) | (not is_enough)))
        return np.asarray(is_ahead & is_before)

    def _may_be_in_front(self, value: FloatArray, gpus: IntArray, distance: IntArray) -> BoolArray:
        front, order = self.progress.pareto, self.parts.order
        if front is None:
            return np.ones(gpus.size, dtype=np.bool_)
        if self._stairs is None or front is not self._stairs[0]:
            self._stairs = front, Stairs(order.values(front), front.configurations.gpus, order.distances(front))
        least = self._stairs[1].least(gpus, rounded(distance.astype(np.float64)))
        return np.asarray(value <= least * (1 + SLACK))

    def _last(self, plans: PricedPlans) -> float:
        """Return the objective of the last of some plans, with what rounding may change."""
        return float(self.parts.order.values(plans.take(slice(plans.size - 1, plans.size)))[0]) * (1 + SLACK)

    def outcome(self, space: Space) -> Outcome:
        """Return what was found."""
        if self.progress.best is None:
            self.progress.look_nearby(space)
        outcome = self.progress.outcome(space)
        discarded = space.candidates - outcome.evaluated - sum(outcome.refused.values())
        gap = None
        if self.remaining is not None and outcome.best is not None:
            best = float(self.parts.order.values(outcome.best)[0])
            gap = max(0.0, 1 - self.remaining / best)
        return replace(
            outcome,
            method="branch and bound",
            certified=self.remaining is None or gap == 0,
            discarded=discarded,
            gap=gap,
        )


def refinement(request: SpaceRequest) -> dict[str, str]:
    """Return which of REFINED a request asks for."""
    return {name: value for name, value in REFINED.items() if value in (request[name] or ())}


def without_refinement(request: SpaceRequest) -> SpaceRequest:
    """Return the request with other values alone: those asked for besides, else all that are lawful."""
    others = {name: tuple(one for one in request[name] or () if one != value) for name, value in REFINED.items()}
    return request.changed(**{name: others[name] or None for name in refinement(request)})


@dataclass(frozen=True)
class Refined:
    """A searcher whose leading plans are refined; ``values``: axis -> its value in refined plans."""

    values: Mapping[str, str]
    searcher: Searcher = search

    def __call__(self, asked: Asked, *, keep: int, pareto: bool, beside: Sequence[Outcome] = ()) -> Outcome:  # noqa: ARG002 - as below
        """Return the best ``keep`` plans, the leading ones refined, by which they may be ahead of all ``beside``."""
        outcome = self.searcher(asked, keep=keep, pareto=pareto)
        request, split, order = asked.request, asked.limits.split, asked.order
        if outcome.best is None or split is None:
            return outcome
        leaders = outcome.best.take(slice(LEADERS)).configurations
        refined = self._refined(leaders, _more_chunks(leaders, request, split), split.network)
        if not refined.size:
            return outcome
        rules = Rules.of(request, asked.limits, refined.precisions, order)
        plans = PricedPlans(refined, asked.evaluator.evaluate(refined))
        fits = plans.predictions.memory_bytes <= split.capacity_bytes
        plans = plans.take(fits & (rules.why_not_after_pricing(plans) == LAWFUL))
        best = order.best(self._better(order, outcome.best, plans), keep)
        return replace(outcome, best=best, method=f"{outcome.method}, refined", certified=False)

    def _refined(self, leaders: Configurations, more: Configurations, network: Network) -> Configurations:
        """Return the refined plans of leaders, each once; of plans that do not split the network there are none."""
        split = leaders.take(splits(leaders))
        if "stages" in self.values and more.size:
            split = Configurations.joined([split, more])
        columns = {axis.name: getattr(split, axis.name) for axis in AXES}
        keeps_blocks = (split.recompute_every == 1) & bool(block_starts(network))
        can = {"stages": split.pipeline_parallel > 1, "recompute": keeps_blocks}
        for name, value in self.values.items():
            columns[name] = np.where(can[name], _BY_NAME[name].code(value), columns[name])
        refined = Configurations(**columns, precisions=split.precisions)
        if not refined.size:
            return refined
        return refined.take(np.sort(distinct_rows(*columns.values())[0]))

    def _better(self, order: Order, plans: PricedPlans, refined: PricedPlans) -> PricedPlans:
        """Return plans and refined ones, without those that one which is as it but for what is refined beats."""
        every = plans.joined(refined)
        is_refined = np.arange(every.size) >= plans.size
        others = [getattr(every.configurations, axis.name) for axis in AXES if axis.name not in self.values]
        kind = distinct_rows(*others)[1]
        values = order.values(every)
        least = np.full((2, int(kind.max()) + 1), np.inf)
        for at in (0, 1):
            np.minimum.at(least[at], kind[is_refined == at], values[is_refined == at])
        wins = least[1] < least[0]
        return every.take(wins[kind] == is_refined)


def _more_chunks(leaders: Configurations, request: SpaceRequest, limits: SplitLimits) -> Configurations:
    """Return the first leaders with virtual stages that best stages alone can have, as even chunks do not add up."""
    few = leaders.take((leaders.pipeline_parallel > 1) & (leaders.virtual_stages == 1)).take(slice(CHUNKED))
    asked = np.array(request["virtual_stages"] or range(2, most_stages(limits.network) // 2 + 1), dtype=np.int64)
    row, chunks = np.divmod(np.arange(few.size * asked.size), max(asked.size, 1))
    columns = {axis.name: getattr(few, axis.name)[row] for axis in AXES}
    columns |= {
        "virtual_stages": asked[chunks],
        "stages": np.full(row.size, _BY_NAME["stages"].code(REFINED["stages"])),
    }
    every = Configurations(**columns, precisions=few.precisions)
    is_even = starts_even(most_stages(limits.network), limits.framework, every)
    return every.take(~is_even & is_lawful(limits.network, limits.framework, every))
