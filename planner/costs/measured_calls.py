"""Times of calls that were measured as they are, and what they take at other sub-batches.

A setting is a call's name -> (n_1, t_1, n_2, t_2, ...): sub-batches in ascending order, times [s]. Work is ``call``,
the place of the name among the sorted ones, ``samples``, the sub-batch n, and, where a fit serves kernels like the
call, ``curve`` and ``curve_error``. A measured sub-batch gives back its time.

Line: L(n), linear between measured sub-batches; beyond either end a + b·n goes on through the end point, a, b >= 0. Its
slope there is that to the nearest measured sub-batch a doubling away: neighbours, as where a library computes a call in
another way from some sub-batch on, tell none.
Scaling curve: with the fit's times f, B(n) = t̄(n)·f(n)/f̄(n), where t̄ and f̄ go through measured and fitted times at the
measured sub-batches, linear between them and constant beyond. So B is f times a ratio of measured to fitted time:
between, the mean of those at both sides, weighted with what each adds to f̄; beyond, that of the end. With f in
proportion to t it is t, however that bends.

t = L·(B/L)^ω, ω = c²/(c² + e²), c = ln(B/L), e the fit's relative error on rows left out (``curve_error``): a bend
that is small against what the fit is off is not believed (shrinkage as in Thompson, JASA 63, 1968, pages 113-122).
Without a curve (none given, or not a number) the line stands.
"""

from __future__ import annotations

import numpy as np

from planner.costs.features import NUMBER, SECOND, Column, FeatureMap, Settings, Work, column, stacked, vector
from planner.domain.arrays import FloatArray, IntArray, distinct_values
from planner.domain.network import LOOKED_UP

MEASURED_S, DOUBLINGS_BEYOND = "measured_s", "doublings_beyond"
CURVE, CURVE_ERROR = "curve", "curve_error"
MARGIN_DOUBLINGS = 1.0
"""Doublings of the sub-batch beyond the measured ones that count as measured."""
WHEREABOUTS = ("exact", "between", "beyond")
"""Where a sub-batch stands among those that a call was measured at: one of them, between two, or outside all."""


def line_times_s(samples: FloatArray, knots: FloatArray, times_s: FloatArray) -> FloatArray:
    """Return times at sub-batches, piecewise linear, shape of ``samples``.

    ``samples``: ndarray of shape (...); ``knots``, ``times_s``: ndarray of shape (q,), measured sub-batches, ascending,
    and their times.
    """
    if knots.size == 1:
        return np.full(np.shape(samples), times_s[0])
    slopes = np.diff(times_s) / np.diff(knots)
    segment = np.clip(np.searchsorted(knots, samples, side="right") - 1, 0, slopes.size - 1)
    inside = times_s[segment] + slopes[segment] * (samples - knots[segment])
    first, last = (_slope_beyond(knots[::way], times_s[::way]) for way in (1, -1))
    below = times_s[0] + first * (samples - knots[0])
    above = times_s[-1] + last * (samples - knots[-1])
    return np.asarray(np.where(samples < knots[0], below, np.where(samples >= knots[-1], above, inside)))


def _slope_beyond(knots: FloatArray, times_s: FloatArray) -> float:
    """Return the slope beyond the first of the knots, which are in either order: see the head of the module."""
    apart = np.flatnonzero(np.maximum(knots / knots[0], knots[0] / knots) >= 2)
    other = apart[0] if apart.size else -1
    slope = (times_s[other] - times_s[0]) / (knots[other] - knots[0])
    return float(np.clip(slope, 0.0, times_s[0] / knots[0]))


def relative_curve(
    samples: FloatArray, fitted_s: FloatArray, knots: FloatArray, fitted_knots_s: FloatArray
) -> FloatArray:
    """Return f(n)/f̄(n): 1 at the measured sub-batches, not a number where the fit gives no time.

    ``samples``, ``fitted_s``: ndarray of shape (...), sub-batches, and the fit's times at them; ``knots``,
    ``fitted_knots_s``: ndarray of shape (q,), measured sub-batches, ascending, and the fit's times at them.
    """
    line = np.interp(samples, knots, fitted_knots_s)
    unknown = np.full(np.shape(line), np.nan)
    return np.asarray(np.divide(fitted_s, line, out=unknown, where=(line > 0) & (fitted_s > 0)))


def times_s(
    samples: FloatArray, knots: FloatArray, measured_s: FloatArray, curve: FloatArray, error: FloatArray
) -> FloatArray:
    """Return the times of a call [s], shape (...).

    Parameters
    ----------
    samples : ndarray of shape (...)
    knots, measured_s : ndarray of shape (q,); measured sub-batches, ascending, and their times
    curve, error : ndarray broadcasting to (...)
        The relative curve there, not a number where none is known, and the relative error of its fit.
    """
    line = line_times_s(samples, knots, measured_s)
    bend = np.log(np.interp(samples, knots, measured_s) * curve / line)
    unsure = bend**2 + error**2
    correction = np.divide(bend**3, unsure, out=np.zeros(np.shape(bend)), where=unsure > 0)
    return np.asarray(line * np.exp(correction))


def _features(work: Work, settings: Settings) -> FloatArray:
    curve, error = (column(work, name) if name in work else np.array(np.nan) for name in (CURVE, CURVE_ERROR))
    calls, samples, curve, error = np.broadcast_arrays(
        column(work, "call").astype(np.int64), column(work, "samples"), curve, error
    )
    seconds, beyond = np.zeros(calls.shape), np.zeros(calls.shape)
    names = sorted(settings)
    # The sub-batches of one call are one column: calls stand curve the last axis.
    for place in distinct_values(calls).tolist():
        points = vector(settings, names[place], of=2)
        knots, times = points[::2], points[1::2]
        own = calls == place
        n = samples[own]
        seconds[own] = times_s(n, knots, times, curve[own], error[own])
        if knots.size > 1:
            beyond[own] = np.maximum(np.log2(knots[0] / n), np.log2(n / knots[-1]))
    return stacked([seconds, np.maximum(beyond, 0.0)])


def whereabouts(work: Work, settings: Settings) -> IntArray:
    """Return the places in WHEREABOUTS of calls, shape (s, k) for ``call`` of shape (k,), ``samples`` of (s, 1).

    A call measured once does not depend on the sub-batch: it is exact.
    """
    calls, samples = np.broadcast_arrays(column(work, "call").astype(np.int64), column(work, "samples"))
    places = np.zeros(calls.shape, dtype=np.int64)
    names = sorted(settings)
    for call in distinct_values(calls).tolist():
        knots = vector(settings, names[call], of=2)[::2]
        n = samples[calls == call]
        outside = (n < knots[0]) | (n > knots[-1])
        places[calls == call] = np.where(np.isin(n, knots) | (knots.size == 1), 0, np.where(outside, 2, 1))
    return places


MEASURED_CALLS = FeatureMap(
    LOOKED_UP,
    lambda _settings: (Column(MEASURED_S, SECOND), Column(DOUBLINGS_BEYOND, NUMBER)),
    _features,
    doc="measured times of the very calls; at other sub-batches times of the fit to kernels like them by the ratio of "
    "measured to fitted ones, drawn towards a line by the fit's error, and without a fit the line; doublings of the "
    "sub-batch beyond those measured cost nothing and tell extrapolation",
    stated={MEASURED_S: 1.0, DOUBLINGS_BEYOND: 0.0},
)
