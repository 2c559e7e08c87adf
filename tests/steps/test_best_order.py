"""The order of ranks of each plan: no other lawful one is faster, by pricing all of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from planner.catalog import find_cluster, find_network
from planner.domain.axes import BEST_ORDER, EXPERT, RANK_ORDER
from planner.domain.cluster import Link
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.request import Problem
from planner.steps.open_choices import orders_of
from planner.steps.predict import Evaluator

MOE = "moe:layers=4,hidden=512,heads=8,sequence=256,vocabulary=1024,experts=8,expert_ffn=1024"
GPT = "gpt:layers=4,hidden=512,heads=8,sequence=256,vocabulary=1024"
PLANS: dict[str, list[dict[str, Any]]] = {
    MOE: [
        {"tensor_parallel": 2, "expert_parallel": 4},
        {"expert_parallel": 8},
        {"expert_parallel": 2, "pipeline_parallel": 2, "tensor_parallel": 2},
        {"expert_parallel": 4, "context_parallel": 2, "pipeline_parallel": 4},
    ],
    GPT: [
        {"tensor_parallel": 4, "pipeline_parallel": 2},
        {"pipeline_parallel": 4, "sharding": 1},
        {"tensor_parallel": 2, "context_parallel": 2, "pipeline_parallel": 2, "accumulation_steps": 4},
        {"sharding": 3, "tensor_parallel": 2},
        {"sharding": 2, "shard_group": "node"},
    ],
}


def problem_of(network: str, order: tuple[str, ...] = (), gigabytes: float = 2.0) -> Problem:
    """Return a network on 4 nodes of 4 GPUs, with slow links between them."""
    cluster = find_cluster("dgx1-v100")
    node = replace(cluster.node, gpus=4)
    few = replace(cluster, nodes=4, node=node, inter_node=Link("infiniband", gigabytes * 1e9, 5e-6))
    return Problem(find_network(network), None, few, (), settings=Settings("adam", input="synthetic", rank_order=order))


def rows(network: str) -> Configurations:
    return Configurations.of([Configuration(4, 4, 2, **({"accumulation_steps": 8} | one)) for one in PLANS[network]])


@cache
def every_period(network: str) -> dict[tuple[str, ...], list[float]]:
    """Return order -> periods of plans; a network without experts has their axis at three places of five."""
    first = Evaluator(problem_of(network))
    first.evaluate(rows(network))
    return {
        order: Evaluator(problem_of(network, order), first).evaluate(rows(network)).iteration_s.tolist()
        for order in permutations(RANK_ORDER)
        if network == MOE or order.index(EXPERT) >= 2
    }


@pytest.mark.parametrize("network", PLANS)
def test_no_other_order_is_faster(network: str) -> None:
    evaluator = Evaluator(problem_of(network, BEST_ORDER))
    periods = evaluator.evaluate(rows(network)).iteration_s
    described = evaluator.describe(rows(network))
    plans = rows(network)
    for at, one in enumerate(described):
        assert one.iteration_s.value == pytest.approx(periods[at], rel=1e-12)
        some = orders_of(plans.take(np.array([at])), RANK_ORDER)
        assert one.rank_order in some
        lawful = {
            order: seconds[at]
            for order, seconds in every_period(network).items()
            if is_lawful(order, PLANS[network][at])
        }
        assert periods[at] == pytest.approx(min(lawful.values()), rel=1e-9)
        assert lawful[one.rank_order] == pytest.approx(periods[at], rel=1e-9)
    assert any(periods[at] < 0.99 * every_period(network)[RANK_ORDER][at] for at in range(len(described)))


def is_lawful(order: tuple[str, ...], degrees: dict[str, Any]) -> bool:
    """Tell by numbering all 16 ranks whether the grid of experts has the stages that all else has."""
    t, c, x, p = (int(degrees.get(f"{name}_parallel", 1)) for name in ("tensor", "context", "expert", "pipeline"))
    d = 16 // (t * c * p)
    grids = (
        {"tensor": t, "context": c, "data": d, "pipeline": p},
        {"tensor": t, "expert": x, "data": c * d // x, "pipeline": p},
    )
    stages = []
    for grid in grids if x > 1 else grids[:1]:
        of, stride = 0, 1
        for name in order:
            of, stride = (stride, stride * grid[name]) if name == "pipeline" else (of, stride * grid.get(name, 1))
        stages.append(tuple((rank // of) % p for rank in range(16)))
    return len(set(stages)) == 1


@pytest.mark.parametrize("network", PLANS)
def test_orders_that_are_left_out_are_as_fast_as_one_that_is_not(network: str) -> None:
    """An axis of one rank may stand anywhere, so that fewer orders than 120 stand for all."""
    plans = rows(network)
    for at, degrees in enumerate(PLANS[network]):
        some = orders_of(plans.take(np.array([at])), RANK_ORDER)
        assert len(some) == len(set(some)) <= 120
        periods = every_period(network)
        own = [periods[order][at] for order in some]
        for order, seconds in periods.items():
            if is_lawful(order, degrees):
                assert min(abs(seconds[at] / one - 1) for one in own) < 1e-9


def test_the_order_of_the_framework_is_kept_where_none_is_faster() -> None:
    """Inside one node all groups are alike."""
    plans = Configurations.of([Configuration(1, 4, 2, tensor_parallel=2)])
    order = ("data", "tensor", "context", "expert", "pipeline")
    framework = replace(Settings().framework, rank_order=order)
    problem = problem_of(GPT, BEST_ORDER)
    own = replace(problem, settings=replace(problem.settings, framework=framework))
    one = Evaluator(own).describe(plans)[0]
    assert one.rank_order == ("data", "tensor", "context", "expert", "pipeline")
