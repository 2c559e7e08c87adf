"""Timed passes correct the forward and backward passes of their network, and nothing else."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.domain.calibration import OF_PASSES, Calibration, MeasuredStep
from planner.domain.configuration import Configuration, Configurations
from planner.errors import ParameterError
from planner.sources.overheads import (
    COMMON_VARIANCE,
    NOISE_VARIANCE,
    REACH_DOUBLINGS,
    MeasuredSteps,
    measured_steps_of,
)
from planner.steps.predict import Evaluator
from planner.steps.warnings import measured_warning

Make = Callable[..., Any]
FACTOR = 1.25
RUN = FACTOR ** (1 + NOISE_VARIANCE)
"""What one run takes over what was predicted, whose own plan is multiplied by FACTOR."""


def passes(sub_batch: int, factor: float, runs: int = 1, *, precision: str = "fp32", **changes: Any) -> MeasuredStep:
    plan = Configuration(1, 1, sub_batch, precision=precision)
    return replace(MeasuredStep("small", "", "pytorch", plan, factor, runs, OF_PASSES), **changes)


def with_passes(calibration: Calibration, *steps: MeasuredStep, name: str = "toy-kernels") -> Calibration:
    return replace(calibration, measured_steps=steps, name=name)


def passes_of(*calibrations: Calibration, framework: str = "pytorch") -> MeasuredSteps:
    steps = measured_steps_of(calibrations, "small", "toy", framework, "fp32")
    assert steps is not None
    return steps


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


def test_a_run_corrects_passes_of_its_sub_batch_and_of_others_less(
    make_problem: Make, calibration: Calibration
) -> None:
    better = with_passes(calibration, passes(5, RUN))
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
    steps = [passes(n, math.exp(mean), runs) for n, (mean, runs) in logs.items()]
    factors: list[float] = MeasuredSteps(steps, ()).factors(configurations(*sub_batches)).tolist()
    return factors


@pytest.mark.parametrize(("name", "precision"), [("other", "fp32"), ("small", "fp16")])
def test_passes_of_other_networks_and_precisions_do_not_count(
    name: str, precision: str, make_problem: Make, calibration: Calibration
) -> None:
    better = with_passes(calibration, passes(5, RUN, precision=precision, network=name))
    before, after = (
        Evaluator(make_problem(calibrations=(one,))).evaluate(configurations(5)) for one in (calibration, better)
    )
    assert after.iteration_s.tolist() == before.iteration_s.tolist()


def test_the_first_calibration_that_holds_a_sub_batch_serves_it(calibration: Calibration) -> None:
    first = with_passes(calibration, passes(5, 1.1, 2))
    second = with_passes(calibration, passes(5, 1.2), passes(8, 0.9), name="second")
    both = passes_of(calibration, first, second, framework="pytorch@2.1")
    assert [(one.configuration.sub_batch, one.factor, one.runs) for one in both.steps] == [(5, 1.1, 2), (8, 0.9, 1)]
    assert measured_steps_of((first,), "small", "toy", "mxnet", "fp32") is None
    for sub_batch in (5, 6):
        word = measured_warning(both, "small", Configuration(1, 1, sub_batch)).message
        of = "3 measured runs of sub-batches 5 and 8 were used, of calibration toy-kernels and second: "
        assert word.startswith(f"For sub-batch {sub_batch} in fp32 {of}")
    alone = measured_warning(passes_of(first), "small", Configuration(1, 1, 5)).message
    assert "fp32 2 measured runs were used, of calibration toy-kernels: forward and backward passes are" in alone


def test_whole_steps_of_the_cluster_go_before_passes(calibration: Calibration) -> None:
    step = MeasuredStep("small", "toy", "pytorch", Configuration(1, 2, 5), 0.8, 1)
    both = with_passes(calibration, passes(5, 1.1), step)
    assert passes_of(both).steps == (step,)
    elsewhere = measured_steps_of((both,), "small", "another", "pytorch", "fp32")
    assert elsewhere is not None
    assert elsewhere.of == OF_PASSES


def test_passes_are_told_apart_by_sub_batch_and_tensor_degree_alone() -> None:
    plan = Configuration(2, 8, 4, tensor_parallel=2, pipeline_parallel=2, accumulation_steps=3, recompute="full")
    one = MeasuredStep("small", "", "pytorch", plan, 1.1, 1, OF_PASSES)
    assert one.configuration == Configuration(1, 2, 4, tensor_parallel=2)
    steps = MeasuredSteps([one], ())
    assert (steps.runs_of(plan), steps.runs_of(replace(plan, sub_batch=8))) == (1, 0)
    assert steps.runs_of(replace(plan, tensor_parallel=1)) == 0


@pytest.mark.parametrize(("cluster", "of"), [("toy", "passes"), ("", "step")])
def test_a_step_is_of_a_cluster_and_passes_are_of_none(cluster: str, of: str) -> None:
    with pytest.raises(ParameterError, match=r"^cluster must be given of a step, and left out of passes, got "):
        MeasuredStep("small", cluster, "pytorch", Configuration(1, 1, 4), 1.1, 1, of)
