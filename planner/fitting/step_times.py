"""Scale of kernels, host time of a call and exponent of both that training steps show; drawn to what is expected."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.training import TimedStep
from planner.fitting.exponents import GRID, SPAN, Exponent, told_exponent
from planner.sources.overheads import EXPONENTS, exponent_name

__all__ = ["HOST_PRIOR_S", "Fitted", "TimedSteps"]

SCALE_PRIOR = 0.05
"""How far the scale of kernels is expected from 1: steps of one network share its errors."""
CPU_DRIFT = 0.03
"""By how much a CPU's speed in the seconds that its steps are timed in differs from that of the whole run: the
reference kernel's mean over ten seconds by 0.033 from that over the run (root mean square, twelve runs on an EPYC)."""
HOST_PRIOR_S = 1e-5
"""How far the host time of a call is expected from 0, or at least from what was measured of a forward call [s]."""
STARTS = (1.0, 0.25, 0.05)
"""Of the host time of a call that the longest steps allow: where fits begin."""
SHARES = tuple(0.5**at for at in range(12))
"""Of a step of a fit, tried in turn."""
TOLERANCE = 1e-9
"""Of the squares: by less they do not fall any more."""


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
        found, design, _ = self.solved(rows, powers, self._seen(rows, powers))
        scale, host_s, *_ = found.tolist()
        scale_error, host_error_s, *_ = np.sqrt(np.diag(np.linalg.inv(design.T @ design))).tolist()
        return Fitted(scale, host_s, scale_error, host_error_s, told)

    def predicted(self, fitted: Fitted) -> FloatArray:
        """Return the time of every step [s], shape (n,)."""
        at = np.array([fitted.scale, fitted.host_s])
        found: FloatArray = self._slopes(at, self._powers(fitted.told)) @ at
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

    def _slopes(self, at: FloatArray, powers: FloatArray) -> FloatArray:
        """Return the slopes of times by scale and host time, shape (n, 2); times are linear in both along a ray.

        So slopes times both are the times themselves.
        """
        units = np.stack([self.kernels_s, self.calls])
        parts = np.maximum(units * at[:2, None, None], 0.0)
        parts /= np.maximum(parts.max(axis=0), np.finfo(float).tiny)  # of the longer one, so that no power overflows
        whole = np.maximum((parts**powers).sum(axis=0), 1.0) ** (1 / powers)
        found: FloatArray = (units * (parts / whole) ** (powers - 1)).sum(axis=2).T
        return found

    def solved(
        self, rows: BoolArray, powers: FloatArray, relative: FloatArray, *, drawn: bool = True
    ) -> tuple[FloatArray, FloatArray, float]:
        """Return scale, host time and shared error in units of its own, slopes of residuals there, and their squares.

        Gauss and Newton's method, steps halved until the squares fall.

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
        ndarray of shape (3,), ndarray of shape (k + 3, 3), float
        """
        weights, host_prior_s = 1 / (relative * self.times_s), max(self.host_s, HOST_PRIOR_S)
        drift = np.full(len(self.steps), CPU_DRIFT if self.waits and drawn else 0.0) * self.times_s
        priors = np.diag([1 / SCALE_PRIOR, 1 / host_prior_s, 1.0]) * drawn
        target = np.concatenate([1 / relative[rows], priors @ [1.0, self.host_s, 0.0]])

        def design(at: FloatArray) -> FloatArray:
            slopes = np.column_stack([self._slopes(at, powers), drift]) * weights[:, None]
            return np.vstack([slopes[rows], priors])

        def search(host_s: float) -> tuple[FloatArray, FloatArray, float]:
            at = np.array([1.0, host_s, 0.0])
            slopes, loss, better = design(at), np.inf, True
            while better:
                found, better = np.array(_least_squares(slopes, target)), False
                for share in SHARES:
                    nearer = share * found + (1 - share) * at
                    again = design(nearer)
                    squares = float(np.sum((again @ nearer - target) ** 2))
                    if squares < loss * (1 - TOLERANCE):
                        at, slopes, loss, better = nearer, again, squares, True
                        break
            return at, slopes, loss

        # From where the host rules all steps on: where it rules none, none says anything of it.
        most_s = float((self.times_s / self.calls.sum(axis=1))[rows].max())
        return min((search(share * most_s) for share in STARTS), key=lambda one: one[2])

    def _seen(self, rows: BoolArray, powers: FloatArray) -> FloatArray:
        """Return the relative error of every step, shape (n,): as assumed, or what no coefficients go with.

        The latter is that of the surest steps.
        """
        surest = rows & (self.relative == self.relative[rows].min())
        found, _, squares = self.solved(surest, powers, np.ones_like(self.relative), drawn=False)
        free = int(surest.sum()) - int(np.count_nonzero(found[:2]))
        return np.maximum(self.relative, float(np.sqrt(squares / max(free, 1))))


def _least_squares(design: FloatArray, target: FloatArray) -> list[float]:
    """Return the least-squares solution, p numbers; host time, the second, is 0 where it would be negative."""
    found: list[float] = np.linalg.lstsq(design, target, rcond=None)[0].tolist()
    if found[1] < 0:
        scale, *others = np.linalg.lstsq(np.delete(design, 1, axis=1), target, rcond=None)[0].tolist()
        found = [scale, 0.0, *others]
    return found
