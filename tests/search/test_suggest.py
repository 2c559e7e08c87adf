"""Whole answers on the synthetic machine: what is found, and what to loosen when nothing fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.domain.axes import AXES
from planner.domain.prediction import MiniBatch
from planner.domain.request import Sourced, SpaceRequest
from planner.domain.suggestion import KNEE_SHARE, KNEE_TIMES, Loosening, Refused, Suggestion
from planner.search.exhaustive import Asked
from planner.search.explain import label
from planner.search.loosen import tolerance_that_suffices
from planner.search.search import search
from planner.search.searchable import over_leasts, with_nearest_batch
from planner.steps.describe import Deviation
from planner.steps.warnings import window_missed
from planner.units import parse_fraction
from tests.search.conftest import suggest_with


def answered(machine: Any, request: SpaceRequest, limits: Any = None, evaluator: Any = None) -> Suggestion:
    provenance: dict[str, Sourced[object]] = {"target_batch": Sourced(request.target_batch, "option")}
    order = machine.order(request)
    return suggest_with(evaluator or machine, order, limits or machine.limits(), request, provenance)


def test_found_plans_are_numbered_and_as_many_as_asked(machine: Any) -> None:
    request = SpaceRequest(25).changed(mode=("async",), top=3, pareto=True)
    answer = answered(machine, request)
    assert answer.status == "found"
    every = machine.brute_force(request, machine.limits())
    assert [plan.position for plan in answer.plans] == [1, 2, 14]
    assert [plan.prediction.configuration for plan in answer.plans] == [
        every[plan.position - 1] for plan in answer.plans
    ]
    assert len(answer.plans[1].alike["sub_batch"]) == 12
    assert all(plan.why for plan in (*answer.plans, *answer.pareto))
    assert answer.pareto[0].prediction.epoch_s == answer.plans[0].prediction.epoch_s
    assert answer.search.method == "exhaustive"
    assert answer.search.certified
    assert answer.request["target_batch"].value == 25
    assert (answer.nearest, answer.loosen) == ((), ())


def test_front_is_left_out_unless_asked_for(machine: Any) -> None:
    answer = answered(machine, SpaceRequest(25).changed(mode=("async",)))
    assert answer.status == "found"
    assert answer.pareto == ()


def test_same_request_gives_the_same_answer(machine: Any) -> None:
    request = SpaceRequest(24).changed(mode=("sync", "async"), pareto=True)
    assert answered(machine, request) == answered(machine, request)


def test_refused_precisions_stand_in_the_answer_with_their_reason(machine: Any) -> None:
    refused = answered(machine, SpaceRequest(60).changed(mode=("async",))).search.refused
    assert Refused("precision", "precision int8: no such units", 6) in refused


def test_missing_data_set_is_a_warning(machine: Any) -> None:
    request = SpaceRequest(60).changed(mode=("async",))
    order = replace(machine.order(request), has_dataset=False)
    answer = suggest_with(machine, order, machine.limits(), request, {})
    assert [warning.code for warning in answer.warnings] == ["no_dataset"]
    assert answered(machine, request).warnings == ()


NAMES = {"--" + axis.option.replace("_", "-"): axis.name for axis in AXES}


def loosened(request: SpaceRequest, one: Loosening) -> SpaceRequest:
    """Return the request with one constraint loosened as the answer says."""
    if one.option == "--tolerance":
        tolerance = parse_fraction(one.value)
        return request.changed(tolerance_sync=tolerance, tolerance_async=tolerance)
    if one.option == "--precision":
        return request.changed(precision=(*(request["precision"] or ()), one.value))
    values: dict[str, Any] = {}
    for option, value in one.changes:
        values[NAMES[option]] = (*(request[NAMES[option]] or ()), int(value))
    return request.changed(**values)


def asked(target_batch: int, **given: Any) -> SpaceRequest:
    return SpaceRequest(target_batch).changed(**given)


NARROW = st.builds(
    asked,
    target_batch=st.integers(1, 60),
    tolerance_async=st.just(0.05),
    nodes=st.sets(st.integers(1, 4), min_size=1, max_size=2).map(tuple),
    gpus_per_node=st.just((3,)),
    sub_batch=st.none() | st.sets(st.integers(1, 30), min_size=1, max_size=2).map(tuple),
    accumulation_steps=st.none() | st.sets(st.integers(1, 3), min_size=1, max_size=2).map(tuple),
    precision=st.sampled_from([("fp32",), ("fp16",)]),
    mode=st.sampled_from([("sync",), ("async",)]),
)
EVERYTHING: dict[str, dict[str, Any]] = {
    "--nodes": {"nodes": None},
    "--gpus-per-node": {"gpus_per_node": (1, 2, 3)},
    "--sub-batch": {"sub_batch": None},
    "--accumulation": {"accumulation_steps": None},
    "--precision": {"precision": None},
}


@settings(max_examples=8)
@given(NARROW)
def test_loosening_one_constraint_as_told_makes_something_fit(machine: Any, request: SpaceRequest) -> None:
    answer = answered(machine, request)
    assume(answer.status == "none_feasible")
    told = {one.option: one for one in answer.loosen}
    for one in answer.loosen:
        roomy = machine
        if one.option == "memory":
            roomy = replace(machine, capacity=float(one.value.removesuffix("GiB")) * 2**30)
        relaxed = request if one.option == "memory" else loosened(request, one)
        assert answered(roomy, relaxed).status == "found", one
        assert all(value in one.message for value in one.value.split())
    for option, change in EVERYTHING.items():  # what is not told does not help
        assert (answered(machine, request.changed(**change)).status == "found") == (option in told), option


def change_of(request: SpaceRequest, one: Loosening, capacity: float) -> float:
    """Return by how much a constraint gives way: of counts and memory the larger over the smaller, less 1."""
    if one.option == "--precision":
        return math.inf
    if one.option == "--tolerance":
        return parse_fraction(one.value) - request.tolerance(request.modes[0])
    if one.option == "memory":
        return float(one.value.removesuffix("GiB")) * 2**30 / capacity - 1
    pairs = ((option, int(value)) for option, value in one.changes)
    asked = ((request[NAMES[option]], value) for option, value in pairs)
    changes: list[float] = [min(max(value / old, old / value) - 1 for old in known or ()) for known, value in asked]
    return sum(changes)


@settings(max_examples=12)
@given(NARROW)
def test_the_smallest_change_stands_first_and_what_has_no_measure_last(machine: Any, request: SpaceRequest) -> None:
    limits = replace(machine.limits(), memory_bytes=machine.capacity)
    changes = [change_of(request, one, machine.capacity) for one in answered(machine, request, limits).loosen]
    assert all(before <= after + 1e-3 for before, after in itertools.pairwise(changes))  # tolerances are rounded up


@settings(max_examples=8, deadline=None)
@given(NARROW)
def test_the_nearest_value_is_told_with_the_best_plan_that_it_allows(machine: Any, request: SpaceRequest) -> None:
    """Nodes, GPUs and sub-batches that do not fit are tried in parts; here all of them are, by hand."""
    limits = machine.limits()
    order = machine.order(request)
    ways = {one.option: one for one in answered(machine, request, limits).loosen}
    for name in ("nodes", "gpus_per_node"):
        option = f"--{name.replace('_', '-')}"
        values = request[name] or ()
        lawful = machine.brute_force(request.changed(**{name: tuple(range(1, getattr(limits, name) + 1))}), limits)
        changes = {one: min(max(getattr(one, name) / v, v / getattr(one, name)) for v in values) for one in lawful}
        assert bool(lawful) == (option in ways or answered(machine, request, limits).status == "found")
        if option in ways:
            nearest = min(lawful, key=lambda one: (changes[one], machine.key(one, request.target_batch)))
            assert ways[option].value == str(getattr(nearest, name))
            assert label(nearest, order.device) in ways[option].message
    roomy = replace(machine, capacity=100 * machine.capacity)
    wide = replace(limits, largest_sub_batch={key: 4 * most for key, most in limits.largest_sub_batch.items()})
    if "memory" in ways:
        by_need = {one: machine.one(one)["memory_bytes"] for one in roomy.brute_force(request, wide)}
        assert ways["memory"].value == f"{math.ceil(min(by_need.values()) / 2**30 * 1000) / 1000:g}GiB"


def test_another_precision_is_told_last(machine: Any) -> None:
    """2 GiB and one a sample: 22 of 20 GiB is a tenth more; 20 samples fit in fp16."""
    request = SpaceRequest(20).changed(
        nodes=(1,), gpus_per_node=(1,), sub_batch=(20,), accumulation_steps=(1,), precision=("fp32",)
    )
    limits = replace(machine.limits(), memory_bytes=machine.capacity)
    told = [(one.option, one.value) for one in answered(machine, request, limits).loosen]
    assert told == [("memory", "22GiB"), ("--precision", "fp16")]


def test_smallest_tolerance_is_told_to_four_digits_by_hand(machine: Any) -> None:
    # 3 nodes x 3 GPUs: multiples of 9; 64 lies between 63 (1.5625 % below) and 72
    request = SpaceRequest(64).changed(nodes=(3,), precision=("fp32",), accumulation_steps=(1,))
    answer = answered(machine, request)
    assert [plan.prediction.mini_batch.mean for plan in answer.nearest] == [63, 72]
    assert [plan.position for plan in answer.nearest] == [1, 2]
    assert answer.loosen[0].option == "--tolerance"
    assert answer.loosen[0].value == "1.563%"
    assert "now 0%" in answer.loosen[0].message
    assert answered(machine, request.changed(tolerance_sync=0.01562)).status == "none_feasible"
    # 4 nodes make 12, which does not divide 64 either; 1 or 2 GPUs of a node never make a 9; 2 of 2 nodes do
    assert {one.option: one.value for one in answer.loosen[1:]} == {"--nodes --gpus-per-node": "2 2"}


def test_tolerance_reaches_to_a_sub_batch_above_the_window(machine: Any) -> None:
    request = SpaceRequest(4).changed(
        tolerance_sync=0.0,
        tolerance_async=0.5,
        nodes=(1,),
        gpus_per_node=(1,),
        sub_batch=(7, 12),
        precision=("fp32",),
        mode=("async",),
    )
    answer = answered(machine, request)
    assert answer.nearest[0].why.endswith("; its sub-batch alone, 7, is above the window")
    assert {one.option: one.value for one in answer.loosen}[
        "--tolerance"
    ] == "86.33%"  # a mean of .547; 7 is 75 % above
    request = request.changed(target_batch=1, sub_batch=(3,))
    assert answered(machine, request).loosen[0].value == "200%"


def test_a_plan_whose_updates_hardly_ever_hit_the_window_says_so(machine: Any) -> None:
    def compared(*arguments: Any, **keywords: Any) -> tuple[list[Any], Deviation]:
        wide = MiniBatch(25.0, 40.0, 0.0, 100.0, 0.04)
        missed = window_missed(wide, (20.0, 30.0))
        found, deviation = machine.compare(*arguments, **keywords)
        for one in found:
            one.prediction = replace(one.prediction, mini_batch=wide, warnings=missed)
        return found, deviation

    rare = SimpleNamespace(evaluate=machine.evaluate, compare=compared)
    answer = answered(machine, SpaceRequest(25).changed(mode=("async",)), evaluator=rare)
    assert all(plan.why.endswith("; only 4% of its updates lie inside the window") for plan in answer.plans)
    assert [warning.code for warning in answer.warnings] == ["window_missed"]
    often = answered(machine, SpaceRequest(25).changed(mode=("async",)))
    assert not any("inside" in plan.why for plan in often.plans)


def test_fewer_nodes_of_fewer_gpus_are_told_where_neither_alone_helps(machine: Any) -> None:
    # 6 x 3 GPUs make 18; multiples of 3 and of 6 do not hold 4, but 2 x 2 and 4 x 1 GPUs do
    answer = answered(machine, SpaceRequest(4).changed(nodes=(6,), precision=("fp32",)))
    assert {one.option: one.value for one in answer.loosen} == {
        "--tolerance": "350%",
        "--nodes --gpus-per-node": "2 2",
    }
    expected = "--nodes 2 --gpus-per-node 2 (now 6 x 3) allows 2 nodes x 2 GPUs, sub-batch 1, fp32, synchronous"
    assert answer.loosen[0].message.startswith(expected)  # 6 / 2 - 1 and 3 / 2 - 1 are less than 3.5
    alone = answered(machine, SpaceRequest(6).changed(nodes=(6,), precision=("fp32",)))  # 6 x 1, or 2 x 3
    assert [one.option for one in alone.loosen[1:]] == ["--nodes", "--gpus-per-node"]


def test_one_missing_node_count_is_told(machine: Any) -> None:
    answer = answered(
        machine, SpaceRequest(60).changed(nodes=(1, 3), sub_batch=(5,), accumulation_steps=(1,), precision=("fp32",))
    )
    told = {one.option: one.value for one in answer.loosen}  # 45 is a quarter off; 4 x 15 or 15 x 4 are 60
    assert told == {"--tolerance": "25%", "--nodes": "4", "--accumulation": "4"}


def test_memory_that_would_do_is_told_when_nothing_fits(machine: Any) -> None:
    limits = replace(machine.limits(), largest_sub_batch=dict.fromkeys(machine.limits().largest_sub_batch, 0))
    answer = answered(machine, SpaceRequest(36).changed(nodes=(2,), precision=("fp32",), sub_batch=(3,)), limits)
    assert answer.status == "none_feasible"
    assert answer.search.refused == (Refused("memory", "sub-batch larger than fits in memory", 1),)
    assert [(one.option, one.value) for one in answer.loosen] == [("memory", "5GiB")]  # 2 and one a sample


def test_every_count_of_a_vast_cluster_is_tried_to_loosen(machine: Any) -> None:
    limits = replace(
        machine.limits(gpus=1), nodes=10**5, largest_sub_batch=dict.fromkeys(machine.limits().largest_sub_batch, 200)
    )
    answer = answered(machine, SpaceRequest(1001).changed(nodes=(2,), precision=("fp32",)), limits)
    assert [plan.prediction.mini_batch.mean for plan in answer.nearest] == [1000, 1002]
    assert [(one.option, one.value) for one in answer.loosen[1:]] == [("--nodes", "1")]


@given(st.floats(1e-6, 50))
def test_tolerance_that_suffices_is_enough_and_hardly_more(off: float) -> None:
    value = parse_fraction(tolerance_that_suffices(off))
    assert off * (1 - 1e-11) <= value <= off * 1.0011


@settings(max_examples=10)
@given(
    st.integers(1, 60),
    st.sampled_from([0.0, 0.25, 0.6]),
    st.sampled_from([("sync",), ("async",), ("sync", "async")]),
    st.sampled_from([1, 3, 5]),
)
def test_the_knee_has_the_fewest_gpu_hours_within_its_times(
    machine: Any, target: int, width: float, mode: tuple[str, ...], top: int
) -> None:
    request = SpaceRequest(target, tolerance_sync=width).changed(mode=mode, top=top, gpus_per_node=(1, 3))
    every = {one: machine.one(one)["epoch_s"] for one in machine.brute_force(request, machine.limits(nodes=3))}
    assume(every)  # loosening takes its time
    answer = answered(machine, request, machine.limits(nodes=3))
    fastest = min(every.values())
    hours = {one: s * one.gpus for one, s in every.items() if s <= KNEE_TIMES * fastest * (1 + 1e-9)}
    of_first = fastest * answer.plans[0].prediction.configuration.gpus
    least = min(hours.values())
    assume(abs(least / of_first - KNEE_SHARE) > 1e-6)
    assert (answer.knee is not None) == (least < KNEE_SHARE * of_first)
    if answer.knee_plan is not None:
        assert hours[answer.knee_plan.prediction.configuration] == pytest.approx(least, rel=1e-8)
        positions = [plan.position for plan in answer.plans]
        assert positions == sorted(set(positions))
        assert len(positions) <= max(top, 2) + 1


@settings(max_examples=25, deadline=None)
@given(
    target=st.integers(2, 60),
    nodes=st.sets(st.integers(1, 6), min_size=1),
    sub_batch=st.sampled_from([(1, 2), (3, 7), (5,)]),
    limits=st.fixed_dictionaries(
        {},
        optional={
            "epoch": st.floats(500, 6000),
            "nodes": st.integers(1, 5),
            "samples-per-s": st.floats(5, 90),
            "efficiency": st.floats(0.5, 1),
        },
    ),
)
def test_the_nearest_mini_batch_is_the_nearest_of_which_a_plan_keeps_the_limits(
    machine: Any, target: int, nodes: set[int], sub_batch: tuple[int, ...], limits: dict[str, float]
) -> None:
    """Of an efficiency some plan keeps any limit: it is that of the fastest on the fewest devices at best."""
    asked = {"nodes": (*sorted(nodes),), "sub_batch": sub_batch, "precision": ("fp32",), "mode": ("sync",)}
    request = SpaceRequest(target, takes_nearest=True).changed(**asked, most=limits)
    quantities: dict[str, Callable[[Any], float]] = {
        "epoch": lambda one: machine.one(one)["epoch_s"],
        "nodes": lambda one: one.nodes,
        "samples-per-s": lambda one: -machine.one(one)["samples_per_s"],
    }
    width = max(1.0, 3 * min(nodes) * min(sub_batch) / target)
    every = machine.brute_force(request.changed(most={}, tolerance_sync=width), machine.limits())
    farthest = max(target, min(abs(machine.one(one)["mini_batch_mean"] - target) for one in every))
    kept = [
        abs(machine.one(one)["mini_batch_mean"] - target)
        for one in every
        if all(
            of(one) <= (-1 if name.startswith("samples") else 1) * limits[name]
            for name, of in quantities.items()
            if name in limits
        )
    ]
    of = over_leasts(Asked(request, machine.limits(), machine, machine.order(request)))
    outcome = search(of, keep=1)
    wider = with_nearest_batch([of], [outcome])
    kept = [one for one in kept if one <= farthest]
    assert (outcome.best is not None) == (0 in kept)
    is_exact = any(machine.one(one)["mini_batch_mean"] == target for one in every)  # refused by its limits
    assert bool(wider) == bool(kept and not is_exact)
    for one in wider:
        assert one.request.tolerance_sync * target == pytest.approx(min(kept))
        assert search(one, keep=1).best is not None
