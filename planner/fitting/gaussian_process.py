"""Fits of :mod:`planner.costs.gaussian_process`: points, length-scales, nugget and weights.

x_i: measured calls; r_i = log t_i - log a(x_i): residuals; K: covariances of points with each other, C of calls with
points; g: nugget, variance of noise over that of the process.

level = mean r; θ = argmin |C·θ - (r - level)|² + g θ'Kθ, which is the process's mean where every call is a point
(K + g)⁻¹(r - level), and its projection on the points where there are more calls than points (Rasmussen and Williams
2006, section 8.3.1). Length-scales, one a coordinate, and nugget are those of the greatest marginal likelihood (their
eq. 5.8) times a prior of the length-scales, in steps of 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.costs.features import number, vector
from planner.costs.gaussian_process import (
    GAUSSIAN_PROCESS,
    SMOOTH_ORDER,
    coordinates,
    covariances,
    is_corrected,
    log_prior,
)
from planner.costs.terms import evaluate, term_named
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.calibration import Entry, SettingValue
from planner.domain.samples import Samples
from planner.fitting.diagnostics import errors_of, held_out_times
from planner.fitting.entries import coefficients_of, with_errors
from planner.fitting.rows import left_out_together, work_of

__all__ = ["Process", "fit_gaussian_process", "process_times_left_out"]

SHORTEST_SHARE = 0.5
"""Of the shortest call measured, what counts as launch at the peak rates: no call is shorter than a launch."""
MOST_POINTS = 200
LEAST_ROWS = 20
NUGGETS = (0.05, 0.1, 0.2, 0.4, 1.0)
USUAL_LENGTHS = {"gemm": (2.0,) * 10, "convolution": (3.0, 3.0, 3.0, 1.0, 1.0, 1.0, 0.5)}
"""Median length-scales a priori. Of convolutions, classes of kernels differ more than sizes: a 1 x 7 kernel has nothing
of a 3 x 3 one."""
LENGTHS_DEVIATION = 1.4
"""Standard deviation of the logarithm of a length-scale a priori: few calls do not overrule what is usual."""
SWEEPS, LEAST_GAIN = 4, 1e-3
"""Rounds over all length-scales at most, and what a step must add to the logarithm of the density."""
IRRELEVANT_LENGTH = 1e9
"""Length-scale of a coordinate in which no two calls differ: it tells nothing."""
DIGITS = 6
JITTER = 1e-9
LEAST_SQUARES = 1e-12
"""Sums of squared residuals are at least this: where nothing is left to tell, no length-scale is likelier."""


class Process(NamedTuple):
    """A process that competes.

    Attributes
    ----------
    around : {"mean", "roofline"}
        What it returns to: the linear term, or launch + FLOP/F + bytes/B of the peaks in the settings.
    share : float
        Its share in the average with the linear term.
    order : {1.5, 0.5}
        Of the covariance: how smooth it is.
    """

    around: str
    share: float = 1.0
    order: float = SMOOTH_ORDER


def fit_gaussian_process(
    samples: Samples, base: Entry, process: Process, processors: float = 0.0
) -> tuple[Entry, FloatArray] | None:
    """Return the entry of a process around ``base``, held out by group as that was; None with too few calls.

    Beside it stands the time [s] of every row predicted without its group, shape (k,).

    Length-scales and nugget are chosen once, on all rows; mean, level and weights are fitted without each group.

    Parameters
    ----------
    samples : Samples
        The rows that ``base`` was fitted to.
    base : Entry
        Of a linear term; its settings go on into the process.
    process : Process
    processors : float
        Multiprocessors, by which waves of tiles are counted.
    """
    work = work_of(samples, base.kind)
    single = np.broadcast_to(is_corrected(work), samples.time_s.shape)
    if int(single.sum()) < LEAST_ROWS:
        return None
    settings: dict[str, SettingValue] = {
        **base.settings, "mean": base.term, "mean_coefficients": tuple(base.coefficients.values()),
        "around": process.around, "share": process.share, "order": process.order, "processors": processors,
        "launch_s": _launch_s(samples.time_s),
    }  # fmt: skip
    places = coordinates(work, settings)
    residuals = np.log(samples.time_s) - log_prior(term_named(base.term), work, settings)
    lengths, nugget = _likeliest(places[single], residuals[single], base.kind, process.order)
    settings |= {"lengths": tuple(lengths.tolist()), "nugget": nugget}
    entry = replace(
        base, term=GAUSSIAN_PROCESS, settings=settings, standard_errors={}, covariance=None, condition_number=None
    )
    entry = _fitter(entry, samples)(np.ones(samples.size, dtype=np.bool_))
    error = float(np.mean(np.abs(evaluate(entry, work) / samples.time_s - 1)))
    left_out_s, by = held_out_times(_refit(entry, samples), samples.size, *left_out_together(samples, entry.kind))
    return with_errors(replace(entry, error=error), errors_of(left_out_s, by, samples.time_s), samples), left_out_s


def process_times_left_out(entry: Entry, samples: Samples) -> FloatArray:
    """Return the time [s] of every row without its group, shape (k,), with the entry's length-scales and nugget."""
    return held_out_times(_refit(entry, samples), samples.size, *left_out_together(samples, entry.kind))[0]


def _refit(entry: Entry, samples: Samples) -> Callable[[BoolArray], Callable[[BoolArray], FloatArray]]:
    fitter = _fitter(entry, samples)

    def refit(rows: BoolArray) -> Callable[[BoolArray], FloatArray]:
        part = fitter(rows)
        return lambda out: evaluate(part, work_of(samples.select(out), entry.kind))

    return refit


def _fitter(entry: Entry, samples: Samples) -> Callable[[BoolArray], Entry]:
    """Return what fits mean, points, level and weights of the entry to some of the rows.

    What does not depend on which rows they are is made once.
    """
    work, times = work_of(samples, entry.kind), samples.time_s
    mean = term_named(str(entry.settings["mean"]))
    of_mean, features = mean.columns(entry.settings), mean.features(work, entry.settings)
    single = np.broadcast_to(is_corrected(work), times.shape)
    all_places = _rounded(coordinates(work, entry.settings))
    lengths, order = vector(entry.settings, "lengths"), number(entry.settings, "order", SMOOTH_ORDER)
    nugget = number(entry.settings, "nugget", 0.0)

    def fit(rows: BoolArray) -> Entry:
        theta = coefficients_of(mean, of_mean, features[rows], times[rows], entry.estimator)
        launch_s = _launch_s(times[rows])
        settings = {**entry.settings, "mean_coefficients": tuple(theta.tolist()), "launch_s": launch_s}
        own = rows & single
        places = all_places[own]
        used_work = {name: np.asarray(column)[own] for name, column in work.items()}
        residuals = np.log(times[own]) - log_prior(mean, used_work, settings)
        points = places[_spread_out(places / lengths, MOST_POINTS)]
        level = float(residuals.mean())
        weights = _weights(
            covariances(places, points, lengths, order),
            covariances(points, points, lengths, order),
            residuals - level,
            nugget,
        )
        settings["points"] = tuple(points.ravel().tolist())
        names = term_named(GAUSSIAN_PROCESS).names(settings)
        values = (1.0, level, *weights.tolist(), *(0.0 for _ in of_mean))
        stated_names = (names[0], *(one.name for one in of_mean))
        return replace(entry, settings=settings, coefficients=dict(zip(names, values, strict=True)), fixed=stated_names)

    return fit


def _launch_s(times: FloatArray) -> float:
    return SHORTEST_SHARE * float(times.min())


def _weights(calls: FloatArray, own: FloatArray, residuals: FloatArray, nugget: float) -> FloatArray:
    """Return the weights of the q points, shape (q,), of covariances of calls (k, q) and points (q, q) with these."""
    diagonal = np.eye(len(own))
    root = np.linalg.cholesky(own + JITTER * diagonal)
    # Normal equations of root.T·θ: unlike those of θ they lose no digits, as the nugget bounds them from below.
    design = np.linalg.solve(root, calls.T)
    white = np.linalg.solve(design @ design.T + nugget * diagonal, design @ residuals)
    return np.asarray(np.linalg.solve(root.T, white))


def _spread_out(places: FloatArray, most: int) -> IntArray:
    """Return which places are points: all, or one after another the farthest from those before, in ascending order."""
    if len(places) <= most:
        return np.arange(len(places))
    columns = np.ascontiguousarray(places.T)

    def squares(place: FloatArray) -> FloatArray:
        total = np.zeros(len(places))
        for column, value in zip(columns, place, strict=True):  # several times faster than a sum over a short axis
            total += (column - value) ** 2
        return total

    points = [int(np.argmin(squares(places.mean(axis=0))))]
    nearest = np.full(len(places), np.inf)
    while len(points) < most:
        nearest = np.minimum(nearest, squares(places[points[-1]]))
        points.append(int(np.argmax(nearest)))
    return np.sort(np.array(points, dtype=np.int64))


def _likeliest(places: FloatArray, residuals: FloatArray, kind: str, order: float) -> tuple[FloatArray, float]:
    """Return the length-scales and nugget of the greatest posterior density, on at most MOST_POINTS calls.

    One length-scale after another is doubled or halved while that betters the density, then the nugget is chosen anew.
    """
    varies = np.ptp(places, axis=0) > 0
    points = _spread_out(places, MOST_POINTS)
    places, residuals = places[points], residuals[points] - residuals.mean()
    usual = np.where(varies, USUAL_LENGTHS[kind], IRRELEVANT_LENGTH)

    def density(lengths: FloatArray, nugget: float) -> float:
        prior = -0.5 * float(np.sum((np.log(lengths / usual) / LENGTHS_DEVIATION) ** 2))
        return prior + _log_likelihood(covariances(places, places, lengths, order), residuals, nugget)

    lengths, nugget = usual, max(NUGGETS, key=lambda noise: density(usual, noise))
    best = density(lengths, nugget)
    for _ in range(SWEEPS):
        before = best
        for place, factor in itertools.product(np.flatnonzero(varies).tolist(), (2.0, 0.5)):
            while True:
                scales = lengths.copy()
                scales[place] *= factor
                moved_density = density(scales, nugget)
                if moved_density <= best + LEAST_GAIN:
                    break
                best, lengths = moved_density, scales
        at = lengths
        nugget = max(NUGGETS, key=lambda noise: density(at, noise))
        best = density(lengths, nugget)
        if best <= before + LEAST_GAIN:
            break
    return lengths, nugget


def _log_likelihood(own: FloatArray, residuals: FloatArray, nugget: float) -> float:
    """Return the logarithm of the marginal likelihood, less a constant, with the likeliest variance of the process."""
    root = np.linalg.cholesky(own + nugget * np.eye(len(own)))
    white = np.linalg.solve(root, residuals)
    squares = max(float(white @ white), LEAST_SQUARES)
    return -0.5 * len(own) * float(np.log(squares)) - float(np.sum(np.log(np.diag(root))))


def _rounded(places: FloatArray) -> FloatArray:
    """Return coordinates as they are stored."""
    return np.array([float(f"{value:.{DIGITS}g}") for value in places.ravel().tolist()]).reshape(places.shape)
