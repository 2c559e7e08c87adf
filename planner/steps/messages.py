"""Derivatives of collectives by their coefficients, and the all-reduce between hosts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.costs.collectives import all_reduce_s, collective_s
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Entry
from planner.domain.messages import ALL_REDUCE, Groups
from planner.sources.sources import Sources

__all__ = ["HOST_GRADIENT_BYTES", "all_reduce_gradient", "host_all_reduce_s", "host_gradient"]

HOST_GRADIENT_BYTES = 4
"""Gradients are summed in host memory in single precision."""


def host_all_reduce_s(sources: Sources, parameters: int, nodes: IntArray) -> FloatArray:
    """Return the all-reduce [s] of the host's gradient sum, one rank a node, shape of ``nodes``; 0 for one node."""
    distinct, inverse = np.unique(nodes, return_inverse=True)
    if distinct.size == 0 or int(distinct[-1]) == 1:
        return np.zeros(nodes.shape)
    source = sources.host_all_reduce
    groups = Groups(distinct, np.ones_like(distinct), np.ones(distinct.size))
    buffer = np.array([float(parameters * HOST_GRADIENT_BYTES)])
    times = all_reduce_s(source.entry, buffer, groups)[:, 0]
    return sources.multiplied("all_reduce", times, nodes=distinct)[inverse].reshape(nodes.shape)


def all_reduce_gradient(
    entry: Entry, buffer_bytes: FloatArray, groups: Groups, operation: str = ALL_REDUCE
) -> tuple[FloatArray, float]:
    """Return the derivatives of the sum over buffers by the entry's coefficients, shape (p,), and the sum [s].

    For one group. Operation: of :func:`planner.costs.collectives.collective_s`.

    By differences: which algorithm is least, and which link paces it, depends on the coefficients; between the kinks
    the time is linear in them.
    """
    total = float(collective_s(entry, operation, buffer_bytes, groups).sum())
    slopes = []
    for name, value in entry.coefficients.items():
        step = 1e-6 * max(abs(value), 1e-15)
        neighbour = replace(entry, coefficients=dict(entry.coefficients) | {name: value + step})
        slopes.append((float(collective_s(neighbour, operation, buffer_bytes, groups).sum()) - total) / step)
    return np.array(slopes), total


def host_gradient(sources: Sources, parameters: int, nodes: int) -> tuple[FloatArray, float]:
    """Return the derivatives of the host's all-reduce by its entry's coefficients, shape (p,), and its time [s]."""
    groups = Groups(np.array([nodes]), np.array([1]), np.array([1.0]))
    buffer = np.array([float(parameters * HOST_GRADIENT_BYTES)])
    return all_reduce_gradient(sources.host_all_reduce.entry, buffer, groups)
