"""Why plans with certain values are not the answer: which constraint refuses them, or where they rank.

The space with the values is searched like any other; the space of the request is priced once more to count what comes
before the best plan of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from planner.domain.axes import AXES
from planner.domain.request import Problem, Sourced, SpaceRequest
from planner.domain.suggestion import Loosening, Refused
from planner.domain.why_not import RankedPlan, WhyNot
from planner.errors import ParameterError
from planner.search.allowed import order_and_limits
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.exhaustive import lawful_plans
from planner.search.explain import typed_values
from planner.search.leasts import over_leasts
from planner.search.loosen import loosenings
from planner.search.ranking import Order
from planner.search.search import search
from planner.search.space import Limits, space_of
from planner.steps import predict

__all__ = ["why_not", "why_not_with"]

Asked = Mapping[str, tuple[Any, ...]]
"""Axis -> the values asked about."""


def why_not(problem: Problem, request: SpaceRequest, asked: Asked, provenance: Mapping[str, Sourced[object]]) -> WhyNot:
    """Return the answer about plans with certain values; raise as :func:`planner.search.suggest.suggest`."""
    order, limits = order_and_limits(problem, request)
    return why_not_with(predict.Evaluator(problem), order, limits, request, asked, provenance=provenance)


def why_not_with(
    evaluator: Evaluator,
    order: Order,
    limits: Limits,
    request: SpaceRequest,
    asked: Asked,
    *,
    provenance: Mapping[str, Sourced[object]],
) -> WhyNot:
    """Return the answer, given what prices and orders plans."""
    options = {axis.name: axis.option.replace("_", "-") for axis in AXES}
    values = {options[name]: typed_values(some) for name, some in asked.items()}
    order = over_leasts(order, request, limits, evaluator)
    whole = search(request, limits, evaluator, order, keep=1)
    first = None if whole.best is None else _ranked(order, whole.best)
    outside = tuple(_outside(request, asked, options))
    pinned = request.changed(**asked)
    try:
        space = space_of(pinned, limits)
    except ParameterError as error:  # no such value is lawful here: that is the constraint
        return WhyNot(provenance, values, first, None, None, whole.evaluated, (*outside, str(error)))
    outcome = search(pinned, limits, evaluator, order, keep=1)
    best = None if outcome.best is None else _ranked(order, outcome.best)
    rank = None
    if outcome.best is not None and not outside:
        rank = 1 + sum(_before(order, outcome.best, plans) for plans in lawful_plans(request, limits, evaluator, order))
    return WhyNot(
        provenance,
        values,
        first,
        best,
        rank,
        whole.evaluated,
        outside,
        space.candidates,
        tuple(Refused(why.code, str(why), count) for why, count in outcome.refused.items()),
        () if best else tuple(_else(loosenings(pinned, limits, evaluator, order, outcome), asked)),
    )


def _ranked(order: Order, plans: PricedPlans) -> RankedPlan:
    return RankedPlan(plans.configurations.one(0), float(order.values(plans)[0]))


def _before(order: Order, one: PricedPlans, plans: PricedPlans) -> int:
    """Return how many plans stand before one of them in the order."""
    keys = order.keys(one.joined(plans))
    return int(np.flatnonzero(np.lexsort([*reversed(keys)]) == 0)[0])


def _outside(request: SpaceRequest, asked: Asked, options: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for every axis of which the request tries none of the values."""
    for axis in AXES:
        tried, values = request[axis.name], asked.get(axis.name)
        if tried is not None and values is not None and not set(values) & set(tried):
            yield f"--{options[axis.name]} {typed_values(tried)} leaves out {typed_values(values)}"


def _else(loosen: Iterable[Loosening], asked: Asked) -> Iterator[Loosening]:
    """Yield what else to change: not the values asked about."""
    asked_options = {"--" + axis.option.replace("_", "-") for axis in AXES if axis.name in asked}
    for one in loosen:
        if not asked_options & {option for option, _ in one.changes}:
            yield one
