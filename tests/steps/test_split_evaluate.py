"""Split plans evaluated as arrays: as one by one, as described, as a product of axes, and together with whole ones."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.catalog import find_cluster, find_network
from planner.domain.axes import SCHEDULES
from planner.domain.configuration import Configuration, Configurations, Settings, splits
from planner.domain.framework import Framework
from planner.domain.prediction import Predictions
from planner.domain.request import Problem
from planner.domain.split import OFFLOADS
from planner.errors import ParameterError
from planner.steps.predict import Evaluator
from planner.workload.lawful import is_lawful

NETWORKS = [
    find_network("gpt:layers=4,hidden=64,heads=4,sequence=32,vocabulary=128"),
    find_network("llama:layers=4,hidden=64,heads=8,kv_heads=2,sequence=64,vocabulary=256"),
    find_network("moe:layers=4,hidden=64,heads=4,sequence=32,vocabulary=128,experts=4,expert_ffn=64"),
]
SETTINGS = Settings("adam", input="synthetic", framework=Framework("own"))
PROBLEMS = [Problem(one, None, find_cluster("dgx-a100"), (), settings=SETTINGS) for one in NETWORKS]
EVALUATORS = [Evaluator(one) for one in PROBLEMS]
AXES: dict[str, st.SearchStrategy[Any]] = {
    "nodes": st.sampled_from((1, 2)),
    "gpus_per_node": st.sampled_from((2, 4, 8)),
    "sub_batch": st.integers(1, 4),
    "accumulation_steps": st.sampled_from((1, 2, 4, 8)),
    "precision": st.sampled_from(("fp32", "fp16")),
    "tensor_parallel": st.sampled_from((1, 2, 4)),
    "context_parallel": st.sampled_from((1, 2)),
    "expert_parallel": st.sampled_from((1, 2)),
    "pipeline_parallel": st.sampled_from((1, 2, 3, 4)),
    "virtual_stages": st.sampled_from((1, 1, 2)),
    "sequence_parallel": st.sampled_from(("off", "on")),
    "schedule": st.sampled_from(SCHEDULES),
    "sharding": st.integers(0, 3),
    "shard_group": st.sampled_from(("all", "node")),
    "recompute": st.sampled_from(("none", "selective", "full")),
    "offload": st.sampled_from(OFFLOADS),
}
ANY = st.fixed_dictionaries(AXES)


def lawful(network: int, drawn: list[dict[str, Any]]) -> list[Configuration]:
    """Return the plans among those that can be."""
    found = []
    for values in drawn:
        try:
            one = Configuration(**values)
        except ParameterError:
            continue
        plans = Configurations.of([one])
        if is_lawful(NETWORKS[network], SETTINGS.framework, plans).all():
            found.append(one)
    return found


@given(st.integers(0, 2), st.lists(ANY, min_size=20, max_size=40))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_plans_together_are_as_each_alone_and_as_described(network: int, drawn: list[dict[str, Any]]) -> None:
    plans = lawful(network, drawn)
    if not plans:
        return
    evaluator = EVALUATORS[network]
    together = evaluator.evaluate(Configurations.of(plans))
    described = evaluator.describe(Configurations.of(plans))
    for at, (one, prediction) in enumerate(zip(plans, described, strict=True)):
        alone = evaluator.evaluate(Configurations.of([one]))
        for field in fields(Predictions):
            found, expected = getattr(together, field.name)[at], getattr(alone, field.name)[0]
            assert found == pytest.approx(expected, rel=1e-12, nan_ok=True), field.name
        assert prediction.configuration == one
        assert prediction.iteration_s.value == pytest.approx(together.iteration_s[at], rel=1e-12)
        assert prediction.memory_bytes["total"] == pytest.approx(together.memory_bytes[at], rel=1e-12)
        assert prediction.samples_per_s.value == pytest.approx(together.samples_per_s[at], rel=1e-12)
        added = [term.exposed_seconds for term in prediction.terms]
        assert sum(added) == pytest.approx(prediction.iteration_s.value, rel=1e-9)
        assert sum(term.share for term in prediction.terms) == pytest.approx(1, rel=1e-9)
        assert all(0 <= s <= term.seconds * (1 + 1e-9) for s, term in zip(added, prediction.terms, strict=True))


def test_a_product_of_axes_is_as_its_rows() -> None:
    values = {
        "nodes": (1, 2), "gpus_per_node": (8,), "sub_batch": (1, 3), "accumulation_steps": (4, 8),
        "precision": (0, 1), "mode": (0,), "tensor_parallel": (1, 2), "pipeline_parallel": (1, 2, 4),
        "sharding": (0, 1), "recompute": (0, 2),
    }  # fmt: skip
    arrays = {name: np.array(one) for name, one in values.items()}
    plans = Configurations.product(arrays, ("fp32", "fp16"))
    assert splits(plans).any()
    assert not splits(plans).all()
    together, apart = (EVALUATORS[0].evaluate(one) for one in (plans, plans.rows))
    for field in fields(Predictions):
        found, expected = (getattr(one, field.name) for one in (together, apart))
        assert found == pytest.approx(expected, rel=1e-12, nan_ok=True), field.name


def test_more_devices_of_a_layer_compute_less_each() -> None:
    """Forward and backward kernels of a rank shrink with every degree that divides what it holds."""
    for network, axis in ((0, "tensor_parallel"), (0, "context_parallel"), (0, "pipeline_parallel")):
        times = []
        for degree in (1, 2):
            degrees: dict[str, Any] = {axis: degree}
            one = Configuration(1, 8, 4, accumulation_steps=2, **degrees)
            (found,) = EVALUATORS[network].describe(Configurations.of([one]))
            times.append({term.name: term.seconds for term in found.terms})
        whole, part = times
        assert part["forward"] < whole["forward"], axis
        assert part["backward"] < whole["backward"], axis
