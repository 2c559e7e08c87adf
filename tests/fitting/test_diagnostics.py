from collections.abc import Callable

import numpy as np
import pytest

from planner.domain.arrays import BoolArray, FloatArray
from planner.fitting.estimators import (
    MANY_ROWS,
    MOST_REFITS,
    REFITS_OF_MANY,
    condition_number,
    covariance,
    errors_of,
    folds,
    held_out_times,
    identifiable,
    solve,
)

RNG = np.random.default_rng(11)
FEATURES = np.column_stack([np.ones(60), 10 ** RNG.uniform(3, 6, 60)])
THETA = np.array([1e-3, 1e-7])


def draws(count: int) -> FloatArray:
    noise = np.random.default_rng(12).normal(1, 0.03, (count, 60))
    return np.array([solve(FEATURES, FEATURES @ THETA * row) for row in noise])


def test_zero_and_repeated_columns_are_not_identifiable() -> None:
    repeated = np.column_stack([FEATURES, np.zeros(60), 3 * FEATURES[:, 0] + 2 * FEATURES[:, 1], FEATURES[:, 1] ** 0.5])
    assert identifiable(repeated, FEATURES @ THETA, "relative-nnls").tolist() == [True, True, False, False, True]


def test_no_more_coefficients_than_rows() -> None:
    assert identifiable(RNG.uniform(1, 2, (2, 3)), np.ones(2), "relative-nnls").tolist() == [True, True, False]


def test_condition_number_does_not_see_units() -> None:
    times = FEATURES @ THETA
    expected = condition_number(FEATURES, times, "relative-nnls")
    assert condition_number(FEATURES * [1, 1e9], times, "relative-nnls") == pytest.approx(expected)
    assert 1 <= expected < 10


def test_standard_errors_are_the_spread_of_repeated_fits() -> None:
    times = FEATURES @ THETA * np.random.default_rng(13).normal(1, 0.03, 60)
    found = covariance(FEATURES, times, solve(FEATURES, times), "relative-nnls")
    assert found is not None
    matrix, variance = found
    assert variance**0.5 == pytest.approx(0.03, rel=0.2)
    np.testing.assert_allclose(np.sqrt(np.diag(matrix)), draws(400).std(axis=0), rtol=0.25)


def test_coefficient_at_its_bound_has_no_spread() -> None:
    design = np.column_stack([FEATURES, -FEATURES[:, 1]])
    found = covariance(design, FEATURES @ THETA, np.array([*THETA, 0.0]), "relative-nnls")
    assert found is not None
    assert not found[0][2].any()


@pytest.mark.parametrize(("rows", "known"), [(1, False), (2, False), (3, True)])
def test_as_many_coefficients_as_rows_leave_their_errors_undetermined(rows: int, *, known: bool) -> None:
    design, times = FEATURES[:rows], FEATURES[:rows] @ THETA * [1, 1.1, 0.9][:rows]
    found = covariance(design, times, solve(design, times), "relative-nnls")
    assert (found is not None) == known


def test_a_coefficient_at_its_bound_costs_no_row() -> None:
    design = np.column_stack([FEATURES[:2], -FEATURES[:2, 0]])
    assert covariance(design, np.ones(2), np.array([1.0, 0.0, 0.0]), "relative-nnls") is not None


def test_groups_are_left_out_whole_and_rows_otherwise() -> None:
    assert folds(3, np.array([4, 4, 7]))[1] == "group"
    assert [folds(3, np.array(codes), "shape")[1] for codes in ([4, 4, 7], [4, 4, 4])] == ["shape", "row"]
    assert folds(3, np.array([4, 4, 4]))[0].tolist() == [0, 1, 2]
    fold, by = folds(1000, None)
    assert (by, np.unique(fold).size) == ("row", MOST_REFITS)
    assert np.unique(folds(MANY_ROWS, None)[0]).size == MOST_REFITS
    assert np.bincount(folds(16 * MANY_ROWS, np.arange(16 * MANY_ROWS))[0]).tolist() == [MANY_ROWS] * REFITS_OF_MANY
    fold, by = folds(1000, np.arange(1000) // 3)
    assert (by, np.unique(fold).size) == ("group", MOST_REFITS)
    assert all(np.unique(fold[at : at + 3]).size == 1 for at in range(0, 999, 3))  # a group stays whole


def test_held_out_errors_of_a_mean() -> None:
    times = np.array([1.0, 1.0, 4.0])

    def refit(rows: BoolArray) -> Callable[[BoolArray], FloatArray]:
        mean = times[rows].mean()
        return lambda out: np.full(int(out.sum()), float(mean))

    result = errors_of(*held_out_times(refit, 3, None), times)
    assert result.worst == pytest.approx(1.5)
    assert result.worst_row == 0  # 2.5 for 1
    of_ones, by = held_out_times(lambda _rows: lambda out: np.full(int(out.sum()), 1.0), 3, None)
    assert errors_of(of_ones, by, times).worst_row == 2
    assert result.mean == pytest.approx((1.5 + 1.5 + 0.75) / 3)
