"""The least sum of costs of nodes and edges, each node in one of a few states: exact, on any graph.

Nodes are eliminated one after the other, those with the fewest neighbours first: what a node and its edges cost at
least, in each state of its neighbours, is a cost between these. Chains and series-parallel graphs, such as residual and
inception networks, never have more than two neighbours; others take S to the power of as many as they have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.domain.arrays import FloatArray, IntArray

__all__ = ["least_assignment"]

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
    left, choices = set(range(len(nodes))), list[tuple[int, tuple[int, ...], IntArray]]()
    while left:
        node = min(left, key=lambda one: (len(near[one]), one))
        left.remove(node)
        others = tuple(sorted(near[node]))
        total = _sum((*others, node), of_node[node])
        choices.append((node, others, np.argmin(total, axis=-1)))
        rest: _Factor = (others, total.min(axis=-1))
        gone = {id(one) for one in of_node[node]}
        for at in others:
            of_node[at] = [*(one for one in of_node[at] if id(one) not in gone), rest]
            near[at] = (near[at] | set(others)) - {at, node}
    cases = nodes[0].shape[0] if nodes else 0
    found = np.zeros((cases, len(nodes)), dtype=np.int64)
    every = np.arange(cases)
    for node, others, best in reversed(choices):
        found[:, node] = best[(every, *(found[:, at] for at in others))]
    return found


def _sum(axes: tuple[int, ...], factors: Sequence[_Factor]) -> FloatArray:
    """Return the sum of factors over the states of nodes, shape (c, S, ...), in this order."""
    total: FloatArray = np.zeros(())
    for of, one in factors:
        order = sorted(range(len(of)), key=lambda place: axes.index(of[place]))
        there = [of[place] for place in order]
        shape = [one.shape[0], *(one.shape[1 + of.index(axis)] if axis in there else 1 for axis in axes)]
        total = total + one.transpose(0, *(1 + place for place in order)).reshape(shape)
    return total
