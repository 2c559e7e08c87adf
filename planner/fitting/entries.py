"""One entry of a calibration from the rows that belong to it, with its worst row in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner.costs.features import POINT, Column, FeatureMap, Settings
from planner.costs.terms import evaluate, features_of, term_named
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import Entry
from planner.domain.samples import Samples
from planner.errors import ParameterError
from planner.fitting.diagnostics import (
    LARGEST_COVARIANCE,
    HeldOut,
    condition_number,
    covariance,
    held_out,
    held_out_times,
    identifiable,
)
from planner.fitting.estimators import solve
from planner.fitting.rows import left_out_together, work_columns, work_of
from planner.units import format_seconds

__all__ = ["Key", "coefficients_of", "fit_entry", "linear_times_left_out", "row_in_words", "with_errors"]

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
    origin: str = "measured",
    source: str = "",
    leaves_out: bool = True,
) -> Entry:
    """Return the entry whose coefficients fit the rows, with everything that says how well.

    Features that the rows cannot identify are fixed at 0 and named in ``fixed``, but a FLOP of a class without rows
    costs what it costs in the dearest class with rows; those whose coefficient follows from the formula keep it. A term
    with the log link is fitted to log times by least squares.

    Parameters
    ----------
    samples : Samples
        Rows of one entry: usable, duplicates merged.
    key : scope, kind, direction, precision, library
    term : str
        Registered name of the feature map.
    settings : mapping
    estimator : {"relative-nnls", "least-squares"}
    origin, source : str
    leaves_out : bool
        Whether rows are left out, for the error on those; who leaves out others need not wait.

    Raises
    ------
    ParameterError
        There are no rows, or non-negative coefficients are asked of a term with the log link.
    """
    if samples.size == 0:
        raise ParameterError(f"rows of {' '.join(part for part in key if part)}", "at least 1", 0)
    feature_map = term_named(term)
    if feature_map.link == "log":
        estimator = "least-squares"
    features = feature_map.features(work_of(samples, key[1]), settings)
    columns = feature_map.columns(settings)
    names = [one.name for one in columns]
    entry = Entry(*key, term, settings, dict.fromkeys(names, 0.0), origin=origin, source=source, estimator=estimator)
    rows = np.ones(samples.size, dtype=np.bool_)
    theta, free = _coefficients(feature_map, columns, features, samples.time_s, estimator)
    entry = replace(
        entry,
        coefficients=dict(zip(names, theta.tolist(), strict=True)),
        fixed=tuple(name for name, is_free in zip(names, free, strict=True) if not is_free),
        ranges=_ranges(columns, features) | _ranges_of_work(samples, key[1]),
        samples=samples.size,
    )
    _, _, target = _free_columns(feature_map, columns, features, samples.time_s)
    error = float(np.mean(np.abs(_predict(entry, samples, rows) / samples.time_s - 1)))
    entry = _with_doubt(replace(entry, error=error), features[:, free], target, free)
    # Points of a grid cannot be left out one by one: the rest is then no grid.
    is_whole = not leaves_out or any(one.quantity == POINT for one in columns)
    return entry if is_whole else _held_out(entry, features, samples)


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


def _ranges(columns: Sequence[Column], features: FloatArray) -> dict[str, tuple[float, float]]:
    """Return least and greatest value of every feature; the weights of stored points have none."""
    pairs = ((one, values) for one, values in zip(columns, features.T, strict=True) if one.quantity != POINT)
    return {one.name: (float(values.min()), float(values.max())) for one, values in pairs}


def _ranges_of_work(samples: Samples, kind: str) -> dict[str, tuple[float, float]]:
    """Return least and greatest value of the work columns that change times but stand in no feature."""
    work = {name: np.asarray(work_of(samples, kind)[name]) for name in COLUMNS_BESIDE_FEATURES.get(kind, ())}
    return {name: (float(values.min()), float(values.max())) for name, values in work.items()}


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


def _predict(entry: Entry, samples: Samples, rows: BoolArray) -> FloatArray:
    return evaluate(entry, work_of(samples.select(rows), entry.kind))


def linear_times_left_out(entry: Entry, samples: Samples) -> FloatArray:
    """Return the time [s] of every row by the entry's term fitted without the row's group, shape (k,).

    Parameters
    ----------
    entry : Entry
        Of a term without stored points; its coefficients take no part.
    samples : Samples
        The rows that it was fitted to, two at least.
    """
    features = features_of(entry, work_of(samples, entry.kind))
    return held_out_times(_refit(entry, features, samples), samples.size, *left_out_together(samples, entry.kind))[0]


def coefficients_of(
    term: FeatureMap,
    columns: Sequence[Column],
    features: FloatArray,
    times: FloatArray,
    estimator: str = "relative-nnls",
) -> FloatArray:
    """Return the coefficients of a linear term, shape (p,), as :func:`fit_entry` finds them.

    Parameters
    ----------
    term : FeatureMap
    columns : its p columns
    features : ndarray of shape (n, p)
    times : ndarray of shape (n,) [s]
    estimator : {"relative-nnls", "least-squares"}
    """
    return _coefficients(term, columns, features, times, estimator)[0]


def _refit(
    entry: Entry, features: FloatArray, samples: Samples
) -> Callable[[BoolArray], Callable[[BoolArray], FloatArray]]:
    term = term_named(entry.term)
    columns = term.columns(entry.settings)

    def refit(rows: BoolArray) -> Callable[[BoolArray], FloatArray]:
        theta, _ = _coefficients(term, columns, features[rows], samples.time_s[rows], entry.estimator)
        other = replace(entry, coefficients=dict(zip(entry.coefficients, theta.tolist(), strict=True)))
        return lambda out: _predict(other, samples, out)

    return refit


def with_errors(entry: Entry, errors: HeldOut, samples: Samples) -> Entry:
    """Return an entry with its errors on rows left out, and which of the samples was the worst."""
    return replace(
        entry,
        held_out_error=errors.mean,
        worst_error=errors.worst,
        held_out_by=errors.by,
        worst_point=row_in_words(samples, errors.worst_row, entry.kind),
    )


def _held_out(entry: Entry, features: FloatArray, samples: Samples) -> Entry:
    result = held_out(_refit(entry, features, samples), samples.time_s, *left_out_together(samples, entry.kind))
    if result is None:
        return entry
    return with_errors(entry, result, samples)


SILENT_VALUES = {"batch": 1.0, "groups": 1.0, "pad_h": 0.0, "pad_w": 0.0, "fixed_bytes": 0.0}
"""Work columns, and the value at which they say nothing."""


def row_in_words(samples: Samples, row: int, kind: str) -> str:
    """Return work, time and group of a row: ``m=64 n=32 k=16: 1.2 ms (layer3)``.

    Parameters
    ----------
    samples : Samples
    row : int
        Position of the row, from 0.
    kind : str
        Kind whose work columns the row has.
    """
    values = {name: float(samples.number[name][row]) for name in work_columns(kind)}
    words = [f"{name}={value:.10g}" for name, value in values.items() if _tells(name, value)]
    call = str(samples.text["call"][row]) or " ".join(words)
    group = str(samples.text["group"][row])
    return f"{call}: {format_seconds(float(samples.time_s[row]))}" + (f" ({group})" if group else "")


def _tells(name: str, value: float) -> bool:
    return not np.isnan(value) and value != SILENT_VALUES.get(name)
