"""The search for the best plans: all candidates of a small space, those that bounds leave of a large one.

Parts of the space are taken in the order of the least that their plans can take, and the search ends where the next
part can have none of the best: what it finds is what pricing every candidate would find.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.domain.request import SpaceRequest
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.exhaustive import Outcome, Progress, Stopped, batches, search_among
from planner.search.feasibility import Rules
from planner.search.pareto import Stairs
from planner.search.parts import Parts, parts_of
from planner.search.ranking import SLACK, Order, fewest_first, rounded
from planner.search.space import Limits, Space, space_of

__all__ = ["Searcher", "first_plan", "search"]

PRICED_WHOLE = 2**14
"""Candidates in the window up to which all are priced: bounds would save no time."""
MOST_PRICED = 2**22
"""Candidates in the window up to which a key that leads the order is heeded: no bound is known of it."""
FEWEST_PARTS, MOST_PARTS = 16, 4096
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
    ParameterError, UnknownNameError
        As :func:`planner.search.space.space_of`.
    UsageError
        It was to end before any plan that satisfies the request was found.
    """
    space = space_of(request, limits)
    if order.leading is not None or space.inside <= PRICED_WHOLE:
        return search_among(space, request, limits, evaluator, order, keep=keep, pareto=pareto, stopped=stopped)
    rules = Rules.of(request, limits, space.precisions, order)
    parts = _AllParts(parts_of(space, evaluator), order)
    best = _Best(parts, Progress(evaluator, order, rules, keep, wants_pareto=pareto))
    best.run(stopped)
    fewest = _Fewest(parts, Progress(evaluator, fewest_first(order), rules, len(space.precisions)))
    front = _Front(parts, Progress(evaluator, order, rules, 1, wants_pareto=True, pareto=best.progress.pareto))
    if best.progress.best is not None:
        fewest.run(stopped)
        if pareto:
            front.run(stopped)
    outcome = best.outcome(space)
    return replace(
        outcome,
        smallest=fewest.progress.best if fewest.remaining is None else None,
        pareto=front.progress.pareto if pareto else None,
        certified=outcome.certified and front.remaining is None,
    )


def first_plan(
    request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order, *, most: float | None = None
) -> PricedPlans | None:
    """Return the first plan in order and nothing beside it; None: nothing satisfies the request.

    In a space of more than MOST_PRICED the first one in the order without its leading key. Where ``most`` of the
    objective is given, plans that exceed it need not be looked for.
    """
    space = space_of(request, limits)
    if space.inside > MOST_PRICED:
        order = replace(order, leading=None)
    rules = Rules.of(request, limits, space.precisions, order)
    progress = Progress(evaluator, order, rules, keep=1, wants_smallest=False)
    if order.leading is None and (space.inside > PRICED_WHOLE or most is not None):
        best = _Best(_AllParts(parts_of(space, evaluator), order), progress)
        best.most = math.inf if most is None else most * (1 + SLACK)
        best.run(None)
    else:
        for batch in batches(progress.sift(chunk) for chunk in space.chunks()):
            progress.price(batch)
    return progress.best


class _AllParts:
    """The parts of all blocks, k of them; ``gpus`` and ``value``: the least GPUs and objective of each, shape (k,)."""

    def __init__(self, blocks: Sequence[Parts], order: Order) -> None:
        self.blocks, self.order = blocks, order
        sizes = [one.gpus.size for one in blocks]
        self._block = np.repeat(np.arange(len(blocks)), sizes)
        self._place = np.concatenate([np.zeros(0, np.int64), *(np.arange(size) for size in sizes)])
        self.gpus = np.concatenate([np.zeros(0, np.int64), *(one.gpus for one in blocks)])
        least_s = np.concatenate([np.zeros(0), *(one.least_s for one in blocks)])
        self.value = order.value_of(least_s, self.gpus)
        unit = np.concatenate([np.zeros(0, np.int64), *(one.unit for one in blocks)])
        rest = order.target_batch % np.maximum(unit, 1)
        self.distance = np.where(unit > order.target_batch, unit - order.target_batch, np.minimum(rest, unit - rest))

    def open(self, some: IntArray, promises: _Promises) -> Iterator[Configurations]:
        """Yield the candidates of some parts whose objective, GPUs and distance from the target promise something."""

        def may_be(seconds: FloatArray, gpus: IntArray, mini_batch: IntArray) -> BoolArray:
            return promises(self.order.value_of(seconds, gpus), gpus, np.abs(mini_batch - self.order.target_batch))

        for at, block in enumerate(self.blocks):
            mine = some[self._block[some] == at]
            if mine.size:
                yield from block.open(self._place[mine], may_be)


class _Bounded(ABC):
    """A search through parts until none promises anything.

    Attributes
    ----------
    remaining : float or None
        Where it was stopped, the least objective that parts not gone through to the end may have.
    """

    def __init__(self, parts: _AllParts, progress: Progress) -> None:
        self.parts, self.progress = parts, progress
        self.progress.wants_smallest = False  # a search of its own looks for them
        self.remaining: float | None = None

    def run(self, stopped: Stopped | None) -> None:
        """Open parts, those that promise most first, until no other promises anything, or the search is to end."""
        queue, number = self._queue(), FEWEST_PARTS
        while queue.size:
            some, queue = queue[:number], queue[number:]
            promising = self._promises(self.parts.value[some], self.parts.gpus[some], self.parts.distance[some])
            if self._ends(promising):
                return
            opened = self.parts.open(some[promising], self._promises)
            for batch in batches(self.progress.sift(rows) for rows in opened):
                self.progress.price(batch)
                if stopped is not None and stopped():
                    self.remaining = float(self.parts.value[some[0]])
                    self.progress.check_found()
                    return
            number = min(2 * number, MOST_PARTS)

    @abstractmethod
    def _queue(self) -> IntArray:
        """Return the parts in the order in which they are opened."""

    @abstractmethod
    def _promises(self, value: FloatArray, gpus: IntArray, distance: IntArray) -> BoolArray:
        """Tell which plans may be among those looked for, by the least objective, GPUs and distance, shape (n,)."""

    def _ends(self, promising: BoolArray) -> bool:
        """Tell whether no part promises anything, from the next ones."""
        return not promising[0]

    def _last(self) -> tuple[float, int] | None:
        """Return the objective and the GPUs that plans must not exceed; None: too few are known."""
        best = self.progress.best
        if best is None or best.size < self.progress.keep:
            return None
        last = best.take(slice(best.size - 1, best.size))
        return float(self.parts.order.values(last)[0]) * (1 + SLACK), int(last.configurations.gpus[0])


class _Best(_Bounded):
    """Looks for the plans with the least objective, ``most`` at most."""

    most = math.inf

    def _queue(self) -> IntArray:
        return np.lexsort((self.parts.gpus, self.parts.value))

    def _promises(self, value: FloatArray, gpus: IntArray, distance: IntArray) -> BoolArray:  # noqa: ARG002
        last = self._last()
        return np.asarray(value <= (last[0] if last else self.most))

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


class _Fewest(_Bounded):
    """Looks for the plans on the fewest GPUs, and of them for those with the least objective."""

    def _queue(self) -> IntArray:
        return np.lexsort((self.parts.value, self.parts.gpus))

    def _promises(self, value: FloatArray, gpus: IntArray, distance: IntArray) -> BoolArray:  # noqa: ARG002
        last = self._last()
        if last is None:
            return np.ones(gpus.size, dtype=np.bool_)
        return np.asarray((gpus < last[1]) | ((gpus == last[1]) & (value <= last[0])))


class _Front(_Bounded):
    """Looks for the plans that no other equals or exceeds in objective, GPUs and distance from the target at once.

    Of each number of GPUs the part that promises most is opened first: what it holds rules out most of the others.
    """

    _front: PricedPlans | None = None
    _stairs: Stairs

    def _queue(self) -> IntArray:
        by_gpus = np.lexsort((self.parts.value, self.parts.gpus))
        starts = np.flatnonzero(np.diff(self.parts.gpus[by_gpus], prepend=-1))
        rank = np.arange(by_gpus.size) - np.repeat(starts, np.diff(starts, append=by_gpus.size))
        return by_gpus[np.argsort(rank, kind="stable")]

    def _promises(self, value: FloatArray, gpus: IntArray, distance: IntArray) -> BoolArray:
        front, order = self.progress.pareto, self.parts.order
        if front is None:
            return np.ones(gpus.size, dtype=np.bool_)
        if front is not self._front:
            self._front = front
            self._stairs = Stairs(order.values(front), front.configurations.gpus, order.distances(front))
        return np.asarray(value <= self._stairs.least(gpus, rounded(distance.astype(np.float64))) * (1 + SLACK))

    def _ends(self, promising: BoolArray) -> bool:  # noqa: ARG002 - a part behind may promise more
        return False
