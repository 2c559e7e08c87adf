"""Messages: what a plan sends, between which ranks, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import RANK_ORDER

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, SEND_RECEIVE = "all_to_all", "send_receive"
PARAMETER_SERVER = "parameter_server"
OVERLAP = "overlap"
"""No operation, but how a step and its messages run beside each other, measured with them."""
"""Operations. Buffers: of each rank before an all-reduce or all-to-all, or what it has for parameter servers, the whole
of what all-gather gathers and reduce-scatter scatters, and of one message from one rank to another."""

GRADIENTS, NODE_SHARDS, NODE_REPLICAS = "gradients", "node_shards", "node_replicas"
EXPERT_GRADIENTS, EXPERT_SHARDS = "expert_gradients", "expert_shards"
EXPERT_NODE_SHARDS, EXPERT_NODE_REPLICAS = "expert_node_shards", "expert_node_replicas"
NEIGHBOURS, CONTEXT_NEIGHBOURS, ENDS = "neighbours", "context_neighbours", "ends"
GROUP_NAMES = (
    *RANK_ORDER, GRADIENTS, NODE_SHARDS, NODE_REPLICAS, EXPERT_GRADIENTS, EXPERT_SHARDS, EXPERT_NODE_SHARDS,
    EXPERT_NODE_REPLICAS, NEIGHBOURS, CONTEXT_NEIGHBOURS, ENDS,
)  # fmt: skip
"""Groups of ranks that communicate: those of an axis, and those of :class:`planner.workload.placement.Placement`."""

LAYER_FORWARD, LAYER_BACKWARD, RECOMPUTED = "layer_forward", "layer_backward", "recomputed"
"""Of a layer and micro-batch."""
EMBEDDING_FORWARD, EMBEDDING_BACKWARD = "embedding_forward", "embedding_backward"
HEAD_FORWARD, HEAD_BACKWARD = "head_forward", "head_backward"
"""Of the first stage, of the last one; of a micro-batch."""
BOUNDARY = "boundary"
"""Of a boundary between stages, one micro-batch and one direction."""

INPUT_GRADIENT, WEIGHT_GRADIENT, CORE = "input_gradient", "weight_gradient", "core"
"""What can hide a message: products of the same linear layer; one block of attention."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of ranks that communicate: g groups.

    Attributes
    ----------
    nodes : ndarray of int, shape (g,), nodes that a group spans
    ranks_per_node : ndarray of int or float, shape (g,), of one group; the mean where its nodes hold unequally many
    streams_per_nic : ndarray of float, shape (g,), messages that share one NIC at a time when every rank of a node
        sends between nodes, whichever its group; at least 1
    """

    nodes: IntArray
    ranks_per_node: IntArray | FloatArray
    streams_per_nic: FloatArray

    @property
    def ranks(self) -> IntArray:
        """Ranks of each group, shape (g,)."""
        return np.rint(self.nodes * self.ranks_per_node).astype(np.int64)

    def rows(self, where: IntArray) -> Groups:
        """Return some of the groups."""
        return Groups(self.nodes[where], self.ranks_per_node[where], self.streams_per_nic[where])


@dataclass(frozen=True, slots=True)
class Message:
    """What n plans send in one place of their step.

    Attributes
    ----------
    operation : ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL or SEND_RECEIVE
    buffer_bytes : ndarray of float, shape (n,)
    count : ndarray of float, shape (n,), how many of them; 0 where a plan has none
    where : LAYER_FORWARD, LAYER_BACKWARD, RECOMPUTED, EMBEDDING_FORWARD, EMBEDDING_BACKWARD, HEAD_FORWARD,
        HEAD_BACKWARD, or BOUNDARY: what ``count`` counts them in
    hidden_under : INPUT_GRADIENT, WEIGHT_GRADIENT or CORE; empty: nothing runs beside it
    part : {"", "attention", "cross_attention", "feed_forward"}, part of the layer, whose products hide it
    """

    operation: str
    group: str
    buffer_bytes: FloatArray
    count: FloatArray
    where: str
    hidden_under: str = ""
    part: str = ""
