"""How sure it is which of two plans is faster: their errors share coefficients, which cancel in the ratio."""

from __future__ import annotations

import math

from planner.domain.prediction import Quantity
from planner.steps.describe import Description
from planner.steps.intervals import NORMAL_90

__all__ = ["deviation_of_ratio"]


def deviation_of_ratio(one: Description, other: Description, *, apart: tuple[str, ...] = ()) -> float | None:
    """Return the standard deviation of the logarithm of the time of ``one`` over that of ``other``; None: not known.

    That of :meth:`planner.steps.intervals.Gradient.relative_difference`, times what measured runs asked of the
    deviations of either plan: the conformal score over the 1.645 of a normal distribution, the larger of both.
    ``apart``: scopes of entries of which the plans share nothing.
    """
    first, second = one.prediction.iteration_s, other.prediction.iteration_s
    if not (first.value > 0 and second.value > 0):
        return None
    deviation = one.gradient.relative_difference(first.value, other.gradient, second.value, apart=apart)
    if deviation is None:
        return None
    return deviation * max(_score(first), _score(second)) / NORMAL_90


def _score(period: Quantity) -> float:
    """Return how many standard deviations the ends of the 90 % interval of a period lie from it."""
    if period.high is None or not period.deviation:
        return NORMAL_90
    return math.log(period.high / period.value) / period.deviation
