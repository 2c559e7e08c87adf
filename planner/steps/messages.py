"""Message cases: all-reduce of every slot's gradient, tabled by bytes of an element, nodes and ranks a node.

A message holds one slot's gradient, or those of several neighbouring slots where they are sent in buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.costs.collectives import all_reduce_s, collective_s
from planner.costs.terms import Work, extrapolates
from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Entry
from planner.domain.messages import ALL_REDUCE, PARAMETER_SERVER, Groups
from planner.sources.sources import Source, Sources
from planner.steps.synchronous import communication_prefix_s
from planner.steps.tables import CaseTable
from planner.workload.gradients import gradient_buckets

__all__ = ["HOST_GRADIENT_BYTES", "Messages", "all_reduce_gradient", "groups_of", "host_all_reduce_s", "host_gradient"]

HOST_GRADIENT_BYTES = 4
"""Gradients are summed in host memory in single precision."""


def groups_of(sources: Sources, nodes: IntArray, ranks_per_node: IntArray | FloatArray) -> Groups:
    """Return groups of all ranks; the ranks of a node share its network cards evenly."""
    link = sources.cluster.inter_node
    streams = ranks_per_node / (link.nics_per_node if link else 1)
    return Groups(nodes, ranks_per_node, np.maximum(streams, 1.0))


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


@dataclass(frozen=True, slots=True)
class MessageTable:
    """Times of m message cases.

    Attributes
    ----------
    prefix_s : ndarray of float, shape (m, B)
        Time of a message and all after it, one after another; the last column is their sum.
    places : ndarray of int, shape (m, 2)
        Nodes of a group, and GPUs of each.
    """

    prefix_s: FloatArray
    places: IntArray


class Messages:
    """The message cases of gradients of ``by_slot`` bytes, shape (J,); a case is nodes and GPUs per node of a group.

    Where nodes hold unequal numbers of GPUs, ``mean_ranks`` is their mean, and GPUs per node are those of the fullest.

    Attributes
    ----------
    slot : ndarray of int, shape (B,)
        The lowest slot of each message, whose gradient is its last to be ready; every slot where there are no buckets.
    buffer_bytes : ndarray of float, shape (B,)
    """

    def __init__(self, sources: Sources, by_slot: FloatArray, mean_ranks: float | None = None) -> None:
        self.sources, self.by_slot, self._mean_ranks = sources, by_slot, mean_ranks
        self.strategy = sources.problem.settings.overlap
        self.operation = PARAMETER_SERVER if self.strategy.servers else ALL_REDUCE
        self.slot = gradient_buckets(by_slot, self.strategy.first_bucket_bytes, self.strategy.bucket_bytes)
        self.buffer_bytes = self.bytes_of(self.slot)
        self.cases = CaseTable(
            lambda *groups: MessageTable(communication_prefix_s(self.message_s(*groups)), np.stack(groups, axis=1)),
            sources.cluster.node.gpus + 1,
        )
        self._gradients: dict[tuple[int, int, bytes], tuple[FloatArray, float]] = {}
        self._counts: dict[tuple[bytes, bytes], tuple[Groups, dict[str, FloatArray]]] = {}

    @property
    def source(self) -> Source:
        """What serves the all-reduce."""
        return self.sources.device_all_reduce

    @property
    def prefix_s(self) -> FloatArray:
        """Of the cases that were asked for, shape (m, B); see :class:`MessageTable`."""
        return self.cases.columns.prefix_s

    @property
    def places(self) -> IntArray:
        """Of the same cases nodes and GPUs of each, shape (m, 2)."""
        return self.cases.columns.places

    def message_s(self, nodes: IntArray, gpus_per_node: IntArray, entry: Entry | None = None) -> FloatArray:
        """Return the time of each message [s], shape (g, B), by an entry, else its own; one rank sends nothing."""
        times = np.zeros((nodes.size, self.buffer_bytes.size))
        several = nodes * gpus_per_node > 1
        if several.any():
            groups, counts = self._counted(nodes[several], gpus_per_node[several])
            served = entry or self.source.entry
            times[several] = collective_s(served, self.operation, self.buffer_bytes, groups, counts)
        return self.sources.multiplied("all_reduce", times, nodes=nodes[:, None])

    def together_s(self, nodes: int, gpus_per_node: int, entry: Entry | None = None) -> FloatArray:
        """Return the time of messages of slots l to k [s], shape (J, J); only l <= k counts.

        Where they are packed in cycles, with copying several into one buffer and back: each copy reads and writes.
        """
        ahead = np.concatenate([[0.0], np.cumsum(self.by_slot)])
        bytes_ = np.maximum(ahead[None, 1:] - ahead[:-1, None], 0.0)
        if nodes * gpus_per_node == 1:
            return np.zeros_like(bytes_)
        sizes, which = np.unique(bytes_, return_inverse=True)
        group = self._group(nodes, gpus_per_node)
        times = collective_s(entry or self.source.entry, self.operation, sizes, group)[0]
        sent_s = self.sources.multiplied("all_reduce", times, nodes=nodes)[which].reshape(bytes_.shape)
        if not self.strategy.cycle_s:
            return sent_s
        copied = np.where(np.eye(self.by_slot.size, dtype=np.bool_), 0.0, 4 * bytes_)
        return np.asarray(sent_s + copied / self.sources.accelerator.memory_bytes_per_s)

    def _counted(self, nodes: IntArray, gpus_per_node: IntArray) -> tuple[Groups, dict[str, FloatArray]]:
        """Return groups, and what was counted of messages in them; the last are kept, for a fit asks often for them."""
        key = nodes.tobytes(), gpus_per_node.tobytes()
        if key not in self._counts:
            self._counts = {key: (self._groups(nodes, gpus_per_node), {})}
        return self._counts[key]

    def bytes_of(self, slots: IntArray) -> FloatArray:
        """Return the bytes of messages that start with these slots, the lowest of each, shape (B,)."""
        return np.add.reduceat(self.by_slot, slots) if slots.size else self.by_slot

    def gradient(self, nodes: int, gpus_per_node: int, buffer_bytes: FloatArray) -> tuple[FloatArray, float]:
        """Return the derivatives of messages of so many bytes by the entry's coefficients, and their sum [s]."""
        key = (nodes, gpus_per_node, buffer_bytes.tobytes())
        if key not in self._gradients:  # plans that differ in sub-batch alone share it
            group = self._group(nodes, gpus_per_node)
            self._gradients[key] = all_reduce_gradient(self.source.entry, buffer_bytes, group, self.operation)
        return self._gradients[key]

    def _groups(self, nodes: IntArray, gpus_per_node: IntArray) -> Groups:
        mean = self._mean_ranks
        return groups_of(self.sources, nodes, gpus_per_node if mean is None else np.full(nodes.shape, mean))

    def _group(self, nodes: int, gpus_per_node: int) -> Groups:
        return self._groups(np.array([nodes]), np.array([gpus_per_node]))

    def extrapolates(self, nodes: int, gpus_per_node: int) -> bool:
        """Tell whether a message of a group lies outside what the all-reduce was fitted on."""
        if not self.source.entry.ranges:
            return False
        group = self._group(nodes, gpus_per_node)
        work: Work = {
            "bytes": self.buffer_bytes,
            "nodes": group.nodes,
            "ranks_per_node": group.ranks_per_node,
            "streams_per_nic": group.streams_per_nic,
        }
        return bool(np.any(extrapolates(self.source.entry, work)))


def host_gradient(sources: Sources, parameters: int, nodes: int) -> tuple[FloatArray, float]:
    """Return the derivatives of the host's all-reduce by its entry's coefficients, shape (p,), and its time [s]."""
    groups = Groups(np.array([nodes]), np.array([1]), np.array([1.0]))
    buffer = np.array([float(parameters * HOST_GRADIENT_BYTES)])
    return all_reduce_gradient(sources.host_all_reduce.entry, buffer, groups)
