"""Layers of stages with virtual stages by trials: the best of all where they suffice, never worse, none tried twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import find_cluster, find_network
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.request import Problem, SpaceRequest
from planner.search.allowed import order_and_limits
from planner.search.chunk_layouts import ChunkTrials, _adding_up
from planner.search.evaluator import PricedPlans
from planner.search.feasibility import Rules
from planner.search.optuna_nodes import NodeTrials
from planner.steps.predict import Evaluator

NETWORK = "gpt:layers=12,hidden=1024,heads=16,sequence=512,vocabulary=128000"
REQUEST = SpaceRequest(16, asked={"nodes": (1,), "precision": ("bf16",)})
GIB = 2.0**30
OPTIONS = (
    "--network gpt2-medium --cluster dgx-a100 --nodes 1 --target-batch 8 --parallelism pipeline --optimizer adam "
    "--precision bf16 --pipeline 4 --virtual-stages 2 --framework generic"
)
ASKED = ("suggest", *OPTIONS.split())


def problem_of(memory_gib: float = 40.0) -> Problem:
    cluster = find_cluster("dgx-a100")
    accelerator = replace(cluster.node.accelerator, memory_bytes=memory_gib * GIB)
    small = replace(cluster, node=replace(cluster.node, accelerator=accelerator))
    return Problem(find_network(NETWORK), None, small, (), settings=Settings("adam", input="synthetic"))


def plan_of(**values: Any) -> Configurations:
    own = {"pipeline_parallel": 4, "virtual_stages": 2, "stages": "best", **values}
    return Configurations.of([Configuration(1, 8, 1, 8, "bf16", **own)])


def trials_of(problem: Problem, **more: Any) -> tuple[ChunkTrials, Evaluator]:
    order, limits = order_and_limits(problem, REQUEST)
    evaluator = Evaluator(problem)
    capacity = problem.cluster.node.accelerator.memory_bytes
    return ChunkTrials(evaluator, order, Rules.of(REQUEST, limits, ("bf16",), order), capacity, **more), evaluator


def priced(evaluator: Evaluator, one: Configurations) -> PricedPlans:
    return PricedPlans(one, evaluator.evaluate(one))


def every_layout(number: int, stages: int, chunks: int) -> Iterator[np.ndarray]:
    for cuts in combinations(range(1, number // chunks), stages - 1):
        yield chunks * np.diff((0, *cuts, number // chunks))


@pytest.mark.parametrize(("recompute", "memory_gib"), [("none", 40.0), ("none", 4.4), ("per-stage", 4.2)])
def test_trials_that_suffice_find_the_best_of_all_that_fit(recompute: str, memory_gib: float) -> None:
    problem, one = problem_of(memory_gib), plan_of(recompute=recompute)
    reference, times = Evaluator(problem), []
    for layers in every_layout(12, 4, 2):
        reference.choose_stage_layers(one, layers)
        of = reference.evaluate(one)
        times.append(of.iteration_s[0] if of.memory_bytes[0] <= memory_gib * GIB else np.inf)
    trials, evaluator = trials_of(problem)
    exact = priced(evaluator, one)
    assert np.isfinite(min(times))
    found, (tuned,) = trials.run(exact)
    assert found.predictions.iteration_s[0] == pytest.approx(min(times), rel=1e-8)
    assert found.predictions.iteration_s[0] <= exact.predictions.iteration_s[0]
    assert found.predictions.memory_bytes[0] <= memory_gib * GIB
    assert tuned.trials == len(times) == 10
    assert evaluator.evaluate(one).iteration_s[0] == found.predictions.iteration_s[0]


def test_the_gain_is_over_even_stages() -> None:
    trials, evaluator = trials_of(problem_of())
    even = evaluator.evaluate(plan_of(virtual_stages=3, stages="even")).iteration_s[0]
    found, (tuned,) = trials.run(priced(evaluator, plan_of(virtual_stages=3)))
    assert tuned.gain == pytest.approx(1 - found.predictions.iteration_s[0] / even)


def test_other_plans_stay_as_they_are() -> None:
    trials, evaluator = trials_of(problem_of())
    plans = Configurations.joined([plan_of(virtual_stages=1), plan_of(stages="even", virtual_stages=3)])
    assert trials.run(priced(evaluator, plans))[1] == ()
    every, said = trials.run(priced(evaluator, Configurations.joined([plans, plan_of()])))
    assert [every.configurations.one(at).stages for at in range(3)] == ["best", "even", "best"]
    assert len(said) == 1


def test_stopped_at_once_the_exact_cut_stays() -> None:
    @contextmanager
    def interruption() -> Iterator[Any]:
        yield lambda: True

    trials, evaluator = trials_of(problem_of(), interruption=interruption)
    exact = priced(evaluator, plan_of())
    found, said = trials.run(exact)
    assert found.predictions.iteration_s[0] == evaluator.evaluate(plan_of()).iteration_s[0]
    assert found.predictions.iteration_s[0] == exact.predictions.iteration_s[0]
    assert said == ()


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 40))
def test_layers_are_made_to_add_up(layers: list[int], more: int) -> None:
    whole = len(layers) + more
    choice = _adding_up(tuple(layers), whole)
    assert sum(choice) == whole
    assert min(choice) >= 1
    assert choice == tuple(layers) or sum(layers) != whole


def test_the_answer_says_so(run: Any) -> None:
    code, out, err = run(*ASKED, "--stages", "best", "--trials", "20")
    words = " ".join(out.split())
    document = json.loads(run(*ASKED, "--stages", "best", "--trials", "20", "--json")[1])
    (tuned,) = document["search"]["tuned"]
    assert code == 0
    assert len((out + err).splitlines()) <= 25
    assert tuned["what"] == "stage_layers"
    assert tuned["gain"] > 0
    saved = f"{100 * tuned['gain']:.2g}% (optuna (TPE), {tuned['trials']} trials)"
    assert f"Other layers on virtual stages save {saved}." in words
    assert document["search"]["method"].endswith(f"for layers of virtual stages, {tuned['trials']} trials")
    layers = [stage["layers"] for stage in document["plans"][0]["prediction"]["stage_layers"]]
    assert sum(layers) == 24
    assert all(one % 2 == 0 for one in layers)
    even = json.loads(run(*ASKED, "--json")[1])
    first, best = (one["plans"][0]["prediction"]["samples_per_s"]["value"] for one in (even, document))
    assert best > first
    assert "tuned" not in even["search"]


def test_interrupted_it_answers_with_the_best_so_far(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    try_them = NodeTrials.run

    def interrupted(self: Any, *of: Any) -> None:
        price = self.price

        def until_interrupted(choice: Any) -> Any:
            if len(self.tried) == 2:
                signal.raise_signal(signal.SIGINT)
            return price(choice)

        self.price = until_interrupted
        try_them(self, *of)

    monkeypatch.setattr(NodeTrials, "run", interrupted)
    code, out, _ = run(*ASKED, "--stages", "best", "--json")
    assert code == 130
    assert json.loads(out)["plans"]
