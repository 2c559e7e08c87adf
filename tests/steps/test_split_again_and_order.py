"""Prices of every k-th layer computed again, and of ranks in another order: against sums over layers and messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.domain.configuration import Configurations, Settings
from planner.domain.messages import ALL_REDUCE, SEND_RECEIVE, Groups
from planner.domain.request import Problem
from planner.sources.sources import Sources
from planner.steps.split_messages import operation_s
from planner.steps.split_price import SplitPricer, plans_of
from tests.steps.test_split_price import GPT, HIDDEN, LAYERS, OWN, SEQUENCE, TOKENS, calls, plan, priced, terms


@pytest.fixture
def problem(make_problem: Callable[..., Problem]) -> Problem:
    settings = Settings("adam", input="synthetic", framework=OWN)
    return make_problem(network=GPT, dataset=None, settings=settings)


@pytest.mark.parametrize("every", [1, 2, 3, 4, 5])
def test_recompute_of_every_kth_layer_adds_the_forward_kernels_of_those(problem: Problem, every: int) -> None:
    """Of more than there are: none, in every term and byte."""
    ends = np.array(GPT.blocks)
    again = [range(ends[at], ends[at + 1]) for at in range(LAYERS) if (at + 1) % every == 0]
    forward = [(layer, seconds) for _, way, layer, seconds in calls(problem, GPT, 2) if way == "forward"]
    own = sum(seconds for layer, seconds in forward if any(layer in one for one in again))
    shared = {"accumulation_steps": 3, "recompute": "full", "recompute_every": every}
    taken, added = terms(problem, **shared)
    plain, _ = terms(problem, accumulation_steps=3)
    assert taken["recompute"] == added["recompute"] == pytest.approx(3 * own, rel=1e-9)
    assert taken | {"recompute": 0} == pytest.approx(plain | {"recompute": 0}, rel=1e-9)
    found = priced(problem, plan(**shared), plan(**shared | {"recompute_every": 1}), plan(accumulation_steps=3))
    assert found.period_s[0] == pytest.approx(sum(added.values()), rel=1e-12)
    same = {1: 1, 5: 2}.get(every)
    if same is not None:
        assert {name: one[0] for name, one in found.seconds.items()} == {n: s[same] for n, s in found.seconds.items()}
        assert found.period_s[0] == found.period_s[same]
        assert found.memory.total[0] == found.memory.total[same]


@pytest.mark.parametrize("every", [1, 2, 4])
def test_layers_that_are_computed_again_send_again(problem: Problem, every: int) -> None:
    """Two all-reduces of b·s·h a layer; what they keep is less, by stages too."""
    shared = {"gpus_per_node": 2, "tensor_parallel": 2, "accumulation_steps": 3}
    groups = Groups(np.array([1]), np.array([2]), np.array([1.0]))
    whole = float(operation_s(Sources(problem), ALL_REDUCE, np.array([4.0 * 2 * SEQUENCE * HIDDEN]), groups)[0])
    plain, _ = terms(problem, **shared)
    taken, added = terms(problem, **shared, recompute="full", recompute_every=every)
    assert taken["tensor_messages"] - plain["tensor_messages"] == pytest.approx(3 * 2 * (LAYERS // every) * whole)
    assert added["tensor_messages"] == pytest.approx(taken["tensor_messages"])


def test_periods_are_priced_together_as_alone(problem: Problem) -> None:
    periods = [
        plan(gpus_per_node=4, pipeline_parallel=2, accumulation_steps=4, recompute="full", recompute_every=every)
        for every in (2, 1, 2)
    ]
    together = priced(problem, *periods)
    assert together.period_s.tolist() == [float(priced(problem, one).period_s[0]) for one in periods]
    assert together.period_s[0] < together.period_s[1]


def test_a_pipeline_inside_nodes_sends_between_stages_there_and_gradients_across(problem: Problem) -> None:
    """Two nodes of two GPUs, two stages and two copies: the order says which pairs share a node."""
    degrees = {"nodes": 2, "gpus_per_node": 2, "pipeline_parallel": 2}
    inner = ("pipeline", "data", "tensor", "context", "expert")
    plain = replace(problem, settings=replace(problem.settings, strategy="no-overlap"))
    for order, stages, copies in (((), 2, 1), (inner, 1, 2)):
        asked = replace(plain, settings=replace(plain.settings, rank_order=order))
        taken, _ = terms(asked, **degrees)
        part = SplitPricer(Sources(asked), "fp32").part(plans_of(Configurations.of([plan(**degrees)])))
        sources = part.costs.sources
        elements = float(max(part.counts @ part.rank.units.parameters + np.array([0, TOKENS * HIDDEN])))
        apart = {nodes: Groups(np.array([nodes]), np.array([2 / nodes]), np.array([float(nodes)])) for nodes in (1, 2)}
        exchange = operation_s(sources, ALL_REDUCE, np.array([4.0 * elements]), apart[copies])
        assert taken["all_reduce"] == pytest.approx(float(exchange[0]), rel=1e-9)
        passed = operation_s(sources, SEND_RECEIVE, np.array([4.0 * 2 * SEQUENCE * HIDDEN]), apart[stages])
        assert taken["stage_messages"] == pytest.approx(2 * float(passed[0]), rel=1e-6)  # there and back


def test_a_framework_numbers_ranks_in_its_own_order(problem: Problem) -> None:
    order = ("data", "tensor", "context", "expert", "pipeline")
    of_framework = replace(OWN, rank_order=order)
    shared = {"nodes": 2, "gpus_per_node": 2, "tensor_parallel": 2}
    own, told = (
        terms(replace(problem, settings=replace(problem.settings, **changed)), **shared)
        for changed in ({"framework": of_framework}, {"rank_order": order})
    )
    assert own == told
    assert own[0]["tensor_messages"] > 2 * terms(problem, **shared)[0]["tensor_messages"]
