"""Calls that a device of the same chip was timed at, as the device itself would take them: times one ratio.

Devices of one chip differ in clocks, memory and how much of the chip is on, so that their libraries choose alike, and
one number a kind, direction and precision takes times of the one to the other. It is the median of own over sibling's
times: of calls that both were timed at, at the same sub-batches, where there are LEAST_COMMON of them, else with the
own times of the device's fit. A fit that is known to miss by less than the ratios differ serves in its place, as those
of kernels whose work is bytes often do. docs/kernels.md scores all three.

Of a call that the device was timed at, but not at this sub-batch, the sibling tells the course between or beyond the
device's own times, in place of a fit and as sure as the ratio: libraries change kernels at sub-batches that no fit
foresees, but alike on one chip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.costs.features import vector
from planner.costs.measured_calls import course
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Calibration, Entry, SettingValue
from planner.domain.cluster import Accelerator
from planner.domain.transfer import relation

__all__ = ["LEAST_COMMON", "common_ratios", "course_of", "is_sibling", "ratio_of", "scaled_table"]

LEAST_COMMON = 5
"""Times in common that say more of the ratio than a fit does."""
SQRT_2 = float(np.sqrt(2.0))
"""Two equal errors that know nothing of each other add up to one so many times as large."""


def is_sibling(calibration: Calibration, device: Accelerator) -> bool:
    """Tell whether a calibration was measured on another device of the same chip."""
    other = None if calibration.node is None else calibration.node.accelerator
    return other is not None and other.name != device.name and relation(other, device) == "chip"


def common_ratios(tables: Iterable[Entry], sibling: Entry) -> FloatArray:
    """Return own over sibling's times of calls and sub-batches that both hold, shape (k,); the first of own ones count.

    Parameters
    ----------
    tables : iterable of Entry
        Of the device's measured calls, of the sibling's kind, direction and precision.
    sibling : Entry
        Of measured calls.
    """
    own: dict[tuple[str, float], float] = {}
    for table in tables:
        for name, sub_batch, time_s in _timed(table):
            own.setdefault((name, sub_batch), time_s)
    return np.array([own[name, n] / time_s for name, n, time_s in _timed(sibling) if (name, n) in own])


def _timed(table: Entry) -> Iterator[tuple[str, float, float]]:
    """Yield name, sub-batch and time [s] of every measured call."""
    for name in table.settings:
        points = vector(table.settings, name).tolist()
        yield from ((name, n, time_s) for n, time_s in zip(points[::2], points[1::2], strict=True))


def ratio_of(common: FloatArray, by_fit: FloatArray, fit_error: float | None) -> tuple[float, float] | None:
    """Return the ratio and its mean relative error; None where nothing tells them, or the fit is surer.

    Parameters
    ----------
    common : ndarray of shape (k,)
        Own over sibling's times of calls that both were timed at.
    by_fit : ndarray of shape (m,)
        The same with times of the device's fit.
    fit_error : float or None
        Of the fit on rows left out, which is that of its ratio too; None: it was never compared with any.
    """
    if common.size >= LEAST_COMMON:
        rest = [np.median(np.delete(common, at)) for at in range(common.size)]
        error = float(np.mean(np.abs(rest / common - 1)))
        return None if fit_error is not None and fit_error < error else (float(np.median(common)), error)
    if by_fit.size and fit_error is not None:
        ratio = float(np.median(by_fit))
        # Its spread holds the fit's own misses: what is left of it is by how far ratios differ.
        differs = np.mean(np.abs(by_fit / ratio - 1)) > SQRT_2 * fit_error
        return None if differs else (ratio, fit_error)
    return None


def course_of(samples: IntArray, knots: FloatArray, points: FloatArray) -> FloatArray:
    """Return the course of a call by a sibling's times, shape of ``samples``; see :func:`course`.

    Not a number where the sibling was not timed, there or at the sub-batches of the device on both sides: what it would
    take in between is no surer than what the device would.

    Parameters
    ----------
    samples : ndarray of shape (s,)
        Sub-batches.
    knots : ndarray of shape (q,)
        At which the device was timed, ascending.
    points : ndarray of shape (2p,)
        Sub-batches of the sibling, ascending, each with its time [s].
    """
    timed = dict(zip(points[::2].tolist(), points[1::2].tolist(), strict=True))
    there, at_knots = (np.array([timed.get(n, np.nan) for n in of.tolist()]) for of in (samples, knots))
    return course(samples.astype(np.float64), there, knots, at_knots)


def scaled_table(sibling: Entry, ratio: float, error: float) -> Entry:
    """Return the sibling's measured calls with all times multiplied by a ratio of relative ``error``."""
    times: Mapping[str, SettingValue] = {
        name: tuple((vector(sibling.settings, name).reshape(-1, 2) * [1.0, ratio]).ravel().tolist())
        for name in sibling.settings
    }
    known = sibling.held_out_error or sibling.error or 0.0
    return replace(
        sibling, settings=times, held_out_error=float(np.hypot(known, error)), held_out_by="gpu", worst_error=None
    )
