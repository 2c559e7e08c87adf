"""Gradients that are sent together because they were ready by the same cycle: Horovod's tensor fusion (MODEL 8.3).

A background thread looks at every multiple of the cycle time for gradients that are ready. It packs them, in the order
in which they became ready, into messages of at most the threshold; a gradient above the threshold is a message by
itself. Messages queue for the network, as NCCL's do on their stream, while the thread goes on (Sergeev and Del Balso
2018, arXiv:1802.05799; github.com/horovod/horovod, docs/tensor-fusion.rst).

Slots 1...J are as in :mod:`planner.steps.synchronous`: gradients become ready from J to 1.
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray
from planner.steps.best_fusion import Fusion

__all__ = ["cycle_fusion"]


def cycle_fusion(
    ready_s: FloatArray, message_s: FloatArray, slot_bytes: FloatArray, threshold_bytes: float, cycle_s: float
) -> Fusion:
    """Return the messages of c backward passes, the first cycle of which begins with the pass.

    Parameters
    ----------
    ready_s : ndarray of float, shape (c, J)
        When each gradient is there, by :func:`planner.steps.synchronous.ready_s`.
    message_s : ndarray of float, shape (J, J)
        Of slots l to k together, l <= k; others are not looked at.
    slot_bytes : ndarray of float, shape (J,)
    threshold_bytes : float
        0: every gradient is a message by itself.
    cycle_s : float
        Above 0.
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
