"""Which of two plans is faster, and how sure that is: their errors share coefficients, which cancel in the ratio."""

from __future__ import annotations

import math

from planner.domain.prediction import Quantity
from planner.steps.describe import Described
from planner.steps.intervals import NORMAL_90

__all__ = ["probability_faster"]


def probability_faster(one: Described, other: Described) -> float | None:
    """Return the probability that ``one`` takes less time a sample than ``other``; None where errors are not known.

    P = Φ(ln(t' / t) / s): t and t' are the predicted seconds a sample, s is the standard deviation of ln(t / t') by
    :meth:`planner.steps.intervals.Gradient.relative_difference`. What measured runs asked of the deviations of either
    plan (the conformal score over the 1.645 of a normal distribution, the larger of both) multiplies s.
    """
    first, second = one.prediction.iteration_s, other.prediction.iteration_s
    if not (first.value > 0 and second.value > 0):
        return None
    deviation = one.gradient.relative_difference(first.value, other.gradient, second.value)
    if deviation is None:
        return None
    deviation *= max(_score(first), _score(second)) / NORMAL_90
    faster = math.log(one.prediction.samples_per_s.value / other.prediction.samples_per_s.value)
    if deviation == 0 or abs(faster) > 40 * deviation:
        return 0.5 if faster == 0 else float(faster > 0)
    return 0.5 * math.erfc(-faster / deviation / math.sqrt(2))


def _score(period: Quantity) -> float:
    """Return how many standard deviations the ends of the 90 % interval of a period lie from it."""
    if period.high is None or not period.deviation:
        return NORMAL_90
    return math.log(period.high / period.value) / period.deviation
