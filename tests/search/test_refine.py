"""Leading plans with best stages and recompute by stage: never worse, and no other way to refine them is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.catalog import find_cluster, find_network
from planner.domain.axes import AXES
from planner.domain.configuration import Configurations, Settings
from planner.domain.request import Problem, SpaceRequest
from planner.search.exhaustive import Asked, Outcome
from planner.search.search import Refined, refinement, search, without_refinement
from planner.search.searchable import order_and_limits
from planner.steps.predict import Evaluator

NETWORK = "gpt:layers=7,hidden=1024,heads=16,sequence=1024,vocabulary=50257"
REQUEST = SpaceRequest(64, asked={"nodes": (1,), "precision": ("fp16",), "virtual_stages": (1,)}, top=5)
VALUES = {"stages": "best", "recompute": "per-stage"}


def problem_of(memory_gib: float) -> Problem:
    """Return a network and one node of A100 with so much memory."""
    cluster = find_cluster("dgx-a100")
    node = cluster.node
    small = replace(node, accelerator=replace(node.accelerator, memory_bytes=memory_gib * 2**30))
    settings = Settings("adam", input="synthetic")
    return Problem(find_network(NETWORK), None, replace(cluster, node=small), (), settings=settings)


def outcomes(problem: Problem, request: SpaceRequest = REQUEST, keep: int = 60) -> tuple[Outcome, Outcome, Evaluator]:
    order, limits = order_and_limits(problem, request)
    evaluator = Evaluator(problem)
    arguments: dict[str, Any] = {"keep": keep, "pareto": False}
    plain = search(Asked(request, limits, evaluator, order), **arguments)
    return plain, Refined(VALUES)(Asked(request, limits, evaluator, order), **arguments), evaluator


def others(plans: Configurations, at: int) -> tuple[int, ...]:
    """Return a plan but for what is refined."""
    return tuple(int(getattr(plans, axis.name)[at]) for axis in AXES if axis.name not in VALUES)


@pytest.mark.parametrize("memory_gib", [5.0, 7.0, 12.0])
def test_a_refined_plan_beats_all_that_are_as_it_but_for_what_is_refined(memory_gib: float) -> None:
    plain, refined, evaluator = outcomes(problem_of(memory_gib))
    assert plain.best is not None
    assert refined.best is not None
    assert refined.best.predictions.iteration_s[0] <= plain.best.predictions.iteration_s[0]
    least: dict[tuple[int, ...], float] = {}
    for at, seconds in enumerate(plain.best.predictions.iteration_s.tolist()):
        key = others(plain.best.configurations, at)
        least[key] = min(seconds, least.get(key, np.inf))
    plans, priced = refined.best.configurations, evaluator.evaluate(refined.best.configurations)
    np.testing.assert_allclose(priced.iteration_s, refined.best.predictions.iteration_s, rtol=1e-12)
    gains = 0
    for at in range(plans.size):
        one = plans.one(at)
        if one.stages == "best" or one.recompute == "per-stage":
            assert priced.iteration_s[at] < least[others(plans, at)]
            assert priced.memory_bytes[at] <= memory_gib * 2**30
            gains += 1
    assert gains
    assert not refined.certified


def test_where_nothing_fits_the_outcome_is_that_of_the_search() -> None:
    plain, refined, _ = outcomes(problem_of(0.6))
    assert plain.best is None
    assert refined == plain


def test_what_is_searched_has_no_value_that_is_chosen_for_each_plan() -> None:
    asked = REQUEST.changed(stages=("best",), recompute=("none", "per-stage"))
    assert refinement(asked) == VALUES
    assert without_refinement(asked) == REQUEST.changed(stages=None, recompute=("none",))
    assert refinement(REQUEST) == {}


@pytest.mark.parametrize("command", ["sweep", "suggest"])
def test_where_all_plans_are_looked_at_it_is_refused(command: str, run: Callable[..., Any]) -> None:
    options = ["--target-batch", "64", "--network", "gpt2", "--cluster", "dgx-a100", "--stages", "best"]
    more = ["--why-not", "nodes=1"] if command == "suggest" else []
    code, _, err = run(command, *options, *more)
    assert code == 2
    assert "--stages must be of fixed values with" in err


def test_best_stages_reach_virtual_stages_that_even_ones_cannot_have() -> None:
    """10 layers are no multiple of 4 stages x 2 chunks."""
    problem = replace(problem_of(16.0), network=find_network(NETWORK.replace("7", "10", 1)))
    asked = {"nodes": (1,), "precision": ("fp16",), "pipeline_parallel": (4,), "tensor_parallel": (1,)}
    request = SpaceRequest(64, asked={**asked, "virtual_stages": (1, 2), "recompute": ("none",)})
    plain, refined, _ = outcomes(problem, request)
    assert plain.best is not None
    assert refined.best is not None
    assert set(plain.best.configurations.virtual_stages.tolist()) == {1}
    assert 2 in refined.best.configurations.virtual_stages
