"""Fits of :mod:`planner.costs.gaussian_process`: points, length-scales, nugget and weights.

x_i: measured calls; r_i = log t_i - log a(x_i): residuals; K: covariances of points with each other, C of calls with
points; g: nugget, variance of noise over that of the process.

level = mean r; θ = argmin |C·θ - (r - level)|² + g θ'Kθ, which is the process's mean where every call is a point
(K + g)⁻¹(r - level), and its projection on the points where there are more calls than points (Rasmussen and Williams
2006, section 8.3.1). Length-scales and nugget are those of the greatest marginal likelihood on a grid (their eq. 5.8).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from planner.costs.features import number, vector
from planner.costs.gaussian_process import GAUSSIAN_PROCESS, coordinates, covariances, is_corrected, log_prior
from planner.costs.terms import evaluate, term_named
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.calibration import Entry, SettingValue
from planner.domain.samples import Samples
from planner.fitting.diagnostics import errors_of, held_out_times
from planner.fitting.entries import coefficients_of, with_errors
from planner.fitting.rows import group_codes, work_of

__all__ = ["fit_gaussian_process", "process_times_left_out"]

SHORTEST_SHARE = 0.5
"""Of the shortest call measured, what counts as launch at the peak rates: no call is shorter than a launch."""
MOST_POINTS = 200
LEAST_ROWS = 20
NUGGETS = (0.05, 0.1, 0.2, 0.4, 1.0)
SIZES, PADDINGS, TURNS = (1.0, 2.0, 4.0), (0.5, 1.0, 3.0), (1.0, 3.0)
"""Length-scales of logarithms of sizes, of that of padded waves, and of transposition (0 or 1)."""
COLUMNS_SHORTER = (0.5, 1.0)
"""Length-scale of log n, which follows the sub-batch, over that of log m and log k."""
CHANNELS, KERNELS = (1.5, 3.0, 6.0), (0.7, 2.0, 5.0)
"""Length-scales of logarithms of positions and channels of convolutions, and of kernel area, stride and groups."""
OBLONG = 0.5
"""Length-scale of the logarithm of kernel height over width: a 1 x 7 kernel has nothing of a 3 x 3 one."""
UNTOLD = 1e9
"""Length-scale of a coordinate in which no two calls differ: it tells nothing."""
DIGITS = 6
JITTER = 1e-9


def fit_gaussian_process(
    samples: Samples, base: Entry, around: str, share: float, processors: float = 0.0
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
    around : {"mean", "roofline"}
        What the process returns to: the linear term, or launch + FLOP/F + bytes/B of the peaks in the settings.
    share : float
        Share of the process in the average with the linear term.
    processors : float
        Multiprocessors, by which waves of tiles are counted.
    """
    work = work_of(samples, base.kind)
    single = np.broadcast_to(is_corrected(work), samples.time_s.shape)
    if int(single.sum()) < LEAST_ROWS:
        return None
    settings: dict[str, SettingValue] = {
        **base.settings, "mean": base.term, "mean_coefficients": tuple(base.coefficients.values()),
        "around": around, "share": share, "processors": processors,
        "launch_s": _launch_s(samples.time_s),
    }  # fmt: skip
    places = coordinates(work, settings)
    residuals = np.log(samples.time_s) - log_prior(term_named(base.term), work, settings)
    lengths, nugget = _likeliest(places[single], residuals[single], base.kind)
    settings |= {"lengths": tuple(lengths.tolist()), "nugget": nugget}
    entry = replace(
        base, term=GAUSSIAN_PROCESS, settings=settings, standard_errors={}, covariance=None, condition_number=None
    )
    entry = _fitter(entry, samples)(np.ones(samples.size, dtype=np.bool_))
    error = float(np.mean(np.abs(evaluate(entry, work) / samples.time_s - 1)))
    predicted, by = held_out_times(_refit(entry, samples), samples.size, group_codes(samples))
    return with_errors(replace(entry, error=error), errors_of(predicted, by, samples.time_s), samples), predicted


def process_times_left_out(entry: Entry, samples: Samples) -> FloatArray:
    """Return the time [s] of every row without its group, shape (k,), with the entry's length-scales and nugget."""
    return held_out_times(_refit(entry, samples), samples.size, group_codes(samples))[0]


def _refit(entry: Entry, samples: Samples) -> Callable[[BoolArray], Callable[[BoolArray], FloatArray]]:
    fitter = _fitter(entry, samples)

    def refit(rows: BoolArray) -> Callable[[BoolArray], FloatArray]:
        fitted = fitter(rows)
        return lambda out: evaluate(fitted, work_of(samples.select(out), entry.kind))

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
    lengths, nugget = vector(entry.settings, "lengths"), number(entry.settings, "nugget", 0.0)

    def fit(rows: BoolArray) -> Entry:
        theta = coefficients_of(mean, of_mean, features[rows], times[rows], entry.estimator)
        launch_s = _launch_s(times[rows])
        settings = {**entry.settings, "mean_coefficients": tuple(theta.tolist()), "launch_s": launch_s}
        used = rows & single
        places = all_places[used]
        used_work = {name: np.asarray(column)[used] for name, column in work.items()}
        residuals = np.log(times[used]) - log_prior(mean, used_work, settings)
        points = places[_spread_out(places / lengths, MOST_POINTS)]
        level = float(residuals.mean())
        weights = _weights(places, points, residuals - level, lengths, nugget)
        settings["points"] = tuple(points.ravel().tolist())
        names = term_named(GAUSSIAN_PROCESS).columns(settings)
        values = (1.0, level, *weights.tolist(), *(0.0 for _ in of_mean))
        fixed = (names[0], *of_mean)
        return replace(entry, settings=settings, coefficients=dict(zip(names, values, strict=True)), fixed=fixed)

    return fit


def _launch_s(times: FloatArray) -> float:
    return SHORTEST_SHARE * float(times.min())


def _weights(
    places: FloatArray, points: FloatArray, residuals: FloatArray, lengths: FloatArray, nugget: float
) -> FloatArray:
    """Return the weights of the points, shape (q,)."""
    calls, own = covariances(places, points, lengths), covariances(points, points, lengths)
    root = np.linalg.cholesky(own + JITTER * np.eye(len(points)))
    # Normal equations of root.T·θ: unlike those of θ they lose no digits, as the nugget bounds them from below.
    design = np.linalg.solve(root, calls.T)
    whitened = np.linalg.solve(design @ design.T + nugget * np.eye(len(points)), design @ residuals)
    found: FloatArray = np.linalg.solve(root.T, whitened)
    return found


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

    chosen = [int(np.argmin(squares(places.mean(axis=0))))]
    nearest = np.full(len(places), np.inf)
    while len(chosen) < most:
        nearest = np.minimum(nearest, squares(places[chosen[-1]]))
        chosen.append(int(np.argmax(nearest)))
    return np.sort(np.array(chosen, dtype=np.int64))


def _likeliest(places: FloatArray, residuals: FloatArray, kind: str) -> tuple[FloatArray, float]:
    """Return the length-scales and nugget of the greatest marginal likelihood, on at most MOST_POINTS calls."""
    told = np.ptp(places, axis=0) > 0
    kept = _spread_out(places, MOST_POINTS)
    places, residuals = places[kept], residuals[kept] - residuals.mean()
    best = (-np.inf, np.ones(places.shape[1]), NUGGETS[-1])
    for candidate in dict.fromkeys(_length_scales(kind, told)):
        lengths = np.array(candidate)
        values, vectors = np.linalg.eigh(covariances(places, places, lengths))
        squares = (vectors.T @ residuals) ** 2
        for nugget in NUGGETS:
            noisy = np.maximum(values, 0.0) + nugget
            likelihood = -len(kept) * np.log(np.sum(squares / noisy)) - np.sum(np.log(noisy))
            best = max(best, (likelihood, lengths, nugget), key=lambda found: found[0])
    return best[1], best[2]


def _length_scales(kind: str, told: BoolArray) -> Iterator[tuple[float, ...]]:
    """Yield length-scales to try; a coordinate in which no two calls differ tells nothing."""
    if kind == "gemm":
        grid = itertools.product(SIZES, COLUMNS_SHORTER, PADDINGS, TURNS)
        found: Iterator[tuple[float, ...]] = ((a, a * n, a, pad, turn, turn) for a, n, pad, turn in grid)
    else:
        found = ((a, a, a, b, b, b, OBLONG) for a, b in itertools.product(CHANNELS, KERNELS))
    for lengths in found:
        yield tuple(length if tells else UNTOLD for length, tells in zip(lengths, told.tolist(), strict=True))


def _rounded(places: FloatArray) -> FloatArray:
    """Return coordinates as they are stored."""
    return np.array([float(f"{value:.{DIGITS}g}") for value in places.ravel().tolist()]).reshape(places.shape)
