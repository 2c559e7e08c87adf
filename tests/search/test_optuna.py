"""The search by Optuna on a synthetic machine: lawful plans, none twice, the best of them, and what it says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.domain.configuration import Configuration
from planner.domain.request import SpaceRequest
from planner.errors import InputFileError, UsageError
from planner.search.exhaustive import Asked, Outcome, lawful_plans
from planner.search.optuna_search import LawfulPlans, OptunaSearch
from planner.search.optuna_study import GRACE_S, Sampler, StudyPlace
from planner.search.ranking import PricedPlans
from planner.search.search import least_values, search
from planner.search.space import space_of

SYNC = SpaceRequest(96, tolerance_sync=0.1)
BOTH = SpaceRequest(60, tolerance_sync=0.2, tolerance_async=0.4).changed(mode=("sync", "async"))


def asked(machine: Any, request: SpaceRequest, search_by: OptunaSearch, keep: int = 600) -> Outcome:
    limits, order = machine.limits(), machine.order(request)
    return search_by(Asked(request, limits, machine, order), keep=keep, pareto=request.pareto)


def records(plans: Any) -> list[Configuration]:
    return [plans.configurations.one(at) for at in range(plans.size)]


@pytest.mark.parametrize("request_of", [BOTH.changed(nodes=(1, 3, 6)), SpaceRequest(36)], ids=["both", "exact target"])
def test_all_lawful_plans_are_tried_once_when_trials_suffice(machine: Any, request_of: SpaceRequest) -> None:
    """A search that goes to the end is an exhaustive one: same plans, in the same order, and it says so."""
    searcher = OptunaSearch(10_000, starts=False)
    outcome = asked(machine, request_of, searcher, keep=6000)
    exact = search(Asked(request_of, machine.limits(), machine, machine.order(request_of)), keep=1000)
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
    assert set(plans.axes) == set(proposed)
    plan = plans.nearest(proposed)
    assert plan is not None
    nearest = [c for c in every if (c.nodes, c.precision) == (5, "fp16")]
    least = min(abs(np.log(c.sub_batch / 4)) for c in nearest)
    nearest = [c for c in nearest if abs(np.log(c.sub_batch / 4)) == least]
    assert plans.configurations([plan]).one(0) == min(nearest, key=lambda c: abs(np.log(c.accumulation_steps / 2)))
    plans.taken.add(plan)
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
    exact = search(Asked(SYNC, machine.limits(), machine, machine.order(SYNC)), keep=1)
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
    assert some.method == "optuna (TPE), 60 trials"
    assert some.pareto is not None
    every = asked(machine, request, OptunaSearch(10_000, starts=False))
    exact = search(Asked(request, machine.limits(), machine, machine.order(request)), keep=5, pareto=True)
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


@pytest.mark.parametrize("seed", [1])
def test_without_a_start_it_comes_within_one_percent(machine: Any, seed: int) -> None:
    request = SpaceRequest(4000, tolerance_sync=0.1).changed(gpus_per_node=tuple(range(1, 9)))
    limits, order = machine.limits(nodes=64, gpus=8), machine.order(request)
    exact = search(Asked(request, limits, machine, order), keep=1)
    outcome = OptunaSearch(200, seed=seed, starts=False)(Asked(request, limits, machine, order), keep=1, pareto=False)
    lawful = sum(plans.size for plans in lawful_plans(Asked(request, limits, machine, order)))
    assert lawful > 20 * outcome.evaluated
    assert exact.best is not None
    assert outcome.best is not None
    assert order.values(outcome.best)[0] <= 1.01 * order.values(exact.best)[0]


BOUNDED = SpaceRequest(480, tolerance_sync=0.1).changed(precision=("fp32", "fp16"))
FEW = 40
"""Plans to keep: twenty values of two precisions."""


def bounded(machine: Any, request: SpaceRequest, searcher: OptunaSearch, keep: int = FEW) -> Outcome:
    limits, order = machine.limits(nodes=16), machine.order(request)
    return searcher(Asked(request, limits, machine, order), keep=keep, pareto=request.pareto)


def every_plan(machine: Any, request: SpaceRequest) -> list[PricedPlans]:
    return list(lawful_plans(Asked(request, machine.limits(nodes=16), machine, machine.order(request))))


@pytest.mark.parametrize("request_of", [BOUNDED, BOTH], ids=["sync", "both"])
def test_no_plan_takes_less_than_its_bound(machine: Any, request_of: SpaceRequest) -> None:
    order = machine.order(request_of)
    for plans in every_plan(machine, request_of):
        assert np.all(least_values(plans.configurations, machine, order) <= order.values(plans) * (1 + 1e-9))


def test_each_plan_is_priced_once_however_often_the_study_goes_on(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced: list[Configuration] = []
    evaluate = type(machine).evaluate

    def counted(self: Any, some: Any) -> Any:
        if some.size == 1:  # of a trial; all are priced again for the answer, and at the next start
            priced.append(some.one(0))
        return evaluate(self, some)

    monkeypatch.setattr(type(machine), "evaluate", counted)
    place = StudyPlace(str(tmp_path / "s.log"))
    for seed in (0, 0, 1):
        bounded(machine, BOUNDED, OptunaSearch(20, place, seed, starts=False))
    assert len(priced) == len(set(priced)) == 60


def test_once_bounds_of_all_others_are_behind_the_search_ends_certified(machine: Any) -> None:
    searcher = OptunaSearch(10_000, starts=False)
    outcome = bounded(machine, BOUNDED, searcher)
    exact = search(Asked(BOUNDED, machine.limits(nodes=16), machine, machine.order(BOUNDED)), keep=3)
    assert outcome.best is not None
    assert exact.best is not None
    assert outcome.certified
    assert searcher.trials_here < exact.candidates / 2
    assert records(outcome.best)[:3] == records(exact.best)


@pytest.mark.parametrize("trials", [3, 10, 40])
def test_the_gap_is_no_less_than_what_is_missing(machine: Any, trials: int) -> None:
    outcome = bounded(machine, BOUNDED, OptunaSearch(trials, seed=trials, starts=False))
    order = machine.order(BOUNDED)
    best = min(order.values(plans).min() for plans in every_plan(machine, BOUNDED))
    assert outcome.best is not None
    assert outcome.gap is not None
    assert 0 < outcome.gap < 1
    assert order.values(outcome.best)[0] * (1 - outcome.gap) <= best * (1 + 1e-9)


def test_of_plans_without_a_bound_no_gap_is_told(machine: Any) -> None:
    outcome = bounded(machine, BOTH, OptunaSearch(20, starts=False))
    assert (outcome.certified, outcome.gap) == (False, None)


def test_the_plan_of_a_worker_that_died_is_tried_by_another(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim without a result holds its plan for GRACE_S, and no longer."""
    place, limits = StudyPlace(str(tmp_path / "s.log")), machine.limits()
    bounded_space = SpaceRequest(36).changed(nodes=(1, 2))
    plans = LawfulPlans(bounded_space, limits)
    plan = plans.nearest({name: of[0] for name, of in plans.axes.items()})
    assert plan is not None
    values = plans.values_of(plans.configurations([plan]))
    study = place.open(1, {}, {})
    assert study.claim(values, Sampler(plans.axes, 0).distributions) == 0
    assert study.claim(values, Sampler(plans.axes, 0).distributions) is None
    alone = asked(machine, bounded_space, OptunaSearch(1000, place, starts=False), keep=10_000)
    assert alone.candidates == plans.space.inside - 1
    later = time.time() + GRACE_S
    monkeypatch.setattr("planner.search.optuna_study.time.time", lambda: later)
    every = asked(machine, bounded_space, OptunaSearch(1000, place, starts=False), keep=10_000)
    assert every.candidates == plans.space.inside
    study.tell(0, [1.0])  # late: its result does not count
    assert asked(machine, bounded_space, OptunaSearch(1, place, starts=False)).trials == every.trials


def _leaves(of: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = of.items() if isinstance(of, dict) else enumerate(of) if isinstance(of, list) else ()
    yield place
    for key, value in items:
        yield from _leaves(value, (*place, key))


WRONG: tuple[Any, ...] = (
    0,
    -1,
    1e300,
    float("nan"),
    float("inf"),
    10**400,
    "x",
    None,
    True,
    [],
    {},
    [1, 2],
    {"nodes": 1},
)


def test_a_study_changed_at_any_place_is_answered_or_refused_in_a_sentence(machine: Any, tmp_path: Path) -> None:
    """Every value of every record of a journal, by values that it may not have, in turn."""
    path = tmp_path / "s.log"
    inputs, options = {"network": "abc"}, {"option": {"nodes": "1:6"}}

    def go_on() -> Outcome:
        searcher = OptunaSearch(1, StudyPlace(str(path)), 0, inputs, options, starts=False)
        outcome = asked(machine, BOTH, searcher, keep=3)
        StudyPlace(str(path)).load()
        return outcome

    for _ in range(3):
        go_on()
    lines = path.read_text().splitlines()
    sentences, number = [], 0
    for at, line in enumerate(lines):
        for place in _leaves(json.loads(line)):
            number += 1
            record = [json.loads(line)]
            where: Any = record
            for key in (0, *place)[:-1]:
                where = where[key]
            where[(0, *place)[-1]] = WRONG[number % len(WRONG)]
            changed = [*lines[:at], json.dumps(record[0]), *lines[at + 1 :]]
            path.write_text("\n".join(changed) + "\n")
            try:
                assert go_on().trials >= 1
            except (InputFileError, UsageError) as error:
                sentences.append(str(error))
    assert len(sentences) > number / 4
    assert not any("\n" in one for one in sentences)


@pytest.mark.parametrize("keep", [1, 7, 40])
def test_a_torn_last_record_is_cut_and_nothing_else(machine: Any, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "s.log"
    asked(machine, SYNC, OptunaSearch(3, StudyPlace(str(path)), starts=False))
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-1][:keep])
    assert asked(machine, SYNC, OptunaSearch(2, StudyPlace(str(path)), starts=False)).trials == 5
    assert path.read_bytes().startswith(whole + b'{"op_code"')
    assert [json.loads(line)["op_code"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "text", ["{'no': 'journal'}", '{"a": 1}', "a table\nof text", "\0" * 99, "[1]\n", '{"op":1}\n']
)
def test_a_file_that_is_no_journal_is_refused_and_stays_as_it_is(machine: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.log"
    path.write_text(text)
    with pytest.raises(InputFileError):
        asked(machine, SYNC, OptunaSearch(3, StudyPlace(str(path)), starts=False))
    assert path.read_text() == text
