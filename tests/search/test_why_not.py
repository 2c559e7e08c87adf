from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.framework import Framework
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import WhyNot
from planner.search import search
from planner.search.studies import Among, why_nots


def asked(machine: Any, request: SpaceRequest, **values: tuple[Any, ...]) -> WhyNot:
    return why_nots([Among(request, machine.limits(), machine, machine.order(request), {})], values)[0]


@settings(max_examples=12)
@given(
    target=st.integers(1, 40),
    tolerance=st.sampled_from([0.0, 0.25, 0.5]),
    values=st.tuples(st.integers(1, 6), st.integers(1, 8)),
    most_priced=st.sampled_from([0, search.MOST_PRICED]),
)
def test_rank_is_the_place_in_brute_force(
    machine: Any, target: int, tolerance: float, most_priced: int, values: tuple[int, int]
) -> None:
    """Also where plans are searched by bounds, so that few of those that have a rank are priced."""
    nodes, sub_batch = values
    request = SpaceRequest(target).changed(
        mode=("sync", "async"), tolerance_sync=tolerance, tolerance_async=tolerance, precision=("fp32", "fp16")
    )
    with patch.object(search, "MOST_PRICED", most_priced):
        answer = asked(machine, request, nodes=(nodes,), sub_batch=(sub_batch,))
    ranked = machine.brute_force(request, machine.limits())
    places = [at for at, one in enumerate(ranked, start=1) if (one.nodes, one.sub_batch) == (nodes, sub_batch)]
    assert answer.rank == (places[0] if places else None)
    assert answer.status == ("ranked" if places else "refused")
    assert answer.evaluated == (len(ranked) if places else None)
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
    assert answer.outside == ("cluster synthetic has 6 nodes, not 7",)
    assert answer.first is not None


def test_ways_out_keep_the_values_asked_about(machine: Any) -> None:
    request = SpaceRequest(7).changed(mode=("sync",), precision=("fp32",), gpus_per_node=(3,))
    answer = asked(machine, request, nodes=(2,))
    assert answer.status == "refused"
    assert answer.loosen
    assert all("--nodes" not in one.option for one in answer.loosen)


@settings(max_examples=10)
@given(target=st.integers(1, 40), nodes=st.integers(1, 6), sub_batch=st.integers(1, 8), faster=st.floats(0.2, 5))
def test_ranks_of_frameworks_are_those_among_the_plans_of_all(
    machine: Any, target: int, nodes: int, sub_batch: int, faster: float
) -> None:
    request = SpaceRequest(target).changed(mode=("sync",), tolerance_sync=0.5, precision=("fp32",))
    machines = [machine, replace(machine, reduce_s=machine.reduce_s * faster)]
    frameworks = [Framework.labelled(name) for name in ("one", "other")]
    among = [
        Among(request, one.limits(), one, one.order(request), {}, framework)
        for one, framework in zip(machines, frameworks, strict=True)
    ]
    answers = why_nots(among, {"nodes": (nodes,), "sub_batch": (sub_batch,)})
    every = [
        (one.key(plan, target)[:-1], at, plan)
        for at, one in enumerate(machines)
        for plan in one.brute_force(request, one.limits())
    ]
    ranked = sorted(every, key=lambda row: row[:2])
    for at, answer in enumerate(answers):
        asked_about = [plan.nodes == nodes and plan.sub_batch == sub_batch and place == at for _, place, plan in ranked]
        assert answer.framework == frameworks[at].name
        assert answer.evaluated == (len(ranked) if any(asked_about) else None)
        assert answer.rank == (asked_about.index(True) + 1 if any(asked_about) else None)
        if ranked:
            assert answer.first is not None
            assert answer.first.framework == frameworks[ranked[0][1]]


def test_a_mode_that_the_request_does_not_try_is_no_candidate(machine: Any) -> None:
    request = SpaceRequest(12).changed(tolerance_async=0.5, precision=("fp32",))
    answer = asked(machine, request, mode=("async",))
    assert (answer.status, answer.rank) == ("outside", None)
    assert answer.outside == ("--mode sync leaves out async",)
    assert answer.best is not None
    assert answer.best.configuration.mode == "async"
