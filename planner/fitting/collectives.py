"""Entries of measured collectives: no formula joins numbers of ranks, each case is fitted by itself.

Two forms compete on every fourth size left out: 1, sqrt V, V; and piecewise alpha-beta with up to three segments,
split where that lowers the squared relative error most. One line misses by 10 to 40 % where a library changes its
algorithm with the size of the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

import numpy as np

from planner.costs.measured_collectives import breaks_key
from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry, SettingValue
from planner.domain.samples import Samples
from planner.fitting.entries import Key, fit_entry
from planner.fitting.rows import merged, take, usable, work_of

__all__ = ["best_breaks", "fit_collectives"]

LEAST_SIZES = 4
FOLDS = 4
LEAST_SEGMENTED_SIZES = 12
MOST_BREAKS = 2
MOST_CANDIDATES = 64
LEAST_IN_SEGMENT = 3
COEFFICIENTS_OF_A_BREAK = 3
NEGLIGIBLE = 1e-3
"""A relative error that no break is worth."""


def fit_collectives(
    samples: Samples, *, estimator: str = "relative-nnls", origin: str = "measured", source: str = ""
) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """Return one entry for every operation, and a sentence for each that has too few rows."""
    mask, _ = usable(samples)
    rows = samples.select(mask & (samples.text["operation"] != ""))
    entries, missing = [], []
    for operation in sorted(set(rows.text["operation"].tolist())):
        own = merged(rows.select(rows.text["operation"] == operation), operation)
        short = [case for case, part in _cases(own) if part.size < LEAST_SIZES]
        missing += [f"{operation} on {n} nodes of {r} ranks: {LEAST_SIZES} sizes needed" for n, r in short]
        parts = [part for case, part in _cases(own) if case not in short]
        if parts:
            rows_in_order = reduce(Samples.joined, parts)
            best = _best(rows_in_order, ("collectives", operation, "", "", ""), estimator)
            entries.append(replace(best, origin=origin, source=source))
    return tuple(entries), tuple(missing)


def _cases(samples: Samples) -> Iterator[tuple[tuple[int, int], Samples]]:
    """Yield (nodes, ranks per node) with its rows in order of size; one rank sends nothing."""
    nodes, ranks = (samples.number[name].astype(int) for name in ("nodes", "ranks_per_node"))
    for case in sorted(set(zip(nodes.tolist(), ranks.tolist(), strict=True))):
        mask = (nodes == case[0]) & (ranks == case[1])
        if case[0] * case[1] > 1:
            rows = np.flatnonzero(mask)
            yield case, take(samples, rows[np.argsort(samples.number["bytes"][rows], kind="stable")])


def _settings(samples: Samples, form: str) -> dict[str, SettingValue]:
    cases = list(_cases(samples))
    settings: dict[str, SettingValue] = {"form": form, "cases": tuple(float(x) for case, _ in cases for x in case)}
    if form == "segments":
        for case, part in cases:
            settings[breaks_key(case)] = best_breaks(part.number["bytes"], part.time_s)
    return settings


def _left_out(samples: Samples, key: Key, form: str, estimator: str) -> FloatArray:
    """Return the absolute relative errors on every fourth size, breaks and coefficients from the others, shape (k,)."""
    fold = np.concatenate([np.arange(part.size) % FOLDS for _, part in _cases(samples)])
    errors = []
    for value in range(FOLDS):
        rest, out = samples.select(fold != value), samples.select(fold == value)
        settings = _settings(rest, form)
        entry = fit_entry(rest, key, "collective.cases", settings, estimator=estimator)
        errors.append(np.abs(evaluate(entry, work_of(out, key[1])) / out.time_s - 1))
    return np.concatenate(errors)


def _best(samples: Samples, key: Key, estimator: str) -> Entry:
    """Return the form whose median error on sizes left out is least.

    The median, because no fit can place a jump that stands beside a size left out: one such point can be 4 times off.
    """
    errors = {form: _left_out(samples, key, form, estimator) for form in ("sqrt", "segments")}
    form = min(errors, key=lambda name: float(np.median(errors[name])))
    entry = fit_entry(samples, key, "collective.cases", _settings(samples, form), estimator=estimator)
    mean, worst = float(errors[form].mean()), float(errors[form].max())
    return replace(entry, held_out_error=mean, worst_error=worst, held_out_by="every fourth size")


def best_breaks(bytes_: FloatArray, times: FloatArray) -> tuple[float, ...]:
    """Return the sizes [byte] after which a new straight line begins, at most two.

    Breaks are taken one at a time, the one that lowers the squared relative error most, while that gains more than
    twice what the Bayesian information criterion asks for place, step and slope (twice: the place is the best of many).
    A segment keeps at least three sizes, and fewer than twelve sizes are one segment.

    Parameters
    ----------
    bytes_ : ndarray of shape (k,), increasing
    times : ndarray of shape (k,)
    """
    if bytes_.size < LEAST_SEGMENTED_SIZES:
        return ()
    all_places = np.arange(LEAST_IN_SEGMENT, bytes_.size - LEAST_IN_SEGMENT + 1)
    places = all_places[:: -(-all_places.size // MOST_CANDIDATES)]
    ends: list[int] = []
    error = _squares(bytes_, times, ends)
    gain = np.exp(-2 * COEFFICIENTS_OF_A_BREAK * np.log(bytes_.size) / bytes_.size)
    while len(ends) < MOST_BREAKS and error > bytes_.size * NEGLIGIBLE**2:
        options = [place for place in places if all(abs(place - other) >= LEAST_IN_SEGMENT for other in ends)]
        scores = [(_squares(bytes_, times, sorted([*ends, int(place)])), int(place)) for place in options]
        best, place = min(scores)
        if best > gain * error:
            break
        ends, error = sorted([*ends, place]), best
    return tuple(float(bytes_[place - 1]) for place in ends)


def _squares(bytes_: FloatArray, times: FloatArray, places: list[int]) -> float:
    """Return the sum of squared relative errors of one line a segment; a segment begins at each place."""
    total = 0.0
    for part in np.split(np.arange(bytes_.size), places):
        design = np.column_stack([1 / times[part], bytes_[part] / bytes_[-1] / times[part]])
        theta, *_ = np.linalg.lstsq(design, np.ones(part.size), rcond=None)
        total += float(np.sum((design @ theta - 1) ** 2))
    return total
