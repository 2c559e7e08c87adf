"""The plans that come nearest to limits which nothing keeps: those that exceed them by the least part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.configuration import MODES
from planner.domain.limits import LIMITS
from planner.domain.precision import PRECISIONS
from planner.domain.request import SpaceRequest
from planner.search.choice import distinct_plans
from planner.search.evaluator import PricedPlans
from planner.search.explain import whys_nearest
from planner.search.least import OBJECTIVE_OF_LIMIT, order_of_limit
from planner.search.plan_limits import limit_text, limited
from planner.search.ranking import SLACK, Order
from planner.search.rivals import Ranking, Searched, ranked
from planner.search.search import MOST_PRICED, search
from planner.search.space import space_of
from planner.units import format_number

__all__ = ["NEAREST", "nearest_over_limits", "whys_over_limits"]

NEAREST = 3
"""Plans above a limit that are told."""


def nearest_over_limits(searches: Sequence[Searched], order: Order) -> Ranking | None:
    """Return the NEAREST plans of all searches that keep to everything but limits, those that exceed them least first.

    Where no plan keeps to the rest either, those outside the window that are nearest to it. None: no limit was given,
    or the network fits nowhere.
    """
    most = searches[0].request.most if searches else {}
    if not most:
        return None
    least_first = replace(order, leading=_Excess(most, order))
    found = {at: _nearest(one, order) for at, one in enumerate(searches)}
    parts = {
        at: distinct_plans(least_first, least_first.best(one, one.size)) for at, one in found.items() if one is not None
    }
    if not parts:
        return None
    ranking = ranked(least_first, parts)
    return ranking.take(range(min(NEAREST, ranking.priced.size)))


def whys_over_limits(order: Order, plans: PricedPlans, request: SpaceRequest) -> list[str]:
    """Return by how much each plan exceeds the limits that it does not keep, and how far outside its window it is."""
    values = {name: limited(name, plans, order) for name in request.most}
    windows = [request.window(MODES[mode]) for mode in plans.configurations.mode]
    outside = whys_nearest(order, plans, windows)
    sentences = []
    for at, ((low, high), mean) in enumerate(zip(windows, plans.predictions.mini_batch_mean.tolist(), strict=True)):
        exceeded = (_above(name, float(values[name][at]), most) for name, most in request.most.items())
        is_inside = low * (1 - SLACK) <= mean <= high * (1 + SLACK)
        sentences.append(", ".join(filter(None, ("" if is_inside else outside[at], *exceeded))))
    return sentences


def _above(name: str, value: float, most: float) -> str:
    """Return in words by how much a value exceeds a limit; empty where it does not."""
    by = f" by {format_number(100 * (value / most - 1))} %" if most else ""
    return f"{LIMITS[name].words} {limit_text(name, value)}, above --limit {name}{by}" if value > most else ""


@dataclass(frozen=True, slots=True)
class _Excess:
    """The largest part by which plans exceed a limit."""

    most: Mapping[str, float]
    order: Order

    def __call__(self, plans: PricedPlans) -> FloatArray:
        """Return it (n,); of a limit of nothing the quantity itself."""
        parts = [limited(name, plans, self.order) / (most or 1.0) for name, most in self.most.items()]
        largest: FloatArray = np.max(parts, axis=0)
        return largest


def _nearest(one: Searched, order: Order) -> PricedPlans | None:
    """Return the first plans of a search without limits.

    Of a single limit that has an objective the best by it; of others, in a space that is priced whole, those that
    exceed them least, and in a larger one the best.
    """
    request, most = replace(one.request, most={}), one.request.most
    (name, *others) = most
    if not others and name in OBJECTIVE_OF_LIMIT:
        order = order_of_limit(name, order)
    elif space_of(request, one.limits).inside <= MOST_PRICED:
        order = replace(order, leading=_Excess(most, order))
    keep = NEAREST * len(request["precision"] or PRECISIONS)  # as many equal plans may stand side by side
    outcome = search(request, one.limits, one.evaluator, order, keep=keep)
    return outcome.nearest if outcome.best is None else outcome.best
