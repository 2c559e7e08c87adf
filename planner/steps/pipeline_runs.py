"""Pipelines most of whose stages are equal: 1F1B and interleaved in closed form over runs of equal stages.

Between the ends of a run every path of waiting without circles is linear in the stage, or bends upwards, but where the
first stage with passes behind its first backward lies: so the longest starts at an end of a run or at that stage.
Circles are looked at stage by stage, for those depths alone whose mean pass can be long enough, by the largest stages
that a circle could hold. The result is that of :func:`planner.steps.pipeline.pipeline_s`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.steps.pipeline import Paths, Places, Whole, circling_s, paths_of, paths_of_stages, whole_of
from planner.steps.pipeline_chunks import Chunks, chunks_of, sums_above

__all__ = ["RUN_SCHEDULES", "runs_s"]

RUN_SCHEDULES = ("1f1b", "interleaved")
"""Schedules of which runs are enough."""
_ROUNDING = 1e-9
"""Share that rounding of bounds stays far below."""


def runs_s(
    forward_s: FloatArray,
    backward_s: FloatArray,
    transfer_s: FloatArray,
    micro_batches: IntArray,
    *,
    repeats: IntArray,
    schedule: str,
    virtual_stages: IntArray | int = 1,
) -> FloatArray:
    """Return the time of all micro-batches through all stages [s], shape (n,).

    Parameters
    ----------
    forward_s, backward_s : ndarray of float, shape (r, n)
        Of one micro-batch through a stage of each run.
    transfer_s, micro_batches, schedule, virtual_stages
        Of :func:`planner.steps.pipeline.pipeline_s`; schedule one of RUN_SCHEDULES.
    repeats : ndarray of int, shape (r,)
        Stages of each run.
    """
    p = int(repeats.sum())
    chunks = chunks_of((forward_s, backward_s, None), transfer_s, micro_batches, virtual_stages, schedule, stages=p)
    run, ends = _ends_of_runs(chunks, repeats)
    paths = paths_of(chunks, ends, _whole(chunks, repeats))
    if not chunks.transfer_s.any():
        return paths.longest_s
    least_s = _least_means_s(paths, run)
    some = np.flatnonzero((_most_means_s(chunks, p) > least_s * (1 - _ROUNDING)).any(axis=0))
    if some.size:
        bounds_s = _bounds_s(chunks.of(some), repeats)
        can_be_longer = (bounds_s > least_s[:, None, some] * (1 - _ROUNDING)).any(axis=(0, 1))
        some, bounds_s = some[can_be_longer], bounds_s[:, :, can_be_longer]
    if some.size:
        of_some = Paths(paths.longest_s[some], paths.between_s[:, some], paths.passes[:, some])
        paths.longest_s[some] = _with_circles_s(_stages(chunks.of(some), repeats), of_some, run, bounds_s)
    return paths.longest_s


def _ends_of_runs(chunks: Chunks, repeats: IntArray) -> tuple[IntArray, Places]:
    """Return ends of runs, and of each the first stage with passes behind its first backward; and whose each is."""
    p, v = int(repeats.sum()), chunks.virtual_stages
    first = np.cumsum(repeats) - repeats
    passing = p - 1 - (chunks.micro_batches * v - 2 - (v - 1) * p) // chunks.depth
    all_runs, several, inner = (np.flatnonzero(repeats > least) for least in (0, 1, 2))
    run = np.concatenate([all_runs, several, inner])
    last = first + repeats - 1
    at_ends = np.concatenate([first, last[several]])[:, None]
    inside = np.clip(passing, first[inner, None], last[inner, None])
    stage = np.concatenate([np.broadcast_to(at_ends, (at_ends.size, passing.size)), inside])
    f, b, offset = chunks.forward_s, chunks.backward_s, stage - first[run][:, None]
    above_f, above_b = (sums_above(one * repeats[:, None])[run] + offset * one[run] for one in (f, b))
    up_s = above_b + stage * chunks.transfer_s
    return run, Places(stage, f[run], b[run], np.zeros((1, 1)), above_f, above_b, up_s)


def _whole(chunks: Chunks, repeats: IntArray) -> Whole:
    p = int(repeats.sum())
    forward_s, backward_s = ((one * repeats[:, None]).sum(axis=0) for one in (chunks.forward_s, chunks.backward_s))
    up_s = backward_s - chunks.backward_s[-1] + (p - 1) * chunks.transfer_s
    return whole_of(chunks, p, forward_s, backward_s, up_s)


def _least_means_s(ends: Paths, run: IntArray) -> FloatArray:
    """Return the mean pass from which on a path that circles from a stage of a run can be the longest, shape (r, n)."""
    lacking_s = ends.longest_s - ends.between_s
    means_s = np.divide(lacking_s, ends.passes, out=np.full(lacking_s.shape, np.inf), where=ends.passes > 0)
    return np.stack([means_s[run == one].min(axis=0) for one in range(int(run.max()) + 1)])


def _most_means_s(chunks: Chunks, stages: int) -> FloatArray:
    """Return the most that a mean pass of any circle from a stage of a run takes, shape (r, n).

    As if all its stages were the slowest; it then grows or falls with the depth throughout.
    """
    slowest_s = np.maximum.accumulate(chunks.whole_s[::-1], axis=0)[::-1]
    shallow_s, deep_s = (
        ((k + 1) * slowest_s + 2 * k * chunks.transfer_s) / (chunks.depth * k + 1) for k in (1, max(stages - 1, 1))
    )
    most_s: FloatArray = np.maximum(shallow_s, deep_s)
    return most_s


def _bounds_s(chunks: Chunks, repeats: IntArray) -> FloatArray:
    """Return the most that a mean pass takes in circles from a run to k stages down, k from 1, shape (r, p - 1, n).

    As if they held the slowest k + 1 stages of this run and those below.
    """
    whole_s, k = chunks.whole_s, np.arange(1, int(repeats.sum()))[:, None]
    held_s = np.zeros((repeats.size, k.size, whole_s.shape[1]))
    for run in range(repeats.size):
        order = np.argsort(-whole_s[run:], axis=0)
        slow_s, number = np.take_along_axis(whole_s[run:], order, axis=0), repeats[run:][order]
        for slow, before, most in zip(slow_s, np.cumsum(number, axis=0) - number, number, strict=True):
            held_s[run] += slow * np.clip(k + 1 - before, 0, most)
    return np.asarray((held_s + 2 * k * chunks.transfer_s) / (chunks.depth * k + 1))


def _stages(chunks: Chunks, repeats: IntArray) -> Chunks:
    """Return every stage of runs."""
    f, b, w = (np.repeat(one, repeats, axis=0) for one in (chunks.forward_s, chunks.backward_s, chunks.weight_s))
    return replace(chunks, forward_s=f, backward_s=b, weight_s=w)


def _with_circles_s(chunks: Chunks, ends: Paths, run: IntArray, bounds_s: FloatArray) -> FloatArray:
    """Return the longest of the paths at ends of runs and of those that circle, shape (n,).

    ``run``: of the ends; ``bounds_s``: of mean passes, see :func:`_bounds_s`.
    """
    x, whole_s, longest_s = chunks.transfer_s, chunks.whole_s, ends.longest_s.copy()
    _, between_s, passes = paths_of_stages(chunks)
    before = np.concatenate([np.zeros((1, x.size)), np.cumsum(whole_s, axis=0)])
    least_s = _least_means_s(ends, run)
    deep = np.flatnonzero((bounds_s > least_s[:, None] * (1 - _ROUNDING)).any(axis=(0, 2))) + 1
    for k in deep[::-1].tolist():
        some = np.flatnonzero((bounds_s[:, k - 1] > least_s * (1 - _ROUNDING)).any(axis=0))
        if not some.size:
            continue
        circle_s = before[k + 1 :, some] - before[: -k - 1, some] + 2 * k * x[some]
        mean_s = circle_s / (chunks.depth[some] * k + 1)
        hoped_s = (between_s[:-k, some] + np.maximum(passes[:-k, some], 0) * mean_s).max(axis=0)
        is_longer = hoped_s > longest_s[some] * (1 + 1e-12)
        some = some[is_longer]
        if some.size:
            circling = circling_s(chunks.of(some), circle_s[:, is_longer], before[:, some], passes[:-k, some])
            longest_s[some] = np.maximum(longest_s[some], (between_s[:-k, some] + circling).max(axis=0))
            of_some = Paths(longest_s[some], ends.between_s[:, some], ends.passes[:, some])
            least_s[:, some] = _least_means_s(of_some, run)
    return longest_s
