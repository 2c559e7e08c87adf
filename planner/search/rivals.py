"""Searches of one request in several frameworks, and their plans in one order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner.domain.configuration import MODES, Configurations
from planner.domain.framework import Framework
from planner.domain.prediction import PlanWarning, Predictions
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Refused, SearchReport
from planner.search.choice import Distinct
from planner.search.evaluator import PricedPlans
from planner.search.exhaustive import Outcome
from planner.search.explain import is_above
from planner.search.pareto import pareto_front
from planner.search.ranking import Order
from planner.search.searchable import Asked
from planner.steps.describe import Description
from planner.steps.measured import Deviation

__all__ = [
    "Compare", "Ranking", "Searched", "distinct_frameworks", "front_of", "nearest_of", "ranked", "report_of",
    "times_of_best", "without_plan",
]  # fmt: skip

Compare = Callable[[Sequence[int], Configurations], tuple[list[Description], Deviation]]
"""Searches that configurations are of, one each, and these -> as :meth:`planner.search.evaluator.Evaluator.compare`."""


@dataclass(frozen=True)
class Searched(Asked):
    """What one search gave, and what it was made with.

    Attributes
    ----------
    framework : one of several that were asked for; None: no other was
    warnings : of the request
    """

    outcome: Outcome
    framework: Framework | None = None
    warnings: tuple[PlanWarning, ...] = ()

    @property
    def label(self) -> str:
        """The framework in an answer; empty where no other was asked for."""
        return self.framework.label if self.framework else ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Distinct plans in order.

    Attributes
    ----------
    priced : PricedPlans, shape (n,)
    precisions : as of :class:`planner.search.choice.Distinct`
    search : position of the search that each plan is of
    """

    priced: PricedPlans
    precisions: tuple[tuple[str, ...], ...]
    search: tuple[int, ...]

    def take(self, rows: Sequence[int]) -> Ranking:
        """Return those at positions."""
        priced = self.priced.take(np.array(rows, dtype=np.int64))
        return Ranking(priced, tuple(self.precisions[at] for at in rows), tuple(self.search[at] for at in rows))


def ranked(order: Order, parts: Mapping[int, Distinct]) -> Ranking:
    """Return the plans of searches, by position, in one order; of equal ones those of the first search come first."""
    search = [at for at, one in parts.items() for _ in one.precisions]
    precisions = [names for one in parts.values() for names in one.precisions]
    each = [one.priced for one in parts.values()]
    if len(each) == 1:
        return Ranking(each[0], tuple(precisions), tuple(search))
    configurations = Configurations.of([one.configurations.one(at) for one in each for at in range(one.size)])
    columns = {f.name: np.concatenate([getattr(one.predictions, f.name) for one in each]) for f in fields(Predictions)}
    together = Ranking(PricedPlans(configurations, Predictions(**columns)), tuple(precisions), tuple(search))
    in_order: list[int] = np.lexsort(order.keys_but_precision(together.priced)[::-1]).tolist()
    return together.take(in_order)


def distinct_frameworks(ranking: Ranking, order: Order, searches: Sequence[Searched]) -> Ranking:
    """Return plans in their order without those that others equal whose framework has some of the switches alone."""
    frameworks = [searches[at].framework for at in ranking.search]
    keys = np.stack([np.asarray(one, dtype=np.float64) for one in order.keys_but_precision(ranking.priced)], axis=1)
    alike: dict[tuple[object, ...], list[set[str]]] = {}
    kept = []
    for row, (framework, precisions) in enumerate(zip(frameworks, ranking.precisions, strict=True)):
        if framework is not None:
            key = (framework.name, framework.version, precisions, *keys[row].tolist())
            sets = alike.setdefault(key, [])
            if any(some < {*framework.switched} for some in sets):
                continue
            sets.append({*framework.switched})
        kept.append(row)
    return ranking if len(kept) == len(frameworks) else ranking.take(kept)


def times_of_best(order: Order, parts: Mapping[int, Distinct], searches: Sequence[Searched]) -> dict[str, float]:
    """Return by framework, of several, how many times the objective of the best of all its best plan has, in order."""
    values = {at: float(order.values(one.priced.take(slice(1)))[0]) for at, one in parts.items()}
    least = min(values.values())
    in_order = sorted(values.items(), key=lambda one: one[1])
    return {searches[at].label: round(value / least, 3) for at, value in in_order if searches[at].label and least > 0}


def front_of(order: Order, parts: Mapping[int, Distinct]) -> Ranking:
    """Return the Pareto front of the fronts of searches, in order."""
    whole = ranked(order, parts)
    if len(parts) == 1:
        return whole
    priced = whole.priced
    front = pareto_front(order.values(priced), priced.configurations.gpus, order.distances(priced))
    return whole.take(front.tolist())


def nearest_of(order: Order, parts: Mapping[int, Distinct], request: SpaceRequest) -> Ranking:
    """Return of the plans outside the window that searches found, for each mode the nearest below and above it."""
    whole = ranked(order, parts)
    if len(parts) == 1:
        return whole
    plans, means = whole.priced.configurations, whole.priced.predictions.mini_batch_mean
    first: dict[tuple[int, bool], int] = {}
    for row in np.argsort(order.reaches(plans, means), kind="stable").tolist():
        one = plans.one(row)
        above = is_above(one, float(means[row]), request.window(one.mode))
        first.setdefault((MODES.index(one.mode), above), row)
    return whole.take([first[key] for key in sorted(first)])


def report_of(searches: Sequence[Searched]) -> SearchReport:
    """Return how the spaces were searched, all together."""
    refused: dict[tuple[str, str], int] = {}
    for one in searches:
        for why, count in one.outcome.refused.items():
            refused[why.code, str(why)] = refused.get((why.code, str(why)), 0) + count
    return SearchReport(
        method=searches[0].outcome.method,
        certified=all(one.outcome.certified for one in searches),
        candidates=sum(one.outcome.candidates for one in searches),
        evaluated=sum(one.outcome.evaluated for one in searches),
        discarded=sum(one.outcome.discarded for one in searches),
        gap=_gap(searches),
        trials=sum(one.outcome.trials for one in searches),
        refused=tuple(Refused(code, reason, count) for (code, reason), count in refused.items()),
    )


def without_plan(searches: Sequence[Searched]) -> tuple[PlanWarning, ...]:
    """Return a warning for every framework, of several, none of whose plans fits, with what refuses most of them."""
    warnings = []
    for one in searches:
        if one.outcome.best is None and one.framework is not None:
            most = max(one.outcome.refused.items(), key=lambda item: item[1], default=None)
            why = f"; most candidates are refused: {most[0]}" if most else "; it allows none of what was asked for"
            warnings.append(PlanWarning("framework_without_plan", one.label, f"No plan of {one.label} fits{why}."))
    return tuple(warnings)


def _gap(searches: Sequence[Searched]) -> float | None:
    """Return the largest gap of those that were stopped; None: none was, or of one it is not known."""
    stopped = [one.outcome.gap for one in searches if not one.outcome.certified]
    return None if None in stopped else max((one for one in stopped if one is not None), default=None)
