import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.features import Work
from planner.costs.kernels import FLOP_BEYOND, grid_name, hat_weights
from planner.costs.terms import evaluate, extrapolates
from planner.domain.calibration import Entry
from planner.errors import ParameterError

AXES = {"m": (8.0, 64.0, 512.0), "n": (1.0, 16.0), "k": (32.0, 128.0)}
RNG = np.random.default_rng(5)
TIMES = {point: float(RNG.uniform(1e-5, 1e-2)) for point in itertools.product(*AXES.values())}
GRID = Entry(
    "kernels", "gemm", "", "fp32", "", "gemm.interpolation", AXES,
    {grid_name(*point): math.log(value) for point, value in TIMES.items()} | {FLOP_BEYOND: 1.0},
    ranges={FLOP_BEYOND: (0.0, 0.0)},
)  # fmt: skip


def product(m: float, n: float, k: float, batch: int = 1) -> dict[str, float]:
    return {"m": m, "n": n, "k": k, "batch": batch, "itemsize": 4}


@pytest.mark.parametrize("point", list(TIMES))
def test_passes_through_every_measured_point(point: tuple[float, float, float]) -> None:
    assert evaluate(GRID, product(*point)) == pytest.approx(TIMES[point])
    assert not extrapolates(GRID, product(*point))


def test_between_two_points_of_one_axis_it_is_their_weighted_mean() -> None:
    # 22.6 = sqrt(8 x 64): half way in log m, so the geometric mean
    expected = math.sqrt(TIMES[8.0, 1.0, 32.0] * TIMES[64.0, 1.0, 32.0])
    assert evaluate(GRID, product(math.sqrt(8 * 64), 1, 32)) == pytest.approx(expected)


@given(st.floats(8, 512), st.floats(1, 16), st.floats(32, 128))
def test_stays_between_the_corners_of_its_cell(m: float, n: float, k: float) -> None:
    value = float(evaluate(GRID, product(m, n, k)))
    assert min(TIMES.values()) * (1 - 1e-9) <= value <= max(TIMES.values()) * (1 + 1e-9)


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.floats(1, 1e6), st.integers(1, 9))
def test_beyond_the_grid_keeps_the_rate_of_its_edge(m: float, n: float, k: float, batch: int) -> None:
    inside = (min(max(m, 8), 512), min(max(n, 1), 16), min(max(k, 32), 128))
    rate = math.prod(inside) / float(evaluate(GRID, product(*inside)))
    assert m * n * k * batch / float(evaluate(GRID, product(m, n, k, batch))) == pytest.approx(rate)


def test_series_of_one_layer_keeps_to_its_neighbours() -> None:
    """A table of one m and one k is a grid too: only the sub-batch n moves."""
    axes = {"m": (16.0,), "n": (2.0, 8.0), "k": (32.0,)}
    series = Entry(
        "kernels", "gemm", "", "fp32", "", "gemm.interpolation", axes,
        {"16x2x32": math.log(1.0), "16x8x32": math.log(3.0), FLOP_BEYOND: 1.0}, ranges={FLOP_BEYOND: (0.0, 0.0)},
    )  # fmt: skip
    work: Work = {"m": 16, "n": np.array([1, 2, 4, 8, 16]), "k": 32, "batch": 1, "itemsize": 4}
    np.testing.assert_allclose(evaluate(series, work), [0.5, 1, math.sqrt(3), 3, 6])
    assert extrapolates(series, work).tolist() == [True, False, False, False, True]


def test_beyond_the_grid_is_flagged() -> None:
    work: Work = {"m": np.array([8, 4, 1024]), "n": 1, "k": 32, "batch": 1, "itemsize": 4}
    assert extrapolates(GRID, work).tolist() == [False, True, True]


@given(st.floats(-10, 10), st.lists(st.integers(-5, 5), min_size=1, max_size=5, unique=True))
def test_weights_sum_to_one_and_reproduce_a_line(x: float, knots: list[int]) -> None:
    places = np.array(sorted(knots), dtype=np.float64)
    weights = hat_weights(np.array([x]), places)
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0
    assert float(weights[0] @ places) == pytest.approx(float(np.clip(x, places[0], places[-1])), abs=1e-9)


def test_knots_must_increase() -> None:
    with pytest.raises(ParameterError, match=r"^knots must be increasing"):
        hat_weights(np.zeros(1), np.array([2.0, 1.0]))
