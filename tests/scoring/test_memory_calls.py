from __future__ import annotations

import numpy as np

from planner.domain.validation import MemoryCalls
from planner.scoring.score import memory_calls


def test_every_cell_is_counted_apart() -> None:
    called = np.array([True] * 5 + [False] * 5)
    ran_out = np.array([True, True, True, True, False, True, True, False, False, False])
    assert memory_calls(called, ran_out) == MemoryCalls(
        true_out_of_memory=4, false_out_of_memory=1, true_ok=3, false_ok=2
    )


def test_masked_rows_do_not_count() -> None:
    flags = np.array([True, True, False])
    assert memory_calls(flags, flags, np.array([True, False, False])) == MemoryCalls(true_out_of_memory=1)
    assert memory_calls(flags[:0], flags[:0]) == MemoryCalls()
