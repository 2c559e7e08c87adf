"""Samples judged before a fit: by each other, by a device's peak rates, among rows of a size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import NamedTuple

import numpy as np

from planner.costs.work import flop, has_fast_algorithm, least_bytes
from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.cluster import Accelerator
from planner.domain.kernels import MATRIX_KINDS, WORK_COLUMNS
from planner.domain.samples import INPUT_COLUMNS, NUMBER_COLUMNS, TEXT_COLUMNS, Samples, TimedStep
from planner.fitting.rows import POINTWISE, take, text_codes, usable, work_of
from planner.numbers import constant, constants

MOST_SPREADS = 5.0
LEAST_DIFFERENCE = constant("repeats.least_allowed")
"""Two runs of one call differ by more than the spread inside each (docs/numbers.md)."""
DIFFERENCE_WITHOUT_SPREAD = 0.5
MOST_DRIFT = 1.5
"""Two runs on one machine whose times differ by this in the median are not of one state of it: clocks, neighbours."""
LEAST_CALLS = 3
FAR_RATIO = 3.0
MOST_FAR_SHARE = 0.1
"""Share of the calls of two runs that may be FAR_RATIO."""
OTHER_COLUMNS = ("group", "notes", "time_s", "spread_s", "repeats")
"""Columns that do not say which call was timed, nor how."""


def _calls(samples: Samples) -> IntArray:
    """Return a number for every row, shape (k,), the same for rows of one call under the same circumstances."""
    text = text_codes(samples, (name for name in TEXT_COLUMNS if name not in OTHER_COLUMNS))
    number = [np.nan_to_num(samples.number[name], nan=-1.0) for name in NUMBER_COLUMNS if name not in OTHER_COLUMNS]
    table = np.column_stack([*text, *number])
    return np.unique(table, axis=0, return_inverse=True)[1].astype(np.int64).ravel()


def repeated(samples: Samples) -> int:
    """Return how many rows time a call that a row before them has timed under the same circumstances."""
    return samples.size - np.unique(_calls(samples)).size


def merged_steps(steps: Iterable[TimedStep]) -> tuple[TimedStep, ...]:
    """Return one step for those of one network, sub-batch and precision: the first, at the median time and spread."""
    alike: dict[tuple[str, int, str], list[TimedStep]] = {}
    for step in steps:
        alike.setdefault((step.network.name, step.sub_batch, step.precision), []).append(step)
    return tuple(
        replace(of[0], time_s=median(one.time_s for one in of), spread_s=median(one.spread_s for one in of))
        for of in alike.values()
    )


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
    """Tell where the times of two rows of one call, shape (k,), differ by more than their spread allows."""
    times, spreads = samples.time_s, samples.number["spread_s"]
    shorter_s = np.minimum(times[one], times[other])
    spread_s = np.hypot(spreads[one], spreads[other])
    known_s = np.maximum(MOST_SPREADS * spread_s, LEAST_DIFFERENCE * shorter_s)
    allowed_s = np.where(np.isnan(spread_s), DIFFERENCE_WITHOUT_SPREAD * shorter_s, known_s)
    is_shared = _is_shared(samples)  # storage and links: any difference is allowed
    return np.asarray((np.abs(times[other] - times[one]) > allowed_s) & ~is_shared[one])


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
    return np.asarray(~_differ(samples, best[calls], np.arange(samples.size)))


class RunsApart(NamedTuple):
    """Two runs that cannot be of one machine in one state.

    Attributes
    ----------
    fast, slow : rows of the call whose times are farthest apart
    common : calls that both have timed
    far : of these, calls whose times are FAR_RATIO
    ratio : median over these of the slower run's time over the other's
    """

    fast: int
    slow: int
    common: int
    far: int
    ratio: float


def runs_apart(samples: Samples, runs: IntArray, disturbed: BoolArray) -> RunsApart | None:
    """Return the first two runs whose times of the same calls contradict each other grossly; None where none do.

    Grossly is by MOST_DRIFT in the median of LEAST_CALLS calls or more, or FAR_RATIO in more than MOST_FAR_SHARE of the
    calls. Of each run and call counts the fastest undisturbed row, else the fastest.

    ``samples``: k rows; ``runs``: ndarray of int, shape (k,), which run each row is of; ``disturbed``: ndarray of bool,
    shape (k,).
    """
    calls, times = _calls(samples), samples.time_s
    order = np.lexsort((times, disturbed, calls, runs))
    order = order[~_is_shared(samples)[order]]
    changes = np.diff(calls[order], prepend=-1) | np.diff(runs[order], prepend=-1)
    best = order[np.flatnonzero(changes)]
    of_runs = [best[runs[best] == run] for run in np.unique(runs).tolist()]
    for one, other in combinations(of_runs, 2):
        _, at_one, at_other = np.intersect1d(calls[one], calls[other], assume_unique=True, return_indices=True)
        if not at_one.size:
            continue
        ratio = times[other[at_other]] / times[one[at_one]]
        farthest = int(np.argmax(np.maximum(ratio, 1 / ratio)))
        far = int(np.sum(np.maximum(ratio, 1 / ratio) >= FAR_RATIO))
        middle = float(np.median(ratio))
        drift = max(middle, 1 / middle)
        if far <= MOST_FAR_SHARE * ratio.size and (drift <= MOST_DRIFT or ratio.size < LEAST_CALLS):
            continue
        rows = int(one[at_one][farthest]), int(other[at_other][farthest])
        fast, slow = sorted(rows, key=lambda row: float(times[row]))
        return RunsApart(fast, slow, ratio.size, far, drift)
    return None


FAST_FACTOR = 4.0
"""FLOP that Winograd and FFT can save: F(4x4, 3x3) multiplies 36 times for 16 outputs of 9 products (Lavin 2015)."""
CALL_S = 1e-5
"""A call's constant part, roughly: what a time of hardly any work is compared with."""
UNITS = (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9))
_FACTORS = constants("screening.far")
UNIT_FACTOR = _FACTORS["any"]
"""Between good times and those a thousand times too long, over times at peak rates, behind CALL_S (docs/numbers.md)."""
KIND_UNIT_FACTOR = _FACTORS["kind"]
"""As UNIT_FACTOR, of the rows of one kind, direction and precision."""
GROUPS = (("kind",), ("kind", "precision"), ("kind", "direction"), ("kind", "direction", "precision"))
"""Columns that rows of one unit may share, the widest group first."""
VIEW_KERNELS = (("concat", "backward_data"), ("add", "backward_data"))
"""Gradients that are views take no time."""
TYPICAL_FACTOR = _FACTORS["typical"]
"""As UNIT_FACTOR, of good times: what tells them from others where neither are few."""
LEAST_ROWS = 3
NEIGHBOURS = 25
"""Rows of nearest size whose median a row is held to: right where a fifth of all rows is wrong, however they fall."""
LEAST_SHARE = 0.05
"""Share of rows in seconds from which a column counts as mixed: gradients that are views take no time."""
MINORITY_SHARE = 0.2
"""Share of rows that leaves a median right."""
LEAST_NEIGHBOURS = 8
"""Rows of a size from which on their median is one to compare with."""
UNIT_TOLERANCE = 4.0
"""A row is off by a unit where it is off by 1000, 1e6 or 1e9, within this factor."""
OUTLIER_FACTOR = _FACTORS["neighbours"]
"""Times the median of rows of nearest size that no good row is off by."""
FAR_OVER_PEAK_FACTOR = 10.0
OVER_PEAK_FACTOR = 1.5
UNCACHED_BYTES = float(1 << 26)
"""Beyond the caches of GPUs: less can be read faster than memory gives it."""


class UnitDoubt(NamedTuple):
    """Times that cannot be seconds.

    Attributes
    ----------
    sentence : why, with the remedy
    rows : those that alone are in another unit, counted from 0; empty: all that the sentence speaks of
    """

    sentence: str
    rows: tuple[int, ...] = ()


def unit_doubt(samples: Samples, accelerator: Accelerator) -> UnitDoubt | None:
    """Return why the times cannot be seconds on this device; None where they can.

    Times are compared with those at the device's peak rates: FLOP / peak and bytes / bandwidth, the longer; in all,
    then by each of GROUPS, which is judged by its kind's other rows too. Few rows say nothing, nor do rows that no work
    is known of.
    """
    places = _known(samples)
    rows = take(samples, places)
    if rows.size < LEAST_ROWS:
        return None
    peak_s, can_tell = _peak_times(rows, accelerator)
    longer, groups = rows.time_s / (peak_s + CALL_S), list(_groups(rows, accelerator))
    masks = {kind: rows.text["kind"] == kind for kind in dict.fromkeys(rows.text["kind"].tolist())}
    kinds = {kind: own for kind, own in masks.items() if own.sum() >= LEAST_ROWS}
    if np.median(longer) >= UNIT_FACTOR:
        good = [kind for kind, own in kinds.items() if np.median(longer[own]) < TYPICAL_FACTOR]
        others = ~np.isin(rows.text["kind"], good)
        which = ("times of other kinds than " + ", ".join(good), "those") if good else ("times", "the column")
        return _off_by_unit(longer[others], places[others], accelerator, *which)
    for label, own in groups:
        median, rest = np.median(longer[own]), longer[np.isin(rows.text["kind"], rows.text["kind"][own]) & ~own]
        is_apart = rest.size >= LEAST_ROWS and median >= UNIT_FACTOR * np.median(rest)
        if median >= KIND_UNIT_FACTOR or (is_apart and median >= UNIT_FACTOR):
            return _off_by_unit(longer[own], places[own], accelerator, f"times of kind {label}", "those")
    above = _above_peak(rows, peak_s, can_tell, kinds, accelerator)
    if above is not None:
        return above
    views = np.any(
        [(rows.text["kind"] == kind) & (rows.text["direction"] == way) for kind, way in VIEW_KERNELS], axis=0
    )
    for label, own in ((label, own & ~views) for label, own in groups):
        if own.sum() >= LEAST_ROWS and np.median(longer[own]) * UNIT_FACTOR <= 1:
            what = f"times of kind {label}"
            return _off_by_unit(1 / longer[own], places[own], accelerator, what, "those", is_short=True)
    return None


def _above_peak(
    rows: Samples, peak_s: FloatArray, can_tell: BoolArray, kinds: Mapping[str, BoolArray], accelerator: Accelerator
) -> UnitDoubt | None:
    """Return the doubt about rows, all or of a kind, most of which are above peak rates though no cache explains it."""
    above = can_tell & (rows.time_s * OVER_PEAK_FACTOR < peak_s)
    if can_tell.sum() >= LEAST_ROWS and above.sum() > can_tell.sum() / 2:
        return UnitDoubt(
            f"time_s must be in seconds on {accelerator.name}, got {above.sum()} of {can_tell.sum()} rows more than "
            f"{OVER_PEAK_FACTOR:g} times faster than its peak rates: looks like times divided once too often, or those "
            "of a faster device; mend column time_s or device"
        )
    far_above = can_tell & (rows.time_s * FAR_OVER_PEAK_FACTOR < peak_s)
    for kind in (kind for kind in kinds if kind in MATRIX_KINDS):
        own = can_tell & kinds[kind]
        if own.sum() >= LEAST_ROWS and far_above[own].sum() > own.sum() / 2:
            return UnitDoubt(
                f"time_s must be in seconds on {accelerator.name}, got {far_above[own].sum()} of {own.sum()} rows of "
                f"kind {kind} more than {FAR_OVER_PEAK_FACTOR:g} times faster than its peak rates: looks like times "
                "divided once too often; mend those"
            )
    return None


def _groups(rows: Samples, accelerator: Accelerator) -> Iterator[tuple[str, BoolArray]]:
    """Yield a name and a mask, shape (k,), of the LEAST_ROWS or more rows that share what each of GROUPS says."""
    # Without a peak rate, as for fp16 on many CPUs, products may take a thousand times as long as their bytes.
    has_peak = np.isin(rows.text["precision"], list(accelerator.peak_flop_per_s))
    has_rate = has_peak | ~np.isin(rows.text["kind"], MATRIX_KINDS)
    for names in GROUPS:
        cells = zip(*(rows.text[name].tolist() for name in names), strict=True)
        labels = np.array([" ".join(filter(None, one)) for one in cells])
        for label in dict.fromkeys(labels.tolist()):
            own = (labels == label) & (has_rate | (names == GROUPS[0]))
            if own.sum() >= LEAST_ROWS:
                yield label, own


def _known(samples: Samples) -> IntArray:
    """Return the positions of usable rows of kernels whose work is known."""
    mask, _ = usable(samples)
    return np.flatnonzero(mask & np.isin(samples.text["kind"], [POINTWISE, *WORK_COLUMNS])).astype(np.int64)


def _off_by_unit(
    factors: FloatArray, places: IntArray, accelerator: Accelerator, what: str, which: str, *, is_short: bool = False
) -> UnitDoubt:
    """Return the doubt about rows at places, shape (k,), so many times as long, or as short, as at peak rates."""
    order = np.argsort(factors, kind="stable")
    split = _split(np.log(factors[order])[None])
    # Of two sets a unit apart, the nearer one of LEAST_SHARE or more, the nearer are in seconds.
    is_part = bool(split.is_by_unit[0]) and split.below[0] >= LEAST_SHARE * factors.size
    off = np.sort(order[split.below[0] :]) if is_part else order
    median = float(np.median(factors[off]))
    unit, factor = _nearest_unit(median)
    looks_like, mend = (
        (f"seconds divided by {factor:,.0f} once too often", "multiply") if is_short else (unit, "divide")
    )
    return UnitDoubt(
        f"time_s must be in seconds, got {f'{off.size} of {factors.size} ' if is_part else ''}{what} that are "
        f"{median:,.0f} times {'as short as ' if is_short else ''}those at the peak rates of {accelerator.name} "
        f"(median of {off.size} rows): looks like {looks_like}; {mend} {'these rows alone' if is_part else which} "
        f"by {factor:,.0f}",
        tuple(places[off].tolist()) if is_part else (),
    )


class _Split(NamedTuple):
    """Each of s ordered sets split at its widest gap: counts below, mean logarithms of both parts, if a unit apart."""

    below: IntArray
    low: FloatArray
    high: FloatArray
    is_by_unit: BoolArray


def _split(logs: FloatArray) -> _Split:
    """Part sets of two or more logarithms in order, shape (s, n)."""
    below = np.argmax(np.diff(logs, axis=1), axis=1).astype(np.int64) + 1
    sums = np.cumsum(logs, axis=1)
    low_sum = sums[np.arange(len(logs)), below - 1]
    low, high = low_sum / below, (sums[:, -1] - low_sum) / (logs.shape[1] - below)
    return _Split(below, low, high, high - low >= np.log(UNITS[0][1] / UNIT_TOLERANCE))


def _nearest_unit(longer: float) -> tuple[str, float]:
    return min(UNITS, key=lambda unit: abs(float(np.log(longer / unit[1]))))


class Outlier(NamedTuple):
    """A row whose time is far off that of rows of its kind, direction, precision and size.

    Attributes
    ----------
    row : counted from 0
    factor : its time over that of those rows: above 1 is longer
    """

    row: int
    factor: float

    @property
    def unit(self) -> tuple[str, float] | None:
        """The unit that the time looks like, and how many of it are a second; None where it is off in another way."""
        off = max(self.factor, 1 / self.factor)
        unit, per_second = _nearest_unit(off)
        return (unit, per_second) if 1 / UNIT_TOLERANCE <= off / per_second <= UNIT_TOLERANCE else None


def outliers(samples: Samples, accelerator: Accelerator) -> tuple[Outlier, ...]:
    """Return the rows, in order, that are off their size by a unit or by OUTLIER_FACTOR, or far above peak rates.

    Those of its size give the median of time / (time at peak rates + CALL_S) over the NEIGHBOURS rows whose time at
    peak rates is nearest in order: calls of hardly any work are compared with each other. Where a row is off by a unit,
    all are returned that are UNIT_FACTOR off to the same side. Far above peak rates is arithmetic alone that no cache
    explains, and only where other rows of its size are slower by as much. Fewer than LEAST_NEIGHBOURS rows give no
    median; where others are too long by a unit, those of them are returned whose times are KIND_UNIT_FACTOR above that
    at peak rates.
    """
    places = _known(samples)
    rows = take(samples, places)
    peak_s, can_tell = _peak_times(rows, accelerator)
    ratio = np.log(rows.time_s / (peak_s + CALL_S))
    off, is_comparable = _deviations(rows, ratio, peak_s)
    like_unit = np.zeros(rows.size, dtype=np.bool_)
    for _, per_second in UNITS:
        like_unit |= np.abs(np.abs(off) - np.log(per_second)) <= np.log(UNIT_TOLERANCE)
    mask = np.abs(off) >= np.log(OUTLIER_FACTOR)
    for side in (off > 0, off < 0):
        if np.any(like_unit & side):
            mask |= side & (np.abs(off) >= np.log(UNIT_FACTOR))
    if np.any(like_unit & (off > 0)):
        mask |= ~is_comparable & (ratio >= np.log(KIND_UNIT_FACTOR))
        off = np.where(is_comparable, off, ratio)
    multiplies = np.isfinite(rows.number["m"]) | np.isfinite(rows.number["in_c"])
    above = can_tell & multiplies & (rows.time_s * FAR_OVER_PEAK_FACTOR < peak_s)
    mask |= above & (off <= -np.log(FAR_OVER_PEAK_FACTOR))
    return tuple(Outlier(int(places[at]), float(np.exp(off[at]))) for at in np.flatnonzero(mask))


def _deviations(rows: Samples, ratio: FloatArray, peak_s: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Return the logarithm of each row's time over those of its size, (k,), 0 without any, and where that counts."""
    table = np.column_stack(text_codes(rows, ("kind", "direction", "precision")))
    codes = np.unique(table, axis=0, return_inverse=True)[1].ravel()
    off, is_comparable = np.zeros(rows.size), np.zeros(rows.size, dtype=np.bool_)
    for code in range(codes.max(initial=-1) + 1):
        own = np.flatnonzero(codes == code)
        if own.size >= LEAST_NEIGHBOURS:
            own = own[np.argsort(peak_s[own], kind="stable")]
            width = min(NEIGHBOURS, own.size)
            levels = _levels(np.lib.stride_tricks.sliding_window_view(ratio[own], width))
            first = np.clip(np.arange(own.size) - width // 2, 0, own.size - width)
            off[own], is_comparable[own] = ratio[own] - levels[first], levels[first] < np.log(KIND_UNIT_FACTOR)
    return off, is_comparable


def _levels(windows: FloatArray) -> FloatArray:
    """Return the median of each window of logarithms, shape (w, n), or of two sets a unit apart the likelier mean."""
    logs = np.sort(windows, axis=1)
    split, size, medians = _split(logs), logs.shape[1], np.median(logs, axis=1)
    low, high, middle = (np.abs(levels - np.log(TYPICAL_FACTOR)) for levels in (split.low, split.high, medians))
    is_right = (np.minimum(split.below, size - split.below) <= MINORITY_SHARE * size) & (middle <= np.log(UNIT_FACTOR))
    return np.asarray(np.where(split.is_by_unit & ~is_right, np.where(low <= high, split.low, split.high), medians))


def _peak_times(rows: Samples, accelerator: Accelerator) -> tuple[FloatArray, BoolArray]:
    """Return the time [s] of every row at peak rates, shape (k,), and whether a shorter one cannot be."""
    peak_s, can_tell = np.zeros(rows.size), np.zeros(rows.size, dtype=np.bool_)
    peaks = accelerator.peak_flop_per_s
    rate = np.array([peaks.get(name, np.inf) for name in rows.text["precision"].tolist()])
    for kind in sorted(set(rows.text["kind"].tolist())):
        own = rows.text["kind"] == kind
        work = work_of(rows.select(own), kind)
        total_bytes = least_bytes(work)
        compute_s = flop(work) / np.where(has_fast_algorithm(work), FAST_FACTOR, 1.0) / rate[own]
        memory_s = total_bytes / accelerator.memory_bytes_per_s
        peak_s[own] = np.maximum(compute_s, memory_s)
        can_tell[own] = (compute_s >= memory_s) | (total_bytes >= UNCACHED_BYTES)
    return peak_s, can_tell
