"""What is said of how a plan is split."""

from __future__ import annotations

from typing import Any

import pytest

from planner.catalog import find_cluster, find_network
from planner.domain.axes import RANK_ORDER
from planner.domain.configuration import Configuration, Settings
from planner.domain.request import Problem
from planner.report.doubt import notices
from planner.sources.sources import Sources
from planner.steps.warnings import StepWarnings

CODES = ("tensor_across_nodes", "stale_gradients", "formula_only")
SETTINGS = Settings("adam", input="synthetic")


@pytest.mark.parametrize(
    ("network", "axes", "said"),
    [
        ("gpt2", {"tensor_parallel": 2, "pipeline_parallel": 2, "recompute": "full", "sharding": 1}, []),
        ("gpt2", {"nodes": 2, "tensor_parallel": 16}, ["tensor_across_nodes"]),
        ("gpt2", {"nodes": 3, "tensor_parallel": 3}, ["tensor_across_nodes"]),
        ("mixtral-8x7b", {}, ["balance of experts"]),
        ("gpt2", {"context_parallel": 2}, ["context parallelism"]),
        ("mixtral-8x7b", {"expert_parallel": 8}, ["balance of experts"]),
        ("mixtral-8x7b", {"tensor_parallel": 2}, ["balance of experts"]),
        ("gpt2", {"pipeline_parallel": 2, "schedule": "zero-bubble", "offload": "optimizer"},
         ["zero-bubble schedule", "offload of optimizer"]),
        ("gpt2", {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "zero-bubble-v"},
         ["zero-bubble-v schedule"]),
        ("gpt2", {"pipeline_parallel": 2, "schedule": "no-flush"}, ["stale_gradients", "no-flush schedule"]),
    ],
)  # fmt: skip
def test_what_no_run_shows_is_by_formula_only(network: str, axes: dict[str, Any], said: list[str]) -> None:
    problem = Problem(find_network(network), None, find_cluster("dgx-a100"), (), settings=SETTINGS)
    one = Configuration(**({"nodes": 1, "gpus_per_node": 8, "sub_batch": 1} | axes))
    warnings = StepWarnings(Sources(problem), one.precision, one.mode)
    every = warnings.of(one, (), (), (0.0, 8.0), rank_order=RANK_ORDER)
    found = [each for each in every if each.code in CODES]
    assert [x.subject if x.code == "formula_only" else x.code for x in found] == said
    assert all(x.message[0].isupper() and x.message.endswith(".") for x in found)
    lines = [line.text for line in notices(found, "")]
    assert len(lines) == len({x.code for x in found})
    assert not said or said[0] in " ".join(lines) or " " not in said[0]
