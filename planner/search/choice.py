"""Which plan to take: equal plans are one, some cannot be told from the first, and one of these is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.configuration import SPLIT_AXES
from planner.domain.suggestion import Plan
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.explain import listed_positions
from planner.search.ranking import Order

__all__ = [
    "MOST_COMPARED_PLANS",
    "SURE_PROBABILITY",
    "Distinct",
    "chosen_of",
    "distinct_plans",
    "expected_regret",
    "in_all_precisions",
    "largest_regrets",
    "probability_better",
    "tied_plans",
]

MOST_COMPARED_PLANS = 50
"""Plans, best first, that are looked at for ties."""
SURE_PROBABILITY = 0.9
"""Probability that plan 1 is better from which a plan is not tied with it."""


@dataclass(frozen=True, slots=True)
class Distinct:
    """Plans in order of which no two are equal.

    Attributes
    ----------
    priced : PricedPlans
        Of each the configuration in its first precision.
    precisions : tuple of tuple of str
        Those in which each has this very prediction, bf16 first.
    """

    priced: PricedPlans
    precisions: tuple[tuple[str, ...], ...]


def distinct_plans(order: Order, best: PricedPlans) -> Distinct:
    """Return plans without their equals: those that differ in precision alone, by every key of the order.

    Parameters
    ----------
    best : PricedPlans, shape (n,)
        In order.
    """
    keys = order.keys_but_precision(best)
    codes, names = best.configurations.precision, best.configurations.precisions
    starts = np.ones(best.size, dtype=np.bool_)
    starts[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    groups = np.split(np.arange(best.size), np.flatnonzero(starts)[1:])
    by_precision = [sorted(group.tolist(), key=lambda at: names[codes[at]] != "bf16") for group in groups]
    first = np.array([group[0] for group in by_precision], dtype=np.int64)
    return Distinct(best.take(first), tuple(tuple(names[codes[at]] for at in group) for group in by_precision))


def in_all_precisions(order: Order, evaluator: Evaluator, some: PricedPlans) -> Distinct:
    """Return some plans, in their order, each with every precision of the space in which it has this very prediction.

    Parameters
    ----------
    some : PricedPlans, shape (n,)
        No two of them equal.
    """
    names = some.configurations.precisions
    copies = some.configurations.take(np.repeat(np.arange(some.size), len(names)))
    wide = replace(copies, precision=np.tile(np.arange(len(names)), some.size))
    distinct = distinct_plans(order, order.best(PricedPlans(wide, evaluator.evaluate(wide)), wide.size))
    at = {
        replace(distinct.priced.configurations.one(group), precision=name): group
        for group, alike in enumerate(distinct.precisions)
        for name in alike
    }
    groups = [at[some.configurations.one(position)] for position in range(some.size)]
    return Distinct(
        distinct.priced.take(np.array(groups, dtype=np.int64)), tuple(distinct.precisions[one] for one in groups)
    )


def probability_better(first: float, other: float, deviation: float | None) -> float | None:
    """Return the probability that the first of two values of the objective is the smaller; None: not known.

    P = Φ(ln(other / first) / s) with s the standard deviation of the logarithm of their ratio.
    """
    if deviation is None or not (first > 0 and other > 0):
        return None
    ratio = math.log(other / first)
    if deviation == 0:
        return 0.5 if ratio == 0 else float(ratio > 0)
    return 0.5 * math.erfc(-ratio / deviation / math.sqrt(2))


def expected_regret(value: float, other: float, deviation: float | None) -> float | None:
    """Return how much more the first of two values of the objective is expected to be than the second, where it is.

    E[max(0, X)] of X = ln(value / other), normal with the standard deviation s of its error:
    s·φ(μ/s) + μ·Φ(μ/s); None: not known.
    """
    if deviation is None or not (value > 0 and other > 0):
        return None
    mean = math.log(value / other)
    if deviation == 0:
        return max(mean, 0.0)
    ratio = mean / deviation
    density = math.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    return deviation * density + mean * 0.5 * math.erfc(-ratio / math.sqrt(2))


def largest_regrets(values: Sequence[float], deviations: Sequence[Sequence[float | None]]) -> list[float]:
    """Return of each plan the largest expected regret against another; infinity where one is not known.

    ``deviations[i][j]``: standard deviation of the logarithm of the ratio of plans i and j.
    """
    every = range(len(values))
    regrets = [[expected_regret(values[i], values[j], deviations[i][j]) for j in every if j != i] for i in every]
    return [max((math.inf if one is None else one for one in row), default=0.0) for row in regrets]


def tied_plans(plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Return plan 1 and those of the best that it is not surely better than; alone where errors are not known."""
    first, *others = plans[:MOST_COMPARED_PLANS]
    return (
        first,
        *(one for one in others if one.first_is_better is not None and one.first_is_better < SURE_PROBABILITY),
    )


def chosen_of(
    plans: Sequence[Plan],
    tied: Sequence[Plan],
    choose: str,
    device: str = "GPU",
    regrets: Callable[[Sequence[Plan]], Sequence[float]] | None = None,
) -> tuple[Plan, str]:
    """Return the plan to take among the tied, and why in words.

    ``fewest-gpus``: the fewest devices, then the larger sub-batch, then the network least split, then the better
    position. A plan that is tied only because little is known of it is not taken: one that another plan beats by
    prediction on no more devices, though plan 1 is surely better than that one. ``fastest``: plan 1. ``least-regret``:
    the one whose largest expected regret against another of the tied is least, as ``regrets`` tells of them.
    """
    first = tied[0]
    if len(tied) == 1:
        return first, "no other plan is tied with it"
    others = listed_positions([one.position for one in tied])
    if choose == "fastest":
        return first, f"plans {others} are tied; it has the best prediction of them"
    if choose == "least-regret" and regrets is not None:
        each = regrets(tied)
        at = min(range(len(tied)), key=lambda i: (each[i], tied[i].position))
        worst = f"{100 * math.expm1(each[at]):.2g} %" if math.isfinite(each[at]) else "not known"
        return tied[
            at
        ], f"plans {others} are tied; its largest expected regret against another of them is least, {worst}"
    surely_worse = [one for one in plans[:MOST_COMPARED_PLANS] if one not in tied]
    sound = [one for one in tied if not any(_beats(other, one) for other in surely_worse)]
    choice = min(
        sound, key=lambda one: (_gpus(one), -one.prediction.configuration.sub_batch, _splits(one), one.position)
    )
    alike = [one for one in sound if _gpus(one) == _gpus(choice)]
    larger = any(one.prediction.configuration.sub_batch < choice.prediction.configuration.sub_batch for one in alike)
    simpler = any(_splits(one) > _splits(choice) for one in alike)
    fewest = any(_gpus(one) > _gpus(choice) for one in sound)
    fewer_aside = any(_gpus(one) < _gpus(choice) for one in tied)
    reasons = (f"the fewest {device}s" * fewest, "the largest sub-batch" * larger, "the simplest split" * simpler)
    why = " and ".join(filter(None, reasons))
    if fewer_aside:
        of = f"of those that no untied plan beats on as few {device}s, it has {why or 'the best prediction'}"
    else:
        of = f"it has {why or 'the best prediction of them'}"
    return choice, f"plans {others} are tied; {of}"


def _splits(one: Plan) -> int:
    """Return how many axes of a plan say something else than that every device holds and keeps the whole network."""
    return sum(getattr(one.prediction.configuration, axis.name) != axis.default for axis in SPLIT_AXES)


def _beats(one: Plan, other: Plan) -> bool:
    return one.position < other.position and _gpus(one) <= _gpus(other)


def _gpus(plan: Plan) -> int:
    return plan.prediction.configuration.gpus
