"""Intervals against perturbed coefficients: the propagated variance is that of the linear response."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.costs.terms import evaluate
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster, Storage
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import PYTORCH
from planner.domain.network import layer_parameters
from planner.domain.prediction import Quantity
from planner.domain.provenance import NORMAL_90
from planner.domain.request import Problem, Scenario
from planner.steps.intervals import (
    DOUBT_ABOVE,
    LARGEST_REACH,
    PRODUCT_DOUBT_BELOW,
    RECONSTRUCTED_DEVIATION,
    STATED_DEVIATION,
)
from planner.steps.predict import Evaluator
from planner.workload.calls import lower

Make = Callable[..., Problem]
SYNTHETIC = Settings(input="synthetic", framework=replace(PYTORCH, update="layer"))


def one(**changes: Any) -> Configurations:
    return Configurations.of([Configuration(**({"nodes": 1, "gpus_per_node": 1, "sub_batch": 8} | changes))])


def value(problem: Problem, configurations: Configurations, field: str) -> float:
    return float(getattr(Evaluator(problem).evaluate(configurations), field)[0])


@pytest.fixture
def make_measured(make_problem: Make, calibration: Calibration) -> Callable[[Settings], Problem]:
    """Problems with an all-reduce of two algorithms that has a covariance."""
    names = ("messages_inside", "bytes_inside", "messages_between", "bytes_between")
    values = dict(zip(names, (1e-6, 1e-10, 5e-6, 4e-9), strict=True))
    covariance = tuple(tuple(x**2 / 100 if i == j else 0.0 for j in range(4)) for i, x in enumerate(values.values()))
    settings = {"algorithms": "ring hierarchical"}
    entry = Entry("collectives", "all_reduce", "", "", "nccl", "collective.alpha_beta", settings, values,
                  covariance=covariance)  # fmt: skip

    def make(settings: Settings) -> Problem:
        problem = make_problem(settings=settings)
        links = Calibration("links", "toy", (entry,), cluster=problem.cluster.name)
        return replace(problem, calibrations=(calibration, links))

    return make


def half(found: Quantity | None) -> float:
    """Return 1.645 standard deviations [s] of a quantity whose interval is value·exp(±1.645·s)."""
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low * found.high == pytest.approx(found.value**2)
    return found.value * math.log(found.high / found.value)


def with_coefficient(problem: Problem, at: int, position: int, name: str, coefficient: float) -> Problem:
    """Return the problem with one coefficient of one entry of one calibration changed."""
    calibrations = list(problem.calibrations)
    entries = list(calibrations[at].entries)
    entry = entries[position]
    entries[position] = replace(entry, coefficients=dict(entry.coefficients) | {name: coefficient})
    calibrations[at] = replace(calibrations[at], entries=tuple(entries))
    return replace(problem, calibrations=tuple(calibrations))


def half_width(problem: Problem, configurations: Configurations, field: str = "iteration_s") -> float:
    """Return 1.645 sqrt(g'·cov·g) with g by central differences of every coefficient of every entry."""
    total = 0.0
    for at, calibration in enumerate(problem.calibrations):
        for position, entry in enumerate(calibration.entries):
            if entry.covariance is None:
                continue
            gradient = np.zeros(len(entry.coefficients))
            for i, (name, coefficient) in enumerate(entry.coefficients.items()):
                ends = (with_coefficient(problem, at, position, name, coefficient * f) for f in (1.00001, 0.99999))
                above, below = (value(end, configurations, field) for end in ends)
                gradient[i] = (above - below) / (2e-5 * coefficient) if coefficient else 0.0
            total += float(gradient @ np.array(entry.covariance) @ gradient)
    return NORMAL_90 * math.sqrt(total)


@pytest.mark.parametrize("strategy", ["wait-free", "no-overlap"])
@pytest.mark.parametrize(("nodes", "gpus", "steps"), [(1, 1, 1), (1, 4, 1), (4, 2, 1), (1, 1, 3), (1, 4, 3), (4, 2, 3)])
def test_interval_is_the_linear_response(
    make_measured: Callable[[Settings], Problem], strategy: str, nodes: int, gpus: int, steps: int
) -> None:
    problem = make_measured(Settings(input="synthetic", strategy=strategy))
    plan = one(nodes=nodes, gpus_per_node=gpus, accumulation_steps=steps)
    found = Evaluator(problem).describe(plan)[0]
    high = found.iteration_s.high
    assert found.iteration_s.interval_basis == "covariance"
    assert half(found.iteration_s) == pytest.approx(half_width(problem, plan), rel=1e-4)
    assert high is not None
    assert found.epoch_s is not None
    assert found.epoch_s.high == pytest.approx(high * found.epoch_s.value / found.iteration_s.value)
    assert found.samples_per_s.low == pytest.approx(8 * steps * nodes * gpus / high)


def test_half_the_computation_has_half_the_interval(make_problem: Make) -> None:
    plain = Evaluator(make_problem(settings=SYNTHETIC)).describe(one())[0].iteration_s
    scenario = Scenario("x", dict.fromkeys(("forward", "backward", "update"), 0.5))
    halved = Evaluator(make_problem(settings=SYNTHETIC, scenario=scenario)).describe(one())[0].iteration_s
    assert plain.high is not None
    assert halved.high == pytest.approx(plain.high / 2)


def relative_deviation(found: Quantity | None) -> float:
    assert found is not None
    return half(found) / NORMAL_90 / found.value


def test_specified_kernels_have_the_stated_deviation(make_problem: Make) -> None:
    """All of a step on one device, and nothing of it measured: kernels of all kinds miss together."""
    found = Evaluator(make_problem(calibrations=(), settings=SYNTHETIC)).describe(one())[0]
    assert relative_deviation(found.iteration_s) == pytest.approx(STATED_DEVIATION["kernels"])
    assert {found.iteration_s.interval_basis, found.samples_per_s.interval_basis} == {"assumed"}


@pytest.mark.parametrize("first_epoch", [False, True])
def test_specified_parts_are_independent_of_each_other(make_problem: Make, *, first_epoch: bool) -> None:
    problem = make_problem(calibrations=(), settings=Settings(strategy="no-overlap"))
    plan = one(nodes=2, gpus_per_node=2)
    found, terms = Evaluator(problem).describe(plan)[0], {}
    for term in found.terms:
        terms[term.name] = term.seconds
    epoch = found.first_epoch_s if first_epoch else found.epoch_s
    assert epoch is not None
    iteration = epoch.value / found.epoch_s.value * found.iteration_s.value if found.epoch_s else 0.0
    load = iteration - found.iteration_s.value + terms["load_input"]
    kernels = terms["forward"] + terms["backward"] + terms["update"]
    parts = (0.5 * kernels, 0.25 * load, 0.25 * terms["host_to_device"], 0.25 * terms["all_reduce"])
    assert relative_deviation(epoch) == pytest.approx(math.hypot(*parts) / iteration)
    assert epoch.interval_basis == "assumed"


def test_assumed_host_time_reaches_its_published_span(make_problem: Make, calibration: Calibration) -> None:
    """Measured kernels without error, and calls so small that the assumed host time is nearly all: 42 us of 10."""
    kernels = tuple(
        replace(e, covariance=None, error=0.0, coefficients={k: 1e-6 * v for k, v in e.coefficients.items()})
        for e in calibration.entries
        if e.scope == "kernels"
    )
    problem = make_problem(calibrations=(replace(calibration, entries=kernels),), settings=SYNTHETIC)
    found = Evaluator(problem).describe(one())[0].iteration_s
    assert found.high == pytest.approx(4.2 * found.value, rel=0.01)


def test_a_reconstruction_is_as_wide_as_its_residuals_suggest(make_problem: Make, calibration: Calibration) -> None:
    """All terms come from one table, so they miss together; errors on that table do not count."""
    entries = (
        *(replace(entry, origin="reconstructed", error=0.001) for entry in calibration.entries),
        Entry("host", "update_gradient", "", "", "", "host.parameters", {}, {"calls": 0.0, "parameters": 1e-9}),
        Entry("host", "sum_gradient", "", "", "", "host.buffers", {}, {"calls": 0.0, "buffer_parameters": 1e-10}),
        Entry("host", "update_weights", "", "", "", "host.parameters", {}, {"calls": 0.0, "parameters": 1e-9}),
    )
    marked = tuple(replace(entry, origin="reconstructed") for entry in entries)
    made = replace(calibration, origin="reconstructed", cluster="toys", entries=marked)
    found = Evaluator(make_problem(calibrations=(made,), settings=SYNTHETIC)).describe(
        one(mode="async", gpus_per_node=4)
    )[0]
    assert found.update_s is not None
    assert found.update_s.value < found.iteration_s.value
    for quantity in (found.iteration_s, found.update_s):
        assert relative_deviation(quantity) == pytest.approx(RECONSTRUCTED_DEVIATION)
        assert quantity.interval_basis == "assumed"


def test_entries_of_unknown_error_have_the_stated_deviation(make_problem: Make, calibration: Calibration) -> None:
    stated = replace(calibration, entries=tuple(replace(e, covariance=None) for e in calibration.entries))
    found = Evaluator(make_problem(calibrations=(stated,), settings=SYNTHETIC)).describe(one())[0]
    assert relative_deviation(found.iteration_s) == pytest.approx(STATED_DEVIATION["kernels"])


@pytest.mark.parametrize(("load_s", "basis"), [(0.009, "covariance"), (0.011, "assumed")])
def test_a_hundredth_that_is_assumed_leaves_the_basis(
    make_problem: Make, calibration: Calibration, load_s: float, basis: str
) -> None:
    problem = make_problem(settings=Settings(strategy="no-overlap"))
    bare = replace(problem, settings=Settings(input="synthetic", strategy="no-overlap"))
    alone = value(bare, one(), "iteration_s")
    load = {"calls": alone * load_s, "samples": 0.0}
    entries = (
        Entry("storage", "load", "", "", "", "storage.samples", {}, load, origin="assumed"),
        Entry("host", "copy", "", "", "", "host.bytes", {}, {"calls": 0.0, "bytes": 1e-20}, error=0.0),
    )
    here = Calibration("here", "toy", entries, cluster="toys")
    found = Evaluator(replace(problem, calibrations=(calibration, here))).describe(one())[0]
    assert found.iteration_s.interval_basis == basis


def test_threads_that_wait_for_storage_have_the_interval_of_storage(make_problem: Make, cluster: Cluster) -> None:
    slow = replace(cluster, storage=Storage(1e6))
    for mode in ("sync", "async"):
        found = Evaluator(make_problem(cluster=slow)).describe(one(gpus_per_node=4, mode=mode))[0]
        assert relative_deviation(found.iteration_s) == pytest.approx(STATED_DEVIATION["storage"]), mode


def test_no_interval_reaches_farther_than_anything_says(make_problem: Make, calibration: Calibration) -> None:
    wild = tuple(replace(e, covariance=None, error=1e3) if e.scope == "kernels" else e for e in calibration.entries)
    problem = make_problem(calibrations=(replace(calibration, entries=wild),), settings=SYNTHETIC)
    found = Evaluator(problem).describe(one())[0].iteration_s
    assert found.low == pytest.approx(found.value / LARGEST_REACH)


def host(kind: str, term: str, feature: str, rate: float) -> Entry:
    covariance = ((0.0, 0.0), (0.0, (rate / 10) ** 2))
    return Entry("host", kind, "", "", "", term, {}, {"calls": 0.0, feature: rate}, covariance=covariance)


@pytest.mark.parametrize("share", [0.1, 0.5, 2.0])
def test_asynchronous_intervals_are_the_linear_response(
    make_problem: Make, calibration: Calibration, share: float
) -> None:
    """With all of a node's gradients summed in a share of T_GPU, on both sides of q = 1."""
    problem, plan = make_problem(settings=SYNTHETIC), one(mode="async", gpus_per_node=4)

    def with_rates(summing: float, weights: float) -> Problem:
        entries = (
            host("update_gradient", "host.parameters", "parameters", 1e-12),
            host("sum_gradient", "host.buffers", "buffer_parameters", summing),
            host("update_weights", "host.parameters", "parameters", weights),
        )
        hosts = Calibration("hosts", "toy", entries, cluster=problem.cluster.name)
        return replace(problem, calibrations=(calibration, hosts))

    per_parameter = value(with_rates(1e-12, 1e-12), plan, "iteration_s") / layer_parameters(problem.network).sum()
    timed = with_rates(per_parameter * share / 4, per_parameter / 5)
    found = Evaluator(timed).describe(plan)[0]
    assert found.update_s is not None
    assert (found.update_s.value < found.iteration_s.value) == (share < 0.8)
    assert half(found.iteration_s) == pytest.approx(half_width(timed, plan), rel=1e-4)
    assert half(found.update_s) == pytest.approx(half_width(timed, plan, "update_s"), rel=1e-3)


Errors = dict[str, tuple[float | None, float | None]]
"""By kind of entry: error of the fit and on rows left out."""


def with_errors(problem: Problem, errors: Errors, covariance: float) -> Problem:
    """Return the problem with errors in its first calibration; covariances times a factor, or none."""

    def changed(entry: Entry) -> Entry:
        scaled = None
        if covariance and entry.covariance is not None:
            scaled = tuple(tuple(covariance * value for value in row) for row in entry.covariance)
        error, held_out = errors.get(entry.kind, (None, None))
        return replace(entry, covariance=scaled, error=error, held_out_error=held_out)

    first, *others = problem.calibrations
    entries = tuple(changed(entry) for entry in first.entries)
    return replace(problem, calibrations=(replace(first, entries=entries), *others))


def seconds_by_kind(problem: Problem, sub_batch: int) -> dict[str, float]:
    """Return the times of a step's kernels by the kind of the entry that serves them [s], in plain loops."""
    entries = {entry.kind: entry for entry in problem.calibrations[0].entries}
    found = dict.fromkeys(("convolution", "gemm", "pointwise"), 0.0)
    for calls in lower(problem.network, np.array([sub_batch]), merged=False):
        kind = calls.kind if calls.kind in found else "pointwise"
        times = np.atleast_2d(evaluate(entries[kind], {**calls.work, "itemsize": 4}))
        found[kind] += float((times * calls.count).sum())
    return found


@pytest.mark.parametrize("covariance", [0.0, 1.0])
def test_scatter_is_common_to_an_entry_and_independent_between_entries(make_problem: Make, covariance: float) -> None:
    """The held-out error goes before that of the fit; an entry without any adds what its covariance says."""
    problem = make_problem(settings=SYNTHETIC)
    errors: Errors = {"convolution": (0.01, 0.3), "gemm": (0.2, None), "pointwise": (0.1, 0.0)}
    known = with_errors(problem, errors, covariance)
    seconds = seconds_by_kind(problem, 8)
    scatter = (1.25 * 0.3 * seconds["convolution"]) ** 2 + (1.25 * 0.2 * seconds["gemm"]) ** 2
    of_coefficients = half_width(known, one()) / NORMAL_90
    assert (of_coefficients > 0) == (covariance > 0)
    found = Evaluator(known).describe(one())[0].iteration_s
    assert found.value == pytest.approx(sum(seconds.values()), rel=1e-9)
    assert half(found) == pytest.approx(NORMAL_90 * math.sqrt(scatter + of_coefficients**2), rel=1e-4)
    assert found.interval_basis == "covariance"


def test_scatter_counts_accumulated_passes_and_stops_at_the_path(
    make_measured: Callable[[Settings], Problem],
) -> None:
    """Of the backward pass that overlaps, kernels behind the first message's slot alone decide; no-overlap has all."""
    errors: Errors = {"convolution": (None, 0.3)}
    plan = one(nodes=4, gpus_per_node=2, accumulation_steps=3)
    widths = {}
    for strategy in ("wait-free", "no-overlap"):
        problem = make_measured(Settings(input="synthetic", strategy=strategy))
        known = with_errors(problem, errors, 1e-12)
        found = Evaluator(known).describe(plan)[0].iteration_s
        covered = half(found) ** 2 - half_width(known, plan) ** 2
        widths[strategy] = math.sqrt(covered) / (NORMAL_90 * 1.25 * 0.3)
    assert widths["no-overlap"] == pytest.approx(3 * seconds_by_kind(problem, 8)["convolution"], rel=1e-6)
    assert 0 < widths["wait-free"] < widths["no-overlap"]


@pytest.mark.parametrize(
    ("low", "high", "more"),
    [
        (0.5, 2.0, 0.0),
        (0.5, 1 / 1.05 / 8, 3 * DOUBT_ABOVE),
        (4 / 0.95, 9.0, 2 * PRODUCT_DOUBT_BELOW),
    ],
)
def test_every_doubling_outside_the_range_of_a_fit_adds_as_much_to_its_share(
    make_problem: Make, low: float, high: float, more: float
) -> None:
    problem = with_errors(make_problem(settings=SYNTHETIC), {"convolution": (0.1, 0.3), "gemm": (0.1, 0.2)}, 0.0)
    seconds, (first, *others) = seconds_by_kind(problem, 8), problem.calibrations
    flop = seconds["gemm"] / 3e-12 / 3  # the product of the last layer: forward and both directions backward
    ranged = [replace(e, ranges={"flop": (low * flop, high * flop)}) if e.kind == "gemm" else e for e in first.entries]
    found = Evaluator(replace(problem, calibrations=(replace(first, entries=tuple(ranged)), *others))).describe(one())
    fitted = (1.25 * 0.3 * seconds["convolution"]) ** 2 + (1.25 * 0.2 * (1 + more) * seconds["gemm"]) ** 2
    stated = (STATED_DEVIATION["kernels"] * seconds["pointwise"]) ** 2
    assert half(found[0].iteration_s) == pytest.approx(NORMAL_90 * math.sqrt(fitted + stated), rel=1e-4)


def test_a_stated_deviation_is_one_of_any_call(make_problem: Make) -> None:
    problem = make_problem(settings=SYNTHETIC)
    (first,) = problem.calibrations
    known, ranged = (
        replace(first, entries=tuple(replace(e, origin="reconstructed", ranges=ranges) for e in first.entries))
        for ranges in ({}, {"flop": (1e-9, 1e-6)})
    )
    periods = [
        Evaluator(replace(problem, calibrations=(one_,))).describe(one())[0].iteration_s for one_ in (known, ranged)
    ]
    assert periods[0] == periods[1]


def test_an_error_without_covariance_is_enough(make_problem: Make) -> None:
    errors: Errors = {"convolution": (None, 0.1), "gemm": (None, 0.1)}
    problem = make_problem(settings=SYNTHETIC)
    assert Evaluator(with_errors(problem, errors, 0)).describe(one())[0].iteration_s.interval_basis == "assumed"
    errors["pointwise"] = (0.1, None)
    assert Evaluator(with_errors(problem, errors, 0)).describe(one())[0].iteration_s.interval_basis == "covariance"


def test_the_error_of_overheads_is_that_of_whole_stages(make_problem: Make, calibration: Calibration) -> None:
    values = {"kernel_scale": 1.5, "host_s_per_call": 1e-5, "host_s_per_layer": 0.0, "exponent": 1.0}
    overheads = Entry("overheads", "generic", "", "", "", "overheads", {}, values, held_out_error=0.2)
    kernels = tuple(entry for entry in calibration.entries if entry.scope == "kernels")
    problem = make_problem(calibrations=(replace(calibration, entries=(*kernels, overheads)),), settings=SYNTHETIC)
    found = Evaluator(problem).describe(one())[0].iteration_s
    expected = math.hypot(NORMAL_90 * 1.25 * 0.2 * found.value, half_width(problem, one()))
    assert half(found) == pytest.approx(expected, rel=1e-4)
    unknown = replace(overheads, held_out_error=None)
    silent = make_problem(calibrations=(replace(calibration, entries=(*kernels, unknown)),), settings=SYNTHETIC)
    assert Evaluator(silent).describe(one())[0].iteration_s.interval_basis == "assumed"


def test_a_first_epoch_like_all_others_is_equal_to_the_last_digit(make_problem: Make, cluster: Cluster) -> None:
    """Reports leave it out then."""
    for mode in ("sync", "async"):
        found = Evaluator(make_problem(cluster=replace(cluster, storage=Storage(1e9)))).describe(one(mode=mode))[0]
        assert found.first_epoch_s == found.epoch_s


def test_intervals_do_not_depend_on_what_is_described_together(make_problem: Make) -> None:
    problem = make_problem(settings=SYNTHETIC)
    plans = [Configuration(1, 1, n, steps) for n in (1, 8, 3, 300) for steps in (1, 2)]
    together = Evaluator(problem).describe(Configurations.of(plans))
    alone = [Evaluator(problem).describe(Configurations.of([plan]))[0] for plan in plans]
    for one_, other in zip(together, alone, strict=True):
        assert one_.configuration == other.configuration
        assert one_.iteration_s.high == pytest.approx(other.iteration_s.high, rel=1e-12)
        assert one_.terms == other.terms
