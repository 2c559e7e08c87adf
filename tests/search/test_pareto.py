from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.search import ranking
from planner.search.ranking import Stairs, pareto_front

POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(0, 6)), max_size=60)


def brute_force(points: list[tuple[int, int, int]]) -> list[int]:
    def dominates(p: tuple[int, ...], q: tuple[int, ...]) -> bool:
        return p != q and all(a <= b for a, b in zip(p, q, strict=True))

    return [i for i, q in enumerate(points) if not any(dominates(p, q) for p in points) and q not in points[:i]]


def front_of(points: list[tuple[int, int, int]]) -> list[int]:
    columns = np.array(points, dtype=np.int64).reshape(-1, 3).T
    return [int(i) for i in pareto_front(columns[0] * 1.0, columns[1], columns[2] * 1.0)]


@given(POINTS)
def test_front_is_that_of_brute_force(points: list[tuple[int, int, int]]) -> None:
    assert front_of(points) == brute_force(points)


@given(POINTS, POINTS)
def test_front_of_fronts_is_the_front(one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]) -> None:
    kept = [points[i] for points in (one, other) for i in front_of(points)]
    whole = one + other
    assert {kept[i] for i in front_of(kept)} == {whole[i] for i in front_of(whole)}


@pytest.mark.parametrize("cells", [ranking.MOST_CELLS, 6])
@given(points=POINTS, asked=POINTS)
def test_stairs_rule_out_what_a_point_dominates(
    cells: int, points: list[tuple[int, int, int]], asked: list[tuple[int, int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "MOST_CELLS", cells)
        value, gpus, distance = np.array(points, dtype=np.int64).reshape(-1, 3).T
        stairs = Stairs(value.astype(np.float64), gpus, distance.astype(np.float64))
    _, most, away = np.array(asked, dtype=np.int64).reshape(-1, 3).T
    exact = [min((v for v, g, d in points if g <= most_g and d <= far), default=np.inf) for _, most_g, far in asked]
    found = stairs.least(most, away.astype(np.float64)).tolist()
    assert found == exact if cells > 6 else all(np.array(found) >= exact)


def test_large_random_set_agrees_with_brute_force_on_its_front() -> None:
    rng = np.random.default_rng(3)
    value, gpus, distance = rng.random(20_000), rng.integers(1, 65, 20_000), rng.random(20_000)
    front = pareto_front(value, gpus, distance)
    on = np.zeros(value.size, dtype=np.bool_)
    on[front] = True
    points = np.stack([value, gpus, distance], axis=1)
    # every point off the front is dominated by one on it, and no point on it is dominated at all
    for chunk in np.array_split(points[~on], 20):
        dominated = np.all(points[front][None] <= chunk[:, None], axis=2)
        assert dominated.any(axis=1).all()
    inside = np.all(points[front][None] <= points[front][:, None], axis=2)
    np.testing.assert_array_equal(inside, np.eye(front.size, dtype=np.bool_))
