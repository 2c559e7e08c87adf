"""Messages: what a plan sends, between which ranks, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.arrays import FloatArray, IntArray

__all__ = ["Groups"]


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of ranks that communicate: g groups, equally many ranks on every node.

    Attributes
    ----------
    nodes : ndarray of int, shape (g,)
        Nodes that a group spans.
    ranks_per_node : ndarray of int, shape (g,)
    streams_per_nic : ndarray of float, shape (g,)
        Messages that share one NIC at a time when every rank of a node sends between nodes; at least 1.
    """

    nodes: IntArray
    ranks_per_node: IntArray
    streams_per_nic: FloatArray

    @property
    def ranks(self) -> IntArray:
        """Ranks of each group, shape (g,)."""
        return self.nodes * self.ranks_per_node
