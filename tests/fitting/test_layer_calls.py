from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from planner.costs.terms import evaluate
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator, Node
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.domain.samples import Samples, TimedStep
from planner.fitting.calibration import fit_calibration
from planner.fitting.kernels import ERROR_BETWEEN, PRODUCT_ERROR_BETWEEN, fit_kernels, fit_layer_calls, fits_among
from planner.workload.calls import distinct_calls

CPU = Accelerator("made-up", "cpu", 8 * 2.0**30, 1e10, {"fp32": 1e11})
SPREAD = 0.01
NETWORK = Network(
    "two",
    (64,),
    (
        Layer("a", "linear", (INPUT,), {"features": 32, "bias": False}),
        Layer("b", "linear", ("a",), {"features": 10, "bias": False}),
        Layer("loss", "loss", ("b",)),
    ),
)


def row(call: str, sub_batch: int, time_s: float, **more: Any) -> Mapping[str, Any]:
    return {
        "kind": "gemm", "direction": "forward", "precision": "fp32", "library": "pytorch", "m": 8, "n": sub_batch,
        "k": 8, "batch": 1, "call": call, "sub_batch": sub_batch, "time_s": time_s, "spread_s": SPREAD * time_s, **more,
    }  # fmt: skip


def fitted(*rows: Mapping[str, Any]) -> tuple[Entry, ...]:
    return fit_layer_calls(Samples.from_rows(list(rows), {}))


def test_rows_come_back_at_their_sub_batches() -> None:
    (entry,) = fitted(row("b", 16, 5.0), row("b", 1, 2.0), row("a", 1, 7.0))
    assert (entry.samples, entry.settings["b"]) == (3, (1.0, 2.0, 16.0, 5.0))
    found = [float(evaluate(entry, {"call": call, "samples": n})) for call, n in ((0, 1), (1, 1), (1, 16), (1, 6))]
    assert found == pytest.approx([7.0, 2.0, 5.0, 3.0])


def test_the_error_is_of_repeats_and_of_lines() -> None:
    (two,) = fitted(row("a", 1, 2.0), row("a", 16, 5.0))
    assert two.error == pytest.approx(SPREAD)
    assert two.held_out_error == pytest.approx((SPREAD**2 + PRODUCT_ERROR_BETWEEN**2) ** 0.5)
    copies = [row("a", n, n, kind="copy", elements=n, traffic=2 * n, fixed_bytes=0) for n in (1, 16)]
    assert fitted(*copies)[0].held_out_error == pytest.approx((SPREAD**2 + ERROR_BETWEEN**2) ** 0.5)
    (three,) = fitted(row("a", 1, 2.0), row("a", 6, 4.0), row("a", 16, 5.0))
    assert three.held_out_error == pytest.approx((SPREAD**2 + 0.25**2) ** 0.5)  # the line says 3 where 4 was measured
    assert three.held_out_by == "sub-batch"
    assert three.worst_error == pytest.approx(0.25)
    assert (three.notes, three.worst_point) == ("", "a")
    assert two.notes == "6% between sub-batches, as of such calls elsewhere, since no third one was timed"
    assert (two.held_out_by, two.worst_point) == ("", "")
    (once,) = fitted(row("a", 1, 2.0))
    assert once.held_out_error == pytest.approx(SPREAD)
    assert once.notes == ""


def test_the_worst_point_is_the_call_that_is_missed_most() -> None:
    exact = [row("n", n, 1.0 + n) for n in (1, 6, 16)]
    (entry,) = fitted(row("m", 1, 2.0), row("m", 6, 4.0), row("m", 16, 5.0), *exact, row("z", 1, 1.0))
    assert entry.worst_point == "m"


def fit(kind: str = "gemm", direction: str = "forward", precision: str = "fp32", error: float | None = 0.0) -> Entry:
    """Return a fit by which a product takes its FLOP, in seconds."""
    coefficients = {"calls": 0.0, "work": 1.0}
    return Entry("kernels", kind, direction, precision, "", "work.linear", {}, coefficients, held_out_error=error)


def test_neighbouring_sub_batches_of_convolutions_are_not_predicted_across_the_step_between_them() -> None:
    shape = {"in_c": 8, "in_h": 8, "in_w": 8, "out_c": 8, "k_h": 1, "k_w": 1, "stride_h": 1, "stride_w": 1}
    shape |= {"pad_h": 0, "pad_w": 0, "groups": 1}

    def entry(*times: tuple[int, float]) -> Entry:
        rows = [row("images=1n", n, t, kind="convolution", images=n, **shape) for n, t in times]
        return fitted(*rows)[0]

    beside = entry((1, 1.0), (15, 15.0), (16, 11.0))
    assert (beside.held_out_by, beside.worst_error) == ("", None)
    assert beside.held_out_error == pytest.approx((SPREAD**2 + ERROR_BETWEEN**2) ** 0.5)
    assert entry((1, 1.0), (8, 10.0), (16, 16.0)).worst_error == pytest.approx(0.2)


def test_the_error_at_sub_batches_left_out_is_that_of_what_predictions_do() -> None:
    """Twice as long as a sure fit says, however a call's work bends over the sub-batches: no miss; by a line one."""
    rows = [row("a", n, 2 * (2.0 * m * n * 8), m=m) for n, m in ((1, 1), (6, 20), (16, 30))]
    (by_line,) = fitted(*rows)
    (followed,) = fit_layer_calls(Samples.from_rows(rows, {}), [fit()])
    assert by_line.worst_error is not None
    assert by_line.worst_error > 0.2
    assert followed.worst_error == pytest.approx(0.0, abs=1e-12)
    for other in (fit(error=1e6), fit(error=None), fit(precision="bf16"), fit(direction="backward_data"), fit("copy")):
        (entry,) = fit_layer_calls(Samples.from_rows(rows, {}), [other])
        assert entry.worst_error == pytest.approx(by_line.worst_error)


def test_the_very_kind_and_direction_serve_first() -> None:
    entries = [fit("pointwise", "", "any"), fit("copy", "", "any"), fit("copy", "forward"), fit("activation", "")]
    found = fits_among(entries, "fp32")
    assert found("copy", "forward") is entries[2]
    assert found("copy", "backward_data") is entries[1]
    assert found("add", "forward") is entries[0]
    assert found("gelu", "forward") is entries[3]
    assert found("gemm", "forward") is None
    assert fits_among(entries, "bf16")("copy", "forward") is entries[1]


def test_kinds_directions_and_precisions_are_apart() -> None:
    entries = fitted(
        row("a", 1, 1.0), row("a", 1, 2.0, direction="backward_data"), row("a", 1, 3.0, precision="bf16")
    )  # fmt: skip
    assert [entry.key[2:4] for entry in entries] == [
        ("backward_data", "fp32"), ("forward", "bf16"), ("forward", "fp32")
    ]  # fmt: skip


def test_absurd_rows_and_rows_of_no_call_take_no_part() -> None:
    (entry,) = fitted(row("a", 1, 1.0), row("a", 16, -1.0), row("", 1, 1.0), row("b", 1, float("nan")))
    assert dict(entry.settings) == {"a": (1.0, 1.0)}


def test_fits_to_shapes_leave_named_calls_alone() -> None:
    shapes = [row("", n, 1e-9 * n, m=m) for n in (1, 10, 100) for m in (10, 20, 40)]
    alone = fit_kernels(Samples.from_rows(shapes, {})).entries
    assert fit_kernels(Samples.from_rows([*shapes, row("a", 3, 55.0)], {})).entries == alone


OWN_CALLS = 2 + 1 + 2 + 2
"""Of NETWORK: products forward, backward-data, backward-weight; softmax. Each takes 10 ms in own_rows."""


def own_rows() -> list[Mapping[str, Any]]:
    return [
        {"kind": c.kind, "direction": c.direction, "precision": "fp32", "library": "pytorch", **c.at(n), "call": c.name,
         "sub_batch": n, "time_s": 0.01, "spread_s": 0.0}
        for c in distinct_calls([NETWORK]) for n in (1, 16)
    ]  # fmt: skip


def overheads_of(rows: list[Mapping[str, Any]], steps: list[TimedStep], device: Accelerator = CPU) -> Entry:
    made = fit_calibration(Samples.from_rows(rows, {}), "own", device, Node(1, device), steps=steps)
    (overheads,) = [entry for entry in made.entries if entry.scope == "overheads"]
    return overheads


def test_overheads_of_a_network_whose_calls_were_measured_are_the_ratio_of_its_step() -> None:
    steps = [TimedStep(NETWORK, n, 1.04 * 0.01 * OWN_CALLS) for n in (1, 2, 4)]
    overheads = overheads_of(own_rows(), steps)
    scale, host_s = overheads.coefficients["kernel_scale"], overheads.coefficients["host_s_per_call"]
    assert scale * 0.01 * OWN_CALLS + host_s * OWN_CALLS == pytest.approx(1.04 * 0.01 * OWN_CALLS, rel=0.03)
    assert overheads.samples == 3


def test_steps_whose_calls_were_not_measured_say_little_beside_those_whose_calls_were() -> None:
    """Kernels of the other network are fitted; its step takes longer."""
    gpu = replace(CPU, kind="gpu")
    other = Network("other", (64,), (Layer("a", "linear", (INPUT,), {"features": 48, "bias": False}),))
    ways = ("forward", "backward_data", "backward_weight")
    fits = [row("", n, 0.01, m=m, direction=way) for n in (1, 10, 100) for m in (10, 20, 40) for way in ways]
    own = [TimedStep(NETWORK, n, 0.01 * OWN_CALLS) for n in (1, 2, 4)]
    rows, beside = [*own_rows(), *fits], TimedStep(other, 1, 0.05)
    alone, both = (overheads_of(rows, steps, gpu) for steps in (own, [*own, beside]))
    assert (alone.samples, both.samples) == (3, 4)
    moved = both.coefficients["kernel_scale"] - alone.coefficients["kernel_scale"]
    assert 0 < moved < 0.2 * alone.standard_errors["kernel_scale"]
    assert both.error is not None
    assert both.error < 0.02  # of the three: the fourth is 0.3 off and more


def test_a_call_at_one_of_its_sub_batches_is_left_to_the_fits() -> None:
    whole, half = "m=8 n=1n k=8 batch=1", "m=16 n=4+2n k=8 batch=1"
    (entry,) = fitted(row(whole, 1, 2.0), row(whole, 16, 5.0), row(half, 1, 2.0))
    assert list(entry.settings) == [whole]
    assert fitted(row(half, 1, 2.0), row(half, 1, 2.1)) == ()
    (constant,) = fitted(row("elements=8 traffic=0 sgd tensors=1", 1, 2.0))
    assert constant.samples == 1
