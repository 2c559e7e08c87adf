"""All-reduce over links that a scenario replaces, or that no run showed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster, Link
from planner.domain.request import Problem, Scenario
from planner.sources.links import BETWEEN, INSIDE, multiples_of_kind
from planner.sources.sources import Sources

Make = Callable[..., Problem]


def test_links_that_no_run_showed_are_as_slow_as_elsewhere(make_problem: Make, cluster: Cluster) -> None:
    """Pooled multiples serve where the cluster has nothing of its own, and between devices alone."""
    values = {"messages_inside": 1.0, "bytes_inside": 4.0, "messages_between": 1.0, "bytes_between": 2.0}
    assert cluster.intra_node is not None
    assert cluster.inter_node is not None
    libraries = (
        multiples_of_kind(INSIDE, cluster.intra_node.kind),
        multiples_of_kind(BETWEEN, cluster.inter_node.kind),
    )
    entry, other = (
        Entry("collectives", "all_reduce", "", "", library, "collective.alpha_beta", {}, values)
        for library in libraries
    )
    pooled = Calibration("any-steps", "any", (entry, other))
    sources = Sources(make_problem(calibrations=(pooled,)))
    found, stated = sources.device_all_reduce, Sources(make_problem(calibrations=())).device_all_reduce
    assert (found.origin, found.calibration, stated.calibration) == ("specified", "any-steps", "")
    assert found.entry.coefficients == {
        "messages_inside": cluster.intra_node.latency_s,
        "bytes_inside": 4 / cluster.intra_node.bytes_per_s,
        "messages_between": cluster.inter_node.latency_s,
        "bytes_between": 2 / cluster.inter_node.bytes_per_s,
    }
    assert found.entry.settings["beta_ratio"] == pytest.approx(0.5 * float(str(stated.entry.settings["beta_ratio"])))
    assert "a byte takes 4 times as long inside nodes and 2 times as long between nodes" in found.entry.notes
    assert sources.host_all_reduce.entry.coefficients["bytes_between"] == 1 / cluster.inter_node.bytes_per_s
    measured = Calibration("own", "toy", (replace(entry, library=""),), cluster=cluster.name)
    assert Sources(make_problem(calibrations=(pooled, measured))).device_all_reduce.calibration == "own"


def test_a_faster_card_does_not_speed_up_a_stream(make_problem: Make, cluster: Cluster) -> None:
    names = ("messages_inside", "bytes_inside", "messages_between", "bytes_between")
    entry = Entry("collectives", "all_reduce", "", "", "nccl", "collective.alpha_beta", {"algorithms": "ring"},
                  dict.fromkeys(names, 1e-9))  # fmt: skip
    faster = Scenario("x", {}, {("inter_node", "bytes_per_s"): 1e10})

    def byte_s(flow: float | None, rate: float) -> float:
        there = replace(cluster, inter_node=Link("ethernet", rate, 5e-6, flow_bytes_per_s=flow))
        measured = Calibration("own", "toy", (entry,), cluster=cluster.name)
        problem = make_problem(cluster=there, calibrations=(measured,), scenario=faster)
        return Sources(problem).device_all_reduce.entry.coefficients["bytes_between"]

    assert byte_s(None, 5e9) == pytest.approx(0.5e-9)
    assert byte_s(1.25e9, 5e9) == 1e-9
    assert byte_s(1.25e9, 1e9) == pytest.approx(1e-9 / 1.25)
