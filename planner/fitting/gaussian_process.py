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
from planner.fitting.diagnostics import held_out, held_out_times
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
) -> Entry | None:
    """Return the entry of a process around ``base``, held out by group as that was; None with too few calls.

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
        "launch_s": _launch_s(samples),
    }  # fmt: skip
    places = coordinates(work, settings)
    residuals = np.log(samples.time_s) - log_prior(term_named(base.term), work, settings)
    lengths, nugget = _likeliest(places[single], residuals[single], base.kind)
    settings |= {"lengths": tuple(lengths.tolist()), "nugget": nugget}
    entry = replace(
        base, term=GAUSSIAN_PROCESS, settings=settings, standard_errors={}, covariance=None, condition_number=None
    )
    entry = _fitted(entry, samples, np.ones(samples.size, dtype=np.bool_))
    error = float(np.mean(np.abs(evaluate(entry, work) / samples.time_s - 1)))
    entry = replace(entry, error=error, held_out_error=None, worst_error=None)
    found = held_out(_refit(entry, samples), samples.time_s, group_codes(samples))
    if found is None:
        return entry
    return with_errors(entry, found, samples)


def process_times_left_out(entry: Entry, samples: Samples) -> FloatArray:
    """Return the time [s] of every row without its group, shape (k,), with the entry's length-scales and nugget."""
    return held_out_times(_refit(entry, samples), samples.size, group_codes(samples))[0]


def _refit(entry: Entry, samples: Samples) -> Callable[[BoolArray], Callable[[BoolArray], FloatArray]]:
    def refit(rows: BoolArray) -> Callable[[BoolArray], FloatArray]:
        fitted = _fitted(entry, samples, rows)
        return lambda out: evaluate(fitted, work_of(samples.select(out), entry.kind))

    return refit


def _fitted(entry: Entry, samples: Samples, rows: BoolArray) -> Entry:
    """Return the entry with mean, points, level and weights from some of the rows."""
    used = samples.select(rows)
    work = work_of(used, entry.kind)
    mean = term_named(str(entry.settings["mean"]))
    of_mean = mean.columns(entry.settings)
    theta = coefficients_of(mean, of_mean, mean.features(work, entry.settings), used.time_s, entry.estimator)
    settings = {**entry.settings, "mean_coefficients": tuple(theta.tolist()), "launch_s": _launch_s(used)}
    single = np.broadcast_to(is_corrected(work), used.time_s.shape)
    places = _rounded(coordinates(work, settings)[single])
    residuals = (np.log(used.time_s) - log_prior(mean, work, settings))[single]
    lengths, nugget = vector(settings, "lengths"), number(settings, "nugget", 0.0)
    points = _spread_out(places / lengths, MOST_POINTS)
    level = float(residuals.mean())
    weights = _weights(places, places[points], residuals - level, lengths, nugget)
    settings["points"] = tuple(places[points].ravel().tolist())
    names = term_named(GAUSSIAN_PROCESS).columns(settings)
    values = (1.0, level, *weights.tolist(), *(0.0 for _ in of_mean))
    fixed = (names[0], *of_mean)
    return replace(entry, settings=settings, coefficients=dict(zip(names, values, strict=True)), fixed=fixed)


def _launch_s(samples: Samples) -> float:
    return SHORTEST_SHARE * float(samples.time_s.min())


def _weights(
    places: FloatArray, points: FloatArray, residuals: FloatArray, lengths: FloatArray, nugget: float
) -> FloatArray:
    """Return the weights of the points, shape (q,)."""
    calls, own = covariances(places, points, lengths), covariances(points, points, lengths)
    root = np.linalg.cholesky(own + JITTER * np.eye(len(points)))
    design = np.vstack([calls, np.sqrt(nugget) * root.T])
    target = np.concatenate([residuals, np.zeros(len(points))])
    # By QR, several times faster than singular values where calls are many; the nugget gives the design full rank.
    orthogonal, triangular = np.linalg.qr(design)
    found: FloatArray = np.linalg.solve(triangular, orthogonal.T @ target)
    return found


def _spread_out(places: FloatArray, most: int) -> IntArray:
    """Return which places are points: all, or one after another the farthest from those before, in ascending order."""
    if len(places) <= most:
        return np.arange(len(places))
    chosen = [int(np.argmin(np.sum((places - places.mean(axis=0)) ** 2, axis=1)))]
    nearest = np.full(len(places), np.inf)
    while len(chosen) < most:
        nearest = np.minimum(nearest, np.sum((places - places[chosen[-1]]) ** 2, axis=1))
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
