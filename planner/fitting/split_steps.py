"""Coefficients of steps of plans that split a transformer, fitted to measured runs of them.

The same effects of properties, priors and loss as in :mod:`planner.fitting.end_to_end`, with three differences. Few
such runs are on one GPU, so that what a GPU computes and what links take are told together. Runs of these frameworks
share nothing with those of others: their kernels are fused, and old clusters say nothing of NVSwitch. Links inside
nodes are multiples of what was measured on such nodes, where that is known, else of the specification.

The step of a plan is a long composition of few coefficients, each of which it changes smoothly: log t is taken as a
quadratic of θ around a centre near it, exact there to the third order. What is predicted is priced in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import combinations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.request import Problem
from planner.fitting.end_to_end import Key, covariances, design_of, effects_of, priors
from planner.fitting.estimators import robust_least_squares
from planner.fitting.observed import Observed, calibrations_of, is_fitted, overheads_entry, properties_of
from planner.fitting.residuals import MOST_SET_ROWS, ROW_DEVIATION, Coefficient
from planner.sources.overheads import DATASHEET_LIBRARY, SPLIT_DATASHEET_LIBRARY, SPLIT_LIBRARY
from planner.steps.predict import Evaluator

__all__ = ["SPLIT_COEFFICIENTS", "SplitFit", "SplitObserved", "SplitSteps", "fit_split_steps"]

HUBER = 1.0
"""Of row deviations: published tables hold steps that nothing explains, twice as long as their neighbours."""
NEAR = 0.5
ROUNDS = 4
"""Of θ, between the centres of quadratics; fits until none is nearer to another, at most."""
STEP = 0.15
"""Of θ, between the prices that a quadratic goes through."""
SPLIT_COEFFICIENTS = (
    Coefficient("kernel_scale", 1.0, (((), 0.1),)),
    Coefficient("matrix_scale", 1.05, (((), 0.1), (("framework",), 0.15), (("chip", "precision", "kernels"), 0.2))),
    Coefficient("host_s_per_call", 10e-6, (((), 0.3), (("framework",), 0.3))),
    Coefficient("replica_wait", 0.02, (((), 0.02),), is_log=False, of_several=True),
    Coefficient("intra_node", 1.1, (((), 0.2), (("cluster",), 0.3)), of_several=True),
    Coefficient("inter_node", 1.2, (((), 0.3), (("cluster",), 0.4)), of_several=True),
)
"""As :data:`planner.fitting.end_to_end.COEFFICIENTS`; how the deviations were chosen: docs/numbers.md."""
OVERHEADS = tuple(one.name for one in SPLIT_COEFFICIENTS[:4])
_START = np.array([one.start for one in SPLIT_COEFFICIENTS])


class SplitObserved(Observed):
    """Measured steps of split plans of one problem in one precision."""

    @cached_property
    def steps(self) -> SplitSteps:
        """The rows as functions of coefficients around the priors' θ."""
        return self.steps_near(_START)

    def steps_near(self, theta: FloatArray) -> SplitSteps:
        """Return the rows as functions of coefficients around θ, or around what is within NEAR / 2 of it."""
        nearest = np.rint((theta - _START) / NEAR)
        key = tuple(nearest.tolist())
        if key not in self._by_centre:
            self._by_centre[key] = SplitSteps(self, _START + NEAR * nearest)
        return self._by_centre[key]

    @cached_property
    def _by_centre(self) -> dict[tuple[float, ...], SplitSteps]:
        return {}


class SplitSteps:
    """log t of n steps by θ, shape (6,): a quadratic through prices around a centre."""

    def __init__(self, observed: Observed, centre: FloatArray) -> None:
        self.observed, self.centre = observed, centre
        number = _START.size
        steps = np.array([STEP if one.is_log else one.base / 2 for one in SPLIT_COEFFICIENTS])
        at_start = self._log_s(centre)
        slopes, bends = np.zeros((number, at_start.size)), np.zeros((number, number, at_start.size))
        ahead = []
        for at in range(number):
            move = np.zeros(number)
            move[at] = steps[at]
            more, less = self._log_s(centre + move), self._log_s(centre - move)
            ahead.append(more)
            slopes[at] = (more - less) / (2 * steps[at])
            bends[at, at] = (more - 2 * at_start + less) / steps[at] ** 2
        for first, second in combinations(range(number), 2):
            both = np.zeros(number)
            both[[first, second]] = steps[[first, second]]
            # f(x+a+b) - f(x+a) - f(x+b) + f(x) = a·b·f_ab
            mixed = self._log_s(centre + both) - ahead[first] - ahead[second] + at_start
            bends[first, second] = bends[second, first] = mixed / (steps[first] * steps[second])
        self._at_start, self._slopes, self._bends = at_start, slopes, bends

    def take(self, rows: IntArray) -> SplitSteps:
        """Return some of the rows."""
        some = copy(self)
        some._at_start, some._slopes, some._bends = (  # noqa: SLF001 - of its own kind
            each[..., rows] for each in (self._at_start, self._slopes, self._bends)
        )
        return some

    def log_s(self, theta: FloatArray) -> FloatArray:
        """Return log t, shape (n,)."""
        move = theta - self.centre
        logs: FloatArray = self._at_start + move @ self._slopes + np.einsum("i,ijn,j->n", move, self._bends, move) / 2
        return logs

    def slopes(self, theta: FloatArray) -> FloatArray:
        """Return the derivatives of log t by θ, shape (n, 6)."""
        result: FloatArray = (self._slopes + np.einsum("ijn,j->in", self._bends, theta - self.centre)).T
        return result

    def _log_s(self, theta: FloatArray) -> FloatArray:
        pairs = zip(SPLIT_COEFFICIENTS, theta.tolist(), strict=True)
        values = {one.name: one.value(each)[0] for one, each in pairs}
        observed = self.observed
        problem = observed.problem
        entry = split_entry(
            problem.settings.framework.label, observed.precision, observed.properties["kernels"], _overheads(values)
        )
        ours = calibrations_of(problem, [entry], (values["intra_node"], values["inter_node"]))
        problem = replace(problem, calibrations=(*ours, *problem.calibrations))
        times = Evaluator(problem, like=observed.evaluator).evaluate(observed.configurations).iteration_s
        return np.asarray(np.log(times))


def _overheads(values: Mapping[str, float]) -> dict[str, float]:
    return {name: values[name] for name in OVERHEADS}


def split_entry(framework: str, precision: str, kernels: str, coefficients: Mapping[str, float]) -> Entry:
    """Return the overheads of a framework on transformers, from runs that split them."""
    library = SPLIT_DATASHEET_LIBRARY if kernels == DATASHEET_LIBRARY else SPLIT_LIBRARY
    return replace(overheads_entry(framework, precision, kernels, coefficients), library=library)


class SplitFit:
    """Fitted effects, and the calibrations that they make.

    Attributes
    ----------
    effects : mapping of Key to float
    covariance : mapping of (Key, Key) to float
    frameworks, clusters : frozenset of str
        That runs of the fit show.
    sources : tuple of str
    """

    def __init__(
        self,
        effects: Mapping[Key, float],
        covariance: Mapping[tuple[Key, Key], float],
        observed: Sequence[Observed] = (),
        sources: tuple[str, ...] = (),
    ) -> None:
        self.effects, self.covariance, self.sources = effects, covariance, sources
        self.frameworks = frozenset(one.properties["framework"] for one in observed)
        self.clusters = frozenset(one.properties["cluster"] for one in observed)

    def coefficients(self, properties: Mapping[str, str]) -> dict[str, float]:
        """Return all coefficients of runs with these properties; effects that no run showed are 0."""
        return {
            one.name: one.value(one.start + sum(self.effects.get(key, 0.0) for key, _ in effects_of(one, properties)))[
                0
            ]
            for one in SPLIT_COEFFICIENTS
        }

    def deviations(self, properties: Mapping[str, str]) -> dict[str, float]:
        """Return the standard errors of :meth:`coefficients`; unseen effects count with their prior deviation."""
        values, result = self.coefficients(properties), {}
        for one in SPLIT_COEFFICIENTS:
            keys = [key for key, _ in effects_of(one, properties) if key in self.effects]
            variance = sum(self.covariance.get((a, b), 0.0) for a in keys for b in keys)
            unseen = dict(one.levels)
            for key in keys:
                unseen.pop(tuple(name for name, _ in key.level), None)
            variance += sum(deviation**2 for deviation in unseen.values())
            result[one.name] = float(np.sqrt(max(variance, 0.0))) * (values[one.name] if one.is_log else 1.0)
        return result

    def overheads(self, properties: Mapping[str, str], precision: str, kind: str) -> Entry:
        """Return the overheads of runs with these properties; ``kind`` stands for the framework."""
        entry = split_entry(kind, precision, properties["kernels"], _overheads(self.coefficients(properties)))
        errors = _overheads(self.deviations(properties))
        return replace(entry, standard_errors=errors, source=", ".join(self.sources))

    def calibrations(self, problem: Problem, precisions: Sequence[str]) -> tuple[Calibration, ...]:
        """Return the overheads of a problem in some precisions, and the collectives of its cluster."""
        if not self.effects or not is_fitted(problem):
            return ()
        properties = [properties_of(problem, precision) for precision in precisions]
        values = self.coefficients(properties[0])
        # A framework that no run shows takes what all have in common.
        kind = problem.settings.framework.label if properties[0]["framework"] in self.frameworks else "generic"
        entries = [self.overheads(one, precision, kind) for one, precision in zip(properties, precisions, strict=True)]
        return calibrations_of(problem, entries, (values["intra_node"], values["inter_node"]))


def fit_split_steps(observed: Sequence[SplitObserved], sources: Sequence[str] = ()) -> SplitFit:
    """Return the effects that measured runs of split plans ask for; without any, every effect is 0.

    Parameters
    ----------
    observed : sequence of SplitObserved
    sources : sequence of str
        Names of the runs' sources.
    """
    if not observed:
        return SplitFit({}, {})
    place, deviations = priors(observed, SPLIT_COEFFICIENTS)
    designs = [design_of(one, SPLIT_COEFFICIENTS, place) for one in observed]
    logs = [np.log(one.measured_s) for one in observed]
    weights = np.concatenate([np.full(each.size, min(1.0, MOST_SET_ROWS / each.size)) for each in logs])

    steps = [one.steps for one in observed]

    def errors(effects: FloatArray) -> FloatArray:
        parts = zip(steps, designs, logs, strict=True)
        return np.concatenate(
            [(one.log_s(_START + design @ effects) - log) / ROW_DEVIATION for one, design, log in parts]
        )

    def slopes(effects: FloatArray) -> FloatArray:
        parts = zip(steps, designs, strict=True)
        return np.concatenate([one.slopes(_START + design @ effects) @ design / ROW_DEVIATION for one, design in parts])

    best = np.zeros(deviations.size)
    for _ in range(ROUNDS):
        best, covariance = robust_least_squares(errors, slopes, best, deviations, weights, huber=HUBER)
        near = [one.steps_near(_START + design @ best) for one, design in zip(observed, designs, strict=True)]
        if all(one is other for one, other in zip(near, steps, strict=True)):
            break
        steps = near
    effects = dict(zip(place, best.tolist(), strict=True))
    return SplitFit(effects, covariances(place, covariance), observed, tuple(sorted(sources)))
