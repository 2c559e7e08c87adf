"""Coefficients of whole steps, fitted to steps that were made with known ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import catalog
from planner.domain.arrays import FloatArray
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.request import Problem
from planner.fitting.end_to_end import COEFFICIENTS, MEASURED_MULTIPLES, EndToEnd, fit_end_to_end
from planner.fitting.observed import (
    AloneSteps,
    Observed,
    calibrations_of,
    overheads_entry,
    properties_of,
    without_end_to_end,
)
from planner.fitting.residuals import MOST_SET_ROWS, ROW_DEVIATION, Coefficient
from planner.sources.overheads import find_overheads
from planner.sources.source import source_of
from planner.steps.predict import Evaluator

COMPUTE = ("kernel_scale", "matrix_scale", "host_s_per_call")
BASE = {one.name: one.base for one in COEFFICIENTS}
NETWORKS = ("resnet18", "alexnet")
ALONE = [Configuration(1, 1, sub_batch) for sub_batch in (1, 4, 16, 64)]
JOINT = [Configuration(nodes, gpus, 16) for nodes, gpus in ((1, 2), (1, 8), (2, 8), (16, 8), (4, 1))]
ELSEWHERE = {
    "program": "none yet",
    "version": "none yet",
    "accelerator": "none yet",
    "cluster": "none yet",
    "inside": "none yet",
    "between": "none yet",
    "precision": "fp8",
    "kernels": "measured",
}


def named(cluster: Cluster, name: str) -> Cluster:
    """Return the cluster with an accelerator of another name, so that no calibration serves it."""
    node = cluster.node
    return replace(cluster, node=replace(node, accelerator=replace(node.accelerator, name=name)))


def problem_of(network: str = "resnet18", accelerator: str = "", **settings: Any) -> Problem:
    where = catalog.find_cluster("dgx1-v100")
    calibrations = without_end_to_end(catalog.calibrations_for(where))
    chosen = Settings(**{"input": "synthetic"} | settings)
    where = named(where, accelerator) if accelerator else where
    assert where.intra_node is not None
    assert where.inter_node is not None
    inside, between = (
        replace(link, kind=kind) for link, kind in ((where.intra_node, "pcie4"), (where.inter_node, "ethernet"))
    )  # kinds whose priors are wide
    where = replace(where, intra_node=inside, inter_node=between)
    return Problem(catalog.find_network(network), None, where, calibrations, settings=chosen)


def made(problem: Problem, plans: Sequence[Configuration], **coefficients: float) -> Observed:
    """Return steps that took what the problem predicts under known coefficients; others have their base values."""
    values = BASE | coefficients
    precision = plans[0].precision
    overheads = {name: values[name] for name in ("kernel_scale", "matrix_scale", "host_s_per_call", "replica_wait")}
    kernels = properties_of(problem, precision)["kernels"]
    entry = overheads_entry(problem.settings.framework.label, precision, kernels, overheads)
    fitted = calibrations_of(problem, [entry], (values["intra_node"], values["inter_node"]))
    changed = replace(problem, calibrations=(*fitted, *problem.calibrations))
    configurations = Configurations.of(list(plans))
    return Observed.of(problem, configurations, Evaluator(changed).evaluate(configurations).iteration_s)


def scaled(observed: Observed, factor: float | FloatArray) -> Observed:
    return Observed.of(observed.problem, observed.configurations, observed.measured_s * factor)


def predicted_s(observed: Observed, fitted: EndToEnd) -> FloatArray:
    """Return what the fitted calibrations make of the rows, by an evaluator that knows nothing of fits."""
    problem = observed.problem
    mine = fitted.calibrations(problem, observed.configurations.precisions)
    changed = replace(problem, calibrations=(*mine, *problem.calibrations))
    return Evaluator(changed).evaluate(observed.configurations).iteration_s


def prior_cost(**coefficients: float) -> float:
    """Return the least Σ(φ/deviation)² of effects that add up to known coefficients: Σ δ² / Σ deviation²."""
    total = 0.0
    for one in COEFFICIENTS:
        if one.name in coefficients:
            value = coefficients[one.name]
            shift = math.log(value / one.base) if one.is_log else value - one.base
            total += shift**2 / sum(deviation**2 for _, deviation in one.levels)
    return total


def cost(observed: Sequence[Observed], fitted: EndToEnd) -> float:
    """Return Σ w·r² of rows, each set counting as MOST_SET_ROWS at most."""
    total = 0.0
    for one in observed:
        errors = np.log(predicted_s(one, fitted) / one.measured_s) / ROW_DEVIATION
        total += min(1.0, MOST_SET_ROWS / errors.size) * float(np.sum(errors**2))
    return total


@pytest.mark.parametrize(
    "truth",
    [
        {"kernel_scale": 1.1},
        {"matrix_scale": 0.7},
        {"host_s_per_call": 60e-6},
        {"kernel_scale": 0.95, "matrix_scale": 1.4, "host_s_per_call": 5e-6},
    ],
)
@pytest.mark.parametrize("accelerator", ["", "another"], ids=["measured", "specified"])
def test_known_compute_is_found_within_what_the_priors_allow(truth: dict[str, float], accelerator: str) -> None:
    """At its minimum the loss is at most that of the truth, which is the truth's prior alone."""
    observed = [made(problem_of(name, accelerator), ALONE * 5, **truth) for name in NETWORKS]
    fitted = fit_end_to_end(observed)
    found = fitted.coefficients(observed[0].properties)
    assert cost(observed, fitted) + prior_cost(**found) <= prior_cost(**truth) * (1 + 1e-6)
    for one in observed:
        np.testing.assert_allclose(predicted_s(one, fitted), one.measured_s, rtol=0.05)
    if set(truth) in ({"matrix_scale"}, {"host_s_per_call"}):
        assert {name: found[name] for name in truth} == pytest.approx(truth, rel=0.06)


@pytest.mark.parametrize(
    "truth",
    [
        {"replica_wait": 0.08},
        {"intra_node": 3.0},
        {"inter_node": 4.0},
        {"replica_wait": 0.05, "intra_node": 0.7, "inter_node": 2.5},
    ],
)
def test_known_links_are_found_within_what_the_priors_allow(truth: dict[str, float]) -> None:
    """Also where at the base values messages hide behind the backward pass, and nothing tells how quick links are."""
    observed = [made(problem_of(name), [*ALONE, *JOINT * 4], **truth) for name in NETWORKS]
    fitted = fit_end_to_end(observed)
    found = fitted.coefficients(observed[0].properties)
    for name in ("kernel_scale", "matrix_scale", "host_s_per_call"):
        assert found[name] == pytest.approx(BASE[name], rel=1e-9)
    assert cost(observed, fitted) + prior_cost(**found) <= prior_cost(**truth) * (1 + 1e-6)
    if len(truth) == 1:
        assert {name: found[name] for name in truth} == pytest.approx(truth, rel=0.2)


def test_without_runs_everything_is_as_if_nothing_were_known() -> None:
    nothing = fit_end_to_end([])
    assert nothing.coefficients(ELSEWHERE) == pytest.approx(BASE)
    spread = {one.name: math.hypot(*(width for _, width in one.levels)) for one in COEFFICIENTS}
    expected = {one.name: spread[one.name] * (one.base if one.is_log else 1) for one in COEFFICIENTS}
    assert nothing.deviations(ELSEWHERE) == pytest.approx(expected)


def test_what_no_run_shows_takes_pooled_effects_alone() -> None:
    """Of a framework that slows V100s, a new GPU takes a part, another framework less, and nothing of the new GPU's."""
    fitted = fit_end_to_end([made(problem_of(name), ALONE, host_s_per_call=80e-6) for name in NETWORKS])
    seen = properties_of(problem_of(), "fp32")
    host = [
        fitted.coefficients(properties)["host_s_per_call"]
        for properties in (
            seen,
            seen | {"accelerator": "none yet"},
            seen | {"accelerator": "none yet", "program": "none yet"},
        )
    ]
    assert host[0] > host[1] > host[2] > BASE["host_s_per_call"]
    # Effects share a shift in proportion to the squares of their deviations.
    (levels,) = (one.levels for one in COEFFICIENTS if one.name == "host_s_per_call")
    squares = {level: deviation**2 for level, deviation in levels}
    of_any, of_program = squares["kernels",], squares["program", "kernels"]
    shares = np.log(np.array(host[1:]) / BASE["host_s_per_call"]) / np.log(host[0] / BASE["host_s_per_call"])
    total = sum(squares.values())
    np.testing.assert_allclose(shares, [(of_any + of_program) / total, of_any / total], rtol=1e-3)
    for name in ("replica_wait", "intra_node", "inter_node"):
        assert fitted.coefficients(ELSEWHERE)[name] == BASE[name]


def test_switches_share_what_their_program_adds() -> None:
    """What a switch changes is counted: nothing more is fitted to it."""
    plain, switched = (
        made(problem_of(framework=catalog.find_framework(label)), ALONE * 5, host_s_per_call=60e-6)
        for label in ("pytorch", "pytorch:channels-last")
    )
    fitted = fit_end_to_end([plain])
    assert fitted.coefficients(plain.properties) == fitted.coefficients(switched.properties)
    np.testing.assert_allclose(
        predicted_s(switched, fitted), predicted_s(switched, fit_end_to_end([switched])), rtol=0.01
    )


def test_links_of_a_kind_share_their_multiples() -> None:
    observed = [made(problem_of(name), [*ALONE, *JOINT * 4], inter_node=3.0) for name in NETWORKS]
    seen = dict(observed[0].properties)
    found = [
        fit_end_to_end(observed).coefficients(seen | changed)["inter_node"]
        for changed in ({}, {"cluster": "another"}, {"cluster": "another", "between": "infiniband"})
    ]
    assert found[0] > found[1] > found[2] == pytest.approx(MEASURED_MULTIPLES["infiniband"])


def test_what_a_fabric_takes_longer_is_its_own_where_links_were_timed_by_themselves() -> None:
    """Tables of all-reduce tell the links: steps of one cluster hardly move what others of that kind take."""
    slow = made(problem_of(), [*ALONE, *JOINT * 4], inter_node=4.0)
    where = slow.problem.cluster
    assert where.inter_node is not None
    timed = replace(where, inter_node=replace(where.inter_node, kind="infiniband"))
    beside = Observed.of(replace(slow.problem, cluster=timed), slow.configurations, slow.measured_s)
    fitted = fit_end_to_end([beside])
    own, other = (
        fitted.coefficients(dict(beside.properties) | changed)["inter_node"] for changed in ({}, {"cluster": "another"})
    )
    assert own > 1.5 * MEASURED_MULTIPLES["infiniband"]
    assert other == pytest.approx(MEASURED_MULTIPLES["infiniband"], rel=0.03)


def test_host_time_on_specified_kernels_says_nothing_of_measured_ones() -> None:
    specified = made(problem_of(accelerator="another"), ALONE * 5, host_s_per_call=300e-6)
    assert specified.properties["kernels"] == "specified"
    fitted = fit_end_to_end([specified])
    assert fitted.coefficients(specified.properties)["host_s_per_call"] > 5 * BASE["host_s_per_call"]
    assert fitted.coefficients(ELSEWHERE)["host_s_per_call"] == pytest.approx(BASE["host_s_per_call"])


def test_runs_on_one_gpu_alone_decide_compute() -> None:
    one = made(problem_of(), [*ALONE, *JOINT], matrix_scale=0.8)
    slow = scaled(one, np.where(one.configurations.gpus > 1, 3.0, 1.0))
    found, beside = (fit_end_to_end([each]).coefficients(one.properties) for each in (one, slow))
    for name in ("kernel_scale", "matrix_scale", "host_s_per_call"):
        assert found[name] == pytest.approx(beside[name], rel=1e-4)
    assert found["replica_wait"] < beside["replica_wait"]
    joint = made(problem_of(), JOINT, matrix_scale=1.3)
    assert fit_end_to_end([joint]).coefficients(one.properties)["matrix_scale"] == 1.0


def test_compute_takes_no_longer_than_steps_on_several_gpus() -> None:
    """Large sub-batches hide host time; small ones were run on several GPUs alone, too fast for what is usual."""
    large = [Configuration(1, 1, sub_batch) for sub_batch in (64, 128)]
    small = [Configuration(1, 8, sub_batch) for sub_batch in (1, 2)]
    alone, both = (made(problem_of("resnet50"), plans, host_s_per_call=2e-6) for plans in (large, [*large, *small]))
    free, bound = (fit_end_to_end([one]) for one in (alone, both))
    before, after = (one.coefficients(alone.properties)["host_s_per_call"] for one in (free, bound))
    assert 2e-6 < after < 0.8 * before
    assert both.joint is not None
    beyond, within = (
        both.joint.alone_steps.times_s(np.array([one.coefficients(both.properties)[name] for name in COMPUTE]))
        for one in (free, bound)
    )
    assert (within / both.joint.measured_s - 1 < 0.4 * (beyond / both.joint.measured_s - 1)).all()


def test_more_than_a_sets_rows_weigh_no_more() -> None:
    small = made(problem_of(), [Configuration(1, 1, 16)] * int(MOST_SET_ROWS), host_s_per_call=40e-6)
    large = made(problem_of("alexnet"), [Configuration(1, 1, 16)] * 1000, host_s_per_call=10e-6)
    as_many = made(problem_of("alexnet"), [Configuration(1, 1, 16)] * int(MOST_SET_ROWS), host_s_per_call=10e-6)
    fewer = made(problem_of("alexnet"), [Configuration(1, 1, 16)] * 2, host_s_per_call=10e-6)
    found = [
        fit_end_to_end([small, other]).coefficients(small.properties)["host_s_per_call"]
        for other in (large, as_many, fewer)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert abs(math.log(found[2] / found[1])) > 0.05


def test_deviations_are_wider_the_less_is_seen() -> None:
    observed = [made(problem_of(name), [*ALONE, *JOINT]) for name in NETWORKS]
    fitted, nothing = fit_end_to_end(observed), fit_end_to_end([])
    seen = dict(observed[0].properties)
    new_machine = seen | {"accelerator": "none yet", "cluster": "none yet"}
    of = [fitted.deviations(one) for one in (seen, new_machine, ELSEWHERE)]
    assert of[0]["kernel_scale"] == of[2]["kernel_scale"]  # one for all
    assert all(of[0][name] < of[1][name] for name in BASE if name != "kernel_scale")
    assert all(of[1][name] < of[2][name] for name in ("matrix_scale", "host_s_per_call"))
    assert all(of[2][name] < width * (1 + 1e-9) for name, width in nothing.deviations(ELSEWHERE).items())


def test_more_runs_narrow_deviations() -> None:
    few, more = (
        fit_end_to_end([made(problem_of(name), ALONE) for name in names]).deviations(
            properties_of(problem_of(), "fp32")
        )
        for names in (NETWORKS[:1], NETWORKS)
    )
    assert all(more[name] < few[name] for name in ("kernel_scale", "matrix_scale", "host_s_per_call"))


def test_order_of_runs_does_not_matter() -> None:
    rng = np.random.default_rng(5)
    observed = [
        scaled(
            one := made(problem_of(name, framework=Framework.labelled(kind)), [*ALONE, *JOINT]),
            rng.lognormal(0, 0.2, one.measured_s.size),
        )
        for name in NETWORKS
        for kind in ("pytorch", "mxnet")
    ]
    flipped = [
        Observed.of(one.problem, one.configurations.take(slice(None, None, -1)), one.measured_s[::-1])
        for one in reversed(observed)
    ]
    found, other = fit_end_to_end(observed), fit_end_to_end(flipped)
    for one in observed:
        assert found.coefficients(one.properties) == pytest.approx(other.coefficients(one.properties), rel=1e-3)


def test_one_absurd_run_moves_little() -> None:
    observed = made(problem_of(), ALONE * 4, host_s_per_call=30e-6)
    factor = np.ones(observed.measured_s.size)
    factor[0] = 1e6
    found, beside = (
        fit_end_to_end([one]).coefficients(observed.properties)["host_s_per_call"]
        for one in (observed, scaled(observed, factor))
    )
    assert found < beside < 1.2 * found


def test_a_wait_below_zero_is_none() -> None:
    """Replicas that together are quicker than one: the wait ends near 0, and messages, not compute, make up for it."""
    observed = made(problem_of(), [*ALONE, *JOINT], replica_wait=0.0)
    quick = scaled(observed, np.where(observed.configurations.gpus > 1, 0.8, 1.0))
    found = fit_end_to_end([quick]).coefficients(quick.properties)
    assert 0 <= found["replica_wait"] < 0.005
    assert found["intra_node"] < BASE["intra_node"]


@given(st.floats(-1, 1), st.floats(0, 0.1))
def test_values_are_smooth_and_never_below_zero(theta: float, step: float) -> None:
    one = Coefficient("any", 0.02, (), is_log=False)
    (value, slope), (later, _) = one.value(theta), one.value(theta + step)
    assert value >= 0
    assert slope >= 0
    assert later >= value
    # Taylor: the second derivative is at most 1 / (2·base).
    assert abs(later - value - slope * step) <= step**2 / (4 * 0.02) + 1e-15
    assert one.value(one.start) == (0.02, 1.0)


def test_fitted_calibrations_serve_what_they_were_fitted_to() -> None:
    problem = problem_of(framework=Framework.labelled("mine@2"))
    fitted = fit_end_to_end([made(problem, ALONE, host_s_per_call=70e-6)], ["a table"])
    mine = fitted.calibrations(problem, ["fp32", "fp16"])
    overheads, links = mine
    assert {(entry.kind, entry.precision) for entry in overheads.entries} == {("mine@2", "fp32"), ("mine@2", "fp16")}
    assert links.cluster == problem.cluster.name
    entries = [(source_of(entry, overheads), False) for entry in overheads.entries]
    served = find_overheads(entries, "mine@2", "fp32", on_specified=False)
    assert served is not None
    assert served.host_s_per_call == fitted.coefficients(properties_of(problem, "fp32"))["host_s_per_call"]
    assert served.source.entry.source == "a table"
    assert without_end_to_end(mine) == ()


def test_cpus_and_reconstructions_get_no_calibrations() -> None:
    problem = problem_of()
    node = problem.cluster.node
    cpu = replace(problem.cluster, node=replace(node, accelerator=replace(node.accelerator, kind="cpu")))
    assert fit_end_to_end([]).calibrations(replace(problem, cluster=cpu), ["fp32"]) == ()


def test_steps_that_wait_for_their_input_say_nothing() -> None:
    observed = made(problem_of(), ALONE)
    bound = made(problem_of(), ALONE, host_s_per_call=90e-6)
    steps = AloneSteps(bound)
    steps.input = replace(steps.input, load_s=np.full(len(ALONE), 10.0))
    object.__setattr__(bound, "alone", bound)
    object.__setattr__(bound, "alone_steps", steps)
    found = fit_end_to_end([observed, bound]).coefficients(observed.properties)
    assert found["host_s_per_call"] == pytest.approx(BASE["host_s_per_call"], rel=1e-6)
