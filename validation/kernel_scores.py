"""Errors of kernel sub-models on rows that took no part, from published kernel times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner import catalog
from planner.costs.measured_calls import MARGIN_DOUBLINGS, relative_curve, times_s
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.samples import Samples
from planner.fitting.gaussian_process import times_left_out
from planner.fitting.kernels import fit_kernels
from planner.fitting.rows import group_codes, take, work_columns
from planner.sources.layer_calls import LEAST_COMMON as FEW
from planner.sources.layer_calls import ratio_of
from validation.convert_kernels import board_samples
from validation.kernel_boards import BOARDS, Board
from validation.kernel_rows import Table

__all__ = [
    "BATCHED",
    "ELEMENT_WISE",
    "MEDIAN",
    "RATIO",
    "Batches",
    "Key",
    "Score",
    "batch_scores",
    "beyond_scores",
    "measured_batches",
    "measured_samples",
    "new_shapes",
    "ratio_scores",
    "sibling_batch_scores",
    "sibling_scores",
]


ELEMENT_WISE = ("activation", "add", "pointwise")
LEAST_ELEMENT_WISE_S = 90e-6
"""Shorter element-wise kernels are launch time."""
BATCHED = "gemm, batched"
BATCH_COLUMN = {"convolution": "images", "gemm": "n", BATCHED: "batch"}
"""The work column that follows the sub-batch."""
LINE, RATIO = "line", "ratio"
"""How a time at another batch is found."""
MEDIAN = "median alone"
"""How a time is told by a sibling GPU: by one ratio, and by it alone."""
ABOVE, BELOW = "all, above", "all, below"
"""Stand for a GPU in keys of scores beyond measured batches."""
STANDS_IN = "stands in"
LEAST_COMMON, LEAST_BETWEEN = 8, 2
"""Fewer calls in common with a sibling GPU, or between measured batches, say nothing."""


class Key(NamedTuple):
    """What a score is of; ``other`` names the sibling GPU, or how batches are interpolated."""

    gpu: str
    kind: str
    direction: str
    precision: str
    other: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """Absolute relative errors of n predicted rows: mean, median, 90th percentile, largest."""

    key: Key
    rows: int
    mean: float
    median: float
    p90: float
    worst: float


@dataclass(frozen=True, slots=True)
class Batches:
    """Shapes at three batches, k of them, each of shape (k, 3), in ascending order of batch.

    Attributes
    ----------
    key : Key
    batch, time_s : ndarray of float
    fitted_s : ndarray of float
        By the entry, fitted without the group of the shape.
    fit_error : float or ndarray of float
        Of the entry on rows left out; of every shape, shape (k,), where some are told by another.
    rows : ndarray of int
        Positions in the rows of the key, shape (k, 3).
    """

    key: Key
    batch: FloatArray
    time_s: FloatArray
    fitted_s: FloatArray
    fit_error: float | FloatArray
    rows: IntArray


def _score(key: Key, errors: FloatArray) -> Score:
    mean, middle, high, worst = errors.mean(), *np.quantile(errors, [0.5, 0.9]), errors.max()
    return Score(key, errors.size, float(mean), float(middle), float(high), float(worst))


def measured_samples(tables: Mapping[str, Table]) -> dict[str, Samples]:
    """Return by GPU the rows that were measured on it: not those of another that stands in."""
    found = {}
    for board in BOARDS:
        rows = _measured(board, tables)
        if rows is not None:
            found[board.name] = rows
    return found


def _measured(board: Board, tables: Mapping[str, Table]) -> Samples | None:
    files, _ = board_samples(board, tables)
    parts = [rows.select(np.char.find(rows.text["notes"], STANDS_IN) < 0) for rows in files.values()]
    parts = [rows for rows in parts if rows.size]
    if not parts:
        return None
    whole, *others = parts
    for rows in others:
        whole = whole.joined(rows)
    return whole


def populations(gpu: str, samples: Samples) -> Iterator[tuple[Key, Samples]]:
    """Yield the rows of every kind, direction and precision; batches of several products apart."""
    several = (np.nan_to_num(samples.number["batch"], nan=1.0) > 1) & (samples.text["kind"] == "gemm")
    kind = np.where(several, BATCHED, samples.text["kind"])
    columns = (kind, samples.text["direction"], samples.text["precision"])
    for key in sorted(set(zip(*(column.tolist() for column in columns), strict=True))):
        mask = np.logical_and.reduce([column == part for column, part in zip(columns, key, strict=True)])
        yield Key(gpu, *key), samples.select(mask)


def new_shapes(samples: Mapping[str, Samples]) -> Iterator[Score]:
    """Yield the errors for shapes never measured: whole applications, layers or lengths of rows left out."""
    for gpu, rows in samples.items():
        accelerator = catalog.find_accelerator(gpu)
        for key, part in populations(gpu, rows):
            for entry in fit_kernels(part, accelerator).entries[:1]:  # the next, if any, is pooled of this one alone
                errors = np.abs(times_left_out(entry, part)[0] / part.time_s - 1)
                long = part.time_s >= LEAST_ELEMENT_WISE_S
                yield _score(key, errors[long] if key.kind in ELEMENT_WISE else errors)


def measured_batches(samples: Mapping[str, Samples]) -> Iterator[Batches]:
    """Yield the shapes of every kind, direction and precision that follow the batch and were measured at three."""
    for gpu, rows in samples.items():
        accelerator = catalog.find_accelerator(gpu)
        for key, part in ((key, part) for key, part in populations(gpu, rows) if key.kind in BATCH_COLUMN):
            triples = _triples(part, BATCH_COLUMN[key.kind])
            for entry in fit_kernels(part, accelerator).entries if len(triples) >= LEAST_BETWEEN else ():
                batch, fitted_s = part.number[BATCH_COLUMN[key.kind]], times_left_out(entry, part)[0]
                error = entry.held_out_error or 0.0
                yield Batches(key, batch[triples], part.time_s[triples], fitted_s[triples], error, triples)


def batch_scores(batches: Iterable[Batches]) -> Iterator[Score]:
    """Yield the errors for measured shapes at other batches, between the neighbouring batches measured.

    ``other`` of the key says how: by the line alone or, as predictions do, by the ratio of measured time to that of the
    entry fitted without the layer; see :mod:`planner.costs.measured_calls`. Of convolutions the line is left out: their
    entries are linear in the images, so that both are the same.
    """
    for one in batches:
        for way in (RATIO,) if one.key.kind == "convolution" else (LINE, RATIO):
            yield _score(one.key._replace(other=way), _errors(one, 1, way))


def beyond_scores(batches: Iterable[Batches]) -> Iterator[Score]:
    """Yield the errors at batches at most twice beyond two measured ones, above and below, of all GPUs together."""
    errors: dict[Key, list[FloatArray]] = defaultdict(list)
    for one in batches:
        for at in (0, 2):
            near = np.abs(np.log2(one.batch[:, at] / one.batch[:, 1])) <= MARGIN_DOUBLINGS
            for way in (LINE, RATIO):
                errors[one.key._replace(gpu=ABOVE if at else BELOW, other=way)].append(_errors(one, at, way)[near])
    for key, found in sorted(errors.items()):
        if sum(map(len, found)) >= LEAST_BETWEEN:
            yield _score(key, np.concatenate(found))


def _errors(batches: Batches, at: int, way: str) -> FloatArray:
    """Return the relative errors at one batch of every triple by the two others, shape (k,)."""
    ends = [place for place in range(3) if place != at]
    found = np.empty(len(batches.batch))
    errors = np.broadcast_to(batches.fit_error, found.shape)
    columns = zip(batches.batch, batches.time_s, batches.fitted_s, errors, strict=True)
    for row, (batch, time, fitted, error) in enumerate(columns):
        along = relative_curve(batch[at], fitted[at], batch[ends], fitted[ends]) if way == RATIO else np.array(np.nan)
        found[row] = times_s(batch[at], batch[ends], time[ends], along, error) / time[at] - 1
    return np.abs(found)


def _triples(samples: Samples, column: str) -> IntArray:
    """Return rows that have a smaller and a larger batch of the same shape, with these: (k, 3), in order of batch."""
    shapes: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for row, call in enumerate(_calls(samples, without=column)):
        shapes[call].append(row)
    batch, triples = samples.number[column], []
    for places in shapes.values():
        rows = np.array(sorted(places, key=lambda row: float(batch[row])), dtype=np.int64)
        rows = rows[np.unique(batch[rows], return_index=True)[1]]
        triples += [rows[first : first + 3] for first in range(rows.size - 2)]
    return np.array(triples, dtype=np.int64).reshape(-1, 3)


def sibling_batch_scores(
    samples: Mapping[str, Samples], pairs: Mapping[str, str], batches: Iterable[Batches]
) -> Iterator[Score]:
    """Yield the errors at other batches of shapes that the other GPU of a pair was timed at too, at all three batches.

    ``other`` of the key says how: by the ratio to the entry, or, as predictions do, by that to the times that the other
    GPU's make here, with the ratio of the two in the groups not left out.
    """
    both = {key: (part, there) for key, part, there in _both(samples, pairs)}
    for one in (one for one in batches if one.key in both):
        part, there = both[one.key]
        mine, theirs = _common(part, there)
        theirs_s = np.full(part.size, np.nan)
        theirs_s[mine] = there.time_s[theirs]
        known = np.isfinite(theirs_s[one.rows]).all(axis=1)
        if known.sum() < LEAST_BETWEEN:
            continue
        rows, fitted_s = one.rows[known], one.fitted_s[known]
        ours = replace(one, batch=one.batch[known], time_s=one.time_s[known], fitted_s=fitted_s, rows=rows)
        told_s, errors, group = fitted_s.copy(), np.full(len(rows), one.fit_error), group_codes(part)
        for value in np.unique(group[rows[:, 1]]):
            rest = mine[group[mine] != value]
            ratio = ratio_of(part.time_s[rest] / theirs_s[rest], np.empty(0), float(np.mean(one.fit_error)))
            if ratio is not None:
                chosen = group[rows[:, 1]] == value
                scaled_s = ratio.times_s(theirs_s[rows[chosen]].ravel(), fitted_s[chosen].ravel())
                told_s[chosen], errors[chosen] = scaled_s.reshape(-1, 3), ratio.error
        told = replace(ours, fitted_s=told_s, fit_error=errors)
        yield _score(one.key._replace(other=RATIO), _errors(ours, 1, RATIO))
        yield _score(one.key._replace(other=pairs[one.key.gpu]), _errors(told, 1, RATIO))


def sibling_scores(samples: Mapping[str, Samples], pairs: Mapping[str, str]) -> Iterator[Score]:
    """Yield the errors for shapes measured on another GPU, as the groups not left out tell them from its times.

    ``other`` of the key says how: by the median ratio alone, or by the other GPU's name as predictions do, with the
    entry made without the group.
    """
    for key, part, there in _both(samples, pairs):
        mine, theirs = _common(part, there)
        if mine.size >= LEAST_COMMON:
            rows, theirs_s = take(part, mine), there.time_s[theirs]
            yield _score(key._replace(other=f"{pairs[key.gpu]}, {MEDIAN}"), _by_median(rows, theirs_s))
            for entry in fit_kernels(part, catalog.find_accelerator(key.gpu)).entries[:1]:
                fit = times_left_out(entry, part)[0][mine], entry.held_out_error
                yield _score(key._replace(other=pairs[key.gpu]), _by_ratio(rows, theirs_s, fit))


def ratio_scores(samples: Mapping[str, Samples], pairs: Mapping[str, str]) -> Iterator[Score]:
    """Yield the errors of times by ratios to another GPU of all pairs together, and of the device's fit alone.

    ``other`` of the key says how: as predictions do, with LEAST_COMMON calls in common drawn from other groups, or by
    the ratio of the fit without the group, or that fit.
    """
    random, errors = np.random.default_rng(0), defaultdict[Key, list[FloatArray]](list)
    for key, part, there in _both(samples, pairs):
        mine, theirs = _common(part, there)
        if mine.size < LEAST_COMMON:
            continue
        for entry in fit_kernels(part, catalog.find_accelerator(key.gpu)).entries[:1]:
            fitted_s, rows = times_left_out(entry, part)[0][mine], take(part, mine)
            for way, found_s in _ways(rows, there.time_s[theirs], (fitted_s, entry.held_out_error), random).items():
                errors[key._replace(gpu="all", direction="", other=way)].append(np.abs(found_s / rows.time_s - 1))
    for key, found in sorted(errors.items()):
        yield _score(key, np.concatenate(found))


def _ways(
    rows: Samples, theirs_s: FloatArray, fit: tuple[FloatArray, float | None], random: np.random.Generator
) -> dict[str, FloatArray]:
    """Return the times of rows by how they are found, shape (k,) each; ``fit``: its times, and its error."""
    fitted_s, error = fit
    five_s, by_fit_s = fitted_s.copy(), np.empty(rows.size)
    for out, rest in _left_out(rows):
        some = random.choice(rest, min(FEW, rest.size), replace=False)
        by_fit = fitted_s[out] / theirs_s[out]
        by_fit_s[out] = np.median(by_fit) * theirs_s[out]
        ratio = ratio_of(rows.time_s[some] / theirs_s[some], by_fit, error)
        if ratio is not None:
            five_s[out] = ratio.times_s(theirs_s[out], fitted_s[out])
    return {f"{FEW} calls": five_s, "ratio of the fit": by_fit_s, "the fit": fitted_s}


def _both(samples: Mapping[str, Samples], pairs: Mapping[str, str]) -> Iterator[tuple[Key, Samples, Samples]]:
    """Yield key and rows of what a GPU and the other of its pair both timed, with the other's rows."""
    for gpu, other in pairs.items():
        if gpu in samples and other in samples:
            known = dict(populations(other, samples[other]))
            for key, part in populations(gpu, samples[gpu]):
                there = known.get(key._replace(gpu=other))
                if there is not None:
                    yield key, part, there


def _common(mine: Samples, theirs: Samples) -> tuple[IntArray, IntArray]:
    """Return the positions of calls that both timed."""
    places = {call: row for row, call in enumerate(_calls(theirs))}
    pairs = [(row, places[call]) for row, call in enumerate(_calls(mine)) if call in places]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _by_median(samples: Samples, theirs_s: FloatArray) -> FloatArray:
    ratio, errors = samples.time_s / theirs_s, np.empty(samples.size)
    for out, rest in _left_out(samples):
        errors[out] = np.abs(np.median(ratio[rest]) / ratio[out] - 1)
    return errors


def _by_ratio(samples: Samples, theirs_s: FloatArray, fit: tuple[FloatArray, float | None]) -> FloatArray:
    (fitted_s, error), errors = fit, np.empty(samples.size)
    for out, rest in _left_out(samples):
        ratio = ratio_of(samples.time_s[rest] / theirs_s[rest], np.empty(0), error)
        found_s = fitted_s[out] if ratio is None else ratio.times_s(theirs_s[out], fitted_s[out])
        errors[out] = np.abs(found_s / samples.time_s[out] - 1)
    return errors


def _left_out(samples: Samples) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the positions of every group, and those of all others, or of that one where it is alone."""
    group = group_codes(samples)
    for value in np.unique(group):
        out, rest = np.flatnonzero(group == value), np.flatnonzero(group != value)
        yield out, rest if rest.size else out


def _calls(samples: Samples, without: str = "") -> Iterator[tuple[object, ...]]:
    """Yield what tells the calls of one kind apart: work and transposition, less one column."""
    columns = [name for name in work_columns(str(samples.text["kind"][0])) if name != without]
    parts = [samples.number[name].tolist() for name in columns]
    parts += [samples.text[name].tolist() for name in ("trans_a", "trans_b")]
    yield from zip(*parts, strict=True)
