"""Coefficients of whole steps, fitted to measured runs: what frameworks, GPUs and clusters add to kernels and links.

A coefficient θ of a set of runs (one problem in one precision) is a base value plus effects φ of the set's
properties: framework, its version, accelerator, precision, cluster, and whether its kernels are measured or specified,
singly and together (:data:`COEFFICIENTS`). Every effect has a normal prior around 0, so that what few runs say moves
little, and a framework, GPU or cluster that no run shows takes the effects of what it shares with others. With t the
predicted and v the measured time of a step, φ minimises

    sum over rows w·huber(log(t(θ(φ)) / v) / ROW_DEVIATION)  +  sum (φ / deviation)^2,

in two parts: what a GPU computes from the runs on one GPU alone, then with that kept, what several cost from the
others. Else errors of a message model would be made up for by compute. A step on several GPUs takes no less than what
one of them computes: there t is that compute, and what it falls short of v by costs nothing. So the smallest
sub-batches, which are often run on many GPUs alone, bound the host time. Rows of a set count as at most SET_ROWS rows,
because errors are those of networks more than of rows. The exponent that composes host and GPU time is that of the
network's family, unless runs tell another (:mod:`planner.fitting.exponents`).

The deviations are judgements made before any score was seen: few per cent for traffic, whose rates are measured within
a few per cent, more for matrix kernels (algorithms, layouts, clocks under sustained load; another version of a library
brings other algorithms), a factor of two or three for host time and links. Host time on measured kernels shares nothing
with that on specified ones, which makes up for their errors; their scales share no more than the small effect of the
framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.request import Problem
from planner.fitting.estimators import robust_least_squares
from planner.fitting.exponents import Cell, Exponent, Part, Prior, cell_of, fit_exponents
from planner.fitting.observed import (
    ESTIMATOR,
    HALF,
    AloneSteps,
    JointSteps,
    Observed,
    calibrations_of,
    is_fitted,
    overheads_entry,
    properties_of,
    without_end_to_end,
)
from planner.sources.overheads import EXPONENTS, OF_FAMILIES, ON_SPECIFIED, exponent_name, family_name

__all__ = [
    "COEFFICIENTS",
    "ESTIMATOR",
    "HALF",
    "EndToEnd",
    "Observed",
    "fit_end_to_end",
    "properties_of",
    "without_end_to_end",
]

ROW_DEVIATION = 0.1
"""Of log(predicted / measured) of a run."""
SET_ROWS = 20.0
EXACT = ((0.0, 1e-6),)
ROUNDS = ((2.0, 1e-2), (1.0, 1e-2), (0.5, 1e-2), (0.1, 1e-5))
"""Widths of the differences by link scales, from wide to narrow, and the tolerance of the fit with each.

Which link and which algorithm paces a message, and whether it is hidden, changes with the scales: the loss has many
minima. Wide differences see past the small ones.
"""


class Coefficient(NamedTuple):
    """A coefficient: value where every effect is 0, and the properties whose effects add to θ, with their deviations.

    θ is the logarithm of the value, or where it is not ``is_log`` the value itself, so far as that is above ``base``:
    below, the value bends away from θ and reaches 0 at -``base``, smoothly, as a search that meets an edge stops there.
    ``of_several``: only runs on several GPUs tell it.
    """

    name: str
    base: float
    levels: tuple[tuple[tuple[str, ...], float], ...]
    is_log: bool = True
    of_several: bool = False

    @property
    def start(self) -> float:
        """θ where every effect is 0."""
        return math.log(self.base) if self.is_log else self.base

    def value(self, theta: float) -> tuple[float, float]:
        """Return the value and its derivative by θ."""
        if self.is_log:
            return math.exp(theta), math.exp(theta)
        if theta >= self.base:
            return theta, 1.0
        above = max(theta + self.base, 0.0)
        return above**2 / (4 * self.base), above / (2 * self.base)


_GPU = ("framework", "accelerator", "kernels")
VERSION = "version"
"""Always the last property of a level."""
_VERSION = (*_GPU, "precision", VERSION)
_FAMILY = (*_GPU, "precision", "family")
"""What coefficients of :data:`planner.sources.overheads.OF_FAMILIES` belong to on one GPU, where its kernels are
measured."""
_CLUSTER = ("framework", "cluster")
COEFFICIENTS = (
    Coefficient("kernel_scale", 1.0, ((("framework",), 0.05), ((*_GPU, "precision"), 0.1), (_VERSION, 0.1))),
    Coefficient(
        "matrix_scale",
        1.0,
        (
            (("framework",), 0.15),
            (("precision", "kernels"), 0.2),
            (("kernels",), 0.3),
            (_GPU, 0.2),
            ((*_GPU, "precision"), 0.3),
            (_FAMILY, 0.2),
            (_VERSION, 0.15),
        ),
    ),
    Coefficient(
        "host_s_per_call",
        20e-6,
        (
            (("kernels",), 0.25),
            (("framework", "kernels"), 0.5),
            (_GPU, 0.3),
            ((*_GPU, "precision"), 0.2),
            (_FAMILY, 0.5),
        ),
    ),
    Coefficient("replica_wait", 0.02, (((), 0.03), (_CLUSTER, 0.03)), is_log=False, of_several=True),
    Coefficient("intra_node", 1.2, (((), 0.7), (_CLUSTER, 0.7)), of_several=True),
    Coefficient("inter_node", 1.3, (((), 0.7), (_CLUSTER, 0.7)), of_several=True),
)
"""The last two multiply the time of a byte over the links of the cluster."""
OVERHEADS = tuple(one.name for one in COEFFICIENTS[:4])


class Key(NamedTuple):
    """An effect: its coefficient, and the names and values of the properties that it belongs to."""

    coefficient: str
    level: tuple[tuple[str, str], ...]


def _keys(one: Coefficient, properties: Mapping[str, str]) -> list[tuple[Key, float]]:
    """Return the effects of a coefficient on runs with these properties, and their prior deviations."""
    return [
        (_key(one, level, properties), deviation)
        for level, deviation in one.levels
        if all(name in properties for name in level)
    ]


def _key(one: Coefficient, level: Sequence[str], properties: Mapping[str, str]) -> Key:
    return Key(one.name, tuple((name, properties[name]) for name in level))


class EndToEnd:
    """Fitted effects, and the calibrations that they make.

    Attributes
    ----------
    effects : mapping of Key to float
    covariance : mapping of (Key, Key) to float
        Of effects; a pair that is missing is independent.
    exponents : mapping of cell to Exponent
        Those that runs tell.
    sources : tuple of str
        Of the runs of the fit.
    """

    def __init__(
        self,
        effects: Mapping[Key, float],
        covariance: Mapping[tuple[Key, Key], float],
        exponents: Mapping[Cell, Exponent],
        sources: tuple[str, ...] = (),
    ) -> None:
        self.effects = effects
        self.covariance = covariance
        self.exponents = exponents
        self.sources = sources

    def coefficients(self, properties: Mapping[str, str]) -> dict[str, float]:
        """Return all coefficients of runs with these properties; effects that no run showed are 0.

        Without ``version`` those of the versions that runs showed, on average.
        """
        return {one.name: one.value(one.start + self._effect(one, properties))[0] for one in COEFFICIENTS}

    def _effect(self, one: Coefficient, properties: Mapping[str, str]) -> float:
        return sum(
            weight * self.effects[key]
            for level, _ in one.levels
            for key, weight in self._seen(one, level, properties).items()
        )

    def _seen(self, one: Coefficient, level: Sequence[str], properties: Mapping[str, str]) -> dict[Key, float]:
        """Return the effects of a level that runs showed, with their weights: of versions where none is named."""
        named = [name for name in level if name in properties]
        if len(named) == len(level):
            key = _key(one, level, properties)
            return {key: 1.0} if key in self.effects else {}
        if [*named, VERSION] != list(level):
            return {}
        start = _key(one, named, properties)
        keys = [
            key
            for key in self.effects
            if (key.coefficient, key.level[:-1]) == start and dict(key.level).keys() == set(level)
        ]
        return dict.fromkeys(keys, 1 / len(keys)) if keys else {}

    def exponent(self, properties: Mapping[str, str], name: str) -> float:
        """Return the exponent of runs with these properties on a family of networks."""
        told = self.exponents.get(cell_of(properties, name))
        return told.value if told else EXPONENTS[name]

    def deviations(self, properties: Mapping[str, str]) -> dict[str, float]:
        """Return the standard errors of :meth:`coefficients`; unseen effects count with their prior deviation."""
        values, found = self.coefficients(properties), {}
        for one in COEFFICIENTS:
            seen = {key: w for level, _ in one.levels for key, w in self._seen(one, level, properties).items()}
            variance = sum(w * v * self.covariance.get((a, b), 0.0) for a, w in seen.items() for b, v in seen.items())
            unseen = (deviation for key, deviation in _keys(one, properties) if key not in self.effects)
            variance += sum(deviation**2 for deviation in unseen)
            found[one.name] = math.sqrt(max(variance, 0.0)) * (values[one.name] if one.is_log else 1.0)
        return found

    def overheads(self, properties: Mapping[str, str], precision: str = "", kind: str = "") -> Entry:
        """Return the overheads entry of runs with these properties; ``kind`` stands for the framework."""
        values, errors = (
            self._of_families(self.coefficients, properties),
            self._of_families(self.deviations, properties),
        )
        told = {name: one for name in EXPONENTS if (one := self.exponents.get(cell_of(properties, name)))}
        entry = overheads_entry(
            kind or properties["framework"],
            precision,
            properties["kernels"],
            values | {name: self.exponent(properties, name) for name in EXPONENTS},
        )
        return replace(
            entry,
            standard_errors=errors | {name: one.error for name, one in told.items()},
            fixed=tuple(name for name in EXPONENTS if name not in told),
            source=", ".join(self.sources),
        )

    @staticmethod
    def _of_families(
        found: Callable[[Mapping[str, str]], Mapping[str, float]], properties: Mapping[str, str]
    ) -> dict[str, float]:
        """Return what an entry states: the overheads, and those of families for each family of networks."""
        has_families = properties["kernels"] != ON_SPECIFIED
        values = {name: found({**properties, "family": name} if has_families else properties) for name in EXPONENTS}
        common = {name: values["exponent"][name] for name in OVERHEADS}
        return common | {family_name(each, name): one[each] for each in OF_FAMILIES for name, one in values.items()}

    def calibrations(self, problem: Problem, precisions: Sequence[str]) -> tuple[Calibration, ...]:
        """Return the overheads of a problem in some precisions, and the collectives of its cluster."""
        if not is_fitted(problem):
            return ()
        found = [properties_of(problem, precision) for precision in precisions]
        values = self.coefficients(found[0])
        kind = problem.settings.framework.label
        entries = [self.overheads(one, precision, kind) for one, precision in zip(found, precisions, strict=True)]
        return calibrations_of(problem, entries, (values["intra_node"], values["inter_node"]))


def _weight(observed: Observed) -> float:
    return min(1.0, SET_ROWS / observed.measured_s.size)


class _Set:
    """Rows with the effects that some coefficients of theirs depend on; ``is_bound``: they take so long or longer."""

    def __init__(
        self,
        observed: Observed,
        steps: AloneSteps | JointSteps,
        chosen: Sequence[Coefficient],
        place: Mapping[Key, int],
        *,
        is_bound: bool = False,
    ) -> None:
        self.steps, self.chosen, self.is_bound = steps, chosen, is_bound
        self.log_measured = np.log(observed.measured_s)
        self.start = np.array([one.start for one in chosen])
        self.design = np.zeros((len(chosen), len(place)))
        for row, one in enumerate(chosen):
            for key, _ in _keys(one, observed.properties):
                self.design[row, place[key]] = 1.0
        self.weights = np.full(observed.measured_s.size, _weight(observed))

    def errors(self, effects: FloatArray) -> FloatArray:
        """Return log(predicted / measured) in row deviations, shape (n,)."""
        values, _ = self._valued(effects)
        found: FloatArray = np.log(self.steps.times_s(values)) - self.log_measured
        return (np.maximum(found, 0.0) if self.is_bound else found) / ROW_DEVIATION

    def slopes(self, effects: FloatArray, width: float) -> FloatArray:
        """Return the derivatives of the errors by the effects, shape (n, p); see :meth:`JointSteps.slopes`."""
        values, by_theta = self._valued(effects)
        times_s = self.steps.times_s(values)
        relative = self.steps.slopes(values, width) / times_s[:, None]
        if self.is_bound:
            relative[np.log(times_s) <= self.log_measured] = 0.0
        found: FloatArray = (relative * by_theta) @ self.design / ROW_DEVIATION
        return found

    def _valued(self, effects: FloatArray) -> FloatArray:
        """Return the coefficients and their derivatives by θ, shape (2, c)."""
        theta = (self.start + self.design @ effects).tolist()
        return np.array([one.value(x) for one, x in zip(self.chosen, theta, strict=True)]).T


def fit_end_to_end(observed: Sequence[Observed], sources: Sequence[str] = ()) -> EndToEnd:
    """Return the effects that measured runs ask for; see the module's text.

    Parameters
    ----------
    observed : sequence of Observed
        Without any, every effect is 0.
    sources : sequence of str
        Names of the runs' sources.
    """
    computed = _computed(observed)
    joint = [one for one in COEFFICIENTS if one.of_several]
    several = [(part, JointSteps(part, _compute_of(computed, part))) for one in observed if (part := one.joint)]
    effects, covariance = _fitted(observed, several, joint)
    found = {**computed.effects, **effects}, {**computed.covariance, **covariance}
    return EndToEnd(*found, computed.exponents, tuple(sorted(sources)))


def _computed(observed: Sequence[Observed]) -> EndToEnd:
    """Return what runs tell of one GPU: exponents from those on one GPU, coefficients also within what others took."""
    chosen = [one for one in COEFFICIENTS if not one.of_several]
    parts = [(part, part.alone_steps) for one in observed if (part := one.alone)]
    spreads = [math.hypot(*(deviation for _, deviation in one.levels)) for one in chosen]
    prior = Prior(np.array([one.start for one in chosen]), np.array(spreads), ROW_DEVIATION)
    exponents = fit_exponents([Part(part, steps, _weight(part)) for part, steps in parts], prior)
    told = EndToEnd({}, {}, exponents)
    bounds = [(part, part.alone_steps) for one in observed if (part := one.joint)]
    composed, within = (
        [(part, steps.at_exponent(_compute_of(told, part)["exponent"])) for part, steps in some]
        for some in (parts, bounds)
    )
    return EndToEnd(*_fitted(observed, composed, chosen, within), exponents)


def _compute_of(found: EndToEnd, part: Observed) -> dict[str, float]:
    """Return the coefficients of some rows, and the exponent of their network."""
    exponent = found.exponent(part.properties, exponent_name(part.problem.network))
    return {**found.coefficients(part.properties), "exponent": exponent}


def _fitted(
    observed: Sequence[Observed],
    parts: Sequence[tuple[Observed, AloneSteps | JointSteps]],
    chosen: Sequence[Coefficient],
    bounds: Sequence[tuple[Observed, AloneSteps]] = (),
) -> tuple[dict[Key, float], dict[tuple[Key, Key], float]]:
    """Return the effects of some coefficients on all that was observed, fitted to parts of it, and their covariance."""
    prior = {key: deviation for one in observed for each in chosen for key, deviation in _keys(each, one.properties)}
    place = {key: at for at, key in enumerate(sorted(prior))}
    deviations = np.array([prior[key] for key in place])
    best, covariance = np.zeros(deviations.size), np.diag(deviations**2)
    sets = [_Set(rows, steps, chosen, place) for rows, steps in parts]
    sets += [_Set(rows, steps, chosen, place, is_bound=True) for rows, steps in bounds]
    rounds = ROUNDS if any(one.of_several for one in chosen) else EXACT
    for width, tolerance in rounds if sets else ():
        best, covariance = _searched(sets, best, deviations, width, tolerance)
    pairs = {(a, b): float(covariance[i, j]) for a, i in place.items() for b, j in place.items() if covariance[i, j]}
    return dict(zip(place, best.tolist(), strict=True)), pairs


def _searched(
    sets: Sequence[_Set], start: FloatArray, deviations: FloatArray, width: float, tolerance: float
) -> tuple[FloatArray, FloatArray]:
    return robust_least_squares(
        lambda x: np.concatenate([one.errors(x) for one in sets]),
        lambda x: np.concatenate([one.slopes(x, width) for one in sets]),
        start,
        deviations,
        np.concatenate([one.weights for one in sets]),
        tolerance=tolerance,
    )
