"""Times of chunks of pipeline stages, by schedule: what its closed forms work on.

Arrays are of shape (p, n), by stage and configuration, or (n,); each may have length 1 where it is to be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.split import SCHEDULES
from planner.errors import ParameterError

__all__ = ["SPLIT_BACKWARD", "Chunks", "chunks_of", "sums_above"]

CHUNKED = ("interleaved", "zero-bubble-v")
SPLIT_BACKWARD = ("zero-bubble", "zero-bubble-h2", "zero-bubble-v")


@dataclass(frozen=True, slots=True)
class Chunks:
    """Times of one chunk each way.

    Attributes
    ----------
    forward_s, backward_s, weight_s : ndarray of float, shape (p, n)
        f, b and w.
    transfer_s, micro_batches, virtual_stages : ndarray, shape (n,)
        x, m and v.
    depth : ndarray of int, shape (n,)
        By how many forwards a stage is ahead of the one below it before its first backward, and by how many more
        micro-batches its weight gradients are behind.
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

    Raises
    ------
    ParameterError
        For an unknown schedule, and for virtual stages of one that has none.
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
