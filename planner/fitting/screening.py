"""Samples judged before a fit: times of another unit, rows of one call that contradict each other."""

from __future__ import annotations

import numpy as np

from planner.costs.work import flop, has_fast_algorithm, least_bytes
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.cluster import Accelerator
from planner.domain.inputs import INPUT_COLUMNS
from planner.domain.kernels import WORK_COLUMNS
from planner.domain.samples import NUMBER_COLUMNS, TEXT_COLUMNS, Samples
from planner.fitting.rows import POINTWISE, usable, work_of

__all__ = ["contradictions", "repeated", "unit_doubt"]

FAST_FACTOR = 4.0
"""FLOP that Winograd and FFT can save: F(4x4, 3x3) multiplies 36 times for 16 outputs of 9 products (Lavin 2015)."""
CALL_S = 1e-5
"""A call's constant part, roughly: what a time of hardly any work is compared with."""
UNITS = (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9))
FAR = 100.0
"""Between good times and those a thousand times too long: in published tables of 23 GPUs (DeepBench, NeuSight, vidur)
the median time of a kind and precision is 1.1 to 5 times that at peak rates, behind CALL_S."""
LEAST_ROWS = 3
ABOVE_PEAK = 1.5
UNCACHED_BYTES = float(1 << 26)
"""Beyond the caches of GPUs: less can be read faster than memory gives it."""
SPREADS = 5.0
LEAST_ALLOWED = 0.1
"""Two runs of one call differ by more than the spread inside each: 8 % at most in NeuSight's repeated rows."""
ALLOWED_WITHOUT_SPREAD = 0.5
UNCALLED = ("group", "notes", "time_s", "spread_s", "repeats")
"""Columns that do not say which call was timed, nor how."""


def unit_doubt(samples: Samples, accelerator: Accelerator) -> str:
    """Return why the times cannot be seconds on this device, with the remedy; empty where they can.

    Times are compared with those at the device's peak rates: FLOP / peak and bytes / bandwidth, the longer. Few rows
    say nothing, nor do rows that no work is known of.
    """
    mask, _ = usable(samples)
    rows = samples.select(mask & np.isin(samples.text["kind"], [POINTWISE, *WORK_COLUMNS]))
    if rows.size < LEAST_ROWS:
        return ""
    peak_s, can_tell = _peak_times(rows, accelerator)
    longer = float(np.median(rows.time_s / (peak_s + CALL_S)))
    if longer >= FAR:
        unit, factor = min(UNITS, key=lambda known: abs(float(np.log(longer / known[1]))))
        return (
            f"time_s must be in seconds, got times that are {longer:,.0f} times those at the peak rates of "
            f"{accelerator.name} (median of {rows.size} rows): looks like {unit}; divide the column by {factor:,.0f}"
        )
    above = can_tell & (rows.time_s * ABOVE_PEAK < peak_s)
    if can_tell.sum() >= LEAST_ROWS and above.sum() > can_tell.sum() / 2:
        return (
            f"time_s must be in seconds on {accelerator.name}, got {above.sum()} of {can_tell.sum()} rows more than "
            f"{ABOVE_PEAK:g} times faster than its peak rates: looks like times divided once too often, or those of a "
            "faster device; mend column time_s or device"
        )
    return ""


def _peak_times(rows: Samples, accelerator: Accelerator) -> tuple[FloatArray, BoolArray]:
    """Return the time [s] of every row at peak rates, shape (k,), and whether a shorter one cannot be."""
    peak_s, can_tell = np.zeros(rows.size), np.zeros(rows.size, dtype=np.bool_)
    peaks = accelerator.peak_flop_per_s
    rate = np.array([peaks.get(name, np.inf) for name in rows.text["precision"].tolist()])
    for kind in sorted(set(rows.text["kind"].tolist())):
        own = rows.text["kind"] == kind
        work = work_of(rows.select(own), kind)
        moved = least_bytes(work)
        compute_s = flop(work) / np.where(has_fast_algorithm(work), FAST_FACTOR, 1.0) / rate[own]
        memory_s = moved / accelerator.memory_bytes_per_s
        peak_s[own] = np.maximum(compute_s, memory_s)
        can_tell[own] = (compute_s >= memory_s) | (moved >= UNCACHED_BYTES)
    return peak_s, can_tell


def _calls(samples: Samples) -> IntArray:
    """Return a number for every row, shape (k,), the same for rows of one call under the same circumstances."""
    text = [
        np.unique(samples.text[name], return_inverse=True)[1].ravel() for name in TEXT_COLUMNS if name not in UNCALLED
    ]
    number = [np.nan_to_num(samples.number[name], nan=-1.0) for name in NUMBER_COLUMNS if name not in UNCALLED]
    table = np.column_stack([*text, *number])
    return np.unique(table, axis=0, return_inverse=True)[1].astype(np.int64).ravel()


def repeated(samples: Samples) -> int:
    """Return how many rows time a call that a row before them has timed under the same circumstances."""
    return samples.size - np.unique(_calls(samples)).size


def contradictions(samples: Samples) -> tuple[tuple[int, int], ...]:
    """Return the fastest and slowest row of each call whose times differ by more than their spread allows.

    Allowed are SPREADS times the spread of both rows and a tenth of the shorter time, whichever is more; without a
    spread, half of the shorter time. Storage and links to a device may take any time, by what else uses them. Those
    calls come first whose times are farthest apart.
    """
    calls, times = _calls(samples), samples.time_s
    order = np.lexsort((times, calls))
    starts = np.flatnonzero(np.diff(calls[order], prepend=-1))
    ends = np.append(starts[1:], order.size) - 1
    fast, slow = order[starts], order[ends]
    spread_s = np.hypot(samples.number["spread_s"][fast], samples.number["spread_s"][slow])
    known_s = np.maximum(SPREADS * spread_s, LEAST_ALLOWED * times[fast])
    allowed_s = np.where(np.isnan(spread_s), ALLOWED_WITHOUT_SPREAD * times[fast], known_s)
    shared = np.isin(samples.text["kind"][fast], list(INPUT_COLUMNS))
    apart = np.flatnonzero((times[slow] - times[fast] > allowed_s) & ~shared)
    apart = apart[np.argsort(-times[slow][apart] / times[fast][apart], kind="stable")]
    return tuple((int(fast[at]), int(slow[at])) for at in apart)
