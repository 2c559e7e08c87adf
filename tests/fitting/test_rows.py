"""Rows made ready for a fit, against counts by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from planner.domain.samples import Samples
from planner.fitting.rows import merged, usable

PRODUCT = {"kind": "gemm", "precision": "fp32", "m": 8, "n": 8, "k": 8}


def samples_of(*rows: Mapping[str, Any]) -> Samples:
    return Samples.from_rows(list(rows), {})


def test_a_call_timed_several_times_is_one_row_at_the_median_where_it_stood_first() -> None:
    one = [{**PRODUCT, "time_s": time_s, "group": f"one {time_s}"} for time_s in (5.0, 1.0, 2.0)]
    other = [{**PRODUCT, "m": 4, "time_s": time_s, "group": f"other {time_s}"} for time_s in (7.0, 4.0)]
    turned = {**PRODUCT, "trans_a": "T", "time_s": 9.0, "group": "turned"}
    found = merged(samples_of(one[0], other[0], turned, one[1], other[1], one[2]), "gemm")
    assert found.time_s.tolist() == [2.0, 5.5, 9.0]
    assert found.text["group"].tolist() == ["one 5.0", "other 7.0", "turned"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**PRODUCT, "time_s": 1.0}, ""),  # batch may be empty
        ({**PRODUCT, "time_s": -1.0, "m": 0}, "time_s must be finite and above 0, got -1"),
        ({**PRODUCT, "time_s": 1.0, "m": 0, "k": 0}, "m must be given and at least 1, got 0"),
        ({"kind": "fft", "time_s": 1.0}, "kind must be known, got 'fft'"),
        ({"kind": "fft", "time_s": 1.0, "operation": "fft", "bytes": 8, "nodes": 1, "ranks_per_node": 1}, ""),
        ({"kind": "im2col", "time_s": 1.0, "bytes": 8.0}, ""),  # bytes alone are enough
        ({"kind": "im2col", "time_s": 1.0}, "bytes must be given and at least 1, got nan"),
        ({"kind": "im2col", "time_s": 1.0, "traffic": -1.0}, "traffic must be given and at least 0, got -1"),
    ],
)
def test_the_first_broken_rule_is_the_reason(row: Mapping[str, Any], reason: str) -> None:
    mask, rejected = usable(samples_of({**PRODUCT, "time_s": 1.0}, row))
    assert mask.tolist() == [True, not reason]
    assert rejected == (((1, reason),) if reason else ())
