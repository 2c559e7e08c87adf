"""Entries of a calibration from the rows that belong to them, of features and of Gaussian processes.

Of :mod:`planner.costs.gaussian_process` points, length-scales, nugget and weights are fitted:

x_i: measured calls; r_i = log t_i - log a(x_i): residuals; K: covariances of points with each other, C of calls with
points; g: nugget, variance of noise over that of the process.

level = mean r; θ = argmin |C·θ - (r - level)|² + g θ'Kθ, which is the process's mean where every call is a point
(K + g)⁻¹(r - level), and its projection on the points where there are more calls than points (Rasmussen and Williams
2006, section 8.3.1). Length-scales, one a coordinate, and nugget are those of the greatest marginal likelihood (their
eq. 5.8) times a prior of the length-scales, in steps of 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from planner.costs.features import POINT, Column, FeatureMap, Settings, number, vector
from planner.costs.gaussian_process import (
    GAUSSIAN_PROCESS,
    SMOOTH_ORDER,
    coordinates,
    covariances,
    is_corrected,
    log_prior,
)
from planner.costs.terms import evaluate, features_of, term_named
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.calibration import LARGEST_COVARIANCE, Entry, SettingValue
from planner.domain.samples import Samples
from planner.errors import ParameterError
from planner.fitting.estimators import (
    HeldOut,
    condition_number,
    covariance,
    errors_of,
    held_out_times,
    identifiable,
    solve,
)
from planner.fitting.rows import left_out_together, work_columns, work_of
from planner.units import format_seconds

Key = tuple[str, str, str, str, str]
"""Scope, kind, direction, precision, library."""

COLUMNS_BESIDE_FEATURES = {"convolution": ("groups",)}
"""Work columns of a kind that its features do not tell apart: grouped convolutions have kernels of their own."""


def fit_entry(
    samples: Samples,
    key: Key,
    term: str,
    settings: Settings,
    *,
    estimator: str = "relative-nnls",
    leaves_out: bool = True,
) -> Entry:
    """Return the entry whose coefficients fit the rows, with everything that says how well.

    Features that the rows cannot identify are fixed at 0 and named in ``fixed``, but a FLOP of a class without rows
    costs what it costs in the dearest class with rows; those whose coefficient follows from the formula keep it. A term
    with the log link is fitted to log times by least squares.

    Parameters
    ----------
    samples : rows of one entry: usable, duplicates merged
    key : scope, kind, direction, precision, library
    term : registered name of the feature map
    estimator : one of ESTIMATORS
    leaves_out : whether rows are left out, for the error on those; who leaves out others need not wait

    ParameterError: there are no rows.
    """
    if samples.size == 0:
        raise ParameterError(f"rows of {' '.join(part for part in key if part)}", "at least 1", 0)
    feature_map = term_named(term)
    if feature_map.link == "log":
        estimator = "least-squares"
    features = feature_map.features(work_of(samples, key[1]), settings)
    columns = feature_map.columns(settings)
    names = [one.name for one in columns]
    entry = Entry(*key, term, settings, dict.fromkeys(names, 0.0), estimator=estimator)
    theta, free = _coefficients(feature_map, columns, features, samples.time_s, estimator)
    entry = replace(
        entry,
        coefficients=dict(zip(names, theta.tolist(), strict=True)),
        fixed=tuple(name for name, is_free in zip(names, free, strict=True) if not is_free),
        ranges=_ranges(columns, features, samples, key[1]),
        samples=samples.size,
    )
    _, _, target = _free_columns(feature_map, columns, features, samples.time_s)
    error = float(np.mean(np.abs(evaluate(entry, work_of(samples, entry.kind)) / samples.time_s - 1)))
    entry = _with_doubt(replace(entry, error=error), features[:, free], target, free)
    # Points of a grid cannot be left out one by one: the rest is then no grid.
    if not leaves_out or samples.size < 2 or any(one.quantity == POINT for one in columns):
        return entry
    return with_errors(entry, errors_of(*times_left_out(entry, samples), samples.time_s), samples)


def _free_columns(
    term: FeatureMap, columns: Sequence[Column], features: FloatArray, times: FloatArray
) -> tuple[FloatArray, BoolArray, FloatArray]:
    """Return the coefficients that the formula states (else 0), which are open to a fit, and what is left to fit."""
    constant = np.array([term.stated.get(one.name, 0.0) for one in columns])
    open_ = np.array([one.name not in term.stated for one in columns])
    return constant, open_, (np.log(times) if term.link == "log" else times) - features @ constant


def _coefficients(
    term: FeatureMap, columns: Sequence[Column], features: FloatArray, times: FloatArray, estimator: str
) -> tuple[FloatArray, BoolArray]:
    """Return coefficients, shape (p,), and which were free."""
    coefficients, free, target = _free_columns(term, columns, features, times)
    free[free] = identifiable(features[:, free], target, estimator)
    if free.any():
        coefficients[free] = solve(features[:, free], target, estimator)
    classes = np.array([one.call_class != "" for one in columns])
    has_rows = features.any(axis=0)
    coefficients[classes & ~has_rows] = coefficients[classes & has_rows].max(initial=0.0)
    return coefficients, free


def _ranges(
    columns: Sequence[Column], features: FloatArray, samples: Samples, kind: str
) -> dict[str, tuple[float, float]]:
    """Return the ranges of features, but of weights of stored points, and of work columns that stand in no feature."""
    pairs = zip(columns, features.T, strict=True)
    values = {one.name: of_rows for one, of_rows in pairs if one.quantity != POINT}
    values |= {name: np.asarray(work_of(samples, kind)[name]) for name in COLUMNS_BESIDE_FEATURES.get(kind, ())}
    return {name: (float(of_rows.min()), float(of_rows.max())) for name, of_rows in values.items()}


def _with_doubt(entry: Entry, features: FloatArray, target: FloatArray, free: BoolArray) -> Entry:
    """Return an entry with the doubt that its rows leave; without errors where it meets every row by construction."""
    names = [name for name, is_free in zip(entry.coefficients, free, strict=True) if is_free]
    theta = np.array([entry.coefficients[name] for name in names])
    entry = replace(entry, condition_number=condition_number(features, target, entry.estimator))
    doubt = covariance(features, target, theta, entry.estimator)
    if doubt is None:
        return replace(entry, error=None)
    full = np.zeros((free.size, free.size))
    full[np.ix_(free, free)] = doubt[0]
    errors = dict(zip(names, np.sqrt(np.diag(doubt[0])).tolist(), strict=True))
    rows = tuple(tuple(row) for row in full.tolist()) if free.size <= LARGEST_COVARIANCE else None
    return replace(entry, standard_errors=errors, covariance=rows)


def times_left_out(entry: Entry, samples: Samples) -> tuple[FloatArray, str]:
    """Return the time [s] of every row by the entry's term fitted without the row's group, shape (k,), and its name.

    ``entry``: its coefficients take no part, but the length-scales and nugget of a process do; ``samples``: the rows
    that it was fitted to, two at least.
    """
    fit = (_process_fit if entry.term == GAUSSIAN_PROCESS else _linear_fit)(entry, samples)

    def refit(rows: BoolArray) -> Callable[[BoolArray], FloatArray]:
        part = fit(rows)
        return lambda out: evaluate(part, work_of(samples.select(out), entry.kind))

    return held_out_times(refit, samples.size, *left_out_together(samples, entry.kind))


def _linear_fit(entry: Entry, samples: Samples) -> Callable[[BoolArray], Entry]:
    """Return what fits the coefficients of the entry to some of the rows."""
    term, features = term_named(entry.term), features_of(entry, work_of(samples, entry.kind))
    columns = term.columns(entry.settings)

    def fit(rows: BoolArray) -> Entry:
        theta, _ = _coefficients(term, columns, features[rows], samples.time_s[rows], entry.estimator)
        return replace(entry, coefficients=dict(zip(entry.coefficients, theta.tolist(), strict=True)))

    return fit


def with_errors(entry: Entry, errors: HeldOut, samples: Samples) -> Entry:
    """Return an entry with its errors on rows left out, and which of the samples was the worst."""
    return replace(
        entry,
        held_out_error=errors.mean,
        worst_error=errors.worst,
        held_out_by=errors.by,
        worst_point=row_in_words(samples, errors.worst_row, entry.kind),
    )


SILENT_VALUES = {"batch": 1.0, "groups": 1.0, "pad_h": 0.0, "pad_w": 0.0, "fixed_bytes": 0.0}
"""Work columns, and the value at which they say nothing."""


def row_in_words(samples: Samples, row: int, kind: str) -> str:
    """Return work, time and group of a row: ``m=64 n=32 k=16: 1.2 ms (layer3)``.

    ``row``: position of the row, from 0; ``kind``: kind whose work columns the row has.
    """
    values = {name: float(samples.number[name][row]) for name in work_columns(kind)}
    told = {name: value for name, value in values.items() if not np.isnan(value) and value != SILENT_VALUES.get(name)}
    call = str(samples.text["call"][row]) or " ".join(f"{name}={value:.10g}" for name, value in told.items())
    group = str(samples.text["group"][row])
    return f"{call}: {format_seconds(float(samples.time_s[row]))}" + (f" ({group})" if group else "")


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
    share : its share in the average with the linear term
    order : {1.5, 0.5}; of the covariance: how smooth it is
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

    ``samples``: the rows that ``base`` was fitted to; ``base``: of a linear term, its settings go on into the process;
    ``processors``: multiprocessors, by which waves of tiles are counted.
    """
    work = work_of(samples, base.kind)
    single = np.broadcast_to(is_corrected(work), samples.time_s.shape)
    if int(single.sum()) < LEAST_ROWS:
        return None
    settings: dict[str, SettingValue] = {
        **base.settings, "mean": base.term, "mean_coefficients": tuple(base.coefficients.values()),
        "around": process.around, "share": process.share, "order": process.order, "processors": processors,
        "launch_s": SHORTEST_SHARE * float(samples.time_s.min()),
    }  # fmt: skip
    places = coordinates(work, settings)
    residuals = np.log(samples.time_s) - log_prior(term_named(base.term), work, settings)
    lengths, nugget = _likeliest(places[single], residuals[single], base.kind, process.order)
    settings |= {"lengths": tuple(lengths.tolist()), "nugget": nugget}
    entry = replace(
        base, term=GAUSSIAN_PROCESS, settings=settings, standard_errors={}, covariance=None, condition_number=None
    )
    entry = _process_fit(entry, samples)(np.ones(samples.size, dtype=np.bool_))
    error = float(np.mean(np.abs(evaluate(entry, work) / samples.time_s - 1)))
    left_out_s, by = times_left_out(entry, samples)
    return with_errors(replace(entry, error=error), errors_of(left_out_s, by, samples.time_s), samples), left_out_s


def _process_fit(entry: Entry, samples: Samples) -> Callable[[BoolArray], Entry]:
    """Return what fits mean, points, level and weights of the entry to some of the rows."""
    work, times = work_of(samples, entry.kind), samples.time_s
    mean = term_named(str(entry.settings["mean"]))
    of_mean, features = mean.columns(entry.settings), mean.features(work, entry.settings)
    single = np.broadcast_to(is_corrected(work), times.shape)
    places_of_all = coordinates(work, entry.settings)
    stored = [float(f"{value:.{DIGITS}g}") for value in places_of_all.ravel().tolist()]
    all_places = np.array(stored).reshape(places_of_all.shape)
    lengths, order = vector(entry.settings, "lengths"), number(entry.settings, "order", SMOOTH_ORDER)
    nugget = number(entry.settings, "nugget", 0.0)

    def fit(rows: BoolArray) -> Entry:
        theta, _ = _coefficients(mean, of_mean, features[rows], times[rows], entry.estimator)
        launch_s = SHORTEST_SHARE * float(times[rows].min())
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
    """Return the length-scales and nugget of the greatest posterior density, on at most MOST_POINTS calls."""
    varies = np.ptp(places, axis=0) > 0
    points = _spread_out(places, MOST_POINTS)
    places, residuals = places[points], residuals[points] - residuals.mean()
    usual = np.where(varies, USUAL_LENGTHS[kind], IRRELEVANT_LENGTH)

    def density(lengths: FloatArray, nugget: float) -> float:
        prior = -0.5 * float(np.sum((np.log(lengths / usual) / LENGTHS_DEVIATION) ** 2))
        root = np.linalg.cholesky(covariances(places, places, lengths, order) + nugget * np.eye(len(places)))
        white = np.linalg.solve(root, residuals)
        squares = max(float(white @ white), LEAST_SQUARES)  # with the likeliest variance of the process
        return prior - (0.5 * len(places) * float(np.log(squares)) + float(np.sum(np.log(np.diag(root)))))

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
