import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planner.costs.measured_calls import (
    CURVE,
    CURVE_ERROR,
    DOUBLINGS_BEYOND,
    MARGIN_DOUBLINGS,
    MEASURED_S,
    WHEREABOUTS,
    line_times_s,
    relative_curve,
    times_s,
    whereabouts,
)
from planner.costs.terms import evaluate, extrapolates
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry

TABLE = {"b": (1.0, 3.0, 16.0, 18.0), "a": (1.0, 0.5), "c": (2.0, 4.0, 4.0, 6.0, 8.0, 20.0)}
ENTRY = Entry(
    "kernels", "gemm", "forward", "fp32", "", "calls.measured", TABLE, {MEASURED_S: 1.0, DOUBLINGS_BEYOND: 0.0},
    ranges={DOUBLINGS_BEYOND: (0.0, MARGIN_DOUBLINGS)},
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


def test_neighbours_tell_no_slope() -> None:
    """One way to compute it up to 15 samples, t = 7 n, another from 16 on: the slope of 1 to 16 goes on."""
    knots, measured = np.array([1.0, 15.0, 16.0]), np.array([7.0, 105.0, 80.0])
    found = line_times_s(np.array([8.0, 15.0, 16.0, 31.0]), knots, measured)
    np.testing.assert_allclose(found, [56.0, 105.0, 80.0, 80.0 + 73.0])
    backwards = line_times_s(np.array([1.0]), np.array([2.0, 3.0, 4.0]), np.array([4.0, 40.0, 6.0]))
    np.testing.assert_allclose(backwards, [3.0])


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
@example([1.0, 1e-5], 1, 38, 39)  # at the last sub-batch a line from the one before rounds away from what was measured
def test_times_are_above_zero_and_grow_beyond_the_ends(measured: list[float], first: int, more: int, n: int) -> None:
    knots = np.array([first, first + more], dtype=float)
    found = line_times_s(np.array([n, n + 1.0]), knots, np.array(measured))
    assert (found > 0).all()
    if n >= knots[-1] or n + 1 <= first:
        assert found[1] >= found[0] * (1 - 1e-12)


KNOTS = np.array([2.0, 8.0, 32.0])
ANYWHERE = np.array([1.0, 2.0, 3.0, 7.0, 8.0, 9.0, 20.0, 32.0, 33.0, 60.0])


def tiled(n: FloatArray) -> FloatArray:
    """Return times of a product on tiles of 8 samples, which no line through a few of them follows."""
    return 3.0 + 2.0 * np.ceil(n / 8)


def followed(measured_s: FloatArray, fitted_s: FloatArray, error: float) -> FloatArray:
    """Return the times at ANYWHERE of a call measured at KNOTS, by a fit with times there and at KNOTS."""
    along = relative_curve(ANYWHERE, fitted_s, KNOTS, fitted_s[np.searchsorted(ANYWHERE, KNOTS)])
    return times_s(ANYWHERE, KNOTS, measured_s, along, np.array(error))


def test_a_call_in_proportion_to_its_fit_is_that_everywhere() -> None:
    found = followed(1.7 * tiled(KNOTS), tiled(ANYWHERE), error=0.0)
    np.testing.assert_allclose(found, 1.7 * tiled(ANYWHERE))
    assert np.abs(line_times_s(ANYWHERE, KNOTS, 1.7 * tiled(KNOTS)) / found - 1).max() > 0.2


def test_ratios_of_measured_to_fitted_time_go_over_from_one_measured_sub_batch_to_the_next() -> None:
    """At 20, halfway from 8 to 32, f-line = (5 + 11) / 2 = 8 and t-line = (10 + 11) / 2; the fit says 9."""
    measured = tiled(KNOTS) * np.array([3.0, 2.0, 1.0])
    found = dict(zip(ANYWHERE.tolist(), followed(measured, tiled(ANYWHERE), error=0.0).tolist(), strict=True))
    assert found[20.0] == pytest.approx(9.0 * 10.5 / 8.0)
    assert found[1.0] == pytest.approx(3.0 * tiled(np.array(1.0)))
    assert found[60.0] == pytest.approx(1.0 * tiled(np.array(60.0)))
    assert [found[n] for n in KNOTS.tolist()] == pytest.approx(measured.tolist(), rel=1e-15)


def test_a_bend_within_the_error_of_the_fit_is_not_believed() -> None:
    """Half the logarithm of a bend as large as the error; less of a smaller one, more of a larger one."""
    line, bent = np.array(5.0), np.array(5.0 * np.exp(0.1))
    knots, measured = np.array([1.0, 3.0]), np.array([4.0, 6.0])

    def log_bend(error: float) -> float:
        return float(np.log(times_s(np.array(2.0), knots, measured, bent / line, np.array(error)) / line))

    assert log_bend(0.0) == pytest.approx(0.1)
    assert log_bend(0.1) == pytest.approx(0.05)
    assert log_bend(0.3) == pytest.approx(0.01)
    assert log_bend(1e6) == pytest.approx(0.0, abs=1e-12)


def test_a_call_without_a_curve_is_on_the_line_and_one_beside_it_is_not() -> None:
    work = {
        "call": np.array([B, B]), "samples": np.array([[8], [32]]),
        CURVE: np.array([[np.nan, 1.1], [np.nan, 2.0]]), CURVE_ERROR: np.array([np.nan, 0.0]),
    }  # fmt: skip
    np.testing.assert_allclose(evaluate(ENTRY, work), [[10.0, 11.0], [34.0, 36.0]])


def test_a_fit_that_gives_no_time_has_no_curve() -> None:
    nothing = relative_curve(ANYWHERE, np.zeros(ANYWHERE.size), KNOTS, np.zeros(KNOTS.size))
    assert np.isnan(nothing).all()


@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3), st.lists(st.floats(1e-3, 1e3), min_size=10, max_size=10))
def test_times_lie_between_the_line_and_the_curve(measured: list[float], fitted: list[float]) -> None:
    line = line_times_s(ANYWHERE, KNOTS, np.array(measured))
    whole = followed(np.array(measured), np.array(fitted), error=0.0)
    some = followed(np.array(measured), np.array(fitted), error=0.3)
    assert (some >= np.minimum(line, whole) * (1 - 1e-9)).all()
    assert (some <= np.maximum(line, whole) * (1 + 1e-9)).all()
    np.testing.assert_allclose(some[np.isin(ANYWHERE, KNOTS)], measured)
