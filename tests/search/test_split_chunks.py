"""Blocks of plans that may split a network, whose rows have bases in common, against the same plans as rows."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from planner import catalog
from planner.domain.axes import SCHEDULES
from planner.domain.configuration import Configurations, Settings
from planner.domain.framework import Framework
from planner.domain.prediction import Predictions
from planner.domain.request import Problem, SpaceRequest
from planner.search import block
from planner.search.exhaustive import batches
from planner.search.ranking import PricedPlans
from planner.search.searchable import order_and_limits
from planner.search.space import space_of
from planner.steps.predict import Evaluator

NETWORKS = (
    "gpt:layers=6,hidden=64,heads=4,sequence=32,vocabulary=128",
    "llama:layers=5,hidden=64,heads=8,kv_heads=2,sequence=64,vocabulary=256",
    "moe:layers=4,hidden=64,heads=4,sequence=32,vocabulary=128,experts=4,expert_ffn=64",
    "t5:layers=3,hidden=64,heads=4,ffn=128,sequence=32,vocabulary=128",
)
ASKED = (
    {"nodes": (1, 2), "tolerance_sync": 0.5},
    {"nodes": (2,), "schedule": SCHEDULES[:-1], "shard_group": ("all", "node"), "context_parallel": (1, 2)},
    {"nodes": (1,), "offload": ("none", "optimizer", "activations"), "recompute": ("none", "per-stage")},
)

MOST = 600, 600, 12
"""Plans that are compared; what stages choose takes long."""


def problem_of(network: str) -> Problem:
    settings = Settings("adam", input="synthetic", framework=Framework("own"))
    return Problem(catalog.find_network(network), None, catalog.find_cluster("dgx-a100"), (), settings=settings)


def request_of(at: int) -> SpaceRequest:
    return SpaceRequest(16).changed(precision=("fp16",), pipeline_parallel=(1, 2, 4), **ASKED[at])


@pytest.mark.parametrize("asked", range(len(ASKED)))
@pytest.mark.parametrize("network", NETWORKS, ids=[name.partition(":")[0] for name in NETWORKS])
def test_a_block_is_priced_as_its_rows(network: str, asked: int) -> None:
    problem, request = problem_of(network), request_of(asked)
    _, limits = order_and_limits(problem, request)
    assert limits.split is not None
    (some,) = batches(space_of(request, limits).chunks())
    some = some.take(np.random.default_rng(asked).permutation(some.size)[: MOST[asked]])
    rows = Configurations.joined([some])
    np.testing.assert_allclose(limits.split.needed_bytes(some), limits.split.needed_bytes(rows), rtol=1e-12)
    of_block, of_rows = (Evaluator(problem).evaluate(one) for one in (some, rows))
    for one in fields(Predictions):
        np.testing.assert_allclose(getattr(of_block, one.name), getattr(of_rows, one.name), rtol=1e-12)


def test_chunks_of_any_size_hold_the_same_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, request = problem_of(NETWORKS[0]), request_of(0)
    _, limits = order_and_limits(problem, request)
    found = []
    for chunk in (2**16, 50, 6):
        monkeypatch.setattr(block, "CHUNK", chunk)
        parts = [Configurations.joined([one]) for one in space_of(request, limits).chunks()]
        whole = Configurations.joined(parts)
        found.append((len(parts), [whole.one(at) for at in range(0, whole.size, 7)]))
    assert found[0][0] == 2  # with the whole network on every device, and split
    assert 2 < found[1][0] < found[2][0]
    assert found[0][1] == found[1][1] == found[2][1]


def test_what_is_kept_has_columns_of_its_own() -> None:
    problem, request = problem_of(NETWORKS[0]), request_of(0)
    order, limits = order_and_limits(problem, request)
    (some,) = batches(space_of(request, limits).chunks())
    best = order.best(PricedPlans(some, Evaluator(problem).evaluate(some)), 3).configurations
    changed = replace(best, precision=np.zeros(3, dtype=np.int64), precisions=("bf16",))
    assert [changed.one(at).precision for at in range(3)] == ["bf16"] * 3
