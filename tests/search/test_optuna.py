"""The search by Optuna on a synthetic machine: lawful plans, none twice, the best of them, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from planner.domain.configuration import Configuration
from planner.domain.request import SpaceRequest
from planner.search.exhaustive import Outcome, lawful_plans
from planner.search.optuna_search import OptunaSearch
from planner.search.optuna_space import LawfulPlans
from planner.search.search import search
from planner.search.space import space_of

SYNC = SpaceRequest(96, tolerance_sync=0.1)
BOTH = SpaceRequest(60, tolerance_sync=0.2, tolerance_async=0.4).changed(mode=("sync", "async"))


def asked(machine: Any, request: SpaceRequest, search_by: OptunaSearch, keep: int = 600) -> Outcome:
    limits, order = machine.limits(), machine.order(request)
    return search_by(request, limits, machine, order, keep=keep, pareto=request.pareto)


def records(plans: Any) -> list[Configuration]:
    return [plans.configurations.one(at) for at in range(plans.size)]


@pytest.mark.parametrize("request_of", [SYNC, BOTH, SpaceRequest(36)], ids=["sync", "both", "exact target"])
def test_all_lawful_plans_are_tried_once_when_trials_suffice(machine: Any, request_of: SpaceRequest) -> None:
    """A search that goes to the end is an exhaustive one: same plans, in the same order, and it says so."""
    searcher = OptunaSearch(10_000, starts=False)
    outcome = asked(machine, request_of, searcher, keep=6000)
    exact = search(request_of, machine.limits(), machine, machine.order(request_of), keep=1000)
    assert exact.best is not None
    assert outcome.best is not None
    assert records(outcome.best) == records(exact.best)
    assert (outcome.certified, outcome.evaluated) == (True, exact.evaluated)
    assert searcher.trials_here == outcome.candidates == outcome.evaluated + sum(outcome.refused.values())


def test_what_is_proposed_becomes_the_nearest_lawful_plan(machine: Any) -> None:
    """Against every lawful plan, by loops: axis by axis the nearest value stays, sub-batch and accumulation last."""
    limits = machine.limits()
    plans = LawfulPlans(SYNC, limits)
    every = [
        c
        for chunk in space_of(SYNC, limits).chunks()
        for c in (chunk.rows.one(at) for at in range(chunk.size))
        if 86.4 <= c.samples_per_update <= 105.6
    ]
    proposed: dict[str, int | str] = {"nodes": 5, "precision": "fp16", "sub_batch": 4, "accumulation_steps": 2}
    assert {domain.name for domain in plans.domains} == set(proposed)
    plan = plans.nearest(proposed)
    assert plan is not None
    nearest = [c for c in every if (c.nodes, c.precision) == (5, "fp16")]
    least = min(abs(np.log(c.sub_batch / 4)) for c in nearest)
    nearest = [c for c in nearest if abs(np.log(c.sub_batch / 4)) == least]
    assert plans.configurations([plan]).one(0) == min(nearest, key=lambda c: abs(np.log(c.accumulation_steps / 2)))
    plans.mark(plan)
    assert plans.nearest(proposed) not in (None, plan)


def test_a_plan_is_found_by_its_values(machine: Any) -> None:
    plans = LawfulPlans(BOTH, machine.limits())
    plan = plans.nearest({"nodes": 2, "precision": "fp32", "mode": "async", "sub_batch": 3, "accumulation_steps": 9})
    assert plan is not None
    one = plans.configurations([plan])
    assert one.one(0).mode == "async"
    assert plans.find(plans.values_of(one)) == plan
    assert plans.find({**plans.values_of(one), "sub_batch": 10**6}) is None


def test_the_same_seed_gives_the_same_trials(machine: Any) -> None:
    first, second = (asked(machine, SYNC, OptunaSearch(30, seed=3, starts=False)) for _ in range(2))
    other = asked(machine, SYNC, OptunaSearch(30, seed=4, starts=False), keep=30)
    assert first.best is not None
    assert second.best is not None
    assert other.best is not None
    assert records(first.best) == records(second.best)
    assert (first.method, first.certified, first.evaluated) == ("optuna (TPE), 30 trials", False, 30)
    assert records(other.best) != records(asked(machine, SYNC, OptunaSearch(30, seed=3, starts=False), keep=30).best)


def test_it_starts_from_the_best_plan_of_the_space(machine: Any) -> None:
    exact = search(SYNC, machine.limits(), machine, machine.order(SYNC), keep=1)
    outcome = asked(machine, SYNC, OptunaSearch(1), keep=1)
    assert exact.best is not None
    assert outcome.best is not None
    assert records(outcome.best) == records(exact.best)
    assert (outcome.certified, outcome.evaluated) == (True, 1)


def test_nothing_that_fits_is_the_answer_of_the_exact_search(machine: Any) -> None:
    request = SpaceRequest(97).changed(nodes=(2,))
    outcome = asked(machine, request, OptunaSearch(5))
    assert (outcome.best, outcome.method) == (None, "exhaustive")
    assert outcome.nearest is not None


def test_several_objectives_give_a_front(machine: Any) -> None:
    """Of all that were tried: no plan tried is better in time, GPUs and distance; to the end it is the exact front."""
    request = SYNC.changed(pareto=True)
    some = asked(machine, request, OptunaSearch(60, starts=False))
    assert some.method == "optuna (NSGA-II), 60 trials"
    assert some.pareto is not None
    every = asked(machine, request, OptunaSearch(10_000, starts=False))
    exact = search(request, machine.limits(), machine, machine.order(request), keep=5, pareto=True)
    assert every.pareto is not None
    assert exact.pareto is not None
    assert records(every.pareto) == records(exact.pareto)
    started = asked(machine, request, OptunaSearch(60))
    assert started.pareto is not None
    assert started.certified
    assert records(started.pareto) == records(exact.pareto)


def test_what_a_limit_refuses_is_told_and_counted(machine: Any) -> None:
    request = SYNC.changed(most={"nodes": 3.0})
    outcome = asked(machine, request, OptunaSearch(80, starts=False))
    assert outcome.best is not None
    assert max(c.nodes for c in records(outcome.best)) <= 3
    assert outcome.evaluated + sum(outcome.refused.values()) == outcome.candidates == 80
    assert [why.code for why in outcome.refused] == ["limit"]


def test_stopped_it_has_the_best_so_far(machine: Any) -> None:
    asked_so_far = 0

    @contextmanager
    def interruption() -> Iterator[Any]:
        def is_stopped() -> bool:
            nonlocal asked_so_far
            asked_so_far += 1
            return asked_so_far > 12

        yield is_stopped

    searcher = OptunaSearch(200, starts=False, interruption=interruption)
    outcome = asked(machine, SYNC, searcher)
    assert (searcher.trials_here, searcher.is_interrupted) == (12, True)
    assert outcome.evaluated == 12
    assert outcome.best is not None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_a_start_it_comes_within_one_percent(machine: Any, seed: int) -> None:
    request = SpaceRequest(4000, tolerance_sync=0.1).changed(gpus_per_node=tuple(range(1, 9)))
    limits, order = machine.limits(nodes=64, gpus=8), machine.order(request)
    exact = search(request, limits, machine, order, keep=1)
    outcome = OptunaSearch(300, seed=seed, starts=False)(request, limits, machine, order, keep=1, pareto=False)
    lawful = sum(plans.size for plans in lawful_plans(request, limits, machine, order))
    assert lawful > 20 * outcome.evaluated
    assert exact.best is not None
    assert outcome.best is not None
    assert order.values(outcome.best)[0] <= 1.01 * order.values(exact.best)[0]
