"""Equal plans are one, ties follow from what two plans share, and the tied one taken is the one asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import catalog
from planner.domain.configuration import Configuration, Settings
from planner.domain.request import Problem, SpaceRequest
from planner.domain.suggestion import Loosening, Suggestion
from planner.search import choice
from planner.search.choice import (
    LARGEST_PROBABILITY,
    MOST_COMPARED,
    SURE_PROBABILITY,
    Choice,
    alike_of,
    choice_of,
    expected_regret,
    largest_regrets,
    lines_of,
    probability_better,
)
from planner.search.exhaustive import Asked, lawful_plans
from planner.search.explain import listed_positions
from planner.search.searchable import order_and_limits
from planner.steps.predict import Evaluator, compare_among
from tests.search.conftest import suggest_with


def answered(machine: Any, request: SpaceRequest) -> Suggestion:
    return suggest_with(machine, machine.order(request), machine.limits(), request, {})


def choice_among(
    plans: Sequence[Configuration],
    deviation: Callable[[int], float | None],
    values: Sequence[float] = (),
    staleness: Sequence[float] = (),
    tight: Sequence[bool] = (),
    *,
    objective: str = "epoch-time",
) -> Choice:
    """Return what is taken of plans, 1 % apart, that differ from the first by a deviation, by position."""

    def describe(rows: Sequence[int]) -> tuple[list[Any], Any]:
        return [SimpleNamespace(configuration=plans[row]) for row in rows], lambda _, other: deviation(rows[other])

    apart = [1.02**at for at in range(len(plans))]
    return choice_of(
        values or apart, plans, describe, SpaceRequest(36, objective=objective), staleness=staleness, tight=tight
    )


@given(first=st.floats(1e-3, 1e3), ratio=st.floats(0.2, 5.0), deviation=st.floats(0.01, 2.0))
def test_probability_is_that_of_a_logarithm_with_heavy_tails(first: float, ratio: float, deviation: float) -> None:
    """Student's t with 5 degrees of freedom, its density summed, up to the largest claim."""
    found = probability_better(first, first * ratio, deviation)
    t = np.linspace(0, np.log(ratio) / deviation, 20_001)
    density = 8 / (3 * math.pi * math.sqrt(5)) / (1 + t**2 / 5) ** 3
    expected = 0.5 + float(np.trapezoid(density, t))
    assert found == pytest.approx(np.clip(expected, 1 - LARGEST_PROBABILITY, LARGEST_PROBABILITY), abs=1e-5)


@pytest.mark.parametrize(("deviation", "expected"), [(0.05, 0.949), (math.hypot(0.05, 0.08), 0.831)])
def test_probability_of_fixed_values(monkeypatch: pytest.MonkeyPatch, deviation: float, expected: float) -> None:
    monkeypatch.setattr(choice, "LARGEST_PROBABILITY", 1.0)
    assert probability_better(1.0, math.exp(0.1), deviation) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("other", "expected"), [(1.0, 0.5), (2.0, LARGEST_PROBABILITY), (0.5, 1 - LARGEST_PROBABILITY)]
)
def test_without_doubt_the_prediction_decides_up_to_the_largest_claim(other: float, expected: float) -> None:
    assert probability_better(1.0, other, 0.0) == pytest.approx(expected)
    assert probability_better(1.0, other, None) is None


def test_plans_of_one_family_share_a_line_and_the_chosen_one_is_the_first_of_its_own() -> None:
    plans = [Configuration(2, 4, 8, 1), Configuration(2, 4, 4, 2), Configuration(1, 8, 8, 1), Configuration(2, 4, 2, 4)]
    values = [1.0, 1.009, 1.0095, 1.011]
    assert lines_of(values, plans, [0] * 4, 0) == ((0, 1), (2,), (3,))
    assert lines_of(values, plans, [0] * 4, 1) == ((0,), (1,), (2,), (3,))
    assert lines_of(values, plans, [0, 1, 0, 0], 0) == ((0,), (1,), (2,), (3,))
    assert alike_of(plans[:2]) == {"sub_batch": ("8", "4"), "accumulation_steps": ("1", "2")}


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.floats(1, 1.05), st.integers(1, 9), st.floats(0, 1), st.booleans()), min_size=1
    ),
    st.sampled_from(["epoch-time", "gpu-hours", "cost"]),
)
def test_no_tied_plan_has_fewer_gpus_or_as_many_and_more_memory_or_a_smaller_staleness(
    rows: list[tuple[int, float, int, float, bool]], objective: str
) -> None:
    """Unless it takes more GPU-hours than plan 1, or a plan that is surely worse beats it on no more devices."""
    plans = [Configuration(nodes, 8, at + 1, mode="async") for at, (nodes, *_) in enumerate(rows)]
    values = np.cumprod([step for _, step, *_ in rows]).tolist()
    _, _, stale, deviations, tight = zip(*rows, strict=True)
    choice = choice_among(plans, deviations.__getitem__, values, stale, tight, objective=objective)
    taken = choice.row
    hours = [value * (plan.gpus if objective == "epoch-time" else 1) for value, plan in zip(values, plans, strict=True)]
    better = [probability_better(values[0], value, one) for value, one in zip(values, deviations, strict=True)]
    worse = [at for at, one in enumerate(better) if at and one is not None and one >= SURE_PROBABILITY]
    assert taken not in worse
    if plans[taken].gpus < plans[0].gpus:
        assert hours[taken] <= hours[0]
    costly = any(plans[at].gpus < plans[0].gpus and hours[at] > hours[0] for at in choice.tied)
    assert ("more GPU-hours" in choice.reason) == costly
    for at, plan in enumerate(plans):
        saves = plan.gpus == plans[0].gpus or hours[at] <= hours[0]
        if saves and (plan.gpus, tight[at], stale[at]) < (plans[taken].gpus, tight[taken], stale[taken]):
            assert any(one <= at and plans[one].gpus <= plan.gpus for one in worse)


def test_equal_plans_of_two_precisions_are_one_bf16_first(machine: Any) -> None:
    """fp16 and bf16 at one speed and size: each plan once, and as many plans as asked for."""
    names = {"fp32": 1.0, "fp16": 0.6, "bf16": 0.6}
    both = replace(machine, speed=names, size=dict.fromkeys(names, 1.0))
    request = SpaceRequest(36).changed(mode=("sync",), top=5)  # one of them is the knee
    answer = answered(both, request)
    assert [plan.position for plan in answer.plans][:4] == [1, 2, 3, 4]
    of_half = [plan for plan in answer.plans if plan.prediction.configuration.precision != "fp32"]
    assert of_half
    assert all(plan.precisions == ("bf16", "fp16") for plan in of_half)
    assert all(plan.prediction.configuration.precision == plan.precisions[0] for plan in answer.plans)
    assert len({replace(plan.prediction.configuration, precision="fp32") for plan in of_half}) == len(of_half)


def test_equal_plans_of_a_front_and_the_nearest_ones_are_one_bf16_first(machine: Any) -> None:
    names = {"fp32": 1.0, "fp16": 0.6, "bf16": 0.6}
    both = replace(machine, speed=names, size=dict.fromkeys(names, 1.0))
    front = answered(both, SpaceRequest(36).changed(mode=("sync",), pareto=True)).pareto
    assert len(front) > 1
    assert {plan.precisions for plan in front} == {("bf16", "fp16")}
    assert {plan.prediction.configuration.precision for plan in front} == {"bf16"}
    none = answered(both, SpaceRequest(36).changed(mode=("sync",), sub_batch=(5,), nodes=(1,)))
    assert none.nearest
    assert all(plan.precisions == ("bf16", "fp16") for plan in none.nearest)
    assert all(", fp16," not in one.message for one in none.loosen)


def test_two_options_that_give_way_together_are_each_told_with_its_value() -> None:
    assert Loosening((("--nodes", "1"), ("--gpus-per-node", "7")), "").given == "--nodes 1 --gpus-per-node 7"
    assert Loosening((("--tolerance", "3%"),), "").given == "--tolerance 3%"


def test_without_errors_no_plan_is_tied(machine: Any) -> None:
    answer = answered(machine, SpaceRequest(36).changed(mode=("sync",)))
    assert (answer.chosen, answer.tied) == (1, (1,))
    assert answer.choice == "no other plan is tied with it"


def test_the_tied_plan_of_fewest_gpus_is_taken_and_reported_even_behind_the_others(machine: Any) -> None:
    unsure = replace(machine, unsure=2.0)
    request = SpaceRequest(36).changed(mode=("sync",), top=2)
    answer = answered(unsure, request)
    every = answered(unsure, request.changed(top=MOST_COMPARED))
    tied = [plan for plan in every.plans if plan.position in every.tied]
    assert len(tied) > 2
    assert all(plan.first_is_better is None or plan.first_is_better < SURE_PROBABILITY for plan in tied)
    outside = [plan for plan in every.plans if plan.position not in every.tied]
    assert all(plan.first_is_better is not None and plan.first_is_better >= SURE_PROBABILITY for plan in outside)
    worse = [plan for plan in every.plans if plan.position not in every.tied]
    sound = [
        plan
        for plan in tied
        if not any(
            one.position < plan.position and one.prediction.configuration.gpus <= plan.prediction.configuration.gpus
            for one in worse
        )
    ]
    best = min(sound, key=lambda one: (one.prediction.configuration.gpus, -one.prediction.configuration.sub_batch))
    assert answer.chosen == every.chosen == best.position > 2
    assert [plan.position for plan in answer.plans] == sorted({1, best.position, answer.knee or 1})
    assert answer.chosen_plan is not None
    assert answer.chosen_plan.prediction == best.prediction
    fastest = answered(unsure, request.changed(choose="fastest"))
    assert (fastest.chosen, fastest.tied) == (1, answer.tied)


def test_efficiency_is_relative_to_the_best_plan_on_the_fewest_gpus(machine: Any) -> None:
    answer = answered(machine, SpaceRequest(36).changed(mode=("sync",), top=MOST_COMPARED))
    assert answer.baseline is not None
    rates = {plan.prediction.configuration: plan.prediction.samples_per_s.value for plan in answer.plans}
    fewest = min(one.gpus for one in rates)
    assert answer.baseline.gpus == fewest
    base = max(rate / fewest for one, rate in rates.items() if one.gpus == fewest)
    for plan in answer.plans:
        one = plan.prediction.configuration
        assert plan.efficiency == pytest.approx(rates[one] / one.gpus / base)


@given(st.sets(st.integers(1, 30), min_size=1))
def test_positions_in_words_name_each_once(positions: set[int]) -> None:
    words = listed_positions(sorted(positions), 30).replace(" and ", ", ").split(", ")
    found = [range(int(low), int(high or low) + 1) for low, _, high in (word.partition(" to ") for word in words)]
    assert [one for span in found for one in span] == sorted(positions)
    assert all(len(span) == 1 or len(span) > 2 for span in found)


def test_plans_are_tied_below_the_sure_probability() -> None:
    plans = [Configuration(1 + at, 8, 1) for at in range(4)]
    assert choice_among(plans, lambda _: None).tied == (0,)
    assert choice_among(plans, lambda at: (0, 1, 0.001, 1)[at]).tied == (0, 1, 3)


def ranked_plans(machine: Any) -> list[Configuration]:
    plans = answered(machine, SpaceRequest(36).changed(mode=("sync",), top=MOST_COMPARED)).plans
    return [plan.prediction.configuration for plan in plans]


def of_gpus(plans: Sequence[Configuration], gpus: int) -> list[Configuration]:
    return [plan for plan in plans if plan.gpus == gpus]


def test_why_the_plan_is_taken_is_said(machine: Any) -> None:
    plans = ranked_plans(machine)
    counts = list(dict.fromkeys(plan.gpus for plan in plans))
    alike = next(group for group in (of_gpus(plans, gpus) for gpus in counts) if len(group) > 1)
    assert choice_among(sorted(alike, key=lambda one: one.sub_batch), lambda _: 9.0).reason.endswith(
        "has the largest sub-batch"
    )
    two = [of_gpus(plans, gpus)[0] for gpus in counts[:2]]
    choice = choice_among(two, lambda _: 9.0)
    assert (choice.row, choice.reason) == (1, "plans 1 and 2 are tied; plan 2 has the fewest GPUs")
    stale = choice_among([Configuration(2, 4, 8, mode="async")] * 9, lambda _: 9.0, staleness=range(9, 0, -1))
    assert (stale.row, stale.reason) == (8, "plans 1 to 9 are tied; plan 9 has the smallest staleness")


TOLD_APART = [
    (True, 2.0, 1, "none"), (False, 2.0, 9, "full"), (False, 1.0, 1, "full"), (False, 1.0, 2, "full"),
    (False, 1.0, 2, "none"),
]  # fmt: skip
"""Whether memory is tight, staleness, sub-batch, recompute: each better than the one before in the next reason."""


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((0, 1), "plan 2 has memory to spare"),
        ((0, 1, 2), "of those with memory to spare, plan 3 has the smallest staleness"),
        ((0, 1, 3), "of those with memory to spare, plan 3 has the smallest staleness"),
        ((0, 2, 3), "of those with memory to spare, plan 3 has the largest sub-batch"),
        ((2, 3, 4), "of those with the largest sub-batch, plan 3 has the simplest split"),
        ((0, 3, 4), "of those with memory to spare, plan 3 has the simplest split"),
        ((1, 1), "plan 1 has the best prediction of them"),
    ],
)
def test_a_reason_counts_among_the_plans_that_are_alike_in_those_before_it(rows: Sequence[int], said: str) -> None:
    tight, stale, sub_batches, recompute = zip(*(TOLD_APART[row] for row in rows), strict=True)
    pairs = zip(sub_batches, recompute, strict=True)
    plans = [Configuration(1, 8, one, recompute=name) for one, name in pairs]
    reason = choice_among(plans, lambda _: 9.0, staleness=stale, tight=tight).reason
    assert reason.split("; ")[1] == said


def test_a_plan_that_is_tied_for_want_of_knowledge_alone_is_not_taken(machine: Any) -> None:
    """The second plan beats the third on as many GPUs and is surely worse than the first: so is the third."""
    plans = ranked_plans(machine)
    few = next(group for group in (of_gpus(plans, n) for n in (3, 6, 9, 12)) if len(group) > 1)
    first = next(plan for plan in plans if plan.gpus > few[0].gpus)
    choice = choice_among([first, *few[:2]], lambda at: (0, 0.001, 9.0)[at])
    assert (choice.row, choice.tied) == (0, (0, 2))
    assert choice_among([first, *few[:2]], lambda _: 9.0).row > 0


@pytest.mark.parametrize(("value", "other", "deviation"), [(1.0, 1.0, 0.1), (1.1, 1.0, 0.05), (1.0, 1.2, 0.3)])
def test_expected_regret_is_the_mean_of_what_a_plan_is_worse_by(value: float, other: float, deviation: float) -> None:
    sample = np.random.default_rng(1).normal(math.log(value / other), deviation, 400_000)
    assert expected_regret(value, other, deviation) == pytest.approx(np.maximum(sample, 0).mean(), rel=0.02)


def test_expected_regret_without_errors_is_the_difference() -> None:
    assert expected_regret(1.1, 1.0, 0.0) == pytest.approx(math.log(1.1))
    assert expected_regret(1.0, 1.1, 0.0) == 0.0
    assert expected_regret(1.0, 1.1, None) is None


def test_least_regret_is_not_always_the_fastest_prediction() -> None:
    """The second is 1 % slower, but its error is small beside the third's; the first's is not."""
    deviations = [[0.0, 0.1, 0.3], [0.1, 0.0, 0.02], [0.3, 0.02, 0.0]]
    regrets = largest_regrets([1.0, 1.01, 1.02], deviations)
    assert np.argmin(regrets) == 1
    assert largest_regrets([1.0, 1.01], [[None, None], [None, None]]) == [math.inf, math.inf]
    assert largest_regrets([1.0], [[0.0]]) == [0.0]


def test_no_asynchronous_plan_that_was_priced_and_is_tied_has_fewer_gpus_or_is_as_small_and_fresher() -> None:
    """Unless a surely worse plan beats it on no more devices."""
    found = catalog.find_cluster("dgx-a100")
    calibrations = catalog.calibrations_for(found)
    problem = Problem(catalog.find_network("resnet50"), None, found, calibrations, settings=Settings(input="synthetic"))
    request = SpaceRequest(1000).changed(mode=("async",), nodes=(1, 2, 4), sub_batch=tuple(range(2, 960, 12)))
    order, limits = order_and_limits(problem, request)
    evaluator = Evaluator(problem)
    chosen = suggest_with(evaluator, order, limits, request, {}).chosen_plan
    (priced,) = lawful_plans(Asked(request, limits, evaluator, order))
    plans = order.best(priced, priced.size)
    assert plans.size > MOST_COMPARED
    _, deviation = compare_among([evaluator], None, [0] * plans.size, plans.configurations)
    values, gpus, stale = order.values(plans), plans.configurations.gpus, plans.predictions.staleness_mean
    better = [probability_better(values[0], value, deviation(0, at)) for at, value in enumerate(values.tolist())]
    worse = np.array([at > 0 and one is not None and one >= SURE_PROBABILITY for at, one in enumerate(better)])
    assert chosen is not None
    taken = chosen.prediction.configuration.gpus, chosen.prediction.staleness.mean
    for at in np.flatnonzero(~worse).tolist():
        assert (gpus[at], stale[at]) >= taken or (worse[:at] & (gpus[:at] <= gpus[at])).any()


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(1, 1.05), st.integers(1, 64), st.booleans()), min_size=1),
    st.sampled_from(["gpu-hours", "cost"]),
)
def test_hours_that_are_to_be_least_are_given_for_memory_to_spare_alone(
    rows: list[tuple[int, float, int, bool]], objective: str
) -> None:
    """Not for a larger sub-batch, a simpler split or fewer GPUs."""
    plans = [Configuration(nodes, 8, sub_batch) for nodes, _, sub_batch, _ in rows]
    values = np.cumprod([step for _, step, *_ in rows]).tolist()
    tight = [one[-1] for one in rows]
    taken = choice_among(plans, lambda _: 1.0, values, tight=tight, objective=objective).row
    if values[taken] > values[0]:
        assert plans[taken].gpus == plans[0].gpus
        assert (tight[0], tight[taken]) == (True, False)
        assert all(tight[at] for at in range(taken) if plans[at].gpus == plans[0].gpus)
