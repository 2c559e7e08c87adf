"""Prices of inputs of every k-th layer, and of ranks in another order: against sums over messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.domain.configuration import Configurations, Settings
from planner.domain.messages import ALL_REDUCE, SEND_RECEIVE, Groups
from planner.domain.request import Problem
from planner.sources.sources import Sources
from planner.steps.price import Pricer
from planner.steps.state import State
from planner.steps.step_costs import operation_s
from tests.steps.test_split_price import GPT, HIDDEN, OWN, SEQUENCE, plan, terms


@pytest.fixture
def problem(make_problem: Callable[..., Problem]) -> Problem:
    settings = Settings("adam", input="synthetic", framework=OWN)
    return make_problem(network=GPT, dataset=None, settings=settings)


@pytest.mark.parametrize("every", [2, 3, 4])
def test_inputs_of_every_kth_layer_take_as_long_as_all(problem: Problem, every: int) -> None:
    shared = {"gpus_per_node": 2, "tensor_parallel": 2, "accumulation_steps": 3, "recompute": "full"}
    assert terms(problem, **shared, recompute_every=every) == terms(problem, **shared)


def test_a_pipeline_inside_nodes_sends_between_stages_there_and_gradients_across(problem: Problem) -> None:
    """Two nodes of two GPUs, two stages and two copies: the order says which pairs share a node."""
    degrees = {"nodes": 2, "gpus_per_node": 2, "pipeline_parallel": 2}
    inner = ("pipeline", "data", "tensor", "context", "expert")
    plain = replace(problem, settings=replace(problem.settings, strategy="no-overlap"))
    for order, stages, copies in (((), 2, 1), (inner, 1, 2)):
        asked = replace(plain, settings=replace(plain.settings, rank_order=order))
        taken, _ = terms(asked, **degrees)
        pricer, plans = Pricer(Sources(asked), "fp32"), Configurations.of([plan(**degrees)])
        sources = pricer.sources
        elements = float(State(pricer, plans, pricer.ranks(plans)).parameters.total.max())
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
