"""What the drain of a pipeline hides: when stages have their last gradients, and what outlasts it of their exchange."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.errors import ParameterError
from planner.steps.pipeline_chunks import chunks_of, sums_above
from planner.steps.synchronous import Runs, runs_end_s

__all__ = ["drain_s", "exchange_s", "exposed_exchange_s"]


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
    chunk : int or ndarray of int, shape (n,)
        Of the stage, below v; the last backward is that of chunk 0.
    repeats : ndarray of int, shape (p, n), or (p, 1) of all, optional
        How many equal stages each of the p stands for, of the first of which the time is; of schedules that do not
        compute gradients of weights apart.

    Notes
    -----
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
    runs : Runs, shape (R, p, n)
        Of a stage. With several chunks the first run belongs to chunk 0 and the last to chunk v - 1, of three or more;
        what lies between is dealt out to all.
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
    every : iterable of Runs, shape (R, p, n)
        Ways to exchange, at least one. Each stage takes that which is done first.
    overlaps : bool
        Whether messages are sent as they are ready, not behind the last backward pass.
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
