"""The brief of an answer: keys that stay, of the plan to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.domain.configuration import Configuration
from planner.domain.prediction import MiniBatch, Prediction, Quantity
from planner.domain.request import Sourced, Subject
from planner.domain.suggestion import Plan, Suggestion
from planner.formats.summaries import BRIEF, brief_document, briefs_document

Made = Callable[..., Suggestion]
STABLE = {
    "format", "version", "network", "cluster", "framework", "status", "nodes", "gpus_per_node", "gpus", "ranks",
    "data_parallel", "tensor_parallel", "context_parallel", "pipeline_parallel", "sub_batch", "accumulation_steps",
    "mini_batch", "precision", "mode", "iteration_s", "epoch_s", "samples_per_s", "memory_bytes", "position", "why",
    "certified", "warnings", "optimizer",
}  # fmt: skip
OF_SPLIT_PLANS = {
    "sequence_parallel", "expert_parallel", "virtual_stages", "schedule", "sharding", "shard_group", "recompute",
    "recompute_every", "stages", "stage_layers", "rank_order", "offload", "parallelism",
}  # fmt: skip
"""Keys that are there where they are not as in a plan that splits nothing."""
OF_OTHER_SETTINGS = {"layers", "device", "strategy", "bucket_bytes"}


@pytest.fixture
def two(suggestion: Made, prediction: Callable[[str], Prediction]) -> Suggestion:
    """Return a suggestion whose second plan is taken."""
    one = suggestion()
    sync = replace(prediction("sync"), configuration=Configuration(2, 2, 8, 3, "bf16"))
    return replace(one, plans=(*one.plans, Plan(2, sync, "later")), chosen=2, choice="fewer GPUs")


def test_brief_is_of_the_plan_to_take(two: Suggestion, subject: Subject) -> None:
    found = brief_document(subject, two)
    assert set(found) == STABLE | {"scenario", "strategy"}
    assert {
        "network": "alexnet", "cluster": "example", "nodes": 2, "gpus_per_node": 2, "gpus": 4, "ranks": 4,
        "data_parallel": 4, "sub_batch": 8, "accumulation_steps": 3, "mini_batch": 96, "precision": "bf16",
        "mode": "sync", "framework": "mxnet@1.0", "position": 2, "why": "fewer GPUs", "certified": True,
        "status": "found", "memory_bytes": 10**9, "samples_per_s": 128.0,
    }.items() <= found.items()  # fmt: skip
    assert found["iteration_s"] == {"value": 0.5, "low": 0.4, "high": 0.6}
    assert found["epoch_s"] == {"value": 1000.0, "low": None, "high": None}
    assert sorted(found["warnings"]) == ["extrapolated", "overheads_generic"]


def test_without_a_choice_it_is_the_best_plan_and_an_asynchronous_mini_batch_is_a_mean(
    suggestion: Made, subject: Subject
) -> None:
    one = suggestion()
    plan = one.plans[0]
    uneven = replace(plan.prediction, mini_batch=MiniBatch(64.5, 3.0, 60.0, 70.0, 0.9))
    found = brief_document(subject, replace(one, plans=(replace(plan, prediction=uneven),)))
    assert (found["position"], found["why"], found["mini_batch"]) == (1, "soonest", 64.5)
    assert (found["mode"], found["ranks"]) == ("async", found["nodes"])
    assert set(found) == STABLE | {"scenario", "strategy"}


def of_epochs(one: Suggestion, epochs: int) -> Suggestion:
    return replace(one, request={**one.request, "epochs": Sourced(epochs, "option")})


def test_time_of_the_training_is_a_first_epoch_and_later_ones(two: Suggestion, subject: Subject) -> None:
    plan = two.plans[1]
    first, later = Quantity(1500.0, 1200.0, 2000.0), Quantity(1000.0, 900.0, 1300.0)
    timed = replace(plan.prediction, first_epoch_s=first, epoch_s=later)
    one = replace(two, plans=(replace(plan, prediction=timed),))
    found = brief_document(subject, of_epochs(one, 10))
    assert found["epochs"] == 10
    assert found["walltime_s"] == {"value": 10_500.0, "low": 9_300.0, "high": 13_700.0}
    assert brief_document(subject, of_epochs(one, 1))["walltime_s"] == {"value": 1500.0, "low": 1200.0, "high": 2000.0}
    unsure = replace(one, plans=(replace(plan, prediction=replace(plan.prediction, first_epoch_s=None)),))
    assert brief_document(subject, of_epochs(unsure, 2))["walltime_s"] == {"value": 2000.0, "low": None, "high": None}


def test_without_a_data_set_there_is_no_epoch(two: Suggestion, subject: Subject) -> None:
    plan = two.plans[1]
    one = replace(two, plans=(replace(plan, prediction=replace(plan.prediction, epoch_s=None)),))
    assert brief_document(subject, one)["epoch_s"] == {"value": None, "low": None, "high": None}


def test_where_nothing_fits_it_says_what_to_loosen(suggestion: Made, two: Suggestion, subject: Subject) -> None:
    found = brief_document(subject, of_epochs(suggestion(found=False), 90))
    assert found["status"] == "none_feasible"
    assert found["loosen"] == [{"option": "--tolerance", "value": "30%", "message": "then 3 plans fit"}]
    assert set(found) == {
        "format", "version", "network", "cluster", "scenario", "framework", "status", "loosen", "warnings",
    }  # fmt: skip
    several: dict[str, Any] = briefs_document([(subject, two), (subject, suggestion(found=False))])
    assert several["format"] == "planner/briefs"
    assert [one["status"] for one in several["briefs"]] == ["found", "none_feasible"]


def test_all_keys_are_told_in_the_schema(two: Suggestion, subject: Subject) -> None:
    properties = BRIEF.schema()["properties"]
    assert {
        *STABLE,
        *OF_SPLIT_PLANS,
        *OF_OTHER_SETTINGS,
        "scenario",
        "trainable",
        "groups",
        "epochs",
        "tokens",
        "tokens_per_s",
        "steps",
        "walltime_s",
        "loosen",
    } == properties.keys()
    assert all(rule["description"] for rule in properties.values())
    assert BRIEF.build(brief_document(subject, two), "x")["nodes"] == 2
