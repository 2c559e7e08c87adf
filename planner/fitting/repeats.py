"""Samples judged before a fit by each other: rows of one call, and runs of one machine, that contradict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.inputs import INPUT_COLUMNS
from planner.domain.samples import NUMBER_COLUMNS, TEXT_COLUMNS, Samples
from planner.domain.training import TimedStep
from planner.fitting.rows import text_codes
from planner.numbers import constant

__all__ = ["RunsApart", "contradictions", "merged_steps", "repeated", "runs_apart", "undisputed"]

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
    """Tell where the times of two rows of one call differ by more than their spread allows; rows have shape (k,).

    Allowed are MOST_SPREADS times the spread of both rows and a tenth of the shorter time, whichever is more; without a
    spread, half of the shorter time; any difference of storage and links.
    """
    times, spreads = samples.time_s, samples.number["spread_s"]
    shorter_s = np.minimum(times[one], times[other])
    spread_s = np.hypot(spreads[one], spreads[other])
    known_s = np.maximum(MOST_SPREADS * spread_s, LEAST_DIFFERENCE * shorter_s)
    allowed_s = np.where(np.isnan(spread_s), DIFFERENCE_WITHOUT_SPREAD * shorter_s, known_s)
    return np.asarray((np.abs(times[other] - times[one]) > allowed_s) & ~_is_shared(samples)[one])


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
    fast, slow : int
        Rows of the call whose times are farthest apart.
    common : int
        Calls that both have timed.
    far : int
        Of these, calls whose times are FAR_RATIO.
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

    Grossly is by MOST_DRIFT in the median of LEAST_CALLS calls or more, or FAR_RATIO in more than MOST_FAR_SHARE of the
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
    far = int(np.sum(np.maximum(ratio, 1 / ratio) >= FAR_RATIO))
    median = float(np.median(ratio))
    drift = max(median, 1 / median)
    if far <= MOST_FAR_SHARE * one.size and (drift <= MOST_DRIFT or one.size < LEAST_CALLS):
        return None
    fast, slow = sorted((int(one[farthest]), int(other[farthest])), key=lambda row: float(times[row]))
    return RunsApart(fast, slow, one.size, far, drift)
