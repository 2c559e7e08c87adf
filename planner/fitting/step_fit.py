"""Coefficients of whole steps, fitted to measured runs: what programs, GPUs and clusters add to kernels and links.

A coefficient θ of a set of runs (one problem in one precision) is a base value plus effects φ of what the set's record
states: the class of its precision, whether kernels are measured or specified, kinds of links
(:data:`planner.fitting.observed.COEFFICIENTS`). No effect belongs to a program, GPU, cluster or network: what tells
these apart is counted, or a term is missing. With t the predicted and v the measured time of a step, φ minimises

    sum over rows w·huber(log(t(θ(φ)) / v) / ROW_DEVIATION)  +  sum (φ / deviation)^2.

Rows of a set count as at most MOST_SET_ROWS rows, because errors are those of networks more than of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.calibration import ANY_ACCELERATOR, Calibration, Entry
from planner.domain.request import Problem
from planner.fitting.estimators import robust_least_squares
from planner.fitting.observed import (
    COEFFICIENTS,
    ESTIMATOR,
    Coefficient,
    Observed,
    Steps,
    is_fitted,
    links_entry,
    overheads_entry,
    properties_of,
    start_of,
    values_of,
)
from planner.numbers import constant
from planner.sources.links import BETWEEN, INSIDE

__all__ = ["Key", "StepFit", "fit_steps", "key_of"]

ROW_DEVIATION = constant("end_to_end.row_deviation")
"""Of log(predicted / measured) of a run (docs/numbers.md)."""
MOST_SET_ROWS = constant("end_to_end.most_set_rows")
"""As so many rows those of a set count at most (docs/numbers.md)."""
HUBER = 1.0
"""Of row deviations: published tables hold steps that nothing explains, twice as long as their neighbours."""
ROUNDS = 6
"""Fits until no quadratic has a nearer centre, at most."""


Key = tuple[str, ...]
"""An effect: its coefficient, and the values of the properties that it belongs to, in their order."""


def key_of(one: Coefficient, properties: Mapping[str, str]) -> Key:
    """Return the effect of a coefficient on runs with these properties; empty where one of them is missing."""
    return () if set(one.by) - set(properties) else (one.name, *(properties[name] for name in one.by))


@dataclass(frozen=True, eq=False)
class StepFit:
    """Fitted effects, and the calibrations that they make.

    Attributes
    ----------
    effects, errors : mapping of Key to float
        Of θ, and their standard errors.
    sources : tuple of str
        Of the runs of the fit.
    """

    effects: Mapping[Key, float] = field(default_factory=dict)
    errors: Mapping[Key, float] = field(default_factory=dict)
    sources: tuple[str, ...] = ()

    def theta(self, properties: Mapping[str, str]) -> FloatArray:
        """Return θ of runs with these properties, shape (c,); an effect that no run showed is 0."""
        return np.array(
            [start_of(one, properties) + self.effects.get(key_of(one, properties), 0.0) for one in COEFFICIENTS]
        )

    def values(self, properties: Mapping[str, str]) -> dict[str, float]:
        """Return all coefficients of runs with these properties."""
        return values_of(self.theta(properties))

    def deviations(self, properties: Mapping[str, str]) -> dict[str, float]:
        """Return the standard errors of :meth:`values`; an effect that no run showed has its prior deviation."""
        values, found = self.values(properties), {}
        for one in COEFFICIENTS:
            key = key_of(one, properties)
            error = self.errors.get(key, one.deviation) if key else 0.0
            found[one.name] = error * (values[one.name] if one.is_log else 1.0)
        return found

    def overheads(self, properties: Mapping[str, str], precision: str) -> Entry:
        """Return the overheads of runs with these properties."""
        values, errors = self.values(properties), self.deviations(properties)
        entry = overheads_entry(properties, precision, values)
        stated = {name: errors[name] for name in entry.coefficients}
        return replace(entry, standard_errors=stated, source=", ".join(self.sources))

    def links(self, properties: Mapping[str, str]) -> Iterator[Entry]:
        """Yield what runs show of links of the kinds of these properties, and of replicas that wait."""
        values, errors = self.values(properties), self.deviations(properties)
        for where, link in ((INSIDE, "intra_node"), (BETWEEN, "inter_node")):
            if where in properties:
                entry = links_entry(where, properties[where], values)
                yield replace(entry, standard_errors={f"bytes_{where}": errors[link]}, source=", ".join(self.sources))

    def calibrations(self, problem: Problem, precisions: Sequence[str]) -> tuple[Calibration, ...]:
        """Return the overheads of a problem in some precisions, and what is known of its links."""
        if not is_fitted(problem) or not precisions:
            return ()
        properties = [properties_of(problem, precision) for precision in precisions]
        overheads = (self.overheads(one, precision) for one, precision in zip(properties, precisions, strict=True))
        entries = (*overheads, *self.links(properties[0]))
        return (Calibration(ESTIMATOR, ANY_ACCELERATOR, entries, origin="published"),)


def fit_steps(observed: Sequence[Observed], sources: Iterable[str] = ()) -> StepFit:
    """Return the effects that measured runs ask for; without any, every effect is 0.

    Parameters
    ----------
    observed : sequence of Observed
    sources : iterable of str
        Names of the runs' sources.
    """
    if not observed:
        return StepFit()
    prior = {key: each.deviation for one in observed for each in COEFFICIENTS if (key := key_of(each, one.properties))}
    place = {key: at for at, key in enumerate(sorted(prior))}
    deviations = np.array([prior[key] for key in place])
    best, every = np.zeros(deviations.size), _Rows(observed, [_design(one, place) for one in observed])
    for _ in range(ROUNDS):
        best, covariance = robust_least_squares(
            every.errors, every.slopes, best, deviations, every.weights, huber=HUBER
        )
        near = [one.near(theta) for one, theta in zip(observed, every.thetas(best), strict=True)]
        if all(one is other for one, other in zip(near, every.steps, strict=True)):
            break
        every.use(near)
    errors = np.sqrt(np.diag(covariance))
    effects, deviated = (dict(zip(place, some.tolist(), strict=True)) for some in (best, errors))
    return StepFit(effects, deviated, tuple(sorted(sources)))


class _Rows:
    """Errors of the rows of S sets, n in all, by effects φ, shape (p,), with each set's quadratic.

    ``designs``, (c, p) each: which φ add to θ.
    """

    def __init__(self, observed: Sequence[Observed], designs: Sequence[FloatArray]) -> None:
        sizes = np.array([one.measured_s.size for one in observed])
        self._set, self._designs = np.repeat(np.arange(len(observed)), sizes), np.stack(designs)
        self._start = np.stack([one.start for one in observed])
        self._log_measured = np.log(np.concatenate([one.measured_s for one in observed]))
        self.weights = np.minimum(1.0, MOST_SET_ROWS / sizes)[self._set]
        self.use([one.near(one.start) for one in observed])

    def use(self, steps: Sequence[Steps]) -> None:
        """Take other quadratics of the sets."""
        self.steps = steps
        self._centre = np.stack([one.centre for one in steps])
        self._at_centre = np.concatenate([one.at_centre for one in steps])
        self._slopes = np.concatenate([one.slopes.T for one in steps])
        self._bends = np.concatenate([np.moveaxis(one.bends, -1, 0) for one in steps])

    def thetas(self, effects: FloatArray) -> FloatArray:
        """Return θ of the sets, shape (S, c)."""
        return np.asarray(self._start + self._designs @ effects)

    def errors(self, effects: FloatArray) -> FloatArray:
        """Return log(predicted / measured) in row deviations, shape (n,)."""
        move = (self.thetas(effects) - self._centre)[self._set]
        by_theta = self._slopes + np.einsum("nij,nj->ni", self._bends, move) / 2
        return np.asarray(self._at_centre + np.sum(move * by_theta, axis=1) - self._log_measured) / ROW_DEVIATION

    def slopes(self, effects: FloatArray) -> FloatArray:
        """Return the derivatives of the errors, shape (n, p)."""
        move = (self.thetas(effects) - self._centre)[self._set]
        by_theta = self._slopes + np.einsum("nij,nj->ni", self._bends, move)
        return np.asarray((by_theta[:, None] @ self._designs[self._set])[:, 0]) / ROW_DEVIATION


def _design(observed: Observed, place: Mapping[Key, int]) -> FloatArray:
    """Return which of p effects add to each of c coefficients, shape (c, p); none to those that change no row."""
    design = np.zeros((len(COEFFICIENTS), len(place)))
    for row in observed.live:
        if key := key_of(COEFFICIENTS[row], observed.properties):
            design[row, place[key]] = 1.0
    return design
