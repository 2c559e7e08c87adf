"""What switches of its framework would change about a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import Framework
from planner.domain.request import Problem
from planner.errors import PlannerError
from planner.sources.sources import Sources
from planner.steps.predict import Evaluator

__all__ = ["LEAST_GAIN", "switch_gains"]

LEAST_GAIN = 1.02
"""Times faster that a switch is told from."""


def switch_gains(problem: Problem, plan: Configuration) -> dict[str, float]:
    """Return the switches that are off and would make a plan faster, each with those that it needs, the best first.

    By how many times is told to a thousandth.

    What a switch does to kernels and messages is counted, with the coefficients of the framework as it is: those of
    another set of switches were fitted to other runs, and would tell these apart. Where steps of both were measured on
    this accelerator, each has its own.
    """
    framework = problem.settings.framework
    others = list(dict.fromkeys(_one_more(framework)))
    if not others:
        return {}
    now = _samples_per_s(problem, plan)
    gains: dict[str, float] = {}
    for other in others:
        with_own = _with(problem, other)
        if not (_is_measured(problem, plan) and _is_measured(with_own, plan)):
            with_own = _with(problem, replace(other, switched=framework.switched))
        try:
            factor = _samples_per_s(with_own, plan) / now
        except PlannerError:  # the plan is none of the framework so switched
            continue
        if factor >= LEAST_GAIN:
            gains["+".join(name for name in other.switched if name not in framework.switched)] = round(factor, 3)
    return dict(sorted(gains.items(), key=lambda one: -one[1]))


def _one_more(framework: Framework) -> Iterator[Framework]:
    """Yield the framework with each switch on that is off and may be."""
    for name in framework.switches:
        if name not in framework.switched:
            try:
                yield framework.with_switches([name])
            except PlannerError:
                continue


def _with(problem: Problem, framework: Framework) -> Problem:
    return replace(problem, settings=replace(problem.settings, framework=framework))


def _is_measured(problem: Problem, plan: Configuration) -> bool:
    """Tell whether the overheads of a problem's framework were measured on its accelerator."""
    overheads = Sources(problem).overheads(plan.precision, plan.mode)
    return overheads.matched in ("exact", "framework") and not overheads.pooled


def _samples_per_s(problem: Problem, plan: Configuration) -> float:
    return float(Evaluator(problem).evaluate(Configurations.of([plan])).samples_per_s[0])
