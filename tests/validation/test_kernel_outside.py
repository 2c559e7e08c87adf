from dataclasses import replace

import numpy as np
import pytest

from planner.costs.features import Work
from planner.domain.calibration import Entry
from planner.domain.samples import Samples
from planner.numbers import constants
from planner.steps.intervals import doubt_factor
from validation.kernel_outside import ABOVE, BELOW, Outside, held_out, outside_range, outside_section, rate
from validation.kernel_scores import Key

KEY = Key("t4", "gemm", "", "fp32")


def products(bend: float) -> Samples:
    """Return products of growing m whose time is linear but for a tenth, of either sign, and longer by ``bend`` above.

    Every m is a group; those of the upper quarter are longer.
    """
    rows = [
        {
            "kind": "gemm", "precision": "fp32", "m": m, "n": 32, "k": 32, "batch": 1, "group": f"m {m}",
            "time_s": (1e-5 + 1e-8 * m) * (1 + 0.1 * (-1) ** at) * (1 + bend * (m > 2**12.6)),
        }
        for at, m in enumerate(2 ** (np.arange(24) / 2 + 4))
    ]  # fmt: skip
    return Samples.from_rows([{**row, "m": round(row["m"])} for row in rows], {})


def test_the_rate_is_what_entries_miss_more_over_what_they_miss_and_how_far() -> None:
    near = Outside(KEY, ABOVE, np.array([1.0, 3.0]), np.array([0.2, 0.4]), 0.1)  # 0.2 more, at 2 doublings
    far = Outside(KEY, ABOVE, np.array([4.0]), np.array([0.1]), 0.2)  # 0.1 less, at 4
    assert rate([near]) == pytest.approx(0.2 / (0.1 * 2))
    assert rate([near, far]) == pytest.approx((0.2 - 0.1) / (0.1 * 2 + 0.2 * 4))


@pytest.mark.parametrize("bend", [0.0, 1.0])
def test_what_is_left_out_is_missed_by_the_entry_of_the_rest_alone(bend: float) -> None:
    found = {one.side: one for one in outside_range({"t4": products(bend)})}
    assert set(found) == {ABOVE, BELOW}
    above = found[ABOVE]
    assert (above.key, above.doublings.size) == (KEY, 6)
    assert above.doublings.max() == pytest.approx(3, abs=0.1)  # half a doubling a row, less the margin of a range
    assert (above.errors.mean() > 0.3) == (bend > 0)


def test_the_page_has_a_row_a_side_and_family() -> None:
    page = outside_section({"t4": products(1.0), "p4": products(0.0)})
    first, held_out = page.split("Every GPU in turn")
    rows = [line.split(" | ") for line in first.splitlines() if line.startswith(("| above", "| below"))]
    assert [row[:4] for row in rows] == [
        [f"| {side}", name, "2", "12"] for side in (ABOVE, BELOW) for name in ("products", "all")
    ]
    least, most = float(rows[0][-2]), float(rows[0][-1].removesuffix(" |"))
    assert least < float(rows[0][-3]) < most
    rows = [line.split(" | ") for line in held_out.splitlines() if line.startswith(("| above", "| below"))]
    # All are products: a rate of their own is that of all.
    assert [(row[:3], row[3] == row[4]) for row in rows] == [
        ([f"| {side}", "products", "2"], True) for side in (ABOVE, BELOW)
    ]


def test_a_rate_of_their_own_tells_kinds_that_differ() -> None:
    """Products miss 4 times, other kinds as much as inside, two doublings below on each of two GPUs."""
    outside = [
        Outside(Key(gpu, kind, "", "fp32"), BELOW, np.full(8, 2.0), np.full(8, error), 0.1)
        for gpu in ("t4", "p4")
        for kind, error in (("gemm", 0.4), ("add", 0.1))
    ]
    rows = {name: figures for _, name, _, *figures in held_out(outside, BELOW)}
    # Rates: 1.5 and 0, of all 0.75, so that 0.25 is expected of each.
    expected = {"products": (0.25, 0.4, 0.4), "kinds of bytes": (0.25, 0.1, 0.1)}
    for name, (one, own, error) in expected.items():
        assert rows[name][:2] == [f"{np.log(s) + error / s:.2f}" for s in (one, own)]
        assert rows[name][2:] == ["100.0", "100.0"]


def test_calls_outside_a_range_are_as_unsure_as_measured_rows_say() -> None:
    """Single products below the range by a rate of their own, all else by that of all kinds together."""
    gemm = Entry(
        "kernels", "gemm", "", "fp32", "", "work.linear", {}, {"calls": 0.0, "work": 1.0},
        ranges={"work": (8 / 0.95, 32 / 1.05)}, held_out_error=0.1,
    )  # fmt: skip
    both = np.array([1.0, 2.0])
    rates = constants("intervals.outside")
    shape: Work = {"m": 1.0, "n": 1.0, "itemsize": 4.0, "batch": both}
    below = doubt_factor(gemm, {**shape, "k": 1.0}) - 1  # 2 and 1 doublings below
    assert below / [2, 1] == pytest.approx([rates["products_below"], rates["below"]])
    above = doubt_factor(gemm, {**shape, "k": 64.0}) - 1  # 2 and 3 doublings above
    assert above / [2, 3] == pytest.approx([rates["above"]] * 2)
    elements: Work = {"elements": 2.0, "traffic": 6.0, "fixed_bytes": 0.0, "itemsize": 4.0}
    assert (doubt_factor(replace(gemm, kind="add"), elements) - 1) / 2 == pytest.approx(rates["below"])


def test_too_few_rows_are_no_range() -> None:
    few = products(0.0).select(np.arange(24) % 2 == 0)
    assert not list(outside_range({"t4": few}))
