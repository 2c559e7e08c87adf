"""Kernels in int8: what was padded, and errors on shapes left out."""

import pytest

from planner import catalog
from planner.domain.calibration import Entry
from validation.convert_kernels import KERNELS
from validation.int8_shapes import INT8, MEASURED, errors_left_out, int8_samples
from validation.kernel_boards import Board
from validation.kernel_rows import INT8_TABLE
from validation.tables import read_table

GOALS = {"gemm": 0.15, "convolution": 0.25}


def entries(board: Board) -> list[Entry]:
    return [one for one in catalog.find_calibration(board.name).entries if one.precision == INT8]


def test_rows_are_marked_as_padded_where_a_side_is_no_multiple_of_4() -> None:
    for row in read_table(KERNELS / INT8_TABLE, ""):
        sides = (row["M"],) if row["op"] == "gemm" else (row["C"], row["H"], row["W"])
        assert int(row["padded"]) == any(int(side) % 4 for side in sides)


@pytest.mark.parametrize("board", MEASURED, ids=lambda board: board.name)
def test_new_shapes_are_missed_by_less_than_the_goals(board: Board) -> None:
    every = int8_samples(board)
    for entry in entries(board):
        rows = every.select(every.text["kind"] == entry.kind)
        own = [not group.startswith("padded") for group in rows.text["group"].tolist()]
        assert errors_left_out(entry, rows)[own].mean() < GOALS[entry.kind]


def test_bundled_entries_are_of_every_row() -> None:
    for board in MEASURED:
        kinds = int8_samples(board).text["kind"].tolist()
        assert {one.kind: one.samples for one in entries(board)} == {kind: kinds.count(kind) for kind in GOALS}
