"""Calls that a same-die device was timed at, as the device itself would take them.

Devices of one die differ in clocks, memory and how much of the die is on, so that their libraries choose alike, and own
times follow the other's by a ratio r. Calls that both were timed at, at the same sub-batches, tell it by their median
where there are LEAST_COMMON of them, else the own times of the device's fit over the other's; a fit that is known to
miss by less than these ratios differ serves in its place.

The fit knows of the call what the ratio does not. Times by both are brought together by their errors e and e_f on calls
that took no part, as those of two instruments are: with t the other's time and t_f the fit's, the logarithm of the own
time is log(r·t) + b·log(t_f / (r·t)), b = e² / (e² + e_f²). ``python -m validation.kernels`` scores all of it.

Of a call that the device was timed at, but not at this sub-batch, the other gives the scaling curve between or beyond
the device's own times, in place of a fit and as sure as its times are: libraries change kernels at sub-batches that no
fit foresees, but alike on one die.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.costs.features import vector
from planner.costs.measured_calls import relative_curve
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Calibration, Entry, SettingValue
from planner.domain.cluster import Accelerator
from planner.domain.transfer import relation
from planner.numbers import constant

__all__ = ["LEAST_COMMON", "Ratio", "common_ratios", "is_same_die", "ratio_of", "same_die_curve", "scaled_table"]

LEAST_COMMON = int(constant("same_die.least_common"))
"""Times in common that say more of the ratio than a fit does (docs/numbers.md)."""
SQRT_2 = float(np.sqrt(2.0))
"""Two equal errors that know nothing of each other add up to one so many times as large."""


class Ratio(NamedTuple):
    """How own times follow from another device's.

    Attributes
    ----------
    value : float
        Own time over the other's, r.
    error : float
        Mean relative error of own times by it.
    weight_of_fit : float
        Share of the device's fit in the logarithm of own times, b.
    """

    value: float
    error: float
    weight_of_fit: float = 0.0

    def times_s(self, theirs_s: FloatArray, fitted_s: FloatArray) -> FloatArray:
        """Return own times [s] by the other's and the fit's, shape (s,) each; not a number where no fit serves."""
        by_ratio_s = self.value * theirs_s
        fit = np.divide(fitted_s, by_ratio_s, out=np.ones(by_ratio_s.shape), where=fitted_s > 0)
        return np.asarray(by_ratio_s * fit**self.weight_of_fit)


def is_same_die(calibration: Calibration, device: Accelerator) -> bool:
    """Tell whether a calibration was measured on another device of the same chip."""
    other = None if calibration.node is None else calibration.node.accelerator
    return other is not None and other.name != device.name and relation(other, device) == "chip"


def common_ratios(tables: Iterable[Entry], other: Entry) -> FloatArray:
    """Return own times over another device's, of calls and sub-batches that both hold; the first of own ones count.

    Parameters
    ----------
    tables : iterable of Entry
        Of the device's measured calls, of the other's kind, direction and precision.
    other : Entry
        Of measured calls.
    """
    own: dict[tuple[str, float], float] = {}
    for table in tables:
        for name, sub_batch, time_s in _timed(table):
            own.setdefault((name, sub_batch), time_s)
    return np.array([own[name, n] / time_s for name, n, time_s in _timed(other) if (name, n) in own])


def _timed(table: Entry) -> Iterator[tuple[str, float, float]]:
    """Yield name, sub-batch and time [s] of every measured call."""
    for name in table.settings:
        points = vector(table.settings, name).tolist()
        yield from ((name, n, time_s) for n, time_s in zip(points[::2], points[1::2], strict=True))


def ratio_of(common: FloatArray, by_fit: FloatArray, fit_error: float | None) -> Ratio | None:
    """Return how own times follow from another's; None where nothing tells it, or the fit serves in their place.

    Parameters
    ----------
    common : ndarray of shape (k,)
        Own times over the other's, of calls that both were timed at.
    by_fit : ndarray of shape (m,)
        Times of the device's fit over the other's.
    fit_error : float or None
        Of the fit on rows left out, which is that of its ratio too; None: it was never compared with any.
    """
    if common.size >= LEAST_COMMON:
        left_out = np.array([np.median(np.delete(common, at)) for at in range(common.size)])
        error = float(np.mean(np.abs(left_out / common - 1)))
        ratio = Ratio(float(np.median(common)), error)
        if fit_error is None or not error:
            return ratio
        return Ratio(ratio.value, min(error, fit_error), error**2 / (error**2 + fit_error**2))
    if by_fit.size and fit_error is not None:
        ratio = Ratio(float(np.median(by_fit)), fit_error)
        # Its spread holds the fit's own misses: what is left of it is by how far ratios differ.
        differs = np.mean(np.abs(by_fit / ratio.value - 1)) > SQRT_2 * fit_error
        return None if differs else ratio
    return None


def same_die_curve(samples: IntArray, knots: FloatArray, points: FloatArray) -> FloatArray:
    """Return the scaling curve of a call by another device's times, shape of ``samples``; see :func:`relative_curve`.

    Not a number where the other was not timed, there or at the sub-batches of the device on both sides: what it would
    take in between is no surer than what the device would.

    Parameters
    ----------
    samples : ndarray of shape (s,)
        Sub-batches.
    knots : ndarray of shape (q,)
        At which the device was timed, ascending.
    points : ndarray of shape (2p,)
        Sub-batches of the other, ascending, each with its time [s].
    """
    times_s = dict(zip(points[::2].tolist(), points[1::2].tolist(), strict=True))
    there, at_knots = (np.array([times_s.get(n, np.nan) for n in of.tolist()]) for of in (samples, knots))
    return relative_curve(samples.astype(np.float64), there, knots, at_knots)


def scaled_table(other: Entry, ratio: Ratio, fitted_s: Mapping[str, FloatArray]) -> Entry:
    """Return the other's measured calls as they are on the device.

    Parameters
    ----------
    other : Entry
    ratio : Ratio
    fitted_s : mapping of name to ndarray of shape (p,)
        What the device's fit says of calls at the sub-batches that the other was timed at [s].
    """
    times: dict[str, SettingValue] = {}
    for name in other.settings:
        sub_batch, theirs_s = vector(other.settings, name).reshape(-1, 2).T
        own_s = ratio.times_s(theirs_s, fitted_s.get(name, np.full(theirs_s.size, np.nan)))
        times[name] = tuple(np.column_stack([sub_batch, own_s]).ravel().tolist())
    error = float(np.hypot(other.held_out_error or other.error or 0.0, ratio.error))
    return replace(other, settings=times, held_out_error=error, held_out_by="gpu", worst_error=None, sum_error=None)
