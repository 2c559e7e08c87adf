import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.features import Settings, Work
from planner.costs.terms import TERMS
from planner.costs.work import moved_bytes

ROWS = TERMS["traffic.rows"]


def bytes_by_name(work: Work, settings: Settings) -> dict[str, float]:
    return dict(zip(ROWS.names(settings), ROWS.features(work, settings).tolist(), strict=True))


def rows_of(length: int, count: int = 64) -> dict[str, float]:
    return {"elements": count * length, "traffic": 2 * count * length, "fixed_bytes": 0, "rows": count, "itemsize": 4}


def test_long_rows_cost_more_a_byte() -> None:
    term = TERMS["traffic.rows"]
    rows = np.array([0, 64, 32, 8, 4])  # lengths: not known, 1024, 2048, 8192, 16384
    work: Work = {"elements": 65536, "traffic": 131072, "fixed_bytes": 0, "rows": rows, "itemsize": 2.0}
    moved = 262144
    np.testing.assert_array_equal(
        term.features(work, {}),
        [
            [1, moved, *(moved * beyond for beyond in past)]
            for past in ([0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1])
        ],
    )


@pytest.mark.parametrize(("length", "share"), [(1024, 0.0), (4096, 0.0), (8192, 0.5), (16384, 0.75)])
def test_what_does_not_stay_near_is_read_again(length: int, share: float) -> None:
    found = bytes_by_name(rows_of(length), {"steps": (), "reread": (4096.0,)})
    assert list(found) == ["calls", "bytes", "bytes_reread_4096"]
    assert found["bytes_reread_4096"] == share * found["bytes"]


@pytest.mark.parametrize(
    ("length", "whole"), [(768, 768), (1280, 2048), (2048, 2048), (2560, 4096), (5120, 6144), (6144, 6144)]
)
def test_blocks_of_threads_pad_long_rows_to_whole_steps(length: int, whole: int) -> None:
    found = bytes_by_name(rows_of(length), {"steps": (), "padded": 1.0})
    assert found["bytes"] + found["bytes_padded"] == pytest.approx(found["bytes"] * whole / length)


def test_rows_of_unknown_number_are_neither_padded_nor_read_again() -> None:
    found = bytes_by_name(rows_of(4096) | {"rows": 0}, {"reread": (1024.0,), "padded": 1.0})
    assert [value for name, value in found.items() if name.startswith("bytes_")] == [0] * 5


@pytest.mark.parametrize(
    ("tensors", "read", "written"),
    [(3, 2, 1), (2, 1, 1), (5, 4, 1), (1, 1, 0), (1.25, 1, 0.25)],  # the last: pooling, whose elements are its input's
)
def test_bytes_read_and_written_of_an_element_wise_kernel(tensors: float, read: float, written: float) -> None:
    work: Work = {"elements": 100, "traffic": 100 * tensors, "fixed_bytes": 0, "itemsize": 2}
    assert TERMS["traffic.read_write"].features(work, {}).tolist() == [1, 200 * read, 200 * written]


@given(st.integers(0, 10**6), st.integers(0, 10**7), st.integers(0, 10**6))
def test_bytes_read_and_written_are_those_moved(elements: int, traffic: int, fixed: int) -> None:
    work: Work = {"elements": elements, "traffic": traffic, "fixed_bytes": fixed, "itemsize": np.float64(4)}
    _, read, written = TERMS["traffic.read_write"].features(work, {}).tolist()
    assert min(read, written) >= 0
    assert read + written == moved_bytes(work)
