"""Where groups lie, against an enumeration of all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from math import prod

import numpy as np
import pytest

from planner.costs.collectives import ring_all_reduce
from planner.domain.arrays import IntArray
from planner.domain.axes import CONTEXT, DATA, EXPERT, PIPELINE, RANK_ORDER, TENSOR
from planner.domain.configuration import Configurations
from planner.domain.messages import (
    CONTEXT_NEIGHBOURS,
    ENDS,
    EXPERT_GRADIENTS,
    EXPERT_SHARDS,
    GRADIENTS,
    NEIGHBOURS,
    NODE_REPLICAS,
    NODE_SHARDS,
    Groups,
)
from planner.domain.split import SHARD_GROUPS
from planner.errors import ParameterError
from planner.workload.placement import Placement, shard_ranks

Group = tuple[int, ...]
Found = tuple[int, float, float]
Counts = IntArray | int


def degrees(
    t: IntArray | int, c: IntArray | int, d: IntArray | int, p: IntArray | int, g: IntArray | int
) -> Configurations:
    """Return plans of t tensor, c context, d data and p pipeline ranks on nodes of g GPUs."""
    return Configurations.having(
        tensor_parallel=t, context_parallel=c, data_parallel=d, pipeline_parallel=p, gpus_per_node=g
    )


def groups_by_hand(grid: Sequence[tuple[str, int]], axes: set[str]) -> list[Group]:
    """Return the groups of axes, by the coordinates of every rank; the first axis of the grid is the innermost."""
    found: dict[Group, list[int]] = {}
    for rank in range(prod(degree for _, degree in grid)):
        rest, key = rank, []
        for name, degree in grid:
            rest, own = divmod(rest, degree)
            key.append(-1 if name in axes else own)
        found.setdefault(tuple(key), []).append(rank)
    return [tuple(one) for one in found.values()]


def worst_by_hand(groups: Iterable[Group], g: int, nics: int) -> Found:
    """Return nodes of the worst group, its mean ranks a node, and the streams."""
    every = list(groups)
    nodes = max(len({rank // g for rank in group}) for group in every)
    talking: dict[int, int] = {}
    for group in every:
        on = {rank // g for rank in group}
        for node in on if len(on) > 1 else ():
            talking[node] = talking.get(node, 0) + 1
    ranks = len(every[0]) / nodes
    return nodes, ranks, max(max(talking.values()) * ranks / nics, 1.0) if nodes > 1 else 1.0


def found(groups: Groups, row: int = 0) -> Found:
    return int(groups.nodes[row]), float(groups.ranks_per_node[row]), float(groups.streams_per_nic[row])


SMALL = [
    (t, c, d, p, g)
    for t, c, d, p, g in itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2, 3, 5, 6), (1, 2, 3, 4), (1, 2, 3, 4, 6, 8))
    if t * c * d * p % g == 0
]
COLUMNS = np.array(SMALL).T


def small(order: tuple[str, ...] = RANK_ORDER, nics: int = 1) -> Placement:
    return Placement(degrees(*COLUMNS), nics, order)


@pytest.mark.parametrize("order", [RANK_ORDER, (PIPELINE, DATA, EXPERT, TENSOR, CONTEXT)])
@pytest.mark.parametrize(
    "axes", [{TENSOR}, {CONTEXT}, {DATA}, {PIPELINE}, {CONTEXT, DATA}], ids=lambda axes: "-".join(sorted(axes))
)
def test_worst_groups_of_all_small_worlds(axes: set[str], order: tuple[str, ...]) -> None:
    placement = small(order, nics=2)
    groups = placement.groups(GRADIENTS) if len(axes) == 2 else placement.groups(*axes)
    for row, (t, c, d, p, g) in enumerate(SMALL):
        by_name = {TENSOR: t, CONTEXT: c, DATA: d, PIPELINE: p}
        grid = [(name, by_name[name]) for name in order if name != EXPERT]
        assert found(groups, row) == pytest.approx(worst_by_hand(groups_by_hand(grid, axes), g, 2)), SMALL[row]


EXPERTS = [
    (t, e, x, d, p, g)
    for t, e, x, d, p, g in itertools.product((1, 2, 4), (1, 2), (1, 2, 3, 4), (2, 6, 8), (1, 2), (2, 4, 8))
    if t * d * p % g == 0 and t * d % (e * x) == 0
]


@pytest.mark.parametrize("order", [RANK_ORDER, (PIPELINE, DATA, EXPERT, TENSOR, CONTEXT)])
def test_experts_split_the_same_ranks_another_way(order: tuple[str, ...]) -> None:
    t, e, x, d, p, g = np.array(EXPERTS).T
    placement = Placement(degrees(t, 1, d, p, g).but(expert_parallel=x), order=order, expert_tensor=e)
    asked = {EXPERT: EXPERT, DATA: EXPERT_GRADIENTS, TENSOR: EXPERT_SHARDS}
    for row, (t1, e1, x1, d1, p1, g1) in enumerate(EXPERTS):
        by_name = {TENSOR: e1, EXPERT: x1, DATA: t1 * d1 // (e1 * x1), PIPELINE: p1}
        grid = [(name, by_name[name]) for name in order if name != CONTEXT]
        for axis, name in asked.items():
            expected = worst_by_hand(groups_by_hand(grid, {axis}), g1, 1)
            assert found(placement.groups(name), row) == pytest.approx(expected), (axis, EXPERTS[row])


@pytest.mark.parametrize("order", [RANK_ORDER, (PIPELINE, TENSOR, CONTEXT, EXPERT, DATA)])
@pytest.mark.parametrize(("name", "axis"), [(NEIGHBOURS, PIPELINE), (ENDS, PIPELINE), (CONTEXT_NEIGHBOURS, CONTEXT)])
def test_pairs_along_an_axis(name: str, axis: str, order: tuple[str, ...]) -> None:
    """Where nodes and groups do not divide each other, no fewer streams than there are."""
    pairs = small(order).groups(name)
    for row, (t, c, d, p, g) in enumerate(SMALL):
        by_name = {TENSOR: t, CONTEXT: c, DATA: d, PIPELINE: p}
        grid = [(name, by_name[name]) for name in order if name != EXPERT]
        lines = groups_by_hand(grid, {axis})
        degree = len(lines[0])
        wanted = {
            NEIGHBOURS: [pair for line in lines for pair in itertools.pairwise(line)],
            ENDS: [(line[0], line[-1]) for line in lines],
            CONTEXT_NEIGHBOURS: [pair for line in lines for pair in itertools.pairwise((*line, line[0]))],
        }[name]
        stride = lines[0][1] - lines[0][0] if degree > 1 else 1
        divides = (stride % g == 0 or g % stride == 0) and (stride * degree % g == 0 or g % (stride * degree) == 0)
        nodes, ranks, streams = found(pairs, row)
        senders = [a // g for a, b in wanted if a // g != b // g]
        assert nodes == (2 if senders else 1), SMALL[row]
        assert nodes * ranks == (2 if degree > 1 else 1)
        most = max([senders.count(node) for node in set(senders)], default=1)
        assert streams >= most, SMALL[row]
        if divides:
            assert streams == most, SMALL[row]


def test_degrees_that_do_not_divide_a_node() -> None:
    """Six copies of four ranks each: three nodes a group, two members on each, four groups at once."""
    groups = Placement(degrees(4, 1, 6, 2, 8)).groups(DATA)
    assert found(groups) == (3, 2, 8)
    # four rings share the NIC: a quarter of its bandwidth each
    alone = ring_all_reduce(np.array([1.0]), Groups(np.array([3]), np.array([2]), np.array([2.0])))[0, 0]
    shared = ring_all_reduce(np.array([1.0]), groups)[0, 0]
    assert shared[3] == pytest.approx(4 * alone[3])


@pytest.mark.parametrize(("nics", "expected"), [(1, 8), (4, 2), (8, 1), (16, 1)])
def test_streams_share_the_nics_of_a_node(nics: int, expected: float) -> None:
    """Eight tensor ranks a node, each with a ring of its own to its copies: bandwidth min(flow, nics·B·k/g), k = 1."""
    groups = Placement(degrees(8, 1, 64, 1, 8), nics).groups(DATA)
    assert found(groups) == (64, 1, expected)


def test_hybrid_sharding_stays_inside_nodes() -> None:
    placement = Placement(degrees(2, 1, 16, 1, 8), 2)
    assert found(placement.groups(NODE_SHARDS)) == (1, 4, 1)
    assert found(placement.groups(NODE_REPLICAS)) == (4, 1, 4)


@pytest.mark.parametrize("order", list(itertools.permutations(RANK_ORDER))[::17])
def test_ranks_of_a_node_that_share_shards_follow_the_order(order: tuple[str, ...]) -> None:
    """The memory of hybrid sharding, by the ranks of each group that lie on its first node."""
    worlds = [
        (t, c, d, p, x, g)
        for t, c, d, p, x, g in itertools.product((1, 2), (1, 2), (2, 4), (1, 2, 4), (1, 2), (2, 4, 8))
        if t * c * d * p % g == 0
    ]
    t, c, d, p, x, g = np.array(worlds).T
    plans = degrees(t, c, d, p, g).but(expert_parallel=x, shard_group=SHARD_GROUPS.index("node"))
    shared, routed = shard_ranks(plans, order), shard_ranks(plans, order, experts=True)
    for row, (t1, c1, d1, p1, x1, g1) in enumerate(worlds):
        for ranks, by_name, axes in (
            (shared, {TENSOR: t1, CONTEXT: c1, DATA: d1, PIPELINE: p1}, {CONTEXT, DATA}),
            (routed, {TENSOR: t1, EXPERT: x1, DATA: c1 * d1 // x1, PIPELINE: p1}, {DATA}),
        ):
            groups = groups_by_hand([(name, by_name[name]) for name in order if name in by_name], axes)
            assert ranks[row] == sum(rank < g1 for rank in groups[0]), worlds[row]


def test_a_large_world_takes_closed_forms() -> None:
    """131072 ranks, sixteen thousand configurations; and degrees beyond any cluster do not wrap around."""
    t, d = (one.ravel() for one in np.meshgrid(np.arange(1, 129), np.arange(1, 129)))
    assert Placement(degrees(t, 1, d, 8, 8)).groups(GRADIENTS).nodes.max() == 128
    assert found(Placement(degrees(1, 1, 10**6, 10**6, 8)).groups(GRADIENTS)) == (125_000, 8, 8)


def test_an_order_names_every_axis_once() -> None:
    rule = "rank order must be tensor, context, expert, data, pipeline in some order, each once"
    for order, near in (
        ("tensor,data", "tensor,data,context,expert,pipeline"),
        ("pipelines,pipeline,dat", "pipeline,data,tensor,context,expert"),
        ("", "tensor,context,expert,data,pipeline"),
        (",".join([*RANK_ORDER, "data"]), ",".join(RANK_ORDER)),
    ):
        with pytest.raises(ParameterError) as refused:
            Placement(Configurations.having(), order=tuple(order.split(",")))
        assert str(refused.value) == f"{rule}, got {order!r}; write {near}"
