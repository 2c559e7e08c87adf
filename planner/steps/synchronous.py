"""Synchronous steps: communication after the backward pass, or hidden behind it layer by layer.

Slots 1...J are the layers with parameters, in forward order; backward runs from J to 1 and so does communication, one
message at a time. A slot's message starts when its gradient is ready and the message before it is done: wait-free
backpropagation (Zhang et al. 2017, Poseidon; Shi, Chu, Li, INFOCOM 2019). A bucket of neighbouring slots is one message
under the same rule, ready with its lowest slot.

=========  ===========================================================================================
b(l)       backward time of slot l [s], with that of the parameterless layers behind it
c(l)       time of slot l's message [s]
ready(l)   b(J) + ... + b(l): when gradient l is there, from the start of the backward pass
prefix(l)  c(1) + ... + c(l): message l and those after it, without waiting
=========  ===========================================================================================
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray

__all__ = ["backward_end_s", "communication_prefix_s", "exposed_s", "ready_s"]

_BLOCK = 1 << 17
"""Numbers of one temporary array: 1 MB, which stays in a core's cache."""


def ready_s(backward_s: FloatArray) -> FloatArray:
    """Return ready(l), suffix sums over the last axis, of the shape of ``backward_s``."""
    return np.cumsum(backward_s[..., ::-1], axis=-1)[..., ::-1]


def communication_prefix_s(communication_s: FloatArray) -> FloatArray:
    """Return prefix(l), prefix sums over the last axis, of the shape of ``communication_s``."""
    return np.cumsum(communication_s, axis=-1)


def backward_end_s(ready: FloatArray, prefix: FloatArray, compute_case: IntArray, message_case: IntArray) -> FloatArray:
    """Return when the last message is done [s], for pairs of cases: max over l of ready(l) + prefix(l).

    Parameters
    ----------
    ready : ndarray of float, shape (c, J)
        Of every compute case, by :func:`ready_s`.
    prefix : ndarray of float, shape (m, J)
        Of every message case, by :func:`communication_prefix_s`.
    compute_case, message_case : ndarray of int, shape (k,)
        The pairs to evaluate; quickest when they are many of few cases, sorted by compute case, then by message case.

    Returns
    -------
    ndarray of float, shape (k,); 0 without slots

    Notes
    -----
    Equal to the recurrence message by message, with s(l) the start of message l of c(l) seconds: s(J) = ready(J),
    s(l) = max(s(l + 1) + c(l + 1), ready(l)). The path that decides leaves the backward pass at one slot l, after which
    messages follow each other without a gap. Runs go along the side with fewer cases.
    """
    if ready.shape[1] == 0:
        return np.zeros(compute_case.size)
    if _distinct(compute_case, ready.shape[0]) <= _distinct(message_case, prefix.shape[0]):
        return _largest_sums(ready, prefix, compute_case, message_case)
    order = np.argsort(message_case, kind="stable")
    found = np.empty(compute_case.size)
    found[order] = _largest_sums(prefix, ready, message_case[order], compute_case[order])
    return found


def _distinct(cases: IntArray, possible: int) -> int:
    used = np.zeros(possible, dtype=np.bool_)
    used[cases] = True
    return int(np.count_nonzero(used))


def _largest_sums(held: FloatArray, varied: FloatArray, held_case: IntArray, varied_case: IntArray) -> FloatArray:
    """Return max over l of held(l) + varied(l), shape (k,).

    Runs of equal held cases share one row of ``held``; neighbouring varied cases are read without a copy.
    """
    found = np.zeros(held_case.size)
    by_slot = np.ascontiguousarray(varied.T)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(held_case)) + 1, [held_case.size]])
    width = max(1, _BLOCK // held.shape[1])
    for first, last in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        for low in range(first, last, width):
            part = slice(low, min(low + width, last))
            sums = _columns(by_slot, varied_case[part]) + held[held_case[first], :, None]
            np.max(sums, axis=0, out=found[part])
    return found


def _columns(table: FloatArray, chosen: IntArray) -> FloatArray:
    """Return the chosen columns: a view where they are neighbours, else a copy."""
    low = int(chosen[0])
    if int(chosen[-1]) - low + 1 == chosen.size and bool(np.all(np.diff(chosen) == 1)):
        return table[:, low : low + chosen.size]
    return table[:, chosen]


def exposed_s(end_s: FloatArray, backward_s: FloatArray) -> FloatArray:
    """Return the communication that outlasts a backward pass of ``backward_s`` [s] in all; shapes broadcast."""
    return np.maximum(end_s - backward_s, 0.0)
