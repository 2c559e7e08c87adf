"""Coefficients of whole steps, fitted to measured runs: what frameworks, GPUs and clusters add to kernels and links.

A coefficient θ of a set of runs (one problem in one precision) is a base value plus effects φ of the set's
properties: framework, accelerator, precision, cluster, and whether its kernels are measured or specified, singly and
together (:data:`COEFFICIENTS`). Every effect has a normal prior around 0, so that what few runs say moves little, and a
framework, GPU or cluster that no run shows takes the effects of what it shares with others. With t the predicted and v
the measured time of a step, φ minimises

    sum over rows w·huber(log(t(θ(φ)) / v) / ROW_DEVIATION)  +  sum (φ / deviation)^2,

in two parts: what a GPU computes from the runs on one GPU alone, then with that kept, what several cost from the
others. Else errors of a message model would be made up for by compute. Rows of a set count as at most SET_ROWS rows,
because errors are those of networks more than of rows. The deviations are judgements made before any score was seen:
few per cent for traffic, whose rates are measured within a few per cent, more for matrix kernels (algorithms, layouts,
clocks under sustained load), a factor of two or three for host time and links.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.costs.specified import specified_collective
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Link
from planner.domain.configuration import Configurations
from planner.domain.request import Problem
from planner.fitting.estimators import robust_least_squares
from planner.steps.overheads import ON_SPECIFIED
from planner.steps.predict import Evaluator
from planner.steps.sources import Sources

__all__ = ["COEFFICIENTS", "ESTIMATOR", "EndToEnd", "Observed", "fit_end_to_end", "without_end_to_end"]

ESTIMATOR = "end-to-end"
ROW_DEVIATION = 0.1
"""Of log(predicted / measured) of a run."""
SET_ROWS = 20.0
STEP = 0.02
"""Of a coefficient, in the differences that stand for derivatives."""


class Coefficient(NamedTuple):
    """A coefficient: value where every effect is 0, and the properties whose effects add to it, with their deviations.

    ``is_log``: θ is its logarithm. ``of_several``: only runs on several GPUs tell it.
    """

    name: str
    base: float
    levels: tuple[tuple[tuple[str, ...], float], ...]
    is_log: bool = True
    of_several: bool = False


_GPU = ("framework", "accelerator", "kernels")
_CLUSTER = ("framework", "cluster")
COEFFICIENTS = (
    Coefficient("kernel_scale", 1.0, ((("framework",), 0.05), ((*_GPU, "precision"), 0.1))),
    Coefficient(
        "matrix_scale",
        1.0,
        ((("framework",), 0.15), (("precision",), 0.2), (("kernels",), 0.3), (_GPU, 0.2), ((*_GPU, "precision"), 0.3)),
    ),
    Coefficient("host_s_per_call", 15e-6, (((), 0.5), (("framework",), 0.5), (_GPU, 0.5), ((*_GPU, "precision"), 0.3))),
    Coefficient("replica_wait", 0.02, (((), 0.03), (_CLUSTER, 0.03)), is_log=False, of_several=True),
    Coefficient("intra_node", 1.2, (((), 0.7), (_CLUSTER, 0.7)), of_several=True),
    Coefficient("inter_node", 1.3, (((), 0.7), (_CLUSTER, 0.7)), of_several=True),
)
"""The last two multiply the time of a byte over the links of the cluster."""
OVERHEADS = tuple(one.name for one in COEFFICIENTS[:4])
HALF = frozenset({"fp16", "bf16"})
"""Precisions that share their effects."""
Key = tuple[str, ...]
"""A coefficient, then the names and values of properties."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Measured steps of one problem in one precision, n of them.

    Attributes
    ----------
    problem : Problem
        Without calibrations of overheads that were fitted to runs.
    configurations : Configurations
        Synchronous, of one precision.
    measured_s : ndarray of float, shape (n,)
        One update each.
    """

    problem: Problem
    configurations: Configurations
    measured_s: FloatArray

    @cached_property
    def evaluator(self) -> Evaluator:
        """Prices the problem as it stands; its kernel times are used again under every coefficient."""
        found = Evaluator(self.problem)
        found.evaluate(self.configurations)
        return found

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Property -> value, of those that effects belong to."""
        (precision,) = self.configurations.precisions
        return properties_of(self.problem, precision)

    def part(self, *, several: bool) -> Observed | None:
        """Return the rows on several GPUs, or on one; None where there are none."""
        chosen = (self.configurations.gpus > 1) == several
        if chosen.all():
            return self
        rows = np.flatnonzero(chosen)
        return Observed(self.problem, self.configurations.take(rows), self.measured_s[rows]) if rows.size else None


def properties_of(problem: Problem, precision: str) -> dict[str, str]:
    """Return the properties of runs of a problem in a precision that effects belong to."""
    return {
        "framework": problem.settings.framework.partition("@")[0],
        "accelerator": problem.cluster.node.accelerator.name,
        "cluster": problem.cluster.name,
        "precision": "half" if precision in HALF else precision,
        "kernels": ON_SPECIFIED if Sources(problem).is_specified(precision) else "measured",
    }


def without_end_to_end(calibrations: Sequence[Calibration]) -> tuple[Calibration, ...]:
    """Return calibrations without the entries that were fitted to runs; those that held nothing else are left out."""
    found = []
    for one in calibrations:
        kept = tuple(entry for entry in one.entries if entry.estimator != ESTIMATOR)
        if kept:
            found.append(one if len(kept) == len(one.entries) else replace(one, entries=kept))
    return tuple(found)


def _keys(one: Coefficient, properties: Mapping[str, str]) -> list[tuple[Key, float]]:
    """Return the effects of a coefficient on runs with these properties, and their prior deviations."""
    return [
        ((one.name, *(f"{name}={properties[name]}" for name in level)), deviation)
        for level, deviation in one.levels
        if all(name in properties for name in level)
    ]


class EndToEnd:
    """Fitted effects, and the calibrations that they make.

    Attributes
    ----------
    effects : mapping of Key to float
    covariance : mapping of (Key, Key) to float
        Of effects; a pair that is missing is independent.
    sources : tuple of str
        Of the runs of the fit.
    """

    def __init__(
        self, effects: Mapping[Key, float], covariance: Mapping[tuple[Key, Key], float], sources: tuple[str, ...] = ()
    ) -> None:
        self.effects = effects
        self.covariance = covariance
        self.sources = sources

    def coefficients(self, properties: Mapping[str, str]) -> dict[str, float]:
        """Return all coefficients of runs with these properties; effects that no run showed are 0."""
        return _values(theta_of(self.effects, properties))

    def deviations(self, properties: Mapping[str, str]) -> dict[str, float]:
        """Return the standard errors of :meth:`coefficients`; unseen effects count with their prior deviation."""
        values, found = self.coefficients(properties), {}
        for one in COEFFICIENTS:
            keys = _keys(one, properties)
            seen = [key for key, _ in keys if key in self.effects]
            variance = sum(self.covariance.get((a, b), 0.0) for a in seen for b in seen)
            variance += sum(deviation**2 for key, deviation in keys if key not in self.effects)
            found[one.name] = math.sqrt(max(variance, 0.0)) * (values[one.name] if one.is_log else 1.0)
        return found

    def overheads(self, properties: Mapping[str, str], precision: str = "", kind: str = "") -> Entry:
        """Return the overheads entry of runs with these properties; ``kind`` stands for the framework."""
        values, errors = self.coefficients(properties), self.deviations(properties)
        return Entry(
            "overheads",
            kind or properties["framework"],
            "",
            precision,
            ON_SPECIFIED if properties["kernels"] == ON_SPECIFIED else "",
            "overheads",
            {},
            {name: values[name] for name in OVERHEADS},
            {name: errors[name] for name in OVERHEADS},
            estimator=ESTIMATOR,
            origin="published",
            source=", ".join(self.sources),
        )

    def calibrations(self, problem: Problem, precisions: Sequence[str]) -> tuple[Calibration, ...]:
        """Return the overheads of a problem in some precisions, and the collectives of its cluster."""
        found = [properties_of(problem, precision) for precision in precisions]
        values = self.coefficients(found[0])
        entries = [self.overheads(one, precision) for one, precision in zip(found, precisions, strict=True)]
        return _calibrations(problem, entries, (values["intra_node"], values["inter_node"]))


def theta_of(effects: Mapping[Key, float], properties: Mapping[str, str]) -> FloatArray:
    """Return θ of runs with these properties, shape (c,)."""
    return np.array(
        [
            (math.log(one.base) if one.is_log else one.base)
            + sum(effects.get(key, 0.0) for key, _ in _keys(one, properties))
            for one in COEFFICIENTS
        ]
    )


def _values(theta: FloatArray) -> dict[str, float]:
    return {
        one.name: math.exp(x) if one.is_log else max(x, 0.0)
        for one, x in zip(COEFFICIENTS, theta.tolist(), strict=True)
    }


def _calibrations(
    problem: Problem, overheads: Sequence[Entry], link_scales: tuple[float, float]
) -> tuple[Calibration, ...]:
    cluster = problem.cluster
    found = [Calibration(ESTIMATOR, cluster.node.accelerator.name, tuple(overheads), origin="published")]
    sources = Sources(problem)
    is_linked = cluster.intra_node is not None or cluster.inter_node is not None
    if is_linked and sources.device_all_reduce.origin == "specified":
        inside, between = (
            _slower(link, scale)
            for link, scale in zip((cluster.intra_node, cluster.inter_node), link_scales, strict=True)
        )
        entry = specified_collective(replace(cluster, intra_node=inside, inter_node=between))
        fitted = replace(entry, origin="published", estimator=ESTIMATOR, source=f"runs on {cluster.name}", notes="")
        found.append(Calibration(f"{ESTIMATOR} links", "", (fitted,), cluster=cluster.name, origin="published"))
    return tuple(found)


def _slower(link: Link | None, scale: float) -> Link | None:
    return None if link is None else replace(link, bytes_per_s=link.bytes_per_s / scale)


class _Set:
    """Observed rows with the effects that their coefficients depend on."""

    def __init__(self, observed: Observed, evaluator: Evaluator, place: Mapping[Key, int]) -> None:
        self.observed, self.evaluator = observed, evaluator
        self.design = np.zeros((len(COEFFICIENTS), len(place)))
        for row, one in enumerate(COEFFICIENTS):
            for key, _ in _keys(one, observed.properties):
                self.design[row, place[key]] = 1.0
        self.base = theta_of({}, observed.properties)
        gpus, nodes = observed.configurations.gpus, observed.configurations.nodes
        several = bool(np.any(gpus > 1))
        self.live = dict.fromkeys(("replica_wait", "intra_node"), several) | {"inter_node": bool(np.any(nodes > 1))}
        self.weights = np.full(gpus.size, min(1.0, SET_ROWS / gpus.size))

    def errors(self, theta: FloatArray) -> FloatArray:
        """Return log(predicted / measured) in row deviations, shape (n,)."""
        problem, values = self.observed.problem, _values(theta)
        (precision,) = self.observed.configurations.precisions
        coefficients = {name: values[name] for name in OVERHEADS}
        kind = problem.settings.framework
        entry = Entry("overheads", kind, "", precision, "", "overheads", {}, coefficients)
        fitted = _calibrations(problem, [entry], (values["intra_node"], values["inter_node"]))
        changed = replace(problem, calibrations=(*fitted, *problem.calibrations))
        found = Evaluator(changed, like=self.evaluator).evaluate(self.observed.configurations)
        errors: FloatArray = np.log(found.iteration_s / self.observed.measured_s) / ROW_DEVIATION
        return errors

    def slopes(self, theta: FloatArray) -> FloatArray:
        """Return the derivatives of the errors by all effects, shape (n, p)."""
        before = self.errors(theta)
        by_theta = np.zeros((before.size, theta.size))
        for at, one in enumerate(COEFFICIENTS):
            if self.live.get(one.name, True):
                moved = theta.copy()
                moved[at] += STEP
                by_theta[:, at] = (self.errors(moved) - before) / STEP
        return by_theta @ self.design


def fit_end_to_end(
    observed: Sequence[Observed], sources: Sequence[str] = (), start: EndToEnd | None = None
) -> EndToEnd:
    """Return the effects that measured runs ask for; see the module's text.

    Parameters
    ----------
    observed : sequence of Observed
        Without any, every effect is 0.
    sources : sequence of str
        Names of the runs' sources.
    start : EndToEnd, optional
        Where the search begins; of a fit to nearly the same runs it saves time. What it finds does not depend on it
        where the minimum is the only one.
    """
    prior = {key: deviation for one in observed for c in COEFFICIENTS for key, deviation in _keys(c, one.properties)}
    keys = sorted(prior)
    place = {key: at for at, key in enumerate(keys)}
    deviations = np.array([prior[key] for key in keys])
    x = np.array([start.effects.get(key, 0.0) if start else 0.0 for key in keys])
    of_several = {one.name for one in COEFFICIENTS if one.of_several}
    is_several = np.array([key[0] in of_several for key in keys], dtype=np.bool_)
    covariance: dict[tuple[Key, Key], float] = {}
    for several in (False, True):
        parts = [(one, part) for one in observed if (part := one.part(several=several)) is not None]
        free = np.flatnonzero(is_several == several)
        if not free.size:
            continue
        found = _fitted([_Set(part, one.evaluator, place) for one, part in parts], x, free, deviations[free])
        x, variances = found
        names = [keys[at] for at in free]
        covariance |= {
            (a, b): float(variances[i, j]) for i, a in enumerate(names) for j, b in enumerate(names) if variances[i, j]
        }
    return EndToEnd(dict(zip(keys, x.tolist(), strict=True)), covariance, tuple(sorted(sources)))


def _fitted(
    sets: Sequence[_Set], x: FloatArray, free: np.ndarray, deviations: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return all effects with those that are free fitted, and the covariance of these."""
    if not sets:
        x = x.copy()
        x[free] = 0.0
        return x, np.diag(deviations**2)

    def whole(part: FloatArray) -> FloatArray:
        every = x.copy()
        every[free] = part
        return every

    def errors(part: FloatArray) -> FloatArray:
        return np.concatenate([one.errors(one.base + one.design @ whole(part)) for one in sets])

    def slopes(part: FloatArray) -> FloatArray:
        return np.concatenate([one.slopes(one.base + one.design @ whole(part)) for one in sets])[:, free]

    weights = np.concatenate([one.weights for one in sets])
    best, covariance = robust_least_squares(errors, slopes, x[free], deviations, weights)
    return whole(best), covariance
