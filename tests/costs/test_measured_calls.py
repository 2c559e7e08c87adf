import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.measured_calls import BEYOND, MARGIN, MEASURED_S, WHEREABOUTS, line_times_s, whereabouts
from planner.costs.terms import evaluate, extrapolates
from planner.domain.calibration import Entry

TABLE = {"b": (1.0, 3.0, 16.0, 18.0), "a": (1.0, 0.5), "c": (2.0, 4.0, 4.0, 6.0, 8.0, 20.0)}
ENTRY = Entry(
    "kernels", "gemm", "forward", "fp32", "", "calls.measured", TABLE, {MEASURED_S: 1.0, BEYOND: 0.0},
    ranges={BEYOND: (0.0, MARGIN)},
)  # fmt: skip
A, B, C = 0, 1, 2
"""Places of the calls among the sorted names."""


def times(call: int, *samples: int) -> list[float]:
    work = {"call": np.array([call]), "samples": np.array(samples)[:, None]}
    found: list[float] = evaluate(ENTRY, work)[:, 0].tolist()
    return found


def test_measured_sub_batches_give_back_their_times() -> None:
    assert times(B, 1, 16) == [3.0, 18.0]
    assert times(C, 2, 4, 8) == [4.0, 6.0, 20.0]


def test_sub_batches_are_told_apart_by_those_measured() -> None:
    work = {"call": np.array([A, B, C]), "samples": np.array([1, 2, 3, 16, 17])[:, None]}
    assert [[WHEREABOUTS[place] for place in row] for row in whereabouts(work, TABLE).tolist()] == [
        ["exact", "exact", "beyond"],
        ["exact", "between", "exact"],
        ["exact", "between", "between"],
        ["exact", "exact", "beyond"],
        ["exact", "beyond", "beyond"],
    ]


def test_between_and_beyond_is_a_line() -> None:
    assert times(B, 4, 8, 32) == pytest.approx([6.0, 10.0, 34.0])  # 2 + n
    assert times(C, 3, 6) == pytest.approx([5.0, 13.0])


def test_what_grows_faster_than_samples_goes_on_in_proportion() -> None:
    """The last line of c, 3.5 n - 8, has a negative constant: beyond 8 it is 2.5 n."""
    assert times(C, 16) == pytest.approx([40.0])
    assert times(C, 1) == pytest.approx([3.0])


def test_a_call_measured_once_takes_that_always() -> None:
    assert times(A, 1, 7, 64) == [0.5, 0.5, 0.5]


def test_calls_and_sub_batches_broadcast() -> None:
    work = {"call": np.array([C, A, B, B]), "samples": np.array([2, 4])[:, None]}
    assert evaluate(ENTRY, work).tolist() == [[4.0, 0.5, 4.0, 4.0], [6.0, 0.5, 6.0, 6.0]]


def test_more_than_a_doubling_beyond_is_extrapolated() -> None:
    work = {"call": np.array([A, B, C]), "samples": np.array([1, 16, 35])[:, None]}
    assert extrapolates(ENTRY, work).tolist() == [[False, False, False], [False, False, False], [False, True, True]]


@given(
    st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=2), st.integers(1, 40), st.integers(1, 40), st.integers(1, 200)
)
def test_times_are_above_zero_and_grow_beyond_the_ends(measured: list[float], first: int, more: int, n: int) -> None:
    knots = np.array([first, first + more], dtype=float)
    found = line_times_s(np.array([n, n + 1.0]), knots, np.array(measured))
    assert (found > 0).all()
    if n >= knots[-1] or n + 1 <= first:
        assert found[1] >= found[0] * (1 - 1e-12)
