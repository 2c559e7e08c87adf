"""Calls that a device of the same chip was timed at, as the device itself would take them.

Devices of one chip differ in clocks, memory and how much of the chip is on, so that their libraries choose alike, and
own times follow the sibling's by a ratio. Calls that both were timed at, at the same sub-batches, tell it where there
are LEAST_COMMON of them, else the own times of the device's fit over the sibling's, by one median; a fit that is known
to miss by less than these ratios differ serves in its place.

What takes long is bound by compute or by memory, what is short by launching, and each has a ratio of its own. So calls
in common weigh by how near their times are: with t a call's time on the sibling, t_i and r_i time and ratio of the k in
common, r(t) is the median of r_i with weights exp(-(log2(t / t_i) / NEAR)² / 2) + FAR / k. By the second term all
together weigh as much as FAR calls of that very time: where few are near, it is the median of all.

The fit knows of the call what the ratio does not. Times by both are brought together by their errors e and e_f on calls
that took no part, as those of two instruments are: log(r·t) + b·c with c = log(t_f / (r·t)), b = e² / (e² + e_f²) and
|c| at most WILD·√(e² + e_f²): a fit that is further off is out of its depth. docs/kernels.md scores all of it.

Of a call that the device was timed at, but not at this sub-batch, the sibling tells the course between or beyond the
device's own times, in place of a fit and as sure as its times are: libraries change kernels at sub-batches that no fit
foresees, but alike on one chip.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.costs.features import vector
from planner.costs.measured_calls import course
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Calibration, Entry, SettingValue
from planner.domain.cluster import Accelerator
from planner.domain.transfer import relation
from planner.numbers import constants

__all__ = ["LEAST_COMMON", "Common", "Ratio", "common_times", "course_of", "is_sibling", "ratio_of", "scaled_table"]

_RATIO = constants("same_die.ratio")  # docs/numbers.md
LEAST_COMMON = int(_RATIO["least_common"])
"""Times in common that say more of the ratio than a fit does."""
NEAR, FAR = _RATIO["near"], _RATIO["far"]
"""Doublings of the time within which ratios are alike, and how many such calls all together weigh as much as."""
HALF = (0.5 - 1e-9, 0.5 + 1e-9)
"""Shares of the weight, as an even number of equal weights has two medians; apart by more than rounding."""
WILD = _RATIO["wild"]
"""Times the error of a difference that one is hardly ever off by, unless one of the two is wrong."""
SQRT_2 = float(np.sqrt(2.0))
"""Two equal errors that know nothing of each other add up to one so many times as large."""


class Common(NamedTuple):
    """Times that two devices took for k calls: own ones over the sibling's, and the sibling's [s], shape (k,) each."""

    ratio: FloatArray
    theirs_s: FloatArray


@dataclass(frozen=True, slots=True)
class Ratio:
    """How own times follow from a sibling's.

    Attributes
    ----------
    common : Common
        What tells the ratio.
    error : float
        Mean relative error of own times by it.
    believed : float
        Share of the device's fit in the logarithm of own times, b.
    at_most : float
        What logarithms of times by the fit and by the ratio may differ by.
    """

    common: Common
    error: float
    believed: float = 0.0
    at_most: float = np.inf

    def times_s(self, theirs_s: FloatArray, fitted_s: FloatArray) -> FloatArray:
        """Return own times [s] by the sibling's and the fit's, shape (s,) each; not a number where no fit serves."""
        scaled = theirs_s * _medians(self.common.ratio, _weights(self.common, theirs_s))
        apart = np.log(np.divide(fitted_s, scaled, out=np.ones(scaled.shape), where=fitted_s > 0))
        found: FloatArray = scaled * np.exp(self.believed * np.clip(apart, -self.at_most, self.at_most))
        return found


def is_sibling(calibration: Calibration, device: Accelerator) -> bool:
    """Tell whether a calibration was measured on another device of the same chip."""
    other = None if calibration.node is None else calibration.node.accelerator
    return other is not None and other.name != device.name and relation(other, device) == "chip"


def common_times(tables: Iterable[Entry], sibling: Entry) -> Common:
    """Return the calls and sub-batches that own tables and a sibling's hold; the first of own ones count.

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
    pairs = [(own[name, n], time_s) for name, n, time_s in _timed(sibling) if (name, n) in own]
    own_s, theirs_s = np.reshape(pairs, (-1, 2)).T
    return Common(own_s / theirs_s, theirs_s)


def _timed(table: Entry) -> Iterator[tuple[str, float, float]]:
    """Yield name, sub-batch and time [s] of every measured call."""
    for name in table.settings:
        points = vector(table.settings, name).tolist()
        yield from ((name, n, time_s) for n, time_s in zip(points[::2], points[1::2], strict=True))


def ratio_of(common: Common, by_fit: FloatArray, fit_error: float | None) -> Ratio | None:
    """Return how own times follow from a sibling's; None where nothing tells it, or the fit serves in their place.

    Parameters
    ----------
    common : Common
    by_fit : ndarray of shape (m,)
        Times of the device's fit over the sibling's.
    fit_error : float or None
        Of the fit on rows left out, which is that of its ratio too; None: it was never compared with any.
    """
    if common.ratio.size >= LEAST_COMMON:
        weights = _weights(common, common.theirs_s)
        np.fill_diagonal(weights, 0.0)
        error = float(np.mean(np.abs(_medians(common.ratio, weights) / common.ratio - 1)))
        if fit_error is None or not error:
            return Ratio(common, error)
        both = error**2 + fit_error**2
        return Ratio(common, min(error, fit_error), error**2 / both, WILD * float(np.sqrt(both)))
    if by_fit.size and fit_error is not None:
        ratio = float(np.median(by_fit))
        # Its spread holds the fit's own misses: what is left of it is by how far ratios differ.
        differs = np.mean(np.abs(by_fit / ratio - 1)) > SQRT_2 * fit_error
        return None if differs else Ratio(Common(np.array([ratio]), np.ones(1)), fit_error)
    return None


def _weights(common: Common, theirs_s: FloatArray) -> FloatArray:
    """Return the weights of k calls in common at s times of the sibling [s], shape (s, k)."""
    doublings = np.log2(theirs_s[:, None] / common.theirs_s)
    found: FloatArray = np.exp(-((doublings / NEAR) ** 2) / 2) + FAR / common.ratio.size
    return found


def _medians(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the weighted medians of k values, shape (s,), for weights of shape (s, k)."""
    order = np.argsort(values)
    held = np.cumsum(weights[:, order], axis=1)
    held /= held[:, -1:]
    lower, upper = (values[order][(held > bound).argmax(axis=1)] for bound in HALF)
    found: FloatArray = (lower + upper) / 2
    return found


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


def scaled_table(sibling: Entry, ratio: Ratio, fitted_s: Mapping[str, FloatArray]) -> Entry:
    """Return the sibling's measured calls as they are on the device.

    Parameters
    ----------
    sibling : Entry
    ratio : Ratio
    fitted_s : mapping of name to ndarray of shape (p,)
        What the device's fit says of calls at the sub-batches that the sibling was timed at [s].
    """
    times: dict[str, SettingValue] = {}
    for name in sibling.settings:
        sub_batch, theirs_s = vector(sibling.settings, name).reshape(-1, 2).T
        own_s = ratio.times_s(theirs_s, fitted_s.get(name, np.full(theirs_s.size, np.nan)))
        times[name] = tuple(np.column_stack([sub_batch, own_s]).ravel().tolist())
    known = sibling.held_out_error or sibling.error or 0.0
    error = float(np.hypot(known, ratio.error))
    return replace(sibling, settings=times, held_out_error=error, held_out_by="gpu", worst_error=None)
