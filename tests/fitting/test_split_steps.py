"""Coefficients of split plans: found again in runs that were made with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import catalog
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.request import Problem
from planner.fitting.observed import calibrations_of
from planner.fitting.split_steps import SPLIT_COEFFICIENTS, SplitObserved, fit_split_steps, split_entry
from planner.sources.overheads import SPLIT_LIBRARY
from planner.sources.sources import Sources
from planner.steps.predict import Evaluator

A100 = tuple(catalog.find_calibration(name) for name in ("a100-sxm4-80gb", "node-links"))
PLANS = [
    Configuration(2, 8, b, accumulation_steps=16 // p, precision="fp16", tensor_parallel=t, pipeline_parallel=p)
    for t, p in ((2, 1), (4, 1), (8, 1), (8, 2), (2, 8), (4, 4))
    for b in (1, 4)
]
TRUE = {"kernel_scale": 1.05, "matrix_scale": 1.15, "host_s_per_call": 10e-6, "replica_wait": 0.02}
LINKS = (1.3, 1.5)


def problem(hidden: int) -> Problem:
    network = catalog.find_network(f"gpt:layers=8,hidden={hidden},heads=16,sequence=1024,vocabulary=50304")
    settings = Settings("adam", input="synthetic", framework=Framework("own", fuses=("activation", "residual")))
    return Problem(network, None, catalog.find_cluster("dgx-a100"), A100, settings=settings)


def observed(hidden: int, noise: float = 0.0) -> SplitObserved:
    """Return runs of the true coefficients."""
    bare, plans = problem(hidden), Configurations.of(PLANS)
    made = calibrations_of(bare, [split_entry("own", "fp16", "measured", TRUE)], LINKS)
    times = Evaluator(replace(bare, calibrations=(*made, *A100))).evaluate(plans).iteration_s
    wrong = np.random.default_rng(hidden).normal(0.0, noise, times.size)
    return SplitObserved.of(bare, plans, times * np.exp(wrong))


def test_the_quadratic_follows_prices() -> None:
    one = observed(2048)
    theta = np.add([each.start for each in SPLIT_COEFFICIENTS], [0.05, 0.1, 0.0, 0.0, 0.15, -0.15])
    values = {each.name: each.value(x)[0] for each, x in zip(SPLIT_COEFFICIENTS, theta, strict=True)}
    made = calibrations_of(
        one.problem,
        [split_entry("own", "fp16", "measured", {name: values[name] for name in TRUE})],
        (values["intra_node"], values["inter_node"]),
    )
    changed = replace(one.problem, calibrations=(*made, *one.problem.calibrations))
    times = Evaluator(changed).evaluate(one.configurations).iteration_s
    assert np.exp(one.steps.log_s(theta)) == pytest.approx(times, rel=0.01)


def test_a_network_that_took_no_part_is_predicted() -> None:
    fit = fit_split_steps([observed(2048, 0.02), observed(4096, 0.02)], ["own"])
    unseen = observed(3072)
    calibrations = (*fit.calibrations(unseen.problem, ("fp16",)), *unseen.problem.calibrations)
    before, after = (
        Evaluator(replace(unseen.problem, calibrations=some)).evaluate(unseen.configurations).iteration_s
        for some in (unseen.problem.calibrations, calibrations)
    )
    errors = [np.abs(times / unseen.measured_s - 1).mean() for times in (before, after)]
    assert errors[1] < 0.03 < errors[0]


def test_nothing_is_known_without_runs() -> None:
    fit = fit_split_steps([])
    assert fit.calibrations(problem(2048), ("fp16",)) == ()
    assert fit.coefficients({})["intra_node"] == pytest.approx(1.1)


def test_a_framework_that_no_run_shows_takes_what_all_have_in_common() -> None:
    fit = fit_split_steps([observed(2048)], ["own"])
    other = replace(problem(2048), settings=Settings("adam", framework=Framework("other")))
    calibrations = (*fit.calibrations(other, ("fp16",)), *A100)
    overheads = Sources(replace(other, calibrations=calibrations)).overheads("fp16", "sync")
    assert (overheads.matched, overheads.source.entry.library) == ("generic", SPLIT_LIBRARY)


def test_entries_of_split_plans_go_before_others_for_transformers_alone() -> None:
    own, network = problem(2048), catalog.find_network("resnet50")
    split = split_entry("own", "fp16", "measured", TRUE)
    plain = replace(split, library="", coefficients={**TRUE, "matrix_scale": 2.0})
    both = calibrations_of(own, [plain, split], (1.0, 1.0))
    for one, scale in ((own, 1.15), (replace(own, network=network), 2.0)):
        sources = Sources(replace(one, calibrations=(*both, *A100)))
        assert sources.overheads("fp16", "sync").matrix_scale == scale
