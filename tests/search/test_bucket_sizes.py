"""Sizes of gradient buckets by trials: never worse than the framework's own, near the best of all, none tried twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import find_cluster, find_network
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import BEST_FUSION
from planner.domain.request import Problem, SpaceRequest
from planner.search.allowed import order_and_limits
from planner.search.bucket_sizes import BucketTrials, SizedBuckets, StartedSearch
from planner.search.search import search
from planner.steps.predict import Evaluator

MIB = 2.0**20
SPAN = (MIB / 64, 256 * MIB)
REQUEST = SpaceRequest(512, asked={"nodes": (4, 8), "precision": ("fp32", "fp16")}, parallelism=("data",))
SPLIT = SpaceRequest(64, asked={"nodes": (2,), "precision": ("fp16",), "sharding": (0,)}, parallelism=("data",))


def problem_of(name: str = "resnet50", cluster: str = "dgx1-v100") -> Problem:
    settings_of = Settings(strategy="bucketed", input="synthetic")
    return Problem(find_network(name), None, find_cluster(cluster), (), settings=settings_of)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_of()


def trials_of(problem: Problem, request: SpaceRequest = REQUEST, trials: int = 40, **more: Any) -> BucketTrials:
    return BucketTrials(problem, request, SPAN, trials, search, **more)


def sized(trials: BucketTrials) -> SizedBuckets:
    found = trials.run()
    assert found is not None
    return found


def best_with(problem: Problem, size: float) -> float:
    """Return the best time a sample of all plans with a size [s]."""
    own = replace(problem, settings=replace(problem.settings, bucket_bytes=size))
    order, limits = order_and_limits(own, REQUEST)
    best = search(REQUEST, limits, Evaluator(own), order, keep=1).best
    assert best is not None
    return float(order.values(best)[0])


@pytest.mark.parametrize("seed", [0, 1])
def test_no_size_is_better_than_the_gap_allows(problem: Problem, seed: int) -> None:
    """Against an exact search with each of many sizes."""
    trials = trials_of(problem, seed=seed)
    found = sized(trials)
    value = min(trials.tried.values())
    assert found.gap is not None
    assert best_with(problem, found.problem.settings.bucket_bytes) == value
    assert best_with(problem, 0.0) == trials.tried[0.0] == next(iter(trials.tried.values()))
    assert found.tuned.gain == 1 - value / trials.tried[0.0] > 0
    assert found.tuned.trials == len(trials.tried) <= 40
    least = min(best_with(problem, size) for size in np.geomspace(*SPAN, 30))
    assert value * (1 - found.gap) <= least * (1 + 1e-9)
    assert value <= 1.01 * least
    assert all(SPAN[0] <= size <= SPAN[1] for size in trials.tried if size)


@settings(max_examples=40, deadline=None)
@given(size=st.floats(*SPAN), sub_batch=st.sampled_from([1, 4, 16, 64]), nodes=st.sampled_from([2, 8]))
def test_the_best_fusion_is_no_worse_than_any_size(
    size: float, sub_batch: int, nodes: int, evaluators: Callable[[float | None], Evaluator]
) -> None:
    plans = Configurations.of([Configuration(nodes, 8, sub_batch, precision=name) for name in ("fp32", "fp16")])
    fused, of_size = (evaluators(one).evaluate(plans).iteration_s for one in (None, size))
    assert np.all(fused <= of_size * (1 + 1e-12))


@pytest.fixture(scope="module")
def evaluators(problem: Problem) -> Callable[[float | None], Evaluator]:
    """Return what prices with a size, or the best fusion."""
    first = Evaluator(problem)

    def of(size: float | None) -> Evaluator:
        changes = {"strategy": BEST_FUSION} if size is None else {"bucket_bytes": size}
        return Evaluator(replace(problem, settings=replace(problem.settings, **changes)), like=first)

    return of


def test_the_same_seed_tries_the_same_sizes(problem: Problem) -> None:
    first, second, other = (trials_of(problem, trials=12, seed=seed) for seed in (3, 3, 4))
    for one in (first, second, other):
        one.run()
    assert first.tried == second.tried != other.tried


def test_where_no_size_can_be_better_none_is_tried(problem: Problem) -> None:
    """One rank sends nothing: the framework's own buckets are proven the best."""
    request = REQUEST.changed(nodes=(1,), gpus_per_node=(1,))
    trials = trials_of(problem, request)
    found = sized(trials)
    assert (found.problem, found.tuned.value, found.tuned.gain, found.gap) == (problem, None, 0, 0)
    assert list(trials.tried) == [0.0]


def test_stopped_it_has_the_best_so_far(problem: Problem) -> None:
    asked = 0

    @contextmanager
    def interruption() -> Iterator[Any]:
        def is_stopped() -> bool:
            nonlocal asked
            asked += 1
            return asked > 5

        yield is_stopped

    trials = trials_of(problem, interruption=interruption)
    assert sized(trials).tuned.trials == len(trials.tried) == 6
    assert min(trials.tried.values()) <= trials.tried[0.0]


def test_stages_and_shards_have_sizes_too() -> None:
    """Their exchange reads the size, and what is found is no worse; nothing bounds what other sizes reach."""
    trials = trials_of(problem_of("gpt2", "dgx-a100"), SPLIT.changed(pipeline_parallel=(4,), parallelism=()), trials=15)
    found = sized(trials)
    assert found.gap is None
    assert len(set(trials.tried.values())) > 1
    assert min(trials.tried.values()) <= trials.tried[0.0]


def test_nothing_that_fits_has_no_size(problem: Problem) -> None:
    assert trials_of(problem, SpaceRequest(7, asked={"nodes": (4,)}, parallelism=("data",))).run() is None


def test_a_search_that_was_stopped_is_no_worse_than_what_is_known(problem: Problem) -> None:
    order, limits = order_and_limits(problem, REQUEST)
    evaluator = Evaluator(problem)
    arguments: dict[str, Any] = {"keep": 5, "pareto": False}
    whole = search(REQUEST, limits, evaluator, order, **arguments)
    assert whole.best is not None

    so_far = replace(whole, certified=False, best=whole.best.take(slice(3, 5)))
    stopped: Any = lambda *_, **__: so_far  # noqa: E731 - a searcher of one answer
    known = whole.best.configurations.take(slice(0, 4))
    found = StartedSearch(stopped, known)(REQUEST, limits, evaluator, order, **arguments)
    assert found.best is not None
    plans = [[of.configurations.one(at) for at in range(5)] for of in (found.best, whole.best)]
    assert plans[0] == plans[1]
