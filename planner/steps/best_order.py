"""The order of ranks that is fastest for each plan: of all orders that differ in which groups share nodes.

Ranks are numbered along one axis after the other, so that an order says which groups lie inside nodes and which go
across: of tensor, context, data and pipeline ranks, and of experts, whose grid has the same order
(:mod:`planner.workload.placement`). An axis of one rank may stand anywhere. The grid of experts must give every stage
of a pipeline the ranks that it has otherwise, as ranks hold experts of their own layers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from math import prod

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from planner.domain.axes import DATA, EXPERT, PIPELINE, RANK_ORDER, TENSOR
from planner.domain.configuration import RANK_AXES, Configurations

__all__ = ["Order", "best_orders", "orders_of"]

Order = tuple[str, ...]
_SLACK = 1e-9
"""Relative: an order must be faster by more to be taken before those in front of it."""


def orders_of(plan: Configurations, first: Order) -> list[Order]:
    """Return the lawful orders of a plan that differ, the framework's own first; ``plan``: fields of shape (1,)."""
    whole = {name: int(getattr(plan, RANK_AXES[name])[0]) for name in RANK_ORDER}
    x, p, copies = whole.pop(EXPERT), whole[PIPELINE], int(plan.weight_copies[0])
    experts = {TENSOR: whole[TENSOR], EXPERT: x, DATA: max(copies // x, 1), PIPELINE: p} if x > 1 else {}
    several = [name for name in RANK_ORDER if max(whole.get(name, 1), experts.get(name, 1)) > 1]
    alone = tuple(name for name in RANK_ORDER if name not in several)

    def keeps_stages(order: Order) -> bool:
        inside = order[: order.index(PIPELINE)]
        strides = (prod(grid.get(name, 1) for name in inside) for grid in (whole, experts or whole))
        return p == 1 or len(set(strides)) == 1

    own = tuple(name for name in first if name in several)
    others = (some for some in permutations(several) if some != own and keeps_stages((*some, *alone)))
    return [(*some, *alone) for some in (own, *others)]


def best_orders(
    plans: Configurations, first: Order, price: Callable[[Order, IntArray], tuple[FloatArray, BoolArray]]
) -> list[Order]:
    """Return the fastest order of each of n plans, of those with which it fits if there are any.

    Parameters
    ----------
    plans : Configurations, fields of shape (n,)
    first : the framework's own, which is taken unless another is faster
    price : (order, rows) -> steps [s] of these plans, and whether they fit
    """
    alike, which = distinct_rows(*(getattr(plans, name) for name in RANK_AXES.values()))
    choices = [orders_of(plans.take(np.array([row])), first) for row in alike.tolist()]
    place = {order: at for at, order in enumerate(dict.fromkeys(order for some in choices for order in some))}
    number = which.size
    best, best_place = np.full(number, -1), np.full(number, len(place))
    period, fits = np.full(number, np.inf), np.zeros(number, dtype=np.bool_)
    for order, at in place.items():
        rows = np.flatnonzero(np.array([order in some for some in choices])[which])
        own_place = np.array([some.index(order) if order in some else -1 for some in choices])[which[rows]]
        own_s, own_fits = price(order, rows)
        before_s = period[rows]
        faster = own_s < before_s * (1 - _SLACK)
        equal = (own_s <= before_s * (1 + _SLACK)) & (own_place < best_place[rows])
        better = (own_fits & ~fits[rows]) | ((own_fits == fits[rows]) & (faster | equal))
        taken = rows[better]
        best[taken], best_place[taken] = at, own_place[better]
        period[taken], fits[taken] = own_s[better], own_fits[better]
    names = list(place)
    return [names[at] for at in best.tolist()]
