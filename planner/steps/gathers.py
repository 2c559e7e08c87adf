"""Sharded weights: gathers before the layers that need them, and reduce-scatters of gradients behind.

=========  ======================================================================================================
L          layers, or other units that are gathered together, in the order in which a pass needs them
t          compute of one layer in this pass [s]
g, r       gather of one layer's weights, reduce-scatter of its gradients [s]
x          sum of its scattered gradients over nodes that have the same shards [s]
=========  ======================================================================================================

A layer computes when its weights are there and the layer before it has ended. A gather is issued when the layer before
starts, a reduce-scatter when its layer has ended; both go one at a time, where both are issued the latter first. These
are the rules of fully sharded data parallelism (Zhao et al. 2023, PyTorch FSDP). Sums over nodes have a channel of
their own (the all-reduce stream of PyTorch's hybrid sharding), each behind its reduce-scatter. What outlasts the
compute of all layers is planner.steps.synchronous.exposed_s of these times.

Arrays are of shape (n,) for equal layers, (L, n) for layers of their own; they broadcast.
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray

__all__ = ["backward_s", "equal_backward_s", "equal_forward_s", "forward_s"]


def forward_s(compute_s: FloatArray, gather_s: FloatArray) -> FloatArray:
    """Return when the last layer of a forward pass has ended [s], shape (n,); ``compute_s``, ``gather_s``: t and g."""
    t, g = np.broadcast_arrays(compute_s, gather_s)
    return np.asarray(g[0] + np.maximum(t[:-1], g[1:]).sum(axis=0) + t[-1])


def equal_forward_s(compute_s: FloatArray, gather_s: FloatArray, layers: IntArray | FloatArray | int) -> FloatArray:
    """Return :func:`forward_s` of ``layers`` equal layers, L of shape (n,), from times of one of them."""
    longer_s = np.maximum(compute_s, gather_s)
    return np.asarray(np.add(compute_s, gather_s) + (np.asarray(layers) - 1) * longer_s)


def backward_s(
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
    """Return :func:`backward_s` of ``layers`` equal layers, L of shape (n,), from times of one of them.

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
