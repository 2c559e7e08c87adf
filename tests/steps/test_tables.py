from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.arrays import FloatArray, IntArray
from planner.steps import tables
from planner.steps.tables import CaseTable, PairTable, RowTable

GROUPS = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=6), max_size=5)


@dataclass(frozen=True)
class Columns:
    """Of both keys."""

    both: IntArray
    wide: FloatArray


class Counted:
    """Makes columns, and counts the cases that it makes."""

    def __init__(self) -> None:
        self.cases = 0

    def make(self, first: IntArray, second: IntArray) -> Columns:
        """Return the columns of cases."""
        self.cases += first.size
        return Columns(100 * first + second, np.stack([first / 2, second / 2], axis=1))


@pytest.mark.parametrize("dense", [1 << 22, 1])
@given(GROUPS)
def test_a_case_is_made_once_and_keeps_its_row(dense: int, groups: list[list[tuple[int, int]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_LARGEST_DENSE_TABLE", dense)
        counted = Counted()
        table, known = CaseTable(counted.make, 5), dict[tuple[int, int], int]()
        for group in groups:
            first, second = np.array(group).T
            table.ensure(first, second)
            rows = table.rows(first, second)
            assert (table.columns.both[rows] == 100 * first + second).all()
            assert (table.columns.wide[rows] == np.stack([first, second], axis=1) / 2).all()
            for case, row in zip(group, rows.tolist(), strict=True):
                assert known.setdefault(case, row) == row
        assert counted.cases == table.size == len(known)


@given(GROUPS)
def test_what_follows_from_a_row_is_worked_out_once_and_stays(groups: list[list[tuple[int, int]]]) -> None:
    rows_made, before = [0], list[tuple[FloatArray, FloatArray]]()
    table = CaseTable(Counted().make, 5)

    def doubled(columns: Columns) -> list[FloatArray]:
        rows_made[0] += columns.both.size
        return [np.multiply(2.0, columns.both, dtype=np.float64), np.multiply(2.0, columns.wide, dtype=np.float64)]

    follows = RowTable(table, doubled)
    for group in groups:
        table.ensure(*np.array(group).T)
        both, wide = follows.arrays
        assert (both == 2 * table.columns.both).all()
        assert (wide == 2 * table.columns.wide).all()
        before.append((both, both.copy()))
    assert rows_made[0] == table.size
    assert all((shown == kept).all() for shown, kept in before)


def test_pairs_of_all_rows_and_columns_are_made_together_and_once() -> None:
    calls = []

    def product(row: IntArray, column: IntArray) -> FloatArray:
        calls.append(np.broadcast_shapes(row.shape, column.shape))
        return (100.0 * row + column).astype(np.float64)

    table, rows, columns = PairTable(product), np.array([1, 4]), np.array([0, 2, 3])
    for _ in range(2):
        table.ensure(rows, columns)
        assert (table.gather(rows[:, None], columns) == 100 * rows[:, None] + columns).all()
    assert calls == [(2, 3)]
    assert table.gather(np.array([0, 4]), np.array([2, 2])).tolist() == [2, 402]
    assert calls == [(2, 3), (1,)]


def test_rows_of_a_product_of_keys_broadcast() -> None:
    table = CaseTable(Counted().make, 5)
    first, second = np.array([[2], [7]]), np.array([[0, 1, 4]])
    table.ensure(first, second)
    assert table.columns.both[table.rows(first, second)].tolist() == [[200, 201, 204], [700, 701, 704]]


@pytest.mark.parametrize("dense", [1 << 22, 1])
def test_what_pairs_gave_survives_growth(dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_LARGEST_DENSE_TABLE", dense)
    asked: list[tuple[int, int]] = []

    def compute(row: IntArray, column: IntArray) -> FloatArray:
        asked.extend(zip(row.tolist(), column.tolist(), strict=True))
        return row + column / 10

    pairs = PairTable(compute)
    assert pairs.gather(np.array([1, 0, 1]), np.array([2, 0, 2])).tolist() == [1.2, 0.0, 1.2]
    assert asked == [(0, 0), (1, 2)]  # sorted, each once
    assert pairs.gather(np.array([[1], [3]]), np.array([[2, 5]])).tolist() == [[1.2, 1.5], [3.2, 3.5]]
    assert len(asked) == (5 if dense > 1 else 6)
