"""When messages of a backward pass are done: hidden behind it, fused, or of sharded weights.

Slots 1...J are the layers with parameters, in forward order; backward runs from J to 1 and so does communication, one
message at a time. A slot's message starts when its gradient is ready and the message before it is done: wait-free
backpropagation (Zhang et al. 2017, Poseidon; Shi, Chu, Li, INFOCOM 2019). A bucket of neighbouring slots is one message
under the same rule, ready with its lowest slot. Of equal messages that are computed evenly, a *run*, the first or the
last decides: what lies between them follows from counts alone (:func:`runs_end_s`).

=========  ======================================================================================================
b(l)       backward time of slot l [s], with that of the parameterless layers behind it
c(l)       time of slot l's message [s]
ready(l)   b(J) + ... + b(l): when gradient l is there, from the start of the backward pass
prefix(l)  c(1) + ... + c(l): message l and those after it, without waiting
T(l, k)    time of one message that holds slots l...k [s], ready with its lowest slot l
L          layers, or other units whose weights are gathered together, in the order in which a pass needs them
t          compute of one such layer in this pass [s]
g, r       gather of its weights, reduce-scatter of its gradients [s]
x          sum of its scattered gradients over nodes that have the same shards [s]
=========  ======================================================================================================

Best fusion (MODEL 8.3): with D(J + 1) = 0,

    D(l) = min over k >= l of [max(D(k + 1), ready(l)) + T(l, k)]

is when slots l...J can be done at the earliest, in O(J^2) and exact for any T: what is sent before a message can only
delay it, so that its earliest end serves.

Fusion by cycles is Horovod's (MODEL 8.3): a background thread looks at every multiple of the cycle time for gradients
that are ready. It packs them, in the order in which they became ready, into messages of at most the threshold; a
gradient above the threshold is a message by itself. Messages queue for the network, as NCCL's do on their stream, while
the thread goes on (Sergeev and Del Balso 2018, arXiv:1802.05799; github.com/horovod/horovod, docs/tensor-fusion.rst).

Sharded weights: a layer computes when its weights are there and the layer before it has ended. A gather is issued when
the layer before starts, a reduce-scatter when its layer has ended; both go one at a time, where both are issued the
latter first. These are the rules of fully sharded data parallelism (Zhao et al. 2023, PyTorch FSDP). Sums over nodes
have a channel of their own (the all-reduce stream of PyTorch's hybrid sharding), each behind its reduce-scatter. Arrays
are of shape (n,) for equal layers, (L, n) for layers of their own; they broadcast.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray

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
    """Return when the last message is done [s], for pairs of cases: max over l of ready(l) + prefix(l), 0 of no l.

    Equal to the recurrence message by message, with s(l) the start of message l of c(l) seconds: s(J) = ready(J),
    s(l) = max(s(l + 1) + c(l + 1), ready(l)). The path that decides leaves the backward pass at one slot l, after which
    messages follow each other without a gap.

    Parameters
    ----------
    ready : ndarray of float, shape (c, J); of every compute case, by :func:`ready_s`
    prefix : ndarray of float, shape (m, J); of every message case, by :func:`communication_prefix_s`
    compute_case, message_case : ndarray of int, shape (k,); the pairs to evaluate; quickest when they are most pairs of
        their cases. Or of shapes (r, 1) and (q,): all pairs of some
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

    ``backward_s``: ndarray of float, shape (...).
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


def best_fusion(ready_s: FloatArray, message_s: FloatArray, of: IntArray | int = 0) -> Fusion:
    """Return the messages that are done first; of ways to send that are done as early, those of fewer slots each.

    ``ready_s``: ndarray of float, shape (c, J), when each gradient is there, by :func:`ready_s`; ``message_s``: ndarray
    of float, shape (J, J), of slots l to k together, l <= k, others are not looked at; or several of them, shape
    (a, J, J), of which ``of`` says what each pass has.
    """
    cases, slots = ready_s.shape
    every_s = message_s.reshape(-1, *message_s.shape[-2:]) if slots else message_s[None]
    done, taken = np.zeros((2, cases, slots + 1))
    last = np.zeros((cases, slots), dtype=np.int64)
    rows = np.arange(cases)
    for low in range(slots - 1, -1, -1):
        ends = np.maximum(done[:, low + 1 :], ready_s[:, low : low + 1]) + every_s[of, low, low:]
        best = np.argmin(ends, axis=1)
        last[:, low] = low + best
        done[:, low] = ends[rows, best]
        taken[:, low] = every_s[of, low, low + best] + taken[rows, low + best + 1]
    return Fusion(done[:, 0], taken[:, 0], last)


def cycle_fusion(
    ready_s: FloatArray,
    message_s: FloatArray,
    slot_bytes: FloatArray,
    threshold_bytes: float,
    cycle_s: float,
    *,
    of: IntArray | int = 0,
) -> Fusion:
    """Return the messages of c backward passes, the first cycle of which begins with the pass.

    Parameters
    ----------
    ready_s, message_s, of : as of :func:`best_fusion`
    slot_bytes : ndarray of float, shape (J,)
    threshold_bytes : 0: every gradient is a message by itself
    cycle_s : above 0
    """
    cases, slots = ready_s.shape
    every_s = message_s.reshape(-1, *message_s.shape[-2:]) if slots else message_s[None]
    done, taken, cycle, filled = np.zeros((4, cases))
    last = np.zeros((cases, slots), dtype=np.int64)
    high = np.full(cases, slots - 1)
    for low in range(slots - 1, -1, -1):
        is_late = ready_s[:, low] > cycle
        is_full = filled + slot_bytes[low] > threshold_bytes
        ends = is_late | is_full if low < slots - 1 else np.zeros(cases, dtype=np.bool_)
        sent_s = np.where(ends, every_s[of, min(low + 1, slots - 1), high], 0.0)
        done = np.where(ends, np.maximum(done, cycle) + sent_s, done)
        taken += sent_s
        cycle = np.where(is_late, np.ceil(ready_s[:, low] / cycle_s) * cycle_s, cycle)
        high = np.where(ends, low, high)
        filled = np.where(ends, 0.0, filled) + slot_bytes[low]
        last[:, low] = high
    if slots:
        sent_s = every_s[of, 0, high]
        done, taken = np.maximum(done, cycle) + sent_s, taken + sent_s
    return Fusion(done, taken, last)


def units_forward_s(compute_s: FloatArray, gather_s: FloatArray) -> FloatArray:
    """Return when the last layer of a forward pass has ended [s], shape (n,); ``compute_s``, ``gather_s``: t and g."""
    t, g = np.broadcast_arrays(compute_s, gather_s)
    return np.asarray(g[0] + np.maximum(t[:-1], g[1:]).sum(axis=0) + t[-1])


def equal_forward_s(compute_s: FloatArray, gather_s: FloatArray, layers: IntArray | FloatArray | int) -> FloatArray:
    """Return :func:`units_forward_s` of ``layers`` equal layers, L of shape (n,), from times of one of them."""
    longer_s = np.maximum(compute_s, gather_s)
    return np.asarray(np.add(compute_s, gather_s) + (np.asarray(layers) - 1) * longer_s)


def units_backward_s(
    compute_s: FloatArray, gather_s: FloatArray, scatter_s: FloatArray, sum_s: FloatArray | float = 0.0
) -> FloatArray:
    """Return when the last reduce-scatter or sum of a backward pass has ended [s], shape (n,).

    ``compute_s``, ``gather_s``, ``scatter_s``, ``sum_s``: t, g, r and x, in the order of the backward pass.
    """
    t, g, r, x = np.broadcast_arrays(compute_s, gather_s, scatter_s, sum_s)
    start_s = free_s = g[0]
    sums_end_s = np.zeros_like(g[0])
    for layer in range(len(t)):
        end_s = gathered_s = start_s + t[layer]
        if layer + 1 < len(t):
            free_s = gathered_s = np.maximum(free_s, start_s) + g[layer + 1]
        free_s = np.maximum(free_s, end_s) + r[layer]
        sums_end_s = np.maximum(free_s, sums_end_s) + x[layer]
        start_s = np.maximum(end_s, gathered_s)
    return np.asarray(sums_end_s)


def equal_backward_s(
    compute_s: FloatArray,
    gather_s: FloatArray,
    scatter_s: FloatArray,
    layers: IntArray | FloatArray | int,
    sum_s: FloatArray | float = 0.0,
) -> FloatArray:
    """Return :func:`units_backward_s` of ``layers`` equal layers, L of shape (n,), from times of one of them.

    From L = 2: g + max(t, g) + (L - 2) max(t, g + r) + max(t, r) + r, as the first gather finds the channel free, and
    the last layer issues none. Sums follow the last reduce-scatter, or each other from the first on, or from the last
    but one.
    """
    t, g, r, x, count = np.broadcast_arrays(compute_s, gather_s, scatter_s, sum_s, layers)
    first_s = g + np.maximum(t, g) + r
    before_s = first_s + (count - 2) * np.maximum(t, g + r)
    last_s = before_s + np.maximum(t, r)
    several_s = np.maximum(np.maximum(last_s, before_s + x), first_s + (count - 1) * x)
    return np.asarray(np.where(count > 1, several_s, g + t + r) + x)
