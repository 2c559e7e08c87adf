"""What the plans of a request are searched with, one a framework, and the least of each weighted term.

These leasts make the terms of an objective comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.domain.objective import weights_of
from planner.domain.request import Problem, SpaceRequest
from planner.errors import CoverageError, PlannerError, UsageError
from planner.search.allowed import order_and_limits
from planner.search.evaluator import Evaluator
from planner.search.exhaustive import Stopped
from planner.search.ranking import Order
from planner.search.search import search
from planner.search.space import Limits
from planner.search.switches import of_kernels
from planner.steps import predict

__all__ = ["Asked", "Searchable", "Settings", "least_of_all", "over_leasts", "searchable_among"]


@dataclass(frozen=True)
class Asked:
    """A request, what the machine allows of it, and what prices and orders its plans."""

    request: SpaceRequest
    limits: Limits
    evaluator: Evaluator
    order: Order


@dataclass(frozen=True)
class Searchable(Asked):
    """The request to one framework, or of one group of nodes."""

    evaluator: predict.Evaluator
    problem: Problem

    @property
    def label(self) -> str:
        """Of the framework."""
        return self.problem.settings.framework.label


def searchable_among(
    asked: Sequence[tuple[Problem, SpaceRequest]], errors: dict[str, PlannerError], stopped: Stopped | None = None
) -> list[Searchable]:
    """Return those that can be searched, and add to ``errors``, by framework, why others cannot.

    UsageError where searches for the leasts of a weighted objective were ``stopped`` before they found a plan.
    """
    searchable: list[Searchable] = []
    for problem, request in asked:
        kernels = of_kernels(problem.settings.framework)
        like = next((one for one in searchable if of_kernels(one.problem.settings.framework) == kernels), None)
        try:
            order, limits = order_and_limits(problem, request)
            evaluator = predict.Evaluator(problem, like.evaluator if like else None)
            order = over_leasts(order, request, limits, evaluator, stopped)
        except (CoverageError, UsageError) as error:
            if stopped is not None and stopped():
                raise
            errors[problem.settings.framework.label] = error
        else:
            searchable.append(Searchable(request, limits, evaluator, order, problem))
    return least_of_all(searchable)


def least_of_all(searchable: Sequence[Searchable]) -> list[Searchable]:
    """Return them with each term of a weighted objective over its least among the plans of all."""
    leasts: dict[str, float] = {}
    for one in searchable:
        leasts |= {term: min(value, leasts.get(term, value)) for term, value in one.order.leasts.items()}
    return [replace(one, order=replace(one.order, leasts=leasts)) for one in searchable]


def over_leasts(
    order: Order, request: SpaceRequest, limits: Limits, evaluator: Evaluator, stopped: Stopped | None = None
) -> Order:
    """Return an order in which each term of a weighted objective is over its least of all plans of a request.

    That of a single quantity stays, and so does any where no plan satisfies the request. Of a search that was
    ``stopped`` it is the least so far.

    UsageError: the space is too large to be searched, or the search was to end before a plan was found.
    """
    leasts: dict[str, float] = {}
    for term in weights_of(order.objective) if order.is_sum else ():
        alone = replace(order, objective=term, leasts={})
        best = search(request, limits, evaluator, alone, keep=1, stopped=stopped).best
        if best is not None:
            leasts[term] = float(alone.values(best)[0])
    return replace(order, leasts=leasts)


@dataclass(frozen=True, slots=True)
class Settings:
    """Framework and optimizer as they were given, and what is asked where some of them are left out.

    ``given``: option -> text; ``without``: options left out -> problems and requests, with the defaults in their place.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    without: Callable[[frozenset[str]], Sequence[tuple[Problem, SpaceRequest]]] = lambda _: ()

    def searchable(self, options: Iterable[str]) -> list[Searchable]:
        """Return what is searched where options are left out; none where nothing can be."""
        left_out = frozenset(options) & set(self.given)
        return searchable_among(self.without(left_out), {}) if left_out else []
