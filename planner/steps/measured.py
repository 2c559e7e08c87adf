"""What measured steps change in a prediction: all its times by one factor, and how unsure they are."""

from __future__ import annotations

import math
from dataclasses import replace

from planner.domain.configuration import Configuration, Configurations
from planner.domain.prediction import PlanWarning, Quantity
from planner.sources.measured_steps import MeasuredSteps
from planner.sources.sources import Sources
from planner.steps.describe import Description
from planner.steps.intervals import Gradient

__all__ = ["as_measured", "deviation_left"]


def as_measured(one: Description, sources: Sources) -> Description:
    """Return a description with what measured steps say of its plan; without any, as it is.

    Every term takes its part of the factor, so that terms still add up to the step.
    """
    plan = one.prediction.configuration
    steps = _steps_of(sources, plan)
    if steps is None:
        return one
    factor = float(steps.factors(Configurations.of([plan]))[0])
    narrower, before = math.sqrt(steps.remaining(plan, plan)), one.prediction
    after = replace(
        before,
        iteration_s=_changed(before.iteration_s, factor, narrower),
        samples_per_s=_changed(before.samples_per_s, 1 / factor, narrower),
        epoch_s=before.epoch_s and _changed(before.epoch_s, factor, narrower),
        first_epoch_s=before.first_epoch_s and _changed(before.first_epoch_s, factor, narrower),
        terms=tuple(
            replace(term, seconds=factor * term.seconds, exposed_seconds=factor * term.exposed_seconds)
            for term in before.terms
        ),
        mfu=None if before.mfu is None else before.mfu / factor,
        hfu=None if before.hfu is None else before.hfu / factor,
        warnings=(*before.warnings, _in_words(steps, sources, plan, factor)),
    )
    gradient = Gradient()
    gradient.add_scaled(one.gradient, factor)
    return Description(after, gradient)


def deviation_left(one: tuple[Sources, Description], other: tuple[Sources, Description]) -> float:
    """Return the share of the deviation of the ratio of two plans that measured steps leave; 1 without any.

    Runs in one precision, mode or framework say nothing of another.
    """
    plans = [description.prediction.configuration for _, description in (one, other)]
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


def _in_words(steps: MeasuredSteps, sources: Sources, plan: Configuration, factor: float) -> PlanWarning:
    count, own = sum(one.runs for one in steps.steps), steps.runs_of(plan)
    runs = "a measured step was" if count == 1 else f"{count} measured steps were"
    of_plan = "none of them" if not own else "all of them" if own == count else f"{own} of them"
    message = (
        f"In {plan.precision} {runs} used, {of_plan} of this very plan, of calibration "
        f"{' and '.join(steps.calibrations)}: the step is multiplied by {factor:.4g}."
    )
    return PlanWarning("measured_steps", sources.problem.network.name, message)
