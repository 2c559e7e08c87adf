"""Why plans with certain values are not the answer: which constraint refuses them, or where they rank.

The space with the values is searched like any other; the space of the request is priced once more to count what comes
before the best plan of it. Of several frameworks each has an answer of its own, with its rank among the plans of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import AXES, Axis
from planner.domain.framework import Framework
from planner.domain.request import Sourced
from planner.domain.suggestion import Loosening, Refused
from planner.domain.why_not import RankedPlan, WhyNot
from planner.errors import ParameterError
from planner.search.evaluator import PricedPlans
from planner.search.exhaustive import Outcome, lawful_plans
from planner.search.explain import typed_values
from planner.search.loosen import loosenings
from planner.search.search import search
from planner.search.searchable import Asked
from planner.search.space import Limits, space_of

__all__ = ["Among", "why_nots"]

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
    wholes = [search(one.request, one.limits, one.evaluator, one.order, keep=1) for one in among]
    firsts = [_ranked(one, of.best) for one, of in zip(among, wholes, strict=True) if of.best is not None]
    first = min(firsts, key=lambda one: one.objective) if firsts else None
    evaluated = sum(one.evaluated for one in wholes)
    return [_why_not(among, at, asked, first, evaluated) for at in range(len(among))]


def _why_not(among: Sequence[Among], at: int, asked: ByAxis, first: RankedPlan | None, evaluated: int) -> WhyNot:
    """Return the answer of the framework at a place; ``first``, ``evaluated``: of the plans of all."""
    own = among[at]
    limits, provenance, label = own.limits, own.provenance, own.framework.label if own.framework else ""
    values = {_OPTIONS[name]: typed_values(some) for name, some in asked.items()}
    lacking, outside = tuple(_lacking(limits, asked)), tuple(_outside(own, asked))
    pinned = own.request.changed(**asked)
    try:
        space = space_of(pinned, limits)
    except ParameterError as error:  # no such value is lawful here: that is the constraint
        why = lacking or (*outside, str(error))
        return WhyNot(provenance, values, first, None, None, evaluated, why, framework=label)
    outcome = search(pinned, limits, own.evaluator, own.order, keep=1)
    best = None if outcome.best is None else _ranked(own, outcome.best)
    return WhyNot(
        provenance,
        values,
        first,
        best,
        None if outside else _rank(among, at, outcome),
        evaluated,
        outside,
        space.candidates,
        tuple(Refused(why.code, str(why), count) for why, count in outcome.refused.items()),
        () if best else tuple(_else(loosenings(replace(own, request=pinned), outcome), asked)),
        framework=label,
    )


def _ranked(one: Among, plans: PricedPlans) -> RankedPlan:
    return RankedPlan(plans.configurations.one(0), float(one.order.values(plans)[0]), one.framework)


def _rank(among: Sequence[Among], at: int, outcome: Outcome) -> int | None:
    """Return the place of the best plan of an outcome, of the framework at a place, among the plans of all."""
    if outcome.best is None:
        return None
    rank, of = 1, among[at].order
    for place, other in enumerate(among):
        keys = of.keys if place == at else of.keys_but_precision
        own = keys(outcome.best)
        for plans in lawful_plans(other.request, other.limits, other.evaluator, other.order):
            rank += _before(own, keys(plans), is_after_equal=place < at)
    return rank


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


def _else(loosen: Iterable[Loosening], asked: ByAxis) -> Iterator[Loosening]:
    """Yield what else to change: not the values asked about."""
    asked_options = {"--" + axis.option.replace("_", "-") for axis in AXES if axis.name in asked}
    for one in loosen:
        if not asked_options & {option for option, _ in one.changes}:
            yield one
