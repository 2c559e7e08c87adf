"""Times of operations between the ranks of a split network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from planner.costs.collectives import collective_s
from planner.domain.axes import DATA, TENSOR
from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Configurations
from planner.domain.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, SEND_RECEIVE, Groups
from planner.domain.request import Problem, Scenario
from planner.networks.zoo import build
from planner.sources.sources import Sources
from planner.steps.step_costs import operation_s
from planner.workload.placement import Placement
from planner.workload.split_messages import MessageRules, layer_messages, network_sends

Make = Callable[..., Problem]
OPERATIONS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND_RECEIVE)
GROUPS = Groups(np.array([1, 2, 4, 1]), np.array([4, 2, 1, 1]), np.array([1.0, 4.0, 4.0, 1.0]))
BYTES = np.array([1e6, 1e3, 1e8, 1e6])
TABLE = Entry(
    "collectives", "all_reduce", "", "", "", "collective.cases",
    {"form": "sqrt", "cases": (1.0, 4.0, 2.0, 4.0)},
    {"1x4_calls": 1e-5, "1x4_sqrt_bytes": 0.0, "1x4_bytes": 1e-11, "2x4_calls": 2e-5, "2x4_sqrt_bytes": 0.0,
     "2x4_bytes": 1e-9, "unmeasured": 0.0},
)  # fmt: skip


def measured(problem: Problem, *entries: Entry) -> Calibration:
    return Calibration("own", "toy", entries, cluster=problem.cluster.name)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_configuration_has_a_buffer_and_a_group_of_its_own(make_problem: Make, operation: str) -> None:
    sources = Sources(make_problem())
    entry = sources.device_all_reduce.entry
    one_by_one = [
        collective_s(entry, operation, BYTES[[row]], GROUPS.rows(np.array([row])))[0, 0] for row in range(BYTES.size)
    ]
    times = operation_s(sources, operation, BYTES, GROUPS)
    np.testing.assert_allclose(times, one_by_one)
    assert times[-1] == 0


def test_one_group_serves_all_buffers(make_problem: Make) -> None:
    sources = Sources(make_problem())
    times = operation_s(sources, ALL_GATHER, BYTES, GROUPS.rows(np.array([1])))
    np.testing.assert_array_equal(times, operation_s(sources, ALL_GATHER, BYTES, GROUPS.rows(np.ones(4, dtype=int))))


def test_a_measured_entry_of_the_operation_wins(make_problem: Make) -> None:
    problem = make_problem()
    gathers = Entry(
        "collectives", ALL_GATHER, "", "", "", "collective.alpha_beta", {"algorithms": "ring"},
        {"messages_inside": 1.0, "bytes_inside": 0.0, "messages_between": 1.0, "bytes_between": 0.0},
    )  # fmt: skip
    sources = Sources(make_problem(calibrations=(measured(problem, TABLE, gathers), *problem.calibrations)))
    np.testing.assert_allclose(operation_s(sources, ALL_GATHER, BYTES, GROUPS), [3, 3, 3, 0])
    whole = operation_s(sources, ALL_REDUCE, BYTES, GROUPS)
    np.testing.assert_allclose(operation_s(sources, REDUCE_SCATTER, BYTES, GROUPS), whole / 2)


def test_groups_that_share_a_node_share_what_was_measured_of_one(make_problem: Make) -> None:
    """Four rings, one from each GPU of a node, through the NICs that one ring of all had to itself."""
    problem = make_problem()
    sources = Sources(make_problem(calibrations=(measured(problem, TABLE), *problem.calibrations)))
    nics = problem.cluster.inter_node.nics_per_node if problem.cluster.inter_node else 1
    assert (problem.cluster.node.gpus, nics) == (4, 1)
    degrees = {"tensor_parallel": np.array([1, 4]), "data_parallel": np.array([8, 2])}
    placement = Placement(Configurations.having(**degrees, gpus_per_node=4))
    alone, shared = operation_s(sources, ALL_REDUCE, np.array([1e9, 1e9]), placement.groups(DATA))
    assert alone == pytest.approx(2e-5 + 1.0)
    assert shared == pytest.approx(4 * (2e-5 / 3 + 1.0 * (1 / 2) / (7 / 8)))
    inside = operation_s(sources, ALL_REDUCE, np.array([1e9, 1e9]), placement.groups(TENSOR))
    np.testing.assert_allclose(inside, [0, 1e-5 + 1e-2])


@pytest.mark.parametrize("entries", [(), (TABLE,)], ids=["links", "table"])
def test_a_scenario_multiplies_every_operation(make_problem: Make, entries: tuple[Entry, ...]) -> None:
    problem = make_problem()
    calibrations = (*(measured(problem, one) for one in entries), *problem.calibrations)
    slower = Scenario(multipliers={"all_reduce": 2.0}, inter_node_multipliers={"all_reduce": 3.0})
    before, after = (
        operation_s(Sources(make_problem(calibrations=calibrations, **changed)), SEND_RECEIVE, BYTES, GROUPS)
        for changed in ({}, {"scenario": slower})
    )
    np.testing.assert_allclose(after, before * [2, 6, 6, 2])


def test_a_layer_is_priced_by_hand(make_problem: Make) -> None:
    """Four tensor ranks of a node, 1 us and 0.1 ns a byte: around a ring, half of it each all-gather."""
    plans = Configurations.having(
        tensor_parallel=np.array([4, 4, 1]), sequence_parallel=np.array([0, 1, 1]), gpus_per_node=4
    )
    sources, placement = Sources(make_problem()), Placement(plans)
    network = build("gpt", {"layers": "2", "hidden": "64", "heads": "4", "sequence": "128", "vocabulary": "1000"})
    of = network_sends(network).units[1]
    messages = layer_messages(of, plans, MessageRules())
    u = 2.0 * 128 * 64
    whole_s = 2 * 3 * 1e-6 + 2 * 3 / 4 * u * 1e-10
    each = (
        one.count * operation_s(sources, one.operation, one.buffer_bytes, placement.groups(one.group))
        for one in messages
    )
    assert sum(each) == pytest.approx([4 * whole_s, 5 * whole_s, 0])
