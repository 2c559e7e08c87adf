"""Samples judged before a fit: times of another unit, times off their course, rows of one call that contradict."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from planner.costs.work import flop, has_fast_algorithm, least_bytes
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.cluster import Accelerator
from planner.domain.inputs import INPUT_COLUMNS
from planner.domain.kernels import WORK_COLUMNS
from planner.domain.samples import NUMBER_COLUMNS, TEXT_COLUMNS, Samples
from planner.fitting.rows import POINTWISE, take, usable, work_of

__all__ = [
    "OffCourse",
    "RunsApart",
    "contradictions",
    "off_course",
    "repeated",
    "runs_apart",
    "undisputed",
    "unit_doubt",
]

FAST_FACTOR = 4.0
"""FLOP that Winograd and FFT can save: F(4x4, 3x3) multiplies 36 times for 16 outputs of 9 products (Lavin 2015)."""
CALL_S = 1e-5
"""A call's constant part, roughly: what a time of hardly any work is compared with."""
UNITS = (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9))
FAR = 100.0
"""Between good times and those a thousand times too long: in published tables of 23 GPUs (DeepBench, NeuSight, vidur)
the median time of a kind and precision is 1.1 to 5 times that at peak rates, behind CALL_S."""
FAR_OF_KIND = 300.0
"""As FAR, of the rows of one kind: pooling and normalisation over channels on a CPU take 50 times those at peak."""
LEAST_ROWS = 3
NEIGHBOURS = 25
"""Rows of nearest size whose median is a row's course: right where a fifth of all rows is wrong, however they fall."""
LEAST_COURSE = 8
"""Rows that make a course."""
LIKE_UNIT = 4.0
"""A row is off by a unit where it is off by 1000, 1e6 or 1e9, within this factor."""
OFF_COURSE = 150.0
"""No row of published tables is off by more than 99 (fp16 convolutions of P100s), nor by 40 on other GPUs."""
FAR_ABOVE_PEAK = 10.0
ABOVE_PEAK = 1.5
UNCACHED_BYTES = float(1 << 26)
"""Beyond the caches of GPUs: less can be read faster than memory gives it."""
SPREADS = 5.0
LEAST_ALLOWED = 0.1
"""Two runs of one call differ by more than the spread inside each: 8 % at most in NeuSight's repeated rows."""
ALLOWED_WITHOUT_SPREAD = 0.5
MOST_DRIFT = 1.5
"""Two runs on one machine whose times differ by this in the median are not of one state of it: clocks, neighbours."""
FAR_APART = 3.0
MOST_FAR_APART = 0.1
"""Share of the calls of two runs that may be FAR_APART."""
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
    longer = rows.time_s / (peak_s + CALL_S)
    if np.median(longer) >= FAR:
        return _too_long(longer, accelerator, "times", "the column")
    for kind in dict.fromkeys(rows.text["kind"].tolist()):
        own = rows.text["kind"] == kind
        if own.sum() >= LEAST_ROWS and np.median(longer[own]) >= FAR_OF_KIND:
            return _too_long(longer[own], accelerator, f"times of kind {kind}", "those")
    above = can_tell & (rows.time_s * ABOVE_PEAK < peak_s)
    if can_tell.sum() >= LEAST_ROWS and above.sum() > can_tell.sum() / 2:
        return (
            f"time_s must be in seconds on {accelerator.name}, got {above.sum()} of {can_tell.sum()} rows more than "
            f"{ABOVE_PEAK:g} times faster than its peak rates: looks like times divided once too often, or those of a "
            "faster device; mend column time_s or device"
        )
    return ""


def _too_long(longer: FloatArray, accelerator: Accelerator, what: str, which: str) -> str:
    """Return the sentence on times so many times as long as at peak rates, shape (k,)."""
    median = float(np.median(longer))
    unit, factor = _nearest_unit(median)
    return (
        f"time_s must be in seconds, got {what} that are {median:,.0f} times those at the peak rates of "
        f"{accelerator.name} (median of {longer.size} rows): looks like {unit}; divide {which} by {factor:,.0f}"
    )


def _nearest_unit(longer: float) -> tuple[str, float]:
    return min(UNITS, key=lambda known: abs(float(np.log(longer / known[1]))))


class OffCourse(NamedTuple):
    """A row whose time is far off that of rows of its kind, direction, precision and size.

    Attributes
    ----------
    row : int
        Counted from 0.
    factor : float
        Its time over that of those rows: above 1 is longer.
    """

    row: int
    factor: float

    @property
    def unit(self) -> tuple[str, float] | None:
        """The unit that the time looks like, and how many of it are a second; None where it is off in another way."""
        off = max(self.factor, 1 / self.factor)
        unit, per_second = _nearest_unit(off)
        return (unit, per_second) if 1 / LIKE_UNIT <= off / per_second <= LIKE_UNIT else None


def off_course(samples: Samples, accelerator: Accelerator) -> tuple[OffCourse, ...]:
    """Return the rows, in order, that are off their course by a unit or by OFF_COURSE, or far above peak rates.

    The course is the median of time / (time at peak rates + CALL_S) over the NEIGHBOURS rows whose time at peak rates
    is nearest in order: calls of hardly any work are compared with each other. Where a row is off by a unit, all are
    returned that are FAR off to the same side. Far above peak rates is arithmetic alone that no cache explains, and
    only where other rows of its size are slower by as much. Fewer than LEAST_COURSE rows make no course.
    """
    mask, _ = usable(samples)
    places = np.flatnonzero(mask & np.isin(samples.text["kind"], [POINTWISE, *WORK_COLUMNS]))
    rows = take(samples, places)
    peak_s, can_tell = _peak_times(rows, accelerator)
    off = _off(rows, peak_s)
    like_unit = np.zeros(rows.size, dtype=np.bool_)
    for _, per_second in UNITS:
        like_unit |= np.abs(np.abs(off) - np.log(per_second)) <= np.log(LIKE_UNIT)
    found = np.abs(off) >= np.log(OFF_COURSE)
    for side in (off > 0, off < 0):
        if np.any(like_unit & side):
            found |= side & (np.abs(off) >= np.log(FAR))
    multiplies = np.isfinite(rows.number["m"]) | np.isfinite(rows.number["in_c"])
    above = can_tell & multiplies & (rows.time_s * FAR_ABOVE_PEAK < peak_s)
    found |= above & (off <= -np.log(FAR_ABOVE_PEAK))
    return tuple(OffCourse(int(places[at]), float(np.exp(off[at]))) for at in np.flatnonzero(found))


def _off(rows: Samples, peak_s: FloatArray) -> FloatArray:
    """Return the logarithm of each row's time over its course, shape (k,); 0 without a course."""
    ratio = np.log(rows.time_s / (peak_s + CALL_S))
    table = [np.unique(rows.text[name], return_inverse=True)[1].ravel() for name in ("kind", "direction", "precision")]
    codes = np.unique(np.column_stack(table), axis=0, return_inverse=True)[1].ravel()
    off = np.zeros(rows.size)
    for code in range(codes.max(initial=-1) + 1):
        own = np.flatnonzero(codes == code)
        if own.size >= LEAST_COURSE:
            own = own[np.argsort(peak_s[own], kind="stable")]
            width = min(NEIGHBOURS, own.size)
            medians = np.median(np.lib.stride_tricks.sliding_window_view(ratio[own], width), axis=1)
            first = np.clip(np.arange(own.size) - width // 2, 0, own.size - width)
            off[own] = ratio[own] - medians[first]
    return off


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

    Storage and links to a device may take any time, by what else uses them. Those calls come first whose times are
    farthest apart.
    """
    calls, times = _calls(samples), samples.time_s
    order = np.lexsort((times, calls))
    starts = np.flatnonzero(np.diff(calls[order], prepend=-1))
    ends = np.flatnonzero(np.diff(calls[order], append=-1))
    fast, slow = order[starts], order[ends]
    apart = np.flatnonzero(_differ(samples, fast, slow))
    apart = apart[np.argsort(-times[slow][apart] / times[fast][apart], kind="stable")]
    return tuple((int(fast[at]), int(slow[at])) for at in apart)


def _differ(samples: Samples, one: IntArray, other: IntArray) -> BoolArray:
    """Tell where the times of two rows of one call differ by more than their spread allows; rows have shape (k,).

    Allowed are SPREADS times the spread of both rows and a tenth of the shorter time, whichever is more; without a
    spread, half of the shorter time; any difference of storage and links.
    """
    times, spreads = samples.time_s, samples.number["spread_s"]
    shorter_s = np.minimum(times[one], times[other])
    spread_s = np.hypot(spreads[one], spreads[other])
    known_s = np.maximum(SPREADS * spread_s, LEAST_ALLOWED * shorter_s)
    allowed_s = np.where(np.isnan(spread_s), ALLOWED_WITHOUT_SPREAD * shorter_s, known_s)
    differ: BoolArray = (np.abs(times[other] - times[one]) > allowed_s) & ~_is_shared(samples)[one]
    return differ


def _is_shared(samples: Samples) -> BoolArray:
    return np.isin(samples.text["kind"], list(INPUT_COLUMNS))


def undisputed(samples: Samples, disturbed: BoolArray) -> BoolArray:
    """Return a mask of the rows, shape (k,), that agree with the best one of their call.

    That is the fastest undisturbed one, else the fastest: what else runs on a machine makes calls longer.

    Parameters
    ----------
    samples : Samples
        k rows, of several runs: the spread of a row is that within its run, and does not hold what changes between.
    disturbed : ndarray of bool, shape (k,)
    """
    calls = _calls(samples)
    order = np.lexsort((samples.time_s, disturbed, calls))
    best = order[np.flatnonzero(np.diff(calls[order], prepend=-1))]
    kept: BoolArray = ~_differ(samples, best[calls], np.arange(samples.size))
    return kept


class RunsApart(NamedTuple):
    """Two runs that cannot be of one machine in one state.

    Attributes
    ----------
    fast, slow : int
        Rows of the call whose times are farthest apart.
    common : int
        Calls that both have timed.
    far : int
        Of these, calls whose times are FAR_APART.
    ratio : float
        Median over these of the slower run's time over the other's.
    """

    fast: int
    slow: int
    common: int
    far: int
    ratio: float


def runs_apart(samples: Samples, runs: IntArray, disturbed: BoolArray) -> RunsApart | None:
    """Return the first two runs whose times of the same calls contradict each other grossly; None where none do.

    Grossly is by MOST_DRIFT in the median of LEAST_ROWS calls or more, or FAR_APART in more than MOST_FAR_APART of the
    calls. Of each run and call counts the fastest undisturbed row, else the fastest.

    Parameters
    ----------
    samples : Samples
        k rows.
    runs : ndarray of int, shape (k,)
        Which run each row is of.
    disturbed : ndarray of bool, shape (k,)
    """
    calls = _calls(samples)
    order = np.lexsort((samples.time_s, disturbed, calls, runs))
    order = order[~_is_shared(samples)[order]]
    changes = np.diff(calls[order], prepend=-1) | np.diff(runs[order], prepend=-1)
    best = order[np.flatnonzero(changes)]
    of_runs = [best[runs[best] == run] for run in np.unique(runs).tolist()]
    for one, other in combinations(of_runs, 2):
        _, at_one, at_other = np.intersect1d(calls[one], calls[other], assume_unique=True, return_indices=True)
        apart = _apart(samples.time_s, one[at_one], other[at_other])
        if apart is not None:
            return apart
    return None


def _apart(times: FloatArray, one: IntArray, other: IntArray) -> RunsApart | None:
    """Return two runs, by their rows of the same calls, each of shape (k,), where they contradict each other."""
    if not one.size:
        return None
    ratio = times[other] / times[one]
    farthest = int(np.argmax(np.maximum(ratio, 1 / ratio)))
    far = int(np.sum(np.maximum(ratio, 1 / ratio) >= FAR_APART))
    median = float(np.median(ratio))
    drift = max(median, 1 / median)
    if far <= MOST_FAR_APART * one.size and (drift <= MOST_DRIFT or one.size < LEAST_ROWS):
        return None
    fast, slow = sorted((int(one[farthest]), int(other[farthest])), key=lambda row: float(times[row]))
    return RunsApart(fast, slow, one.size, far, drift)
