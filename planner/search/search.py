"""The search for the best plans: all candidates of a small space, those that bounds leave of a large one.

Parts of the space are taken in the order of the least that their plans can take, and the search ends where the next
part can have none of the best: what it finds is what pricing every candidate would find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.domain.request import SpaceRequest
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.exhaustive import Outcome, Progress, Stopped, batches, search_among
from planner.search.feasibility import Rules
from planner.search.parts import Parts, parts_of
from planner.search.ranking import SLACK, Order, fewest_first
from planner.search.space import Limits, Space, space_of

__all__ = ["Searcher", "search"]

PRICED_WHOLE = 2**14
"""Candidates in the window up to which all are priced: bounds would save no time."""
FEWEST_PARTS, MOST_PARTS = 16, 4096
"""Parts that are opened at once, at first and at most."""


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
    if order.leading is not None or pareto or space.inside <= PRICED_WHOLE:
        return search_among(space, request, limits, evaluator, order, keep=keep, pareto=pareto, stopped=stopped)
    rules = Rules.of(request, limits, space.precisions, order)
    parts = _AllParts(parts_of(space, evaluator), order)
    best = _Bounded(Progress(evaluator, order, rules, keep), parts)
    best.run(stopped)
    smallest = _Bounded(Progress(evaluator, fewest_first(order), rules, len(space.precisions)), parts, by_gpus=True)
    if best.remaining is None and best.progress.best is not None:
        smallest.run(None)
    return best.outcome(space, smallest.progress.best)


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

    def open(self, some: IntArray, promises: Callable[[FloatArray, IntArray], BoolArray]) -> Iterator[Configurations]:
        """Yield the candidates of some parts whose objective and GPUs promise something."""
        for at, block in enumerate(self.blocks):
            mine = some[self._block[some] == at]
            if mine.size:
                yield from block.open(
                    self._place[mine], lambda seconds, gpus: promises(self.order.value_of(seconds, gpus), gpus)
                )


@dataclass
class _Bounded:
    """A search through parts, best bound first; ``by_gpus``: of plans with the fewest GPUs."""

    progress: Progress
    parts: _AllParts
    by_gpus: bool = False
    remaining: float | None = None

    def run(self, stopped: Stopped | None) -> None:
        """Open parts until no other can have one of the best, or the search is to end.

        Then ``remaining`` is the least objective that parts not gone through to the end may have.
        """
        self.progress.wants_smallest = False
        keys = (self.parts.value, self.parts.gpus)
        queue = np.lexsort(keys if self.by_gpus else keys[::-1])
        number = FEWEST_PARTS
        while queue.size:
            some, queue = queue[:number], queue[number:]
            promising = self._promises(self.parts.value[some], self.parts.gpus[some])
            if not promising[0]:
                return
            opened = self.parts.open(some[promising], self._promises)
            for batch in batches(self.progress.sift(rows) for rows in opened):
                self.progress.price(batch)
                if stopped is not None and stopped():
                    self.remaining = float(self.parts.value[some[0]])
                    self.progress.check_found()
                    return
            number = min(2 * number, MOST_PARTS)

    def _promises(self, value: FloatArray, gpus: IntArray) -> BoolArray:
        """Tell which parts may have one of the best, by the least objective and GPUs."""
        best = self.progress.best
        if best is None or best.size < self.progress.keep:
            return np.ones(value.size, dtype=np.bool_)
        last = best.take(slice(best.size - 1, best.size))
        most = float(self.parts.order.values(last)[0]) * (1 + SLACK)
        if not self.by_gpus:
            return np.asarray(value <= most)
        fewest = int(last.configurations.gpus[0])
        return np.asarray((gpus < fewest) | ((gpus == fewest) & (value <= most)))

    def outcome(self, space: Space, smallest: PricedPlans | None) -> Outcome:
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
            smallest=smallest,
            method="branch and bound",
            certified=self.remaining is None or gap == 0,
            discarded=discarded,
            gap=gap,
        )
