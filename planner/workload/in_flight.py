"""Micro-batches that a pipeline stage has run forward and not yet backward: what it keeps activations of.

Counted by schedule: GPipe (arXiv:1811.06965), 1F1B and PipeDream's without a flush (arXiv:1806.03377), interleaved as
Megatron runs it (arXiv:2104.04473), zero-bubble (arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.domain.split import SCHEDULES

__all__ = ["live_in_first_chunk", "live_in_last_chunk", "live_micro_batches", "mean_staleness", "weight_versions"]

_NO_FLUSH = SCHEDULES.index("no-flush")


def live_micro_batches(
    stage: IntArray | int,
    micro_batches: IntArray | int,
    pipeline: IntArray | int,
    virtual_stages: IntArray | int,
    schedule: IntArray | int,
) -> FloatArray:
    """Return the most micro-batches alive at a time, as if each had passed all layers of the stage.

    gpipe m; 1f1b min(m, p - s); interleaved min(m·v, 2(p - s - 1) + (v - 1)p + 1) / v, as each of v chunks has 1/v of
    the layers; zero-bubble at most min(m, p) at every stage, with the inputs that wait for gradients of weights;
    zero-bubble-h2 min(m, 2p - 1) and zero-bubble-v min(m, p) likewise; no-flush p - s, of steps that follow each other.
    One stage alone keeps one, and one chunk a stage is 1f1b.

    ``stage``: s, from 0; ``micro_batches``: m a step; ``pipeline``: p stages, of v ``virtual_stages`` each;
    ``schedule``: positions in :data:`planner.domain.split.SCHEDULES`. Of the shape that the arguments broadcast to.
    """
    s, m, p, v = (np.asarray(each, dtype=np.float64) for each in (stage, micro_batches, pipeline, virtual_stages))

    def interleaved() -> FloatArray:
        chunks = np.minimum(m * v, 2 * (p - s - 1) + (v - 1) * p + 1)
        return np.where(v > 1, chunks / v, np.minimum(m, p - s))

    live = {
        "gpipe": lambda: m,
        "interleaved": interleaved,
        "zero-bubble": lambda: np.minimum(m, p),
        "zero-bubble-h2": lambda: np.minimum(m, 2 * p - 1),
        "zero-bubble-v": lambda: np.minimum(m, p),
        "no-flush": lambda: p - s,
    }
    return _by_schedule(p, schedule, live, np.minimum(m, p - s))


def live_in_first_chunk(
    micro_batches: IntArray | int, pipeline: IntArray | int, virtual_stages: IntArray | int, schedule: IntArray | int
) -> FloatArray:
    """Return the most micro-batches alive in the first chunk of the first stage, which keep what embedding needs.

    As :func:`live_micro_batches`, but the interleaved schedule has brought 2p through it before the first of them comes
    back, and zero-bubble-v 2p - 1. Parameters are as there.
    """
    m, p, v = (np.asarray(each, dtype=np.float64) for each in (micro_batches, pipeline, virtual_stages))
    live = {
        "gpipe": lambda: m,
        "interleaved": lambda: np.minimum(m, np.where(v > 1, 2 * p, p)),
        "zero-bubble-h2": lambda: np.minimum(m, 2 * p - 1),
        "zero-bubble-v": lambda: np.minimum(m, 2 * p - 1),
        "no-flush": lambda: p,
    }
    return _by_schedule(p, schedule, live, np.minimum(m, p))


def live_in_last_chunk(micro_batches: IntArray | int, pipeline: IntArray | int, schedule: IntArray | int) -> FloatArray:
    """Return the most micro-batches alive in the last chunk, which keep what logits need.

    Each goes back before the next comes, but with gpipe, and where inputs wait for gradients of weights. Parameters are
    those of :func:`live_micro_batches`.
    """
    m, p = (np.asarray(each, dtype=np.float64) for each in (micro_batches, pipeline))
    live = {
        "gpipe": lambda: m,
        "zero-bubble": lambda: np.minimum(m, p),
        "zero-bubble-h2": lambda: np.minimum(m, 2 * p - 1),
    }
    return _by_schedule(p, schedule, live, np.ones(np.broadcast_shapes(m.shape, p.shape)))


def weight_versions(stage: IntArray | int, plans: Configurations) -> IntArray:
    """Return how many versions of its weights a stage keeps: p - s without a flush, else 1.

    A micro-batch goes back with the weights that it went forward with, which p - s - 1 others have updated by then:
    so many updates its gradients are late.
    """
    return np.where(plans.schedule == _NO_FLUSH, plans.pipeline_parallel - np.asarray(stage), 1)


def mean_staleness(plans: Configurations) -> FloatArray:
    """Return by how many updates gradients are late, in the mean over stages: (p - 1) / 2 without a flush, else 0."""
    return (weight_versions(0, plans) - 1) / 2


def _by_schedule(
    p: FloatArray,
    schedule: IntArray | int,
    live: Mapping[str, Callable[[], FloatArray]],
    otherwise: FloatArray,
) -> FloatArray:
    """Return what schedules have alive, of which only those that occur are worked out; a single stage has one alive."""
    result = otherwise
    for code in np.flatnonzero(np.bincount(np.ravel(schedule))).tolist():
        if SCHEDULES[code] in live:
            result = np.where(np.equal(schedule, code), live[SCHEDULES[code]](), result)
    return np.where(p > 1, result, 1.0)
