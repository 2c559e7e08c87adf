"""Intervals from the covariance of fitted coefficients and from what the fits missed.

A period is Σ weight·link(Φ·θ) over calls, along the path that decides it. Two parts of its variance are added up:

- coefficients: its gradient with respect to the θ of an entry is one vector v, the weighted sum of feature rows, and
  the variance is v'·cov·v;
- scatter: times of shapes that a fit has not seen miss by its held-out error e (else that of the fit). How the misses
  of a network's shapes go together is not known; they are taken as fully correlated within an entry, so that the
  standard deviation is 1.25·e times the seconds of that entry. Of an entry that was scaled from another device it is
  known: e is what whole devices are missed by, unless its own fit missed by more. For a normal distribution
  1.25 = sqrt(π/2) turns a mean absolute error into a standard deviation. The error of a framework's overheads is one of
  whole steps. That of a measured call counts once more for every doubling of the sub-batch beyond those that it was
  timed at; that of a fitted one a part more for every doubling of a feature outside the range of the fit
  (:func:`doubt_factor`).

What was never compared with measurements has neither, and gets a stated relative standard deviation (below). So do
kernels of known error where no framework was measured, besides their own: steps take longer than their kernels
(:data:`planner.sources.overheads.ASSUMED_SCALE_DEVIATION`). Stated parts are fully correlated within their group: all
kernels of specifications share the assumed efficiencies, all that was reconstructed shares one table, each other scope
is a group.

Entries and groups are independent. The central 90 % interval is multiplicative, value·exp(-w) to value·exp(w), and so
never reaches 0. Where a calibration holds the conformal score of predictions of this kind, w is that: what measured
runs that took no part in a fit asked for, and the interval is ``conformal``. Else w is 1.645·s as of a normal
distribution, s the relative standard deviation, and the interval rests on ``covariance`` where stated deviations take
part in at most :data:`LARGEST_STATED_SHARE` of the time, else it is ``assumed``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.costs.features import Work, number
from planner.costs.measured_calls import DOUBLINGS_BEYOND
from planner.costs.terms import doublings_outside, evaluate, features_of, term_named
from planner.costs.work import slowdown
from planner.domain.arrays import FloatArray
from planner.domain.calibration import END_TO_END, Calibration, Entry
from planner.domain.configuration import Configuration
from planner.domain.network import LOOKED_UP
from planner.domain.prediction import Quantity, Term
from planner.domain.provenance import EXACT, NORMAL_90, PLACES, SCALING_CURVE, ConformalScore, PredictionKind
from planner.numbers import constant, constants
from planner.sources.overheads import DEVIATION_SETTING

"""Standard deviations from the mean to either end of the central 90 % of a normal distribution."""
STANDARD_PER_MEAN_ERROR = 1.25
"""Standard deviation over mean absolute deviation of a normal distribution."""

STATED_DEVIATION = constants("intervals.stated")
"""Relative standard deviation by scope of what was not compared with measurements (docs/numbers.md)."""
ASSUMED_OVERHEADS_DEVIATION = constant("intervals.assumed_overheads")
"""Of the assumed host time of a call."""
RECONSTRUCTED_DEVIATION = constant("intervals.reconstructed")
"""Of what was reconstructed from published results, which its errors on these do not count."""
_OUTSIDE = constants("intervals.outside")
DOUBT_ABOVE, DOUBT_BELOW = _OUTSIDE["above"], _OUTSIDE["below"]
"""Share of its error by which a fitted call is more unsure for every doubling above, or below, the range of the fit."""
PRODUCT_DOUBT_BELOW = _OUTSIDE["products_below"]
"""The same of single products below."""
OF_TIMED_CALLS = (EXACT, SCALING_CURVE)
"""Provenance of calls of the network itself, at its own sizes."""
LARGEST_STATED_SHARE = 0.01
"""Of a period; beyond it an interval counts as assumed."""
LARGEST_REACH = 1e6
"""No end of an interval is farther from the value than by this factor, which says as little as any larger one."""


def has_scatter(entry: Entry) -> bool:
    """Tell whether it is known by how much an entry misses."""
    return entry.miss is not None


def stated_deviation(entry: Entry) -> tuple[str, float] | None:
    """Return the group and relative standard deviation of an entry, or None where those of its fit are known.

    The errors of a reconstruction are those on the results that it was made from, and do not count. Those of overheads
    fitted to whole steps are in the conformal scores, which were calibrated with the stated deviation.
    """
    if entry.origin == "reconstructed":
        return "reconstructed", RECONSTRUCTED_DEVIATION
    if entry.estimator != END_TO_END and (entry.covariance is not None or has_scatter(entry)):
        return None
    if entry.scope == "overheads" and entry.origin == "assumed":
        if DEVIATION_SETTING in entry.settings:
            return "scales", number(entry.settings, DEVIATION_SETTING, 0.0)
        return "overheads", ASSUMED_OVERHEADS_DEVIATION
    return entry.scope, STATED_DEVIATION[entry.scope]


def derivatives(entry: Entry, work: Work, features: FloatArray | None = None) -> FloatArray:
    """Return the derivatives of the times of calls by the entry's coefficients, shape (..., p).

    ``features`` as of :func:`planner.costs.terms.evaluate`.
    """
    rows = features_of(entry, work) if features is None else features
    if term_named(entry.term).link == "log":
        return rows * evaluate(entry, work, rows)[..., None]
    return rows * slowdown(work, entry.settings)[..., None]


def doubt_factor(entry: Entry, work: Work, features: FloatArray | None = None) -> FloatArray:
    """Return how many times as unsure as its entry calls are, shape (...) or (): 1 inside what was timed or fitted.

    A stated deviation is one of any call. ``features`` as of :func:`planner.costs.terms.evaluate`.
    """
    if stated_deviation(entry) is not None:
        return np.ones(())
    if entry.term == LOOKED_UP:
        rows = features_of(entry, work) if features is None else features
        beyond: FloatArray = rows[..., list(entry.coefficients).index(DOUBLINGS_BEYOND)]
        return 1.0 + beyond
    above, below = doublings_outside(entry, work, features)
    is_single = entry.kind == "gemm" and np.equal(work["batch"], 1.0)
    growth: FloatArray = np.maximum(DOUBT_ABOVE * above, np.where(is_single, PRODUCT_DOUBT_BELOW, DOUBT_BELOW) * below)
    return 1.0 + growth


@dataclass(frozen=True, slots=True)
class Spread:
    """The variance [s²] of a period, the seconds of it that rest on stated deviations, and the variance by scope."""

    variance_s2: float
    stated_s: float
    by_scope_s2: Mapping[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the variance by scope of the entries, to four decimals, the largest first; none of next to none."""
        if not self.variance_s2:
            return {}
        scopes = sorted(self.by_scope_s2.items(), key=lambda item: -item[1])
        shares = {scope: round(variance / self.variance_s2, 4) for scope, variance in scopes}
        return {scope: share for scope, share in shares.items() if share}


class Gradient:
    """The gradient of one period with respect to the coefficients of all entries that it uses, and their seconds."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[Entry, FloatArray, FloatArray]] = {}
        self._stated: dict[str, tuple[str, float, FloatArray]] = {}  # group -> scope, deviation, seconds

    def add(self, entry: Entry, work: Work, weight: float) -> None:
        """Add a call of an entry, times its weight."""
        seconds = weight * float(evaluate(entry, work))
        if seconds:
            self.add_vector(entry, weight * derivatives(entry, work), seconds)

    def add_vector(self, entry: Entry, vector: FloatArray, seconds: float | FloatArray) -> None:
        """Add the derivatives by an entry's coefficients, shape (p,), and what the entry takes [s].

        The derivatives do not matter where the deviation is stated. ``seconds`` may be of shape (q,): parts that add up
        and are unsure for reasons of their own, the same q for all of an entry.
        """
        parts_s = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
        statement = stated_deviation(entry)
        if statement is not None:
            group, deviation = statement
            self._add_stated(group, entry.scope, deviation, parts_s)
            return
        self._add_part(entry, vector, parts_s)

    def _add_part(self, entry: Entry, vector: FloatArray, parts_s: FloatArray) -> None:
        before = self._parts.get(id(entry))
        self._parts[id(entry)] = (
            (entry, vector, parts_s) if before is None else (entry, before[1] + vector, before[2] + parts_s)
        )

    def add_scaled(self, other: Gradient, factor: float) -> None:
        """Add the gradient of a period that this one depends on, with this one's derivative by that period."""
        for entry, vector, parts_s in other._parts.values():
            self._add_part(entry, factor * vector, factor * parts_s)
        for group, (scope, deviation, parts_s) in other._stated.items():
            self._add_stated(group, scope, deviation, factor * parts_s)

    def _add_stated(self, group: str, scope: str, deviation: float, parts_s: FloatArray) -> None:
        before = self._stated.get(group)
        self._stated[group] = (scope, deviation, parts_s if before is None else before[2] + parts_s)

    def spread(self) -> Spread | None:
        """Return what is known of the period's deviation; None where nothing took part.

        The parts of what an entry takes are taken as fully correlated.
        """
        if not (self._parts or self._stated):
            return None
        by_scope: dict[str, float] = {}
        for scope, variance in self._variances(lambda parts_s: float(parts_s.sum()) ** 2, lambda one: one.miss_of_sums):
            by_scope[scope] = by_scope.get(scope, 0.0) + variance
        stated_s = sum(abs(float(parts_s.sum())) for _, _, parts_s in self._stated.values())
        return Spread(sum(by_scope.values()), stated_s, by_scope)

    def relative_difference(
        self, period_s: float, other: Gradient, other_s: float, *, apart: tuple[str, ...] = ()
    ) -> float | None:
        """Return the standard deviation of the logarithm of this period over another; None where none is known.

        What both share cancels: Σ (v/T - v'/T')·cov·(v/T - v'/T') over entries, and so for stated deviations and for
        what fits missed, each part of what an entry takes by itself.

        ``period_s``, ``other_s``: the periods [s]; ``apart``: scopes of which nothing is shared, though entries or
        stated deviations may be the same.
        """
        both = Gradient()
        both.add_scaled(self._within(apart, inside=False), 1.0 / period_s)
        both.add_scaled(other._within(apart, inside=False), -1.0 / other_s)
        alone, other_alone = Gradient(), Gradient()
        alone.add_scaled(self._within(apart, inside=True), 1.0 / period_s)
        other_alone.add_scaled(other._within(apart, inside=True), 1.0 / other_s)
        variances = [one.variance_of_parts() for one in (both, alone, other_alone)]
        known = [one for one in variances if one is not None]
        return math.sqrt(sum(known)) if known else None

    def variance_of_parts(self) -> float | None:
        """Return the variance where the parts of what an entry takes are independent; None where nothing took part."""
        if not (self._parts or self._stated):
            return None
        variances = self._variances(lambda parts_s: float(parts_s @ parts_s), lambda one: one.miss)
        return sum(variance for _, variance in variances)

    def _within(self, scopes: tuple[str, ...], *, inside: bool) -> Gradient:
        """Return the parts of some scopes, or those of all others."""
        if not scopes:
            return Gradient() if inside else self
        part = Gradient()
        part._parts = {key: one for key, one in self._parts.items() if (one[0].scope in scopes) == inside}
        part._stated = {key: one for key, one in self._stated.items() if (one[0] in scopes) == inside}
        return part

    def _variances(
        self, square_s2: Callable[[FloatArray], float], miss_of: Callable[[Entry], float | None]
    ) -> Iterator[tuple[str, float]]:
        """Yield scope and variance [s²] of every entry and stated group; ``miss_of``: mean relative error."""
        for entry, vector, parts_s in self._parts.values():
            cov = entry.covariance
            of_coefficients = 0.0 if cov is None else float(vector @ np.asarray(cov) @ vector)
            scatter = (STANDARD_PER_MEAN_ERROR * (miss_of(entry) or 0.0)) ** 2 * square_s2(parts_s)
            yield entry.scope, max(of_coefficients, 0.0) + scatter
        for scope, deviation, parts_s in self._stated.values():
            yield scope, deviation**2 * square_s2(parts_s)


def kind_of(one: Configuration, terms: Iterable[Term], evidence: str) -> str:
    """Return the name of the kind of a prediction, which conformal scores are told apart by; empty: of none.

    Of asynchronous periods no runs were measured but those that calibrations were made from. What rests on a
    reconstruction, or on calls of the network that were timed as they are, misses by other amounts than fits.

    ``evidence``: one of :data:`planner.domain.provenance.EVIDENCE`.
    """
    terms = tuple(terms)
    is_timed = any(of.kind in OF_TIMED_CALLS for term in terms for of in term.provenance)
    if one.mode == "async" or is_timed or any("reconstructed" in term.origins for term in terms):
        return ""
    place = PLACES[int(one.gpus > 1) + int(one.nodes > 1)]
    return PredictionKind(place, evidence, any(term.extrapolated for term in terms)).name


def score_of(kind: str, calibrations: Iterable[Calibration]) -> ConformalScore | None:
    """Return the score of a kind of prediction from the first calibration that has one; None: none has."""
    scores = (one.conformal.get(kind) for one in calibrations)
    return next((score for score in scores if score is not None and score.half_width is not None), None)


def quantity(value: float, deviations: Spread | None, score: ConformalScore | None = None) -> Quantity:
    """Return a value with the central 90 % interval of a spread, which is above 0; None: without.

    ``score``: of predictions of its kind; it goes before the spread.
    """
    if deviations is None or value <= 0:
        return Quantity(value)
    half_width = None if score is None else score.half_width
    deviation = math.sqrt(deviations.variance_s2) / value
    reach = math.exp(min(NORMAL_90 * deviation if half_width is None else half_width, math.log(LARGEST_REACH)))
    basis_without_score = "assumed" if deviations.stated_s > LARGEST_STATED_SHARE * value else "covariance"
    basis = basis_without_score if half_width is None else "conformal"
    return Quantity(value, value / reach, value * reach, basis, deviation)


def times(value: Quantity, factor: float) -> Quantity:
    """Return a quantity multiplied by a factor, its interval too."""
    low, high = (None if end is None else end * factor for end in (value.low, value.high))
    return replace(value, value=value.value * factor, low=low, high=high)


def reciprocal(period: Quantity, amount: float) -> Quantity:
    """Return the rate amount / period, with the interval of the period where it has one."""
    if not period.low or not period.high:
        return Quantity(amount / period.value)
    return replace(period, value=amount / period.value, low=amount / period.high, high=amount / period.low)
