import numpy as np
import pytest

from planner.domain.samples import Samples
from validation.kernel_outside import ABOVE, BELOW, Outside, outside_range, outside_section, rate
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
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith(("| above", "| below"))]
    assert [row[:4] for row in rows] == [
        [f"| {side}", name, "2", "12"] for side in (ABOVE, BELOW) for name in ("products", "all")
    ]
    least, most = float(rows[0][-2]), float(rows[0][-1].removesuffix(" |"))
    assert least < float(rows[0][-3]) < most


def test_too_few_rows_are_no_range() -> None:
    few = products(0.0).select(np.arange(24) % 2 == 0)
    assert not list(outside_range({"t4": few}))
