"""A product of axes is priced as its rows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from planner.catalog import calibrations_for, find_cluster, find_dataset, find_network
from planner.domain.configuration import MODES, Configurations, Settings
from planner.domain.prediction import Predictions
from planner.domain.request import Problem
from planner.steps.predict import Evaluator

SYNC = {"nodes": (1, 2, 5), "gpus_per_node": (1, 8), "sub_batch": (1, 4, 16), "accumulation_steps": (1, 2, 3)}
ASYNC = SYNC | {"accumulation_steps": (1,), "mode": (MODES.index("async"),)}


def product(values: Mapping[str, tuple[int, ...]], precisions: tuple[str, ...] = ("fp32",)) -> Configurations:
    known = {"precision": tuple(range(len(precisions))), "mode": (0,), **values}
    return Configurations.product({name: np.array(one) for name, one in known.items()}, precisions)


def problem(cluster_name: str, network: str, **changed: Any) -> Problem:
    cluster = find_cluster(cluster_name)
    settings = Settings(input="synthetic" if cluster.storage is None else "storage", **changed)
    return Problem(
        find_network(network), find_dataset("imagenet-1k"), cluster, calibrations_for(cluster), settings=settings
    )


@pytest.mark.parametrize(
    ("asked", "values", "precisions"),
    [
        (problem("dgx1-v100", "alexnet"), SYNC, ("fp32", "fp16")),
        (problem("dgx1-v100", "alexnet"), SYNC | {"precision": (0, 1, 0)}, ("fp32", "fp16")),
        (problem("dgx1-v100", "alexnet", strategy="bucketed"), SYNC, ("fp32",)),
        (problem("dgx1-v100", "alexnet", strategy="no-overlap"), SYNC, ("fp32",)),
        (problem("tsubame-kfc", "sprint-15"), SYNC, ("fp32",)),
        (problem("tsubame-kfc", "sprint-15"), ASYNC, ("fp32",)),
    ],
    ids=["two precisions", "precisions in turn", "bucketed", "no overlap", "storage", "asynchronous"],
)
def test_a_product_is_priced_as_its_rows(
    asked: Problem, values: dict[str, tuple[int, ...]], precisions: tuple[str, ...]
) -> None:
    plans = product(values, precisions)
    together, apart = (Evaluator(asked).evaluate(one) for one in (plans, plans.rows))
    for field in fields(Predictions):
        found, expected = (getattr(one, field.name) for one in (together, apart))
        assert found == pytest.approx(expected, rel=1e-13, nan_ok=True), field.name


def test_what_a_mask_leaves_is_a_product_where_it_can_be() -> None:
    plans = product(SYNC)
    few = plans.where((plans.sub_batch > 1) & (plans.nodes != 2))
    assert few.shape == (2, 2, 2, 3, 1, 1)
    ragged = plans.where(plans.synchronous_mini_batch <= 8)
    assert ragged.shape == (int((plans.rows.synchronous_mini_batch <= 8).sum()),)
    for mask, part in (
        ((plans.rows.sub_batch > 1) & (plans.rows.nodes != 2), few),
        (plans.rows.synchronous_mini_batch <= 8, ragged),
    ):
        expected = plans.rows.take(mask)
        assert [part.rows.one(i) for i in range(part.size)] == [expected.one(i) for i in range(expected.size)]
    assert plans.where(plans.nodes > 9).size == 0
    one = product(dict.fromkeys(SYNC, (1,)))
    assert (one.where(one.nodes > 1).size, one.where(one.nodes > 0).size) == (0, 1)


def test_an_axis_that_is_alike_in_all_rows_is_held_once() -> None:
    rows = product(SYNC).rows
    some = rows.take(rows.sub_batch == 4)
    other = product(SYNC | {"mode": (1,), "sub_batch": (4,)}).rows
    for plans, records in (
        (some, [rows.one(i) for i in range(rows.size) if rows.sub_batch[i] == 4]),
        (some.take(np.array([3, 1])), [some.one(3), some.one(1)]),
        (some.take(slice(2, 4)), [some.one(2), some.one(3)]),
        (Configurations.joined([some, rows]), [one.one(i) for one in (some, rows) for i in range(one.size)]),
        (some.take(some.nodes > 9), []),
    ):
        assert [plans.one(i) for i in range(plans.size)] == records
        assert plans.mode.shape == (plans.size,)
        assert plans.mode.strides == (0,) or not plans.size
    assert Configurations.joined([some, other]).mode.tolist() == [0] * 18 + [1] * 18
