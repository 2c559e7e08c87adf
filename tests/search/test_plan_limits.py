from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.objective import LIMITS
from planner.domain.prediction import Run
from planner.domain.request import SpaceRequest
from planner.errors import ParameterError
from planner.search.exhaustive import Asked
from planner.search.loosen import Loosener, loosenings
from planner.search.ranking import Order, check_limits, limit_text
from planner.search.search import search
from planner.search.searchable import over_leasts
from planner.units import parse_quantity
from tests.search.conftest import suggest_with

MOST = [name for name, one in LIMITS.items() if not one.is_least]


def quantities(machine: Any, one: Any) -> dict[str, float]:
    p = machine.one(one)
    hours = p["epoch_s"] * one.gpus / 3600
    values = (p["epoch_s"], hours, 2.0 * hours, one.nodes, p["staleness_mean"], p["epoch_s"])
    return dict(zip(MOST, values, strict=True))


def inside(machine: Any, one: Any, window: tuple[float, float]) -> float:
    """Return the share of updates inside a window: sub-batches of every GPU, that many times or once more.

    Up to rounding: of what is surely inside it may be below 1 by the last digit.
    """
    if one.mode == "sync":
        return 1.0
    p = machine.one(one)
    whole, rest = divmod(p["update_s"] / p["iteration_s"], 1)
    sizes = [(one.gpus * whole + k) * one.sub_batch for k in range(one.gpus + 1)]
    chances = [math.comb(one.gpus, k) * rest**k * (1 - rest) ** (one.gpus - k) for k in range(one.gpus + 1)]
    return math.fsum(chance for size, chance in zip(sizes, chances, strict=True) if window[0] <= size <= window[1])


@settings(max_examples=12)
@given(target=st.integers(4, 40), limits=st.dictionaries(st.sampled_from(MOST), st.floats(0.1, 1e4), max_size=3))
def test_limits_keep_what_brute_force_keeps(machine: Any, target: int, limits: dict[str, float]) -> None:
    request = SpaceRequest(target).changed(
        mode=("sync", "async"), tolerance_sync=0.25, tolerance_async=0.5, precision=("fp32", "fp16"), most=limits
    )
    outcome = search(Asked(request, machine.limits(), machine, machine.order(request)), keep=4)
    lawful = [
        one
        for one in machine.brute_force(request, machine.limits())
        if all(quantities(machine, one)[name] <= most for name, most in limits.items())
    ]
    best = [] if outcome.best is None else [outcome.best.configurations.one(at) for at in range(outcome.best.size)]
    assert best == lawful[:4]
    assert outcome.evaluated == len(lawful)
    assert outcome.evaluated + sum(outcome.refused.values()) == outcome.candidates


@settings(max_examples=10)
@given(target=st.integers(4, 40), least=st.floats(0.01, 0.99))
def test_plans_keep_the_share_of_updates_inside_the_window(machine: Any, target: int, least: float) -> None:
    request = SpaceRequest(target).changed(mode=("sync", "async"), tolerance_async=0.5, most={"window": least})
    order = machine.order(request)
    outcome = search(Asked(request, machine.limits(), machine, order), keep=4)
    every = machine.brute_force(request.changed(most={}), machine.limits())
    lawful = [one for one in every if inside(machine, one, order.window) >= least]
    best = [] if outcome.best is None else [outcome.best.configurations.one(at) for at in range(outcome.best.size)]
    assert best == lawful[:4]


@settings(max_examples=10)
@given(
    target=st.integers(4, 40),
    least=st.fixed_dictionaries(
        {},
        optional={
            "samples-per-s": st.floats(1, 90),
            "tokens-per-s": st.floats(1, 500),
            "efficiency": st.floats(0.1, 1),
        },
    ),
)
def test_plans_reach_rates_and_an_efficiency(machine: Any, target: int, least: dict[str, float]) -> None:
    request = SpaceRequest(target).changed(mode=("sync",), tolerance_sync=0.25, most=least)
    limits, order = machine.limits(), replace(machine.order(request), tokens=7)
    order = over_leasts(Asked(request, limits, machine, order)).order
    every = machine.brute_force(request.changed(most={}), limits)
    rates = {one: machine.one(one)["samples_per_s"] for one in every}
    fast = [one for one in every if rates[one] >= max(least.get("samples-per-s", 0), least.get("tokens-per-s", 0) / 7)]
    baseline = min(fast, key=lambda one: (one.gpus, -rates[one]), default=None)
    lawful = [
        one
        for one in fast
        if baseline
        and rates[one] / one.gpus * (1 + 1e-12) >= least.get("efficiency", 0) * rates[baseline] / baseline.gpus
    ]
    outcome = search(Asked(request, limits, machine, order), keep=4)
    assert (
        [] if outcome.best is None else [outcome.best.configurations.one(at) for at in range(outcome.best.size)]
    ) == (lawful[:4])


@settings(max_examples=6)
@given(target=st.integers(4, 40), deadline_s=st.floats(1e3, 2e5), epochs=st.integers(1, 9))
def test_the_fewest_nodes_then_gpus_keep_the_deadline(
    machine: Any, target: int, deadline_s: float, epochs: int
) -> None:
    request = SpaceRequest(target).changed(
        mode=("sync",),
        tolerance_sync=0.25,
        gpus_per_node=(1, 3),
        precision=("fp32",),
        most={"run": deadline_s},
        run=Run(epochs),
    )
    limits, order = machine.limits(nodes=4), replace(machine.order(request), run=request.run)
    found = Loosener(Asked(request, limits, machine, order)).fewest()
    timely = [
        (one.nodes, one.gpus_per_node)
        for one in machine.brute_force(request.changed(most={}), limits)
        if epochs * machine.one(one)["epoch_s"] <= deadline_s
    ]
    assert (None if found is None else (found["nodes"], found["gpus_per_node"])) == (
        tuple((one,) for one in min(timely)) if timely else None
    )


@pytest.mark.parametrize("name", ["epoch", "gpu-hours", "cost", "nodes"])
def test_a_limit_that_nothing_keeps_gives_way_to_the_nearest(machine: Any, name: str) -> None:
    request = SpaceRequest(12).changed(mode=("sync",), precision=("fp32",), most={name: 1e-6})
    order = machine.order(request)
    outcome = search(Asked(request, machine.limits(), machine, order), keep=1)
    assert outcome.best is None
    of = Asked(request, machine.limits(), machine, order)
    way = next(one for one in loosenings(of, outcome) if one.option == "--limit")
    text = way.value.removeprefix(f"{name}=")
    value = parse_quantity(text, "time") if name == "epoch" else float(text)
    least = min(
        quantities(machine, one)[name] for one in machine.brute_force(request.changed(most={}), machine.limits())
    )
    assert least <= value <= least * 1.001


def test_what_is_not_known_cannot_be_limited() -> None:
    order = Order("epoch-time", 8, has_dataset=False)
    check_limits({"nodes": 3.0}, order)
    with pytest.raises(ParameterError, match="data set"):
        check_limits({"epoch": 3.0}, order)
    with pytest.raises(ParameterError, match=r"^--deadline must be given with --tokens or a data set"):
        check_limits({"run": 3.0}, order)
    check_limits({"run": 3.0}, replace(order, run=Run(tokens=1e9), tokens=1024))
    with pytest.raises(ParameterError, match="no language model"):
        check_limits({"tokens-per-s": 3.0}, order)
    with pytest.raises(ParameterError, match="price"):
        check_limits({"cost": 3.0}, Order("epoch-time", 8, has_dataset=True))
    check_limits({"window": 0.5}, order)
    with pytest.raises(ParameterError, match="synchronous"):
        check_limits({"window": 0.5}, order, ("sync",))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("epoch", 3600.4, "1.001h"),
        ("run", 3000, "50min"),
        ("run", 90 * 86400, "90d"),
        ("run", 100 * 3600, "100h"),
        ("run", 3712.6 * 3600, "154.7d"),
        ("nodes", 12, "12"),
        ("cost", 0.123456, "0.1235"),
        ("efficiency", 0.8, "80%"),
        ("efficiency", 0.123456, "12.34%"),
    ],
)
def test_limits_are_written_as_they_are_typed(name: str, value: float, text: str) -> None:
    assert limit_text(name, value) == text


@settings(max_examples=15)
@given(
    target=st.integers(4, 40),
    limits=st.dictionaries(st.sampled_from([*LIMITS][:4]), st.floats(1e-3, 0.05), min_size=1, max_size=2),
)
def test_the_plans_nearest_to_limits_are_those_that_exceed_them_least(
    machine: Any, target: int, limits: dict[str, float]
) -> None:
    request = SpaceRequest(target).changed(mode=("sync",), precision=("fp32",), most=limits)
    order = machine.order(request)
    answer = suggest_with(machine, order, machine.limits(), request, {})
    every = machine.brute_force(replace(request, most={}), machine.limits())
    if not every:
        assert all(
            one.prediction.mini_batch.mean != target and "nearest" in one.why and "above --limit" in one.why
            for one in answer.nearest
        )
        return

    def excess(one: Any) -> float:
        return max(quantities(machine, one)[name] / most for name, most in limits.items())

    told = [plan.prediction.configuration for plan in answer.nearest]
    assert [plan.position for plan in answer.nearest] == [*range(1, len(told) + 1)]
    assert [excess(one) for one in told] == pytest.approx(sorted(map(excess, every))[:3])
    for plan in answer.nearest:
        exceeded = {name for name in limits if quantities(machine, plan.prediction.configuration)[name] > limits[name]}
        assert {name for name in LIMITS if f"above --limit {name}" in plan.why} == exceeded
