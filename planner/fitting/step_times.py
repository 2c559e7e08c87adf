"""Scale of kernels, host time of a call and exponent of both that training steps show, near what is expected."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.training import TimedStep
from planner.fitting.estimators import robust_least_squares
from planner.numbers import constant
from planner.sources.overheads import EXPONENTS, exponent_name
from planner.steps.host_and_gpu import composed_s, composed_slopes

__all__ = ["HOST_PRIOR_S", "Fitted", "TimedSteps"]

SCALE_PRIOR = 0.05
"""How far the scale of kernels is expected from 1: steps of one network share its errors."""
CPU_DRIFT = constant("step_times.cpu_drift")
"""By how much a CPU's speed in the seconds that its steps are timed in differs from that of the whole run
(docs/numbers.md)."""
HOST_PRIOR_S = 1e-5
"""How far the host time of a call is expected from 0, or at least from what was measured of a forward call [s]."""
STARTS = (1.0, 0.25, 0.05)
"""Of the host time of a call that the longest steps allow: where fits begin."""
TOLERANCE = 1e-12
"""Relative change at which a fit ends."""
FLAT_PRIOR_FACTOR = 1e6
"""So many times as wide as they are, priors say nothing."""
GRID = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
"""A sum, and up to nearly the longer of the two."""
SPAN = 8
"""Largest sub-batch of a network over its smallest, from which on steps are bound by the host here, the GPU there."""
REJECTION_LOSS = 3.84
"""Losses over the least one that reject an exponent (likelihood ratio, 95 %)."""
NORMAL_95 = 1.96
FREE_COUNT = 4
"""Coefficients of a fit, and the exponent."""


class Exponent(NamedTuple):
    """An exponent that the data tell, and its standard error."""

    value: float
    error: float


class Fitted(NamedTuple):
    """Scale of kernels and host time of a call [s], their standard errors, and exponents that the steps tell."""

    scale: float
    host_s: float
    scale_error: float
    host_error_s: float
    exponents: Mapping[str, Exponent]


class TimedSteps(NamedTuple):
    """n steps: kernel time [s] and calls of their passes, shape (n, 2), and errors assumed of each, shape (n,).

    ``host_s``: expected of a call. ``waits``: the host, for every kernel.
    """

    steps: Sequence[TimedStep]
    kernels_s: FloatArray
    calls: FloatArray
    relative: FloatArray
    waits: bool
    host_s: float

    @property
    def times_s(self) -> FloatArray:
        """Measured times [s], shape (n,)."""
        return np.array([step.time_s for step in self.steps])

    @property
    def counts(self) -> BoolArray:
        """Whether overheads are scored on a step, shape (n,): the surest are."""
        return np.asarray(self.relative == self.relative.min())

    def usual(self) -> dict[str, float]:
        """Return the exponents where the steps tell none."""
        return dict.fromkeys(EXPONENTS, 1.0) if self.waits else dict(EXPONENTS)

    def fitted(self, rows: BoolArray) -> Fitted:
        """Return what the steps of a mask, shape (n,), say."""
        exponents = {} if self.waits else self._exponents(rows)
        powers = self._powers(exponents)
        values, errors, _ = self.solved(rows, powers, self._seen(rows, powers))
        (scale, host_s, _), (scale_error, host_error_s, _) = values.tolist(), errors.tolist()
        return Fitted(scale, host_s, scale_error, host_error_s, exponents)

    def predicted(self, fit: Fitted) -> FloatArray:
        """Return the time of every step [s], shape (n,)."""
        return self._times_s(fit.scale, fit.host_s, self._powers(fit.exponents))

    def _times_s(self, scale: float, host_s: float, powers: FloatArray) -> FloatArray:
        """Return (Σ scale·kernels)^p + (Σ host_s·calls)^p)^(1/p) of every step [s], shape (n,)."""
        return composed_s(scale * self.kernels_s.sum(axis=1), host_s * self.calls.sum(axis=1), powers)

    def _exponents(self, rows: BoolArray) -> dict[str, Exponent]:
        """Return the exponents that the steps of a mask tell, one family after the other."""
        spans: dict[tuple[str, str], list[int]] = {}
        for step in itertools.compress(self.steps, rows):
            spans.setdefault((exponent_name(step.network), step.network.name), []).append(step.sub_batch)
        exponents: dict[str, Exponent] = {}
        for name in sorted({name for (name, _), some in spans.items() if max(some) >= SPAN * min(some)}):
            candidates = ({**exponents, name: Exponent(value, 0.0)} for value in GRID)
            losses = [self.solved(rows, self._powers(one), self.relative)[2] for one in candidates]
            exponent_of_runs = exponent_of_losses(losses, float(rows.sum()), EXPONENTS[name])
            exponents |= {name: exponent_of_runs} if exponent_of_runs else {}
        return exponents

    def _powers(self, exponents: Mapping[str, Exponent]) -> FloatArray:
        """Return the exponent of every step, shape (n,)."""
        values = self.usual() | {name: exponent.value for name, exponent in exponents.items()}
        return np.array([values[exponent_name(step.network)] for step in self.steps])

    def solved(
        self, rows: BoolArray, powers: FloatArray, relative: FloatArray, *, has_priors: bool = True
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return scale, host time and the error that all share in units of its own, their errors, and the squares.

        Parameters
        ----------
        rows : ndarray of bool, shape (n,)
        powers : ndarray of float, shape (n,)
            Exponent of every step.
        relative : ndarray of float, shape (n,)
            Deviation of predicted over measured time.
        has_priors : bool
            With priors, and on a CPU an error that all steps share.

        Returns
        -------
        ndarray of shape (3,), ndarray of shape (3,), float
        """
        times_s, mean = self.times_s, np.array([1.0, self.host_s, 0.0])
        least = -np.append(mean[:2], np.inf)
        drift = CPU_DRIFT if self.waits and has_priors else 0.0
        deviations = np.array([SCALE_PRIOR, max(self.host_s, HOST_PRIOR_S), 1.0]) * (
            1.0 if has_priors else FLAT_PRIOR_FACTOR
        )

        def residuals(shift: FloatArray) -> FloatArray:
            scale, host_s, drift_share = (mean + shift).tolist()
            predicted = self._times_s(scale, host_s, powers)
            return np.asarray(((predicted / times_s - 1 + drift * drift_share) / relative)[rows])

        def jacobian(shift: FloatArray) -> FloatArray:
            scale, host_s, _ = (mean + shift).tolist()
            kernels, calls = self.kernels_s.sum(axis=1), self.calls.sum(axis=1)
            by_gpu, by_host = composed_slopes(scale * kernels, host_s * calls, powers)
            slopes = by_gpu * kernels / times_s, by_host * calls / times_s, np.full(len(times_s), drift)
            return np.asarray((np.column_stack(slopes) / relative[:, None])[rows])

        def search(host_s: float) -> tuple[FloatArray, FloatArray, float]:
            start, weights = np.array([0.0, host_s - self.host_s, 0.0]), np.ones(int(rows.sum()))
            shift, covariance = robust_least_squares(
                residuals, jacobian, start, deviations, weights, tolerance=TOLERANCE, huber=np.inf, least=least
            )
            squares = np.sum(residuals(shift) ** 2) + np.sum((shift / deviations) ** 2)
            return mean + shift, np.sqrt(np.diag(covariance)), float(squares)

        # From where the host rules all steps on: where it rules none, none says anything of it.
        most_s = float((times_s / self.calls.sum(axis=1))[rows].max())
        return min((search(share * most_s) for share in STARTS), key=lambda one: one[2])

    def _seen(self, rows: BoolArray, powers: FloatArray) -> FloatArray:
        """Return the relative error of every step, shape (n,): as assumed, or what no coefficients go with.

        The latter is that of the surest steps.
        """
        surest = rows & (self.relative == self.relative[rows].min())
        values, _, squares = self.solved(surest, powers, np.ones_like(self.relative), has_priors=False)
        free = int(surest.sum()) - int(np.count_nonzero(values[:2]))
        return np.maximum(self.relative, float(np.sqrt(squares / max(free, 1))))


def exponent_of_losses(losses: Sequence[float], rows: float, usual: float) -> Exponent | None:
    """Return the exponent that the losses of GRID tell; None where they reject none.

    Parameters
    ----------
    losses : sequence of float
        Least sum of squares of residuals over their deviations, of each exponent of GRID.
    rows : float
        How many there are, by weight.
    usual : float
        The family's value, which is kept where it is accepted.
    """
    excess = max(1.0, min(losses) / max(rows - FREE_COUNT, 1.0))
    passing = [one for one, loss in zip(GRID, losses, strict=True) if (loss - min(losses)) / excess <= REJECTION_LOSS]
    if len(passing) == len(GRID):
        return None
    best = GRID[int(np.argmin(losses))]
    return Exponent(usual if usual in passing else best, (passing[-1] - passing[0]) / (2 * NORMAL_95))
