"""What to measure next: shares and errors that can be worked out by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from planner.costs.measured_calls import DOUBLINGS_BEYOND, MEASURED_S
from planner.domain.calibration import Calibration, Entry, Gap
from planner.domain.cluster import Accelerator, Node
from planner.domain.layers.record import Layer
from planner.domain.network import LOOKED_UP, Network
from planner.errors import ParameterError
from planner.fitting import next_points as gaps
from planner.fitting.next_points import gaps_of
from planner.workload.calls import distinct_calls

DEVICE = Accelerator("toy", "gpu", 2.0**34, 1e11, {"fp32": 1e12, "fp16": 4e12, "bf16": 4e12}, 8, "made up")
NETWORK = Network("small", (64,), (Layer("fc", "linear", ("input",), {"features": 32, "bias": False}),))
FLOP = 2 * 64 * 32 * gaps.SEQUENCES["gpu"]
"""Of the product of one pass."""


def entry(kind: str, precision: str = "fp32", **fields: Any) -> Entry:
    return Entry("kernels", kind, "", precision, "", "work.linear", {}, {"calls": 0.0, "work": 1e-9}, **fields)


def calibration(*entries: Entry) -> Calibration:
    return Calibration("made", "toy", entries, node=Node(1, DEVICE))


def found(one: Calibration, precision: str = "fp32") -> Mapping[tuple[str, str], Gap]:
    """Return the gaps in one precision by direction and reason."""
    return {(gap.direction, gap.reason): gap for gap in gaps_of(one, [NETWORK]) if gap.precision == precision}


def everything(**fields: Any) -> tuple[Entry, ...]:
    return entry("gemm", **fields), entry("update", held_out_error=0.0)


def test_share_times_error_decides_the_order() -> None:
    one = calibration(*everything(held_out_error=0.1))
    known = [gap for gap in gaps_of(one, [NETWORK]) if gap.precision == "fp32"]
    # The network's first layer passes no gradient on: a product forward, one for the weights, and their update.
    update_s, product_s = 1e-9 * 64 * 32, 1e-9 * FLOP
    share = product_s / (2 * product_s + update_s)
    assert {(gap.kind, gap.direction) for gap in known} == {("gemm", "forward"), ("gemm", "backward_weight")}
    assert [gap.share for gap in known] == pytest.approx([share, share])
    assert [gap.weight for gap in known] == pytest.approx([share / 10, share / 10])
    assert {gap.reason for gap in known} == {"worst known"}
    better = replace(one, entries=(entry("gemm", held_out_error=0.01), entry("update", held_out_error=0.9)))
    first = next(gap for gap in gaps_of(better, [NETWORK]) if gap.precision == "fp32")
    assert (first.kind, first.reason, first.error) == ("update", "poor", 0.9)


@pytest.mark.parametrize(("error", "reason"), [(0.3, "poor"), (0.2, "worst known"), (None, "poor")])
def test_a_large_or_unknown_error_is_poor(error: float | None, reason: str) -> None:
    gap = found(calibration(*everything(held_out_error=error)))["forward", reason]
    assert gap.error == (gaps.STATED_ERROR if error is None else error)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ((1.0, FLOP / 2), f"work up to {FLOP:.3g}, seen to {FLOP / 2:.3g}"),
        ((FLOP * 3.0, FLOP * 4.0), f"work down to {FLOP:.3g}, seen from {FLOP * 3:.3g}"),
        ((1.0, FLOP), None),
    ],
)
def test_calls_outside_the_fit_name_the_feature(seen: tuple[float, float], words: str | None) -> None:
    known = found(calibration(*everything(held_out_error=0.1, ranges={"work": seen})))
    gap = known.get(("forward", "outside"))
    assert (gap.detail if gap else None) == words
    if gap:
        assert gap.error == pytest.approx(gaps.OUTSIDE_FACTOR * 0.1)
        assert ("forward", "worst known") not in known  # nothing of it is inside


def test_calls_that_were_timed_or_cannot_be_are_no_gaps_but_part_of_the_step() -> None:
    """One of two layers is timed as it is; then the other one cannot be."""
    layers = [Layer(name, "linear", (before,), {"features": features, "bias": False})
              for name, before, features in (("fc", "input", 32), ("last", "fc", 16))]  # fmt: skip
    network = Network("two", (64,), tuple(layers))
    one = calibration(*everything(held_out_error=0.1))
    whole = {(gap.direction): gap.share for gap in gaps_of(one, [network]) if gap.precision == "fp32"}
    rest = gaps_of(one, [network], lambda call, _: call.layer.name == "last")
    part = {(gap.direction): gap.share for gap in rest if gap.precision == "fp32"}
    assert part["forward"] == pytest.approx(whole["forward"] * 16 * 32 / (64 * 32 + 16 * 32))
    assert part["backward_data"] == whole["backward_data"]  # the first layer passes none on
    (name,) = (
        call.name for call in distinct_calls([network]) if (call.layer.name, call.direction) == ("fc", "forward")
    )
    table = Entry(
        "kernels",
        "gemm",
        "forward",
        "fp32",
        "",
        LOOKED_UP,
        {name: (8.0, 1e-9 * FLOP)},
        {MEASURED_S: 1.0, DOUBLINGS_BEYOND: 0.0},
    )
    timed = replace(one, entries=(table, *one.entries))
    now = {(gap.direction): gap.share for gap in gaps_of(timed, [network]) if gap.precision == "fp32"}
    assert now["forward"] == pytest.approx(part["forward"])


def test_kinds_that_only_the_data_sheet_has_are_missing() -> None:
    one = calibration(entry("gemm", held_out_error=0.0))
    (gap,) = found(one).values()
    assert (gap.kind, gap.reason, gap.error) == ("update", "missing", gaps.STATED_ERROR)


def test_precisions_without_products_are_one_gap() -> None:
    one = calibration(*everything(held_out_error=0.0))
    (gap,) = gaps_of(one, [NETWORK])
    assert (gap.kind, gap.direction, gap.precision, gap.reason) == ("gemm", "", "fp16", "missing")
    assert gap.detail == "nor in bf16"
    assert 0 < gap.share < 1


def test_a_calibration_without_products_or_device_has_no_gaps() -> None:
    assert gaps_of(calibration(entry("update")), [NETWORK]) == ()
    assert gaps_of(replace(calibration(*everything()), node=None), [NETWORK]) == ()
    assert gaps_of(calibration(*everything()), []) == ()


def test_reasons_are_known() -> None:
    with pytest.raises(ParameterError, match="reason must be one of missing"):
        Gap("small", "gemm", "", "fp32", "because", 0.1, 0.1)
