from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.request import SpaceRequest
from planner.domain.why_not import WhyNot
from planner.search.why_not import why_not_with


def asked(machine: Any, request: SpaceRequest, **values: tuple[Any, ...]) -> WhyNot:
    return why_not_with(machine, machine.order(request), machine.limits(), request, values, provenance={})


@settings(max_examples=40)
@given(
    target=st.integers(1, 40),
    tolerance=st.sampled_from([0.0, 0.25, 0.5]),
    nodes=st.integers(1, 6),
    sub_batch=st.integers(1, 8),
)
def test_rank_is_the_place_in_brute_force(
    machine: Any, target: int, tolerance: float, nodes: int, sub_batch: int
) -> None:
    request = SpaceRequest(target).changed(
        mode=("sync", "async"), tolerance_sync=tolerance, tolerance_async=tolerance, precision=("fp32", "fp16")
    )
    answer = asked(machine, request, nodes=(nodes,), sub_batch=(sub_batch,))
    ranked = machine.brute_force(request, machine.limits())
    places = [at for at, one in enumerate(ranked, start=1) if (one.nodes, one.sub_batch) == (nodes, sub_batch)]
    assert answer.rank == (places[0] if places else None)
    assert answer.status == ("ranked" if places else "refused")
    assert answer.evaluated == len(ranked)
    if places:
        assert answer.best is not None
        assert answer.best.configuration == ranked[places[0] - 1]
    else:
        assert answer.candidates == sum(one.count for one in answer.refused) > 0


def test_what_the_request_leaves_out_is_priced_all_the_same(machine: Any) -> None:
    request = SpaceRequest(12).changed(nodes=(1, 2), mode=("sync",), precision=("fp32",))
    answer = asked(machine, request, nodes=(4,))
    assert answer.status == "outside"
    assert answer.outside == ("--nodes 1,2 leaves out 4",)
    assert answer.best is not None
    assert answer.best.configuration.nodes == 4
    assert answer.rank is None


def test_what_the_cluster_has_not_is_the_constraint(machine: Any) -> None:
    answer = asked(machine, SpaceRequest(12).changed(mode=("sync",), precision=("fp32",)), nodes=(7,))
    assert (answer.status, answer.best, answer.candidates) == ("outside", None, 0)
    assert "from 1 to the 6 of cluster synthetic" in answer.outside[0]
    assert answer.first is not None


def test_ways_out_keep_the_values_asked_about(machine: Any) -> None:
    request = SpaceRequest(7).changed(mode=("sync",), precision=("fp32",), gpus_per_node=(3,))
    answer = asked(machine, request, nodes=(2,))
    assert answer.status == "refused"
    assert answer.loosen
    assert all("--nodes" not in one.option for one in answer.loosen)
