from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.arrays import distinct, distinct_rows


@given(st.lists(st.integers(-5, 5)))
def test_distinct_values_are_in_order(values: list[int]) -> None:
    assert distinct(np.array(values, dtype=np.int64)).tolist() == sorted(set(values))


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
