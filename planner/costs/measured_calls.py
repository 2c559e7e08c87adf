"""Times of calls that were measured as they are, linear in the sub-batch between and beyond the measured ones.

A setting is a call's name -> (n_1, t_1, n_2, t_2, ...): sub-batches in ascending order, times [s]. Work is ``call``,
the place of the name among the sorted ones, and ``samples``, the sub-batch. Beyond either end the line a + b·n goes on
through the end point with a, b >= 0. A call measured once takes that time always.
"""

from __future__ import annotations

import numpy as np

from planner.costs.features import FeatureMap, Settings, Work, column, stacked, vector
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calls import LOOKED_UP

__all__ = ["BEYOND", "MARGIN", "MEASURED_CALLS", "MEASURED_S", "WHEREABOUTS", "line_times_s", "whereabouts"]

MEASURED_S, BEYOND = "measured_s", "doublings_beyond"
MARGIN = 1.0
"""Doublings of the sub-batch beyond the measured ones that count as measured."""
WHEREABOUTS = ("exact", "between", "beyond")
"""Where a sub-batch stands among those that a call was measured at: one of them, between two, or outside all."""


def line_times_s(samples: FloatArray, knots: FloatArray, times_s: FloatArray) -> FloatArray:
    """Return times at sub-batches, piecewise linear, shape of ``samples``.

    Parameters
    ----------
    samples : ndarray of shape (...)
    knots, times_s : ndarray of shape (q,)
        Measured sub-batches, ascending, and their times.
    """
    if knots.size == 1:
        return np.full(np.shape(samples), times_s[0])
    slopes = np.diff(times_s) / np.diff(knots)
    segment = np.clip(np.searchsorted(knots, samples, side="right") - 1, 0, slopes.size - 1)
    inside = times_s[segment] + slopes[segment] * (samples - knots[segment])
    first, last = (np.clip(slopes[end], 0.0, times_s[end] / knots[end]) for end in (0, -1))
    below = times_s[0] + first * (samples - knots[0])
    above = times_s[-1] + last * (samples - knots[-1])
    found: FloatArray = np.where(samples < knots[0], below, np.where(samples > knots[-1], above, inside))
    return found


def _features(work: Work, settings: Settings) -> FloatArray:
    calls, samples = column(work, "call").astype(np.int64), column(work, "samples")
    shape = np.broadcast_shapes(calls.shape, samples.shape)
    calls, samples = np.broadcast_to(calls, shape), np.broadcast_to(samples, shape)
    seconds, beyond = np.zeros(shape), np.zeros(shape)
    names = sorted(settings)
    # The sub-batches of one call are one column: calls stand along the last axis.
    for place in np.unique(calls).tolist():
        points = vector(settings, names[place])
        knots, times = points[::2], points[1::2]
        chosen = calls == place
        n = samples[chosen]
        seconds[chosen] = line_times_s(n, knots, times)
        if knots.size > 1:
            beyond[chosen] = np.maximum(np.log2(knots[0] / n), np.log2(n / knots[-1]))
    return stacked([seconds, np.maximum(beyond, 0.0)])


def whereabouts(work: Work, settings: Settings) -> IntArray:
    """Return the places in WHEREABOUTS of calls, shape (s, k) for ``call`` of shape (k,), ``samples`` of (s, 1).

    A call measured once does not depend on the sub-batch: it is exact.
    """
    calls, samples = np.broadcast_arrays(column(work, "call").astype(np.int64), column(work, "samples"))
    found = np.zeros(calls.shape, dtype=np.int64)
    names = sorted(settings)
    for place in np.unique(calls).tolist():
        knots = vector(settings, names[place])[::2]
        n = samples[calls == place]
        outside = (n < knots[0]) | (n > knots[-1])
        found[calls == place] = np.where(np.isin(n, knots) | (knots.size == 1), 0, np.where(outside, 2, 1))
    return found


MEASURED_CALLS = FeatureMap(
    LOOKED_UP,
    lambda _settings: (MEASURED_S, BEYOND),
    _features,
    doc="measured times of the very calls, linear in the sub-batch between and beyond those measured; doublings of the "
    "sub-batch beyond them cost nothing and tell extrapolation",
    stated={MEASURED_S: 1.0, BEYOND: 0.0},
)
