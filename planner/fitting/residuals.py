"""Residuals of measured steps by effects that add to coefficients, and their derivatives.

S sets of rows (one problem in one precision each), n rows in all; c coefficients, p effects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray
from planner.fitting.observed import AloneSteps, JointSteps, Observed
from planner.numbers import constant

__all__ = ["MOST_SET_ROWS", "ROW_DEVIATION", "Coefficient", "Residuals", "Rows", "Steps", "stacks"]

ROW_DEVIATION = constant("end_to_end.row_deviation")
"""Of log(predicted / measured) of a run (docs/numbers.md)."""
MOST_SET_ROWS = constant("end_to_end.most_set_rows")
"""As so many rows those of a set count at most (docs/numbers.md)."""
Steps = AloneSteps | JointSteps
Rows = tuple[Observed, Steps]
"""Measured steps, and the same as functions of coefficients."""


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


def stacks(rows: Sequence[Rows]) -> list[tuple[list[Observed], Steps]]:
    """Return rows on one GPU together, to be computed at once; other rows one by one."""
    alone = [(observed, steps) for observed, steps in rows if isinstance(steps, AloneSteps)]
    joint: list[tuple[list[Observed], Steps]] = [
        ([observed], steps) for observed, steps in rows if not isinstance(steps, AloneSteps)
    ]
    if not alone:
        return joint
    return [([one for one, _ in alone], AloneSteps.stacked([steps for _, steps in alone])), *joint]


class Residuals:
    """What effects leave of the rows of S sets; ``design``, shape (S, c, p), says which add to each coefficient.

    ``start``, shape (S, c): θ of each where effects are 0; default: that of the coefficient. ``is_bound``: the rows
    take so long or longer.
    """

    def __init__(
        self,
        sets: Sequence[Observed],
        steps: Steps,
        coefficients: Sequence[Coefficient],
        design: FloatArray,
        start: FloatArray | None = None,
        *,
        is_bound: bool = False,
    ) -> None:
        sizes = np.array([one.measured_s.size for one in sets])
        self.steps, self.coefficients, self.design, self.is_bound = steps, coefficients, design, is_bound
        self.log_measured = np.log(np.concatenate([one.measured_s for one in sets]))
        self.start = np.array([one.start for one in coefficients]) if start is None else start
        self.set = np.repeat(np.arange(len(sets)), sizes)
        self.ends = np.cumsum(sizes)[:-1]
        self.weights = np.minimum(1.0, MOST_SET_ROWS / sizes)[self.set]

    def errors(self, effects: FloatArray) -> FloatArray:
        """Return log(predicted / measured) in row deviations, shape (n,)."""
        values, _ = self._values(effects)
        errors: FloatArray = np.log(self.steps.times_s(values)) - self.log_measured
        return (np.maximum(errors, 0.0) if self.is_bound else errors) / ROW_DEVIATION

    def slopes(self, effects: FloatArray, width: float) -> FloatArray:
        """Return the derivatives of the errors by the effects, shape (n, p); see :meth:`JointSteps.slopes`."""
        values, by_theta = self._values(effects)
        times_s = self.steps.times_s(values)
        relative = self.steps.slopes(values, width) / times_s[:, None]
        if self.is_bound:
            relative[np.log(times_s) <= self.log_measured] = 0.0
        of_sets = np.split(relative * by_theta, self.ends)
        return np.concatenate([rows @ own for rows, own in zip(of_sets, self.design, strict=True)]) / ROW_DEVIATION

    def _values(self, effects: FloatArray) -> FloatArray:
        """Return the coefficients and their derivatives by θ: shape (2, c) of one set, else (2, n, c)."""
        theta = (self.start + self.design @ effects).tolist()
        values = np.array([[one.value(x) for one, x in zip(self.coefficients, row, strict=True)] for row in theta])
        by_set = np.moveaxis(values, -1, 0)
        return by_set[:, 0] if len(theta) == 1 else by_set[:, self.set]
