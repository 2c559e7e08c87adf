"""Pipelines: time of all micro-batches through all stages, by schedule, as the longest of a few paths of waiting.

=========  ======================================================================================================
p, m, v    stages, micro-batches of a step, chunks (virtual stages) of each stage
s          a stage, 0 to p - 1; chunk c of it is part c p + s of the network
f, b, w    forward, backward and weight gradients of one chunk [s]; b without w
x          transfer of one micro-batch between neighbouring parts [s], beside which both ends go on computing
pass       one chunk, one micro-batch: a stage has m v of them each way
warm-up    forwards of a stage before its first backward
rest       passes forward of a stage behind its first backward
=========  ======================================================================================================

In the steady state of 1F1B a stage alternates between a forward and a backward. Every path of waiting from the first
forward to the last backward goes down to some stage, stays there or circles between it and stages below, and leaves
upwards. It enters in the stage's own warm-up, or with the backward of the first micro-batch from the last stage; it
leaves in the stage's own cool-down, or with the forward of the last micro-batch to the last stage. The closed form is
the longest of these: a lower bound for any stages, and exact for equal ones. tests/steps/test_pipeline.py compares it
with the event count of tests/simulation/events.py.

Arrays are of shape (p, n), by stage and configuration, or (n,); each may have length 1 where it is to be repeated.

Times of chunks of pipeline stages, by schedule: what its closed forms work on.

Arrays are of shape (p, n), by stage and configuration, or (n,); each may have length 1 where it is to be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import SCHEDULES
from planner.errors import ParameterError


def pipeline_s(
    forward_s: FloatArray,
    backward_s: FloatArray,
    transfer_s: FloatArray | float,
    micro_batches: IntArray | int,
    *,
    schedule: str,
    virtual_stages: IntArray | int = 1,
    weight_s: FloatArray | None = None,
    blocking: bool = False,
) -> FloatArray:
    """Return the time of all micro-batches through all stages [s], first forward to last backward, shape (n,).

    Parameters
    ----------
    forward_s, backward_s : ndarray of float, shape (p, n)
        Of one micro-batch through a stage, all its chunks; equal chunks.
    transfer_s : ndarray of float, shape (n,); of one micro-batch between neighbouring stages, one way
    micro_batches : ndarray of int, shape (n,)
    schedule : one of SCHEDULES; zero-bubble is ZB-H1, zero-bubble-v ZB-V, each with an optimizer that waits for all
        stages; no-flush is one of endless steps
    virtual_stages : ndarray of int, shape (n,)
        Of "interleaved", in groups of p micro-batches, with 1 it is 1F1B; of "zero-bubble-v" 2.
    weight_s : ndarray of float, shape (p, n), optional
        The part of ``backward_s`` that is gradients of weights, of zero bubble; half of it where not given.
    blocking : stages stand still while they send and receive, each way

    ParameterError: for an unknown schedule, and for virtual stages of one that has none.

    GPipe is exact: sum of f + b, (m - 1)(max f + max b), 2 (p - 1) x (Huang et al. 2019 for equal stages). So are, for
    equal stages and any m, 1F1B with any x; interleaved with x up to f, where it is
    m t + (p - 1) t / v + 2 (v p - 1) x for t = v (f + b); ZB-H1 with x = 0, where with w <= f <= b and m >= 2 p it is
    m (f + b + w) + (p - 1)(f + b - w). Elsewhere the figure is a lower bound, of which the event count is above, in
    random cases of up to 12 stages (8 of interleaved) that are unrelated, or heavier at an end, or by a layer: 1F1B
    with x up to f by 0.06 % in the mean and 5 % at worst, interleaved by 0.2 % and 6 %, ZB-H1 with x up to 0.3 f by
    0.15 % and 9 %. With x up to 4 f interleaved is 3 % low in the mean, 16 % at worst. No-flush is m periods of 1F1B.

    ZB-H2 is exact for equal stages, any f, b and w, x = 0 and m >= 2 p - 1: m (f + b + w) + (p - 1) f where b <= 2 w.
    Elsewhere it is low by 0.03 % in the mean and 3 % at worst, with fewer micro-batches by 0.8 % and 12 %. ZB-V, of the
    order of torch.distributed.pipelining, is m (f + b + w) + (p - 1) f / 2 where f = b = w; equal stages are low by
    0.1 % in the mean and 2 % at worst, others by 0.3 % and 3 %, with x up to 0.3 f / v by 1 % and 4 %.
    """
    chunks = chunks_of((forward_s, backward_s, weight_s), transfer_s, micro_batches, virtual_stages, schedule)
    if blocking and chunks.stages > 1:
        x = chunks.transfer_s
        f, b = chunks.forward_s + x, chunks.backward_s + x
        chunks = replace(chunks, forward_s=f, backward_s=b, transfer_s=np.zeros_like(x))
    if schedule == "gpipe":
        f, b = chunks.forward_s, chunks.backward_s
        steady_s = (chunks.micro_batches - 1) * (f.max(axis=0) + b.max(axis=0))
        return np.asarray((f + b).sum(axis=0) + steady_s + 2 * (chunks.stages - 1) * chunks.transfer_s)
    if schedule == "no-flush":
        return np.asarray(chunks.micro_batches * _period_s(chunks))
    if schedule == "zero-bubble-v":
        return _v_shaped_s(chunks)
    return _longest_path_s(chunks)


def _circles_s(chunks: Chunks) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """Yield k > 0 from the largest, and of every stage s < p - k the time of one circle to stage s + k and back.

    Also yielded are sums of f + b before every stage, shape (p + 1, n). Without transfers no circle is slower than
    staying at its slowest stage.
    """
    if not chunks.transfer_s.any():
        return
    before = np.concatenate([np.zeros((1, chunks.transfer_s.size)), np.cumsum(chunks.whole_s, axis=0)])
    for k in range(chunks.stages - 1, 0, -1):
        yield k, before[k + 1 :] - before[: -k - 1] + 2 * k * chunks.transfer_s, before


def _period_s(chunks: Chunks) -> FloatArray:
    """Return the steady period of a micro-batch in 1F1B: the largest mean of a circle of waiting, shape (n,)."""
    longest_s = chunks.whole_s.max(axis=0)
    for k, circle_s, _ in _circles_s(chunks):
        longest_s = np.maximum(longest_s, circle_s.max(axis=0) / (k + 1))
    return np.asarray(longest_s)


class Places(NamedTuple):
    """Stages at which paths of waiting are looked at: q of them, each attribute of shape (q, n).

    ``above_forward_s``, ``above_backward_s``: sums over the stages above; ``up_s``: from the last backward to the end.
    """

    stage: IntArray
    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    above_forward_s: FloatArray
    above_backward_s: FloatArray
    up_s: FloatArray


class Whole(NamedTuple):
    """What paths take of the whole pipeline: p stages, of all or of each, and of configurations each of shape (n,).

    Sums over all stages, what all chunks but the last take a micro-batch, the last stage's backward, and its ``up_s``.
    """

    stages: IntArray | int
    forward_s: FloatArray
    backward_s: FloatArray
    forward_rounds_s: FloatArray
    backward_rounds_s: FloatArray
    last_backward_s: FloatArray
    last_up_s: FloatArray


class Paths(NamedTuple):
    """Paths of waiting through places: the longest of those without circles; of the others all but their circles.

    Shapes (n,), (q, n), and (q, n): how many passes go by in circles, a whole number.
    """

    longest_s: FloatArray
    between_s: FloatArray
    passes: FloatArray


def whole_of(
    chunks: Chunks, stages: IntArray | int, forward_s: FloatArray, backward_s: FloatArray, up_s: FloatArray
) -> Whole:
    """Return what paths take of a pipeline of so many stages, given its sums and the last stage's ``up_s``."""
    forward_rounds_s, backward_rounds_s = (
        _rounds_s(chunks, stages, through_s, each.max(axis=0))
        for through_s, each in ((forward_s, chunks.forward_s), (backward_s, chunks.backward_s))
    )
    last_s = chunks.backward_s[-1]
    return Whole(stages, forward_s, backward_s, forward_rounds_s, backward_rounds_s, last_s, up_s)


def paths_of(chunks: Chunks, at: Places, whole: Whole) -> Paths:
    """Return the paths in 1F1B, interleaved or with delayed weight gradients."""
    p, x, f, b, w, stage = whole.stages, chunks.transfer_s, at.forward_s, at.backward_s, at.weight_s, at.stage
    number = (chunks.micro_batches * chunks.virtual_stages).astype(np.float64)  # whole numbers times seconds below
    below = (p - 1 - stage).astype(np.float64)
    below_s, both_s = below * x, f + b
    rest = np.maximum(number - 1 - (chunks.virtual_stages - 1) * p - chunks.depth * below, 0.0)
    early_in_s = at.above_forward_s + stage * x
    through_s = whole.forward_rounds_s + whole.forward_s + (p - 1) * x
    late_in_s = through_s + whole.backward_s - at.above_backward_s + below_s
    turned_s = whole.backward_rounds_s + whole.last_backward_s + whole.last_up_s
    early_out_s = whole.forward_s + turned_s - at.above_forward_s - f + below_s
    cooled_s, steady_s = at.up_s, np.zeros(1)
    if w.any():
        cooled_s = np.maximum(number - 1 - chunks.depth * stage, 0.0) * w + cooled_s
        steady_s = np.maximum(rest - chunks.depth * stage, 0.0) * w
    longest_s = np.maximum(early_in_s + number * both_s, late_in_s + (number - 1) * b + rest * f) + cooled_s
    out_s = early_out_s + steady_s if steady_s.any() else early_out_s
    longest_s = np.maximum(longest_s, early_in_s + number * f + rest * b + out_s)
    between_s = np.where(rest > 0, late_in_s + f + early_out_s, -np.inf)
    rest -= 1
    longest_s = np.maximum(longest_s, between_s + rest * both_s + steady_s).max(axis=0)
    return Paths(longest_s, between_s, rest)


def paths_of_stages(chunks: Chunks) -> Paths:
    """Return the paths through every stage."""
    p, f, b = chunks.stages, chunks.forward_s, chunks.backward_s
    up_s = _up_s(chunks)
    at = Places(np.arange(p)[:, None], f, b, chunks.weight_s, sums_above(f), sums_above(b), up_s)
    return paths_of(chunks, at, whole_of(chunks, p, f.sum(axis=0), b.sum(axis=0), up_s[-1]))


def _longest_path_s(chunks: Chunks) -> FloatArray:
    """Return the longest of the paths of waiting in 1F1B, interleaved or with delayed weight gradients, shape (n,)."""
    longest_s, between_s, passes = paths_of_stages(chunks)
    # Circles whose mean pass is too short for a longer path are left out.
    for k, circle_s, before in _circles_s(chunks):
        mean_s = circle_s / (chunks.depth * k + 1)
        hoped_s = (between_s[:-k] + np.maximum(passes[:-k], 0) * mean_s).max(axis=0)
        some = np.flatnonzero(hoped_s > longest_s * (1 + 1e-12))
        if some.size:
            pace = chunks.depth[some], chunks.transfer_s[some]
            circles_s = circling_s(pace, circle_s[:, some], before[:, some], passes[:-k, some])
            longest_s[some] = np.maximum(longest_s[some], (between_s[:-k, some] + circles_s).max(axis=0))
    return longest_s


def _up_s(chunks: Chunks) -> FloatArray:
    """Return from the last backward of each stage to the end, delayed weight gradients included, shape (p, n)."""
    # The backward goes up to stage 0, or to any stage between, which ends with its delayed weight gradients.
    climb_s = sums_above(chunks.backward_s + chunks.transfer_s)
    delayed = np.minimum(chunks.depth * np.arange(chunks.stages)[:, None] + 1, chunks.micro_batches)
    return climb_s + np.maximum.accumulate(delayed * chunks.weight_s - climb_s, axis=0)


def _rounds_s(chunks: Chunks, stages: IntArray | int, through_s: FloatArray, slowest_s: FloatArray) -> FloatArray:
    """Return all chunks but the last for a micro-batch, (n,): through all stages, or held up at the slowest."""
    behind_s = stages * slowest_s
    return np.asarray((chunks.virtual_stages - 1) * np.maximum(through_s + stages * chunks.transfer_s, behind_s))


def circling_s(
    pace: tuple[IntArray, FloatArray], circle_s: FloatArray, before: FloatArray, passes: FloatArray
) -> FloatArray:
    """Return the time in which ``passes`` go by in circles of k stages down, shape (p - k, n).

    ``pace``: depth and transfers; ``before``: sums of f + b before every stage, shape (p + 1, n). A circle lasts
    ``depth`` passes a stage and one; the last passes are a shorter one, from a lower stage.
    """
    (depth, transfer_s), stages = pace, len(before) - 1
    k = stages - len(circle_s)
    circles, left = np.divmod(np.maximum(passes, 0).astype(np.int64), depth * k + 1)
    shorter = np.maximum(left - 1, 0) // depth
    lowest = np.arange(k, stages)[:, None]
    shorter_s = before[k + 1 :] - np.take_along_axis(before, lowest - shorter, axis=0) + 2 * shorter * transfer_s
    stays_s = (left - 1 - depth * shorter) * (before[1:-k] - before[: -k - 1])
    return np.asarray(circles * circle_s + np.where(left > 0, shorter_s + stays_s, 0.0))


def _v_shaped_s(chunks: Chunks) -> FloatArray:
    """Return the longest of a few paths of waiting in ZB-V, shape (n,); of at least 2 p micro-batches.

    A path comes down to some stage, or with the first micro-batch down, up again, and back to it as the gradient of its
    second chunk, by which 2 p forwards are done. It stays for the work that is left. It leaves there, or upwards with
    the last backward of the first chunk, or from the second chunk downwards and then up; ``up_s``: from the last
    backward of a stage's first chunk, with the 2 s + 1 weight gradients that wait behind it on the stage where it ends.
    """
    p, x, f, b, w = chunks.stages, chunks.transfer_s, chunks.forward_s, chunks.backward_s, chunks.weight_s
    stage = np.arange(p)[:, None]
    above_s, gone_s = sums_above(b), 2 * f.sum(axis=0) + 2 * (p - 1) * x
    in_s = np.maximum(sums_above(f) + stage * x, gone_s + above_s + stage * x - 2 * p * f)
    climb_s = above_s + stage * x
    up_s = climb_s + np.maximum.accumulate((2 * stage + 1) * w - climb_s, axis=0)
    turn_s = b.sum(axis=0) - above_s - b + (p - 1 - stage) * x + b[-1] + up_s[-1]
    out_s = np.maximum(up_s - (2 * stage + 1) * w, turn_s - (p - stage) * b - np.where(stage > 0, p + stage, p + 1) * w)
    return np.asarray((in_s + chunks.micro_batches * chunks.virtual_stages * (f + b + w) + out_s).max(axis=0))


CHUNKED = ("interleaved", "zero-bubble-v")
SPLIT_BACKWARD = ("zero-bubble", "zero-bubble-h2", "zero-bubble-v")


@dataclass(frozen=True, slots=True)
class Chunks:
    """Times of one chunk each way.

    Attributes
    ----------
    forward_s, backward_s, weight_s : ndarray of float, shape (p, n); f, b and w
    transfer_s, micro_batches, virtual_stages : ndarray, shape (n,); x, m and v
    depth : ndarray of int, shape (n,); by how many forwards a stage is ahead of the one below it before its first
        backward, and by how many more micro-batches its weight gradients are behind
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray
    transfer_s: FloatArray
    micro_batches: IntArray
    virtual_stages: IntArray
    depth: IntArray

    def of(self, some: IntArray) -> Chunks:
        """Return those of some configurations."""
        f, b, w = (times[:, some] for times in (self.forward_s, self.backward_s, self.weight_s))
        counts = (self.micro_batches[some], self.virtual_stages[some], self.depth[some])
        return Chunks(f, b, w, self.transfer_s[some], *counts)

    @property
    def stages(self) -> int:
        """Return p."""
        return len(self.forward_s)

    @property
    def whole_s(self) -> FloatArray:
        """Return f + b, shape (p, n)."""
        return self.forward_s + self.backward_s


def chunks_of(
    times_s: tuple[FloatArray, FloatArray, FloatArray | None],
    transfer_s: FloatArray | float,
    micro_batches: IntArray | int,
    virtual_stages: IntArray | int,
    schedule: str,
    *,
    stages: IntArray | int | None = None,
) -> Chunks:
    """Return times of chunks, of one shape; ``stages``: p, of each, if not as many as there are times.

    ``times_s`` are forward, whole backward and its part of weights, half of it where not given; the latter counts in
    schedules alone that compute it apart.

    ParameterError: for an unknown schedule, and for virtual stages of one that has none.
    """
    v = np.asarray(virtual_stages)
    _check(schedule, v)
    forward_s, backward_s, weight_s = times_s
    if schedule not in SPLIT_BACKWARD:
        weight_s = np.zeros(1)
    elif weight_s is None:
        weight_s = np.asarray(backward_s) / 2
    f, b, w, x, m, v = np.broadcast_arrays(
        forward_s, np.asarray(backward_s) - weight_s, weight_s, transfer_s, micro_batches, v
    )
    depth = np.where((v[0] > 1) | (schedule == "zero-bubble-h2"), 2, 1)
    return Chunks(
        f / v, b / v, w / v, x[0] * np.greater(f.shape[0] if stages is None else stages, 1), m[0], v[0], depth
    )


def _check(schedule: str, virtual_stages: IntArray) -> None:
    if schedule not in SCHEDULES:
        raise ParameterError("schedule of a pipeline", f"one of {', '.join(SCHEDULES)}", schedule)
    if schedule not in CHUNKED and np.any(virtual_stages != 1):
        raise ParameterError(f"virtual stages of schedule {schedule}", "1", int(np.max(virtual_stages)))


def sums_above(times: FloatArray) -> FloatArray:
    """Return sums over the stages above each, shape of ``times``."""
    return np.asarray(np.cumsum(times, axis=0) - times)
