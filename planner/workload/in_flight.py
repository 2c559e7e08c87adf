"""Micro-batches that a pipeline stage has run forward and not yet backward: what it keeps activations of.

Counted by schedule: GPipe (arXiv:1811.06965), 1F1B (arXiv:1806.03377), interleaved as Megatron runs it
(arXiv:2104.04473), zero-bubble (arXiv:2401.10241).
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray

__all__ = ["live_end_micro_batches", "live_micro_batches"]


def live_micro_batches(
    stage: IntArray | int,
    micro_batches: IntArray | int,
    pipeline: IntArray | int,
    virtual_stages: IntArray | int,
    schedule: IntArray | int,
) -> FloatArray:
    """Return the most micro-batches alive at a time, as if each had passed all layers of the stage.

    gpipe m; 1f1b min(m, p - s); interleaved min(m·v, 2(p - s - 1) + (v - 1)p + 1) / v, as each of v chunks has 1/v of
    the layers; zero-bubble at most min(m, p) at every stage, with the inputs that wait for gradients of weights. One
    stage alone keeps one, and one chunk a stage is 1f1b.

    Parameters
    ----------
    stage : int or ndarray of int
        s, from 0.
    micro_batches, pipeline, virtual_stages : int or ndarray of int
        m a step; p stages; v chunks of each.
    schedule : int or ndarray of int
        Positions in :data:`planner.domain.split.SCHEDULES`.

    Returns
    -------
    ndarray of float
        Of the shape that the arguments broadcast to.
    """
    s, m, p, v = (np.asarray(each, dtype=np.float64) for each in (stage, micro_batches, pipeline, virtual_stages))
    interleaved = np.where(v > 1, np.minimum(m * v, 2 * (p - s - 1) + (v - 1) * p + 1) / v, np.minimum(m, p - s))
    return _by_schedule(p, schedule, (m, np.minimum(m, p - s), interleaved, np.minimum(m, p)))


def live_end_micro_batches(
    stage: IntArray | int,
    micro_batches: IntArray | int,
    pipeline: IntArray | int,
    virtual_stages: IntArray | int,
    schedule: IntArray | int,
) -> FloatArray:
    """Return the most micro-batches alive in the first chunk of the first stage, or in the last one of the last stage.

    They keep what embedding and logits need. As :func:`live_micro_batches`, but the interleaved schedule has brought 2p
    micro-batches through its first chunk before the first of them comes back, and each one back through the last chunk
    before the next.
    """
    s, m, p, v = (np.asarray(each, dtype=np.float64) for each in (stage, micro_batches, pipeline, virtual_stages))
    plain = np.minimum(m, p - s)
    interleaved = np.where((v > 1) & (s == 0), np.minimum(m, 2 * p), plain)
    return _by_schedule(p, schedule, (m, plain, interleaved, np.minimum(m, p)))


def _by_schedule(p: FloatArray, schedule: IntArray | int, live: tuple[FloatArray, ...]) -> FloatArray:
    result: FloatArray = np.choose(schedule, np.broadcast_arrays(*live))
    return np.where(p > 1, result, 1.0)
