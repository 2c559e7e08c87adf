"""Steps as functions of coefficients, against the evaluator that prices every coefficient anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner import catalog
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.request import Problem
from planner.fitting.observed import (
    ESTIMATOR,
    AloneSteps,
    JointSteps,
    Observed,
    calibrations_of,
    is_fitted,
    overheads_entry,
    properties_of,
    without_end_to_end,
)
from planner.steps.predict import Evaluator

ALONE = [Configuration(1, 1, 4), Configuration(1, 1, 64), Configuration(1, 1, 16, 3)]
JOINT = [Configuration(1, 2, 4), Configuration(1, 8, 64), Configuration(16, 8, 8, 2), Configuration(3, 1, 8)]
COMPUTE = ("kernel_scale", "matrix_scale", "host_s_per_call")
USUAL = np.array([1.2, 0.7, 2e-5])
QUICK = np.array([1e-3, 0.5, 1e-8])


def problem_of(network: str = "alexnet", cluster: str = "dgx1-v100", **settings: Any) -> Problem:
    found, where = catalog.find_network(network), catalog.find_cluster(cluster)
    calibrations = without_end_to_end(catalog.calibrations_for(where))
    chosen = Settings(**{"input": "synthetic"} | settings)
    return Problem(found, catalog.find_dataset("imagenet-1k"), where, calibrations, settings=chosen)


def observed_of(problem: Problem, plans: list[Configuration]) -> Observed:
    return Observed.of(problem, Configurations.of(plans), np.ones(len(plans)))


def evaluated_s(problem: Problem, plans: list[Configuration], compute: FloatArray, joint: FloatArray) -> FloatArray:
    """Return step times under coefficients, by calibrations and a new evaluator."""
    values = dict(zip(COMPUTE, compute.tolist(), strict=True)) | {"replica_wait": float(joint[0])}
    precision = plans[0].precision
    entry = overheads_entry(
        problem.settings.framework.label, precision, properties_of(problem, precision)["kernels"], values
    )
    fitted = calibrations_of(problem, [entry], (float(joint[1]), float(joint[2])))
    changed = replace(problem, calibrations=(*fitted, *problem.calibrations))
    return Evaluator(changed).evaluate(Configurations.of(plans)).iteration_s


def with_storage(problem: Problem) -> Problem:
    """Return the problem with so slow a storage that at usual coefficients some plans wait for it and some do not."""
    entry = Entry("storage", "load", "", "", "", "storage.samples", {}, {"calls": 0.0, "samples": 3e-4})
    slow = Calibration("slow disks", "", (entry,), cluster=problem.cluster.name)
    return replace(problem, calibrations=(slow, *problem.calibrations))


PROBLEMS = {
    "wait-free": problem_of(),
    "bucketed": problem_of(strategy="bucketed"),
    "no-overlap": problem_of(strategy="no-overlap"),
    "specified": replace(problem_of(), calibrations=()),
    "another framework": problem_of(framework=Framework.labelled("tensorflow@1.0")),
    "transformer": problem_of("bert:layers=2,hidden=64,heads=2,sequence=16,vocabulary=50"),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("values", [USUAL, QUICK], ids=["usual", "quick"])
def test_steps_on_one_gpu_are_those_of_an_evaluator(name: str, values: FloatArray) -> None:
    problem = PROBLEMS[name]
    expected = evaluated_s(problem, ALONE, values, np.array([0.3, 2.0, 3.0]))
    np.testing.assert_allclose(AloneSteps(observed_of(problem, ALONE)).times_s(values), expected, rtol=1e-9)


def test_stacked_steps_are_each_with_its_own_coefficients_and_exponent() -> None:
    parts = [AloneSteps(observed_of(PROBLEMS[name], ALONE)) for name in ("wait-free", "transformer", "specified")]
    parts[1] = parts[1].at_exponent(1.25)
    values = [USUAL, QUICK, 0.5 * (USUAL + QUICK)]
    stack, rows = AloneSteps.stacked(parts), np.repeat(values, len(ALONE), axis=0)
    times_s = np.concatenate([one.times_s(own) for one, own in zip(parts, values, strict=True)])
    slopes = np.concatenate([one.slopes(own) for one, own in zip(parts, values, strict=True)])
    np.testing.assert_allclose(stack.times_s(rows), times_s, rtol=1e-12)
    np.testing.assert_allclose(stack.slopes(rows), slopes, rtol=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("values", [(0.0, 1.0, 1.0), (0.05, 0.2, 4.0), (0.3, 30.0, 0.5)])
def test_steps_on_several_are_those_of_an_evaluator(name: str, values: tuple[float, ...]) -> None:
    problem, joint = PROBLEMS[name], np.array(values)
    steps = JointSteps(observed_of(problem, JOINT), dict(zip(COMPUTE, USUAL.tolist(), strict=True)))
    np.testing.assert_allclose(steps.times_s(joint), evaluated_s(problem, JOINT, USUAL, joint), rtol=1e-9)


@pytest.mark.parametrize("strategy", ["wait-free", "no-overlap"])
def test_input_bound_steps_are_those_of_an_evaluator(strategy: str) -> None:
    problem = with_storage(problem_of(input="storage", strategy=strategy))
    joint = np.array([0.1, 2.0, 3.0])
    alone = AloneSteps(observed_of(problem, ALONE))
    for values in (USUAL, QUICK):
        np.testing.assert_allclose(alone.times_s(values), evaluated_s(problem, ALONE, values, joint), rtol=1e-9)
    steps = JointSteps(observed_of(problem, JOINT), dict(zip(COMPUTE, USUAL.tolist(), strict=True)))
    np.testing.assert_allclose(steps.times_s(joint), evaluated_s(problem, JOINT, USUAL, joint), rtol=1e-9)


def test_what_waits_for_its_input_has_no_slope() -> None:
    problem = with_storage(problem_of(input="storage"))
    steps = AloneSteps(observed_of(problem, ALONE))
    assert not steps.slopes(QUICK).any()
    assert steps.slopes(np.array([1e3, 1.0, 1e-5])).all()


def test_links_that_were_measured_have_no_scale() -> None:
    """All-reduce of a calibration of the cluster stays as it was measured."""
    entry = Entry(
        "collectives", "all_reduce", "", "", "", "collective.alpha_beta", {"algorithms": "ring"},
        {"messages_inside": 1e-5, "bytes_inside": 1e-9, "messages_between": 2e-5, "bytes_between": 2e-9},
    )  # fmt: skip
    problem = problem_of()
    measured = Calibration("nccl", "", (entry,), cluster=problem.cluster.name)
    problem = replace(problem, calibrations=(measured, *problem.calibrations))
    steps = JointSteps(observed_of(problem, JOINT), dict(zip(COMPUTE, USUAL.tolist(), strict=True)))
    joint = np.array([0.1, 5.0, 7.0])
    np.testing.assert_allclose(steps.times_s(joint), evaluated_s(problem, JOINT, USUAL, joint), rtol=1e-9)
    np.testing.assert_array_equal(steps.times_s(joint), steps.times_s(np.array([0.1, 1.0, 1.0])))
    assert not steps.slopes(joint, 0.5)[:, 1:].any()


def test_slopes_are_those_of_differences() -> None:
    problem = PROBLEMS["no-overlap"]
    alone = AloneSteps(observed_of(problem, ALONE))
    joint = JointSteps(observed_of(problem, JOINT), dict(zip(COMPUTE, USUAL.tolist(), strict=True)))
    for steps, values in ((alone, USUAL), (joint, np.array([0.1, 2.0, 3.0]))):
        for at in range(3):
            step = np.zeros(3)
            step[at] = 1e-4 * values[at]
            about = (steps.times_s(values + step) - steps.times_s(values - step)) / (2 * step[at])
            np.testing.assert_allclose(
                steps.slopes(values, 1e-4)[:, at], about, rtol=1e-5, atol=1e-9 * np.abs(about).max()
            )


def test_wide_differences_see_past_what_is_hidden() -> None:
    """Behind a long backward pass quick links cost nothing more when they get a little slower, slow ones do."""
    slow = dict(zip(COMPUTE, (2.0, 1.0, 1e-4), strict=True))
    steps = JointSteps(observed_of(problem_of("resnet18"), [Configuration(1, 8, 256)]), slow)
    values = np.array([0.1, 0.5, 1.0])
    narrow, wide = (steps.slopes(values, width)[0, 1] for width in (1e-3, 3.0))
    assert 0 <= narrow < wide / 2


def test_a_cluster_without_links_prices_one_gpu() -> None:
    bare = replace(problem_of().cluster, intra_node=None, inter_node=None)
    problem = replace(problem_of(), cluster=bare)
    assert AloneSteps(observed_of(problem, ALONE)).times_s(USUAL).all()


def test_rows_without_a_logarithm_are_left_out() -> None:
    plans = Configurations.of(ALONE)
    found = Observed.of(problem_of(), plans, np.array([np.inf, 2.0, 0.0]))
    assert found.measured_s.tolist() == [2.0]
    assert found.configurations.one(0) == ALONE[1]


def test_other_calibrations_of_a_framework_do_not_serve_a_fit() -> None:
    """Overheads that a calibration holds already, of the very version and precision, step back for those of the fit."""
    other = Entry("overheads", "mine@3", "", "fp32", "", "overheads", {}, {"kernel_scale": 9.0, "host_s_per_call": 1.0})
    problem = problem_of(framework=Framework.labelled("mine@3"))
    held = Calibration("held", problem.cluster.node.accelerator.name, (other,))
    with_other = replace(problem, calibrations=(held, *problem.calibrations))
    times = [AloneSteps(observed_of(one, ALONE)).times_s(USUAL) for one in (problem, with_other)]
    np.testing.assert_allclose(times[0], times[1], rtol=1e-12)


def test_cpus_and_reconstructions_are_not_fitted() -> None:
    problem = problem_of()
    node = problem.cluster.node
    cpu = replace(node, accelerator=replace(node.accelerator, kind="cpu"))
    assert is_fitted(problem)
    assert not is_fitted(replace(problem, cluster=replace(problem.cluster, node=cpu)))
    assert not is_fitted(problem_of("sprint-15", "tsubame-kfc"))


def test_exactly_what_was_fitted_to_runs_is_taken_out() -> None:
    own = Entry("overheads", "pytorch", "", "", "", "overheads", {}, {"kernel_scale": 1.1})
    fitted = replace(own, kind="mxnet", estimator=ESTIMATOR)
    both, only, none, empty = (
        Calibration(name, "v100-sxm2-16gb", entries)
        for name, entries in (("both", (own, fitted)), ("only", (fitted,)), ("none", (own,)), ("empty", ()))
    )
    assert without_end_to_end([both, only, none, empty]) == (replace(both, entries=(own,)), none, empty)
