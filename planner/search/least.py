"""The plan with the least of what is limited: it tells, without pricing them all, that no plan keeps to a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.domain.request import SpaceRequest
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.ranking import Order
from planner.search.reasons import limited
from planner.search.search import first_plan
from planner.search.space import Limits

__all__ = ["OBJECTIVE_OF_LIMIT", "least_plan", "may_keep_limits", "order_of_limit"]

OBJECTIVE_OF_LIMIT: Mapping[str, str] = {"epoch": "epoch-time", "gpu-hours": "cost", "cost": "cost"}
"""Limit -> the objective that is least in the same plan, where there is one."""


def least_plan(
    name: str,
    request: SpaceRequest,
    limits: Limits,
    evaluator: Evaluator,
    order: Order,
    *,
    most: float | None = None,
) -> PricedPlans | None:
    """Return the plan with the least of what a limit of OBJECTIVE_OF_LIMIT is of; None as :func:`first_plan`.

    Plans with more than ``most`` of it need not be looked for.
    """
    own = order_of_limit(name, order)
    price = own.usd_per_gpu_hour or 1.0
    return first_plan(request, limits, evaluator, own, most=most * price if most and name == "gpu-hours" else most)


def order_of_limit(name: str, order: Order) -> Order:
    """Return the order in which the plan with the least of what a limit of OBJECTIVE_OF_LIMIT is of comes first."""
    price = order.usd_per_gpu_hour or 1.0  # any will do: the same plan is the cheapest
    return replace(order, objective=OBJECTIVE_OF_LIMIT[name], usd_per_gpu_hour=price, leading=None)


def may_keep_limits(request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order) -> bool:
    """Tell whether, limit by limit, some plan that is lawful but for limits keeps to it; all at once is not looked at.

    Cheaper than a search among plans that must keep to them: the plan with the least of a quantity tells of all, and
    where no bound allows as little none is priced.
    """
    nodes, most = request["nodes"], request.most.get("nodes")
    if nodes is not None and most is not None and min(nodes) > most:
        return False
    for name in request.most:
        if name in OBJECTIVE_OF_LIMIT:
            most = request.most[name]
            least = least_plan(name, request.changed(most={}), limits, evaluator, order, most=most)
            if least is None or not limited(name, least, order)[0] <= most:
                return False
    return True
