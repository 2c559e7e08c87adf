"""Kernel times of every GPU predicted from every other by specification, and from a few of its own.

A row is predicted from fits that its group took no part in, neither on its own GPU nor on the other: a shape that was
measured on another GPU is not what a new network asks for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from planner import catalog
from planner.costs.specified import scaled_entry, without_process
from planner.costs.terms import evaluate
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.calibration import Entry, TransferScore, relation, units_between, units_of
from planner.domain.cluster import Accelerator
from planner.domain.kernels import ATTENTION, PRODUCT_KINDS
from planner.domain.samples import Samples
from planner.fitting.gaussian_process import fit_entry
from planner.fitting.kernels import preferred
from planner.fitting.rows import merged, take, work_of
from validation.kernel_scores import ELEMENT_WISE, LEAST_ELEMENT_WISE_S, Key, populations

__all__ = [
    "FOLDS", "LEAST_ROWS", "OWN_POINTS", "Compared", "Fitted", "Transfer", "few_own_points", "fitted",
    "refitted", "scores_of", "transfers",
]  # fmt: skip

FOLDS = 5
"""Parts that the groups of a kind are dealt into, by name, the same for all GPUs; also the draws of own points."""
OWN_POINTS = 20
LEAST_ROWS = 8
SEED = 20
SIMPLEST = {True: "work.linear", False: "traffic.bytes"}
"""Of kernels of PRODUCT_KINDS and of others: the term with the fewest coefficients."""


@dataclass(frozen=True)
class Fitted:
    """The rows of one kind, direction and precision of a GPU, and the entries that fit them.

    Attributes
    ----------
    key : Key
    device : Accelerator
    rows : Samples
    fold : ndarray of int, shape (k,)
    entries : tuple of Entry
        One for each fold, fitted without it.
    wide : tuple of Entry
        The same of fp32, where it was measured too.
    """

    key: Key
    device: Accelerator
    rows: Samples
    fold: IntArray
    entries: tuple[Entry, ...]
    wide: tuple[Entry, ...] = ()

    def predicted_s(self, entries: Iterable[Entry]) -> FloatArray:
        """Return the time of every row by the entry of its fold, shape (k,)."""
        times = np.full(self.rows.size, np.nan)
        for at, entry in enumerate(entries):
            chosen = self.fold == at
            if chosen.any():
                times[chosen] = evaluate(entry, work_of(self.rows.select(chosen), entry.kind))
        return times

    @property
    def counts(self) -> BoolArray:
        """Which rows are scored: of element-wise kernels, those that are not launch time."""
        return (self.rows.time_s >= LEAST_ELEMENT_WISE_S) | (self.key.kind not in ELEMENT_WISE)


@dataclass(frozen=True)
class Transfer:
    """Relative errors predicted / measured - 1 of the rows of one GPU, by fits of another; shape (k,).

    ``units``: one of :data:`planner.domain.calibration.UNITS_OF_PAIRS`.
    """

    key: Key
    near: str
    units: str
    precision: str
    errors: FloatArray


@dataclass(frozen=True)
class Compared:
    """Mean absolute relative errors of the same rows of a GPU, predicted in four ways.

    ``key.other`` names the GPU of the transfer, ``units`` are those of the predicted one; ``ratio``: the transfer times
    one factor from the own points; ``own``: a fit to the own points alone; ``all_own``: a fit to all own rows of the
    other folds.
    """

    key: Key
    near: str
    units: str
    precision: str
    transfer: float
    ratio: float
    own: float
    all_own: float


def fitted(samples: Mapping[str, Samples]) -> list[Fitted]:
    """Return what is fitted on each GPU, each fold left out in turn; where a fit lacks rows, nothing.

    Fused attention, whose kernels are not taken from one chip to another, takes no part.
    """
    found = []
    every = (part for gpu, rows in samples.items() for part in populations(gpu, rows))
    parts = [part for part in every if part[0].kind != ATTENTION]
    places = _places(parts)
    for key, part in parts:
        rows = merged(part, str(part.text["kind"][0]))
        device = catalog.find_accelerator(key.gpu)
        bundled = _bundled_entry(key, rows)
        if bundled is not None and rows.size >= LEAST_ROWS:
            found.append(Fitted(key, device, rows, *refitted(bundled, rows, places[key.kind])))
    by_key = {one.key: one.entries for one in found}
    return [replace(one, wide=by_key.get(one.key._replace(precision="fp32"), ())) for one in found]


def refitted(entry: Entry, rows: Samples, places: Mapping[str, int]) -> tuple[IntArray, tuple[Entry, ...]]:
    """Return the fold of every row by that of its group, and an entry of the same term for each fold, without it."""
    fold = np.array([places[group] for group in rows.text["group"].tolist()])
    return fold, tuple(_without(entry, rows, fold == at) for at in range(FOLDS))


def _bundled_entry(key: Key, rows: Samples) -> Entry | None:
    """Return the entry of the GPU's bundled calibration that these rows are in; of a process its linear term."""
    kind = str(rows.text["kind"][0])
    for entry in catalog.find_calibration(key.gpu).entries:
        if entry.key[:3] == ("kernels", kind, key.direction) and entry.precision in (key.precision, "any"):
            return without_process(entry)
    return None


def _places(parts: Iterable[tuple[Key, Samples]]) -> dict[str, dict[str, int]]:
    """Return the fold of each group of each kind."""
    groups: dict[str, set[str]] = defaultdict(set)
    for key, rows in parts:
        groups[key.kind] |= set(rows.text["group"].tolist())
    return {kind: {name: at % FOLDS for name, at in zip(sorted(names), count())} for kind, names in groups.items()}


def _without(entry: Entry, rows: Samples, out: BoolArray) -> Entry:
    """Return an entry of the same term and settings fitted to the other rows; to all where those are none."""
    rest = rows.select(~out) if 0 < out.sum() < out.size else rows
    return fit_entry(rest, entry.key, entry.term, entry.settings, estimator=entry.estimator)


def transfers(known: Iterable[Fitted]) -> Iterator[Transfer]:
    """Yield the errors of every GPU by every other that has the same kind, direction and precision."""
    by_kind: dict[Key, list[Fitted]] = defaultdict(list)
    for one in known:
        by_kind[one.key._replace(gpu="")].append(one)
    for alike in by_kind.values():
        for target in alike:
            for source in alike:
                if source is not target:
                    yield _transfer(target, source)


def _transfer(target: Fitted, source: Fitted) -> Transfer:
    predicted = target.predicted_s(_scaled(target, source))
    errors = (predicted / target.rows.time_s - 1)[target.counts]
    key = target.key._replace(other=source.key.gpu)
    return Transfer(key, *_of_pair(source, target), source.entries[0].precision, errors)


def _of_pair(source: Fitted, target: Fitted) -> tuple[str, str]:
    """Return the relation of two GPUs, and the units that multiply on both."""
    both = source.device, target.device
    return relation(*both), units_between(*both, _kind(target.key), target.key.precision)


def _kind(key: Key) -> str:
    """Return the kind of kernels of a key; batches of products are products."""
    return key.kind.partition(",")[0]


def _scaled(target: Fitted, source: Fitted) -> list[Entry]:
    """Return the entries of every fold as they would be on another GPU."""
    each = enumerate(source.entries)
    return [scaled_entry(entry, source.device, target.device, source.wide[at : at + 1]) for at, entry in each]


def scores_of(found: Iterable[Transfer]) -> tuple[TransferScore, ...]:
    """Return the scores by relation, units, kind and precision; batches of products count among products."""
    cells: dict[tuple[str, str, str, str], list[FloatArray]] = defaultdict(list)
    for one in found:
        if one.errors.size:
            cells[one.near, one.units, _kind(one.key), one.precision].append(one.errors)
    return tuple(_score(*cell, errors) for cell, errors in sorted(cells.items()))


def _score(near: str, units: str, kind: str, precision: str, errors: list[FloatArray]) -> TransferScore:
    absolute = [np.abs(one) for one in errors]
    figures = (
        np.mean([one.mean() for one in absolute]),
        np.mean([np.median(one) for one in absolute]),
        np.mean([np.quantile(one, 0.9) for one in absolute]),
        np.mean([abs(one.mean()) for one in errors]),
    )
    rows = sum(one.size for one in errors)
    mean, median, p90, bias = (round(float(value), 4) for value in figures)
    return TransferScore(units, kind, precision, len(errors), rows, mean, median, p90, near, bias)


def few_own_points(known: Iterable[Fitted], scores: Iterable[TransferScore]) -> Iterator[Compared]:
    """Yield how a few own points compare with the transfer that prediction would choose, on the same rows.

    That is of the relation and units with the best score of the kind, and there of the GPU with the best fit.
    """
    fits, rank = list(known), {(s.relation, s.units, s.kind, s.precision): s.mean for s in scores}
    for target in fits:
        alike = [f for f in fits if f.key._replace(gpu="") == target.key._replace(gpu="") and f is not target]
        if not alike or target.rows.size < 2 * OWN_POINTS:
            continue
        source = min(alike, key=lambda f: _rank(f, target, rank))
        yield _compared(target, source)


def _rank(source: Fitted, target: Fitted, rank: Mapping[tuple[str, str, str, str], float]) -> tuple[float, float]:
    own = [entry.held_out_error for entry in source.entries if entry.held_out_error is not None]
    cell = *_of_pair(source, target), _kind(source.key), source.entries[0].precision
    return rank[cell], float(np.mean(own)) if own else np.inf


def _of_few(like: Entry, rows: Samples) -> Entry:
    """Return the better of an entry's own term and of one rate for all, by the groups of a few rows."""
    peaks = {name: value for name, value in like.settings.items() if name.startswith("peak_")}
    shapes = {like.term: like.settings, SIMPLEST[like.kind in PRODUCT_KINDS]: peaks}
    return preferred([fit_entry(rows, like.key, term, settings) for term, settings in shapes.items()])


def _compared(target: Fitted, source: Fitted) -> Compared:
    rows, generator = target.rows, np.random.default_rng(SEED)
    scaled = _scaled(target, source)
    moved = target.predicted_s(scaled)
    ratio, own = np.full(rows.size, np.nan), np.full(rows.size, np.nan)
    for at in range(FOLDS):
        out, pool = target.fold == at, np.flatnonzero(target.fold != at)
        chosen = np.sort(generator.choice(pool, min(OWN_POINTS, pool.size), replace=False))
        entry = scaled[at]
        there = evaluate(entry, work_of(take(rows, chosen), entry.kind))
        ratio[out] = moved[out] * np.median(rows.time_s[chosen] / there)
        if out.any():
            own[out] = evaluate(_of_few(target.entries[at], take(rows, chosen)), work_of(rows.select(out), entry.kind))
    everything = target.predicted_s(target.entries)
    errors = (
        float(np.nanmean(np.abs(times / rows.time_s - 1)[target.counts])) for times in (moved, ratio, own, everything)
    )
    near, _ = _of_pair(source, target)
    units = units_of(target.device, _kind(target.key), target.key.precision)
    return Compared(target.key._replace(other=source.key.gpu), near, units, source.entries[0].precision, *errors)
