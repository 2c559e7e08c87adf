"""Price every candidate that is not refused, and keep the best: certified, since nothing is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.configuration import MODES, Configurations, splits
from planner.domain.request import Dataset, SpaceRequest
from planner.errors import ParameterError, Refusal, UsageError
from planner.search.bases import SplitLimits
from planner.search.ranking import (
    ABOVE_WINDOW,
    BELOW_WINDOW,
    LAWFUL,
    OF_LIMIT,
    OUT_OF_MEMORY,
    REASONS,
    Evaluator,
    Order,
    PricedPlans,
    Stairs,
    fewest_first,
    keeps,
    pareto_front,
)
from planner.search.space import Limits, Space, accepted_mini_batches, space_of

__all__ = [
    "Outcome", "Progress", "Rules", "Stopped", "Watch", "batches", "check_target", "lawful_plans", "search_among",
    "unwatched",
]  # fmt: skip


def check_target(request: SpaceRequest, dataset: Dataset | None) -> None:
    """Raise ParameterError where the wanted mini-batch is more than a data set has: an update longer than an epoch."""
    if dataset is not None and request.target_batch > dataset.samples:
        rule = f"at most the {dataset.samples:,} samples of data set {dataset.name}, as an update is part of an epoch"
        raise ParameterError("--target-batch", rule, request.target_batch)


@dataclass(frozen=True, slots=True)
class Rules:
    """The constraints of a request as arrays.

    ``low``, ``high``: accepted mini-batches [samples], shape (modes,), in the order of MODES; ``largest_sub_batch``:
    of plans that do not split the network, shape (precisions, modes); ``split``: of those that do; ``most``: by limit.
    """

    low: FloatArray
    high: FloatArray
    largest_sub_batch: IntArray
    order: Order
    split: SplitLimits | None = None
    most: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(request: SpaceRequest, limits: Limits, precisions: tuple[str, ...], order: Order) -> Rules:
        """Return the rules of a request for a space with these precisions."""
        windows = np.array([accepted_mini_batches(request, mode) for mode in MODES])
        largest = [[limits.fits(precision, mode) for mode in MODES] for precision in precisions]
        return Rules(windows[:, 0], windows[:, 1], np.array(largest, dtype=np.int64), order, limits.split, request.most)

    def fits(self, configurations: Configurations) -> BoolArray:
        """Return whether each sub-batch fits in memory, shape (n,)."""
        largest = self.largest_sub_batch[configurations.precision, configurations.mode]
        fits = np.less_equal(configurations.sub_batch, largest)
        if self.split is not None and (of_split := configurations.of_bases(splits)).any():
            fits[of_split] = self.split.fits(configurations.where(of_split))
        return fits

    def why_not_after_pricing(self, plans: PricedPlans) -> IntArray:
        """Return the reason of each, as positions in REASONS, shape (n,)."""
        rows, mean = plans.configurations, plans.predictions.mini_batch_mean
        low, high = self.low[rows.mode], self.high[rows.mode]
        # written so that NaN, which is neither, is refused
        window = np.where(mean < low, BELOW_WINDOW, np.where(mean <= high, LAWFUL, ABOVE_WINDOW))
        reasons = np.where(rows.is_async, window, LAWFUL)
        return np.where(reasons == LAWFUL, self.over_limit(plans), reasons)

    def over_limit(self, plans: PricedPlans) -> IntArray:
        """Return the first limit that each exceeds, as positions in REASONS, shape (n,)."""
        over = np.full(plans.size, LAWFUL)
        for name, most in self.most.items():
            over = np.where((over == LAWFUL) & ~keeps(name, plans, self.order, most), OF_LIMIT[name], over)
        return over

    def within_limits(self, plans: PricedPlans) -> PricedPlans:
        """Return the plans that exceed no limit."""
        return plans.take(self.over_limit(plans) == LAWFUL)


CHUNK = 2**17
"""Candidates priced at once; some 15 MB with their predictions."""
Stopped = Callable[[], bool]
"""Whether a search is to end."""
Watch = Callable[[], AbstractContextManager[Stopped]]
"""Gives, for as long as it is open, whether searches are to end."""


def unwatched() -> AbstractContextManager[Stopped]:
    """Return a watch that lets every search go to its end."""
    return nullcontext(lambda: False)


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

    def too_large(self) -> Iterator[Configurations]:
        """Yield asynchronous ones whose sub-batch alone is above the window."""

    def near(self, target: int, largest: IntArray) -> Iterator[tuple[int, Configurations]]:
        """Yield those outside the window that are nearest to a target; see :meth:`planner.search.space.Space.near`."""


@dataclass(frozen=True)
class Asked:
    """A request, what the machine allows of it, and what prices and orders its plans."""

    request: SpaceRequest
    limits: Limits
    evaluator: Evaluator
    order: Order

    @property
    def space(self) -> Space:
        """Its candidates; raises as :func:`planner.search.space.space_of`."""
        return space_of(self.request, self.limits)

    def rules(self, space: Candidates) -> Rules:
        """Return its constraints, for plans in the precisions of a space."""
        return Rules.of(self.request, self.limits, space.precisions, self.order)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search found.

    Attributes
    ----------
    best : the first ones, in order; None: nothing satisfies the request
    pareto : the front of objective, GPUs and distance from the target, in order; None where not asked for
    nearest : where nothing satisfies the request: for each mode the nearest below and above its window; a plan whose
        sub-batch is above the window counts as above
    smallest : of the plans on the fewest devices the first ones, in order: as many as may be equal but for their
        precision
    candidates, evaluated : in all; priced and satisfying the request
    refused : mapping of Refusal to int, others, by reason
    method : how the space was searched
    certified : whether it has no better plan
    discarded : candidates that were not priced, as a bound showed that they are not among the best; with ``evaluated``
        and those refused they add up to ``candidates``
    gap : where the search was stopped: by how much of the best value another plan may be better at most, 0 to 1
    trials : plans that a sampler proposed, which are all candidates then; 0: it was asked for none
    lawful : all plans that satisfy the request, where few were priced one and all
    parts : of the space, with their bounds, where these were looked at
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
    discarded: int = 0
    gap: float | None = None
    trials: int = 0
    lawful: PricedPlans | None = None
    parts: Sequence[Any] = ()


def search_among(
    space: Candidates, asked: Asked, *, keep: int, pareto: bool = False, stopped: Stopped | None = None
) -> Outcome:
    """Return the best ``keep`` of some candidates of a request, or the best so far once it is to end.

    UsageError: it was to end before any plan that satisfies the request was found.
    """
    is_small = space.candidates <= CHUNK
    progress = Progress(asked.evaluator, asked.order, asked.rules(space), keep, pareto, wants_lawful=is_small)
    for batch in batches(progress.sift(chunk) for chunk in space.chunks()):
        progress.price(batch)
        if stopped is not None and stopped() and progress.left(space):
            progress.check_found()
            return replace(progress.outcome(space), certified=False, discarded=progress.left(space))
    if progress.best is None:
        progress.look_nearby(space)
    return progress.outcome(space)


def lawful_plans(asked: Asked) -> Iterator[PricedPlans]:
    """Yield every plan that satisfies a request with its prediction, some CHUNK at a time."""
    rules = asked.rules(space := asked.space)
    for batch in batches(chunk.where(rules.fits(chunk)) for chunk in space.chunks()):
        plans = PricedPlans(batch.rows, asked.evaluator.evaluate(batch))
        yield plans.take(rules.why_not_after_pricing(plans) == LAWFUL)


def batches(parts: Iterator[Configurations]) -> Iterator[Configurations]:
    """Join parts of at most CHUNK until more would exceed it: few and large calls of the evaluator."""
    so_far: list[Configurations] = []
    size = 0
    for part in parts:
        if size and size + part.size > CHUNK:
            yield so_far[0].all_of(so_far)
            so_far, size = [], 0
        if part.size:
            so_far.append(part)
            size += part.size
    if so_far:
        yield so_far[0].all_of(so_far)


@dataclass(slots=True)
class Progress:
    """What a search has seen so far."""

    evaluator: Evaluator
    order: Order
    rules: Rules
    keep: int
    wants_pareto: bool = False
    wants_smallest: bool = True
    wants_lawful: bool = False
    counts: IntArray = field(default_factory=lambda: np.zeros(len(REASONS), dtype=np.int64))
    best: PricedPlans | None = None
    pareto: PricedPlans | None = None
    smallest: PricedPlans | None = None
    lawful: PricedPlans | None = None
    nearest: dict[tuple[int, int], tuple[float, Configurations]] = field(default_factory=dict)

    def sift(self, chunk: Configurations) -> Configurations:
        """Count those that do not fit in memory, and return the others."""
        kept = chunk.where(self.rules.fits(chunk))
        self.counts[OUT_OF_MEMORY] += chunk.size - kept.size
        return kept

    def look_nearby(self, space: Candidates) -> None:
        """Keep the nearest of what is outside the window: nothing inside it satisfies the request."""
        for reason, rows in space.near(self.order.target_batch, self.rules.largest_sub_batch):
            self._offer(rows, rows.synchronous_mini_batch.astype(np.float64), np.full(rows.size, reason))
        for batch in batches(chunk.where(self.rules.fits(chunk)) for chunk in space.too_large()):
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
            if self.wants_smallest:
                self.smallest = _best_of(fewest_first(self.order), self.smallest, plans, len(batch.precisions))
            if self.wants_lawful:
                self.lawful = _after(self.lawful, plans)
            if self.wants_pareto:
                self.pareto = self._front(_after(self.pareto, plans))
        if self.best is None:
            self._offer(batch, predictions.mini_batch_mean, why)

    def left(self, space: Candidates) -> int:
        """Return how many candidates of a space were neither priced nor refused."""
        return space.candidates - int(self.counts.sum()) - sum(space.refused().values())

    def check_found(self) -> None:
        """Raise UsageError where no plan was found until a search was to end."""
        if self.best is None:
            rule = "the time of the search must be enough to find a plan that fits"
            value, remedy = f"none among the first {int(self.counts.sum()):,} candidates", "; give --time-limit more"
            raise UsageError(Refusal("time_limit", rule, "the time", value, remedy))

    def outcome(self, space: Candidates) -> Outcome:
        """Return what was found in the whole of a space."""
        unmade = space.refused()
        counts = {why: unmade.pop(why, 0) + int(n) for why, n in zip(REASONS, self.counts, strict=True) if why}
        refusals = unmade | {why: number for why, number in counts.items() if number}
        evaluated = int(self.counts[LAWFUL])
        nearest = self._nearest() if self.best is None else None
        found = self.best, self.pareto, nearest, self.smallest, space.candidates
        return Outcome(*found, evaluated, refusals, lawful=self.lawful)

    def _front(self, plans: PricedPlans) -> PricedPlans:
        value, gpus, distance = self._in_front(plans)
        on = pareto_front(value, gpus, distance)
        least = Stairs(value[on], gpus[on], distance[on]).least(gpus, distance)
        among = plans.take(value <= least)  # with all that are equal
        in_order = self.order.best(among, among.size)
        return in_order.take(pareto_front(*self._in_front(in_order)))

    def _in_front(self, plans: PricedPlans) -> tuple[FloatArray, IntArray, FloatArray]:
        return self.order.values(plans), plans.configurations.gpus, self.order.distances(plans)

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
            one = self.order.best(self.rules.within_limits(plans), 1)
            result = _after(result, one) if one.size else result
        return result


def _best_of(order: Order, before: PricedPlans | None, plans: PricedPlans, keep: int) -> PricedPlans:
    """Return the first of those before and of more plans, of which few are joined."""
    best = order.best(plans, keep)
    return best if before is None else order.best(before.joined(best), keep)


def _after(before: PricedPlans | None, plans: PricedPlans) -> PricedPlans:
    return plans if before is None else before.joined(plans)
