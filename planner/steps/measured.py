"""How sure it is which of two plans is faster, and what measured steps change: times by one factor, and their doubt.

Errors of two plans share coefficients, which cancel in the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from planner.domain.axes import AXES
from planner.domain.configuration import Configuration, Configurations
from planner.domain.prediction import Prediction, Quantity
from planner.domain.provenance import NORMAL_90
from planner.numbers import constant, constants
from planner.sources.overheads import MeasuredSteps
from planner.sources.sources import Sources
from planner.steps.describe import Description
from planner.steps.intervals import Gradient
from planner.steps.warnings import measured_warning

__all__ = [
    "OF_AXES", "Deviation", "as_measured", "deviation_left", "deviation_of_axes", "deviation_of_ratio", "doublings_of",
]  # fmt: skip

OF_AXES, LEAST_OF_AXIS = constants("ties.deviation"), constant("ties.floor")
Deviation = Callable[[int, int], float | None]
"""Positions of two plans -> standard deviation of the logarithm of the ratio of their times; None: not known."""


def as_measured(one: Description, sources: Sources) -> Description:
    """Return a description with what measured steps say of its plan; without any, as it is.

    Every term takes its part of the factor, so that terms still add up to the step.
    """
    plan = one.configuration
    steps = _steps_of(sources, plan)
    if steps is None:
        return one
    factor = float(steps.factors(Configurations.of([plan]))[0])
    narrower, gradient = math.sqrt(steps.remaining(plan, plan)), Gradient()
    gradient.add_scaled(one.gradient, factor)
    iteration = _changed(one.iteration_s, factor, narrower)

    def finish() -> Prediction:
        before = one.prediction
        return replace(
            before,
            iteration_s=iteration,
            samples_per_s=_changed(before.samples_per_s, 1 / factor, narrower),
            epoch_s=before.epoch_s and _changed(before.epoch_s, factor, narrower),
            first_epoch_s=before.first_epoch_s and _changed(before.first_epoch_s, factor, narrower),
            terms=tuple(
                replace(term, seconds=factor * term.seconds, exposed_seconds=factor * term.exposed_seconds)
                for term in before.terms
            ),
            mfu=None if before.mfu is None else before.mfu / factor,
            hfu=None if before.hfu is None else before.hfu / factor,
            warnings=(*before.warnings, measured_warning(steps, sources.problem.network.name, plan)),
        )

    return Description(plan, iteration, gradient, finish)


def deviation_left(one: tuple[Sources, Description], other: tuple[Sources, Description]) -> float:
    """Return the share of the deviation of the ratio of two plans that measured steps leave; 1 without any.

    Runs in one precision, mode or framework say nothing of another.
    """
    plans = [description.configuration for _, description in (one, other)]
    each = [_steps_of(sources, plan) for (sources, _), plan in zip((one, other), plans, strict=True)]
    if one[0] is other[0] and (plans[0].precision, plans[0].mode) == (plans[1].precision, plans[1].mode):
        return 1.0 if each[0] is None else math.sqrt(each[0].remaining(*plans))
    left = [1.0 if steps is None else steps.remaining(plan, plan) for steps, plan in zip(each, plans, strict=True)]
    return math.sqrt(sum(left) / len(left))


def _steps_of(sources: Sources, plan: Configuration) -> MeasuredSteps | None:
    return sources.measured_steps(plan.precision) if plan.mode == "sync" else None


def _changed(period: Quantity, factor: float, narrower: float) -> Quantity:
    """Return a value times a factor, its interval narrower, by a share of the logarithms of its ends."""
    value = factor * period.value
    low, high = (None if end is None else value * (end / period.value) ** narrower for end in (period.low, period.high))
    deviation = None if period.deviation is None else period.deviation * narrower
    return replace(period, value=value, low=low, high=high, deviation=deviation)


def deviation_of_ratio(
    one: Description, other: Description, *, apart: tuple[str, ...] = (), axes: bool = True
) -> float | None:
    """Return the standard deviation of the logarithm of the time of ``one`` over that of ``other``; None: not known.

    That of :meth:`planner.steps.intervals.Gradient.relative_difference`, times what measured runs asked of the
    deviations of either plan: the conformal score over the 1.645 of a normal distribution, the larger of both.
    ``apart``: scopes of entries of which the plans share nothing. With ``axes`` that of the axes is added in which the
    plans differ, where the errors of what they share do not cancel.
    """
    first, second = one.iteration_s, other.iteration_s
    if not (first.value > 0 and second.value > 0):
        return None
    deviation = one.gradient.relative_difference(first.value, other.gradient, second.value, apart=apart)
    if deviation is None:
        return None
    scaled = deviation * max(_score(first), _score(second)) / NORMAL_90
    if not axes:
        return scaled
    doublings = doublings_of(one.configuration, other.configuration) | ({"framework": 1.0} if apart else {})
    return math.hypot(scaled, deviation_of_axes(doublings))


def doublings_of(one: Configuration, other: Configuration) -> dict[str, float]:
    """Return of every axis in which two plans differ the doublings from one number to the other; 1 of a named value."""
    values = {axis: (getattr(one, axis.name), getattr(other, axis.name)) for axis in AXES}
    return {
        axis.name: abs(math.log2(mine / its)) if axis.least and not axis.words else 1.0
        for axis, (mine, its) in values.items()
        if mine != its
    }


def deviation_of_axes(doublings: Mapping[str, float]) -> float:
    """Return the standard deviation of the logarithm of a ratio that axes add; see docs/ties.md."""
    each = (OF_AXES.get(name, OF_AXES["other"]) * math.sqrt(count) for name, count in doublings.items())
    return math.hypot(*(max(one, LEAST_OF_AXIS) for one in each))


def _score(period: Quantity) -> float:
    """Return how many standard deviations the ends of the 90 % interval of a period lie from it."""
    if period.high is None or not period.deviation:
        return NORMAL_90
    return math.log(period.high / period.value) / period.deviation
