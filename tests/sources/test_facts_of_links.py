"""What links of a cluster can do: told of links as specified, never of an all-reduce that was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import catalog
from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster
from planner.domain.request import Problem
from planner.sources.sources import Sources

CLUSTER = catalog.find_cluster("dgx-a100")
THETA = {"messages_inside": 5e-6, "bytes_inside": 4e-12, "messages_between": 1e-5, "bytes_between": 5e-11}
TERM = "collective.alpha_beta"
SETTINGS: dict[str, float | str | tuple[float, ...]] = {"algorithms": "ring", "beta_ratio": 12.5}
MEASURED = tuple(Entry("collectives", "all_reduce", "", "", each, TERM, SETTINGS, THETA) for each in ("", "host"))


def with_facts(*, direct: bool | None, adds: bool) -> Cluster:
    assert CLUSTER.intra_node is not None
    assert CLUSTER.inter_node is not None
    inside = replace(CLUSTER.intra_node, in_network_reduction=adds)
    return replace(
        CLUSTER,
        intra_node=inside,
        inter_node=replace(CLUSTER.inter_node, gpu_direct=direct, in_network_reduction=adds),
    )


@pytest.mark.parametrize("direct", [None, True, False])
@pytest.mark.parametrize("adds", [False, True])
def test_a_measured_all_reduce_stays_as_it_was_measured(direct: bool | None, adds: bool) -> None:  # noqa: FBT001 - cases
    measured = Calibration("measured", "", MEASURED, cluster=CLUSTER.name)
    problem = Problem(catalog.find_network("gpt2"), None, with_facts(direct=direct, adds=adds), (measured,))
    sources = Sources(problem)
    assert (sources.device_all_reduce.entry, sources.host_all_reduce.entry) == MEASURED


def test_links_as_specified_do_what_they_can() -> None:
    network = catalog.find_network("gpt2")
    plain, told = (
        Sources(Problem(network, None, one, ())).device_all_reduce.entry
        for one in (CLUSTER, with_facts(direct=False, adds=True))
    )
    assert told.coefficients["bytes_between"] == 2 * plain.coefficients["bytes_between"]  # 12.5 of 25 GB/s
    assert told.settings["algorithms"] == f"{plain.settings['algorithms']} switches:intra_node+inter_node"
    assert told.notes.endswith("in switches too, the best algorithm chosen, bytes cross hosts")
