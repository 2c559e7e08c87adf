"""The least of each term of a weighted objective: what makes the terms comparable."""

from __future__ import annotations

from dataclasses import replace

from planner.domain.objective import weights_of
from planner.domain.request import SpaceRequest
from planner.search.evaluator import Evaluator
from planner.search.exhaustive import Stopped
from planner.search.ranking import Order
from planner.search.search import search
from planner.search.space import Limits

__all__ = ["over_leasts"]


def over_leasts(
    order: Order, request: SpaceRequest, limits: Limits, evaluator: Evaluator, stopped: Stopped | None = None
) -> Order:
    """Return an order in which each term of a weighted objective is over its least of all plans of a request.

    That of a single quantity stays, and so does any where no plan satisfies the request. Of a search that was
    ``stopped`` it is the least so far.

    Raises
    ------
    UsageError
        The space is too large to be searched, or the search was to end before a plan was found.
    """
    leasts: dict[str, float] = {}
    for term in weights_of(order.objective) if order.is_sum else ():
        alone = replace(order, objective=term, leasts={})
        best = search(request, limits, evaluator, alone, keep=1, stopped=stopped).best
        if best is not None:
            leasts[term] = float(alone.values(best)[0])
    return replace(order, leasts=leasts)
