from __future__ import annotations

import numpy as np
import pytest

from planner.domain.arrays import BoolArray
from planner.domain.runs import MemoryScore
from planner.scoring.errors import Figures
from planner.scoring.evaluate import memory_score


def score_of(called: BoolArray, ran_out: BoolArray, mask: BoolArray) -> MemoryScore:
    empty = np.full(mask.size, np.nan)
    return memory_score(Figures(empty, empty), (called, ran_out), mask, np.zeros_like(mask))


def test_every_cell_is_counted_apart() -> None:
    called = np.array([True] * 5 + [False] * 5)
    ran_out = np.array([True, True, True, True, False, True, True, False, False, False])
    found = score_of(called, ran_out, np.ones(10, dtype=np.bool_))
    assert found == MemoryScore(true_out_of_memory=4, false_out_of_memory=1, true_ok=3, false_ok=2)


def test_masked_rows_do_not_count() -> None:
    flags = np.array([True, True, False])
    assert score_of(flags, flags, np.array([True, False, False])) == MemoryScore(true_out_of_memory=1)
    assert score_of(flags[:0], flags[:0], flags[:0]) == MemoryScore()


def test_errors_of_memory_are_geometric() -> None:
    ok = np.zeros(3, dtype=np.bool_)
    figures = Figures(
        np.array([2.0, 1.0, 9.0]), np.array([1.0, 2.0, np.nan]), np.array([0.5, 1.0, 1.0]), np.array([4.0, 1.5, 1.0])
    )
    found = memory_score(figures, (ok, ok), ok, ~ok)
    assert (found.n, found.coverage_90) == (2, 0.5)
    assert found.error == pytest.approx(1.0)
    assert found.bias == pytest.approx(0.0)
