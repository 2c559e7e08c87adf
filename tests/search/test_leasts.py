"""A weighted objective against brute force: each term over its own least of all lawful plans."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.configuration import MODES, Configuration
from planner.domain.objective import weights_of
from planner.domain.request import SpaceRequest
from planner.search.exhaustive import Asked
from planner.search.searchable import over_leasts
from planner.search.studies import Among, sweep_with, why_nots
from tests.search.conftest import suggest_with

USD_PER_GPU_HOUR = 2.0
WEIGHTS = st.sampled_from([0.01, 0.2, 1.0, 3.5])
REQUESTS = st.builds(
    lambda target, tolerance, mode, epoch_weight, cost_weight: SpaceRequest(target).changed(
        tolerance_sync=tolerance,
        tolerance_async=tolerance,
        mode=mode,
        precision=("fp32", "fp16"),
        objective=f"epoch-time:{epoch_weight}+cost:{cost_weight}",
        pareto=True,
    ),
    st.integers(1, 60),
    st.sampled_from([0.1, 0.25, 0.5]),
    st.sampled_from([("sync",), MODES]),
    WEIGHTS,
    WEIGHTS,
)


def values_of(machine: Any, lawful: list[Configuration], objective: str) -> tuple[dict[str, float], list[float]]:
    """Return the least of each term, and the sum of each plan, by loops."""
    seconds = [machine.one(one)["epoch_s"] for one in lawful]
    terms = {
        "epoch-time": seconds,
        "cost": [s * one.gpus / 3600 * USD_PER_GPU_HOUR for s, one in zip(seconds, lawful, strict=True)],
    }
    leasts = {name: min(values) for name, values in terms.items()}
    weights = weights_of(objective)
    return leasts, [sum(weights[k] * terms[k][i] / leasts[k] for k in weights) for i in range(len(lawful))]


@settings(max_examples=6)
@given(REQUESTS)
def test_the_sum_of_each_term_over_its_least_is_minimised(machine: Any, request: SpaceRequest) -> None:
    limits, order = machine.limits(), machine.order(request)
    lawful = machine.brute_force(request, limits)
    answer = suggest_with(machine, order, limits, request, {})
    if not lawful:
        assert (answer.status, dict(answer.leasts)) == ("none_feasible", {})
        return
    leasts, values = values_of(machine, lawful, request.objective)
    assert answer.leasts == pytest.approx(leasts, rel=1e-8)
    of_plan = dict(zip(lawful, values, strict=True))
    assert answer.plans[0].objective == pytest.approx(min(values), rel=1e-8)
    for plan in (*answer.plans, *answer.pareto):
        assert plan.objective == pytest.approx(of_plan[plan.prediction.configuration], rel=1e-8)
    in_order = [plan.objective for plan in answer.plans]
    assert in_order == sorted(in_order, key=lambda one: one or 0.0)
    swept = sweep_with(Asked(request, limits, machine, order), {})
    assert swept.best.objective == answer.plans[0].objective
    among = Among(request, limits, machine, over_leasts(Asked(request, limits, machine, order)).order, {})
    (why,) = why_nots([among], {"nodes": (answer.plans[0].prediction.configuration.nodes,)})
    assert (why.rank, why.first and why.first.objective) == (1, answer.plans[0].objective)


def test_one_heavy_term_alone_gives_its_own_ranking(machine: Any) -> None:
    request = SpaceRequest(24).changed(precision=("fp32",))
    limits = machine.limits()

    def best(objective: str) -> Configuration:
        one = request.changed(objective=objective)
        return suggest_with(machine, machine.order(one), limits, one, {}).plans[0].prediction.configuration

    assert best("epoch-time") != best("cost")
    assert best("epoch-time:1+cost:0.000001") == best("epoch-time")
    assert best("epoch-time:0.000001+cost:1") == best("cost")
