"""Times of messages between devices: any operation, one buffer a group or several."""

from __future__ import annotations

import numpy as np

from planner.costs.collectives import ALPHA_BETA, collective_s
from planner.domain.arrays import FloatArray, distinct_rows
from planner.domain.calibration import Entry
from planner.domain.messages import Groups
from planner.sources.sources import Sources

__all__ = ["operation_s"]


def operation_s(
    sources: Sources, operation: str, buffer_bytes: FloatArray, groups: Groups, served: Entry | None = None
) -> FloatArray:
    """Return times [s] of an operation between devices, of the shape of the buffers, the scenario applied.

    By an entry of the operation, else by that of the all-reduce, whose multipliers in a scenario are those of every
    operation.

    Parameters
    ----------
    operation : str
        See :func:`planner.costs.collectives.collective_s`.
    buffer_bytes : ndarray of shape (n,), or (n, k): several of each group
    groups : Groups, n of them, or a single one
    served : Entry, optional
        What serves the operation in place of the sources' entry.

    Raises
    ------
    CoverageError
        The groups need a link, or a kind of placement, that nothing serves.
    """
    entry = served or sources.device_collective(operation).entry
    every = buffer_bytes if buffer_bytes.ndim > 1 else buffer_bytes[:, None]
    if entry.term == ALPHA_BETA:
        times = collective_s(entry, operation, every, groups)
    else:
        columns = (*(one[:, None] for one in (groups.nodes, groups.ranks_per_node, groups.streams_per_nic)), every)
        n, r, s, v = (one.ravel() for one in np.broadcast_arrays(*columns))
        first, number = distinct_rows(n, r, s, v)
        distinct = Groups(n, r, s).rows(first)
        measured = collective_s(entry, operation, v[first][:, None], distinct)[:, 0] * _crowd(sources, distinct)
        times = measured[number].reshape(-1, every.shape[1])
    times = sources.multiplied("all_reduce", times, nodes=groups.nodes[:, None])
    return times if buffer_bytes.ndim > 1 else times[:, 0]


def _crowd(sources: Sources, groups: Groups) -> FloatArray:
    """Return how many times longer measured times get where several groups of a node share its NICs.

    Measured was one group at a time, with all ranks of its nodes.
    """
    link, gpus = sources.cluster.inter_node, sources.cluster.node.gpus
    probe_share = max(gpus / (link.nics_per_node if link else 1), 1.0) / gpus
    share = np.maximum(groups.streams_per_nic / groups.ranks_per_node / probe_share, 1.0)
    return np.where(groups.nodes > 1, share, 1.0)
