"""Sharded weights: gathers before the layers that need them, and reduce-scatters of gradients behind.

=========  ======================================================================================================
L          layers, or other units that are gathered together, in the order in which a pass needs them
t          compute of one layer in this pass [s]
g, r       gather of one layer's weights, reduce-scatter of its gradients [s]
x          sum of its scattered gradients over nodes that have the same shards [s]
=========  ======================================================================================================

A layer computes when its weights are there and the layer before it has ended. Messages of a channel go one at a time,
in the order in which they are issued. These are the rules of fully sharded data parallelism (Zhao et al. 2023, PyTorch
FSDP). Sums over nodes have a channel of their own (the all-reduce stream of PyTorch's hybrid sharding), each behind its
reduce-scatter. What outlasts the compute of all layers is planner.steps.synchronous.exposed_s of these times.

Arrays are of shape (n,) for equal layers, (L, n) for layers of their own; they broadcast.
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.errors import ParameterError

__all__ = ["backward_s", "equal_backward_s", "equal_forward_s", "forward_s"]


def forward_s(compute_s: FloatArray, gather_s: FloatArray, *, prefetch: int | None = 1) -> FloatArray:
    """Return when the last layer of a forward pass has ended [s], shape (n,).

    Parameters
    ----------
    compute_s, gather_s : ndarray of float, shape (L, n)
        t and g.
    prefetch : {0, 1, None}
        A gather is issued when the layer before has ended, when it starts, or (None) at once. Deeper prefetching lies
        between 1 and None.

    Raises
    ------
    ParameterError
        For another prefetch.
    """
    _check_prefetch(prefetch)
    t, g = np.broadcast_arrays(compute_s, gather_s)
    if prefetch == 0:
        return np.asarray((g + t).sum(axis=0))
    if prefetch == 1:
        return np.asarray(g[0] + np.maximum(t[:-1], g[1:]).sum(axis=0) + t[-1])
    behind = np.cumsum(t[::-1], axis=0)[::-1]
    return np.asarray((np.cumsum(g, axis=0) + behind).max(axis=0))


def equal_forward_s(
    compute_s: FloatArray, gather_s: FloatArray, layers: IntArray | FloatArray | int, *, prefetch: int | None = 1
) -> FloatArray:
    """Return :func:`forward_s` of ``layers`` equal layers, L of shape (n,), from times of one of them."""
    _check_prefetch(prefetch)
    longer_s = np.add(compute_s, gather_s) if prefetch == 0 else np.maximum(compute_s, gather_s)
    return np.asarray(np.add(compute_s, gather_s) + (np.asarray(layers) - 1) * longer_s)


def backward_s(
    compute_s: FloatArray,
    gather_s: FloatArray,
    scatter_s: FloatArray,
    sum_s: FloatArray | float = 0.0,
    *,
    channels: int = 1,
) -> FloatArray:
    """Return when the last reduce-scatter or sum of a backward pass has ended [s], shape (n,).

    Gathers are issued when the layer before starts, reduce-scatters when their layer has ended, first the latter where
    both are.

    Parameters
    ----------
    compute_s, gather_s, scatter_s, sum_s : ndarray of float, shape (L, n)
        t, g, r and x, in the order of the backward pass.
    channels : {1, 2}
        Gathers and reduce-scatters wait for each other, or not.

    Raises
    ------
    ParameterError
        For other channels.
    """
    _check_channels(channels)
    t, g, r, x = np.broadcast_arrays(compute_s, gather_s, scatter_s, sum_s)
    start_s = free_s = g[0]
    sums_end_s = np.zeros_like(g[0])
    for layer in range(len(t)):
        end_s = gathered_s = start_s + t[layer]
        if layer + 1 < len(t):
            gathered_s = np.maximum(free_s if channels == 1 else start_s, start_s) + g[layer + 1]
            free_s = gathered_s if channels == 1 else free_s
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
    *,
    channels: int = 1,
) -> FloatArray:
    """Return :func:`backward_s` of ``layers`` equal layers, L of shape (n,), from times of one of them.

    Notes
    -----
    Two channels: g + (L - 1) max(t, g, r) + t + r. One channel, from L = 2: g + max(t, g) + (L - 2) max(t, g + r) +
    max(t, r) + r, as the first gather finds the channel free, and the last layer issues none. Sums follow the last
    reduce-scatter, or each other from the first on, or from the last but one.
    """
    _check_channels(channels)
    t, g, r, x, count = np.broadcast_arrays(compute_s, gather_s, scatter_s, sum_s, layers)
    alone_s = g + t + r
    if channels == 2:
        last_s = alone_s + (count - 1) * np.maximum(np.maximum(t, g), r)
        return np.asarray(np.maximum(last_s, alone_s + (count - 1) * x) + x)
    first_s = g + np.maximum(t, g) + r
    before_s = first_s + (count - 2) * np.maximum(t, g + r)
    last_s = before_s + np.maximum(t, r)
    several_s = np.maximum(np.maximum(last_s, before_s + x), first_s + (count - 1) * x)
    return np.asarray(np.where(count > 1, several_s, alone_s) + x)


def _check_prefetch(prefetch: int | None) -> None:
    if prefetch not in {0, 1, None}:
        raise ParameterError("gathers issued ahead", "0, 1 or None", prefetch)


def _check_channels(channels: int) -> None:
    if channels not in {1, 2}:
        raise ParameterError("channels of sharded gradients", "1 or 2", channels)
