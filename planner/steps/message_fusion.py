"""Which neighbouring gradients to send together so that the last message is done as early as it can be (MODEL 8.3).

Slots 1...J are as in :mod:`planner.steps.synchronous`. A message holds slots l...k, takes T(l, k) seconds, is ready
with its lowest slot l, and starts when the one before it is done. With D(J + 1) = 0,

    D(l) = min over k >= l of [max(D(k + 1), ready(l)) + T(l, k)]

is when slots l...J can be done at the earliest, in O(J^2) and exact for any T: what is sent before a message can only
delay it, so that its earliest end serves.

Gradients that are sent together because they were ready by the same cycle: Horovod's tensor fusion (MODEL 8.3).

A background thread looks at every multiple of the cycle time for gradients that are ready. It packs them, in the order
in which they became ready, into messages of at most the threshold; a gradient above the threshold is a message by
itself. Messages queue for the network, as NCCL's do on their stream, while the thread goes on (Sergeev and Del Balso
2018, arXiv:1802.05799; github.com/horovod/horovod, docs/tensor-fusion.rst).

Slots 1...J are as in :mod:`planner.steps.synchronous`: gradients become ready from J to 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray

__all__ = ["Fusion", "best_fusion", "cycle_fusion"]


class Fusion(NamedTuple):
    """The best messages of c backward passes.

    Attributes
    ----------
    end_s, taken_s : ndarray of float, shape (c,)
        When the last message is done, from the start of the backward pass, and what all of them take [s].
    last : ndarray of int, shape (c, J); the highest slot of the message whose lowest slot is this one, from 0
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
    ready_s : ndarray of float, shape (c, J); when each gradient is there, by :func:`planner.steps.synchronous.ready_s`
    message_s : ndarray of float, shape (J, J); of slots l to k together, l <= k; others are not looked at
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


def cycle_fusion(
    ready_s: FloatArray, message_s: FloatArray, slot_bytes: FloatArray, threshold_bytes: float, cycle_s: float
) -> Fusion:
    """Return the messages of c backward passes, the first cycle of which begins with the pass.

    Parameters
    ----------
    ready_s : ndarray of float, shape (c, J); when each gradient is there, by :func:`planner.steps.synchronous.ready_s`
    message_s : ndarray of float, shape (J, J); of slots l to k together, l <= k; others are not looked at
    slot_bytes : ndarray of float, shape (J,)
    threshold_bytes : 0: every gradient is a message by itself
    cycle_s : above 0
    """
    cases, slots = ready_s.shape
    done, taken, cycle, filled = np.zeros((4, cases))
    last = np.zeros((cases, slots), dtype=np.int64)
    high = np.full(cases, slots - 1)
    for low in range(slots - 1, -1, -1):
        is_late = ready_s[:, low] > cycle
        is_full = filled + slot_bytes[low] > threshold_bytes
        ends = is_late | is_full if low < slots - 1 else np.zeros(cases, dtype=np.bool_)
        sent_s = np.where(ends, message_s[min(low + 1, slots - 1), high], 0.0)
        done = np.where(ends, np.maximum(done, cycle) + sent_s, done)
        taken += sent_s
        cycle = np.where(is_late, np.ceil(ready_s[:, low] / cycle_s) * cycle_s, cycle)
        high = np.where(ends, low, high)
        filled = np.where(ends, 0.0, filled) + slot_bytes[low]
        last[:, low] = high
    if slots:
        sent_s = message_s[0, high]
        done, taken = np.maximum(done, cycle) + sent_s, taken + sent_s
    return Fusion(done, taken, last)
