from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.request import SpaceRequest
from planner.search.exhaustive import Asked
from planner.search.studies import sweep_with


@settings(max_examples=20)
@given(
    target=st.integers(1, 40),
    tolerance=st.sampled_from([0.0, 0.25, 0.5]),
    modes=st.sampled_from([("sync",), ("sync", "async")]),
)
def test_each_plan_is_the_first_of_its_nodes_and_sub_batch(
    machine: Any, target: int, tolerance: float, modes: tuple[str, ...]
) -> None:
    request = SpaceRequest(target).changed(
        mode=modes, tolerance_sync=tolerance, tolerance_async=tolerance, precision=("fp32",)
    )
    answer = sweep_with(Asked(request, machine.limits(), machine, machine.order(request)), {})
    ranked = machine.brute_force(request, machine.limits())
    first = {(one.nodes, one.sub_batch): one for one in reversed(ranked)}
    assert [one.configuration for one in answer.plans] == [first[key] for key in sorted(first)]
    assert answer.evaluated == len(ranked)
    if ranked:
        assert answer.best.configuration == ranked[0]
        assert {nodes: one.configuration for nodes, one in answer.of_nodes.items()} == {
            one.nodes: one for one in reversed(ranked)
        }


def test_what_satisfies_nothing_has_no_plans(machine: Any) -> None:
    request = SpaceRequest(7).changed(nodes=(2,), gpus_per_node=(3,), mode=("sync",))
    answer = sweep_with(Asked(request, machine.limits(), machine, machine.order(request)), {})
    assert (answer.plans, answer.evaluated) == ((), 0)
    assert answer.candidates > 0
