"""Synchronous steps: communication after the backward pass, or hidden behind it layer by layer.

Slots 1...J are the layers with parameters, in forward order; backward runs from J to 1 and so does communication, one
message at a time. A slot's message starts when its gradient is ready and the message before it is done: wait-free
backpropagation (Zhang et al. 2017, Poseidon; Shi, Chu, Li, INFOCOM 2019). A bucket of neighbouring slots is one message
under the same rule, ready with its lowest slot. Of equal messages that are computed evenly, a *run*, the first or the
last decides: what lies between them follows from counts alone (:func:`runs_end_s`).

=========  ===========================================================================================
b(l)       backward time of slot l [s], with that of the parameterless layers behind it
c(l)       time of slot l's message [s]
ready(l)   b(J) + ... + b(l): when gradient l is there, from the start of the backward pass
prefix(l)  c(1) + ... + c(l): message l and those after it, without waiting
=========  ===========================================================================================
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray

__all__ = ["Runs", "backward_end_s", "communication_prefix_s", "exposed_s", "ready_s", "runs_end_s"]

_TILE = 1 << 15
"""Numbers of one temporary array: 256 KiB, which stay in a core's cache."""
_ALIKE_CASES = 32
"""Compute cases of one tile at most: neighbouring sub-batches, of whose slots few can decide."""
_ROUNDING = 1e-12
"""Share of the largest sums that rounding stays far below."""
_FEWEST_TILED_PAIRS, _SPARSE_RATIO = 1 << 12, 4
"""Pairs up to which, and share of all pairs of their cases below which, they are taken one by one."""


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
    ready : ndarray of float, shape (c, J); of every compute case, by :func:`ready_s`
    prefix : ndarray of float, shape (m, J); of every message case, by :func:`communication_prefix_s`
    compute_case, message_case : ndarray of int, shape (k,); the pairs to evaluate; quickest when they are most pairs of
        their cases. Or of shapes (r, 1) and (q,): all pairs of some

    Returns
    -------
    ndarray of float, shape (k,) or (r, q); 0 without slots

    Notes
    -----
    Equal to the recurrence message by message, with s(l) the start of message l of c(l) seconds: s(J) = ready(J),
    s(l) = max(s(l + 1) + c(l + 1), ready(l)). The path that decides leaves the backward pass at one slot l, after which
    messages follow each other without a gap.
    """
    if ready.shape[1] == 0:
        return np.zeros(np.broadcast_shapes(compute_case.shape, message_case.shape))
    if compute_case.ndim == 2:
        return _largest_sums(ready[compute_case[:, 0]], prefix[message_case])
    computes, row = _distinct(compute_case, ready.shape[0])
    messages, column = _distinct(message_case, prefix.shape[0])
    if _FEWEST_TILED_PAIRS < computes.size * messages.size <= _SPARSE_RATIO * compute_case.size:
        return _largest_sums(ready[computes], prefix[messages])[row, column]
    end_s = np.empty(compute_case.size)
    step = max(1, _TILE // ready.shape[1])
    for part in (slice(start, start + step) for start in range(0, end_s.size, step)):
        np.max(ready[compute_case[part]] + prefix[message_case[part]], axis=1, out=end_s[part])
    return end_s


def _distinct(cases: IntArray, possible: int) -> tuple[IntArray, IntArray]:
    """Return the distinct cases in ascending order, and the place of each case among them."""
    is_present = np.zeros(possible, dtype=np.bool_)
    is_present[cases] = True
    return np.flatnonzero(is_present), (np.cumsum(is_present) - 1)[cases]


def _largest_sums(ready: FloatArray, prefix: FloatArray) -> FloatArray:
    """Return max over l of ready(l) + prefix(l) for every pair of c and m cases, shape (c, m)."""
    sums_max = np.full((ready.shape[0], prefix.shape[0]), -np.inf)
    if not sums_max.size:
        return sums_max
    step = min(_ALIKE_CASES, max(1, _TILE // prefix.shape[0]))
    sums, by_slot = np.empty((step, prefix.shape[0])), np.ascontiguousarray(prefix.T)
    starts = np.arange(0, ready.shape[0], step)
    for start, slots in zip(starts.tolist(), _can_decide(ready, prefix, starts), strict=True):
        tile, some = sums_max[start : start + step], ready[start : start + step]
        for slot in np.flatnonzero(slots).tolist():
            np.maximum(tile, np.add(some[:, slot, None], by_slot[slot], out=sums[: len(some)]), out=tile)
    return sums_max


def _can_decide(ready: FloatArray, prefix: FloatArray, starts: IntArray) -> BoolArray:
    """Return which slots may have the largest sum in some pair of a tile of compute cases, shape (tiles, J).

    Of cases that are alike few may. Between neighbouring slots ready(l) falls and prefix(l) grows by amounts that have
    a least and a most in the tile, and so have their sums over slots in between: a slot that is below another in any
    case is left out.
    """
    falls, grows = -np.diff(ready, axis=1), np.diff(prefix, axis=1)
    least, most = (extreme.reduceat(falls, starts, axis=0) for extreme in (np.minimum, np.maximum))
    first = np.zeros((starts.size, 1))
    by_least = np.concatenate([first, np.cumsum(least - grows.max(axis=0), axis=1)], axis=1)
    by_most = np.concatenate([first, np.cumsum(most - grows.min(axis=0), axis=1)], axis=1)
    rounding = _ROUNDING * (ready.max() + prefix.max())
    may_beat_lower = by_least <= np.minimum.accumulate(by_least, axis=1) + rounding
    may_beat_higher = by_most <= np.minimum.accumulate(by_most[:, ::-1], axis=1)[:, ::-1] + rounding
    kept: BoolArray = may_beat_lower & may_beat_higher
    return kept


class Runs(NamedTuple):
    """R runs of equal messages of a backward pass, in forward order: the first is the last to be ready.

    Attributes
    ----------
    share : ndarray of float, shape (R, ...)
        Of the time of the backward pass, in which the gradients of a run are computed evenly.
    message_s : ndarray of float, shape (R, ...); of one message [s]
    number : ndarray of float, shape (R, ...); messages of a run, from 0
    """

    share: FloatArray
    message_s: FloatArray
    number: FloatArray

    @staticmethod
    def equal(message_s: FloatArray, count: FloatArray) -> Runs:
        """Return one run that is computed in the whole pass, of arrays of shape (...)."""
        return Runs(np.ones((1, *message_s.shape)), message_s[None], np.asarray(count, dtype=np.float64)[None])

    @property
    def sent_s(self) -> FloatArray:
        """All messages, one after another [s]."""
        return np.asarray((self.message_s * self.number).sum(axis=0))


def runs_end_s(backward_s: FloatArray, runs: Runs) -> FloatArray:
    """Return when the last message of runs is done [s], from the start of a backward pass; 0 without messages.

    Equal to :func:`backward_end_s` with a slot a message: along a run ready(l) falls and prefix(l) grows evenly, so
    that their sum is largest at one of its ends.

    Parameters
    ----------
    backward_s : ndarray of float, shape (...)
    """
    computed = runs.share * backward_s
    end = np.cumsum(computed[::-1], axis=0)[::-1]  # when the last message of a run is ready
    before = np.cumsum(runs.message_s * runs.number, axis=0)  # its messages, and those behind it
    first = end - computed * (1 - 1 / np.maximum(runs.number, 1))
    last = before - runs.message_s * (runs.number - 1)
    return np.asarray(np.where(runs.number > 0, np.maximum(first + before, end + last), 0.0).max(axis=0))


def exposed_s(end_s: FloatArray, backward_s: FloatArray) -> FloatArray:
    """Return the communication that outlasts a backward pass of ``backward_s`` [s] in all; shapes broadcast."""
    return np.maximum(end_s - backward_s, 0.0)
