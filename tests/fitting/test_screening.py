"""Samples judged before a fit: units told from physics, contradictions told from spreads."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from planner.domain.cluster import Accelerator
from planner.domain.inputs import INPUT_COLUMNS
from planner.domain.samples import Samples
from planner.fitting.screening import contradictions, off_course, repeated, runs_apart, undisputed, unit_doubt

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


def many(call_s: float = 5e-6, scatter: float = 2.0, rows: int = 90) -> Samples:
    """Return products of all sizes at scattered shares of the peak rate, in no order of size."""
    random = np.random.default_rng(1)
    sides = np.rint(2 ** random.uniform(3, 12, (rows, 3)))
    rate = 0.5 * GPU.peak_flop_per_s["fp32"] * scatter ** random.uniform(-1, 1, rows)
    times = (call_s + 2 * sides.prod(axis=1) / rate) * 1.3 ** random.uniform(-1, 1, rows)
    return Samples.from_rows(
        [
            {"kind": "gemm", "precision": "fp32", "m": m, "n": n, "k": k, "time_s": t}
            for (m, n, k), t in zip(sides.tolist(), times.tolist(), strict=True)
        ],
        {},
    )


def changed(samples: Samples, rows: Sequence[int], factor: float) -> Samples:
    times = samples.time_s.copy()
    times[list(rows)] *= factor
    return Samples(samples.text, {**samples.number, "time_s": times}, samples.circumstances)


@pytest.mark.parametrize("call_s", [1e-6, 5e-6, 1e-4])
@pytest.mark.parametrize("scatter", [1.0, 3.0])
def test_no_time_is_off_course_for_launch_overhead_or_scatter(call_s: float, scatter: float) -> None:
    assert off_course(many(call_s, scatter), GPU) == ()


@pytest.mark.parametrize(("unit", "factor"), [("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)])
@pytest.mark.parametrize("rows", [[7], range(0, 90, 9), range(0, 90, 5), range(18)])
def test_rows_of_another_unit_are_found_and_no_others(unit: str, factor: float, rows: Sequence[int]) -> None:
    """Up to a fifth of all rows, whatever their size; too short by a unit as well as too long."""
    for times in (factor, 1 / factor):
        found = off_course(changed(many(), rows, times), GPU)
        assert [one.row for one in found] == list(rows)
        assert {one.unit for one in found} <= {(unit, factor), None}
        assert sum(one.unit is not None for one in found) >= 0.9 * len(rows)


def test_a_row_off_by_no_unit_is_an_outlier() -> None:
    first, second = off_course(changed(changed(many(scatter=1.0), [3], 180.0), [8], 3e4), GPU)
    assert (first.row, first.unit, second.row, second.unit) == (3, None, 8, None)
    assert first.factor == pytest.approx(180, rel=0.5)
    assert off_course(changed(many(scatter=1.0), [3], 60.0), GPU) == ()


def test_a_row_far_above_peak_rates_is_an_outlier() -> None:
    made = many(0.0, scatter=1.0)
    largest = int(np.argmax(made.time_s))
    assert [one.row for one in off_course(changed(made, [largest], 1 / 50), GPU)] == [largest]
    assert off_course(changed(made, [largest], 1 / 8), GPU) == ()


def test_few_rows_make_no_course() -> None:
    assert off_course(changed(many(rows=7), [0], 1e3), GPU) == ()


def test_a_kind_in_another_unit_is_named_among_others() -> None:
    copied = copies(0.8e12)
    mixed = many().joined(scaled(copied, 1e3))
    said = "got times of kind copy that are "
    assert said in unit_doubt(mixed, GPU)
    assert unit_doubt(mixed, GPU).endswith("looks like milliseconds; divide those by 1,000")
    assert unit_doubt(many().joined(scaled(copied, 50.0)), GPU) == ""


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


def test_no_rows_contradict_nothing() -> None:
    none = timed((1.0, 0.0)).select(np.array([False]))
    nothing = np.zeros(0, dtype=np.bool_)
    assert (contradictions(none), repeated(none), off_course(none, GPU), unit_doubt(none, GPU)) == ((), 0, (), "")
    assert undisputed(none, nothing).size == 0
    assert runs_apart(none, nothing.astype(np.int64), nothing) is None


@pytest.mark.parametrize("column", ["library", "source", "precision", "direction", "trans_a", "call", "device"])
def test_other_circumstances_are_another_call(column: str) -> None:
    both = timed((1.0, 0.0)).joined(timed((9.0, 0.0), **{column: "x"}))
    assert (contradictions(both), repeated(both)) == ((), 0)


@pytest.mark.parametrize("column", ["group", "notes"])
def test_where_a_row_is_held_out_makes_no_other_call(column: str) -> None:
    both = timed((1.0, 0.0)).joined(timed((9.0, 0.0), **{column: "x"}))
    assert (contradictions(both), repeated(both)) == (((0, 1),), 1)


def runs(*times: Sequence[float], kind: str = "gemm") -> tuple[Samples, Any]:
    """Return the times of calls in several runs, a sequence a run, and each row's run."""
    columns = INPUT_COLUMNS.get(kind, ("m", "n", "k"))
    rows: list[Mapping[str, Any]] = [
        {"kind": kind, **dict.fromkeys(columns, 8 + call), "time_s": t, "spread_s": 0.0}
        for own in times
        for call, t in enumerate(own)
    ]
    return Samples.from_rows(rows, {}), np.repeat(np.arange(len(times)), [len(own) for own in times])


@pytest.mark.parametrize(
    ("times", "disturbed", "expected"),
    [
        ((1.0, 1.05), (False, False), (True, True)),
        ((2.0, 1.0), (False, False), (False, True)),
        ((2.0, 1.0), (False, True), (True, False)),  # the undisturbed one, though it is slower
        ((2.0, 1.0), (True, True), (False, True)),
        ((2.0, 1.0, 1.08, 1.9), (True, False, False, True), (False, True, True, False)),
    ],
)
def test_rows_that_agree_with_the_best_of_their_call_are_kept(
    times: tuple[float, ...], disturbed: tuple[bool, ...], expected: tuple[bool, ...]
) -> None:
    samples = timed(*((one, 0.0) for one in times)).joined(timed((9.0, 0.0), library="other"))
    assert undisputed(samples, np.array([*disturbed, True])).tolist() == [*expected, True]


@pytest.mark.parametrize(
    ("ratios", "is_gross"),
    [
        ([1.4] * 10, False),
        ([1.6] * 10, True),
        ([1 / 1.6] * 10, True),
        ([1.0] * 8 + [2.9] * 2, False),
        ([1.0] * 8 + [3.1] * 2, True),
        ([1.0] * 9 + [3.1], False),  # one call in ten
        ([1.9] * 2, False),  # too few for a median
        ([3.1], True),
        ([], False),
    ],
)
def test_runs_contradict_each_other_grossly_or_not(ratios: list[float], *, is_gross: bool) -> None:
    samples, of_run = runs([2.0] * 10, [2.0 * one for one in ratios])
    quiet = np.zeros(samples.size, dtype=np.bool_)
    found = runs_apart(samples, of_run, quiet)
    assert (found is not None) == is_gross
    if found is not None:
        assert found.common == len(ratios)
        assert found.far == sum(one > 3 for one in ratios)
        assert samples.time_s[found.slow] / samples.time_s[found.fast] == pytest.approx(
            max(*ratios, *(1 / one for one in ratios))
        )
    assert runs_apart(samples, np.zeros_like(of_run), quiet) is None


def test_disturbed_rows_and_storage_contradict_no_run() -> None:
    samples, of_run = runs([1.0] * 5, [9.0] * 5)
    quiet = timed(*[(1.0, 0.0)]).select(np.array([False])).joined(runs([1.0] * 5)[0])
    both, disturbed = samples.joined(quiet), np.array([False] * 5 + [True] * 5 + [False] * 5)
    assert runs_apart(both, np.append(of_run, [1] * 5), disturbed) is None
    assert runs_apart(both, np.append(of_run, [1] * 5), ~disturbed) is not None
    for kind in INPUT_COLUMNS:
        samples, of_run = runs([1.0] * 5, [9.0] * 5, kind=kind)
        assert runs_apart(samples, of_run, np.zeros(10, dtype=np.bool_)) is None
