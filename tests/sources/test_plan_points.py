"""Runs of measured plan points correct the forward and backward passes of their network, and nothing else."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Configuration, Configurations
from planner.sources.plan_points import (
    COMMON_VARIANCE,
    NOISE_VARIANCE,
    PLAN_POINTS,
    REACH_DOUBLINGS,
    PlanPoint,
    as_setting,
    plan_point_factors,
    plan_points_of,
    points_of_entry,
    runs_in_words,
    weight_of_runs,
)
from planner.steps.predict import Evaluator

Make = Callable[..., Any]
FACTOR = 1.25


def points_entry(points: tuple[PlanPoint, ...], network: str = "small", precision: str = "fp32") -> Entry:
    settings = {network: as_setting(points)}
    return Entry("overheads", "pytorch", "", precision, PLAN_POINTS, "overheads", settings, {})


def with_points(calibration: Calibration, *entries: Entry) -> Calibration:
    return replace(calibration, entries=(*calibration.entries, *entries))


def configurations(*sub_batches: int, precision: str = "fp32") -> Configurations:
    return Configurations.of([Configuration(1, 1, size, precision=precision) for size in sub_batches])


def shared(one: int, other: int) -> float:
    """Return the covariance of the effects of two sub-batches."""
    return COMMON_VARIANCE + (1 - COMMON_VARIANCE) * math.exp(-abs(math.log2(one / other)) / REACH_DOUBLINGS)


def expected(logs: dict[int, tuple[float, int]], sub_batch: int) -> float:
    """Return the factor of a sub-batch by the inverse of two runs' covariances: log ratios and runs by sub-batch."""
    (one, (first, runs)), (other, (second, more)) = logs.items()
    at, behind, between = 1 + NOISE_VARIANCE / runs, 1 + NOISE_VARIANCE / more, shared(one, other)
    weights = behind * first - between * second, at * second - between * first
    effect = weights[0] * shared(sub_batch, one) + weights[1] * shared(sub_batch, other)
    return math.exp(effect / (at * behind - between**2))


def test_a_run_corrects_passes_of_its_plan_point_and_of_others_less(
    make_problem: Make, calibration: Calibration
) -> None:
    better = with_points(calibration, points_entry((PlanPoint(1, 5, FACTOR, 1), PlanPoint(2, 7, 9.0, 1))))
    asked = configurations(5, 7, 32)
    before, after = (Evaluator(make_problem(calibrations=(one,))).describe(asked) for one in (calibration, better))
    for plain, corrected in zip(before, after, strict=True):
        is_point = plain.configuration.sub_batch == 5
        multiple = FACTOR ** shared(5, plain.configuration.sub_batch)
        old, new = ({term.name: term.seconds for term in one.terms} for one in (plain, corrected))
        for name, seconds in old.items():
            factor = multiple if name in ("forward", "backward") else 1.0
            assert new[name] == pytest.approx(factor * seconds)
        (word,) = (one.message for one in corrected.warnings if one.code == "measured_run")
        of = "" if is_point else " of sub-batch 5"
        assert f"a measured run{of} was used, of calibration toy-kernels: " in word
        assert word.endswith(f"multiplied by {multiple:.4g}.")
        assert not [one for one in plain.warnings if one.code == "measured_run"]


def test_runs_of_a_network_support_each_other() -> None:
    """A network that is a fifth slower at every sub-batch: those that were not run are hardly faster for that."""
    ran = factors_of({n: (math.log(1.2), 1) for n in (2, 4, 8, 16, 32)}, [2, 4, 8, 16, 32, 1, 12, 64])
    assert all(1.2 ** (1 / 1.2) < factor < 1.2 for factor in ran[:5])
    assert ran[6] == pytest.approx(ran[2], rel=0.01)
    assert ran[5:] == pytest.approx([ran[0], ran[2], ran[4]], rel=0.04)
    far = factors_of({2: (math.log(1.2), 1)}, [4, 64, 2**20])
    assert 1.2 > far[0] > far[1] > far[2] > 1.2 ** (COMMON_VARIANCE / 1.2)


@pytest.mark.parametrize("logs", [{4: (0.3, 1), 8: (-0.1, 4)}, {64: (0.2, 2), 1: (0.1, 1)}])
def test_runs_that_differ_count_by_how_many_and_how_near_they_are(logs: dict[int, tuple[float, int]]) -> None:
    sub_batches = [1, 4, 5, 8, 64, 100]
    assert factors_of(logs, sub_batches) == pytest.approx([expected(logs, n) for n in sub_batches])


def factors_of(logs: dict[int, tuple[float, int]], sub_batches: list[int]) -> list[float]:
    points = {(1, n): PlanPoint(1, n, math.exp(mean * weight_of_runs(runs)), runs) for n, (mean, runs) in logs.items()}
    factors: list[float] = plan_point_factors(points, "backward", np.array(sub_batches)).tolist()
    return factors


@pytest.mark.parametrize(("name", "precision"), [("other", "fp32"), ("small", "fp16")])
def test_plan_points_of_other_networks_and_precisions_do_not_count(
    name: str, precision: str, make_problem: Make, calibration: Calibration
) -> None:
    better = with_points(calibration, points_entry((PlanPoint(1, 5, FACTOR, 1),), name, precision))
    before, after = (
        Evaluator(make_problem(calibrations=(one,))).evaluate(configurations(5)) for one in (calibration, better)
    )
    assert after.iteration_s.tolist() == before.iteration_s.tolist()


def test_the_first_calibration_that_holds_a_plan_point_serves_it(calibration: Calibration) -> None:
    first = with_points(calibration, points_entry((PlanPoint(1, 5, 1.1, 2),)))
    second = replace(
        with_points(calibration, points_entry((PlanPoint(1, 5, 1.2, 1), PlanPoint(1, 8, 0.9, 1)))), name="second"
    )
    found = plan_points_of((calibration, first, second), "small", "pytorch@2.1", "fp32")
    assert found == {(1, 5): PlanPoint(1, 5, 1.1, 2, "toy-kernels"), (1, 8): PlanPoint(1, 8, 0.9, 1, "second")}
    assert plan_points_of((first,), "small", "mxnet", "fp32") == {}
    assert plan_point_factors(found, "update", np.array([5, 6, 8])).tolist() == [1.0, 1.0, 1.0]
    for sub_batch in (5, 6):
        assert runs_in_words(found, sub_batch).startswith(
            "3 measured runs of sub-batches 5 and 8 were used, of calibration toy-kernels and second: "
        )
    alone = plan_points_of((first,), "small", "pytorch", "fp32")
    assert runs_in_words(alone, 5).startswith("2 measured runs were used, of calibration toy-kernels: ")
    assert runs_in_words(found, 5, tensor=2) == ""
    assert plan_point_factors(found, "forward", np.array([5, 8]), tensor=2).tolist() == [1.0, 1.0]


def test_plan_points_come_back_from_their_setting() -> None:
    points = (PlanPoint(1, 5, FACTOR, 3), PlanPoint(2, 64, 0.875, 1))
    assert points_of_entry(points_entry(points), "small") == points
    for values in ((1.0, 2.0), (1.0, 8.0, 0.0, 1.0), (1.0, 8.0, 1.1, 0.0), (1.0, 0.0, 1.1, 1.0)):
        broken = Entry("overheads", "pytorch", "", "fp32", PLAN_POINTS, "overheads", {"small": values}, {})
        assert points_of_entry(broken, "small") == points_of_entry(broken, "other") == ()
