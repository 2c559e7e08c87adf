"""Coefficients of whole steps, fitted to measured runs: what programs, GPUs and clusters add to kernels and links.

Measured steps of a calibration (used in :mod:`planner.sources.overheads`): plans that were timed, over what is
predicted of them without.

The step of a plan is a long composition of few coefficients, each of which it changes smoothly: log t is taken as a
quadratic of θ around a centre near it, exact there to the third order. So plans are priced a few times, however often a
fit asks, and what is predicted is priced in full.

A coefficient θ of a set of runs (one problem in one precision) is a base value plus effects φ of what the set's record
states: the class of its precision, whether kernels are measured or specified, kinds of links
(:data:`COEFFICIENTS`). No effect belongs to a program, GPU, cluster or network: what tells
these apart is counted, or a term is missing. With t the predicted and v the measured time of a step, φ minimises

    sum over rows w·huber(log(t(θ(φ)) / v) / ROW_DEVIATION)  +  sum (φ / deviation)^2.

Rows of a set count as at most MOST_SET_ROWS rows, because errors are those of networks more than of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple, Self

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.calibration import ANY_ACCELERATOR, END_TO_END, OF_PASSES, OF_STEP, Calibration, Entry, MeasuredStep
from planner.domain.configuration import Configuration, Configurations
from planner.domain.framework import GENERIC
from planner.domain.request import Problem
from planner.fitting.estimators import robust_least_squares
from planner.numbers import constant, constants
from planner.sources.links import (
    BETWEEN,
    INSIDE,
    SOCKET,
    SOCKETS,
    WAIT,
    measured_inside,
    multiples_of_kind,
    without_generation,
)
from planner.sources.overheads import DATASHEET_LIBRARY
from planner.sources.sources import Sources
from planner.steps.compute import KERNEL_S
from planner.steps.predict import Evaluator


def without_measured_plans(calibration: Calibration) -> Calibration:
    """Return a calibration without anything that runs of plans say: neither whole steps nor passes."""
    return replace(calibration, measured_steps=()) if calibration.measured_steps else calibration


def measured_steps(
    problem: Problem, times_s: Mapping[Configuration, Sequence[float]], of: str = OF_STEP
) -> tuple[MeasuredStep, ...]:
    """Return what timed plans take over their predictions.

    ``times_s``: measured times of each plan, which can be priced [s]; ``of``: OF_STEP or OF_PASSES, what was timed
    (passes: of plans of one micro-batch on one device).

    CoverageError: nothing prices a plan.
    """
    bare = replace(problem, calibrations=tuple(map(without_measured_plans, problem.calibrations)))
    evaluator, plans = Evaluator(bare), Configurations.of(list(times_s))
    if of == OF_PASSES:
        terms = [one.terms for one in evaluator.describe(plans)]
        predicted_s = [sum(term.seconds for term in some if term.name in ("forward", "backward")) for some in terms]
    else:
        predicted_s = evaluator.evaluate(plans).iteration_s.tolist()
    cluster, framework = "" if of == OF_PASSES else problem.cluster.name, problem.settings.framework.label
    return tuple(
        MeasuredStep(
            problem.network.name, cluster, framework, plan, math.exp(float(np.mean(np.log(times)))) / seconds,
            len(times), of,
        )
        for (plan, times), seconds in zip(times_s.items(), predicted_s, strict=True)
    )  # fmt: skip


def with_measured_steps(base: Calibration, steps: Iterable[MeasuredStep]) -> Calibration:
    """Return a calibration with measured steps, new ones in place of old ones of the same plan; it has seen them."""
    new = tuple(steps)
    by_key = {one.key: one for one in (*base.measured_steps, *new)}
    seen = tuple(dict.fromkeys((*base.seen, *(one.network for one in new))))
    return replace(base, measured_steps=tuple(by_key.values()), seen=seen)


ESTIMATOR = END_TO_END
HALF_PRECISIONS = frozenset({"fp16", "bf16", "fp8", "int8"})
"""Precisions that share their effects."""
NEAR = 0.5
"""Of θ, between the centres of quadratics."""
STEP = 0.15
"""Of θ, between the prices that a quadratic goes through."""
WAIT_STEP = 0.1
"""Of a wait, what 1 is of a logarithm."""
MEASURED_MULTIPLES = constants("links.multiples")
"""Kind of link -> time of a byte over that at its stated rate, as nccl-tests tell it (docs/numbers.md)."""


class Coefficient(NamedTuple):
    """A coefficient: its value where its effect is 0, and the properties by which runs share an effect on θ.

    ``deviation``: of the prior of each effect; properties: see :func:`properties_of`. θ is the logarithm of the value,
    or where it is not ``is_log`` the value itself, so far as that is above ``base``: below, the value bends away from θ
    and reaches 0 at -``base``, smoothly, as a search that meets an edge stops there.
    """

    name: str
    base: float
    by: tuple[str, ...]
    deviation: float
    is_log: bool = True

    @property
    def start(self) -> float:
        """θ where its effect is 0."""
        return math.log(self.base) if self.is_log else self.base

    def value(self, theta: float) -> float:
        """Return the value at θ."""
        if self.is_log:
            return math.exp(theta)
        return theta if theta >= self.base else max(theta + self.base, 0.0) ** 2 / (4 * self.base)


COEFFICIENTS = (
    Coefficient("kernel_scale", 1.0, ("kernels",), 0.1),
    Coefficient("convolution_scale", 1.0, ("precision", "kernels"), 0.3),
    Coefficient("product_scale", 1.0, ("precision", "kernels"), 0.3),
    Coefficient("host_s_per_call", 20e-6, (), 0.5),
    Coefficient("wait_inside", 0.02, (INSIDE,), 0.03, is_log=False),
    Coefficient("wait_between", 0.02, (BETWEEN,), 0.03, is_log=False),
    Coefficient("intra_node", 1.1, (INSIDE,), 0.1),
    Coefficient("inter_node", 1.1, (BETWEEN,), 0.1),
    Coefficient("socket_s_per_byte", 4e-10, (), 1.0),
)
"""Of whole steps. ``intra_node`` and ``inter_node`` multiply the time of a byte over links as specified: what is stated
holds but for protocol, or as measured (links.multiples); sockets of the host take time of their own besides. How the
deviations were chosen: docs/numbers.md (end_to_end.row_deviation).
"""
OVERHEADS = tuple(one.name for one in COEFFICIENTS[:4])


def start_of(one: Coefficient, properties: Mapping[str, str]) -> float:
    """Return θ of a coefficient on runs with these properties where every effect is 0."""
    where = {"intra_node": INSIDE, "inter_node": BETWEEN}.get(one.name, "")
    measured = MEASURED_MULTIPLES.get(properties.get(where, ""))
    return one.start if measured is None else math.log(measured)


def is_fitted(problem: Problem) -> bool:
    """Tell whether end-to-end coefficients are of use to a problem.

    Not on CPUs, of which GPUs say nothing, nor where kernels were reconstructed from whole steps: these hold what a
    framework adds.
    """
    has_reconstruction = any(one.origin == "reconstructed" for one in Sources(problem).for_accelerator)
    return problem.cluster.node.accelerator.kind == "gpu" and not has_reconstruction


def properties_of(problem: Problem, precision: str) -> dict[str, str]:
    """Return the properties of runs of a problem in a precision that effects belong to.

    ``inside``, ``between``: kinds of links; the half class are 8 bits too, whose other kernels run in 16.
    """
    cluster, sources = problem.cluster, Sources(problem)
    links = {INSIDE: cluster.intra_node, BETWEEN: cluster.inter_node}
    return {name: without_generation(link.kind) for name, link in links.items() if link is not None} | {
        "precision": "half" if precision in HALF_PRECISIONS else precision,
        "kernels": DATASHEET_LIBRARY if sources.is_specified(precision) else "measured",
    }


def without_end_to_end(calibrations: Sequence[Calibration]) -> tuple[Calibration, ...]:
    """Return calibrations without the entries that were fitted to runs; those that held nothing else are left out."""
    rest = []
    for one in calibrations:
        entries = tuple(entry for entry in one.entries if entry.estimator != ESTIMATOR)
        if len(entries) == len(one.entries):
            rest.append(one)
        elif entries:
            rest.append(replace(one, entries=entries))
    return tuple(rest)


def overheads_entry(properties: Mapping[str, str], precision: str, values: Mapping[str, float]) -> Entry:
    """Return the overheads of synchronous runs with these properties."""
    return Entry(
        "overheads", GENERIC.name, "", precision,
        DATASHEET_LIBRARY if properties["kernels"] == DATASHEET_LIBRARY else "",
        "overheads", {},
        {name: values[name] for name in OVERHEADS},
        estimator=ESTIMATOR, origin="published", mode="sync",
    )  # fmt: skip


def links_entry(where: str, kind: str, values: Mapping[str, float]) -> Entry:
    """Return what runs over links of a kind, INSIDE or BETWEEN nodes, say of these and of replicas that wait."""
    multiple = values["intra_node" if where == INSIDE else "inter_node"]
    socket = {SOCKET: values["socket_s_per_byte"]} if where == BETWEEN and kind in SOCKETS else {}
    inside, between = (multiple, 1.0) if where == INSIDE else (1.0, multiple)
    return Entry(
        "collectives", "all_reduce", "", "", multiples_of_kind(where, kind), "collective.alpha_beta",
        {WAIT: values[f"wait_{where}"], **socket},
        {"messages_inside": 1.0, "messages_between": 1.0, "bytes_inside": inside, "bytes_between": between},
        fixed=("messages_inside", "messages_between"),
        estimator=ESTIMATOR, origin="published",
        notes="not times: multiples of the latency and of the time a byte that links are specified with",
    )  # fmt: skip


def values_of(theta: FloatArray) -> dict[str, float]:
    """Return the coefficients by name of θ, shape (c,)."""
    return {one.name: one.value(each) for one, each in zip(COEFFICIENTS, theta.tolist(), strict=True)}


@dataclass(frozen=True, eq=False)
class Observed:
    """Measured steps of one problem in one precision, n of them.

    Attributes
    ----------
    problem : without calibrations of overheads that were fitted to runs
    configurations : synchronous, of one precision
    measured_s : ndarray of float, shape (n,); one update each
    evaluator : prices the problem as it stands; its kernel times are used again under every coefficient
    """

    problem: Problem
    configurations: Configurations
    measured_s: FloatArray
    evaluator: Evaluator
    _by_centre: dict[tuple[float, ...], Steps] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, configurations: Configurations, measured_s: FloatArray) -> Self:
        """Return the rows whose predicted and measured times have logarithms."""
        evaluator = Evaluator(problem)
        predicted_s = evaluator.evaluate(configurations).iteration_s
        rows = np.flatnonzero(np.isfinite(predicted_s) & (predicted_s > 0) & np.isfinite(measured_s) & (measured_s > 0))
        return cls(problem, configurations.take(rows), measured_s[rows], evaluator)

    @cached_property
    def precision(self) -> str:
        """The precision of all rows."""
        (name,) = self.configurations.precisions
        return name

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Property -> value, of those that effects belong to."""
        return properties_of(self.problem, self.precision)

    @cached_property
    def start(self) -> FloatArray:
        """θ where its effect is 0, shape (c,)."""
        return np.array([start_of(one, self.properties) for one in COEFFICIENTS])

    @cached_property
    def live(self) -> tuple[int, ...]:
        """Which of COEFFICIENTS change some row."""
        problem, plans = self.problem, self.configurations
        kinds = {layer.kind for layer in problem.network.layers}
        is_inside_measured = measured_inside(problem.cluster, Sources(problem).pooled) is not None
        inside, between = bool(np.any(plans.gpus_per_node > 1)), bool(np.any(plans.nodes > 1))
        is_linked = Sources(problem).is_all_reduce_unfitted
        dead = {
            "convolution_scale": "convolution" not in kinds,
            "host_s_per_call": problem.settings.framework.launch in KERNEL_S,
            "wait_inside": not inside,
            "wait_between": not between,
            "intra_node": not (inside and is_linked) or is_inside_measured,
            "inter_node": not (between and is_linked),
            "socket_s_per_byte": not (between and is_linked and self.properties.get(BETWEEN) in SOCKETS),
        }
        return tuple(at for at, one in enumerate(COEFFICIENTS) if not dead.get(one.name, False))

    def times_s(self, theta: FloatArray) -> FloatArray:
        """Return the steps that coefficients give [s], shape (n,)."""
        values, properties = values_of(theta), self.properties
        entries = (
            overheads_entry(properties, self.precision, values),
            *(links_entry(where, properties[where], values) for where in (INSIDE, BETWEEN) if where in properties),
        )
        own = Calibration(ESTIMATOR, ANY_ACCELERATOR, entries, origin="published")
        problem = replace(self.problem, calibrations=(own, *self.problem.calibrations))
        return Evaluator(problem, like=self.evaluator).evaluate(self.configurations).iteration_s

    def near(self, theta: FloatArray) -> Steps:
        """Return the rows as functions of coefficients around θ, or around what is within NEAR / 2 of it."""
        nearest = np.zeros(len(COEFFICIENTS))
        live = list(self.live)
        widths = np.array([NEAR if one.is_log else NEAR * WAIT_STEP for one in COEFFICIENTS])
        nearest[live] = np.rint((theta - self.start) / widths)[live]
        key = tuple(nearest.tolist())
        if key not in self._by_centre:
            self._by_centre[key] = Steps(self, self.start + widths * nearest)
        return self._by_centre[key]


class Steps:
    """log t of n steps by θ, shape (c,): a quadratic through prices around a centre.

    Attributes
    ----------
    centre : ndarray of float, shape (c,)
    at_centre : ndarray of float, shape (n,); log t there
    slopes, bends : ndarray of float, shape (c, n), (c, c, n); its first and second derivatives by θ there
    """

    def __init__(self, observed: Observed, centre: FloatArray) -> None:
        def log_s(*moves: int) -> FloatArray:
            theta = centre.copy()
            for move in moves:
                theta[abs(move) - 1] += math.copysign(steps[abs(move) - 1], move)
            return np.log(observed.times_s(theta))

        self.centre, number = centre, len(COEFFICIENTS)
        steps = [STEP if one.is_log else STEP * WAIT_STEP for one in COEFFICIENTS]
        self.at_centre = log_s()
        rows = self.at_centre.size
        self.slopes, self.bends = np.zeros((number, rows)), np.zeros((number, number, rows))
        ahead = {}
        for at in observed.live:
            ahead[at], less = log_s(at + 1), log_s(-at - 1)
            self.slopes[at] = (ahead[at] - less) / (2 * steps[at])
            self.bends[at, at] = (ahead[at] - 2 * self.at_centre + less) / steps[at] ** 2
        # Compute, waits and messages nearly add up: only what makes compute has mixed derivatives that tell.
        for one, other in combinations([at for at in observed.live if at < len(OVERHEADS)], 2):
            # f(x+a+b) - f(x+a) - f(x+b) + f(x) = a·b·f_ab
            mixed = log_s(one + 1, other + 1) - ahead[one] - ahead[other] + self.at_centre
            self.bends[one, other] = self.bends[other, one] = mixed / (steps[one] * steps[other])


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

    ``effects``, ``errors``: of θ, and their standard errors; ``sources``: of the runs of the fit.
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

    ``sources``: names of the runs' sources.
    """
    if not observed:
        return StepFit()
    prior = {key: each.deviation for one in observed for each in COEFFICIENTS if (key := key_of(each, one.properties))}
    place = {key: at for at, key in enumerate(sorted(prior))}
    deviations = np.array([prior[key] for key in place])
    best, every = np.zeros(deviations.size), _Rows(observed, place)
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
    """Errors of the rows of S sets, n in all, by effects φ, shape (p,), with each set's quadratic."""

    def __init__(self, observed: Sequence[Observed], place: Mapping[Key, int]) -> None:
        sizes = np.array([one.measured_s.size for one in observed])
        self._set = np.repeat(np.arange(len(observed)), sizes)
        self._designs = np.zeros((len(observed), len(COEFFICIENTS), len(place)))  # which φ add to θ of a set
        for design, one in zip(self._designs, observed, strict=True):
            for row in one.live:  # none add to coefficients that change no row
                if key := key_of(COEFFICIENTS[row], one.properties):
                    design[row, place[key]] = 1.0
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
