"""Pipelines most of whose stages are equal: 1F1B and interleaved in closed form over runs of equal stages.

Between the ends of a run every path of waiting without circles is linear in the stage, or bends upwards, but where the
first stage with passes behind its first backward lies: so the longest starts at an end of a run or at that stage.
Circles are looked at stage by stage, for those depths alone whose mean pass can be long enough, by the largest stages
that a circle could hold. The result is that of :func:`planner.steps.pipeline.pipeline_s`.

What the drain of a pipeline hides: when stages have their last gradients, and what outlasts it of their exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.errors import ParameterError
from planner.steps.pipeline import Chunks, Paths, Places, Whole, chunks_of, circling_s, paths_of, sums_above, whole_of
from planner.steps.synchronous import Runs, runs_end_s

RUN_SCHEDULES = ("1f1b", "interleaved")
"""Schedules of which runs are enough."""
_ROUNDING = 1e-9
"""Share that rounding of bounds stays far below."""
_AT_ONCE = 2**10
"""Pipelines whose stages are looked at one by one together, those of like length: some MB."""


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
    forward_s, backward_s : ndarray of float, shape (r, n); of one micro-batch through a stage of each run
    transfer_s, micro_batches, schedule, virtual_stages
        Of :func:`planner.steps.pipeline.pipeline_s`; schedule one of RUN_SCHEDULES.
    repeats : ndarray of int, shape (r, n), or (r, 1) of all; stages of each run
    """
    stages = repeats.sum(axis=0)
    chunks = chunks_of(
        (forward_s, backward_s, None), transfer_s, micro_batches, virtual_stages, schedule, stages=stages
    )
    run, ends = _ends_of_runs(chunks, repeats)
    paths = paths_of(chunks, ends, _whole(chunks, repeats))
    if not chunks.transfer_s.any():
        return paths.longest_s
    means_s = _means_s(paths)
    some = np.flatnonzero(_most_mean_s(chunks, repeats) > means_s.min(axis=0) * (1 - _ROUNDING))
    repeats = np.broadcast_to(repeats, forward_s.shape)
    some = some[_can_circle(chunks.of(some), repeats[:, some], _least_of_runs(means_s[:, some], run))]
    some = some[np.argsort(repeats[:, some].sum(axis=0), kind="stable")]
    for start in range(0, some.size, _AT_ONCE):
        columns = some[start : start + _AT_ONCE]
        of_some = Paths(paths.longest_s[columns], paths.between_s[:, columns], paths.passes[:, columns])
        paths.longest_s[columns] = _with_circles_s(chunks.of(columns), of_some, run, repeats[:, columns])
    return paths.longest_s


def _ends_of_runs(chunks: Chunks, repeats: IntArray) -> tuple[IntArray, Places]:
    """Return ends of runs, and of each the first stage with passes behind its first backward; and whose each is."""
    p, v = repeats.sum(axis=0), chunks.virtual_stages
    first = np.cumsum(repeats, axis=0) - repeats
    last = first + repeats - 1
    passing = p - 1 - (chunks.micro_batches * v - 2 - (v - 1) * p) // chunks.depth
    longest = repeats.max(axis=1, initial=0)
    all_runs, several, inner = (np.flatnonzero(longest > least) for least in (0, 1, 2))
    run = np.concatenate([all_runs, several, inner])
    ends = (np.broadcast_to(one, (len(one), passing.size)) for one in (first, last[several]))
    stage = np.concatenate([*ends, np.clip(passing, first[inner], last[inner])])
    f, b, offset = chunks.forward_s, chunks.backward_s, stage - first[run]
    above_f, above_b = (sums_above(one * repeats)[run] + offset * one[run] for one in (f, b))
    up_s = above_b + stage * chunks.transfer_s
    return run, Places(stage, f[run], b[run], np.zeros((1, 1)), above_f, above_b, up_s)


def _whole(chunks: Chunks, repeats: IntArray) -> Whole:
    p = repeats.sum(axis=0)
    forward_s, backward_s = ((one * repeats).sum(axis=0) for one in (chunks.forward_s, chunks.backward_s))
    up_s = backward_s - chunks.backward_s[-1] + (p - 1) * chunks.transfer_s
    return whole_of(chunks, p, forward_s, backward_s, up_s)


def _means_s(ends: Paths) -> FloatArray:
    """Return the mean pass from which on a path that circles from an end can be the longest, shape (q, n)."""
    lacking_s = ends.longest_s - ends.between_s
    means_s: FloatArray = np.full(lacking_s.shape, np.inf)
    return np.divide(lacking_s, ends.passes, out=means_s, where=ends.passes > 0)


def _least_of_runs(of_ends: FloatArray, run: IntArray) -> FloatArray:
    """Return the least of the ends of each run, shape (q, n) to (r, n)."""
    return np.stack([of_ends[run == one].min(axis=0) for one in range(int(run.max()) + 1)])


def _can_circle(chunks: Chunks, repeats: IntArray, least_s: FloatArray) -> BoolArray:
    """Tell where a mean pass of some circle can take as long as ``least_s`` of the run that it starts in, shape (n,).

    By :func:`_bounds_s`, which grow or fall from where a circle holds all of some runs to where it holds one more.
    """
    deepest, can = repeats.sum(axis=0) - 1, np.zeros(chunks.transfer_s.size, dtype=np.bool_)
    for run, least in enumerate(least_s):
        slow_s, number, before = _slowest_first(chunks.whole_s[run:], repeats[run:])
        for k in (np.ones_like(deepest), *(np.minimum(before + number, deepest + 1) - 1), deepest):
            can |= _mean_s(chunks, (slow_s, number, before), np.maximum(k, 1)) > least * (1 - _ROUNDING)
    return can


def _slowest_first(whole_s: FloatArray, repeats: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
    """Return what stages of runs take, how many these are, and how many are slower, the slowest run first."""
    order = np.argsort(-whole_s, axis=0)
    number = np.take_along_axis(np.broadcast_to(repeats, whole_s.shape), order, axis=0)
    return np.take_along_axis(whole_s, order, axis=0), number, np.cumsum(number, axis=0) - number


def _mean_s(chunks: Chunks, runs: tuple[FloatArray, IntArray, IntArray], k: IntArray) -> FloatArray:
    """Return the mean pass of circles that hold the slowest k + 1 stages, of the shape of k and (n,)."""
    held_s: FloatArray = 2 * k * chunks.transfer_s
    for slow_s, number, before in zip(*runs, strict=True):
        held_s = held_s + slow_s * np.minimum(np.maximum(k + 1 - before, 0), number)
    return np.asarray(held_s / (chunks.depth * k + 1))


def _most_mean_s(chunks: Chunks, repeats: IntArray) -> FloatArray:
    """Return the most that a mean pass of any circle takes, shape (n,).

    As if all stages but those of the slowest run were of the next slowest: the mean then grows or falls with the depth
    up to where it holds all of that run, and from there on.
    """
    whole_s, deepest = chunks.whole_s, np.maximum(repeats.sum(axis=0) - 1, 1)
    slowest = np.argmax(whole_s, axis=0)[None]
    slowest_s = np.take_along_axis(whole_s, slowest, axis=0)[0]
    held = np.take_along_axis(np.broadcast_to(repeats, whole_s.shape), slowest, axis=0)[0]
    next_s = np.where(np.arange(len(whole_s))[:, None] == slowest, 0.0, whole_s).max(axis=0)
    most_s: FloatArray = np.zeros(slowest_s.shape)
    for k in (np.int64(1), np.clip(held - 1, 1, deepest), deepest):
        stages_s = (k + 1) * next_s + np.minimum(held, k + 1) * (slowest_s - next_s)
        most_s = np.maximum(most_s, (stages_s + 2 * k * chunks.transfer_s) / (chunks.depth * k + 1))
    return most_s


def _bounds_s(chunks: Chunks, repeats: IntArray) -> FloatArray:
    """Return the most that a mean pass takes in circles from a run to k stages down, k from 1, shape (r, p - 1, n).

    As if they held the slowest k + 1 stages of this run and those below; -inf beyond the last stage.
    """
    stages = repeats.sum(axis=0)
    k = np.arange(1, int(stages.max()))[:, None]
    of_runs = (_slowest_first(chunks.whole_s[run:], repeats[run:]) for run in range(len(repeats)))
    return np.where(k < stages, np.stack([_mean_s(chunks, one, k) for one in of_runs]), -np.inf)


def _stages(chunks: Chunks, repeats: IntArray) -> tuple[Chunks, Paths]:
    """Return every stage of runs and the paths through it, as many stages as the longest has; nothing passes others."""
    stages = repeats.sum(axis=0)
    stage = np.arange(int(stages.max()))[:, None]
    run = np.minimum((stage >= np.cumsum(repeats, axis=0)[:, None]).sum(axis=0), len(repeats) - 1)
    f, b = (
        np.where(stage < stages, np.take_along_axis(one, run, axis=0), 0.0)
        for one in (chunks.forward_s, chunks.backward_s)
    )
    above_b = sums_above(b)
    at = Places(stage, f, b, np.zeros((1, 1)), sums_above(f), above_b, above_b + stage * chunks.transfer_s)
    paths = paths_of(chunks, at, _whole(chunks, repeats))
    passes = np.broadcast_to(paths.passes, f.shape)
    paths = paths._replace(between_s=np.where(stage < stages, paths.between_s, -np.inf), passes=passes)
    return replace(chunks, forward_s=f, backward_s=b, weight_s=np.zeros_like(f)), paths


def _with_circles_s(chunks: Chunks, ends: Paths, run: IntArray, repeats: IntArray) -> FloatArray:
    """Return the longest of the paths at ends of runs and of those that circle, shape (n,); ``run``: of the ends."""
    bounds_s, stages = _bounds_s(chunks, repeats), repeats.sum(axis=0)
    chunks, (_, between_s, passes) = _stages(chunks, repeats)
    x, longest_s, least_s = chunks.transfer_s, ends.longest_s.copy(), _least_of_runs(_means_s(ends), run)
    before = np.concatenate([np.zeros((1, x.size)), np.cumsum(chunks.whole_s, axis=0)])
    deep = np.flatnonzero((bounds_s > least_s[:, None] * (1 - _ROUNDING)).any(axis=(0, 2))) + 1
    for k in deep[::-1].tolist():
        some = np.flatnonzero((bounds_s[:, k - 1] > least_s * (1 - _ROUNDING)).any(axis=0))
        if not some.size:
            continue
        circle_s = before[k + 1 :, some] - before[: -k - 1, some] + 2 * k * x[some]
        mean_s = circle_s / (chunks.depth[some] * k + 1)
        is_inside = np.arange(len(circle_s))[:, None] < stages[some] - k
        apart_s = np.where(is_inside, between_s[:-k, some], -np.inf)
        is_longer = (apart_s + np.maximum(passes[:-k, some], 0) * mean_s).max(axis=0) > longest_s[some] * (1 + 1e-12)
        some = some[is_longer]
        if some.size:
            pace = chunks.depth[some], x[some]
            circling = circling_s(pace, circle_s[:, is_longer], before[:, some], passes[:-k, some])
            longest_s[some] = np.maximum(longest_s[some], (apart_s[:, is_longer] + circling).max(axis=0))
            of_some = Paths(longest_s[some], ends.between_s[:, some], ends.passes[:, some])
            least_s[:, some] = _least_of_runs(_means_s(of_some), run)
    return longest_s


def drain_s(
    backward_s: FloatArray,
    transfer_s: FloatArray | float,
    *,
    schedule: str,
    virtual_stages: IntArray | int = 1,
    weight_s: FloatArray | None = None,
    chunk: IntArray | int = 0,
    repeats: IntArray | None = None,
) -> FloatArray:
    """Return how long before the end of the pipeline a stage has the last gradients of a chunk [s], shape (p, n).

    An exchange of X_s seconds behind it outlasts the pipeline by max over s of (X_s - drain_s), at least 0.

    Parameters
    ----------
    backward_s, transfer_s, schedule, virtual_stages, weight_s
        Of :func:`planner.steps.pipeline.pipeline_s`.
    chunk : int or ndarray of int, shape (n,); of the stage, below v; the last backward is that of chunk 0
    repeats : ndarray of int, shape (p, n), or (p, 1) of all; how many equal stages each of the p stands for, of the
        first of which the time is; of schedules that do not compute gradients of weights apart

    Exact for equal stages: s (b + x), of a chunk (s + chunk p)(b + x); at least so long for others, whose stages above
    may be behind. ZB-H1 ends a stage with its delayed weight gradients: s (b - w), ZB-H2 s (b - 2 w), at least 0. ZB-V
    ends with those of chunk 0, behind s of chunk 1, on the first stage behind p (b + w). Without a flush 0.
    """
    counts = np.ones((len(backward_s), 1), dtype=np.int64) if repeats is None else repeats
    times = np.zeros_like(backward_s), backward_s, weight_s
    chunks = chunks_of(times, transfer_s, 1, virtual_stages, schedule, stages=counts.sum(axis=0))
    hop_s = chunks.backward_s + chunks.transfer_s
    if schedule == "no-flush":
        return np.zeros_like(hop_s)
    stage = np.cumsum(counts, axis=0) - counts
    if schedule == "zero-bubble-v":
        first_s = chunks.stages * (chunks.backward_s + chunks.weight_s)
        return np.asarray(chunk * np.where(stage > 0, stage * chunks.weight_s, first_s))
    late_s = (chunks.depth * stage + 1) * chunks.weight_s
    hops_s = hop_s * counts
    return np.asarray(np.maximum(sums_above(hops_s) + chunk * hops_s.sum(axis=0) - late_s + chunks.weight_s[0], 0.0))


def exposed_exchange_s(
    backward_s: FloatArray,
    transfer_s: FloatArray | float,
    runs: Runs,
    *,
    schedule: str,
    virtual_stages: IntArray | int = 1,
    weight_s: FloatArray | None = None,
    repeats: IntArray | None = None,
) -> FloatArray:
    """Return how long the exchange of each stage's gradients outlasts the pipeline [s], shape (p, n).

    Messages go one at a time, those of a chunk during its last backward at the earliest, and behind those of the chunks
    that have theirs before: chunk v - 1 first.

    Parameters
    ----------
    backward_s, transfer_s, schedule, virtual_stages, weight_s, repeats
        Of :func:`drain_s`; of equal stages the first is exposed most.
    runs : Runs, shape (R, p, n); of a stage. With several chunks the first run belongs to chunk 0 and the last to chunk
        v - 1, of three or more; what lies between is dealt out to all
    """
    v = np.broadcast_to(virtual_stages, np.broadcast_shapes(np.shape(virtual_stages), np.shape(backward_s)))
    is_end = np.zeros((len(runs.share), 1, 1), dtype=np.bool_)
    if len(is_end) > 2:
        is_end[[0, -1]] = True
    parts = np.where(is_end, 1, v)
    of_chunk = np.where(runs.number > 0, np.maximum(runs.number / parts, 1), 0)
    each = Runs(runs.share / parts, runs.message_s * runs.number / parts / np.maximum(of_chunk, 1), of_chunk)
    schedule_of = partial(
        drain_s,
        backward_s,
        transfer_s,
        schedule=schedule,
        virtual_stages=virtual_stages,
        weight_s=weight_s,
        repeats=repeats,
    )

    def late_s(kept: BoolArray) -> FloatArray:
        """Return by how much the messages of a chunk that has some of the runs outlast its backward pass."""
        chunk = Runs(each.share * kept, each.message_s, each.number * kept)
        return np.asarray(runs_end_s(backward_s, chunk) - (chunk.share * backward_s).sum(axis=0))

    at, several = np.arange(len(is_end))[:, None, None], v > 1
    last_run = len(is_end) - 1
    latest_s = np.maximum(late_s(~(is_end & several & (at == last_run))) - schedule_of(), 0.0)
    last = np.asarray(virtual_stages) - 1
    if last.any():  # how late a chunk is grows or falls from each to the next: the first or the last is latest
        of_others = np.where(is_end, at < last_run, last / v) * runs.message_s * runs.number
        of_last = late_s(~(is_end & several & (at < last_run)))
        latest_s = np.maximum(latest_s, of_last + of_others.sum(axis=0) * several - schedule_of(chunk=last))
    return np.asarray(latest_s)


def exchange_s(
    backward_s: FloatArray, transfer_s: FloatArray | float, every: Iterable[Runs], *, overlaps: bool, **schedule: Any
) -> tuple[FloatArray, FloatArray]:
    """Return what the exchange of the fullest stage takes, and what exchanges add to the step [s], shape (n,) each.

    Parameters
    ----------
    backward_s, transfer_s, schedule
        Of :func:`drain_s`.
    every : iterable of Runs, shape (R, p, n); ways to exchange, at least one. Each stage takes that which is done first
    overlaps : whether messages are sent as they are ready, not behind the last backward pass
    """
    taken = least = None
    for runs in every:
        sent = runs.sent_s
        if overlaps:
            late = exposed_exchange_s(backward_s, transfer_s, runs, **schedule)
        else:
            late = np.maximum(sent - drain_s(backward_s, transfer_s, **schedule), 0.0)
        late = np.where(sent > 0, late, 0.0)
        if taken is None or least is None:
            taken, least = sent, late
            continue
        taken, least = np.where(late < least, sent, taken), np.minimum(late, least)
    if taken is None or least is None:
        raise ParameterError("ways to exchange gradients", "at least one", 0)
    return taken.max(axis=0), least.max(axis=0)
