"""Intervals from the covariance of fitted coefficients.

A period is Σ weight·link(Φ·θ) over calls, along the path that decides it. Its gradient with respect to the θ of an
entry is one vector v, the weighted sum of feature rows. Entries are independent, so the variance is Σ v'·cov·v, and
the central 90 % interval is the value ± 1.645 standard deviations. Only what was fitted can be propagated: where
anything that takes time has no covariance (specified, assumed, reconstructed) there is no interval.

The residual scatter of single kernels is not in it: it shrinks in a sum of many, and grows with unfamiliar shapes.
"""

from __future__ import annotations

import math

import numpy as np

from planner.costs.terms import Work, evaluate, features_of, term_named
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry
from planner.domain.prediction import Quantity

__all__ = ["Gradient", "quantity", "reciprocal"]

NORMAL_90 = 1.6448536269514722
"""Standard deviations from the mean to either end of the central 90 % of a normal distribution."""


class Gradient:
    """The gradient of one period with respect to the coefficients of all entries that it uses."""

    def __init__(self) -> None:
        self._vectors: dict[int, tuple[Entry, FloatArray]] = {}
        self._unknown = False
        self._other_variance = 0.0

    def add(self, entry: Entry, work: Work, weight: FloatArray | float) -> None:
        """Add calls of an entry, each times its weight (broadcast over the shape of the calls)."""
        if not np.any(np.asarray(weight) * evaluate(entry, work)):
            return
        rows = features_of(entry, work)
        weights = np.broadcast_to(weight, rows.shape[:-1])
        if term_named(entry.term).link == "log":
            weights = weights * evaluate(entry, work)
        self.add_vector(entry, np.tensordot(weights, rows, axes=weights.ndim))

    def add_vector(self, entry: Entry, vector: FloatArray) -> None:
        """Add the derivatives by an entry's coefficients, shape (p,)."""
        if entry.covariance is None:
            self._unknown = True
            return
        before = self._vectors.get(id(entry))
        self._vectors[id(entry)] = (entry, vector if before is None else before[1] + vector)

    def add_unknown(self) -> None:
        """Add something that takes time and has no covariance."""
        self._unknown = True

    def add_variance(self, variance: float | None) -> None:
        """Add the variance [s²] of something priced elsewhere; None: unknown."""
        if variance is None:
            self._unknown = True
        else:
            self._other_variance += variance

    def variance(self) -> float | None:
        """Return the variance [s²], or None where something cannot be propagated or nothing was fitted."""
        if self._unknown or not (self._vectors or self._other_variance):
            return None
        own = sum(float(v @ np.asarray(entry.covariance) @ v) for entry, v in self._vectors.values())
        return max(own, 0.0) + self._other_variance


def quantity(value: float, variance: float | None, factor: float = 1.0) -> Quantity:
    """Return value·factor with the central 90 % interval of a variance, never below 0; None: without."""
    if variance is None:
        return Quantity(value * factor)
    half = NORMAL_90 * math.sqrt(variance)
    return Quantity(value * factor, max(value - half, 0.0) * factor, (value + half) * factor, "covariance")


def reciprocal(period: Quantity, amount: float) -> Quantity:
    """Return the rate amount / period; without an interval where the period's reaches 0."""
    if not period.low or not period.high:
        return Quantity(amount / period.value)
    return Quantity(amount / period.value, amount / period.high, amount / period.low, period.interval_basis)
