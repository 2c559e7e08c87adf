"""The search for the best plans: all candidates of a small space, those that bounds leave of a large one.

Parts of the space are taken in the order of the least that their plans can take, and the search ends where the next
part can have none of the best: what it finds is what pricing every candidate would find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.domain.request import SpaceRequest
from planner.search.exhaustive import Outcome, Progress, Rules, Stopped, batches, search_among
from planner.search.parts import Parts, least_values, parts_of
from planner.search.ranking import SLACK, Evaluator, Order, PricedPlans, Stairs, pareto_front, rounded, seconds_allowed
from planner.search.space import Limits, Space, space_of

__all__ = ["Searcher", "first_plan", "search"]

PRICED_WHOLE = 2**14
"""Candidates in the window up to which all are priced: bounds would save no time."""
MOST_PRICED = 2**22
"""Candidates in the window up to which a key that leads the order is heeded: no bound is known of it."""
SEEDED = 2**11
"""Plans priced at once, of more those first that would be a front by their bounds: they rule out most of the others."""
FEWEST_PARTS, MOST_PARTS = 2**8, 2**13
"""Parts that are opened at once, at first and at most."""


_Promises = Callable[[FloatArray, IntArray, IntArray], BoolArray]
"""(least objective, GPUs, distance from the target [samples]), shape (n,) each: whether plans may be looked for."""


class Searcher(Protocol):
    """What looks for the best plans of a request."""

    def __call__(
        self, request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order, *, keep: int, pareto: bool
    ) -> Outcome:
        """Return the best ``keep`` plans, and how the space was searched."""


def search(
    request: SpaceRequest,
    limits: Limits,
    evaluator: Evaluator,
    order: Order,
    *,
    keep: int,
    pareto: bool = False,
    stopped: Stopped | None = None,
) -> Outcome:
    """Return the best ``keep`` of all candidates of a request, or the best so far once it is to end.

    Raises
    ------
    ParameterError, UnknownNameError : as :func:`planner.search.space.space_of`
    UsageError : it was to end before any plan that satisfies the request was found
    """
    space = space_of(request, limits)
    if order.leading is not None or space.inside <= PRICED_WHOLE:
        return search_among(space, request, limits, evaluator, order, keep=keep, pareto=pareto, stopped=stopped)
    rules = Rules.of(request, limits, space.precisions, order)
    parts = _AllParts(parts_of(space, evaluator), order)
    best = _Bounded(parts, Progress(evaluator, order, rules, keep, wants_pareto=pareto, wants_smallest=False))
    best.find_best(stopped)
    others = _Bounded(parts, Progress(evaluator, order, rules, 1, wants_pareto=pareto, pareto=best.progress.pareto))
    if best.progress.best is not None:
        others.find_others(stopped)
    outcome = best.outcome(space)
    return replace(
        outcome,
        smallest=others.progress.smallest if others.remaining is None else None,
        pareto=others.progress.pareto,
        certified=outcome.certified and (others.remaining is None or not pareto),
    )


def first_plan(
    request: SpaceRequest,
    limits: Limits,
    evaluator: Evaluator,
    order: Order,
    *,
    most: float | None = None,
    among: PricedPlans | None = None,
) -> PricedPlans | None:
    """Return the first plan in order and nothing beside it; None: nothing satisfies the request.

    In a space of more than MOST_PRICED the first one in the order without its leading key. Where ``most`` of the
    objective is given, plans that exceed it need not be looked for, nor any that takes longer than limits allow.
    ``among``: all plans that satisfy the request but for its limits, where they were priced.
    """
    space = space_of(request, limits)
    if space.inside > MOST_PRICED:
        order = replace(order, leading=None)
    rules = Rules.of(request, limits, space.precisions, order)
    if among is not None:
        return order.best(rules.within_limits(among), 1)
    progress = Progress(evaluator, order, rules, keep=1, wants_smallest=False)
    if order.leading is None and (space.inside > PRICED_WHOLE or most is not None):
        most = math.inf if most is None else most * (1 + SLACK)
        most_s = seconds_allowed(request.most, order) * (1 + SLACK)
        _Bounded(_AllParts(parts_of(space, evaluator), order, most_s), progress, most).find_best(None)
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
    """A search through parts until none promises anything of what is looked for.

    Attributes
    ----------
    remaining : where it was stopped, the least objective of the next part, not gone through to the end
    """

    def __init__(self, parts: _AllParts, progress: Progress, most: float = math.inf) -> None:
        self.parts, self.progress, self.most = parts, progress, most
        self.remaining: float | None = None
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
        best = self.progress.best
        return np.asarray(value <= (self.most if best is None or best.size < self.progress.keep else self._last(best)))

    def _may_be_another(self, value: FloatArray, gpus: IntArray, distance: IntArray) -> BoolArray:
        return self._may_be_in_front(value, gpus, distance) | self._may_be_fewest(value, gpus)

    def _may_be_fewest(self, value: FloatArray, gpus: IntArray, *_: IntArray) -> BoolArray:
        found = self.progress.smallest
        if found is None:
            return np.ones(gpus.size, dtype=np.bool_)
        least, is_enough = found.configurations.gpus[-1], found.size == len(found.configurations.precisions)
        return np.asarray((gpus < least) | ((gpus == least) & ((value <= self._last(found)) | (not is_enough))))

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
