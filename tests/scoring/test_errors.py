from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.runs import ErrorSummary
from planner.scoring.errors import Figures, relative_errors, summaries_by, summarise

POSITIVE = st.floats(1e-6, 1e6)
ROWS = st.lists(st.tuples(st.sampled_from("abc"), POSITIVE, POSITIVE), min_size=1, max_size=40)


def figures_of(rows: list[tuple[str, float, float]]) -> Figures:
    return Figures(np.array([row[1] for row in rows]), np.array([row[2] for row in rows]))


def same(one: ErrorSummary, other: ErrorSummary) -> None:
    assert one.n == other.n
    for name in ("mape", "median_ape", "p90_ape", "bias"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9, abs=1e-12)


def test_hand_count() -> None:
    figures = Figures(
        predicted=np.array([1.1, 1.8, 3.0]),
        measured=np.array([1.0, 2.0, 2.0]),
        low=np.array([1.0, 1.0, np.nan]),
        high=np.array([1.2, 1.9, np.nan]),
    )
    found = summarise(figures)
    assert found.n == 3
    assert found.mape == pytest.approx(0.7 / 3)
    assert found.median_ape == pytest.approx(0.1)
    assert found.p90_ape == pytest.approx(0.1 + 0.8 * 0.4)
    assert found.bias == pytest.approx(0.5 / 3)
    assert found.coverage_90 == 0.5  # of the two rows with an interval; an end belongs to it


@pytest.mark.parametrize(
    ("predicted", "measured"), [([], []), ([np.nan], [1.0]), ([1.0], [np.nan]), ([1.0], [0.0]), ([np.inf], [1.0])]
)
def test_no_row_has_no_figures(predicted: list[float], measured: list[float]) -> None:
    figures = Figures(np.array(predicted, dtype=np.float64), np.array(measured, dtype=np.float64))
    assert summarise(figures) == ErrorSummary(0, None, None, None, None, None)
    assert summaries_by(["x"] * len(predicted), figures) == {}


@given(ROWS)
def test_figures_are_numpys_by_group(rows: list[tuple[str, float, float]]) -> None:
    figures = figures_of(rows)
    found = summaries_by([row[0] for row in rows], figures)
    assert list(found) == sorted({row[0] for row in rows})
    for name, summary in found.items():
        e = np.array([p / v - 1 for group, p, v in rows if group == name])
        ape = np.abs(e)
        expected = (ape.mean(), np.median(ape), np.quantile(ape, 0.9), e.mean())
        same(summary, ErrorSummary(e.size, *(float(figure) for figure in expected)))


@given(ROWS, st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(rows: list[tuple[str, float, float]], random: Random) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    one, other = (summaries_by([row[0] for row in some], figures_of(some)) for some in (rows, shuffled))
    assert list(one) == list(other)
    for name, summary in one.items():
        same(summary, other[name])


@given(ROWS)
def test_perfect_predictions_have_no_error(rows: list[tuple[str, float, float]]) -> None:
    v = figures_of(rows).measured
    assert summarise(Figures(v, v, v, v)) == ErrorSummary(len(rows), 0.0, 0.0, 0.0, 0.0, 1.0)


def test_masked_rows_do_not_count() -> None:
    rows = [("a", 1.0, 1.0), ("b", 9.0, 1.0), ("a", 3.0, 2.0)]
    mask = np.array([True, False, True])
    same(summarise(figures_of(rows), mask), summarise(figures_of([rows[0], rows[2]])))
    assert list(summaries_by(["a", "b", "a"], figures_of(rows), mask)) == ["a"]


def test_relative_error_is_positive_where_predictions_are_too_long() -> None:
    np.testing.assert_allclose(relative_errors(np.array([1.2, 0.8, np.nan]), np.ones(3)), [0.2, -0.2, np.nan])
