"""The least sum of costs of nodes and edges, each node in one of a few states: exact where few neighbours are open.

Nodes are eliminated one after the other, those with the fewest neighbours first: what a node and its edges cost at
least, in each state of its neighbours, is a cost between these. Chains and series-parallel graphs, such as residual and
inception networks, never have more than two neighbours; others take S to the power of as many as they have.

Where that is more than LARGEST, as in DenseNet, whose layers read all before them, a node's costs are put in groups of
few neighbours, and each group takes its own least (mini-buckets, Dechter and Rish 2003): what is found then is a good
assignment, not always the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from planner.domain.arrays import FloatArray, IntArray

__all__ = ["least_assignment"]

LARGEST, WIDEST = 1 << 15, 4
"""States of neighbours together, up to which a node's costs are taken as one; nodes of a group beyond."""
_Factor = tuple[tuple[int, ...], FloatArray]


def least_assignment(
    nodes: Sequence[FloatArray], edges: Sequence[tuple[int, int]], costs: Sequence[FloatArray]
) -> IntArray:
    """Return the state of every node, shape (c, L), of c cases.

    Parameters
    ----------
    nodes : of L nodes, ndarray of float, shape (c, S_l) each; inf: a state that it does not have
    edges : pairs of nodes
    costs : of each edge, shape (c, S_a, S_b)
    """
    factors: list[_Factor] = [((at,), one) for at, one in enumerate(nodes)]
    factors += list(zip(edges, costs, strict=True))
    near: list[set[int]] = [set() for _ in nodes]
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    of_node: list[list[_Factor]] = [[] for _ in nodes]
    for factor in factors:
        for at in factor[0]:
            of_node[at].append(factor)
    left, order = set(range(len(nodes))), list[tuple[int, list[_Factor]]]()
    while left:
        node = min(left, key=lambda one: (len(near[one]), one))
        left.remove(node)
        order.append((node, of_node[node]))
        gone = {id(one) for one in of_node[node]}
        for at in near[node]:
            of_node[at] = [one for one in of_node[at] if id(one) not in gone]
        for some in _groups(node, of_node[node], nodes):
            others = tuple(sorted({at for of, _ in some for at in of} - {node}))
            rest: _Factor = (others, _sum((*others, node), some).min(axis=-1))
            for at in others:
                of_node[at].append(rest)
        for at in near[node]:
            near[at] = {other for of, _ in of_node[at] for other in of} - {at}
    found = np.zeros((nodes[0].shape[0] if nodes else 0, len(nodes)), dtype=np.int64)
    for node, some in reversed(order):
        found[:, node] = np.argmin(sum(_at(node, one, found) for one in some), axis=-1)
    return found


def _groups(node: int, factors: list[_Factor], nodes: Sequence[FloatArray]) -> list[list[_Factor]]:
    """Return the costs of a node together, or in groups of few neighbours where that would take too much."""
    if prod(nodes[at].shape[1] for at in {at for of, _ in factors for at in of}) <= LARGEST:
        return [factors]
    groups: list[tuple[set[int], list[_Factor]]] = []
    for factor in sorted(factors, key=lambda one: -len(one[0])):
        scope = {*factor[0]} | {node}
        held = next((some for some in groups if len(some[0] | scope) <= max(WIDEST, len(scope))), None)
        if held is None:
            groups.append((scope, [factor]))
        else:
            held[0].update(scope)
            held[1].append(factor)
    return [some for _, some in groups]


def _at(node: int, factor: _Factor, found: IntArray) -> FloatArray:
    """Return what a factor costs in each state of a node, the others in those found, shape (c, S)."""
    of, costs = factor
    last = np.moveaxis(costs, 1 + of.index(node), -1)
    cost: FloatArray = last[(np.arange(found.shape[0]), *(found[:, at] for at in of if at != node))]
    return cost


def _sum(axes: tuple[int, ...], factors: Sequence[_Factor]) -> FloatArray:
    """Return the sum of factors over the states of nodes, shape (c, S, ...), in this order."""
    total: FloatArray = np.zeros(())
    for of, one in factors:
        order = sorted(range(len(of)), key=lambda place: axes.index(of[place]))
        there = [of[place] for place in order]
        shape = [one.shape[0], *(one.shape[1 + of.index(axis)] if axis in there else 1 for axis in axes)]
        total = total + one.transpose(0, *(1 + place for place in order)).reshape(shape)
    return total
