"""The least sum over a graph: equal to trying everything."""

from itertools import product

import numpy as np
import pytest

from planner.workload import schemes
from planner.workload.schemes import least_assignment


def total(states: tuple[int, ...], nodes: list, edges: list, costs: list, case: int) -> float:  # type: ignore[type-arg]
    of_nodes = sum(node[case, state] for node, state in zip(nodes, states, strict=True))
    return float(of_nodes + sum(one[case, states[a], states[b]] for (a, b), one in zip(edges, costs, strict=True)))


@pytest.mark.parametrize("seed", range(60))
def test_it_is_that_of_brute_force(seed: int) -> None:
    """Of chains, trees and graphs of up to eight nodes, two edges between a pair among them, some states forbidden."""
    random = np.random.default_rng(seed)
    number, cases = int(random.integers(1, 9)), 3
    sizes = random.integers(1, 4, number)
    nodes = [random.random((cases, size)) for size in sizes]
    for node in nodes:
        if node.shape[1] > 1:
            node[:, int(random.integers(node.shape[1]))] = np.inf
    pairs = [(a, b) for a in range(number) for b in range(a + 1, number)]
    few = [(at, at + 1) for at in range(number - 1)] if seed % 2 else []
    drawn = [pairs[at] for at in random.integers(0, len(pairs), int(random.integers(0, 8)))] if pairs else []
    edges = [*few, *drawn]
    costs = [random.random((cases, sizes[a], sizes[b])) for a, b in edges]
    found = least_assignment(nodes, edges, costs)
    for case in range(cases):
        every = product(*(range(size) for size in sizes))
        least = min(total(one, nodes, edges, costs, case) for one in every)
        assert total(tuple(found[case].tolist()), nodes, edges, costs, case) == pytest.approx(least, rel=1e-12)


def test_graphs_too_wide_are_assigned_well_in_bounded_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 30 nodes next to all others, in 7 states, as layers that read all before them: 7^29 are too many."""
    random = np.random.default_rng(0)
    number, size = 30, 7
    nodes = [random.random((1, size)) for _ in range(number)]
    edges = [(a, b) for a in range(number) for b in range(a + 1, number)]
    costs = [random.random((1, size, size)) / number for _ in edges]
    found = total(tuple(least_assignment(nodes, edges, costs)[0].tolist()), nodes, edges, costs, 0)
    others = (tuple(random.integers(0, size, number).tolist()) for _ in range(300))
    assert found < min(total(one, nodes, edges, costs, 0) for one in others)
    monkeypatch.setattr(schemes, "LARGEST", 1)
    test_it_is_that_of_brute_force(1)  # a chain needs no room
