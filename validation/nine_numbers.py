"""A baseline beside the step model: nine numbers for everything that whole steps add to kernels and links.

Kernels take a scale where they are measured, one where they are specified, and one more in half precision; a call
costs the host one time; two exponents compose host and GPU, of networks with attention and of all others; replicas
wait for one share; and two multiples slow links, inside nodes and between them. Messages hide behind the backward pass
as in the step model. Nothing is known of a framework, GPU, cluster or network: what is left out changes the rows alone.
Plans that split a network are not among them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray
from planner.fitting.estimators import robust_least_squares
from planner.fitting.exponents import GRID
from planner.fitting.observed import HALF_PRECISIONS, JointSteps, Observed
from planner.fitting.residuals import Coefficient, Residuals, Rows, stacks
from planner.scoring.groups import splits
from planner.scoring.refit import Asked, group_of
from planner.scoring.workers import spread
from planner.sources.overheads import EXPONENTS, exponent_name

__all__ = ["NUMBERS", "NineNumbers", "fit_nine_numbers", "held_out_errors"]

WIDE = 2.0
"""Prior deviation of every number: so wide that rows alone decide."""
COMPUTE = (
    Coefficient("kernel_scale", 1.0, ((("measured",), WIDE), (("specified",), WIDE), (("half",), WIDE))),
    Coefficient("matrix_scale", 1.0, ()),
    Coefficient("host_s_per_call", 20e-6, (((), WIDE),)),
)
SEVERAL = (
    Coefficient("replica_wait", 0.02, (((), WIDE),), is_log=False, of_several=True),
    Coefficient("intra_node", 1.2, (((), WIDE),), of_several=True),
    Coefficient("inter_node", 1.3, (((), WIDE),), of_several=True),
)
NUMBERS = sum(len(one.levels) for one in (*COMPUTE, *SEVERAL)) + len(EXPONENTS)
"""How many there are: nine."""
TOLERANCE = 1e-5
WIDTHS = (1.0, 0.1)
"""Of the differences by multiples of links, from wide to narrow."""


class NineNumbers(NamedTuple):
    """The numbers: those of one GPU and of several as effects, (4,) and (3,), and the exponents by name."""

    compute: FloatArray
    several: FloatArray
    exponents: Mapping[str, float]

    def times_s(self, observed: Observed) -> FloatArray:
        """Return the predicted steps [s] of measured ones, shape (n,)."""
        found = np.zeros(observed.measured_s.size)
        is_alone = observed.configurations.gpus == 1
        if observed.alone:
            (one,) = _alone([observed.alone], self.exponents)
            found[is_alone] = np.exp(_log_times(one, COMPUTE, self.compute))
        if observed.joint:
            found[~is_alone] = np.exp(_log_times(self.joint(observed.joint), SEVERAL, self.several))
        return found

    def joint(self, part: Observed) -> Rows:
        """Return steps on several GPUs, with what one of them computes."""
        theta = _design(part, COMPUTE) @ self.compute
        values = {one.name: one.value(one.start + by)[0] for one, by in zip(COMPUTE, theta.tolist(), strict=True)}
        return part, JointSteps(part, values | {"exponent": self.exponents[exponent_name(part.problem.network)]})


def fit_nine_numbers(observed: Sequence[Observed]) -> NineNumbers:
    """Return the numbers that measured steps ask for: those of one GPU from steps on one, then those of several."""
    alone = [part for one in observed if (part := one.alone)]
    losses = {
        values: _fitted(_alone(alone, dict(zip(EXPONENTS, values, strict=True))), COMPUTE, (TOLERANCE,))
        for values in product(GRID, repeat=len(EXPONENTS))
    }
    best = min(losses, key=lambda values: losses[values][1])
    numbers = NineNumbers(losses[best][0], np.zeros(len(SEVERAL)), dict(zip(EXPONENTS, best, strict=True)))
    joint = [numbers.joint(part) for one in observed if (part := one.joint)]
    return numbers._replace(several=_fitted(joint, SEVERAL, WIDTHS)[0])


def held_out_errors(asked: Sequence[Asked], axis: str) -> list[FloatArray]:
    """Return predicted over measured - 1 of the steps of each problem, by a fit to those of all other groups.

    Parameters
    ----------
    asked : sequence of Asked
    axis : one of planner.scoring.groups.HOLD_OUTS

    Returns
    -------
    list of ndarray of float
        In the order of ``asked``; of rates where runs measured these. Empty where nothing was measured.
    """
    for one in asked:
        _ = one.observed  # priced before processes part
    folds = list(splits([group_of(one, axis) for one in asked]))

    def of_fold(number: int) -> dict[int, FloatArray]:
        fit, test = folds[number].fit.tolist(), folds[number].test.tolist()
        numbers = fit_nine_numbers(
            [each for one, is_fit in zip(asked, fit, strict=True) if is_fit for each in one.observed]
        )
        return {at: _errors(asked[at], numbers) for at, is_tested in enumerate(test) if is_tested}

    parts = spread(of_fold, len(folds), os.cpu_count() or 1, lambda _number: None)
    found = {at: errors for part in parts for at, errors in part.items()}
    return [found[at] for at in range(len(asked))]


def _errors(asked: Asked, numbers: NineNumbers) -> FloatArray:
    parts = [np.log(numbers.times_s(one) / one.measured_s) for one in asked.observed]
    logs = np.concatenate(parts) if parts else np.zeros(0)
    return np.asarray(np.expm1(-logs if asked.runs[0].metric == "samples_per_s" else logs))


def _alone(parts: Sequence[Observed], exponents: Mapping[str, float]) -> list[Rows]:
    return [(one, one.alone_steps.at_exponent(exponents[exponent_name(one.problem.network)])) for one in parts]


def _fitted(
    rows: Sequence[Rows], coefficients: Sequence[Coefficient], widths: Sequence[float]
) -> tuple[FloatArray, float]:
    """Return the effects of coefficients, and the loss that they leave."""
    places = sum(len(one.levels) for one in coefficients)
    best, left = np.zeros(places), list(_residuals(rows, coefficients))
    if not left:
        return best, 0.0
    weights = np.concatenate([one.weights for one in left])
    for width in widths:
        best, _ = robust_least_squares(
            lambda x: np.concatenate([one.errors(x) for one in left]),
            lambda x, by=width: np.concatenate([one.slopes(x, by) for one in left]),  # type: ignore[misc]
            best,
            np.full(places, WIDE),
            weights,
            tolerance=TOLERANCE,
        )
    errors = np.abs(np.concatenate([one.errors(best) for one in left]))
    return best, float(weights @ np.where(errors <= 1, errors**2, 2 * errors - 1))


def _residuals(rows: Sequence[Rows], coefficients: Sequence[Coefficient]) -> Iterator[Residuals]:
    for sets, steps in stacks(rows):
        yield Residuals(sets, steps, coefficients, np.stack([_design(one, coefficients) for one in sets]))


def _log_times(row: Rows, coefficients: Sequence[Coefficient], effects: FloatArray) -> FloatArray:
    (residuals,) = _residuals([row], coefficients)
    values, _ = residuals._values(effects)  # noqa: SLF001
    return np.log(row[1].times_s(values))


def _design(observed: Observed, coefficients: Sequence[Coefficient]) -> FloatArray:
    """Return which effects add to each coefficient of some steps, shape (c, p)."""
    properties = observed.properties
    has = {properties["kernels"], "half" if observed.precision in HALF_PRECISIONS else ""}
    flat = [(one.name, level) for one in coefficients for level, _ in one.levels]
    return np.array([[float(name == one.name and has >= set(level)) for name, level in flat] for one in coefficients])
