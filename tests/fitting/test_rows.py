"""Rows made ready for a fit, against counts by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from planner.domain.samples import Samples
from planner.fitting.rows import left_out_together, merged, usable

PRODUCT = {"kind": "gemm", "precision": "fp32", "m": 8, "n": 8, "k": 8}
CONVOLUTION = {
    "kind": "convolution", "precision": "fp32", "images": 2, "in_c": 6, "in_h": 5, "in_w": 7, "out_c": 4, "k_h": 3,
    "k_w": 3, "stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1, "time_s": 1.0,
}  # fmt: skip
ATTENTION = {"kind": "attention", "batch": 2, "queries": 4, "keys": 3, "width": 8, "time_s": 1.0}
NORM = {"kind": "layer_norm", "elements": 12.0, "traffic": 24.0, "fixed_bytes": 0.0, "time_s": 1.0}


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
    ("plain", "changed", "reason"),
    [
        (CONVOLUTION, {"k_h": 7, "k_w": 9}, ""),  # one output position: 5 + 2 and 7 + 2 padded
        (CONVOLUTION, {"k_h": 8}, "k_h must be at most in_h + 2 pad_h = 7, got 8"),
        (CONVOLUTION, {"k_w": 999}, "k_w must be at most in_w + 2 pad_w = 9, got 999"),
        (CONVOLUTION, {"pad_h": 3, "pad_w": 4}, ""),  # positions of padding alone are possible, and published
        (CONVOLUTION, {"stride_h": 0}, "stride_h must be given and at least 1, got 0"),
        (CONVOLUTION, {"groups": 0}, "groups must be given and at least 1, got 0"),
        (CONVOLUTION, {"groups": 2}, ""),
        (CONVOLUTION, {"groups": 4}, "in_c must be a multiple of groups = 4, got 6"),
        (CONVOLUTION, {"groups": 3}, "out_c must be a multiple of groups = 3, got 4"),
        (CONVOLUTION, {"direction": "backward_weight"}, ""),
        (CONVOLUTION, {"direction": "update"}, "direction must be forward, backward_data or backward_weight, got "),
        (PRODUCT, {"time_s": 1.0, "direction": "update"}, "direction must be forward, backward_data or backward_we"),
        (PRODUCT, {"time_s": 1.0, "batch": 0}, "batch must be given and at least 1, got 0"),
        (ATTENTION, {"causal": 1}, ""),
        (ATTENTION, {"causal": 2}, "causal must be 0 or 1, got 2"),
        (ATTENTION, {"batch": 0}, "batch must be given and at least 1, got 0"),
        (NORM, {"rows": 4}, ""),
        (NORM, {"rows": 0}, ""),
        (NORM, {"rows": 5}, "elements must be a multiple of rows = 5, got 12"),
        (NORM, {"kind": "update", "direction": "update"}, ""),
        (NORM, {"kind": "add", "elements": 0.0, "traffic": 0.0}, "bytes must be above 0, got 0"),
        (NORM, {"kind": "add", "elements": 0.0, "traffic": 0.0, "fixed_bytes": 1.0}, ""),
    ],
)
def test_what_no_call_can_have_is_rejected(plain: Mapping[str, Any], changed: Mapping[str, Any], reason: str) -> None:
    mask, rejected = usable(samples_of({**plain, **changed}, {**PRODUCT, "time_s": 1.0}))
    assert mask.tolist() == [not reason, True]
    assert [one.reason.startswith(reason) for one in rejected] == ([True] if reason else [])


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


LINEAR = {"m": 64, "n": 8, "k": 32, "batch": 1}
HEADS = {"m": 64, "n": 64, "k": 32, "batch": 8}
NORMALISED = {"elements": 640, "traffic": 1280, "rows": 10}
COPIED = {"elements": 640, "traffic": 1280}


@pytest.mark.parametrize(
    ("kind", "direction", "work", "other", "same"),
    [
        ("convolution", "forward", CONVOLUTION, {"images": 8}, True),
        ("convolution", "forward", CONVOLUTION, {"stride_h": 1}, False),
        ("gemm", "forward", LINEAR, {"n": 32}, True),
        ("gemm", "backward_data", LINEAR, {"n": 32}, True),
        ("gemm", "forward", LINEAR, {"k": 64}, False),
        ("gemm", "backward_weight", LINEAR, {"k": 64}, True),
        ("gemm", "backward_weight", LINEAR, {"n": 32}, False),
        ("gemm", "forward", HEADS, {"batch": 16}, True),
        ("gemm", "forward", HEADS, {"n": 128}, False),
        ("attention", "forward", ATTENTION, {"batch": 16}, True),
        ("attention", "forward", ATTENTION, {"keys": 128}, False),
        ("layer_norm", "forward", NORMALISED, {"elements": 1280, "traffic": 2560, "rows": 20}, True),
        ("layer_norm", "forward", NORMALISED, {"elements": 1280, "traffic": 2560, "rows": 10}, False),
        ("copy", "forward", COPIED, {"precision": "bf16"}, True),
        ("copy", "forward", COPIED, {"elements": 1280, "traffic": 2560}, False),
    ],
)
def test_rows_of_one_layer_are_left_out_together(
    kind: str, direction: str, work: dict[str, Any], other: dict[str, Any], *, same: bool
) -> None:
    row = {"precision": "fp32", "time_s": 1.0, **work, "kind": kind, "direction": direction}
    codes, of = left_out_together(samples_of(row, {**row, **other}), kind)
    assert of == "shape"
    assert (codes[0] == codes[1]) == same


def test_shapes_of_their_own_are_left_out_as_rows_are() -> None:
    """Numbered in their order, so that folds of many rows are the same as those of rows."""
    rows = [{"kind": "gemm", "direction": "forward", "time_s": 1.0, **LINEAR, "m": m} for m in (9, 3, 7, 5, 3)]
    assert left_out_together(samples_of(*rows), "gemm")[0].tolist() == [0, 1, 2, 3, 1]


def test_stated_groups_go_before_shapes_and_input_has_none() -> None:
    rows = [{"kind": "gemm", "time_s": 1.0, **LINEAR, "m": m, "group": group} for m, group in ((3, "a"), (3, "b"))]
    codes, of = left_out_together(samples_of(*rows), "gemm")
    assert (codes.tolist(), of) == ([0, 1], "group")
    assert left_out_together(samples_of(*rows[:1] * 2), "load")[1] == "row"
