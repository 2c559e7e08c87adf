"""The constraints that are named as contradicting each other, against a list of every plan of a small machine."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.domain.axes import AXES as ALL
from planner.domain.configuration import Configuration
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Loosening
from planner.search.exhaustive import Asked
from planner.search.loosen import Loosener, constraints_of, smallest_conflict
from planner.search.search import search
from tests.search.conftest import GIB, SyntheticMachine

MACHINE = SyntheticMachine(capacity=8 * GIB)  # six samples fit in fp32, eight in fp16
NODES, GPUS = 4, 2
LIMITS = MACHINE.limits(NODES, GPUS)
AXES = {axis.name: axis for axis in ALL if not axis.splits}
ALL_GPUS = f"--gpus-per-node {GPUS} (the default; --gpus-per-node 1:{GPUS} allows fewer)"
STEPS = sorted({*range(1, 41), *(2**power for power in range(13))})


@cache
def every_plan() -> dict[str, np.ndarray[Any, Any]]:
    """Return all plans as columns, priced one by one."""
    plans = [
        Configuration(nodes, gpus, sub_batch, steps, precision, mode)
        for mode in ("sync", "async")
        for precision, most in (("fp32", 6), ("fp16", 8))
        for sub_batch in range(1, most + 1)
        for nodes in range(1, NODES + 1)
        for gpus in range(1, GPUS + 1)
        for steps in (STEPS if mode == "sync" else (1,))
    ]
    figures = [MACHINE.one(one) for one in plans]
    columns = {name: np.array([getattr(one, name) for one in plans]) for name in AXES}
    columns |= {name: np.array([one[name] for one in figures]) for name in ("mini_batch_mean", "epoch_s")}
    hours = columns["epoch_s"] * columns["nodes"] * columns["gpus_per_node"] / 3600
    staleness = np.array([one["staleness_mean"] for one in figures])
    return columns | {"epoch": columns["epoch_s"], "gpu-hours": hours, "staleness": staleness}


def keeps(request: SpaceRequest, text: str) -> np.ndarray[Any, Any]:
    """Return by hand which plans keep to a constraint."""
    of = every_plan()
    if text.startswith("--target-batch"):
        low, high = request.window("sync")  # that of both modes
        is_small = (of["mode"] == "sync") | (of["sub_batch"] <= high)
        is_inside = (of["mini_batch_mean"] >= low * (1 - 1e-12)) & (of["mini_batch_mean"] <= high * (1 + 1e-12))
        return np.asarray(is_small & is_inside)
    if text == ALL_GPUS:
        return np.asarray(of["gpus_per_node"] == GPUS)
    option, value = text.split(" ", 1)
    if option == "--limit":
        name = value.split("=")[0]
        return np.asarray(of[name] <= request.most[name])
    name = next(one.name for one in AXES.values() if one.option == option[2:].replace("-", "_"))
    return np.isin(of[name], request[name] or ())


def fits(request: SpaceRequest, kept: tuple[str, ...]) -> bool:
    """Tell whether some plan keeps to constraints; where no mode is given plans are synchronous."""
    of = every_plan()
    tried = np.isin(of["mode"], (*request.modes, "sync"))
    return bool(np.all([tried, *(keeps(request, text) for text in kept)], axis=0).any())


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values, min_size=1, max_size=2, unique=True).map(lambda found: tuple(sorted(found)))


VALUES = {
    "nodes": some(st.integers(1, NODES)),
    "gpus_per_node": some(st.integers(1, GPUS)),
    "sub_batch": some(st.integers(1, 12)),
    "accumulation_steps": some(st.integers(1, 12)),
    "precision": some(st.sampled_from(("fp32", "fp16"))),
    "mode": some(st.sampled_from(("sync", "async"))),
}
LIMITED = {
    "epoch": st.floats(50, 20_000),
    "gpu-hours": st.floats(0.5, 6),
    "nodes": st.integers(1, 3).map(float),
    "staleness": st.floats(0.5, 6),
}
REQUESTS = st.builds(
    lambda target, width, axes, most: SpaceRequest(
        target, tolerance_sync=width, tolerance_async=width, asked=axes, most=most
    ),
    st.integers(1, 40),
    st.sampled_from((0.0, 0.1)),
    st.fixed_dictionaries({}, optional=VALUES),
    st.fixed_dictionaries({}, optional=LIMITED),
)


@settings(max_examples=20, deadline=None)
@given(REQUESTS)
def test_no_plan_keeps_to_all_that_is_named_and_some_to_all_but_one(request: SpaceRequest) -> None:
    order = MACHINE.order(request)
    outcome = search(Asked(request, LIMITS, MACHINE, order), keep=1)
    assume(outcome.best is None)
    every = tuple(one.text for one in constraints_of(request, order, LIMITS))
    assert not fits(request, every)
    asked = [Asked(request, LIMITS, MACHINE, order)]
    ways = Loosener(asked[0]).loosenings(outcome)
    named = smallest_conflict(asked, ways)
    assert set(named) <= set(every)
    assert named
    assert not fits(request, named)
    for text in named:
        assert fits(request, tuple(other for other in named if other != text)), (named, text)
    alone = smallest_conflict(asked)  # without what is known of each constraint
    assert not fits(request, alone)
    assert all(fits(request, tuple(other for other in alone if other != text)) for text in alone)


@pytest.mark.parametrize(
    ("request_of", "named"),
    [
        (
            SpaceRequest(24, asked={"nodes": (3,), "precision": ("fp16",)}, most={"nodes": 2.0}),
            ("--nodes 3", "--limit nodes=2"),
        ),
        (SpaceRequest(36, asked={"precision": ("fp32",), "sub_batch": (7,)}), ("--sub-batch 7", "--precision fp32")),
        (SpaceRequest(36, asked={"sub_batch": (9,)}), ("--sub-batch 9",)),
        (SpaceRequest(7, asked={"nodes": (1,)}), (ALL_GPUS, "--target-batch 7 --tolerance 0%")),
        (SpaceRequest(7, asked={"nodes": (2,)}), ("--nodes 2", "--target-batch 7 --tolerance 0%")),
        (
            SpaceRequest(7, asked={"nodes": (1,), "gpus_per_node": (2,)}),
            ("--gpus-per-node 2", "--target-batch 7 --tolerance 0%"),
        ),
        (
            SpaceRequest(32, asked={"sub_batch": (3,)}, tolerance_sync=0.02),
            ("--sub-batch 3", "--target-batch 32 --tolerance 2%"),
        ),
    ],
)
def test_what_contradicts_by_hand(request_of: SpaceRequest, named: tuple[str, ...]) -> None:
    assert smallest_conflict([Asked(request_of, LIMITS, MACHINE, MACHINE.order(request_of))]) == named


def test_a_way_that_helps_in_one_framework_is_enough() -> None:
    """Of two searches the one with room for nine samples satisfies a request without its window."""
    request = SpaceRequest(7, asked={"sub_batch": (9,)})
    large = SyntheticMachine(capacity=20 * GIB)
    asked = [Asked(request, one.limits(NODES, GPUS), one, one.order(request)) for one in (MACHINE, large)]
    assert smallest_conflict(asked[:1]) == ("--sub-batch 9",)
    both = ("--sub-batch 9", "--target-batch 7 --tolerance 0%")
    assert smallest_conflict(asked) == both
    assert smallest_conflict(asked, [Loosening((("--tolerance", "100%"),), "")]) == both
