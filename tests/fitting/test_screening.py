"""Samples judged before a fit by peak rates: units told from physics, whatever share of the rows has them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from planner.domain.cluster import Accelerator
from planner.domain.samples import INPUT_COLUMNS, Samples
from planner.fitting.screening import outliers, unit_doubt

GPU = Accelerator("made-up", "gpu", 16 * 2.0**30, 1e12, {"fp32": 1e13, "fp16": 1e14})


def doubted(samples: Samples) -> str:
    """Return the sentence of a doubt about all rows that it speaks of; empty without one."""
    found = unit_doubt(samples, GPU)
    assert found is None or found.rows == ()
    return found.sentence if found else ""


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
    assert doubted(made) == ""
    for unit, factor in (("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)):
        assert f"looks like {unit}; divide the column by {factor:,.0f}" in doubted(scaled(made, factor))


def test_times_faster_than_the_device_are_refused() -> None:
    sentence = doubted(scaled(products(0.9, 0.0), 1e-3))
    assert "rows more than 1.5 times faster than its peak rates" in sentence
    assert doubted(products(1.3, 0.0)) == ""  # a clock above the data sheet's
    assert doubted(copies(0.9e12)) == ""
    assert "got 3 of 3 rows" in doubted(copies(2e12))


def test_one_kind_in_another_unit_is_told_from_the_others() -> None:
    """Few copies that are too short or too long, beside many products, and the other way round."""
    many, few = products().joined(products()), copies(0.8e12)
    assert doubted(many.joined(few)) == ""
    short = scaled(products(0.9, 0.0), 1e-3)
    for _ in range(6):
        short = short.joined(few)
    assert "rows of kind gemm more than 10 times faster" in doubted(short)
    found = unit_doubt(scaled(many, 1e3).joined(few), GPU)
    assert found is not None
    assert "times of other kinds than copy" in found.sentence
    assert "divide those by 1,000" in found.sentence


def test_what_fits_a_cache_may_be_read_faster_than_memory() -> None:
    assert doubted(copies(4e12, smallest=1 << 18)) == ""


def test_fast_algorithms_pass_the_peak() -> None:
    sizes = {"in_c": 256, "in_h": 56, "in_w": 56, "out_c": 256, "k_h": 3, "k_w": 3, "pad_h": 1, "pad_w": 1}
    row: dict[str, Any] = {"kind": "convolution", "precision": "fp32", **sizes, "stride_h": 1, "stride_w": 1}
    flop = 2 * 256 * 56 * 56 * 256 * 9
    rows: list[Mapping[str, Any]] = [{**row, "images": n, "time_s": n * flop / 2.2e13} for n in (32, 64, 128)]
    assert doubted(Samples.from_rows(rows, {})) == ""
    strided: list[Mapping[str, Any]] = [
        {**one, "stride_h": 2, "stride_w": 2, "time_s": one["time_s"] / 4} for one in rows
    ]
    assert "3 of 3 rows" in doubted(Samples.from_rows(strided, {}))


def test_few_rows_and_collectives_say_nothing() -> None:
    few = scaled(products(), 1e3)
    assert doubted(few.select(np.arange(few.size) < 2)) == ""
    rows: list[Mapping[str, Any]] = [
        {"kind": "all_reduce", "operation": "all_reduce", "bytes": 1e3, "nodes": 2, "ranks_per_node": 1, "time_s": 1.0}
    ] * 4
    assert doubted(Samples.from_rows(rows, {})) == ""


@pytest.mark.parametrize("kind", INPUT_COLUMNS)
def test_storage_and_links_are_left_alone(kind: str) -> None:
    rows: list[Mapping[str, Any]] = [
        {"kind": kind, **dict.fromkeys(INPUT_COLUMNS[kind], 8), "time_s": t, "spread_s": 0.0} for t in (1e-9, 1e-3, 9.0)
    ]
    samples = Samples.from_rows(rows, {})
    assert doubted(samples) == ""


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
    assert outliers(many(call_s, scatter), GPU) == ()


@pytest.mark.parametrize(("unit", "factor"), [("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)])
@pytest.mark.parametrize("rows", [[7], range(0, 90, 9), range(0, 90, 5), range(18)])
def test_rows_of_another_unit_are_found_and_no_others(unit: str, factor: float, rows: Sequence[int]) -> None:
    """Up to a fifth of all rows, whatever their size; too short by a unit as well as too long."""
    for times in (factor, 1 / factor):
        found = outliers(changed(many(), rows, times), GPU)
        assert [one.row for one in found] == list(rows)
        assert {one.unit for one in found} <= {(unit, factor), None}
        assert sum(one.unit is not None for one in found) >= 0.9 * len(rows)


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e9, 1e-3, 1e-6])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.85])
def test_rows_of_another_unit_are_found_however_many_they_are(factor: float, share: float) -> None:
    rows = np.flatnonzero(np.random.default_rng(2).random(90) < share).tolist()
    found = outliers(changed(many(), rows, factor), GPU)
    assert [one.row for one in found] == rows
    assert {one.factor > 1 for one in found} == {factor > 1}
    assert sum(one.unit is not None for one in found) >= 0.9 * len(rows)


def test_rows_of_a_kind_too_rare_for_a_course_are_found_beside_others() -> None:
    both = many().joined(copies(0.8e12))
    assert [one.row for one in outliers(changed(both, [7, 91], 1e3), GPU)] == [7, 91]
    assert outliers(changed(both, [91], 1e3), GPU) == ()


@pytest.mark.parametrize("rows", [[0, 2, 3, 6], [0, 1, 2, 3, 4, 5]])
def test_of_few_rows_those_of_another_unit_are_told_apart(rows: list[int]) -> None:
    found = unit_doubt(changed(many(rows=7), rows, 1e3), GPU)
    assert found is not None
    assert found.rows == tuple(rows)
    assert f"got {len(rows)} of 7 times that are " in found.sentence
    assert found.sentence.endswith("looks like milliseconds; divide these rows alone by 1,000")


def test_of_a_rare_kind_rows_of_another_unit_are_told_apart() -> None:
    found = unit_doubt(changed(many().joined(copies(0.8e12)), [90, 92], 1e3), GPU)
    assert found is not None
    assert found.rows == (90, 92)
    assert "got 2 of 3 times of kind copy that are " in found.sentence


def test_a_row_off_by_no_unit_is_an_outlier() -> None:
    first, second = outliers(changed(changed(many(scatter=1.0), [3], 180.0), [8], 3e4), GPU)
    assert (first.row, first.unit, second.row, second.unit) == (3, None, 8, None)
    assert first.factor == pytest.approx(180, rel=0.5)
    assert outliers(changed(many(scatter=1.0), [3], 60.0), GPU) == ()


def test_a_row_far_above_peak_rates_is_an_outlier() -> None:
    made = many(0.0, scatter=1.0)
    largest = int(np.argmax(made.time_s))
    assert [one.row for one in outliers(changed(made, [largest], 1 / 50), GPU)] == [largest]
    assert outliers(changed(made, [largest], 1 / 8), GPU) == ()


def test_few_rows_make_no_course() -> None:
    assert outliers(changed(many(rows=7), [0], 1e3), GPU) == ()


def test_a_kind_in_another_unit_is_named_among_others() -> None:
    copied = copies(0.8e12)
    mixed = many().joined(scaled(copied, 1e3))
    said = "got times of kind copy that are "
    assert said in doubted(mixed)
    assert doubted(mixed).endswith("looks like milliseconds; divide those by 1,000")
    assert doubted(many().joined(scaled(copied, 50.0))) == ""


def of(samples: Samples, **words: str) -> Samples:
    """Return rows with other words in some columns."""
    text = {name: np.full(samples.size, word) for name, word in words.items()}
    return Samples({**samples.text, **text}, samples.number, samples.circumstances)


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e-3, 1e-6])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"direction": "forward"}, "kind gemm forward"),
        ({"precision": "fp16"}, "kind gemm fp16"),
        ({"direction": "forward", "precision": "fp16"}, "kind gemm forward fp16"),
    ],
)
def test_a_part_of_a_kind_in_another_unit_is_named_among_the_others(
    factor: float, words: Mapping[str, str], said: str
) -> None:
    """A third of the kind, of every mix of a direction and a precision."""
    rest = [of(products(), direction=way) for way in ("backward_data", "backward_weight")]
    if "precision" in words:
        rest += [of(one, precision="fp32") for one in rest]
        if "direction" in words:
            rest += [of(products(), direction="forward")] * 2
            rest += [of(products(precision="fp16"), direction=way) for way in ("backward_data", "backward_weight")]
    part = of(products(precision=words.get("precision", "fp32")), **{"direction": "forward", **words})
    honest, mixed = part, scaled(part, factor)
    for one in rest:
        honest, mixed = honest.joined(one), mixed.joined(one)
    assert doubted(honest) == ""
    change = "divide" if factor > 1 else "multiply"
    assert f"got times of {said} that are " in doubted(mixed)
    assert doubted(mixed).endswith(f"; {change} those by {max(factor, 1 / factor):,.0f}")


@pytest.mark.parametrize(("factor", "is_doubted"), [(50.0, False), (200.0, True)])
def test_a_direction_is_judged_by_the_others_of_its_kind(factor: float, *, is_doubted: bool) -> None:
    copied = of(copies(0.8e12), direction="backward_data")
    slow = of(scaled(copies(0.8e12), factor), direction="forward")
    assert bool(doubted(many().joined(slow).joined(copied))) == is_doubted
    assert doubted(many().joined(slow).joined(scaled(copied, 50.0))) == ""


def test_gradients_that_are_views_take_no_time() -> None:
    view = of(scaled(copies(0.8e12), 1e-3), kind="concat", direction="backward_data")
    assert doubted(many().joined(view)) == ""
    assert "kind concat that are " in doubted(many().joined(of(view, direction="forward")))


def test_of_a_rare_kind_rows_that_are_too_short_are_told_apart() -> None:
    found = unit_doubt(changed(many().joined(copies(0.8e12)), [90, 92], 1e-6), GPU)
    assert found is not None
    assert found.rows == (90, 92)
    assert "got 2 of 3 times of kind copy that are " in found.sentence
    assert found.sentence.endswith("; multiply these rows alone by 1,000,000")


def test_products_of_a_precision_without_a_peak_may_take_long() -> None:
    slow = of(scaled(products(), 1e3), direction="forward", precision="bf16")
    assert doubted(many().joined(slow)) == ""
    assert "kind gemm forward that are " in doubted(many().joined(of(slow, precision="fp32")))


def test_no_rows_give_no_doubt() -> None:
    none = many().select(np.zeros(90, dtype=np.bool_))
    assert (outliers(none, GPU), unit_doubt(none, GPU)) == ((), None)


def test_a_column_is_in_one_unit_though_a_call_takes_no_time() -> None:
    """Of 48 rows; of 7 it is told apart."""
    made = scaled(changed(many(rows=48), [7], 1e-4), 1e3)
    assert doubted(made).endswith("divide the column by 1,000")
