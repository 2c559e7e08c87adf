"""What to loosen alone where no plan across node groups fits: a limit, the nodes or the tolerance; the plans then."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from planner.domain.configuration import Configuration
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Loosening
from planner.errors import UsageError
from planner.search.across_groups import Searchable, search_across
from planner.search.evaluator import PricedPlans
from planner.search.explain import label, typed_values, whys_nearest
from planner.search.loosen import tolerance_that_suffices, whys_over_limits
from planner.search.ranking import Order
from planner.search.reasons import limit_text, limited
from planner.steps.node_groups import AcrossGroups
from planner.units import format_duration, format_number, format_samples

__all__ = ["WayAcross", "ways_across"]


class WayAcross(NamedTuple):
    """A constraint to loosen, the plan across groups that fits then, what prices it, and how far off it is now.

    ``why``: empty where that is not a matter of more or less.
    """

    loosening: Loosening
    configuration: Configuration
    by: AcrossGroups
    why: str


def ways_across(
    groups: Mapping[str, Searchable], request: SpaceRequest, order: Order, seed: int = 0
) -> Iterator[WayAcross]:
    """Yield what to loosen alone so that some plan on at least two groups fits, of which none does."""
    of = _Across(groups, order, seed)
    yield from of.limits(request)
    yield from of.nodes(request)
    yield from of.tolerance(request)


class _Found(NamedTuple):
    """Plans across groups, n of them."""

    plans: tuple[Configuration, ...]
    sets: tuple[AcrossGroups, ...]
    priced: PricedPlans


class _Across(NamedTuple):
    groups: Mapping[str, Searchable]
    order: Order
    seed: int

    def limits(self, request: SpaceRequest) -> Iterator[WayAcross]:
        """Yield each limit that helps, up to the plan that exceeds it least."""
        for name, most in request.most.items():
            others = {one: value for one, value in request.most.items() if one != name}
            found = self._found(request.changed(most=others))
            if found is not None:
                values = limited(name, found.priced, self.order)
                at = int(np.argmin(values))
                needed = float(values[at])
                texts = (f"{one}={limit_text(one, value)}" for one, value in {**request.most, name: needed}.items())
                (why,) = whys_over_limits(self.order, found.priced.take(slice(at, at + 1)), request)
                change = ("--limit", ",".join(texts)), limit_text(name, most), needed / most - 1
                yield self._way(change, found, at, why)

    def nodes(self, request: SpaceRequest) -> Iterator[WayAcross]:
        """Yield other numbers of nodes than those asked for; of those that help the nearest."""
        asked = request["nodes"]
        found = None if asked is None else self._found(request.changed(nodes=None))
        if found is None or asked is None:
            return
        nodes = np.array([[one.nodes] for one in found.plans])
        ratios = np.maximum(nodes / asked, asked / nodes).min(axis=1)
        at = int(np.lexsort((self.order.values(found.priced), ratios))[0])
        change = ("--nodes", str(found.plans[at].nodes)), typed_values(asked), float(ratios[at]) - 1
        yield self._way(change, found, at, "")

    def tolerance(self, request: SpaceRequest) -> Iterator[WayAcross]:
        """Yield the tolerance that reaches the nearest mini-batch: how far off is doubled, then the rest halved."""
        target, now = request.target_batch, request.tolerance("sync")
        below = math.floor(now * target)
        enough = below + 1
        while (found := self._found(request.changed(tolerance_sync=enough / target))) is None:
            below, enough = enough, 2 * enough
            if enough >= target:
                return
        while enough - below > 1:
            middle = (below + enough) // 2
            nearer = self._found(request.changed(tolerance_sync=middle / target))
            below, enough, found = (middle, enough, found) if nearer is None else (below, middle, nearer)
        at = int(np.argmin(self.order.values(found.priced)))
        (why,) = whys_nearest(self.order, found.priced.take(slice(at, at + 1)), [request.window("sync")])
        change = ("--tolerance", tolerance_that_suffices(enough / target)), f"{100 * now:.6g}%", enough / target - now
        yield self._way(change, found, at, why)

    def _found(self, request: SpaceRequest) -> _Found | None:
        """Return the plans of a request; None: it has none, or more splits of mini-batches than are looked at."""
        try:
            across = search_across(self.groups, request, self.order, self.seed)
        except UsageError:
            return None
        return None if across.priced is None else _Found(across.plans, across.sets, across.priced)

    def _way(self, change: tuple[tuple[str, str], str, float], found: _Found, at: int, why: str) -> WayAcross:
        """Return the way to the plan at a place; ``change``: option and value, what is asked now, how far they are."""
        (option, value), now, by = change
        one, predictions = found.plans[at], found.priced.predictions
        speed = f"at {format_number(float(predictions.samples_per_s[at]), 3)} samples/s"
        if self.order.has_dataset:
            speed = f"in an epoch of {format_duration(float(predictions.epoch_s[at]))}"
        plan = f"{label(one, self.order.device)}: mini-batch {format_samples(float(one.samples_per_update))} {speed}"
        loosening = Loosening(((option, value),), f"{option} {value} (now {now}) allows {plan}", by)
        return WayAcross(loosening, one, found.sets[at], why)
