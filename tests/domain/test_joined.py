"""Rows that have bases in common, against rows with a column of every axis."""

from __future__ import annotations

import numpy as np
import pytest

from planner.domain.axes import AXES
from planner.domain.configuration import Configurations, JoinedConfigurations, splits

RNG = np.random.default_rng(5)


def joined(number: int = 40, bases: int = 7) -> JoinedConfigurations:
    one, zero = np.ones(bases, dtype=np.int64), np.zeros(bases, dtype=np.int64)
    columns = {"nodes": RNG.integers(1, 3, bases), "gpus_per_node": 8 * one, "sub_batch": one, "precision": zero}
    columns |= {"tensor_parallel": RNG.choice([2, 4], bases), "pipeline_parallel": RNG.choice([1, 2], bases)}
    columns |= {"sharding": RNG.integers(0, 4, bases), "accumulation_steps": one, "mode": zero}
    rows = Configurations(**columns, precisions=("fp16",))
    base, sub_batch, steps = (RNG.integers(least, most, number) for least, most in ((0, bases), (1, 4), (1, 9)))
    return JoinedConfigurations(rows, base, sub_batch, steps)


def rows_of(some: Configurations) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(some, axis.name).tolist() for axis in AXES), strict=True))


def plain(some: JoinedConfigurations) -> list[tuple[int, ...]]:
    """Return the rows, worked out one by one."""
    found = []
    for at, base in enumerate(some.base.tolist()):
        of_base = {axis.name: int(getattr(some.bases, axis.name)[base]) for axis in AXES}
        own = {name: int(getattr(some, name)[at]) for name in ("sub_batch", "accumulation_steps")}
        found.append(tuple((of_base | own).values()))
    return found


def test_rows_are_those_of_their_bases() -> None:
    some = joined()
    assert rows_of(some) == plain(some)
    assert some.size == 40
    assert splits(some).all()
    every = Configurations.joined([some])
    assert not isinstance(every, JoinedConfigurations)
    for name in ("gpus", "data_parallel", "synchronous_mini_batch"):
        np.testing.assert_array_equal(getattr(some, name), getattr(every, name))
    with pytest.raises(AttributeError):
        some.no_axis  # noqa: B018 - what is no axis is not there


def test_parts_of_rows_stay_joined() -> None:
    some = joined()
    mask = RNG.random(40) < 0.5
    at = np.flatnonzero(mask)
    every = plain(some)
    for part in (some.take(at), some.take(mask), some.where(mask)):
        assert isinstance(part, JoinedConfigurations)
        assert rows_of(part) == [every[row] for row in at.tolist()]
    assert rows_of(some.take(slice(3, 9))) == every[3:9]
    assert some.bases.bases is some.bases


def test_several_parts_are_one_after_the_other() -> None:
    parts = [joined(5), joined(0), joined(9, bases=3)]
    assert rows_of(JoinedConfigurations.all_of(parts)) == [row for part in parts for row in plain(part)]


@pytest.mark.parametrize("names", [("sharding",), ("sub_batch",), ("tensor_parallel", "last_stage", "sub_batch")])
def test_distinct_plans_are_those_of_their_columns(names: tuple[str, ...]) -> None:
    some = joined(200)
    more = RNG.integers(0, 3, 200)
    for extra in ((), ((more, 3),)):
        found, expected = some.distinct(names, *extra), Configurations.joined([some]).distinct(names, *extra)
        keys = np.stack([*(getattr(some, name) for name in names), *(column for column, _ in extra)])
        assert found[0].size == expected[0].size
        np.testing.assert_array_equal(keys[:, found[0]][:, found[1]], keys)


def test_plans_of_bases_are_gathered() -> None:
    some = joined()
    taken = some.take(np.arange(3, 9))
    for name in (*(axis.name for axis in AXES), "schedule_run", "last_stage"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(Configurations.joined([some]), name)[3:9])
    np.testing.assert_array_equal(some.of_bases(lambda plans: plans.sharding + 1), some.sharding + 1)
    changed = some.with_bases(lambda plans: plans.but(sharding=0 * plans.sharding))
    assert not changed.sharding.any()
    np.testing.assert_array_equal(changed.sub_batch, some.sub_batch)
    np.testing.assert_array_equal(some.but(sub_batch=2 * some.sub_batch).sub_batch, 2 * some.sub_batch)
    assert not some.is_laid_out.any()
