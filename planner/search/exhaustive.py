"""Price every candidate that is not refused, and keep the best: certified, since nothing is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.configuration import MODES, Configurations
from planner.domain.request import SpaceRequest
from planner.errors import Refusal
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.feasibility import ABOVE_WINDOW, BELOW_WINDOW, LARGE_SUB_BATCH, LAWFUL, REASONS, Rules
from planner.search.pareto import pareto_front
from planner.search.ranking import Order
from planner.search.space import CHUNK, Limits, space_of

__all__ = ["Candidates", "Outcome", "Searcher", "lawful_plans", "search", "search_among"]


class Candidates(Protocol):
    """What is searched: a space, or part of one."""

    @property
    def candidates(self) -> int:
        """How many there are."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions in which they are priced."""

    def refused(self) -> dict[Refusal, int]:
        """Return those that are not made, counted by reason."""

    def chunks(self) -> Iterator[Configurations]:
        """Yield all others, at most CHUNK at a time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    Attributes
    ----------
    best : PricedPlans or None
        The first ones, in order; None: nothing satisfies the request.
    pareto : PricedPlans or None
        The front of objective, GPUs and distance from the target, in order; None where not asked for.
    nearest : PricedPlans or None
        Where nothing satisfies the request: for each mode the nearest below and above its window; a plan whose
        sub-batch is above the window counts as above.
    smallest : PricedPlans or None
        Of the plans on the fewest devices the first ones, in order: as many as may be equal but for their precision.
    candidates, evaluated : int
        In all; priced and satisfying the request.
    refused : mapping of Refusal to int
        The others: ``evaluated`` and these add up to ``candidates``.
    method : str
        How the space was searched.
    certified : bool
        Whether it has no better plan.
    """

    best: PricedPlans | None
    pareto: PricedPlans | None
    nearest: PricedPlans | None
    smallest: PricedPlans | None
    candidates: int
    evaluated: int
    refused: Mapping[Refusal, int]
    method: str = "exhaustive"
    certified: bool = True


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
    nearest: bool = True,
) -> Outcome:
    """Return the best ``keep`` of all candidates of a request; ``nearest``: and if there is none, the nearest ones.

    Raises
    ------
    UsageError
        As :func:`planner.search.space.space_of`.
    """
    space = space_of(request, limits)
    return search_among(space, request, limits, evaluator, order, keep=keep, pareto=pareto, nearest=nearest)


def search_among(
    space: Candidates,
    request: SpaceRequest,
    limits: Limits,
    evaluator: Evaluator,
    order: Order,
    *,
    keep: int,
    pareto: bool = False,
    nearest: bool = True,
) -> Outcome:
    """Return the best ``keep`` of some candidates of a request."""
    rules = Rules.of(request, limits, space.precisions, order)
    progress = _Progress(evaluator, order, rules, keep, pareto, nearest)
    for batch in _batches(progress.sift(chunk) for chunk in space.chunks()):
        progress.price(batch)
    if nearest and progress.best is None and progress.counts[LARGE_SUB_BATCH]:
        for batch in _batches(progress.too_large(chunk) for chunk in space.chunks()):
            progress.offer_too_large(batch)
    return progress.outcome(space)


def lawful_plans(request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order) -> Iterator[PricedPlans]:
    """Yield every plan that satisfies a request with its prediction, some CHUNK at a time."""
    space = space_of(request, limits)
    rules = Rules.of(request, limits, space.precisions, order)
    for batch in _batches(chunk.where(rules.why_not_before_pricing(chunk) == LAWFUL) for chunk in space.chunks()):
        plans = PricedPlans(batch.rows, evaluator.evaluate(batch))
        yield plans.take(rules.why_not_after_pricing(plans) == LAWFUL)


def _batches(parts: Iterator[Configurations]) -> Iterator[Configurations]:
    """Join rows of at most CHUNK until more would exceed it: few and large calls of the evaluator; products stay."""
    parts_so_far: list[Configurations] = []
    size = 0
    for part in parts:
        if size and size + part.size > CHUNK:
            yield Configurations.joined(parts_so_far)
            parts_so_far, size = [], 0
        if part.size and part.is_product:
            yield part
        elif part.size:
            parts_so_far.append(part)
            size += part.size
    if parts_so_far:
        yield Configurations.joined(parts_so_far)


@dataclass(slots=True)
class _Progress:
    """What a search has seen so far."""

    evaluator: Evaluator
    order: Order
    rules: Rules
    keep: int
    wants_pareto: bool
    wants_nearest: bool
    counts: IntArray = field(default_factory=lambda: np.zeros(len(REASONS), dtype=np.int64))
    best: PricedPlans | None = None
    pareto: PricedPlans | None = None
    smallest: PricedPlans | None = None
    nearest: dict[tuple[int, int], tuple[float, Configurations]] = field(default_factory=dict)

    def sift(self, chunk: Configurations) -> Configurations:
        """Count those that need no price to be refused, and return the others."""
        reasons = self.rules.why_not_before_pricing(chunk)
        why = np.broadcast_to(reasons, chunk.shape).ravel()
        self.counts += np.bincount(why[why != LAWFUL], minlength=len(REASONS))
        outside = (why == BELOW_WINDOW) | (why == ABOVE_WINDOW)
        if self.wants_nearest and self.best is None and outside.any():
            rows, why = chunk.rows.take(outside), why[outside]
            fits = self.rules.fits(rows)
            self._offer(rows, rows.synchronous_mini_batch.astype(np.float64), np.where(fits, why, LAWFUL))
        return chunk.where(reasons == LAWFUL)

    def too_large(self, chunk: Configurations) -> Configurations:
        """Return those whose sub-batch is above the window, of those that fit in memory."""
        return chunk.where((self.rules.why_not_before_pricing(chunk) == LARGE_SUB_BATCH) & self.rules.fits(chunk))

    def offer_too_large(self, batch: Configurations) -> None:
        """Price those whose sub-batch is above the window: one may be the nearest when nothing is inside."""
        mean = self.evaluator.evaluate(batch).mini_batch_mean
        self._offer(batch.rows, mean, np.full(batch.size, ABOVE_WINDOW))

    def price(self, batch: Configurations) -> None:
        """Price a batch, and keep what is good in it."""
        predictions, batch = self.evaluator.evaluate(batch), batch.rows
        priced = PricedPlans(batch, predictions)
        why = self.rules.why_not_after_pricing(priced)
        self.counts += np.bincount(why, minlength=len(REASONS))
        lawful = why == LAWFUL
        if lawful.any():
            plans = priced if lawful.all() else priced.take(lawful)
            self.best = _best_of(self.order, self.best, plans, self.keep)
            by_gpus = replace(self.order, leading=_gpus)
            self.smallest = _best_of(by_gpus, self.smallest, plans, len(batch.precisions))
            if self.wants_pareto:
                self.pareto = self._front(_after(self.pareto, plans))
        if self.wants_nearest and self.best is None:
            self._offer(batch, predictions.mini_batch_mean, why)

    def outcome(self, space: Candidates) -> Outcome:
        """Return what was found in the whole of a space."""
        refusals = space.refused()
        refusals |= {why: int(n) for why, n in zip(REASONS, self.counts, strict=True) if why is not None and n}
        evaluated = int(self.counts[LAWFUL])
        nearest = self._nearest() if self.best is None else None
        return Outcome(self.best, self.pareto, nearest, self.smallest, space.candidates, evaluated, refusals)

    def _front(self, plans: PricedPlans) -> PricedPlans:
        in_order = self.order.best(plans, plans.size)
        gpus = in_order.configurations.gpus
        return in_order.take(pareto_front(self.order.values(in_order), gpus, self.order.distances(in_order)))

    def _offer(self, configurations: Configurations, mini_batch: FloatArray, why: IntArray) -> None:
        """Keep those nearest to the window, by mode and side, all that are equally near."""
        distance = self.order.reaches(configurations, mini_batch)
        for mode in range(len(MODES)):
            for side in (BELOW_WINDOW, ABOVE_WINDOW):
                here = (configurations.mode == mode) & (why == side) & np.isfinite(distance)
                if here.any():
                    self._offer_side((mode, side), configurations, distance, here)

    def _offer_side(
        self, key: tuple[int, int], configurations: Configurations, distance: FloatArray, here: BoolArray
    ) -> None:
        least = float(distance[here].min())
        nearest = self.nearest.get(key, (np.inf, None))
        if least > nearest[0]:
            return
        at_least_distance = configurations.take(here & (distance == least))
        same = [nearest[1]] if least == nearest[0] and nearest[1] is not None else []
        self.nearest[key] = (least, Configurations.joined([*same, at_least_distance]))

    def _nearest(self) -> PricedPlans | None:
        """Return the best of the equally near ones, by mode and side, without those that exceed a limit."""
        result: PricedPlans | None = None
        for key in sorted(self.nearest):
            configurations = self.nearest[key][1]
            plans = PricedPlans(configurations, self.evaluator.evaluate(configurations))
            one = self.order.best(plans.take(self.rules.over_limit(plans) == LAWFUL), 1)
            result = _after(result, one) if one.size else result
        return result


def _gpus(plans: PricedPlans) -> FloatArray:
    return plans.configurations.gpus.astype(np.float64)


def _best_of(order: Order, before: PricedPlans | None, plans: PricedPlans, keep: int) -> PricedPlans:
    """Return the first of those before and of more plans, of which few are joined."""
    best = order.best(plans, keep)
    return best if before is None else order.best(before.joined(best), keep)


def _after(before: PricedPlans | None, plans: PricedPlans) -> PricedPlans:
    return plans if before is None else before.joined(plans)
