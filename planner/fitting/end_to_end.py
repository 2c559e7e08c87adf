"""Coefficients of whole steps, fitted to measured runs: what frameworks, GPUs and clusters add to kernels and links.

A coefficient θ of a set of runs (one problem in one precision) is a base value plus effects φ of the set's
properties: program, its version, accelerator, precision, cluster, kinds of links, and whether its kernels are measured
or specified (:data:`COEFFICIENTS`). Every effect has a normal prior around 0, so that what few runs say moves little,
and a program, GPU or cluster that no run shows takes the effects of what it shares with others. With t the predicted
and v the measured time of a step, φ minimises

    sum over rows w·huber(log(t(θ(φ)) / v) / ROW_DEVIATION)  +  sum (φ / deviation)^2,

in two parts: what a GPU computes from the runs on one GPU alone, then with that kept, what several cost from the
others. Else errors of a message model would be made up for by compute. A step on several GPUs takes no less than what
one of them computes: there t is that compute, and what it falls short of v by costs nothing. So the smallest
sub-batches, which are often run on many GPUs alone, bound the host time. Rows of a set count as at most MOST_SET_ROWS
rows, because errors are those of networks more than of rows. The exponent that composes host and GPU time is that of
the network's family, unless runs tell another (:mod:`planner.fitting.exponents`).

How the deviations were chosen: docs/numbers.md (end_to_end.row_deviation).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.request import Problem
from planner.fitting.estimators import robust_least_squares
from planner.fitting.exponents import Exponent, ExponentKey, exponent_key, fit_exponents
from planner.fitting.observed import (
    ESTIMATOR,
    HALF_PRECISIONS,
    AloneSteps,
    JointSteps,
    Observed,
    calibrations_of,
    is_fitted,
    overheads_entry,
    properties_of,
    without_end_to_end,
)
from planner.fitting.residuals import MOST_SET_ROWS, Coefficient, Residuals, Rows, stacks
from planner.numbers import constants
from planner.sources.overheads import EXPONENTS, exponent_name

__all__ = [
    "COEFFICIENTS",
    "ESTIMATOR",
    "HALF_PRECISIONS",
    "MEASURED_MULTIPLES",
    "EndToEnd",
    "Observed",
    "covariances",
    "design_of",
    "effects_of",
    "fit_end_to_end",
    "priors",
    "properties_of",
    "without_end_to_end",
]

EXACT_ROUND = (0.0, 1e-6)
ROUNDS = ((2.0, 1e-2), (1.0, 1e-2), (0.5, 1e-2), (0.1, 1e-5))
"""Widths of the differences by link scales, from wide to narrow, and the tolerance of the fit with each.

Which link and which algorithm paces a message, and whether it is hidden, changes with the scales: the loss has many
minima. Wide differences see past the small ones.
"""


_WAITS = ((), 0.03), (("cluster",), 0.03), (("program",), 0.03)
COEFFICIENTS = (
    Coefficient("kernel_scale", 1.0, (((), 0.1),)),
    Coefficient(
        "matrix_scale",
        1.0,
        (
            (("precision", "kernels"), 0.3),
            (("program", "precision"), 0.2),
            (("accelerator", "precision"), 0.2),
            (("program", "precision", "version"), 0.1),
        ),
    ),
    Coefficient(
        "host_s_per_call", 20e-6, ((("kernels",), 0.3), (("program", "kernels"), 0.3), (("accelerator",), 0.3))
    ),
    Coefficient("replica_wait", 0.02, _WAITS, is_log=False, of_several=True),
    Coefficient("intra_node", 1.2, ((("inside",), 0.5), (("inside", "cluster"), 0.5)), of_several=True),
    Coefficient("inter_node", 1.3, ((("between",), 0.5), (("between", "cluster"), 0.5)), of_several=True),
)
"""The last two multiply the time of a byte over the links of the cluster."""
MEASURED_MULTIPLES = constants("links.multiples")
"""Kind of link -> that multiple as nccl-tests tell it, which its coefficient starts from (docs/numbers.md)."""
MULTIPLE_DEVIATIONS = constants("links.deviations")
"""Of logarithms of these: of a kind, and of clusters with links of it inside their nodes (docs/numbers.md)."""
LINK_OF = {"intra_node": "inside", "inter_node": "between"}
"""Coefficient -> the property that names its kind of link."""
OVERHEADS = tuple(one.name for one in COEFFICIENTS[:4])


class Key(NamedTuple):
    """An effect: its coefficient, and the names and values of the properties that it belongs to."""

    coefficient: str
    level: tuple[tuple[str, str], ...]


def effects_of(one: Coefficient, properties: Mapping[str, str]) -> list[tuple[Key, float]]:
    """Return the effects of a coefficient on runs with these properties, and their prior deviations."""
    return [
        (_key(one, level, properties), _deviation(level, properties, deviation))
        for level, deviation in one.levels
        if all(name in properties for name in level)
    ]


def start_of(one: Coefficient, properties: Mapping[str, str]) -> float:
    """Return θ of a coefficient on runs with these properties where every effect is 0."""
    measured = MEASURED_MULTIPLES.get(properties.get(LINK_OF.get(one.name, ""), ""))
    return one.start if measured is None else math.log(measured)


def _deviation(level: Sequence[str], properties: Mapping[str, str], usual: float) -> float:
    """Return the prior deviation of an effect; that of nodes in a cluster goes by its fabric, whatever its links do."""
    where = next((name for name in LINK_OF.values() if name in level), "")
    if properties.get(where) not in MEASURED_MULTIPLES or (where == "between" and len(level) > 1):
        return usual
    return MULTIPLE_DEVIATIONS["kind" if len(level) == 1 else "cluster"]


def _key(one: Coefficient, level: Sequence[str], properties: Mapping[str, str]) -> Key:
    return Key(one.name, tuple((name, properties[name]) for name in level))


@dataclass(frozen=True, eq=False)
class EndToEnd:
    """Fitted effects, and the calibrations that they make.

    Attributes
    ----------
    effects : mapping of Key to float
    covariance : mapping of (Key, Key) to float
        Of effects; a pair that is missing is independent.
    exponents : mapping of ExponentKey to Exponent
        Those that runs tell.
    sources : tuple of str
        Of the runs of the fit.
    """

    effects: Mapping[Key, float]
    covariance: Mapping[tuple[Key, Key], float]
    exponents: Mapping[ExponentKey, Exponent]
    sources: tuple[str, ...] = ()

    def coefficients(self, properties: Mapping[str, str]) -> dict[str, float]:
        """Return all coefficients of runs with these properties; effects that no run showed are 0."""
        return {
            one.name: one.value(start_of(one, properties) + self._effect(one, properties))[0] for one in COEFFICIENTS
        }

    def _effect(self, one: Coefficient, properties: Mapping[str, str]) -> float:
        return sum(self.effects.get(key, 0.0) for key, _ in effects_of(one, properties))

    def exponent(self, properties: Mapping[str, str], name: str) -> float:
        """Return the exponent of runs with these properties on a family of networks."""
        exponent = self.exponents.get(exponent_key(properties, name))
        return exponent.value if exponent else EXPONENTS[name]

    def deviations(self, properties: Mapping[str, str]) -> dict[str, float]:
        """Return the standard errors of :meth:`coefficients`; unseen effects count with their prior deviation."""
        values, deviations = self.coefficients(properties), {}
        for one in COEFFICIENTS:
            priors_of = dict(effects_of(one, properties))
            seen = [key for key in priors_of if key in self.effects]
            variance = sum(self.covariance.get((a, b), 0.0) for a in seen for b in seen)
            variance += sum(deviation**2 for key, deviation in priors_of.items() if key not in self.effects)
            deviations[one.name] = math.sqrt(max(variance, 0.0)) * (values[one.name] if one.is_log else 1.0)
        return deviations

    def overheads(self, properties: Mapping[str, str], precision: str = "", kind: str = "") -> Entry:
        """Return the overheads entry of runs with these properties; ``kind`` stands for the framework."""
        values, errors = (
            {name: of(properties)[name] for name in OVERHEADS} for of in (self.coefficients, self.deviations)
        )
        exponents = {name: one for name in EXPONENTS if (one := self.exponents.get(exponent_key(properties, name)))}
        values |= {name: self.exponent(properties, name) for name in EXPONENTS}
        return replace(
            overheads_entry(kind or properties["program"], precision, properties["kernels"], values),
            standard_errors=errors | {name: one.error for name, one in exponents.items()},
            fixed=tuple(name for name in EXPONENTS if name not in exponents),
            source=", ".join(self.sources),
        )

    def calibrations(self, problem: Problem, precisions: Sequence[str]) -> tuple[Calibration, ...]:
        """Return the overheads of a problem in some precisions, and the collectives of its cluster."""
        if not is_fitted(problem):
            return ()
        properties = [properties_of(problem, precision) for precision in precisions]
        values = self.coefficients(properties[0])
        kind = problem.settings.framework.label
        entries = [self.overheads(one, precision, kind) for one, precision in zip(properties, precisions, strict=True)]
        return calibrations_of(problem, entries, (values["intra_node"], values["inter_node"]))


def fit_end_to_end(observed: Sequence[Observed], sources: Sequence[str] = ()) -> EndToEnd:
    """Return the effects that measured runs ask for; see the module's text.

    Parameters
    ----------
    observed : sequence of Observed
        Without any, every effect is 0.
    sources : sequence of str
        Names of the runs' sources.
    """
    compute = _fit_compute(observed)
    joint = [one for one in COEFFICIENTS if one.of_several]
    several = [(part, JointSteps(part, _compute_of(compute, part))) for one in observed if (part := one.joint)]
    effects, covariance = _fit(observed, several, joint)
    return replace(
        compute,
        effects={**compute.effects, **effects},
        covariance={**compute.covariance, **covariance},
        sources=tuple(sorted(sources)),
    )


def _fit_compute(observed: Sequence[Observed]) -> EndToEnd:
    """Return what runs tell of one GPU: exponents from those on one GPU, coefficients also within what others took."""
    alone = [one for one in COEFFICIENTS if not one.of_several]
    parts = [(part, part.alone_steps) for one in observed if (part := one.alone)]
    exponents = fit_exponents(parts, lambda some, exponent: _loss(tuple(some), exponent), MOST_SET_ROWS)
    start = EndToEnd({}, {}, exponents)
    bounds = [(part, part.alone_steps) for one in observed if (part := one.joint)]
    composed, within = (
        [(part, steps.at_exponent(_compute_of(start, part)["exponent"])) for part, steps in some]
        for some in (parts, bounds)
    )
    return EndToEnd(*_fit(observed, composed, alone, within), exponents)


def _compute_of(end_to_end: EndToEnd, part: Observed) -> dict[str, float]:
    """Return the coefficients of some rows, and the exponent of their network."""
    exponent = end_to_end.exponent(part.properties, exponent_name(part.problem.network))
    return {**end_to_end.coefficients(part.properties), "exponent": exponent}


@lru_cache(256)  # fits that leave out other rows ask again
def _loss(parts: tuple[tuple[Observed, AloneSteps], ...], exponent: float) -> float:
    """Return the least loss of rows under an exponent, where each coefficient has one effect."""
    alone = [one for one in COEFFICIENTS if not one.of_several]
    deviations = np.array([math.hypot(*(deviation for _, deviation in one.levels)) for one in alone])
    rows = [
        Residuals(sets, steps, alone, np.stack([np.eye(len(alone))] * len(sets)))
        for sets, steps in stacks([(one, steps.at_exponent(exponent)) for one, steps in parts])
    ]
    best, _ = _search(rows, np.zeros(len(alone)), deviations, *EXACT_ROUND)
    return float(sum(one.weights @ one.errors(best) ** 2 for one in rows) + np.sum((best / deviations) ** 2))


def _fit(
    observed: Sequence[Observed],
    parts: Sequence[Rows],
    coefficients: Sequence[Coefficient],
    bounds: Sequence[Rows] = (),
) -> tuple[dict[Key, float], dict[tuple[Key, Key], float]]:
    """Return the effects of some coefficients on all that was observed, fitted to parts of it, and their covariance."""
    place, deviations = priors(observed, coefficients)
    best, covariance = np.zeros(deviations.size), np.diag(deviations**2)
    rows = [
        Residuals(
            sets,
            steps,
            coefficients,
            np.stack([design_of(one, coefficients, place) for one in sets]),
            np.array([[start_of(each, one.properties) for each in coefficients] for one in sets]),
            is_bound=is_bound,
        )
        for is_bound, of in ((False, parts), (True, bounds))
        for sets, steps in stacks(of)
    ]
    rounds = ROUNDS if any(one.of_several for one in coefficients) else (EXACT_ROUND,)
    for width, tolerance in rounds if rows else ():
        best, covariance = _search(rows, best, deviations, width, tolerance)
    return dict(zip(place, best.tolist(), strict=True)), covariances(place, covariance)


def priors(observed: Iterable[Observed], coefficients: Sequence[Coefficient]) -> tuple[dict[Key, int], FloatArray]:
    """Return the place of each of p effects of coefficients on what was observed, and their prior deviations, (p,)."""
    prior = {key: sd for one in observed for each in coefficients for key, sd in effects_of(each, one.properties)}
    keys = sorted(prior)
    return {key: at for at, key in enumerate(keys)}, np.array([prior[key] for key in keys])


def covariances(place: Iterable[Key], covariance: FloatArray) -> dict[tuple[Key, Key], float]:
    """Return the covariances of effects that are not 0, given those of shape (p, p)."""
    keys, (rows, columns) = list(place), np.nonzero(covariance)
    entries = zip(rows.tolist(), columns.tolist(), covariance[rows, columns].tolist(), strict=True)
    return {(keys[i], keys[j]): entry for i, j, entry in entries}


def design_of(observed: Observed, coefficients: Sequence[Coefficient], place: Mapping[Key, int]) -> FloatArray:
    """Return which of p effects add to each of c coefficients, shape (c, p)."""
    design = np.zeros((len(coefficients), len(place)))
    for row, one in enumerate(coefficients):
        design[row, [place[key] for key, _ in effects_of(one, observed.properties)]] = 1.0
    return design


def _search(
    rows: Sequence[Residuals], start: FloatArray, deviations: FloatArray, width: float, tolerance: float
) -> tuple[FloatArray, FloatArray]:
    return robust_least_squares(
        lambda x: np.concatenate([one.errors(x) for one in rows]),
        lambda x: np.concatenate([one.slopes(x, width) for one in rows]),
        start,
        deviations,
        np.concatenate([one.weights for one in rows]),
        tolerance=tolerance,
    )
