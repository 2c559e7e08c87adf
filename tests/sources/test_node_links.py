"""Links inside nodes as they were measured on nodes of the same chip, and multiples by kinds of links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner import catalog
from planner.domain.calibration import ANY_ACCELERATOR, Calibration, Entry
from planner.domain.request import Problem, Scenario
from planner.sources.links import BETWEEN as BETWEEN_NODES
from planner.sources.links import INSIDE as INSIDE_NODES
from planner.sources.links import multiples_of_kind, of_node
from planner.sources.sources import Sources

CLUSTER = catalog.find_cluster("dgx-a100")
GPT2 = catalog.find_network("gpt2")
INSIDE = 4e-12


def entry(library: str, inside: float, between: float) -> Entry:
    values = {"messages_inside": 5e-6, "bytes_inside": inside, "messages_between": 1.0, "bytes_between": between}
    settings = {"algorithms": "ring"}
    return Entry("collectives", "all_reduce", "", "", library, "collective.alpha_beta", settings, values)


def pooled(*entries: Entry) -> tuple[Calibration, ...]:
    return (Calibration("pooled", ANY_ACCELERATOR, entries),)


def coefficients(calibrations: tuple[Calibration, ...], scenario: Scenario | None = None) -> dict[str, float]:
    problem = Problem(GPT2, None, CLUSTER, calibrations, scenario=scenario or Scenario())
    return dict(Sources(problem).device_all_reduce.entry.coefficients)


MEASURED = entry(of_node("nvswitch", CLUSTER.node.accelerator.chip), INSIDE, 0.0)


def test_measured_nodes_go_before_the_data_sheet_and_links_between_stay() -> None:
    stated, found = coefficients(()), coefficients(pooled(MEASURED))
    assert (found["bytes_inside"], found["messages_inside"]) == (INSIDE, 5e-6)
    assert found["bytes_between"] == stated["bytes_between"]


def test_nodes_of_another_chip_or_link_say_nothing() -> None:
    for library in (of_node("nvswitch", "GH100"), of_node("pcie4", CLUSTER.node.accelerator.chip)):
        assert coefficients(pooled(replace(MEASURED, library=library))) == coefficients(())


def test_kinds_of_links_multiply_what_is_specified_and_nothing_that_was_measured() -> None:
    stated = coefficients(())
    inside = entry(multiples_of_kind(INSIDE_NODES, "nvswitch"), 1.3, 1.0)
    between = entry(multiples_of_kind(BETWEEN_NODES, "infiniband"), 1.0, 1.1)
    other = entry(multiples_of_kind(BETWEEN_NODES, "token-ring"), 1.0, 9.0)
    found = coefficients(pooled(inside, between, other))
    assert found["bytes_inside"] == pytest.approx(1.3 * stated["bytes_inside"])
    assert found["bytes_between"] == pytest.approx(1.1 * stated["bytes_between"])
    found = coefficients(pooled(MEASURED, inside, between))
    assert found["bytes_inside"] == INSIDE
    assert found["bytes_between"] == pytest.approx(1.1 * stated["bytes_between"])


@pytest.mark.parametrize("kinds", [("pcie3", "pcie4", "pcie5")])
def test_generations_of_a_link_are_one_kind(kinds: tuple[str, ...]) -> None:
    assert len({multiples_of_kind(INSIDE_NODES, kind) for kind in kinds}) == 1


def test_a_scenario_scales_what_was_measured() -> None:
    link = CLUSTER.intra_node
    assert link is not None
    faster = Scenario(link_values={("intra_node", "bytes_per_s"): 2 * link.bytes_per_s})
    assert coefficients(pooled(MEASURED), faster)["bytes_inside"] == pytest.approx(INSIDE / 2)


def test_bundled_nodes_are_about_as_fast_as_published_bus_bandwidths() -> None:
    """nccl-tests reach 229 GB/s on eight A100 (vTrain's table), 340 to 480 on eight H100."""
    found = {one.library: one.coefficients["bytes_inside"] for one in catalog.find_calibration("node-links").entries}
    assert 1e-9 / found[of_node("nvswitch", "GA100")] == pytest.approx(229, rel=0.1)
    assert 280 < 1e-9 / found[of_node("nvswitch", "GH100")] < 480
