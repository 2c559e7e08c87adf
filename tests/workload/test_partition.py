"""Cuts of chains into stages, against every way to cut."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from planner.domain.arrays import FloatArray
from planner.errors import ParameterError
from planner.workload.program import Partition, best_cuts


def sums(each: list[float]) -> FloatArray:
    """Return the cost of a stage as the sum of its units, (V + 1, V + 1)."""
    ahead = np.concatenate([[0.0], np.cumsum(each)])
    return np.asarray(ahead[None] - ahead[:, None])


def every_way(units: int, stages: int) -> list[tuple[int, ...]]:
    return [(0, *inner, units) for inner in combinations(range(1, units), stages - 1)]


def slowest(cost: FloatArray, cuts: tuple[int, ...]) -> float:
    return float(max(cost[start, end] for start, end in pairwise(cuts)))


@pytest.mark.parametrize("seed", range(5))
def test_no_other_cuts_make_the_slowest_stage_faster(seed: int) -> None:
    """Costs grow with a stage, but are no sums: kernels and host time are composed."""
    draw = np.random.default_rng(seed)
    kernels, host = (sums(draw.random(9).tolist()) for _ in range(2))
    cost = np.sqrt(kernels**2 + host**2)
    crossing = draw.random(10)
    for stages in range(1, 10):
        of = Partition(cost, crossing)
        found = tuple(of.cuts(stages).tolist())
        ways = {way: slowest(cost, way) for way in every_way(9, stages)}
        assert found in ways
        assert ways[found] == of.slowest(stages) == min(ways.values())


def test_by_hand() -> None:
    of = Partition(sums([3.0, 1.0, 1.0, 4.0, 1.0]), np.zeros(6))
    assert [of.slowest(stages) for stages in range(1, 6)] == [10.0, 5.0, 5.0, 4.0, 4.0]
    assert of.cuts(2).tolist() == [0, 3, 5]


@pytest.mark.parametrize("cheapest", [2, 3, 4])
def test_of_cuts_as_fast_the_one_that_least_crosses_is_taken(cheapest: int) -> None:
    """The first unit takes as long as all others: behind it any cut of them leaves the slowest stage as fast."""
    crossing = np.where(np.arange(6) == cheapest, 1.0, 2.0)
    assert Partition(sums([4.0, 1.0, 1.0, 1.0, 1.0]), crossing).cuts(3).tolist() == [0, 1, cheapest, 5]


def test_more_stages_than_units_are_refused() -> None:
    with pytest.raises(ParameterError, match="from 1 to the 2 units"):
        Partition(sums([1.0, 1.0]), np.zeros(3)).cuts(3)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_cuts_are_better_where_costs_differ_between_stages(seed: int) -> None:
    """Some stages fit at some places alone; of cuts whose slowest stage is as fast, the fullest needs least."""
    draw = np.random.default_rng(seed)
    units, stages = 7, int(draw.integers(1, 6))
    shape = (stages, units + 1, units + 1)
    cost = draw.integers(1, 4, shape) + sums([0.0] * units)
    cost = np.where(draw.random(shape) < 0.3, np.inf, cost)
    tie = draw.random(shape)
    ways = {
        way: tuple(max(of[k, i, j] for k, (i, j) in enumerate(pairwise(way))) for of in (cost, tie))
        for way in every_way(units, stages)
    }
    found = best_cuts(cost, tie, np.zeros(units + 1))
    best = min(ways.values())
    if found is None:
        assert best[0] == np.inf
    else:
        assert ways[tuple(found.tolist())] == best


def test_cuts_that_no_stage_fits_are_none() -> None:
    assert best_cuts(np.full((2, 4, 4), np.inf), np.zeros((2, 4, 4)), np.zeros(4)) is None
