"""No plan takes less than its bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner import catalog
from planner.domain.axes import AXES, SCHEDULES
from planner.domain.configuration import Configurations, Settings, splits
from planner.domain.request import Problem, SpaceRequest
from planner.domain.split import BUBBLES
from planner.search.bases import kinds_of
from planner.search.searchable import limits_of
from planner.search.space import space_of
from planner.steps.predict import Evaluator

CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("gpt2", "dgx-a100", "megatron-lm", {}),
    ("gpt2", "dgx-a100", "megatron-lm", {"schedule": SCHEDULES}),
    ("gpt2-medium", "dgx1-v100", "pytorch", {"precision": ("fp16", "fp32")}),
    ("llama3-8b", "dgx-h100", "megatron-lm", {"context_parallel": (1, 2), "precision": ("bf16", "fp8")}),
    ("mixtral-8x7b", "dgx-h100", "megatron-lm", {"precision": ("bf16",)}),
    ("t5-base", "dgx-a100", "deepspeed", {}),
    ("vit-b16", "dgx-a100", "pytorch", {}),
    ("bert-large", "dgx-a100", "megatron-lm", {"offload": ("none", "optimizer")}),
]


@pytest.mark.parametrize(("network", "cluster", "framework", "axes"), CASES)
def test_no_split_plan_takes_less_than_its_bound(network: str, cluster: str, framework: str, axes: Any) -> None:
    found = catalog.find_cluster(cluster)
    settings = Settings(framework=catalog.find_framework(framework), optimizer="adam", input="synthetic")
    problem = Problem(catalog.find_network(network), None, found, catalog.calibrations_for(found), settings=settings)
    nodes = tuple(range(1, min(found.nodes, 4) + 1))
    request = SpaceRequest(48).changed(nodes=nodes, sub_batch=(1, 2, 3), **{"precision": ("bf16", "fp16"), **axes})
    request = request.changed(parallelism=kinds_of(problem.network, settings.framework))
    evaluator, random = Evaluator(problem), np.random.default_rng(0)
    checked = 0
    for chunk in space_of(request, limits_of(problem)).chunks():
        rows = chunk.rows
        for split in (True, False):
            mine = np.flatnonzero(np.broadcast_to(splits(rows), rows.shape) == split)
            some = rows.take(random.choice(mine, min(mine.size, 400), replace=False))
            if some.size:
                least_s = evaluator.least_epoch_s(opened(some) if split else some, split=split)
                seconds = 1 / evaluator.evaluate(some).samples_per_s
                assert np.all(least_s <= seconds * (1 + 1e-9))
                if split:
                    check_closer(evaluator, some, seconds)
                assert np.median(least_s / seconds) > 0.2
                checked += some.size
    assert checked > 100


def check_closer(evaluator: Evaluator, plans: Configurations, seconds: Any) -> None:
    """Check of plans that they take no less than closer bounds, of which a sample has no more with more steps."""
    least_s = evaluator.least_epoch_s(opened(plans, but=("recompute",)), split=True, closely=True)
    assert np.all(least_s <= seconds * (1 + 1e-9))
    assert np.median(least_s / seconds) > 0.4
    own = Configurations.joined([plans])  # with columns of their own
    for closely in (False, True):
        first_s, more_s = (
            evaluator.least_epoch_s(replace(own, accumulation_steps=steps), split=True, closely=closely)
            for steps in (plans.accumulation_steps, 3 * plans.accumulation_steps + 1)
        )
        assert np.all(more_s <= first_s * (1 + 1e-12))


def opened(rows: Configurations, but: tuple[str, ...] = ()) -> Configurations:
    """Return plans with what a bound leaves open at values that tell nothing."""
    columns = {axis.name: getattr(rows, axis.name) for axis in AXES}
    open_axes = {"recompute", "recompute_every", "sharding", "shard_group", "offload"} - {*but}
    one = np.ones(rows.size, dtype=np.int64)
    columns |= {name: one * (name == "recompute_every") for name in open_axes}
    columns["virtual_stages"] = rows.virtual_stages + 1
    no_bubble = SCHEDULES.index("zero-bubble")
    columns["schedule"] = np.where(np.isin(rows.schedule, BUBBLES), SCHEDULES.index("1f1b"), no_bubble)
    return Configurations(**columns, precisions=rows.precisions)
