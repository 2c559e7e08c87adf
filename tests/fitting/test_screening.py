"""Samples judged before a fit: units told from physics, contradictions told from spreads."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from planner.domain.cluster import Accelerator
from planner.domain.inputs import INPUT_COLUMNS
from planner.domain.samples import Samples
from planner.fitting.screening import contradictions, repeated, unit_doubt

GPU = Accelerator("made-up", "gpu", 16 * 2.0**30, 1e12, {"fp32": 1e13, "fp16": 1e14})


def products(efficiency: float = 0.7, call_s: float = 5e-6, precision: str = "fp32") -> Samples:
    """Return square products at a share of the peak rate, behind a constant."""
    sides = [2**at for at in range(5, 13)]
    rows: list[Mapping[str, Any]] = [
        {"kind": "gemm", "precision": precision, "m": s, "n": s, "k": s,
         "time_s": call_s + 2 * s**3 / (efficiency * GPU.peak_flop_per_s[precision])} for s in sides
    ]  # fmt: skip
    return Samples.from_rows(rows, {})


def copies(bytes_per_s: float, smallest: int = 1 << 25) -> Samples:
    rows: list[Mapping[str, Any]] = [
        {"kind": "copy", "precision": "fp32", "elements": n, "traffic": 2 * n, "fixed_bytes": 0,
         "time_s": 8 * n / bytes_per_s} for n in (smallest, 2 * smallest, 4 * smallest)
    ]  # fmt: skip
    return Samples.from_rows(rows, {})


def scaled(samples: Samples, factor: float) -> Samples:
    return Samples(samples.text, {**samples.number, "time_s": factor * samples.time_s}, samples.circumstances)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("efficiency", [0.95, 0.3, 0.05])
@pytest.mark.parametrize("call_s", [1e-6, 5e-6, 5e-5])
def test_seconds_are_believed_and_other_units_are_named(precision: str, efficiency: float, call_s: float) -> None:
    made = products(efficiency, call_s, precision)
    assert unit_doubt(made, GPU) == ""
    for unit, factor in (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)):
        assert f"looks like {unit}; divide the column by {factor:,.0f}" in unit_doubt(scaled(made, factor), GPU)


def test_times_faster_than_the_device_are_refused() -> None:
    sentence = unit_doubt(scaled(products(0.9, 0.0), 1e-3), GPU)
    assert "rows more than 1.5 times faster than its peak rates" in sentence
    assert unit_doubt(products(1.3, 0.0), GPU) == ""  # a clock above the data sheet's
    assert unit_doubt(copies(0.9e12), GPU) == ""
    assert "got 3 of 3 rows" in unit_doubt(copies(2e12), GPU)


def test_what_fits_a_cache_may_be_read_faster_than_memory() -> None:
    assert unit_doubt(copies(4e12, smallest=1 << 18), GPU) == ""


def test_fast_algorithms_pass_the_peak() -> None:
    sizes = {"in_c": 256, "in_h": 56, "in_w": 56, "out_c": 256, "k_h": 3, "k_w": 3, "pad_h": 1, "pad_w": 1}
    row: dict[str, Any] = {"kind": "convolution", "precision": "fp32", **sizes, "stride_h": 1, "stride_w": 1}
    flop = 2 * 256 * 56 * 56 * 256 * 9
    rows: list[Mapping[str, Any]] = [{**row, "images": n, "time_s": n * flop / 2.2e13} for n in (32, 64, 128)]
    assert unit_doubt(Samples.from_rows(rows, {}), GPU) == ""
    strided: list[Mapping[str, Any]] = [
        {**one, "stride_h": 2, "stride_w": 2, "time_s": one["time_s"] / 4} for one in rows
    ]
    assert "3 of 3 rows" in unit_doubt(Samples.from_rows(strided, {}), GPU)


def test_few_rows_and_collectives_say_nothing() -> None:
    few = scaled(products(), 1e3)
    assert unit_doubt(few.select(np.arange(few.size) < 2), GPU) == ""
    rows: list[Mapping[str, Any]] = [
        {"kind": "all_reduce", "operation": "all_reduce", "bytes": 1e3, "nodes": 2, "ranks_per_node": 1, "time_s": 1.0}
    ] * 4
    assert unit_doubt(Samples.from_rows(rows, {}), GPU) == ""


@pytest.mark.parametrize("kind", INPUT_COLUMNS)
def test_storage_and_links_are_left_alone(kind: str) -> None:
    rows: list[Mapping[str, Any]] = [
        {"kind": kind, **dict.fromkeys(INPUT_COLUMNS[kind], 8), "time_s": t, "spread_s": 0.0} for t in (1e-9, 1e-3, 9.0)
    ]
    samples = Samples.from_rows(rows, {})
    assert (unit_doubt(samples, GPU), contradictions(samples)) == ("", ())


def timed(*times: tuple[float, float], **other: Any) -> Samples:
    """Return one call timed several times: (time, spread)."""
    rows: list[Mapping[str, Any]] = [
        {"kind": "gemm", "m": 8, "n": 8, "k": 8, "time_s": t, "spread_s": s, **other} for t, s in times
    ]
    return Samples.from_rows(rows, {})


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (((1.0, 0.0), (1.09, 0.0)), ()),  # a tenth is allowed whatever the spread
        (((1.0, 0.0), (1.11, 0.0)), ((0, 1),)),
        (((1.0, 0.03), (1.2, 0.04)), ()),  # hypot 0.05, five times that is 0.25
        (((1.0, 0.03), (1.26, 0.04)), ((0, 1),)),
        (((1.0, np.nan), (1.49, 0.0)), ()),
        (((1.0, np.nan), (1.51, np.nan)), ((0, 1),)),
    ],
)
def test_times_of_a_call_may_differ_by_their_spread(
    times: tuple[tuple[float, float], ...], expected: tuple[tuple[int, int], ...]
) -> None:
    assert contradictions(timed(*times)) == expected
    assert contradictions(timed(*reversed(times))) == tuple((b, a) for a, b in expected)


def test_fastest_and_slowest_are_named_the_worst_call_first() -> None:
    other = timed((2.0, 0.0), (8.0, 0.0), library="other")
    both = timed((3.0, 0.0), (1.0, 0.0), (2.0, 0.0)).joined(other)
    assert contradictions(both) == ((3, 4), (1, 0))
    assert repeated(both) == 3


@pytest.mark.parametrize("column", ["library", "source", "precision", "direction", "trans_a", "call", "device"])
def test_other_circumstances_are_another_call(column: str) -> None:
    both = timed((1.0, 0.0)).joined(timed((9.0, 0.0), **{column: "x"}))
    assert (contradictions(both), repeated(both)) == ((), 0)


@pytest.mark.parametrize("column", ["group", "notes"])
def test_where_a_row_is_held_out_makes_no_other_call(column: str) -> None:
    both = timed((1.0, 0.0)).joined(timed((9.0, 0.0), **{column: "x"}))
    assert (contradictions(both), repeated(both)) == (((0, 1),), 1)
