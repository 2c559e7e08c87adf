"""Runs: what a row leaves open is derived, what contradicts is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.runs import Run
from planner.errors import ParameterError

DEGREES = st.integers(1, 64)


def run(**values: Any) -> Run:
    return Run(**{"id": "a", "network": "resnet50", "cluster": "dgx1-v100", "metric": "iteration_s", **values})


@given(nodes=DEGREES, gpus=DEGREES, sub_batch=DEGREES, steps=DEGREES, hidden=st.integers(0, 3))
def test_any_one_empty_number_is_derived(nodes: int, gpus: int, sub_batch: int, steps: int, hidden: int) -> None:
    whole = {
        "mini_batch": nodes * gpus * sub_batch * steps,
        "data_parallel": nodes * gpus,
        "sub_batch": sub_batch,
        "accumulation_steps": steps,
    }
    given_ones = {key: value for at, (key, value) in enumerate(whole.items()) if at != hidden}
    derived = run(nodes=nodes, gpus_per_node=gpus, **given_ones)
    assert {key: getattr(derived, key) for key in whole} == whole
    assert derived == run(nodes=nodes, gpus_per_node=gpus, **whole)


def test_accumulation_is_one_where_two_numbers_are_open() -> None:
    assert run(gpus_per_node=4, sub_batch=8).mini_batch == 32
    assert run(gpus_per_node=4, mini_batch=32).sub_batch == 8
    assert run(gpus_per_node=4, mini_batch=32).accumulation_steps == 1


def test_model_parallel_degrees_leave_fewer_replicas() -> None:
    one = run(nodes=2, gpus_per_node=8, tensor_parallel=4, pipeline_parallel=2, virtual_stages=3, mini_batch=24)
    assert (one.gpus, one.data_parallel, one.sub_batch) == (16, 2, 12)


def test_defaults_are_those_of_a_prediction() -> None:
    one = run(sub_batch=8)
    assert (one.nodes, one.gpus_per_node, one.gpus) == (1, None, None)
    assert (one.precision, one.mode, one.recompute, one.sharding) == ("fp32", "sync", "none", 0)
    assert (one.tensor_parallel, one.pipeline_parallel, one.virtual_stages) == (1, 1, 1)
    assert (one.optimizer, one.strategy, one.status, one.input) == ("", "", "ok", "synthetic")
    assert run(sub_batch=8, metric="epoch_s").input == "storage"


def test_numbers_stay_open_until_the_node_is_known() -> None:
    one = run(mini_batch=64, sub_batch=4)
    assert (one.data_parallel, one.accumulation_steps) == (None, None)
    known = one.on(8)
    assert (known.data_parallel, known.accumulation_steps, known.gpus) == (8, 2, 8)
    assert known.on(4) is known
    with pytest.raises(
        ParameterError, match=r"^mini_batch must be a multiple of data_parallel x sub_batch = 96, got 64"
    ):
        one.on(24)


def test_replicas_without_gpus_are_checked_on_the_node() -> None:
    one = run(mini_batch=64, sub_batch=4, accumulation_steps=2)
    assert one.data_parallel == 8
    assert one.on(8).gpus == 8
    with pytest.raises(ParameterError, match=r"^the number of GPUs must be data_parallel .* = 8, got 4"):
        one.on(4)


def test_placement_gives_the_gpus() -> None:
    one = run(nodes=3, placement=(1, 1, 2), sub_batch=5)
    assert (one.gpus, one.gpus_per_node, one.mini_batch, one.is_uneven) == (4, 2, 20, True)
    assert not run(nodes=2, placement=(2, 2), sub_batch=5).is_uneven


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"sub_batch": 0}, "sub_batch"),
        ({"sub_batch": -3}, "sub_batch"),
        ({}, "sub_batch"),
        ({"sub_batch": 8, "nodes": 0}, "nodes"),
        ({"sub_batch": 8, "sharding": 4}, "sharding"),
        ({"sub_batch": 8, "value": 0.0}, "value"),
        ({"sub_batch": 8, "value": float("nan")}, "value"),
        ({"sub_batch": 8, "value": float("inf")}, "value"),
        ({"sub_batch": 8, "metric": "seconds"}, "metric"),
        ({"sub_batch": 8, "precision": "fp64"}, "precision"),
        ({"sub_batch": 8, "status": "oom"}, "status"),
        ({"sub_batch": 8, "optimizer": "lamb"}, "optimizer"),
        ({"sub_batch": 8, "network": ""}, "network"),
        ({"sub_batch": 8, "cluster": ""}, "cluster"),
        ({"sub_batch": 8, "virtual_stages": 2}, "virtual_stages"),
        ({"sub_batch": 8, "metric": "update_s"}, "metric"),
        ({"sub_batch": 8, "mode": "async", "accumulation_steps": 2}, "accumulation_steps"),
        ({"sub_batch": 8, "mode": "async", "tensor_parallel": 2}, "tensor_parallel"),
        ({"sub_batch": 8, "gpus_per_node": 6, "tensor_parallel": 4}, "the number of GPUs"),
        ({"sub_batch": 8, "gpus_per_node": 6, "data_parallel": 4}, "the number of GPUs"),
        ({"sub_batch": 8, "gpus_per_node": 6, "mini_batch": 40}, "mini_batch"),
        ({"sub_batch": 8, "gpus_per_node": 6, "mini_batch": 40, "accumulation_steps": 1}, "mini_batch"),
        ({"sub_batch": 10**9, "gpus_per_node": 10**9}, "mini_batch"),
        ({"sub_batch": 8, "nodes": 2, "placement": (1, 1, 2)}, "placement"),
        ({"sub_batch": 8, "nodes": 2, "placement": (1, 0)}, "placement"),
        ({"sub_batch": 8, "nodes": 2, "placement": (1, 2), "gpus_per_node": 4}, "gpus_per_node"),
    ],
)
def test_wrong_run_names_what_is_wrong(values: dict[str, Any], what: str) -> None:
    with pytest.raises(ParameterError, match=f"^{what} must be "):
        run(**values)


def test_memory_that_was_measured_says_what_was_read() -> None:
    rule = "^notes must be with what was read where metric is memory_bytes: in use, reserved, trials, allocated, got"
    with pytest.raises(ParameterError, match=rule):
        run(metric="memory_bytes", value=1.0, gpus_per_node=4, sub_batch=8)
    wanted = run(metric="memory_bytes", gpus_per_node=4, sub_batch=8)
    assert wanted.memory_reading == "in use"
