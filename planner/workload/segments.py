"""Which units of a chain keep their activations, and which are made again: exact, for every memory at once.

Units that are not kept come in runs, each rebuilt from what crosses the cut before it when its backward pass comes: a
run holds what its units keep for that long. With Z the most that a run holds,

    bytes = Σ kept units (own + joined) + Σ runs crossing + Z,    time = Σ forward of all units in runs

but of the last of a run where it keeps nothing of what it makes,
own, joined and crossing as :mod:`planner.workload.rank_sizes` has them. For every Z of a grid the least time for each
number of bytes is found by dynamic programming, bytes to a 512th of what keeping all takes; the bytes of what is found
are exact. Cuts that more crosses than some cut on either side, as inside of a residual block, are none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray

__all__ = ["Segments", "segments_of"]

BINS = 512
NEAR = 1
"""Cuts on either side that one is compared with."""
RUNS = 12
"""Sizes of the largest run that are tried."""


class Segments(NamedTuple):
    """Ways to keep less, k of them: the more bytes, the less time.

    Attributes
    ----------
    kept_bytes : ndarray of float, shape (k,), rising
    again_s : ndarray of float, shape (k,), falling; 0 of the last, which keeps all
    again : ndarray of bool, shape (k, V), the units that are made again
    """

    kept_bytes: FloatArray
    again_s: FloatArray
    again: BoolArray

    def fitting(self, room_bytes: FloatArray) -> IntArray:
        """Return the way that takes least time in so much room, of its shape; the leanest where none fits."""
        return np.maximum(np.searchsorted(self.kept_bytes, room_bytes, side="right") - 1, 0)


def segments_of(
    own: FloatArray, joined: FloatArray, crossing: FloatArray, forward_s: FloatArray, runs: int = RUNS
) -> Segments:
    """Return the ways of a chain of V units that no other is better than in bytes and time.

    Parameters
    ----------
    own, joined, forward_s : ndarray of float, shape (V,)
        Bytes that a unit keeps of what it makes, and of what the unit before makes; its forward pass [s].
    crossing : ndarray of float, shape (V,); bytes that cross the cut before each unit
    runs : sizes of the largest run that are tried
    """
    cuts = _cuts(crossing)
    if cuts.size < own.size:
        unit = np.repeat(np.arange(cuts.size), np.diff([*cuts.tolist(), own.size]))
        inner = np.where(np.isin(np.arange(own.size), cuts), 0.0, joined)
        blocks, times = (np.add.reduceat(one, cuts) for one in (own + inner, forward_s))
        of_blocks = segments_of(blocks, joined[cuts], crossing[cuts], times, runs)
        return of_blocks._replace(again=of_blocks.again[:, unit])
    number = own.size
    whole = float(crossing[0] + own.sum() + joined[1:].sum())
    step = whole / BINS if whole else 1.0
    alone = np.concatenate([[crossing[0]], joined[1:]]) + own
    ahead = np.concatenate([[0.0], np.cumsum(own)]), np.concatenate([[0.0], np.cumsum(joined)])
    time_ahead = np.concatenate([[0.0], np.cumsum(forward_s)])
    run_s = time_ahead[None, 1:] - time_ahead[:-1, None] - np.where(own > 0, 0.0, forward_s)
    run_bytes = ahead[0][None, 1:] - ahead[0][:-1, None] + ahead[1][None, 1:] - ahead[1][1:, None]
    sizes = np.unique(run_bytes[np.triu_indices(number)])
    if sizes.size > runs:
        sizes = sizes[np.unique(np.linspace(0, sizes.size - 1, runs).astype(np.int64))]
    found: list[tuple[float, float, BoolArray]] = [(whole, 0.0, np.zeros(number, dtype=np.bool_))]
    for most in sizes.tolist():
        found += _with_runs((alone, crossing, run_bytes), run_s, most, step)
    found.sort(key=lambda one: (one[0], one[1]))
    best: list[tuple[float, float, BoolArray]] = []
    for one in found:
        if one[0] <= whole and (not best or one[1] < best[-1][1]):
            best.append(one)
    return Segments(*(np.array(column) for column in zip(*best, strict=True)))


def _cuts(crossing: FloatArray) -> IntArray:
    """Return the units that a run may start with: before which no more crosses than near on one side."""
    kept = [0]
    for at in range(1, crossing.size):
        ahead, behind = crossing[max(at - NEAR, 0) : at], crossing[at + 1 : at + 1 + NEAR]
        if not (behind.size and ahead.min() < crossing[at] and behind.min() < crossing[at]):
            kept.append(at)
    return np.array(kept, dtype=np.int64)


def _with_runs(
    sizes: tuple[FloatArray, FloatArray, FloatArray], run_s: FloatArray, most: float, step: float
) -> list[tuple[float, float, BoolArray]]:
    """Return ways whose runs hold at most so many bytes: of each number of kept bytes the one with the least time."""
    alone, crossing, run_bytes = sizes
    number = alone.size
    room = BINS - int(np.ceil(most / step))
    if room < 0:
        return []
    least = np.full((number + 1, room + 1), np.inf)
    start = np.zeros((number + 1, room + 1), dtype=np.int64)  # of the run that ends there, or -1: a kept unit
    least[0, 0] = 0.0

    def reach(ends: slice, kept: float, times: FloatArray, mark: int, better: np.ufunc = np.less) -> None:
        if (shift := round(kept / step)) <= room:
            times = times[:, : room + 1 - shift]
            is_better = better(times, least[ends, shift:])
            np.copyto(least[ends, shift:], times, where=is_better)
            np.copyto(start[ends, shift:], mark, where=is_better)

    for begin in range(number):
        stop = begin + int(np.count_nonzero(run_bytes[begin, begin:] <= most))
        reach(slice(begin + 1, begin + 2), float(alone[begin]), least[begin][None], -1, np.less_equal)
        reach(slice(begin + 1, stop + 1), float(crossing[begin]), least[begin] + run_s[begin, begin:stop, None], begin)
    ways, before, lists, starts = [], np.inf, (alone.tolist(), crossing.tolist(), run_bytes.tolist()), start.tolist()
    for kept in np.flatnonzero(np.isfinite(least[number])).tolist():
        if least[number, kept] < before:
            before = float(least[number, kept])
            size, again = _way(lists, starts, kept, step)
            ways.append((size, before, again))
    return ways


def _way(
    sizes: tuple[list[float], list[float], list[list[float]]], start: list[list[int]], kept: int, step: float
) -> tuple[float, BoolArray]:
    """Return the bytes of a way and its units that are made again, followed back from its end."""
    alone, crossing, run_bytes = sizes
    again, total, largest, end = np.zeros(len(alone), dtype=np.bool_), 0.0, 0.0, len(alone)
    while end:
        begin = start[end][kept]
        size = alone[end - 1] if begin < 0 else crossing[begin]
        if begin < 0:
            begin = end - 1
        else:
            again[begin:end] = True
            largest = max(largest, run_bytes[begin][end - 1])
        total += size
        kept, end = kept - round(size / step), begin
    return total + largest, again
