"""Entries that look up calls of a network's layers, from rows that name them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from planner.costs.measured_calls import BEYOND, MARGIN, MEASURED_S, line_times_s
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry
from planner.domain.calls import LOOKED_UP
from planner.domain.samples import Samples
from planner.fitting.rows import usable

__all__ = ["fit_layer_calls"]

LIBRARY = "own layers"
BETWEEN = 0.04
"""Mean error between two measured sub-batches where no third was measured: 2 to 6 % for convolutions of DeepBench."""


def fit_layer_calls(samples: Samples, *, origin: str = "measured", source: str = "") -> tuple[Entry, ...]:
    """Return an entry for every kind, direction, precision and library of rows that name a call.

    A call whose work depends on the sub-batch takes part only where it was timed at two: one would say nothing of the
    others, and a fit serves the call better. So a run that ends between two does no harm.
    Its error holds the spread of repeats (median over the rows) and what lines between sub-batches miss those left out
    by, or a stated one where there are but two, as independent.
    """
    mask, _ = usable(samples)
    rows = samples.select(mask & (samples.text["call"] != "") & ~np.isnan(samples.number["sub_batch"]))
    columns = [rows.text[name].tolist() for name in ("kind", "direction", "precision", "library", "call")]
    tables: dict[tuple[str, str, str, str], dict[str, dict[float, list[tuple[float, float]]]]] = {}
    numbers = (rows.number[name].tolist() for name in ("sub_batch", "time_s", "spread_s"))
    for (*key, call), sub_batch, time_s, spread_s in zip(zip(*columns, strict=True), *numbers, strict=True):
        table = tables.setdefault((key[0], key[1], key[2], key[3]), {})
        table.setdefault(call, {}).setdefault(sub_batch, []).append((time_s, spread_s))
    whole = {
        key: {call: of for call, of in table.items() if len(of) > 1 or not _DEPENDS.search(call)}
        for key, table in sorted(tables.items())
    }
    return tuple(_entry(key, table, origin, source) for key, table in whole.items() if table)


_DEPENDS = re.compile(r"[=+]\d+n\b")
"""What the name of a call holds whose work depends on the sub-batch; see :class:`planner.domain.calls.LayerCall`."""


def _entry(
    key: tuple[str, str, str, str],
    table: Mapping[str, Mapping[float, list[tuple[float, float]]]],
    origin: str,
    source: str,
) -> Entry:
    kind, direction, precision, library = key
    settings, spreads, misses = {}, [], []
    for call, timings in sorted(table.items()):
        points = sorted((n, float(np.median([time for time, _ in of_n]))) for n, of_n in timings.items())
        settings[call] = tuple(value for point in points for value in point)
        spreads += [spread / time for of_n in timings.values() for time, spread in of_n if np.isfinite(spread)]
        misses += _missed(np.array(points).T)
    between = float(np.mean(misses)) if misses else BETWEEN if any(len(t) > 1 for t in table.values()) else 0.0
    spread = float(np.median(spreads)) if spreads else 0.0
    said = "between sub-batches as for convolutions elsewhere" if not misses else ""
    return Entry(
        "kernels", kind, direction, precision, f"{library} {LIBRARY}".strip(), LOOKED_UP, settings,
        {MEASURED_S: 1.0, BEYOND: 0.0},
        fixed=(MEASURED_S, BEYOND),
        ranges={BEYOND: (0.0, MARGIN)},
        samples=sum(map(len, table.values())),
        error=spread,
        held_out_error=float(np.hypot(spread, between)),
        held_out_by="sub-batch" if misses else "",
        worst_error=max(misses, default=None),
        origin=origin,
        source=source,
        notes=said,
    )  # fmt: skip


def _missed(points: FloatArray) -> list[float]:
    """Return the relative errors at inner sub-batches of lines between their neighbours, each left out in turn."""
    knots, times = points
    missed = []
    for at in range(1, knots.size - 1):
        rest = np.arange(knots.size) != at
        missed.append(abs(float(line_times_s(knots[at], knots[rest], times[rest])) / times[at] - 1))
    return missed
