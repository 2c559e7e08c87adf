"""Measured steps correct the steps of plans near them, degree by degree, and say how much is left to be unsure of."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.domain.axes import AXES
from planner.domain.calibration import Calibration, MeasuredStep
from planner.domain.configuration import Configuration, Configurations
from planner.sources.overheads import (
    COMMON_VARIANCE,
    NOISE_VARIANCE,
    REACH_DOUBLINGS,
    MeasuredSteps,
    measured_steps_of,
)

WHOLE = Configuration(nodes=2, gpus_per_node=8, sub_batch=4, precision="bf16")
TENSOR = replace(WHOLE, sub_batch=8, tensor_parallel=2)
STAGES = replace(WHOLE, sub_batch=8, pipeline_parallel=2, accumulation_steps=4, schedule="gpipe", recompute="full")


def step(plan: Configuration, factor: float, runs: int = 1, **changes: Any) -> MeasuredStep:
    return replace(MeasuredStep("gpt2", "dgx-a100", "megatron-lm", plan, factor, runs), **changes)


def calibration(*steps: MeasuredStep, name: str = "mine") -> Calibration:
    return Calibration(name, "a100-sxm4-80gb", (), measured_steps=steps)


def steps_of(*calibrations: Calibration, framework: str = "megatron-lm", precision: str = "bf16") -> MeasuredSteps:
    steps = measured_steps_of(calibrations, "gpt2", "dgx-a100", framework, precision)
    assert steps is not None
    return steps


def covariance(one: Configuration, other: Configuration) -> float:
    """Return the covariance of two plans by hand: an axis at a time."""
    far = 0.0
    for axis in AXES:
        a, b = getattr(one, axis.name), getattr(other, axis.name)
        far += float(a != b) if axis.words or axis.name == "sharding" else abs(math.log2(a / b))
    return COMMON_VARIANCE + (1 - COMMON_VARIANCE) * math.exp(-far / REACH_DOUBLINGS)


@pytest.mark.parametrize("runs", [1, 3])
def test_runs_of_a_plan_move_it_by_so_many_of_so_many_and_a_fifth(runs: int) -> None:
    factors = steps_of(calibration(step(TENSOR, 0.9, runs))).factors(Configurations.of([TENSOR]))
    assert factors == pytest.approx([0.9 ** (runs / (runs + NOISE_VARIANCE))])


def test_other_plans_follow_by_how_far_their_axes_are() -> None:
    measured = [step(WHOLE, 1.05, 2), step(TENSOR, 0.9)]
    plans = [WHOLE, TENSOR, STAGES, replace(TENSOR, sequence_parallel="on"), replace(TENSOR, sharding=1)]
    noise = np.diag([NOISE_VARIANCE / one.runs for one in measured])
    between = np.array([[covariance(a.configuration, b.configuration) for b in measured] for a in measured])
    weights = np.linalg.solve(between + noise, np.log([one.factor for one in measured]))
    near = np.array([[covariance(plan, one.configuration) for one in measured] for plan in plans])
    assert steps_of(calibration(*measured)).factors(Configurations.of(plans)) == pytest.approx(np.exp(near @ weights))


def test_a_product_of_axes_has_the_factors_of_its_rows() -> None:
    values = {"nodes": [1, 2], "gpus_per_node": [8], "sub_batch": [4, 8], "precision": [0], "tensor_parallel": [1, 2]}
    product = Configurations.product({name: np.array(one) for name, one in values.items()}, ("bf16",))
    steps = steps_of(calibration(step(WHOLE, 1.05, 2), step(TENSOR, 0.9)))
    assert steps.factors(product).ravel() == pytest.approx(steps.factors(product.rows))


def test_runs_narrow_what_is_unsure_of_their_plans_most() -> None:
    steps = steps_of(calibration(step(WHOLE, 1.0), step(TENSOR, 1.0)))
    own, other = steps.remaining(TENSOR, TENSOR), steps.remaining(STAGES, STAGES)
    assert 0 < own < NOISE_VARIANCE / (1 + NOISE_VARIANCE) < other < 1
    assert steps.remaining(WHOLE, TENSOR) < steps.remaining(WHOLE, STAGES) < 1
    more = steps_of(calibration(step(WHOLE, 1.0, 9), step(TENSOR, 1.0, 9)))
    assert more.remaining(WHOLE, TENSOR) < steps.remaining(WHOLE, TENSOR)


def test_two_words_for_one_schedule_are_one_plan() -> None:
    chunks = replace(STAGES, virtual_stages=2, schedule="1f1b")
    steps = steps_of(calibration(step(replace(chunks, schedule="interleaved"), 0.8)))
    assert steps.factors(Configurations.of([chunks])) == pytest.approx([0.8 ** (1 / (1 + NOISE_VARIANCE))])
    assert (steps.runs_of(chunks), steps.runs_of(STAGES)) == (1, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"network": "gpt2-xl"}, {"cluster": "selene"}, {"framework": "fsdp"},
        {"configuration": replace(TENSOR, precision="fp16")},
    ],
)  # fmt: skip
def test_runs_of_another_network_cluster_framework_or_precision_say_nothing(other: dict[str, Any]) -> None:
    one = calibration(step(TENSOR, 0.5, **other))
    assert measured_steps_of((one,), "gpt2", "dgx-a100", "megatron-lm", "bf16") is None


def test_the_first_calibration_that_holds_a_plan_serves_it_and_a_version_takes_runs_of_none() -> None:
    first, second = calibration(step(TENSOR, 0.8), name="a"), calibration(step(TENSOR, 0.5), step(WHOLE, 1.0), name="b")
    steps = steps_of(first, second, framework="megatron-lm@3.0")
    assert [(one.configuration, one.factor) for one in steps.steps] == [(TENSOR, 0.8), (WHOLE, 1.0)]
    assert steps.calibrations == ("a", "b")
