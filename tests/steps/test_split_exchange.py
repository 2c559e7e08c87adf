"""What copies exchange: experts among those that have the same, all else among all; counted by hand.

Of 16 ranks on two nodes of 8, with 4 expert ranks and one parameter shard each: every other parameter is on all 16, an
expert on 4, of which each node has 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.catalog import find_network
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import Framework, Strategy
from planner.domain.messages import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Groups
from planner.domain.request import Problem
from planner.sources.sources import Sources
from planner.steps.price import Pricer
from planner.steps.state import Elements, State
from planner.steps.step_costs import operation_s
from planner.steps.synchronous import units_backward_s, units_forward_s
from planner.workload.placement import Placement, shard_ranks
from tests.workload.closed_memory import stage_parameters
from tests.workload.closed_transformer import record_of

Make = Callable[..., Problem]
Sum = Callable[[Problem, float, float], float]
"""Makes the time of a message of so many elements of experts and of others [s]."""
MOE = find_network(
    "moe:layers=3,hidden=64,heads=4,ffn=160,sequence=32,vocabulary=128,experts=4,expert_ffn=96,shared_experts=1"
)
EVERYONE, INSIDE, ACROSS = (2, 8, 8), (1, 8, 1), (2, 1, 8)
"""Nodes, ranks a node and messages on a NIC at a time."""
SAME_EXPERTS, SAME_INSIDE, SAME_ACROSS = (2, 2, 8), (1, 2, 1), (2, 1, 8)
EXPERT = 3 * 64 * 96
LAYER = ((0, 64), (0, 3 * 64 * 64), (0, 64 * 64), (0, 64), (0, 64 * 4), (EXPERT, 0), (0, 2 * 64 * 96), (0, 96 * 64))
SLOTS = ((0, 128 * 64), *LAYER, *LAYER, *LAYER, (0, 64), (0, 128 * 64))
"""Parameters on a rank of every layer that has any: of its expert, and all others."""


@pytest.fixture
def problem(make_problem: Make) -> Problem:
    """Each slot is a message."""
    settings = Settings("adam", input="synthetic", framework=Framework("own"), strategy="no-overlap")
    return make_problem(network=MOE, dataset=None, settings=settings)


def in_one_bucket(problem: Problem) -> Problem:
    """Return a problem whose gradients go in one message between all copies, and one of experts."""
    whole = Strategy(prefetch=False, overlap=False, first_bucket_bytes=1e12, bucket_bytes=1e12)
    framework = replace(problem.settings.framework, strategies={"no-overlap": whole})
    return replace(problem, settings=replace(problem.settings, framework=framework))


def plans_and_pricer(problem: Problem, **changes: Any) -> tuple[Configurations, Pricer]:
    asked = {"nodes": 2, "gpus_per_node": 8, "sub_batch": 2, "expert_parallel": 4} | changes
    return Configurations.of([Configuration(**asked)]), Pricer(Sources(problem), "fp32")


def state_of(problem: Problem, **changes: Any) -> State:
    chosen, pricer = plans_and_pricer(problem, **changes)
    return State(pricer, chosen, pricer.ranks(chosen))


def terms_of(problem: Problem, **changes: Any) -> dict[str, float]:
    chosen, pricer = plans_and_pricer(problem, **changes)
    return {name: float(each[0]) for name, each in pricer.price(chosen).exposed_s.items()}


def seconds_of(problem: Problem, operation: str, elements: float, groups: tuple[int, int, int]) -> float:
    """Return the time of an operation on 4-byte elements; 8 ranks of a node share its NICs."""
    assert problem.cluster.inter_node is not None
    if not elements:
        return 0.0
    nodes, ranks, streams = groups
    share = max(streams / problem.cluster.inter_node.nics_per_node, 1.0)
    where = Groups(np.array([nodes]), np.array([ranks]), np.array([share]))
    return float(operation_s(Sources(problem), operation, np.array([4.0 * elements]), where)[0])


def parameter_counts() -> tuple[float, float]:
    """Return the parameters on a rank: of its expert in 3 layers, and all others."""
    attention, router, norms = 64 * 64 * 4, 64 * 4, 2 * 64
    shared = 3 * 64 * 96
    return 3 * EXPERT, 3 * (attention + router + norms + shared) + 2 * 128 * 64 + 64


def sums_s(problem: Problem, sum_s: Sum, own_experts: int = 1) -> tuple[float, float]:
    """Return what messages of experts and of others take slot by slot, and what they do in one bucket [s]."""
    experts, others = (sum(column) for column in zip(*SLOTS, strict=True))
    assert (experts, others) == parameter_counts()
    each = sum(sum_s(problem, own_experts * of_experts, of_others) for of_experts, of_others in SLOTS)
    return each, sum_s(problem, own_experts * experts, others)


def exchanges_of(problem: Problem, **changes: Any) -> tuple[float, float]:
    """Return what the exchange of gradients adds to a step slot by slot, and in one bucket [s]."""
    each, whole = (terms_of(one, **changes)["all_reduce"] for one in (problem, in_one_bucket(problem)))
    return each, whole


def test_parameters_by_hand(problem: Problem) -> None:
    state = state_of(problem)
    assert (state.parameters.experts[0], state.parameters.others[0]) == parameter_counts()
    by_memory = stage_parameters(record_of(MOE), state.cases.plans, np.array([0]))
    assert (float(by_memory.experts[0]), float(by_memory.shared[0])) == parameter_counts()


@pytest.mark.parametrize(("sharding", "group"), [(0, "all"), (1, "all"), (1, "node"), (2, "all"), (2, "node")])
def test_gradients_and_updated_weights(problem: Problem, sharding: int, group: str) -> None:
    experts, others = parameter_counts()
    plan = {"sharding": sharding, "shard_group": group}
    if sharding == 0:
        exchanges, gather = sums_s(problem, between_all(ALL_REDUCE)), 0.0
    elif group == "all":
        exchanges = sums_s(problem, between_all(REDUCE_SCATTER))
        gather = between_all(ALL_GATHER)(problem, experts, others)
    else:
        exchanges = sums_s(problem, in_node)
        gather = seconds_of(problem, ALL_GATHER, others, INSIDE) + seconds_of(problem, ALL_GATHER, experts, SAME_INSIDE)
    assert exchanges_of(problem, **plan) == pytest.approx(exchanges, rel=1e-9)
    assert terms_of(problem, **plan)["updated_weights"] == pytest.approx(gather, rel=1e-9)


def between_all(operation: str) -> Sum:
    """Return what makes the time of an operation between all ranks, of experts between those that have the same."""

    def both_s(problem: Problem, experts: float, others: float) -> float:
        of_experts = seconds_of(problem, operation, experts, SAME_EXPERTS)
        return seconds_of(problem, operation, others, EVERYONE) + of_experts

    return both_s


def in_node(problem: Problem, experts: float, others: float) -> float:
    """Return the scatter inside nodes, and the sum of shards across them."""
    return (
        seconds_of(problem, REDUCE_SCATTER, others, INSIDE)
        + seconds_of(problem, REDUCE_SCATTER, experts, SAME_INSIDE)
        + across_nodes(problem, experts, others)
    )


def across_nodes(problem: Problem, experts: float, others: float) -> float:
    """Return the sum of one of 8 shards, of experts one of 2, across nodes."""
    return seconds_of(problem, ALL_REDUCE, others / 8, ACROSS) + seconds_of(
        problem, ALL_REDUCE, experts / 2, SAME_ACROSS
    )


@pytest.mark.usefixtures("unslowed")
@pytest.mark.parametrize("group", ["all", "node"])
def test_weights_that_are_shared(problem: Problem, group: str) -> None:
    """Gathered each way and scattered with every micro-batch, unit by unit: 3 layers and the two ends."""
    units, steps = 5, 2
    experts, others = (one / units for one in parameter_counts())
    terms = terms_of(problem, sharding=3, shard_group=group, accumulation_steps=steps)
    whole = terms_of(problem, accumulation_steps=steps)
    forward, backward = ((whole[name] + whole["expert_messages"] / 2) / steps for name in ("forward", "backward"))
    everyone, same = (EVERYONE, SAME_EXPERTS) if group == "all" else (INSIDE, SAME_INSIDE)
    gather = seconds_of(problem, ALL_GATHER, others, everyone) + seconds_of(problem, ALL_GATHER, experts, same)
    scatter = seconds_of(problem, REDUCE_SCATTER, others, everyone) + seconds_of(problem, REDUCE_SCATTER, experts, same)
    across = across_nodes(problem, experts, others) if group == "node" else 0.0
    f, b = (np.full((units, 1), one / units) for one in (forward, backward))
    g, r = np.full((units, 1), gather), np.full((units, 1), scatter)
    both = units_forward_s(f, g) + units_backward_s(b, g, r, np.full((units, 1), across))
    wait = float(both[0]) - float((f + b).sum())
    assert terms["sharded_weights"] == pytest.approx(steps * wait, rel=1e-9)
    assert terms["all_reduce"] == terms["updated_weights"] == 0


@pytest.mark.parametrize(("group", "everyone", "same"), [("all", 16, 4), ("node", 8, 2)])
@pytest.mark.parametrize("sharding", [1, 2, 3])
def test_each_rank_updates_its_shards(problem: Problem, sharding: int, group: str, everyone: int, same: int) -> None:
    experts, others = parameter_counts()
    whole, part = terms_of(problem)["update"], terms_of(problem, sharding=sharding, shard_group=group)["update"]
    assert part / whole == pytest.approx((experts / same + others / everyone) / (experts + others), rel=1e-9)


def test_ranks_that_have_all_experts_exchange_them_with_all_else(problem: Problem) -> None:
    for sharding, operation in ((0, ALL_REDUCE), (1, REDUCE_SCATTER)):

        def together_s(problem: Problem, experts: float, others: float, operation: str = operation) -> float:
            return seconds_of(problem, operation, experts + others, EVERYONE)

        found = exchanges_of(problem, expert_parallel=1, sharding=sharding)
        assert found == pytest.approx(sums_s(problem, together_s, own_experts=4), rel=1e-9)


def test_an_expert_that_one_rank_has_is_not_sent(problem: Problem) -> None:
    _, others = parameter_counts()
    plan = {"nodes": 1, "gpus_per_node": 4, "sharding": 1}

    def without_s(problem: Problem, experts: float, others: float) -> float:  # noqa: ARG001 - they stay
        return seconds_of(problem, REDUCE_SCATTER, others, (1, 4, 1))

    assert exchanges_of(problem, **plan) == pytest.approx(sums_s(problem, without_s), rel=1e-9)
    gather = seconds_of(problem, ALL_GATHER, others, (1, 4, 1))
    assert terms_of(problem, **plan)["updated_weights"] == pytest.approx(gather, rel=1e-9)


def test_stages_without_experts_send_none(problem: Problem) -> None:
    """Of a dense first layer on a stage of its own."""
    moe = replace(problem, network=find_network(
        "moe:layers=2,hidden=64,heads=4,ffn=160,sequence=32,vocabulary=128,experts=4,expert_ffn=96,dense_layers=1"
    ))  # fmt: skip
    state = state_of(moe, pipeline_parallel=2)
    experts = state.parameters.experts
    assert experts.tolist() == [0, 3 * 64 * 96]
    first, last = state.exchange.sum_s(Elements(experts, np.array([5e4, 6e4]))).tolist()
    assert first == pytest.approx(seconds_of(moe, ALL_REDUCE, 5e4, (1, 8, 1)), rel=1e-9)
    both = seconds_of(moe, ALL_REDUCE, 6e4, (1, 8, 1)) + seconds_of(moe, ALL_REDUCE, 3 * 64 * 96, (1, 2, 1))
    assert last == pytest.approx(both, rel=1e-9)


def test_memory_shares_state_between_the_ranks_that_messages_go_between() -> None:
    """Wherever groups lie alike on all nodes."""
    grid = np.array(
        [
            (d, t, c, x, node)
            for d in (1, 2, 4, 8, 16)
            for t in (1, 2, 4)
            for c in (1, 2)
            for x in (1, 2, 4)
            for node in (0, 1)
            if d * c % x == 0
        ]
    ).T
    plans = Configurations.having(**dict(zip(
        ("data_parallel", "tensor_parallel", "context_parallel", "expert_parallel", "shard_group"), grid, strict=True
    )))  # fmt: skip
    placement, by_node = Placement(plans), grid[-1] == 1
    for experts, names in ((False, ("gradients", "node_shards")), (True, ("expert_gradients", "expert_node_shards"))):
        whole, inside = (placement.groups(name).ranks for name in names)
        assert shard_ranks(plans, experts=experts).tolist() == np.where(by_node, inside, whole).tolist()
