"""Trials pruned by their bounds: never among the best, counted as tried, kept by a study; and the gap that is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from planner.domain.request import SpaceRequest
from planner.search.evaluator import PricedPlans
from planner.search.exhaustive import Outcome, lawful_plans
from planner.search.optuna_search import OptunaSearch
from planner.search.optuna_standing import Standing
from planner.search.optuna_study import NAME, StudyPlace
from planner.search.optuna_trials import BOUND, PLAN
from planner.search.plan_bounds import least_values
from planner.search.search import search

BOTH = SpaceRequest(60, tolerance_sync=0.2, tolerance_async=0.4).changed(mode=("sync", "async"))
SYNC = SpaceRequest(480, tolerance_sync=0.1).changed(precision=("fp32", "fp16"))
FEW = 40
"""Plans to keep: twenty values of two precisions."""


def outcome_of(machine: Any, request: SpaceRequest, searcher: OptunaSearch, keep: int = FEW) -> Outcome:
    limits, order = machine.limits(nodes=16), machine.order(request)
    return searcher(request, limits, machine, order, keep=keep, pareto=request.pareto)


def trials_of(path: Path) -> list[Any]:
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    return optuna.load_study(study_name=NAME, storage=storage).get_trials()


def every_plan(machine: Any, request: SpaceRequest) -> list[PricedPlans]:
    limits, order = machine.limits(nodes=16), machine.order(request)
    return list(lawful_plans(request, limits, machine, order))


@pytest.mark.parametrize("request_of", [SYNC, BOTH], ids=["sync", "both"])
def test_no_plan_takes_less_than_its_bound(machine: Any, request_of: SpaceRequest) -> None:
    order = machine.order(request_of)
    for plans in every_plan(machine, request_of):
        assert np.all(least_values(plans.configurations, machine, order) <= order.values(plans) * (1 + 1e-9))


@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_pruned_is_worse_than_the_best_and_tried_once(
    machine: Any, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, priced = tmp_path / "s.log", []
    evaluate = type(machine).evaluate

    def counted(self: Any, some: Any) -> Any:
        priced.append(some.size)
        return evaluate(self, some)

    monkeypatch.setattr(type(machine), "evaluate", counted)
    outcome = outcome_of(machine, SYNC, OptunaSearch(110, StudyPlace(str(path)), seed, starts=False))
    trials = trials_of(path)
    pruned = [one for one in trials if BOUND in one.user_attrs]
    assert outcome.best is not None
    assert (outcome.trials, outcome.discarded) == (len(trials), len(pruned))
    assert outcome.evaluated + outcome.discarded == outcome.candidates
    assert len(pruned) > 10
    assert sum(priced[:-1]) == len(trials) - len(pruned)  # the last call prices all of them for the answer
    assert all(one.state == optuna.trial.TrialState.PRUNED for one in pruned)
    assert len({one.user_attrs[PLAN] for one in trials}) == len(trials)
    worst = np.unique(machine.order(SYNC).values(outcome.best))[FEW // 2 - 1]
    by_plan = {
        (c.nodes, c.precision, c.sub_batch, c.accumulation_steps): machine.one(c)["epoch_s"]
        for plans in every_plan(machine, SYNC)
        for c in (plans.configurations.one(at) for at in range(plans.size))
    }
    for one in pruned:
        names = ("nodes", "precision", "sub_batch", "accumulation_steps")
        value = by_plan[tuple(one.params[name] for name in names)]
        assert worst < one.user_attrs[BOUND] <= value * (1 + 1e-9)


def test_once_bounds_of_all_others_are_behind_the_search_ends_certified(machine: Any) -> None:
    searcher = OptunaSearch(10_000, starts=False)
    outcome = outcome_of(machine, SYNC, searcher)
    exact = search(SYNC, machine.limits(nodes=16), machine, machine.order(SYNC), keep=3)
    assert outcome.best is not None
    assert exact.best is not None
    assert (outcome.certified, outcome.discarded > 0) == (True, True)
    assert searcher.trials_here < exact.candidates / 2
    first = [outcome.best.configurations.one(at) for at in range(3)]
    assert first == [exact.best.configurations.one(at) for at in range(3)]


def test_pruned_trials_stay_so_and_more_plans_asked_for_bring_them_back(machine: Any, tmp_path: Path) -> None:
    place = StudyPlace(str(tmp_path / "s.log"))
    first = outcome_of(machine, SYNC, OptunaSearch(80, place, starts=False))
    again = outcome_of(machine, SYNC, OptunaSearch(40, place, seed=1, starts=False))
    assert (first.trials, again.trials) == (80, 120)
    assert again.discarded >= first.discarded > 0
    assert f"{again.discarded} of them pruned by their bounds" in again.method
    every = outcome_of(machine, SYNC, OptunaSearch(1, place, seed=2, starts=False), keep=6000)
    assert (every.discarded, every.evaluated) == (0, 121)


def test_a_front_is_that_of_all_plans_though_some_are_pruned(machine: Any) -> None:
    request = SYNC.changed(pareto=True)
    outcome = outcome_of(machine, request, OptunaSearch(10_000, starts=False))
    exact = search(request, machine.limits(nodes=16), machine, machine.order(request), keep=3, pareto=True)
    assert outcome.pareto is not None
    assert exact.pareto is not None
    assert outcome.discarded > 0
    fronts = [[of.configurations.one(at) for at in range(of.size)] for of in (outcome.pareto, exact.pareto)]
    assert fronts[0] == fronts[1]
    assert outcome.smallest is not None
    assert exact.smallest is not None
    assert outcome.smallest.configurations.one(0) == exact.smallest.configurations.one(0)


@pytest.mark.parametrize("trials", [3, 10, 40])
def test_the_gap_is_no_less_than_what_is_missing(machine: Any, trials: int) -> None:
    outcome = outcome_of(machine, SYNC, OptunaSearch(trials, seed=trials, starts=False))
    order = machine.order(SYNC)
    best = min(order.values(plans).min() for plans in every_plan(machine, SYNC))
    assert outcome.best is not None
    assert outcome.gap is not None
    assert 0 < outcome.gap < 1
    assert order.values(outcome.best)[0] * (1 - outcome.gap) <= best * (1 + 1e-9)


def test_of_plans_without_a_bound_no_gap_is_told(machine: Any) -> None:
    outcome = outcome_of(machine, BOTH, OptunaSearch(20, starts=False))
    assert (outcome.certified, outcome.gap) == (False, None)


def test_a_plan_on_fewer_gpus_or_of_the_front_is_worth_its_price() -> None:
    standing = Standing(2, wants_front=False)
    for value, gpus in ((3.0, 8), (2.0, 16), (2.0, 8)):
        assert standing.promises(9.0, 4)
        standing.add(value, gpus, hits_target=gpus == 8)
    assert (standing.best, standing.is_behind(3.0), standing.is_behind(3.1)) == (2.0, False, True)
    assert [standing.promises(3.1, gpus) for gpus in (4, 8, 16)] == [True, False, False]
    front = Standing(1, wants_front=True)
    front.add(3.0, 8, hits_target=False)
    assert front.promises(4.0, 16)
    front.add(3.5, 8, hits_target=True)
    assert [front.promises(4.0, gpus) for gpus in (4, 16)] == [True, False]
