"""Scale of kernels, host time of a call and exponent of both that training steps show; drawn to what is expected."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.training import TimedStep
from planner.fitting.estimators import robust_least_squares
from planner.fitting.exponents import GRID, SPAN, Exponent, told_exponent
from planner.fitting.passes import Passes
from planner.numbers import constant
from planner.sources.overheads import EXPONENTS, exponent_name

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
UNTOLD = 1e6
"""So many times as wide as they are, priors say nothing."""


class Fitted(NamedTuple):
    """Scale of kernels and host time of a call [s], their standard errors, and exponents that the steps tell."""

    scale: float
    host_s: float
    scale_error: float
    host_error_s: float
    told: Mapping[str, Exponent]


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
        found: BoolArray = self.relative == self.relative.min()
        return found

    def usual(self) -> dict[str, float]:
        """Return the exponents where the steps tell none."""
        return dict.fromkeys(EXPONENTS, 1.0) if self.waits else dict(EXPONENTS)

    def fitted(self, rows: BoolArray) -> Fitted:
        """Return what the steps of a mask, shape (n,), say."""
        told = {} if self.waits else self._told(rows)
        powers = self._powers(told)
        found, errors, _ = self.solved(rows, powers, self._seen(rows, powers))
        (scale, host_s, _), (scale_error, host_error_s, _) = found.tolist(), errors.tolist()
        return Fitted(scale, host_s, scale_error, host_error_s, told)

    def predicted(self, fitted: Fitted) -> FloatArray:
        """Return the time of every step [s], shape (n,)."""
        passes = self._passes(self._powers(fitted.told))
        found: FloatArray = passes.times_s(np.array([fitted.scale, 1.0, fitted.host_s])).sum(axis=1)
        return found

    def _told(self, rows: BoolArray) -> dict[str, Exponent]:
        """Return the exponents that the steps of a mask tell, one family after the other."""
        spans: dict[tuple[str, str], list[int]] = {}
        for step in itertools.compress(self.steps, rows):
            spans.setdefault((exponent_name(step.network), step.network.name), []).append(step.sub_batch)
        told: dict[str, Exponent] = {}
        for name in sorted({name for (name, _), some in spans.items() if max(some) >= SPAN * min(some)}):
            tried = ({**told, name: Exponent(exponent, 0.0)} for exponent in GRID)
            losses = [self.solved(rows, self._powers(one), self.relative)[2] for one in tried]
            found = told_exponent(losses, float(rows.sum()), EXPONENTS[name])
            told |= {name: found} if found else {}
        return told

    def _powers(self, told: Mapping[str, Exponent]) -> FloatArray:
        """Return the exponent of every step, shape (n, 1)."""
        values = self.usual() | {name: exponent.value for name, exponent in told.items()}
        return np.array([[values[exponent_name(step.network)]] for step in self.steps])

    def _passes(self, powers: FloatArray) -> Passes:
        return Passes(np.zeros_like(self.kernels_s), self.kernels_s, self.calls, powers)

    def solved(
        self, rows: BoolArray, powers: FloatArray, relative: FloatArray, *, drawn: bool = True
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return scale, host time and the error that all share in units of its own, their errors, and the squares.

        Parameters
        ----------
        rows : ndarray of bool, shape (n,)
        powers : ndarray of float, shape (n, 1)
            Exponent of every step.
        relative : ndarray of float, shape (n,)
            Deviation of predicted over measured time.
        drawn : bool
            With priors, and on a CPU an error that all steps share.

        Returns
        -------
        ndarray of shape (3,), ndarray of shape (3,), float
        """
        times_s, passes, mean = self.times_s, self._passes(powers), np.array([1.0, self.host_s, 0.0])
        least = -np.append(mean[:2], np.inf)
        drift = CPU_DRIFT if self.waits and drawn else 0.0
        deviations = np.array([SCALE_PRIOR, max(self.host_s, HOST_PRIOR_S), 1.0]) * (1.0 if drawn else UNTOLD)

        def residuals(shift: FloatArray) -> FloatArray:
            scale, host_s, shared = (mean + shift).tolist()
            predicted = passes.times_s(np.array([scale, 1.0, host_s])).sum(axis=1)
            found: FloatArray = ((predicted / times_s - 1 + drift * shared) / relative)[rows]
            return found

        def jacobian(shift: FloatArray) -> FloatArray:
            scale, host_s, _ = (mean + shift).tolist()
            slopes = passes.slopes(np.array([scale, 1.0, host_s]))[:, :, [0, 2]].sum(axis=1) / times_s[:, None]
            found: FloatArray = (np.column_stack([slopes, np.full(len(times_s), drift)]) / relative[:, None])[rows]
            return found

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
        found, _, squares = self.solved(surest, powers, np.ones_like(self.relative), drawn=False)
        free = int(surest.sum()) - int(np.count_nonzero(found[:2]))
        return np.maximum(self.relative, float(np.sqrt(squares / max(free, 1))))
