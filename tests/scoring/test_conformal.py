from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.arrays import FloatArray
from planner.errors import ParameterError
from planner.scoring.refit import conformal_score, log_scores, scores_of

SCORES = st.lists(st.floats(0, 3), min_size=10, max_size=40)


def names(sizes: list[int]) -> list[str]:
    return [f"g{g:03}" for g, size in enumerate(sizes) for _ in range(size)]


def test_hand_count_of_ten_groups_of_one_row() -> None:
    """Of ten, nine elevenths are 0.82 and ten elevenths 0.91: only the largest reaches 0.9."""
    found = conformal_score(np.arange(1.0, 11.0), names([1] * 10))
    assert (found.half_width, found.groups, found.rows, found.reason) == (10.0, 10, 10, "")
    assert conformal_score(np.arange(1.0, 20.0), names([1] * 19)).half_width == 18.0  # 18/20 is 0.9 exactly


@given(SCORES)
def test_groups_of_one_row_have_the_order_statistic_of_split_conformal(scores: list[float]) -> None:
    k = len(scores)
    rank = math.ceil((k + 1) * 0.9 - 1e-9)
    assert conformal_score(np.array(scores), names([1] * k)).half_width == sorted(scores)[rank - 1]


@given(st.lists(st.lists(st.floats(0, 3), min_size=1, max_size=5), min_size=10, max_size=20))
def test_score_is_the_least_that_reaches_the_level(groups: list[list[float]]) -> None:
    """Brute force over every candidate."""
    flat = np.array([s for group in groups for s in group])
    label = names([len(group) for group in groups])

    def weight(q: float) -> float:
        return sum(sum(s <= q for s in group) / len(group) for group in groups) / (len(groups) + 1)

    found = conformal_score(flat, label).half_width
    assert found is not None
    assert found == min(q for q in flat.tolist() if weight(q) >= 0.9 - 1e-9)


def test_repeating_the_rows_of_a_group_changes_nothing() -> None:
    scores = np.random.default_rng(1).random(60)
    label = names([3] * 20)
    repeated = np.concatenate([scores, np.tile(scores[3:6], 50)])
    assert conformal_score(repeated, label + label[3:6] * 50).half_width == conformal_score(scores, label).half_width


def test_too_few_groups_are_refused_with_the_reason() -> None:
    found = conformal_score(np.ones(900), names([100] * 9))
    assert (found.half_width, found.groups, found.rows) == (None, 9, 900)
    assert found.reason == "groups of measured runs must be at least 10 for an interval of 90%, got 9"
    assert "at least 99 " in conformal_score(np.ones(50), names([1] * 50), level=0.99).reason
    assert conformal_score(np.full(20, np.nan), names([1] * 20)).groups == 0
    assert conformal_score(np.empty(0), []).half_width is None


@pytest.mark.parametrize("level", [1.0, 0.0])
def test_a_level_outside_its_range_is_named(level: float) -> None:
    with pytest.raises(ParameterError, match=r"^level must be above 0 and below 1"):
        conformal_score(np.ones(1), ["a"], level)


def grouped_residuals(rng: np.random.Generator, count: int) -> tuple[FloatArray, list[int]]:
    """Return scores of groups that differ: each misses by an amount of its own, and the easy ones have many rows."""
    sizes, parts = [], []
    for _ in range(count):
        easy = rng.random() < 0.5
        sizes.append(40 if easy else 4)
        offset = rng.normal(0, 0.02 if easy else 0.2)
        parts.append(np.abs(offset + rng.normal(0, 0.01, sizes[-1])))
    return np.concatenate(parts), sizes


@pytest.fixture(scope="module")
def coverage() -> dict[str, float]:
    """Return the mean share of rows of a new group that scores of groups cover, and scores of rows alone."""
    rng = np.random.default_rng(5)
    inside: dict[str, list[float]] = {"row": [], "group": []}
    for _ in range(400):
        scores, sizes = grouped_residuals(rng, 20)
        found = {
            "row": conformal_score(scores, [str(i) for i in range(scores.size)]),
            "group": conformal_score(scores, names(sizes)),
        }
        new, new_sizes = grouped_residuals(rng, 20)
        groups = np.split(new, np.cumsum(new_sizes)[:-1])
        for unit, score in found.items():
            assert score.half_width is not None
            inside[unit].append(float(np.mean([np.mean(group <= score.half_width) for group in groups])))
    return {unit: float(np.mean(shares)) for unit, shares in inside.items()}


def test_group_wise_scores_cover_a_new_group_at_their_level(coverage: dict[str, float]) -> None:
    assert 0.895 <= coverage["group"] <= 0.95


def test_row_wise_scores_do_not_where_groups_differ(coverage: dict[str, float]) -> None:
    assert coverage["row"] < 0.8


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_interval_of_its_own_score_ends_at_the_measured_value(p: float, v: float) -> None:
    predicted = np.array([p])
    end = predicted * np.exp((1 if v >= p else -1) * log_scores(predicted, np.array([v])))
    assert end[0] == pytest.approx(v, rel=1e-9)


def test_rows_without_both_figures_have_no_score() -> None:
    found = log_scores(np.array([1.0, np.nan, 1.0, 0.0]), np.array([np.e, 1.0, 0.0, 1.0]))
    np.testing.assert_allclose(found, [1.0, np.nan, np.nan, np.nan])


def test_each_quantity_has_its_own_score() -> None:
    columns = {"epoch_s": np.full(12, 0.1), "iteration_s": np.full(12, 0.5), "update_s": np.full(2, 9.0)}
    found = {name: conformal_score(one, [str(i) for i in range(one.size)]) for name, one in columns.items()}
    by_row = scores_of(["iteration_s", "epoch_s", "update_s", "unknown"], found)
    np.testing.assert_array_equal(by_row, [0.5, 0.1, np.nan, np.nan])
