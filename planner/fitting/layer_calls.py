"""Entries that look up calls of a network's layers, from rows that name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.costs.measured_calls import DOUBLINGS_BEYOND, MARGIN_DOUBLINGS, MEASURED_S, relative_curve, times_s
from planner.costs.terms import evaluate
from planner.costs.work import transposition
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry
from planner.domain.kernels import SERVED_BY, TRAFFIC_KINDS
from planner.domain.network import LOOKED_UP, work_named
from planner.domain.samples import Samples
from planner.fitting.rows import POINTWISE, usable, work_of
from planner.numbers import constants
from planner.sources.layer_calls import Fits

__all__ = ["fit_layer_calls", "fits_among"]

LIBRARY = "own layers"
_BETWEEN = constants("layer_calls.between")
ERROR_BETWEEN, PRODUCT_ERROR_BETWEEN = _BETWEEN["convolutions"], _BETWEEN["products"]
"""Mean error between two measured sub-batches where no third was measured (docs/numbers.md)."""


class _Timed(NamedTuple):
    """A call at a sub-batch: its time, the spread of repeats, and what a fit gives it, not a number without one [s]."""

    time_s: float
    spread_s: float
    fitted_s: float


def fit_layer_calls(
    samples: Samples, fits: Sequence[Entry] = (), *, origin: str = "measured", source: str = ""
) -> tuple[Entry, ...]:
    """Return an entry for every kind, direction, precision and library of rows that name a call.

    A call whose work depends on the sub-batch takes part only where it was timed at two: one would say nothing of the
    others, and a fit serves the call better. So a run that ends between two does no harm.
    Its error holds the spread of repeats (median over the rows) and what predictions from the other sub-batches miss
    those left out by, or a stated one where there are but two, as independent.

    Parameters
    ----------
    fits : fitted to kernels of the same device: they give the scaling curves of calls
    origin, source : stored in every entry
    """
    mask, _ = usable(samples)
    rows = samples.select(mask & (samples.text["call"] != "") & ~np.isnan(samples.number["sub_batch"]))
    columns = [rows.text[name].tolist() for name in ("kind", "direction", "precision", "library", "call")]
    tables: dict[tuple[str, str, str, str], dict[str, dict[float, list[_Timed]]]] = {}
    numbers = (rows.number[name].tolist() for name in ("sub_batch", "time_s", "spread_s"))
    fitted_s, fit_errors = _fitted(rows, fits)
    of_rows = zip(zip(*columns, strict=True), *numbers, fitted_s.tolist(), strict=True)
    for (*key, call), sub_batch, *figures in of_rows:
        table = tables.setdefault((key[0], key[1], key[2], key[3]), {})
        table.setdefault(call, {}).setdefault(sub_batch, []).append(_Timed(*figures))
    whole = {
        key: {call: of for call, of in table.items() if len(of) > 1 or not any(b for _, b in work_named(call).values())}
        for key, table in sorted(tables.items())
    }
    return tuple(
        _entry(key, table, fit_errors.get(key[:3], np.nan), (origin, source)) for key, table in whole.items() if table
    )


def fits_among(entries: Sequence[Entry], precision: str) -> Fits:
    """Return what finds the entry that serves kernels of a kind and direction in a precision, the very kind first."""
    fits = [entry for entry in entries if entry.term != LOOKED_UP and entry.precision in (precision, "any")]
    by_key = {(entry.kind, entry.direction): entry for entry in fits}

    def found(kind: str, direction: str) -> Entry | None:
        instead = (SERVED_BY[kind],) if kind in SERVED_BY else ()
        kinds = (kind, *instead, POINTWISE) if kind in TRAFFIC_KINDS else (kind,)
        keys = ((one, way) for one in kinds for way in (direction, ""))
        return next((by_key[key] for key in keys if key in by_key), None)

    return found


def _fitted(rows: Samples, fits: Sequence[Entry]) -> tuple[FloatArray, dict[tuple[str, str, str], float]]:
    """Return what fits say that the calls of rows take [s], shape (k,), and by how much each fit is off, by its key.

    Not a number, or absent, where none serves them, or it was never compared with anything.
    """
    fitted_s, errors = np.full(rows.size, np.nan), {}
    columns = [rows.text[name] for name in ("kind", "direction", "precision")]
    for key in sorted(set(zip(*(column.tolist() for column in columns), strict=True))):
        kind, direction, precision = key
        fit = fits_among(fits, precision)(kind, direction)
        error = None if fit is None else fit.miss
        if fit is not None and error is not None:
            own = np.logical_and.reduce([column == part for column, part in zip(columns, key, strict=True)])
            work = {**work_of(rows.select(own), kind), **transposition(kind, direction)}
            fitted_s[own], errors[key] = evaluate(fit, work), error
    return fitted_s, errors


def _entry(
    key: tuple[str, str, str, str],
    table: Mapping[str, Mapping[float, list[_Timed]]],
    fit_error: float,
    provenance: tuple[str, str],
) -> Entry:
    kind, direction, precision, library = key
    origin, source = provenance
    settings: dict[str, tuple[float, ...]] = {}
    spreads: list[float] = []
    misses: list[float] = []
    calls_of_misses: list[str] = []
    for call, timings in sorted(table.items()):
        points = sorted((n, *np.median(np.array(of_n)[:, [0, 2]], axis=0).tolist()) for n, of_n in timings.items())
        settings[call] = tuple(value for point in points for value in point[:2])
        spreads += [one.spread_s / one.time_s for of_n in timings.values() for one in of_n if np.isfinite(one.spread_s)]
        misses += _missed(np.array(points).T, fit_error, beside=kind != "convolution")
        calls_of_misses += [call] * (len(misses) - len(calls_of_misses))
    assumption = (
        0.0 if all(len(t) == 1 for t in table.values()) else PRODUCT_ERROR_BETWEEN if kind == "gemm" else ERROR_BETWEEN
    )
    between = float(np.mean(misses)) if misses else assumption
    spread = float(np.median(spreads)) if spreads else 0.0
    note = (
        f"{assumption:.0%} between sub-batches, as of such calls elsewhere, since no third one was timed"
        if assumption
        else ""
    )
    return Entry(
        "kernels", kind, direction, precision, f"{library} {LIBRARY}".strip(), LOOKED_UP, settings,
        {MEASURED_S: 1.0, DOUBLINGS_BEYOND: 0.0},
        fixed=(MEASURED_S, DOUBLINGS_BEYOND),
        ranges={DOUBLINGS_BEYOND: (0.0, MARGIN_DOUBLINGS)},
        samples=sum(map(len, table.values())),
        error=spread,
        held_out_error=float(np.hypot(spread, between)),
        held_out_by="sub-batch" if misses else "",
        worst_error=max(misses, default=None),
        origin=origin,
        source=source,
        worst_point=calls_of_misses[int(np.argmax(misses))] if misses else "",
        notes="" if misses else note,
    )  # fmt: skip


def _missed(points: FloatArray, fit_error: float, *, beside: bool) -> Iterator[float]:
    """Yield the relative errors at inner sub-batches of predictions from all others, each left out in turn.

    ``beside``: those one sample from another too. Convolutions are timed at such where a library computes them in
    another way from there on, so that what lies between has the times of its own way at both sides.
    """
    knots, measured_s, fitted_s = points
    for at in range(1, knots.size - 1):
        if not beside and np.diff(knots)[at - 1 : at + 1].min() <= 1:
            continue
        rest = np.arange(knots.size) != at
        curve = relative_curve(knots[at], fitted_s[at], knots[rest], fitted_s[rest])
        time_s = times_s(knots[at], knots[rest], measured_s[rest], curve, np.array(fit_error))
        yield abs(float(time_s) / measured_s[at] - 1)
