import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.arrays import FloatArray
from planner.errors import UnknownNameError
from planner.fitting.estimators import ESTIMATORS, HUBER, robust_least_squares, solve

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


def linear(seed: int = 8, rows: int = 30) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return A, y, weights and prior deviations of residuals A·φ - y that are all below HUBER at the solution."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(rows, 3))
    target = matrix @ [0.5, -1.0, 0.2] + rng.normal(0, 0.1, rows)
    return matrix, target, rng.uniform(0, 2, rows), np.array([0.3, 2.0, 1.0])


def solved(
    matrix: FloatArray, target: FloatArray, weights: FloatArray, deviations: FloatArray
) -> tuple[FloatArray, FloatArray]:
    return robust_least_squares(
        lambda x: matrix @ x - target, lambda _: matrix, np.zeros(3), deviations, weights, tolerance=1e-12
    )


def test_linear_residuals_make_ridge_regression_with_its_covariance() -> None:
    matrix, target, weights, deviations = linear()
    precision = matrix.T @ (weights[:, None] * matrix) + np.diag(deviations**-2)
    found, covariance = solved(matrix, target, weights, deviations)
    np.testing.assert_allclose(found, np.linalg.solve(precision, matrix.T @ (weights * target)), rtol=1e-6)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-9)


def test_rows_without_weight_and_no_rows_leave_the_prior() -> None:
    matrix, target, weights, deviations = linear()
    for rows, given_weights in ((slice(None), 0 * weights), (slice(0, 0), weights[:0])):
        found, covariance = solved(matrix[rows], target[rows], given_weights, deviations)
        np.testing.assert_allclose(found, 0, atol=1e-9)
        np.testing.assert_allclose(covariance, np.diag(deviations**2), rtol=1e-12)


@given(st.floats(5, 1e6))
@settings(max_examples=20)
def test_an_outlier_pulls_no_harder_the_further_it_lies(far: float) -> None:
    """Stationarity: JᵀW·ψ(r) + φ/d² = 0 with Huber's ψ, so a far row adds weight x HUBER whatever its size."""
    matrix, target, weights, deviations = linear()
    target[0] += np.sign(target[0]) * far
    weights[0] = 1.0
    found, _ = solved(matrix, target, weights, deviations)
    pull = np.clip(matrix @ found - target, -HUBER, HUBER)
    np.testing.assert_allclose(matrix.T @ (weights * pull), -found / deviations**2, atol=1e-4)
    further = target.copy()
    further[0] += np.sign(target[0]) * 1e6
    np.testing.assert_allclose(solved(matrix, further, weights, deviations)[0], found, atol=1e-4)


def test_an_outlier_counts_less_in_the_covariance() -> None:
    matrix, target, weights, deviations = linear()
    weights[0] = 1.0
    far = target.copy()
    far[0] += 1e5
    without = solved(matrix[1:], target[1:], weights[1:], deviations)[1]
    inside = np.trace(solved(matrix, target, weights, deviations)[1])
    assert inside < np.trace(solved(matrix, far, weights, deviations)[1]) < np.trace(without) * (1 + 1e-12)


def test_the_loss_is_least_at_what_is_found() -> None:
    """Of curved residuals: no small step any way makes Σ w·huber(r) + Σ (φ/d)² smaller."""
    matrix, target, weights, deviations = linear()

    def residuals(x: FloatArray) -> FloatArray:
        return np.exp(matrix @ x / 3) * 3 - target - 3

    def loss(x: FloatArray) -> float:
        size = np.abs(residuals(x))
        huber = np.where(size > HUBER, 2 * HUBER * size - HUBER**2, size**2)
        return float(np.sum(weights * huber) + np.sum((x / deviations) ** 2))

    target[:4] += 20
    found, _ = robust_least_squares(
        residuals, lambda x: np.exp(matrix @ x / 3)[:, None] * matrix, np.zeros(3), deviations, weights, tolerance=1e-12
    )
    for step in np.concatenate([np.eye(3), -np.eye(3)]) * 1e-3:
        assert loss(found + step) > loss(found)
