"""The leading plans of a search, each with the stages and the recompute that are best for it.

What is chosen for each plan by itself is no part of a search: it would be chosen for every candidate. The leaders of a
search without it are refined instead; a refined plan takes the place of all that differ from it in nothing else, where
it is better than these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.arrays import BoolArray, distinct_rows
from planner.domain.axes import AXES
from planner.domain.configuration import Configurations, splits
from planner.domain.network import Network
from planner.domain.request import SpaceRequest
from planner.search.bases import SplitLimits
from planner.search.exhaustive import Outcome, Rules
from planner.search.ranking import LAWFUL, Evaluator, Order, PricedPlans
from planner.search.search import Searcher, search
from planner.search.space import Limits
from planner.workload.lawful import is_lawful, most_stages, starts_even
from planner.workload.program import block_starts

__all__ = ["REFINED", "Refined", "refinement", "without_refinement"]

REFINED = {"stages": "best", "recompute": "per-stage"}
"""Axis -> its value that is chosen for each plan by itself."""
LEADERS = 100
"""Plans that are refined."""
CHUNKED = 10
"""Of these, plans that are given virtual stages."""
_BY_NAME = {axis.name: axis for axis in AXES}


def refinement(request: SpaceRequest) -> dict[str, str]:
    """Return which of REFINED a request asks for."""
    return {name: value for name, value in REFINED.items() if value in (request[name] or ())}


def without_refinement(request: SpaceRequest) -> SpaceRequest:
    """Return the request with other values alone: those asked for besides, else all that are lawful."""
    others = {name: tuple(one for one in request[name] or () if one != value) for name, value in REFINED.items()}
    return request.changed(**{name: others[name] or None for name in refinement(request)})


@dataclass(frozen=True)
class Refined:
    """A searcher whose leading plans are refined.

    Attributes
    ----------
    values : mapping of axis to its value in refined plans
    """

    values: Mapping[str, str]
    searcher: Searcher = search

    def __call__(
        self, request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order, *, keep: int, pareto: bool
    ) -> Outcome:
        """Return the best ``keep`` plans, of which the leading ones are refined."""
        outcome = self.searcher(request, limits, evaluator, order, keep=keep, pareto=pareto)
        split = limits.split
        if outcome.best is None or split is None:
            return outcome
        leaders = outcome.best.take(slice(LEADERS)).configurations
        refined = self._refined(leaders, _more_chunks(leaders, request, split), split.network)
        if not refined.size:
            return outcome
        rules = Rules.of(request, limits, refined.precisions, order)
        plans = PricedPlans(refined, evaluator.evaluate(refined))
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
        for name, value in self.values.items():
            code = _BY_NAME[name].code(value)
            columns[name] = np.where(_is_refinable(name, split, network), code, columns[name])
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


def _is_refinable(axis: str, plans: Configurations, network: Network) -> BoolArray:
    """Return whether plans can have the refined value of an axis."""
    if axis == "stages":
        return np.asarray(plans.pipeline_parallel > 1)
    return np.asarray((plans.recompute_every == 1) & bool(block_starts(network)))
