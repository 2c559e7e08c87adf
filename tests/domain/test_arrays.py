from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.arrays import distinct_rows, distinct_values, once_of


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.5, 1.0, 1e9])), max_size=30))
def test_distinct_rows_are_those_of_a_table(rows: list[tuple[int, float]]) -> None:
    table = np.array(rows, dtype=np.float64).reshape(-1, 2)
    first, number = distinct_rows(table[:, 0].astype(np.int64), table[:, 1])
    np.testing.assert_array_equal(table[first][number], table)
    assert first.size == len(set(rows))
    assert all(rows.index(rows[row]) == row for row in first.tolist())


def test_distinct_rows_of_many_wide_columns_do_not_wrap() -> None:
    random = np.random.default_rng(2)
    table = random.integers(0, 2, (200, 5)) * np.array([10**9, 10**12, 2**62, -(2**61), 10**9])
    first, number = distinct_rows(*table.T)
    np.testing.assert_array_equal(table[first][number], table)
    assert first.size == len({tuple(row) for row in table.tolist()})


@given(st.lists(st.lists(st.integers(-3, 3), min_size=2, max_size=2), max_size=9))
def test_distinct_values_are_those_of_numpy(rows: list[list[int]]) -> None:
    values = np.array(rows, dtype=np.int64).reshape(-1, 2)
    np.testing.assert_array_equal(distinct_values(values), np.unique(values))


def test_a_value_is_worked_out_once_of_an_object_and_not_of_its_equals() -> None:
    asked: list[list[int]] = []

    @once_of
    def length(some: list[int]) -> int:
        asked.append(some)
        return len(some)

    one, other = [1, 2], [1, 2]
    assert [length(one), length(other), length(one)] == [2, 2, 2]
    assert [some is one for some in asked] == [True, False]
    assert [length([at]) for at in range(1000)] == [1] * 1000  # more than are remembered
    assert length(one) == 2
    assert len(asked) == 1003
