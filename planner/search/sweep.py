"""The best plan of every number of nodes and sub-batch: a whole space searched once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.domain.request import Problem, Sourced, SpaceRequest
from planner.domain.why_not import Sweep, SweptPlan
from planner.search.allowed import order_and_limits
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.exhaustive import Stopped, lawful_plans
from planner.search.ranking import Order
from planner.search.searchable import over_leasts
from planner.search.space import Limits, space_of
from planner.steps import predict

__all__ = ["sweep", "sweep_with"]


def sweep(
    problem: Problem,
    request: SpaceRequest,
    provenance: Mapping[str, Sourced[object]],
    stopped: Stopped | None = None,
) -> Sweep:
    """Return the best plan of every number of nodes and sub-batch, or of those priced until it is to end.

    Raises
    ------
    UsageError : it was to end before any plan was found; or as :func:`planner.search.suggest.suggest`
    CoverageError : as :func:`planner.search.suggest.suggest`
    """
    order, limits = order_and_limits(problem, request)
    return sweep_with(predict.Evaluator(problem), order, limits, request, provenance, stopped=stopped)


def sweep_with(
    evaluator: Evaluator,
    order: Order,
    limits: Limits,
    request: SpaceRequest,
    provenance: Mapping[str, Sourced[object]],
    *,
    stopped: Stopped | None = None,
) -> Sweep:
    """Return the sweep, given what prices and orders plans; no plans where nothing satisfies the request."""
    order = over_leasts(order, request, limits, evaluator, stopped)
    candidates = space_of(request, limits).candidates
    best: PricedPlans | None = None
    evaluated = 0
    for plans in lawful_plans(request, limits, evaluator, order):
        evaluated += plans.size
        best = _firsts(order, plans if best is None else best.joined(plans))
        if stopped is not None and stopped() and evaluated:
            return Sweep(provenance, _plans(order, best), candidates, evaluated, is_complete=False)
    if best is None or not best.size:
        return Sweep(provenance, (), candidates, 0)
    return Sweep(provenance, _plans(order, best), candidates, evaluated)


def _firsts(order: Order, plans: PricedPlans) -> PricedPlans:
    """Return the first plan of each number of nodes and sub-batch, by nodes, then sub-batch."""
    nodes, sub_batch = plans.configurations.nodes, plans.configurations.sub_batch
    at = np.lexsort([*order.keys(plans)[::-1], sub_batch, nodes])
    begins = np.ones(at.size, dtype=np.bool_)
    begins[1:] = (np.diff(nodes[at]) != 0) | (np.diff(sub_batch[at]) != 0)
    return plans.take(at[begins])


def _plans(order: Order, plans: PricedPlans) -> tuple[SweptPlan, ...]:
    p = plans.predictions
    rank = np.empty(plans.size, dtype=np.int64)
    rank[np.lexsort(order.keys(plans)[::-1])] = np.arange(1, plans.size + 1)
    columns = (rank, order.values(plans), p.iteration_s, p.epoch_s, p.samples_per_s, p.mini_batch_mean, p.memory_bytes)
    return tuple(
        SweptPlan(
            position,
            plans.configurations.one(at),
            objective,
            iteration_s,
            epoch_s if order.has_dataset else None,
            samples_per_s,
            mini_batch,
            round(memory),
        )
        for at, (position, objective, iteration_s, epoch_s, samples_per_s, mini_batch, memory) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    )
