"""What leaves no node is not changed by what joins nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.steps.predict import Evaluator
from tests.properties.conftest import CLUSTERS, SMALL, problem_and_plans, with_cluster

LINKS = (("ethernet", 0.125e9, 5e-5), ("efa", 4e11, 0.0))
"""Kind, rate [byte/s] and latency [s]."""


@pytest.mark.parametrize("cluster", CLUSTERS[::4])
@pytest.mark.parametrize(
    ("network", "framework"), [("resnet50", "pytorch"), (SMALL, "megatron-lm"), ("alexnet", "tensorflow")]
)
def test_the_link_between_nodes_changes_no_plan_of_one_node(cluster: str, network: str, framework: str) -> None:
    """Not by a bit: neither its kind, nor its rate, nor its latency."""
    problem, plans = problem_and_plans((network, cluster, framework, "sgd-momentum"), 1, nodes=1, most=12)
    link = problem.cluster.inter_node
    assert link is not None
    before = Evaluator(problem).describe(plans)
    for kind, rate, latency in LINKS:
        other = replace(link, kind=kind, bytes_per_s=rate, latency_s=latency, flow_bytes_per_s=None)
        after = Evaluator(with_cluster(problem, inter_node=other)).describe(plans)
        for one, same in zip(before, after, strict=True):
            assert (same.iteration_s, same.memory_bytes) == (one.iteration_s, one.memory_bytes)
            assert [(term.name, term.seconds) for term in same.terms] == [
                (term.name, term.seconds) for term in one.terms
            ]
