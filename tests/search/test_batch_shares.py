"""Shares of a mini-batch among groups against every division of it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.arrays import FloatArray
from planner.search.node_groups import best_shares

TIMES = st.sampled_from([1.0, 1.5, 2.0, 3.0, 4.5, math.inf])
TABLE = st.lists(TIMES, max_size=7).map(lambda times: np.array([math.nan, *times]))
GROUP = st.tuples(TABLE, st.integers(1, 6))


def least_by_brute_force(tables: list[FloatArray], devices: list[int], window: tuple[int, int]) -> float:
    """Return the least time a sample over every division of every total of the window; infinity: there is none."""
    least = math.inf
    for samples in itertools.product(*(range(1, table.size) for table in tables)):
        total = sum(count * each for count, each in zip(devices, samples, strict=True))
        if window[0] <= total <= window[1]:
            slowest = max(float(table[each]) for table, each in zip(tables, samples, strict=True))
            least = min(least, slowest / total)
    return least


@given(st.lists(GROUP, min_size=2, max_size=4), st.integers(1, 60), st.sampled_from([0, 0, 1, 7, 20]))
def test_no_division_takes_less(groups: list[tuple[FloatArray, int]], low: int, width: int) -> None:
    tables, devices = [table for table, _ in groups], [count for _, count in groups]
    window = low, low + width
    shares = best_shares(tables, devices, window)
    least = least_by_brute_force(tables, devices, window)
    if shares is None:
        assert least == math.inf
        return
    total = sum(count * each for count, each in zip(devices, shares.samples, strict=True))
    assert window[0] <= total <= window[1]
    assert shares.step_s == max(table[each] for table, each in zip(tables, shares.samples, strict=True))
    assert shares.step_s / total == pytest.approx(least, rel=1e-12)


def test_share_is_by_speed() -> None:
    slow, fast = np.arange(0.0, 100.0), np.arange(0.0, 100.0) / 3
    shares = best_shares([slow, fast], [8, 8], (160, 160))
    assert shares is not None
    assert (shares.samples, shares.step_s) == ((5, 15), 5.0)


def test_time_that_does_not_grow_with_samples_is_no_trap() -> None:
    # Seven samples have no good sub-batch: two groups of equal devices divide 14 unequally.
    table = np.array([math.nan, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 70.0, 8.0])
    shares = best_shares([table, table], [1, 1], (14, 14))
    assert shares is not None
    assert sorted(shares.samples) == [6, 8]


def test_every_device_takes_a_sample() -> None:
    table = np.array([math.nan, 1.0, 1.0])
    assert best_shares([table, table], [8, 8], (8, 8)) is None
    assert best_shares([table, table], [8, 4], (13, 15)) is None
    assert best_shares([table, table[:1]], [8, 8], (16, 16)) is None
