import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.arrays import FloatArray
from planner.errors import UnknownNameError
from planner.fitting.estimators import ESTIMATORS, solve

THETA = np.array([1e-5, 1e-10, 0.0])


def design(seed: int, rows: int = 40) -> FloatArray:
    rng = np.random.default_rng(seed)
    return np.column_stack([np.ones(rows), 10 ** rng.uniform(3, 9, rows), 10 ** rng.uniform(2, 6, rows)])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_known_coefficients_come_back(estimator: str, seed: int) -> None:
    features = design(seed)
    np.testing.assert_allclose(solve(features, features @ THETA, estimator), THETA, rtol=1e-6, atol=1e-14)


def noisy() -> tuple[FloatArray, FloatArray]:
    features = design(3)[:, :2]
    times = features @ THETA[:2] * np.random.default_rng(4).lognormal(0, 0.1, features.shape[0])
    return features, times


def test_relative_fit_solves_its_normal_equations() -> None:
    features, times = noisy()
    rows = features / times[:, None]
    np.testing.assert_allclose(solve(features, times), np.linalg.solve(rows.T @ rows, rows.sum(axis=0)), rtol=1e-8)


def test_least_squares_solves_its_normal_equations() -> None:
    features, times = noisy()
    closed = np.linalg.solve(features.T @ features, features.T @ times)
    np.testing.assert_allclose(solve(features, times, "least-squares"), closed, rtol=1e-6)


def test_straight_line_of_the_sprint_work() -> None:
    """Weighted means and sums give slope and intercept of a line with weights 1/t^2."""
    features, times = noisy()
    w, x = times**-2, features[:, 1]
    mean_x, mean_t = np.average(x, weights=w), np.average(times, weights=w)
    slope = np.sum(w * (x - mean_x) * (times - mean_t)) / np.sum(w * (x - mean_x) ** 2)
    np.testing.assert_allclose(solve(features, times), [mean_t - slope * mean_x, slope], rtol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_weight_zero_is_no_row_and_weight_two_is_a_row_twice(estimator: str) -> None:
    features, times = noisy()
    weights = np.ones(times.size)
    weights[:5], weights[5:9] = 0, 2
    repeated = np.concatenate([np.arange(5, times.size), np.arange(5, 9)])
    expected = solve(features[repeated], times[repeated], estimator)
    np.testing.assert_allclose(solve(features, times, estimator, weights), expected, rtol=1e-7)
    np.testing.assert_allclose(solve(features, times, estimator, 7 * weights), expected, rtol=1e-7)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
@settings(max_examples=20)
def test_units_do_not_matter(of_feature: float, of_time: float) -> None:
    features, times = noisy()
    scaled = solve(features * [1, of_feature], times * of_time)
    np.testing.assert_allclose(scaled, solve(features, times) * of_time / [1, of_feature], rtol=1e-6)


def test_relative_fit_is_never_negative() -> None:
    features, times = noisy()
    against = np.column_stack([features, -features[:, 1:]])
    assert solve(against, times)[2] == 0


def test_unknown_estimator_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'relative-nnls'"):
        solve(*noisy(), "relative-nls")
