"""Searches by bounds find what pricing every candidate finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import catalog
from planner.domain.configuration import MODES, Configuration, Settings
from planner.domain.objective import TERMS
from planner.domain.precision import PRECISIONS
from planner.domain.request import Problem, SpaceRequest
from planner.errors import UsageError
from planner.search import block, exhaustive
from planner.search import search as module
from planner.search.bases import kinds_of
from planner.search.choice import distinct_plans, ranked
from planner.search.exhaustive import Asked, Outcome, search_among
from planner.search.ranking import PricedPlans, fewest_first
from planner.search.search import search
from planner.search.searchable import order_and_limits
from planner.search.space import space_of
from planner.steps.predict import Evaluator
from tests.search.conftest import SyntheticMachine

KEEP = 5
SUBSETS = st.sets(st.integers(1, 6), min_size=1).map(tuple)


def asked(target_batch: int, **given: Any) -> SpaceRequest:
    return SpaceRequest(target_batch).changed(**given)


REQUESTS = st.builds(
    asked,
    target_batch=st.integers(1, 60),
    tolerance_sync=st.sampled_from([0.0, 0.25, 0.6]),
    tolerance_async=st.sampled_from([0.05, 0.5]),
    nodes=st.none() | SUBSETS,
    gpus_per_node=st.none() | st.sets(st.integers(1, 3), min_size=1).map(tuple),
    sub_batch=st.none() | st.sets(st.integers(1, 30), min_size=1).map(tuple),
    accumulation_steps=st.none() | st.sets(st.integers(1, 4), min_size=1).map(tuple),
    precision=st.sampled_from([("fp32",), ("fp16", "fp32"), ("fp32", "int8")]),
    mode=st.sampled_from([("sync",), ("async",), MODES]),
    objective=st.sampled_from([*TERMS]),
)


@pytest.fixture
def by_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Search the smallest spaces by bounds, part after part."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "PRICED_WHOLE", 0)
        patch.setattr(module, "FEWEST_PARTS", 1)
        patch.setattr(module, "SEEDED", 0)
        yield


def records(plans: PricedPlans | None) -> list[Configuration]:
    return [] if plans is None else [plans.configurations.one(at) for at in range(plans.size)]


def check_alike(bounded: Outcome, whole: Outcome) -> None:
    assert records(bounded.best) == records(whole.best)
    assert records(bounded.smallest)[:1] == records(whole.smallest)[:1]
    assert sorted(map(str, records(bounded.nearest))) == sorted(map(str, records(whole.nearest)))
    assert records(bounded.pareto) == records(whole.pareto)
    assert bounded.certified
    assert bounded.gap is None
    assert bounded.candidates == bounded.evaluated + sum(bounded.refused.values()) + bounded.discarded
    assert bounded.evaluated <= whole.evaluated


@pytest.mark.usefixtures("by_bounds")
@settings(max_examples=30)
@given(REQUESTS)
def test_bounds_discard_nothing_that_brute_force_finds(machine: Any, request_of: SpaceRequest) -> None:
    order, limits = machine.order(request_of), machine.limits()
    whole = search_among(
        space_of(request_of, limits), Asked(request_of, limits, machine, order), keep=KEEP, pareto=True
    )
    check_alike(search(Asked(request_of, limits, machine, order), keep=KEEP, pareto=True), whole)


def problem(network: str, cluster: str, framework: str) -> Problem:
    found = catalog.find_cluster(cluster)
    of = Settings(framework=catalog.find_framework(framework), optimizer="adam", input="synthetic")
    return Problem(catalog.find_network(network), None, found, catalog.calibrations_for(found), settings=of)


SPLIT = [
    ("gpt2", "dgx-h100", "megatron-lm", asked(64, nodes=(1, 3), precision=("bf16", "fp8"))),
    ("gpt2-xl", "dgx-a100", "pytorch", asked(96, nodes=(1, 2), tolerance_sync=0.2, precision=("bf16",))),
    ("mixtral-8x7b", "dgx-h100", "megatron-lm", asked(64, nodes=(2,), precision=("bf16",), sub_batch=(1, 2))),
    ("t5-large", "dgx-a100", "megatron-lm", asked(48, nodes=(1,), precision=("bf16",), objective="epoch-time")),
    (
        "gpt2-large", "dgx-a100", "megatron-lm",
        asked(48, nodes=(2,), precision=("bf16",), schedule=("1f1b", "zero-bubble"), recompute=("none", "full")),
    ),
    ("gpt3-175b", "dgx-h100", "megatron-lm", asked(32, nodes=(1, 2), precision=("bf16",), sub_batch=(1, 2))),
]  # fmt: skip


@pytest.mark.usefixtures("by_bounds")
@pytest.mark.parametrize(("network", "cluster", "framework", "request_of"), SPLIT)
def test_bounds_of_split_networks_discard_nothing_that_brute_force_finds(
    network: str, cluster: str, framework: str, request_of: SpaceRequest
) -> None:
    of = problem(network, cluster, framework)
    request = request_of.changed(parallelism=kinds_of(of.network, of.settings.framework))
    order, limits = order_and_limits(of, request)
    evaluator = Evaluator(of)
    whole = search_among(space_of(request, limits), Asked(request, limits, evaluator, order), keep=KEEP, pareto=True)
    bounded = search(Asked(request, limits, evaluator, order), keep=KEEP, pareto=True)
    check_alike(bounded, whole)
    if whole.best is not None:
        assert bounded.discarded > 0


@pytest.mark.usefixtures("by_bounds")
@settings(max_examples=12)
@given(st.integers(0, 20))
def test_a_search_that_is_stopped_says_how_far_from_the_best_it_may_be(machine: Any, batches: int) -> None:
    request = asked(48, tolerance_sync=0.5, precision=("fp16", "fp32"))
    order, limits = machine.order(request), machine.limits()
    best = search(Asked(request, limits, machine, order), keep=KEEP).best
    left = iter([False] * batches)
    so_far = search(Asked(request, limits, machine, order), keep=KEEP, stopped=lambda: next(left, True))
    assert best is not None
    assert so_far.best is not None
    first, found = (float(order.values(one)[0]) for one in (best, so_far.best))
    gap = 0.0 if so_far.gap is None else so_far.gap
    assert found * (1 - gap) <= first * (1 + 1e-9) <= found * (1 + 2e-9)
    assert so_far.certified == (gap == 0)


def test_time_that_finds_nothing_is_refused(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRICED_WHOLE", 0)
    request = asked(48, precision=("fp32",)).changed(most={"epoch": 1e-3})
    rule = "the time of the search must be enough to find a plan that fits, got none among the first"
    with pytest.raises(UsageError, match=rule):
        search(Asked(request, machine.limits(), machine, machine.order(request)), keep=1, stopped=lambda: True)


def test_a_front_is_stopped_too(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (block, exhaustive):
        monkeypatch.setattr(place, "CHUNK", 4)
    request = asked(48, tolerance_sync=0.5, precision=("fp16", "fp32"))
    order, limits = machine.order(request), machine.limits()
    outcome = search(Asked(request, limits, machine, order), keep=1, pareto=True, stopped=lambda: True)
    assert outcome.pareto is not None
    assert not outcome.certified
    assert outcome.gap is None
    assert outcome.candidates == outcome.evaluated + sum(outcome.refused.values()) + outcome.discarded


@pytest.mark.usefixtures("by_bounds")
@settings(max_examples=30)
@given(REQUESTS, st.sampled_from((0.03, 0.05, 0.09)), st.integers(1, 12))
def test_beside_another_search_all_is_found_that_stands_first_of_both(
    machine: Any, request_of: SpaceRequest, compute_s: float, keep: int
) -> None:
    order, other = machine.order(request_of), SyntheticMachine(compute_s=compute_s)
    rival = search(Asked(request_of, other.limits(), other, order), keep=keep)
    own = Asked(request_of, machine.limits(), machine, order)
    alone, beside = (search(own, keep=keep, pareto=True, beside=some) for some in ([], [rival]))
    assert records(beside.best)[:1] == records(alone.best)[:1]
    assert records(beside.pareto) == records(alone.pareto)
    assert beside.evaluated <= alone.evaluated

    def first_of_both(one: Outcome) -> list[Any]:
        both = {0: rival.best, 1: one.best}
        best = ranked(order, {at: distinct_plans(order, some) for at, some in both.items() if some is not None})
        both = {0: rival.smallest, 1: one.smallest}
        parts = {at: distinct_plans(order, some) for at, some in both.items() if some is not None}
        smallest = ranked(fewest_first(order), parts).take([0])
        number = keep // len(request_of["precision"] or PRECISIONS)
        return [best.search[:number], records(best.priced)[:number], smallest.search, records(smallest.priced)]

    if rival.best is not None and alone.best is not None:
        assert first_of_both(beside) == first_of_both(alone)
