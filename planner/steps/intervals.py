"""Intervals from the covariance of fitted coefficients and from what the fits missed.

A period is Σ weight·link(Φ·θ) over calls, along the path that decides it. Two parts of its variance are added up:

- coefficients: its gradient with respect to the θ of an entry is one vector v, the weighted sum of feature rows, and
  the variance is v'·cov·v;
- scatter: times of shapes that a fit has not seen miss by its held-out error e (else that of the fit). How the misses
  of a network's shapes go together is not known; they are taken as fully correlated within an entry, so that the
  standard deviation is 1.25·e times the seconds of that entry. For a normal distribution 1.25 = sqrt(π/2) turns a mean
  absolute error into a standard deviation. The error of a framework's overheads is one of whole steps.

Entries are independent, and the central 90 % interval is the value ± 1.645 standard deviations. Where anything that
takes time has neither covariance nor error (specified, assumed, reconstructed) there is no interval.
"""

from __future__ import annotations

import math

import numpy as np

from planner.costs.terms import Work, evaluate, features_of, term_named
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry
from planner.domain.prediction import Quantity

__all__ = ["Gradient", "derivatives", "has_scatter", "is_uncertain", "quantity", "reciprocal"]

NORMAL_90 = 1.6448536269514722
"""Standard deviations from the mean to either end of the central 90 % of a normal distribution."""


STANDARD_PER_MEAN_ERROR = 1.25
"""Standard deviation over mean absolute deviation of a normal distribution."""


def _error(entry: Entry) -> float | None:
    return entry.error if entry.held_out_error is None else entry.held_out_error


def has_scatter(entry: Entry) -> bool:
    """Tell whether it is known by how much an entry misses."""
    return _error(entry) is not None


def is_uncertain(entry: Entry) -> bool:
    """Tell whether anything is known of an entry's uncertainty."""
    return entry.covariance is not None or has_scatter(entry)


def derivatives(entry: Entry, work: Work) -> FloatArray:
    """Return the derivatives of the times of calls by the entry's coefficients, shape (..., p)."""
    rows = features_of(entry, work)
    return rows * evaluate(entry, work)[..., None] if term_named(entry.term).link == "log" else rows


class Gradient:
    """The gradient of one period with respect to the coefficients of all entries that it uses, and their seconds."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[Entry, FloatArray, float]] = {}
        self._unknown = False
        self._other_variance = 0.0

    def add(self, entry: Entry, work: Work, weight: float) -> None:
        """Add a call of an entry, times its weight."""
        seconds = weight * float(evaluate(entry, work))
        if seconds:
            self.add_vector(entry, weight * derivatives(entry, work), seconds)

    def add_vector(self, entry: Entry, vector: FloatArray, seconds: float) -> None:
        """Add the derivatives by an entry's coefficients, shape (p,), and what the entry takes [s]."""
        if not is_uncertain(entry):
            self._unknown = True
            return
        _, before, taken = self._parts.get(id(entry), (entry, np.zeros_like(vector), 0.0))
        self._parts[id(entry)] = (entry, before + vector, taken + seconds)

    def add_unknown(self) -> None:
        """Add something that takes time and of whose uncertainty nothing is known."""
        self._unknown = True

    def add_variance(self, variance: float | None) -> None:
        """Add the variance [s²] of something priced elsewhere; None: unknown."""
        if variance is None:
            self._unknown = True
        else:
            self._other_variance += variance

    def variance(self) -> float | None:
        """Return the variance [s²], or None where something cannot be propagated or nothing was fitted."""
        if self._unknown or not (self._parts or self._other_variance):
            return None
        return self._other_variance + sum(_variance(*part) for part in self._parts.values())


def _variance(entry: Entry, vector: FloatArray, seconds: float) -> float:
    """Return the variance [s²] of what one entry takes: of its coefficients, and of what they leave."""
    of_coefficients = 0.0 if entry.covariance is None else float(vector @ np.asarray(entry.covariance) @ vector)
    return max(of_coefficients, 0.0) + (STANDARD_PER_MEAN_ERROR * (_error(entry) or 0.0) * seconds) ** 2


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
