"""The size of gradient buckets, by trials of Optuna: a number that no axis has, as any size may be the best.

A size is tried on the plans that can be better than the best one with the framework's own buckets. These are known: the
best way to send neighbouring gradients together (:mod:`planner.steps.best_fusion`) is no worse than any size where a
device holds the whole network, so that an exact search by it bounds what sizes can reach. Of plans that split the
network, whose buckets are taken to be equal, it gives the leaders alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.arrays import FloatArray, distinct_rows
from planner.domain.axes import AXES
from planner.domain.buckets import MIB
from planner.domain.configuration import Configurations
from planner.domain.framework import BEST_FUSION
from planner.domain.request import Problem, SpaceRequest
from planner.domain.suggestion import Tuned
from planner.search.allowed import order_and_limits
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.exhaustive import Outcome, Watch, unwatched
from planner.search.feasibility import Rules
from planner.search.leasts import over_leasts
from planner.search.optuna_sizes import SizeTrials
from planner.search.ranking import SLACK, Order
from planner.search.reasons import LAWFUL
from planner.search.search import Searcher
from planner.search.space import Limits, space_of
from planner.search.split_block import SplitBlock
from planner.steps import predict

__all__ = ["TRIALS", "BucketTrials", "SizedBuckets", "StartedSearch"]

TRIALS = 60
LEADERS = 100
"""Plans on which sizes are tried."""
SIZE = "bucket_bytes"


@dataclass(frozen=True, slots=True)
class SizedBuckets:
    """What trials of sizes gave.

    Attributes
    ----------
    problem : Problem
        With the best size, or as it was.
    tuned : Tuned
    leaders : Configurations
        Plans that were priced with it.
    gap : float or None
        By how much of the best value another plan and size may be better at most; None: not known.
    """

    problem: Problem
    tuned: Tuned
    leaders: Configurations
    gap: float | None

    def started(self, searcher: Searcher) -> Searcher:
        """Return the searcher with the leaders known to it."""
        return StartedSearch(searcher, self.leaders)


@dataclass
class BucketTrials:
    """Trials of sizes for one request.

    Attributes
    ----------
    problem : Problem
        Of strategy ``bucketed``.
    request : SpaceRequest
    span : tuple of float
        The least and the largest size [byte].
    trials : int
        At most; the framework's own buckets are the first.
    searcher : Searcher
    interruption : callable
        Gives what is asked between trials: once that is true, the best so far is the answer.
    seed : int
    tried : dict of float to float
        Size [byte] and the best objective with it, in the order of trials; 0: the framework's own.
    """

    problem: Problem
    request: SpaceRequest
    span: tuple[float, float]
    trials: int
    searcher: Searcher
    interruption: Watch = unwatched
    seed: int = 0
    tried: dict[float, float] = field(default_factory=dict)

    def run(self) -> SizedBuckets | None:
        """Return the best size of all that were tried; None: no plan satisfies the request.

        Raises
        ------
        UsageError, CoverageError
            As :func:`planner.search.suggest.suggest`.
        """
        self._order, self._limits = order_and_limits(self.problem, self.request)
        self._own = predict.Evaluator(self.problem)
        self._order = over_leasts(self._order, self.request, self._limits, self._own)
        own = self._searched(self._own)
        if own.best is None:
            return None
        self.tried[0.0] = float(self._order.values(own.best)[0])
        settings = replace(self.problem.settings, strategy=BEST_FUSION)
        fused = self._searched(predict.Evaluator(replace(self.problem, settings=settings), like=self._own))
        leaders = own.best if fused.best is None else fused.best
        is_bound = ~leaders.configurations.is_split & (leaders is fused.best)
        promises = np.where(is_bound, self._order.values(leaders), 0.0)
        self._try(leaders.configurations, promises)
        size = min(self.tried, key=lambda one: (self.tried[one], one))
        value = self.tried[size]
        is_known = self._has_no_split_plans() and fused.certified and leaders is fused.best
        gap = max(0.0, 1 - float(promises[0]) / value) if is_known else None
        tuned = Tuned(SIZE, "optuna (TPE)", len(self.tried), 1 - value / self.tried[0.0], size or None)
        return SizedBuckets(self._sized(size), tuned, leaders.configurations, gap)

    def _has_no_split_plans(self) -> bool:
        """Tell whether every candidate has the whole network on every device."""
        blocks = (block for block, _ in space_of(self.request, self._limits).open_blocks())
        return not any(isinstance(block, SplitBlock) and block.inside() for block in blocks)

    def _searched(self, evaluator: predict.Evaluator) -> Outcome:
        return self.searcher(self.request, self._limits, evaluator, self._order, keep=LEADERS, pareto=False)

    def _sized(self, size: float) -> Problem:
        return replace(self.problem, settings=replace(self.problem.settings, bucket_bytes=size))

    def _try(self, leaders: Configurations, promises: FloatArray) -> None:
        """Try sizes on plans with these bounds until none of them can be better, or it is to end."""
        rules = Rules.of(self.request, self._limits, leaders.precisions, self._order)

        def price(size: float) -> float | None:
            promising = leaders.take(promises * (1 + SLACK) < min(self.tried.values()))
            return self._best_with(size, promising, rules) if promising.size else None

        with self.interruption() as is_stopped:
            SizeTrials(self.span, MIB, price, self.seed, self.tried).run(self.trials, is_stopped)

    def _best_with(self, size: float, plans: Configurations, rules: Rules) -> float:
        """Return the best objective of some plans with a size; inf where all of them break a limit then."""
        priced = PricedPlans(plans, predict.Evaluator(self._sized(size), like=self._own).evaluate(plans))
        is_lawful = rules.why_not_after_pricing(priced) == LAWFUL
        return float(self._order.values(priced)[is_lawful].min(initial=np.inf))


@dataclass(frozen=True)
class StartedSearch:
    """A searcher that knows some plans: stopped before its end, it is no worse than the best of them."""

    searcher: Searcher
    known: Configurations

    def __call__(
        self, request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order, *, keep: int, pareto: bool
    ) -> Outcome:
        """Return the best ``keep`` plans of what was searched and of those that are known."""
        outcome = self.searcher(request, limits, evaluator, order, keep=keep, pareto=pareto)
        if outcome.certified or outcome.best is None:
            return outcome
        known = PricedPlans(self.known, evaluator.evaluate(self.known))
        rules = Rules.of(request, limits, self.known.precisions, order)
        every = outcome.best.joined(known.take(rules.why_not_after_pricing(known) == LAWFUL))
        columns = (getattr(every.configurations, axis.name) for axis in AXES)
        return replace(outcome, best=order.best(every.take(distinct_rows(*columns)[0]), keep))
