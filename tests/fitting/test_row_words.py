"""Rows in words, and the worst one of a fit."""

from collections.abc import Mapping
from typing import Any

import pytest

from planner.domain.samples import Samples
from planner.fitting.gaussian_process import fit_entry, row_in_words


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"kind": "gemm", "m": 64, "n": 3, "k": 5, "batch": 1, "time_s": 2e-3}, "m=64 n=3 k=5: 2 ms"),
        ({"kind": "gemm", "m": 64, "n": 3, "k": 5, "batch": 7, "time_s": 2e-3}, "m=64 n=3 k=5 batch=7: 2 ms"),
        ({"kind": "copy", "elements": 8, "traffic": 16, "fixed_bytes": 0, "time_s": 1.5e-5, "group": "small"},
         "elements=8 traffic=16: 15 us (small)"),
        ({"kind": "gemm", "m": 1, "n": 2, "k": 3, "call": "m=1n n=2", "time_s": 1.0}, "m=1n n=2: 1 s"),
    ],
)  # fmt: skip
def test_a_row_says_its_work_time_and_group(row: Mapping[str, Any], words: str) -> None:
    assert row_in_words(Samples.from_rows([row], {}), 0, str(row["kind"])) == words


def test_an_entry_names_the_row_that_it_predicts_worst() -> None:
    rows: list[Mapping[str, Any]] = [
        {
            "kind": "copy",
            "elements": n,
            "traffic": 2 * n,
            "fixed_bytes": 0,
            "time_s": 1e-9 * n * (3 if n == 5000 else 1),
        }
        for n in range(1000, 9000, 500)
    ]  # fmt: skip
    key = ("kernels", "copy", "", "any", "")
    entry = fit_entry(Samples.from_rows(rows, {}), key, "traffic.bytes", {})
    assert entry.worst_point == "elements=5000 traffic=10000: 15 us"
    assert entry.worst_error is not None
    assert entry.worst_error == pytest.approx(2 / 3, rel=0.3)
