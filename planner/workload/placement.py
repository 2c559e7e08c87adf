"""On which nodes the groups of an axis lie, and how many of them share a NIC, as arrays over configurations.

Ranks are counted along one axis after the other, innermost first, and fill nodes in order. The group of a rank r along
an axis of degree d is {r_0 + j·S, j < d}; S, its stride, is the product of the degrees inside it. Blocks of S·d ranks
hold S groups each. With g ranks a node and q = gcd(S·d, g), blocks start at every multiple of q within a node, as the
ranks are a multiple of both. A group that starts at offset o of a node spans floor((o + (d-1)·S)/g) + 1 nodes if
S <= g, else d.

The default order is that of Megatron-LM (Narayanan et al. 2021, SC'21; its ``parallel_state``); experts split the same
ranks by another grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import gcd, prod

import numpy as np

from planner.domain import messages
from planner.domain.arrays import FloatArray, IntArray, distinct_rows
from planner.domain.axes import CONTEXT, DATA, EXPERT, PIPELINE, RANK_ORDER, TENSOR, check_rank_order
from planner.domain.configuration import RANK_AXES, Configurations
from planner.domain.messages import GROUP_NAMES, Groups
from planner.domain.split import SHARD_GROUPS
from planner.errors import UnknownNameError

_AXES = {messages.GRADIENTS: (CONTEXT, DATA)}
"""Groups of several axes together: gradients of what is not an expert; others are of the axis of their name."""
_EXPERT_AXES = {EXPERT: (EXPERT,), messages.EXPERT_GRADIENTS: (DATA,), messages.EXPERT_SHARDS: (TENSOR,)}
"""Axes of the grid of experts: ranks that share them, that hold the same ones, that split each one by tensors."""
_PARTS = {messages.NODE_SHARDS: messages.GRADIENTS, messages.EXPERT_NODE_SHARDS: messages.EXPERT_GRADIENTS}
_ACROSS = {messages.NODE_REPLICAS: messages.GRADIENTS, messages.EXPERT_NODE_REPLICAS: messages.EXPERT_GRADIENTS}
_PAIRS = {messages.NEIGHBOURS: PIPELINE, messages.CONTEXT_NEIGHBOURS: CONTEXT, messages.ENDS: PIPELINE}
"""Pairs of ranks along an axis: of stages in a row, around the ring of a context group, of the first and last stage."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the groups of n plans lie; every method gives the worst group of each, n groups in all.

    Worst: most nodes. Where nodes hold unequal parts of groups, the busiest one sets the streams.

    Attributes
    ----------
    order : a permutation of RANK_ORDER
    expert_tensor : t_e, ranks that each expert is split over by tensors: the same ranks are split into t_e·x·D_x·p;
        None: as many as all else, which is Megatron-LM's default, (n,)
    """

    plans: Configurations
    nics_per_node: int = 1
    order: tuple[str, ...] = RANK_ORDER
    expert_tensor: IntArray | None = None

    def __post_init__(self) -> None:
        check_rank_order("rank order", self.order)

    def groups(self, name: str) -> Groups:
        """Return the groups of a name in GROUP_NAMES.

        Parts of groups lie inside one node, as hybrid sharding has them; across nodes are the ranks with the same part.
        """
        if name not in GROUP_NAMES:
            raise UnknownNameError("group of ranks", name, GROUP_NAMES)
        if (axis := _PAIRS.get(name)) is not None:
            # On two nodes if one of the axis' groups is. As many at once as there can be: fewer on some uneven nodes.
            grid = self._grid
            stride = self._product(list(grid.values())[: tuple(grid).index(axis)])
            spans, together = self._progressions(stride, grid[axis])
            nodes = np.minimum(spans, 2)
            return self._with_streams(nodes, np.minimum(grid[axis], 2) / nodes, together)
        if name in _PARTS:
            whole = self.groups(_PARTS[name])
            return Groups(np.ones_like(whole.nodes), whole.ranks_per_node, np.ones(whole.nodes.shape))
        if name in _ACROSS:
            whole = self.groups(_ACROSS[name])
            return Groups(whole.nodes, np.ones_like(whole.nodes), whole.streams_per_nic)
        axes = _EXPERT_AXES.get(name)
        return self._groups(self._expert_grid, *axes) if axes else self._groups(self._grid, *_AXES.get(name, (name,)))

    @property
    def _grid(self) -> dict[str, IntArray]:
        """Degrees in order, experts left out."""
        return self._in_order({name: getattr(self.plans, RANK_AXES[name]) for name in self.order if name != EXPERT})

    @property
    def _expert_grid(self) -> dict[str, IntArray]:
        """Degrees in order of the grid that experts split the ranks by; copies rounded down where none is lawful."""
        plans, x = self.plans, self.plans.expert_parallel
        t = plans.tensor_parallel if self.expert_tensor is None else self.expert_tensor
        copies = plans.tensor_parallel * plans.weight_copies // (t * x)
        return self._in_order({TENSOR: t, EXPERT: x, DATA: copies, PIPELINE: plans.pipeline_parallel})

    def _in_order(self, degrees: dict[str, IntArray]) -> dict[str, IntArray]:
        shape = np.broadcast_shapes(self.plans.shape, (1,))
        return {name: np.broadcast_to(degrees[name], shape) for name in self.order if name in degrees}

    @property
    def _gpus(self) -> IntArray:
        return np.broadcast_to(self.plans.gpus_per_node, np.broadcast_shapes(self.plans.shape, (1,)))

    def _groups(self, grid: dict[str, IntArray], *axes: str) -> Groups:
        """Return the groups of axes together."""
        names = tuple(grid)
        places = sorted(names.index(name) for name in axes)
        degrees = list(grid.values())
        first, last = places[0], places[-1]
        degree = self._product([degrees[place] for place in places])
        between = self._product([degrees[place] for place in range(first, last) if place not in places])
        inner = self._product(degrees[:first])
        nodes, together = self._progressions(np.where(degrees[first] > 1, inner, inner * between), degree)
        apart = np.flatnonzero((between > 1) & (degrees[first] > 1) & (degrees[last] > 1))
        if apart.size:  # of axes that are not neighbours in the order all ranks are counted
            some, g = [one[apart] for one in degrees], self._gpus[apart]
            rows, number = distinct_rows(*some, g)
            counts = [_counted([int(one[row]) for one in some], places, int(g[row])) for row in rows.tolist()]
            nodes[apart], together[apart] = np.array(counts, dtype=np.int64)[number].T
        return self._with_streams(nodes, degree / nodes, together)

    def _product(self, degrees: list[IntArray]) -> IntArray:
        return reduce(lambda some, more: some * more, degrees, np.ones_like(self._gpus))

    def _with_streams(self, nodes: IntArray, ranks_per_node: FloatArray, together: IntArray) -> Groups:
        """Return groups of which so many talk at once on a node."""
        streams = np.maximum(together * ranks_per_node / self.nics_per_node, 1.0)
        return Groups(nodes, ranks_per_node, np.where(nodes > 1, streams, 1.0))

    def _progressions(self, stride: IntArray, degree: IntArray) -> tuple[IntArray, IntArray]:
        """Return nodes of the worst group and groups that talk at once on the busiest node."""
        g = self._gpus
        # The worst group is the one that starts at the largest place in a node.
        last = g - 1 - np.maximum(np.gcd(stride * degree, g) - stride, 0)
        spans = (last + (degree - 1) * stride) // g + 1
        nodes = np.where(stride <= g, spans, degree)
        together = np.minimum(stride, g)
        block = stride * degree
        uneven = np.flatnonzero(((stride % g > 0) & (g % stride > 0)) | ((block % g > 0) & (g % block > 0)))
        if uneven.size:
            rows = stride[uneven], block[uneven], g[uneven]
            first, number = distinct_rows(*rows)
            together[uneven] = _busiest(*(one[first] for one in rows))[number]
        return nodes, together


def _busiest(stride: IntArray, block: IntArray, g: IntArray) -> IntArray:
    """Return the most groups of one node that have ranks elsewhere, over all places of blocks; shapes (k,).

    A node begins with the last x ranks of one block and ends with the first of another; blocks between are whole.
    """
    stride, block, g = stride[:, None], block[:, None], g[:, None]
    x = np.arange(int(g.max()))[None, :]
    occurs = (x < np.minimum(g, block)) & (x % np.gcd(block, g) == 0)

    def cut(part: IntArray) -> IntArray:
        some: IntArray = np.minimum(stride, np.minimum(part, block - part))
        return some

    most: IntArray = np.where(occurs, cut(np.minimum(x, block)) + cut((g - x) % block), 0).max(axis=1)
    return most


def _counted(degrees: list[int], places: list[int], g: int) -> tuple[int, int]:
    """Return the most nodes of a group, and the most groups of one node that have ranks elsewhere."""
    block = prod(degrees[: places[-1] + 1])
    degrees = [*degrees[: places[-1] + 1], g // gcd(block, g)]  # what lies in nodes repeats itself after so many blocks
    ranks = np.arange(prod(degrees)).reshape(degrees[::-1])
    axes = [len(degrees) - 1 - place for place in places]
    groups = np.moveaxis(ranks, axes, range(len(axes))).reshape(prod(degrees[place] for place in places), -1).T
    nodes = np.sort(groups // g, axis=1)
    begins = np.diff(nodes, axis=1, prepend=-1) > 0
    spans = begins.sum(axis=1)
    across = begins & (spans > 1)[:, None]
    return int(spans.max()), int(np.bincount(nodes[across], minlength=1).max())


def shard_ranks(plans: Configurations, order: tuple[str, ...] = RANK_ORDER, *, experts: bool = False) -> FloatArray:
    """Return g, the ranks that share shards of all parameters but experts, or of experts; shape (n,).

    ``order``: how ranks are numbered, innermost first.
    """
    x = plans.expert_parallel if experts else 1
    everyone = np.maximum(1.0, plans.weight_copies / x)
    by_node = plans.shard_group == SHARD_GROUPS.index("node")
    if order == RANK_ORDER or not by_node.any():
        inside = np.maximum(1.0, plans.gpus_per_node // (plans.tensor_parallel * x))
    else:
        groups = Placement(plans.rows, order=order).groups(
            messages.EXPERT_NODE_SHARDS if experts else messages.NODE_SHARDS
        )
        inside = groups.ranks.reshape(plans.shape)
    return np.where(by_node, np.minimum(everyone, inside), everyone)
