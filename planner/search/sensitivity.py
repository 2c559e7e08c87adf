"""Whether the best plan stays the best where one input is some per cent more or less: searched anew, each alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from planner.domain.axes import AXES
from planner.domain.configuration import Configuration
from planner.domain.precision import PRECISIONS
from planner.domain.request import Problem
from planner.domain.sensitivity import INPUTS, Sensitivity
from planner.domain.suggestion import Plan, Suggestion
from planner.errors import UsageError
from planner.search.allowed import limits_of
from planner.search.choice import distinct_plans
from planner.search.exhaustive import Stopped
from planner.search.rivals import Ranking, ranked
from planner.search.search import search
from planner.search.searchable import Searchable, least_of_all, over_leasts
from planner.sources.sources import Sources
from planner.steps import predict

__all__ = ["CHANGE", "sensitivities"]

CHANGE = 0.1
"""Relative, up and down."""
Change = Callable[[Problem, float], Problem | None]
"""Problem and factor -> the problem with one input multiplied; None: it has no such input."""


def sensitivities(
    searchable: Sequence[Searchable], answer: Suggestion, stopped: Stopped = lambda: False
) -> tuple[Sensitivity, ...]:
    """Return what a change of each input alone does to the best plan of an answer; nothing where no plan fits.

    Every change is a search of its own over the whole space, so that plans that fit only then are found too. Once they
    are ``stopped``, those that are done are told.
    """
    chosen, found = answer.chosen_plan, []
    for name, factor in product(INPUTS if chosen else (), (1 - CHANGE, 1 + CHANGE)):
        try:
            there = [one for one in (_with(each, name, factor, stopped) for each in searchable) if one is not None]
            if chosen is not None and len(there) == len(searchable):
                then = _best_then(least_of_all(there), answer, chosen, stopped)
                found += [] if stopped() else [Sensitivity(name, factor, **then)]
        except UsageError:  # it was to end before any plan was found
            if not stopped():
                raise
    return tuple(found)


def _best_then(searchable: Sequence[Searchable], answer: Suggestion, chosen: Plan, stopped: Stopped) -> dict[str, Any]:
    """Return which plan is the best, and how far the chosen one is behind it."""
    best = _best(searchable, stopped)
    if best is None:
        return {"is_other": True, "best": None, "framework": None, "position": None, "behind": None}
    one = replace(best.priced.configurations.one(0), precision=best.precisions[0][0])
    labels = [each.label for each in searchable]
    of = searchable[best.search[0]]
    label = labels[best.search[0]]
    position = next((plan.position for plan in answer.plans if _is_same(plan, one, label)), None)
    own = searchable[labels.index(chosen.framework.label) if chosen.framework else 0]
    value = _value(own, chosen.prediction.configuration)
    return {
        "is_other": position != answer.plans[0].position,
        "best": one,
        "framework": of.problem.settings.framework if chosen.framework else None,
        "position": position,
        "behind": None if value is None else value / float(of.order.values(best.priced)[0]) - 1,
    }


def _with(one: Searchable, name: str, factor: float, stopped: Stopped) -> Searchable | None:
    """Return what plans are searched with where an input is multiplied; None: there is no such input."""
    problem = _CHANGES[name](one.problem, factor)
    if problem is None:
        return None
    limits, evaluator = one.limits, one.evaluator
    if name == "memory of a device":
        limits = limits_of(problem, allow_specified=one.request.allow_specified, named=one.request["precision"] or ())
    if name != "memory of a device" or problem.settings.chooses_order:  # the fastest order of ranks is one that fits
        evaluator = predict.Evaluator(problem, like=one.evaluator)
    order = over_leasts(one.order, one.request, limits, evaluator, stopped)
    return Searchable(one.request, limits, evaluator, order, problem)


def _best(searchable: Sequence[Searchable], stopped: Stopped) -> Ranking | None:
    """Return the best plan of all, alone; None: no plan satisfies the request."""
    parts = {}
    for at, one in enumerate(searchable):
        keep = len(one.request["precision"] or PRECISIONS)  # as many equal plans may stand side by side
        best = search(one.request, one.limits, one.evaluator, one.order, keep=keep, stopped=stopped).best
        if best is not None:
            parts[at] = distinct_plans(one.order, best)
    return ranked(searchable[0].order, parts).take([0]) if parts else None


def _value(one: Searchable, plan: Configuration) -> float | None:
    """Return the objective of a plan; None: it does not satisfy the request."""
    pinned = one.request.changed(**{axis.name: (getattr(plan, axis.name),) for axis in AXES})
    try:
        alone = search(pinned, one.limits, one.evaluator, one.order, keep=1).best
    except UsageError:  # no space has it, as one whose sub-batch fits no more
        return None
    return None if alone is None else float(one.order.values(alone)[0])


def _is_same(plan: Plan, one: Configuration, framework: str) -> bool:
    """Return whether a plan of an answer is a configuration, in any precision in which it is predicted alike."""
    if plan.framework is not None and plan.framework.label != framework:
        return False
    return any(replace(plan.prediction.configuration, precision=name) == one for name in plan.precisions)


def _link(name: str) -> Change:
    """Return what multiplies the bandwidth of a link."""

    def changed(problem: Problem, factor: float) -> Problem | None:
        link, scenario = getattr(Sources(problem).cluster, name), problem.scenario
        if link is None:
            return None
        values = {**scenario.link_values, (name, "bytes_per_s"): link.bytes_per_s * factor}
        return replace(problem, scenario=replace(scenario, link_values=values))

    return changed


def _factor(name: str) -> Change:
    """Return what multiplies a factor of the scenario."""

    def changed(problem: Problem, factor: float) -> Problem:
        factors: dict[str, Any] = {name: getattr(problem.scenario, name) * factor}
        return replace(problem, scenario=replace(problem.scenario, **factors))

    return changed


def _memory(problem: Problem, factor: float) -> Problem:
    node = problem.cluster.node
    device = replace(node.accelerator, memory_bytes=node.accelerator.memory_bytes * factor)
    return replace(problem, cluster=replace(problem.cluster, node=replace(node, accelerator=device)))


_CHANGES: Mapping[str, Change] = dict(
    zip(
        INPUTS,
        (_link("inter_node"), _link("intra_node"), _factor("kernel_factor"), _factor("host_factor"), _memory),
        strict=True,
    )
)
