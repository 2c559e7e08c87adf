"""Questions beside the plan: every number of nodes and sub-batch, other inputs, and why certain plans are not it.

Why not: the space with the values is searched like any other; the space of the request is priced once more to count
what comes before the best plan of it. Of several frameworks each has an answer of its own, with its rank among the
plans of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import AXES, Axis
from planner.domain.configuration import Configuration
from planner.domain.framework import Framework
from planner.domain.precision import PRECISIONS
from planner.domain.request import Problem, Sourced, SpaceRequest
from planner.domain.suggestion import (
    INPUTS,
    Plan,
    RankedPlan,
    Refused,
    Sensitivity,
    Suggestion,
    Sweep,
    SweptPlan,
    WhyNot,
)
from planner.errors import ParameterError, UsageError
from planner.search.choice import Ranking, distinct_plans, ranked
from planner.search.exhaustive import Asked, Outcome, Stopped, lawful_plans
from planner.search.explain import typed_values
from planner.search.loosen import loosenings
from planner.search.ranking import Order, PricedPlans
from planner.search.search import search
from planner.search.searchable import (
    NEAREST_BATCH,
    Searchable,
    least_of_all,
    limits_of,
    order_and_limits,
    over_leasts,
    with_last_resort,
    with_nearest_batch,
)
from planner.search.space import Limits, space_of
from planner.sources.sources import Sources
from planner.steps import predict
from planner.workload.lawful import why_unlawful

__all__ = ["Among", "sensitivities", "sweep", "sweep_with", "why_nots"]


def sweep(
    problem: Problem, request: SpaceRequest, provenance: Mapping[str, Sourced[object]], stopped: Stopped | None = None
) -> Sweep:
    """Return the best plan of every number of nodes and sub-batch, or of those priced until it is to end.

    UsageError: before any plan was found; it and CoverageError: as :func:`planner.search.suggest.suggest` too.
    """
    evaluator = predict.Evaluator(problem)
    order, limits = order_and_limits(problem, request, evaluator)
    return sweep_with(Asked(request, limits, evaluator, order), provenance, stopped=stopped)


def sweep_with(asked: Asked, provenance: Mapping[str, Sourced[object]], *, stopped: Stopped | None = None) -> Sweep:
    """Return the sweep, given what prices and orders plans; no plans where nothing satisfies the request."""
    asked = over_leasts(asked, stopped)
    (asked,) = with_last_resort([asked]) or [asked]
    order, candidates = asked.order, asked.space.candidates
    best: PricedPlans | None = None
    evaluated = 0
    for plans in lawful_plans(asked):
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
        limits = limits_of(problem, one.request)
    if name != "memory of a device" or problem.settings.chooses_order:  # the fastest order of ranks is one that fits
        evaluator = predict.Evaluator(problem, like=one.evaluator)
    return over_leasts(Searchable(one.request, limits, evaluator, one.order, problem), stopped)


def _best(searchable: Sequence[Searchable], stopped: Stopped) -> Ranking | None:
    """Return the best plan of all, alone; None: no plan satisfies the request."""
    parts = {}
    for at, one in enumerate(searchable):
        keep = len(one.request["precision"] or PRECISIONS)  # as many equal plans may stand side by side
        best = search(one, keep=keep, stopped=stopped).best
        if best is not None:
            parts[at] = distinct_plans(one.order, best)
    return ranked(searchable[0].order, parts).take([0]) if parts else None


def _value(one: Searchable, plan: Configuration) -> float | None:
    """Return the objective of a plan; None: it does not satisfy the request."""
    pinned = one.request.changed(**{axis.name: (getattr(plan, axis.name),) for axis in AXES})
    try:
        alone = search(replace(one, request=pinned), keep=1).best
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


ByAxis = Mapping[str, tuple[Any, ...]]
"""Axis -> the values asked about."""
_OPTIONS = {axis.name: axis.option.replace("_", "-") for axis in AXES}


@dataclass(frozen=True)
class Among(Asked):
    """The plans of a framework that a request ranks.

    ``framework``: one of several; None: no other was asked for. ``provenance``: the request with sources.
    """

    provenance: Mapping[str, Sourced[object]]
    framework: Framework | None = None


def why_nots(among: Sequence[Among], asked: ByAxis) -> list[WhyNot]:
    """Return the answer of each framework about plans with certain values, with its rank among the plans of all."""
    among = with_last_resort(among) or among
    wholes = [search(one, keep=1) for one in among]
    if wider := with_nearest_batch(among, wholes):
        width: Sourced[object] = Sourced({"sync": wider[0].request.tolerance_sync}, NEAREST_BATCH)
        among = [replace(one, provenance={**one.provenance, "tolerance": width}) for one in wider]
        wholes = [search(one, keep=1) for one in among]
    firsts = [_ranked(one, of.best) for one, of in zip(among, wholes, strict=True) if of.best is not None]
    first = min(firsts, key=lambda one: one.objective) if firsts else None
    return [_why_not(among, at, asked, first) for at in range(len(among))]


def _why_not(among: Sequence[Among], at: int, asked: ByAxis, first: RankedPlan | None) -> WhyNot:
    """Return the answer of the framework at a place; ``first``: of the plans of all."""
    own = among[at]
    limits, provenance, label = own.limits, own.provenance, own.framework.label if own.framework else ""
    values = {_OPTIONS[name]: typed_values(some) for name, some in asked.items()}
    own_options = {f"--{_OPTIONS[name]}" for name in asked}
    lacking, outside = tuple(_lacking(limits, asked)), tuple(_outside(own, asked))
    pinned = own.request.changed(**asked)
    try:
        space = space_of(pinned, limits)
    except ParameterError as error:  # no such value is lawful here: that is the constraint
        why = lacking or (*outside, str(error))
        return WhyNot(provenance, values, first, None, None, None, why, framework=label)
    if not space.candidates and limits.split:
        of, tried = limits.split, {one.name: some for one in AXES if one.splits and (some := pinned[one.name])}
        outside += tuple(filter(None, [why_unlawful(of.network, of.framework, tried)]))
    outcome = search(replace(own, request=pinned, limits=limits), keep=1)
    best = None if outcome.best is None else _ranked(own, outcome.best)
    ways = () if best else loosenings(replace(own, request=pinned), outcome)
    return WhyNot(
        provenance,
        values,
        first,
        best,
        *((None, None) if outside else _rank(among, at, outcome)),
        outside,
        space.candidates,
        tuple(Refused(why.code, str(why), count) for why, count in outcome.refused.items()),
        tuple(way for way in ways if not own_options & {option for option, _ in way.changes}),
        framework=label,
    )


def _ranked(one: Among, plans: PricedPlans) -> RankedPlan:
    return RankedPlan(plans.configurations.one(0), float(one.order.values(plans)[0]), one.framework)


def _rank(among: Sequence[Among], at: int, outcome: Outcome) -> tuple[int | None, int | None]:
    """Return the place of the best plan of an outcome, of the framework at a place, among the plans of all, so many."""
    if outcome.best is None:
        return None, None
    rank, total, of = 1, 0, among[at].order
    for place, other in enumerate(among):
        keys = of.keys if place == at else of.keys_but_precision
        own = keys(outcome.best)
        for plans in lawful_plans(other):
            rank += _before(own, keys(plans), is_after_equal=place < at)
            total += plans.size
    return rank, total


def _before(
    own: Sequence[FloatArray | IntArray], others: Sequence[FloatArray | IntArray], *, is_after_equal: bool
) -> int:
    """Return how many others, (n,) a key, stand before a plan; ``is_after_equal``: those that are equal too."""
    place = others[0].size if is_after_equal else 0
    keys = [np.insert(other.astype(np.float64), place, mine[0]) for mine, other in zip(own, others, strict=True)]
    return int(np.flatnonzero(np.lexsort(keys[::-1]) == place)[0])


def _lacking(limits: Limits, asked: ByAxis) -> Iterator[str]:
    """Yield a sentence for nodes and GPUs of which the cluster has fewer than all values."""
    for name, words in (("nodes", "nodes"), ("gpus_per_node", "GPUs a node")):
        has = getattr(limits, name)
        if name in asked and min(asked[name]) > has:
            yield f"cluster {limits.cluster} has {has:,} {words}, not {typed_values(asked[name])}"


def _outside(one: Among, asked: ByAxis) -> Iterator[str]:
    """Yield a sentence for every axis of which the request tries none of the values."""
    for axis in AXES:
        tried, values = _tried(one, axis), asked.get(axis.name)
        if tried is not None and values is not None and not set(values) & set(tried):
            yield f"--{_OPTIONS[axis.name]} {typed_values(tried)} leaves out {typed_values(values)}"


def _tried(one: Among, axis: Axis) -> tuple[Any, ...] | None:
    """Return the values of an axis that a request tries; None: every lawful one."""
    if axis.name == "mode":
        return one.request.modes
    told = one.provenance.get(axis.option)
    value = told.value if told else one.request[axis.name]
    return value if isinstance(value, tuple) else None
