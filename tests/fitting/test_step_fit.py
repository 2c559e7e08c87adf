"""Coefficients of whole steps: what they were made with comes back, by facts alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from planner import catalog
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.request import Problem
from planner.fitting.step_fit import COEFFICIENTS, Observed, StepFit, fit_steps, key_of, without_end_to_end
from planner.sources.links import BETWEEN, INSIDE
from planner.sources.sources import Sources

FACTS = {"kernels", "precision", INSIDE, BETWEEN}
"""Properties that a coefficient may belong to: no program, GPU, cluster or network."""
TRUTH = {
    "kernel_scale": 1.1, "convolution_scale": 1.3, "product_scale": 0.8, "host_s_per_call": 3e-5, "wait_inside": 0.05,
    "wait_between": 0.04, "intra_node": 1.25, "inter_node": 1.15, "socket_s_per_byte": 5e-10,
}  # fmt: skip
NETWORKS = ("resnet18", "vgg11", "gpt2", "resnet50")


@cache
def plain(network: str, cluster: str = "dgx1-v100", launch: str = "") -> Observed:
    """Return plans of one to 16 GPUs that took as long as is predicted where every effect is 0."""
    where = catalog.find_cluster(cluster)
    framework = catalog.find_framework("pytorch").with_switches([launch] if launch else [])
    calibrations = without_end_to_end(catalog.calibrations_for(where))
    settings = Settings(input="synthetic", framework=framework)
    problem = Problem(catalog.find_network(network), None, where, calibrations, settings=settings)
    rows = [(1, 1, 1), (1, 1, 8), (1, 1, 64), (1, 4, 8), (1, 8, 32), (2, 8, 8), (2, 8, 32)]
    plans = Configurations.of([Configuration(*row) for row in rows])
    one = Observed.of(problem, plans, np.ones(len(rows)))
    return replace(one, measured_s=one.times_s(one.start))


def made(network: str, values: Mapping[str, float], launch: str = "") -> Observed:
    """Return the same plans as long as coefficients give."""
    one = plain(network, launch=launch)
    theta = np.array([np.log(values[each.name]) if each.is_log else values[each.name] for each in COEFFICIENTS])
    return replace(one, measured_s=one.times_s(theta), _by_centre={})


def test_no_coefficient_belongs_to_a_name_and_there_are_few() -> None:
    assert {name for one in COEFFICIENTS for name in one.by} <= FACTS
    kinds = {"kernels": 2, "precision": 3, INSIDE: 4, BETWEEN: 5}
    number = sum(int(np.prod([kinds[name] for name in one.by])) for one in COEFFICIENTS)
    assert number <= 60


def test_without_runs_every_effect_is_none() -> None:
    one, nothing = plain("resnet18"), fit_steps([])
    assert nothing.theta(one.properties) == pytest.approx(one.start)
    assert nothing.calibrations(one.problem, []) == ()


def test_what_runs_were_made_with_comes_back() -> None:
    observed = [made(name, TRUTH) for name in NETWORKS]
    fitted = fit_steps(observed, ["here"])
    for one in observed:
        times = one.times_s(fitted.theta(one.properties))
        assert times == pytest.approx(one.measured_s, rel=0.1)
    found = fitted.values(observed[0].properties)
    assert found["convolution_scale"] * found["kernel_scale"] == pytest.approx(1.43, rel=0.1)
    assert found["host_s_per_call"] == pytest.approx(3e-5, rel=0.15)
    assert fitted.sources == ("here",)


def test_fitted_calibrations_give_what_the_fit_says() -> None:
    one = made("resnet50", TRUTH)
    fitted = fit_steps([one])
    calibrations = fitted.calibrations(one.problem, ("fp32",))
    sources = Sources(replace(one.problem, calibrations=(*calibrations, *one.problem.calibrations)))
    values, overheads = fitted.values(one.properties), sources.overheads("fp32", "sync")
    for name in ("kernel_scale", "convolution_scale", "product_scale", "host_s_per_call"):
        assert getattr(overheads, name) == pytest.approx(values[name])
    assert (overheads.wait_inside, overheads.wait_between) == pytest.approx(
        (values["wait_inside"], values["wait_between"])
    )


@pytest.mark.parametrize("network", ["resnet18", "gpt2"])
def test_quadratics_are_near_the_prices_that_they_stand_for(network: str) -> None:
    one = plain(network)
    rng = np.random.default_rng(3)
    for _ in range(4):
        theta = one.start + rng.uniform(-0.2, 0.2, len(COEFFICIENTS)) * [
            1.0 if each.is_log else 0.1 for each in COEFFICIENTS
        ]
        steps = one.near(theta)
        move = theta - steps.centre
        log_s = steps.at_centre + move @ steps.slopes + np.einsum("i,ijn,j->n", move, steps.bends, move) / 2
        assert log_s == pytest.approx(np.log(one.times_s(theta)), abs=0.03)


def test_runs_on_one_gpu_say_nothing_of_links_nor_of_waits() -> None:
    one = made("resnet18", TRUTH)
    alone = np.flatnonzero(one.configurations.gpus == 1)
    some = replace(one, configurations=one.configurations.take(alone), measured_s=one.measured_s[alone], _by_centre={})
    fitted, start = fit_steps([some]), StepFit()
    for name in ("wait_inside", "wait_between", "intra_node", "inter_node"):
        assert fitted.values(one.properties)[name] == pytest.approx(start.values(one.properties)[name], rel=1e-6)


def test_programs_that_launch_otherwise_tell_nothing_of_host_time() -> None:
    """What a compiled or recorded program takes of the host is stated."""
    one = made("resnet18", TRUTH, "graphs")
    (host,) = (each for each in COEFFICIENTS if each.name == "host_s_per_call")
    assert fit_steps([one]).effects[key_of(host, one.properties)] == pytest.approx(0.0, abs=1e-9)


def test_deviations_of_what_no_run_shows_are_those_of_the_prior() -> None:
    one = made("resnet18", TRUTH)
    fitted, (host,) = fit_steps([one]), (each for each in COEFFICIENTS if each.name == "host_s_per_call")
    facts, name = one.properties, host.name
    shares = [of.deviations(facts)[name] / of.values(facts)[name] for of in (fitted, StepFit())]
    assert shares[0] < 0.7 * shares[1]
    assert shares[1] == pytest.approx(host.deviation)
