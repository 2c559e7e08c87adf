from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.runs import GroupRanking, RankingSummary
from planner.scoring.errors import Outcomes, as_times, rank_groups, summarise_ranking

FEW = st.integers(1, 6).map(float)  # few different times: many ties
GROUP = st.lists(st.tuples(FEW, FEW, st.booleans(), st.booleans()), min_size=1, max_size=6)
DISTINCT = st.lists(st.integers(1, 10**6), min_size=2, max_size=12, unique=True)


def outcomes(
    predicted: Sequence[float],
    measured: Sequence[float],
    called: Sequence[float] | None = None,
    out: Sequence[float] | None = None,
) -> Outcomes:
    def flags(values: Sequence[float] | None) -> BoolArray:
        return np.array([False] * len(predicted) if values is None else values, dtype=np.bool_)

    return Outcomes(np.array(predicted, dtype=np.float64), np.array(measured, np.float64), flags(called), flags(out))


def one_group(*columns: Sequence[float]) -> GroupRanking:
    found = rank_groups(["g"] * len(columns[0]), outcomes(*columns))
    assert len(found) == 1
    return found[0]


def brute_force(rows: list[tuple[float, float, bool, bool]]) -> tuple[float, float, float, float]:
    """Return top1, regret, regret_best3 and chose_out_of_memory as means over every order that ties allow."""
    ran = [row for row in rows if not row[3]]
    best = min(row[1] for row in ran)

    def orders(some: list[tuple[float, float, bool, bool]]) -> list[tuple[tuple[float, float, bool, bool], ...]]:
        keys = [(row[2], row[0]) for row in some]
        return [
            tuple(some[i] for i in order)
            for order in itertools.permutations(range(len(some)))
            if all(keys[a] <= keys[b] for a, b in itertools.pairwise(order))
        ]

    firsts = [order[0] for order in orders(rows)]
    ran_orders = orders(ran)
    return (
        sum(not row[3] and row[1] == best for row in firsts) / len(firsts),
        sum(order[0][1] / best - 1 for order in ran_orders) / len(ran_orders),
        sum(min(row[1] for row in order[:3]) / best - 1 for order in ran_orders) / len(ran_orders),
        sum(row[3] for row in firsts) / len(firsts),
    )


@given(GROUP)
def test_choices_are_those_of_every_order_that_ties_allow(rows: list[tuple[float, float, bool, bool]]) -> None:
    found = rank_groups(["g"] * len(rows), outcomes(*zip(*rows, strict=True)))
    if sum(not row[3] for row in rows) < 2:
        assert found == ()
        return
    got = (found[0].top1, found[0].regret, found[0].regret_best3, found[0].chose_out_of_memory)
    assert got == pytest.approx(brute_force(rows), abs=1e-12)


def spearman_by_counting(predicted: Sequence[float], measured: Sequence[float]) -> float:
    def ranks(values: Sequence[float]) -> FloatArray:
        return np.array([sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values])

    return float(np.corrcoef(ranks(predicted), ranks(measured))[0, 1])


@given(st.lists(st.tuples(FEW, FEW), min_size=2, max_size=12))
def test_spearman_is_the_correlation_of_average_ranks(rows: list[tuple[float, float]]) -> None:
    predicted, measured = zip(*rows, strict=True)
    found = one_group(predicted, measured).spearman
    if len(set(measured)) == 1:
        assert found is None
    elif len(set(predicted)) == 1:
        assert found == 0
    else:
        assert found == pytest.approx(spearman_by_counting(predicted, measured), abs=1e-12)


def test_hand_count_without_ties() -> None:
    found = one_group([1.0, 2.0, 3.0, 4.0], [3.0, 2.5, 2.2, 2.0])
    assert (found.n, found.spearman, found.top1) == (4, -1.0, 0.0)
    assert found.regret == pytest.approx(0.5)
    assert found.regret_best3 == pytest.approx(0.1)


@given(DISTINCT)
def test_perfect_predictions_lose_nothing(times: list[int]) -> None:
    found = one_group(times, times)
    assert found.spearman == pytest.approx(1.0)
    assert (found.top1, found.regret, found.regret_best3) == (1.0, 0.0, 0.0)


@given(DISTINCT, st.floats(1e-3, 1e3), st.randoms(use_true_random=False))
def test_scale_and_order_of_rows_do_not_matter(times: list[int], factor: float, random: Random) -> None:
    measured = list(times)
    random.shuffle(measured)
    before = one_group(times, measured)
    order = list(range(len(times)))
    random.shuffle(order)
    after = one_group([factor * times[i] for i in order], [measured[i] for i in order])
    assert after.spearman == pytest.approx(before.spearman)
    assert (after.top1, after.regret, after.regret_best3) == (before.top1, before.regret, before.regret_best3)


def test_rounding_noise_is_a_tie() -> None:
    assert one_group([0.3, 0.1 + 0.2], [1.0, 2.0]).top1 == 0.5


def test_groups_of_one_and_rows_of_no_group_do_not_count() -> None:
    found = rank_groups(["b", "", "a", "a", "", "c", "c"], outcomes([1.0] * 6 + [np.nan], [1.0] * 7))
    assert [group.group for group in found] == ["a"]


def test_masked_rows_do_not_count() -> None:
    found = rank_groups(["a"] * 3, outcomes([1, 2, 3], [9, 2, 1]), np.array([False, True, True]))
    assert found == rank_groups(["a"] * 2, outcomes([2, 3], [2, 1]))


def test_plan_called_out_of_memory_is_tried_last() -> None:
    false_call = one_group([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [True, False, False], [False] * 3)
    assert (false_call.top1, false_call.regret, false_call.regret_best3) == (0.0, 1.0, 0.0)
    assert false_call.spearman == 1.0


def test_choice_that_ran_out_of_memory_is_counted_and_has_no_regret() -> None:
    missed = one_group([1.0, 2.0, 3.0], [math.nan, 2.0, 3.0], [False] * 3, [True, False, False])
    assert (missed.n, missed.chose_out_of_memory, missed.top1, missed.regret) == (2, 1.0, 0.0, 0.0)
    seen = one_group([1.0, 2.0, 3.0], [math.nan, 2.0, 3.0], [True, False, False], [True, False, False])
    assert (seen.chose_out_of_memory, seen.top1) == (0.0, 1.0)


def test_summary_has_one_weight_a_group_and_names_the_worst() -> None:
    groups = [GroupRanking("a", 9, 0.5, 1.0, 0.0, 0.0, 0.0), GroupRanking("b", 2, None, 0.0, 0.4, 0.2, 1.0)]
    assert summarise_ranking(groups) == RankingSummary(2, 0.5, 0.5, 0.2, 0.4, 0.1, 0.2, 0.5)
    assert summarise_ranking([]) == RankingSummary(0)


def test_rates_become_times_and_other_metrics_have_none() -> None:
    metrics = ["iteration_s", "samples_per_s", "epoch_s", "update_s", "staleness_mean", "samples_per_s"]
    found = as_times(np.array([2.0, 4.0, 3.0, 5.0, 1.0, 0.0]), metrics)
    np.testing.assert_array_equal(found, [2.0, 0.25, 3.0, 5.0, np.nan, np.nan])
