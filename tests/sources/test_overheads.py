"""Which overheads serve a framework, and what they do to a step."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.catalog import find_calibration, find_network, names
from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import GENERIC, Framework
from planner.domain.request import Problem
from planner.errors import ParameterError
from planner.sources.links import BETWEEN, WAIT, multiples_of_kind
from planner.sources.overheads import (
    EXPONENTS,
    FORMULA,
    Overheads,
    expected_largest,
    exponent_name,
    find_overheads,
)
from planner.sources.source import Source, source_of
from planner.sources.sources import Sources
from planner.steps.predict import Evaluator
from planner.workload.calls import lower
from planner.workload.program import gradient_slots

Make = Callable[..., Problem]


def entry(kind: str = "torch", precision: str = "", library: str = "") -> Entry:
    return Entry("overheads", kind, "", precision, library, "overheads", {}, {"kernel_scale": 2.0})


def having(problem: Problem, **coefficients: float) -> Problem:
    mine = Calibration("mine", "toy", (replace(entry("generic"), coefficients=coefficients),))
    return replace(problem, calibrations=(mine, *problem.calibrations))


def priced(problem: Problem, **plan: Any) -> dict[str, float]:
    configuration = Configuration(**{"nodes": 1, "gpus_per_node": 1, "sub_batch": 8, **plan})
    (found,) = Evaluator(problem).describe(Configurations.of([configuration]))
    return {term.name: term.exposed_seconds for term in found.terms} | {"iteration": found.iteration_s.value}


def held(name: str, one: Entry) -> Source:
    return source_of(one, Calibration(name, "toy", (one,)))


def served(network: str, stated: dict[str, float]) -> Overheads:
    """Return what an entry that states such coefficients says of a network."""
    entries = [(held("mine", replace(entry(), coefficients=stated)), False)]
    name = exponent_name(find_network(network))
    found = find_overheads(entries, "torch", "fp32", on_specified=False, exponent=name)
    assert found is not None
    return found


@pytest.fixture
def problem(make_problem: Make) -> Problem:
    return make_problem(settings=Settings(input="synthetic", framework=Framework("torch")))


@pytest.mark.parametrize(
    ("offered", "wanted"),
    [
        # of the asked precision before any, the own accelerator before a pooled one, a framework before generic ones
        ([("", "", False), ("fp16", "", False)], 1),
        ([("fp32", "", False), ("", "", False)], 1),
        ([("fp16", "", True), ("", "", False)], 1),
        ([("", "", True), ("fp16", "", True)], 1),
        ([("", "specified", False), ("", "", False)], 1),
        ([("fp32", "", False)], None),
    ],
)
def test_precision_place_and_kernels_decide(offered: list[tuple[str, str, bool]], wanted: int | None) -> None:
    entries = [
        (held(str(place), entry(precision=precision, library=library)), pooled)
        for place, (precision, library, pooled) in enumerate(offered)
    ]
    found = find_overheads(entries, "torch@2", "fp16", on_specified=False)
    assert (found and found.source.calibration) == (None if wanted is None else str(wanted))


@pytest.mark.parametrize(("modes", "wanted"), [(("", "async"), 1), (("sync", ""), 1), (("sync",), 0), (("", ""), 0)])
def test_the_very_mode_goes_before_any_and_any_before_the_other(modes: tuple[str, ...], wanted: int) -> None:
    entries = [(held(str(place), replace(entry(), mode=mode)), False) for place, mode in enumerate(modes)]
    found = find_overheads(entries, "torch", "fp32", on_specified=False, mode="async")
    assert found is not None
    assert found.source.calibration == str(wanted)


def test_plans_of_both_modes_in_one_call_have_each_their_own_overheads(problem: Problem) -> None:
    scales = {"sync": 2.0, "async": 3.0}
    entries = (replace(entry(), mode=mode, coefficients={"kernel_scale": scale}) for mode, scale in scales.items())
    both = replace(problem, calibrations=(Calibration("mine", "toy", tuple(entries)), *problem.calibrations))
    plans = Configurations.of([Configuration(1, 1, 8, mode=mode) for mode in scales])
    sync, later = (
        {term.name: term.seconds for term in one.terms}["forward"] for one in Evaluator(both).describe(plans)
    )
    assert later / sync == pytest.approx(3 / 2)
    assert Evaluator(both).evaluate(plans).iteration_s[0] == priced(both)["iteration"]


def test_only_overheads_have_a_mode() -> None:
    assert replace(entry(), mode="async").mode == "async"
    with pytest.raises(ParameterError, match="mode must be sync or async, of overheads alone, got 'both'"):
        replace(entry(), mode="both")
    with pytest.raises(ParameterError, match="overheads alone"):
        Entry("kernels", "gemm", "forward", "fp32", "", "work.linear", {}, {}, mode="sync")


def test_what_is_generic_on_the_accelerator_goes_before_a_pooled_framework() -> None:
    entries = [(held("pooled", entry("torch")), True), (held("own", entry("generic")), False)]
    for offered, expected in ((entries, ("generic", False)), (entries[:1], ("exact", True))):
        found = find_overheads(offered, "torch", "fp32", on_specified=False)
        assert found is not None
        assert (found.matched, found.pooled) == expected


def test_overheads_on_specified_kernels_serve_those_alone() -> None:
    entries = [(held("measured", entry()), False), (held("specified", entry(library="specified")), False)]
    for on_specified, name in ((False, "measured"), (True, "specified")):
        found = find_overheads(entries, "torch", "fp32", on_specified=on_specified)
        assert found is not None
        assert found.source.calibration == name


def test_pooled_overheads_serve_gpus_and_not_cpus(problem: Problem) -> None:
    pooled = Calibration("pooled", "any", (entry(),))
    node = problem.cluster.node
    for kind, matched in (("gpu", "exact"), ("cpu", "assumed")):
        cluster = replace(
            problem.cluster, node=replace(node, accelerator=replace(node.accelerator, name="other", kind=kind))
        )
        sources = Sources(replace(problem, cluster=cluster, calibrations=(pooled,)))
        assert sources.overheads("fp32", "sync").matched == matched


@pytest.mark.parametrize(("peak", "wanted"), [(15e12, ""), (30e12, "tf32")])
def test_what_was_pooled_in_a_precision_serves_gpus_that_are_faster_in_it(
    problem: Problem, peak: float, wanted: str
) -> None:
    pooled = Calibration("pooled", "any", (entry(), entry(precision="tf32")))
    node = problem.cluster.node
    device = replace(node.accelerator, name="other", peak_flop_per_s={"fp32": 15e12, "tf32": peak})
    cluster = replace(problem.cluster, node=replace(node, accelerator=device))
    sources = Sources(replace(problem, cluster=cluster, calibrations=(pooled,)))
    assert sources.overheads("tf32", "sync").source.entry.precision == wanted


@pytest.mark.parametrize("name", ["convolution_scale", "product_scale"])
def test_a_scale_of_a_class_multiplies_its_kernels_alone(problem: Problem, name: str) -> None:
    once, twice, thrice = (priced(having(problem, **{name: scale})) for scale in (1.0, 2.0, 3.0))
    # linear in the scale; updates are traffic
    assert thrice["iteration"] - once["iteration"] == pytest.approx(2 * (twice["iteration"] - once["iteration"]))
    assert once["forward"] < twice["forward"] < 2 * once["forward"]
    assert twice["update"] == once["update"]
    everything = priced(having(problem, kernel_scale=2.0))
    assert everything["iteration"] == pytest.approx(2 * once["iteration"])


@pytest.mark.parametrize("exponent", [1.0, 1.7, 3.0])
def test_the_formula_that_is_printed_is_what_a_step_takes(problem: Problem, exponent: float) -> None:
    written = FORMULA.partition("takes ")[2].partition(", C =")[0].replace("·", "*").replace("^", "**")
    plain = priced(having(problem, exponent=1.0))["iteration"]
    convolution_s, product_s = (
        priced(having(problem, **{name: 2.0}))["iteration"] - plain for name in ("convolution_scale", "product_scale")
    )
    calls = (priced(having(problem, host_s_per_call=1.0))["iteration"] - plain) / 1.0
    stated = {
        "kernel_scale": 1.2, "convolution_scale": 0.7, "product_scale": 0.9, "host_s_per_call": 0.4 * plain / calls,
        "exponent": exponent, "host_s_per_layer": 0.1 * plain,
    }  # fmt: skip
    layers = 2 * len(problem.network.layers) + gradient_slots(problem.network).layer.size
    known = {
        "C": convolution_s,
        "M": product_s,
        "K": plain - convolution_s - product_s,
        "calls": calls,
        "layers": layers,
    }
    assert 0 < min(convolution_s, product_s) < convolution_s + product_s < plain
    assert priced(having(problem, **stated))["iteration"] == pytest.approx(_value(written, {**stated, **known}))


def _value(formula: str, names_: dict[str, float]) -> float:
    """Return what a formula of sums, products and powers gives."""

    def of(node: ast.expr) -> float:
        match node:
            case ast.BinOp(left, sign, right):
                return OPERATORS[type(sign)](of(left), of(right))
            case ast.Name(name):
                return names_[name]
            case ast.Constant(int(value)):
                return value
        raise AssertionError(ast.dump(node))

    return of(ast.parse(formula, mode="eval").body)


OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Mult: operator.mul, ast.Pow: operator.pow, ast.Div: operator.truediv,
}  # fmt: skip


def test_the_formula_names_every_coefficient_of_bundled_overheads() -> None:
    found = {
        name.removesuffix("_attention")
        for one in names("calibrations")
        for entry_ in find_calibration(one).entries
        if entry_.scope == "overheads"
        for name in entry_.coefficients
    }
    assert {"convolution_scale", "product_scale", "host_s_per_call"} <= found
    assert all(name in FORMULA for name in found)


def test_the_expected_largest_of_normals_is_the_integral() -> None:
    x = np.linspace(-12, 12, 4801)
    below = np.array([0.5 * (1 + math.erf(one / math.sqrt(2))) for one in x])
    numbers = np.array([1, 2, 3, 5, 8, 11, 24, 100, 1000, 5000, 32768])
    exact = [np.trapezoid((np.sign(x) + 1) / 2 - below**p, x) for p in numbers.tolist()]
    assert expected_largest(numbers) == pytest.approx(exact, rel=4e-3, abs=1e-9)


def test_replicas_wait_only_where_there_are_several(problem: Problem) -> None:
    waiting = having(problem, wait_inside=0.25, wait_between=0.1)
    at_once = having(problem, wait_inside=0.0, wait_between=0.0)
    assert priced(waiting) == priced(at_once)
    for where, share in (
        ({"gpus_per_node": 4}, 0.25 * 1.0294),
        ({"nodes": 2}, 0.1 * 0.5642),
        ({"nodes": 2, "gpus_per_node": 4}, 0.25 * 1.0294 + 0.1 * 0.5642),
    ):
        some, none = (priced(one, **where) for one in (waiting, at_once))
        compute = none["forward"] + none["backward"] + none["update"]
        assert some["replica_wait"] == pytest.approx(share * compute)
        assert some["iteration"] == pytest.approx(none["iteration"] + share * compute)
        assert "replica_wait" not in none


def test_replicas_wait_as_runs_over_links_of_their_kind_showed_unless_it_is_said(problem: Problem) -> None:
    values = dict.fromkeys(("messages_inside", "bytes_inside", "messages_between", "bytes_between"), 1.0)
    link, node = problem.cluster.inter_node, problem.cluster.node
    assert link is not None
    gpu = replace(node, accelerator=replace(node.accelerator, kind="gpu"))
    where = replace(problem.cluster, node=gpu)
    entry = Entry("collectives", "all_reduce", "", "", "", "collective.alpha_beta", {WAIT: 0.4}, values)

    def wait(kind: str, *others: Calibration) -> float:
        shown = Calibration("any", "any", (replace(entry, library=multiples_of_kind(BETWEEN, kind)),))
        return (
            Sources(replace(problem, cluster=where, calibrations=(*others, shown)))
            .overheads("fp32", "sync")
            .wait_between
        )

    assert wait(link.kind) == 0.4
    assert wait("token-ring") == 0.0
    own = Calibration("mine", "toy", (replace(globals()["entry"]("generic"), coefficients={"wait_between": 0.2}),))
    assert wait(link.kind, own) == 0.2


def test_waiting_widens_an_interval_by_no_more_than_it_adds(problem: Problem) -> None:
    plan = Configurations.of([Configuration(1, 4, 8)])
    some, none = (Evaluator(having(problem, wait_inside=wait)).describe(plan)[0].iteration_s for wait in (0.25, 0.0))
    assert some.high is not None
    assert none.high is not None
    assert none.high / none.value * 0.9 < some.high / some.value <= none.high / none.value * 1.25


def test_an_evaluator_like_another_prices_as_one_of_its_own(problem: Problem) -> None:
    changed = having(problem, kernel_scale=1.5, product_scale=0.5, host_s_per_call=1e-5)
    plans = Configurations.of([Configuration(2, 4, n, steps) for n in (1, 8, 32) for steps in (1, 2)])
    first = Evaluator(problem)
    first.evaluate(plans)
    alone = Evaluator(changed).evaluate(plans).iteration_s
    assert np.array_equal(Evaluator(changed, like=first).evaluate(plans).iteration_s, alone)
    assert np.all(alone != first.evaluate(plans).iteration_s)


def test_an_assumed_call_is_not_charged_twice(make_problem: Make, calibration: Calibration) -> None:
    """Measured kernels get the assumed host time, of which they hide a part, specified ones a launch of their own."""
    measured = replace(calibration, entries=tuple(e for e in calibration.entries if e.scope == "kernels"))
    alone = Configurations.of([Configuration(1, 1, 8)])
    for calibrations, expected in (((measured,), 1e-5), ((), 0.0)):
        problem = make_problem(calibrations=calibrations, settings=Settings(input="synthetic", framework=GENERIC))
        zero = Entry("overheads", "generic", "", "", "", "overheads", {}, {"host_s_per_call": 0.0})
        without = make_problem(
            calibrations=(*calibrations, Calibration("zero", "toy", (zero,))),
            settings=Settings(input="synthetic", framework=GENERIC),
        )
        calls = sum(int(group.count.sum()) for group in lower(problem.network, np.array([8]), merged=False))
        times = [float(Evaluator(which).evaluate(alone).iteration_s[0]) for which in (problem, without)]
        assert expected * calls / 2 <= times[0] - times[1] <= expected * calls


def test_some_frameworks_compute_the_gradient_of_the_image_too(problem: Problem) -> None:
    """The first convolution takes as long once more: every direction has the same FLOP and, here, the same rate."""
    asked = replace(problem, settings=replace(problem.settings, framework=Framework("torch", input_gradient=True)))
    first = next(
        calls
        for calls in lower(problem.network, np.array([8]))
        if (calls.kind, calls.direction) == ("convolution", "forward")
    )
    work = {name: np.broadcast_to(column, (1, first.layer.size))[0, 0] for name, column in first.work.items()}
    height = (work["in_h"] + 2 * work["pad_h"] - work["k_h"]) // work["stride_h"] + 1
    width = (work["in_w"] + 2 * work["pad_w"] - work["k_w"]) // work["stride_w"] + 1
    flop = 2 * work["images"] * work["out_c"] * height * width * work["in_c"] * work["k_h"] * work["k_w"]
    without, having_it = priced(problem), priced(asked)
    assert having_it["backward"] - without["backward"] == pytest.approx(2e-12 * flop / work["groups"])
    assert having_it["forward"] == without["forward"]


@pytest.mark.parametrize(
    ("stated", "network", "expected"),
    [
        ({}, "resnet18", EXPONENTS["exponent"]),
        ({}, "gpt", EXPONENTS["exponent_attention"]),
        ({"exponent": 1.5}, "gpt", 1.5),
        ({"exponent": 1.5, "exponent_attention": 2.0}, "gpt", 2.0),
        ({"exponent": 1.5, "exponent_attention": 2.0}, "resnet18", 1.5),
    ],
)
def test_the_exponent_is_that_of_the_family_unless_it_is_said(
    stated: dict[str, float], network: str, expected: float
) -> None:
    assert served(network, stated).exponent == expected


def test_what_was_measured_without_the_switches_that_are_asked_for_serves_and_says_so() -> None:
    generic, measured = held("gpu", entry("generic")), held("here", entry("torch"))
    found = find_overheads([(generic, False), (measured, False)], "torch:fast", "fp32", on_specified=False)
    assert found is not None
    assert (found.source.entry.kind, found.matched) == ("torch", "without switches")
