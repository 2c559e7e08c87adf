"""Which neighbouring gradients to send together so that the last message is done as early as it can be (MODEL 8.3).

Slots 1...J are as in :mod:`planner.steps.synchronous`. A message holds slots l...k, takes T(l, k) seconds, is ready
with its lowest slot l, and starts when the one before it is done. With D(J + 1) = 0,

    D(l) = min over k >= l of [max(D(k + 1), ready(l)) + T(l, k)]

is when slots l...J can be done at the earliest, in O(J^2) and exact for any T: what is sent before a message can only
delay it, so that its earliest end serves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray

__all__ = ["Fusion", "best_fusion"]


class Fusion(NamedTuple):
    """The best messages of c backward passes.

    Attributes
    ----------
    end_s, taken_s : ndarray of float, shape (c,)
        When the last message is done, from the start of the backward pass, and what all of them take [s].
    last : ndarray of int, shape (c, J)
        The highest slot of the message whose lowest slot is this one, from 0.
    """

    end_s: FloatArray
    taken_s: FloatArray
    last: IntArray

    def slots(self, case: int) -> IntArray:
        """Return the lowest slot of each message of a pass, ascending, shape (B,)."""
        lowest, last = [], self.last[case].tolist()
        slot = 0
        while slot < len(last):
            lowest.append(slot)
            slot = last[slot] + 1
        return np.array(lowest, dtype=np.int64)


def best_fusion(ready_s: FloatArray, message_s: FloatArray) -> Fusion:
    """Return the messages that are done first; of ways to send that are done as early, those of fewer slots each.

    Parameters
    ----------
    ready_s : ndarray of float, shape (c, J)
        When each gradient is there, by :func:`planner.steps.synchronous.ready_s`.
    message_s : ndarray of float, shape (J, J)
        Of slots l to k together, l <= k; others are not looked at.
    """
    cases, slots = ready_s.shape
    done, taken = np.zeros((2, cases, slots + 1))
    last = np.zeros((cases, slots), dtype=np.int64)
    rows = np.arange(cases)
    for low in range(slots - 1, -1, -1):
        ends = np.maximum(done[:, low + 1 :], ready_s[:, low : low + 1]) + message_s[low, low:]
        best = np.argmin(ends, axis=1)
        last[:, low] = low + best
        done[:, low] = ends[rows, best]
        taken[:, low] = message_s[low, low + best] + taken[rows, low + best + 1]
    return Fusion(done[:, 0], taken[:, 0], last)
