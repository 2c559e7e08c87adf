from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.costs.terms import evaluate
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator, Node
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.domain.samples import Samples, TimedStep
from planner.errors import CoverageError
from planner.fitting.calibration import fit_calibration
from planner.fitting.kernels import fit_kernels
from planner.fitting.overheads import fit_overheads, overheads_doubt, times_over_kernels
from planner.workload.calls import lower

RATE = Entry("kernels", "gemm", "", "fp32", "", "flop.rate", {}, {"flop": 1e-10})
TRAFFIC = Entry("kernels", "pointwise", "", "any", "", "traffic.bytes", {}, {"calls": 1e-6, "bytes": 1e-10})
ENTRIES = (RATE, TRAFFIC)


def network(features: int, depth: int) -> Network:
    """Return linear layers with activations."""
    layers, source = [], INPUT
    for position in range(depth):
        layers += [
            Layer(f"linear{position}", "linear", (source,), {"features": features}),
            Layer(f"activation{position}", "activation", (f"linear{position}",)),
        ]
        source = layers[-1].name
    return Network(f"mlp-{features}-{depth}", (features,), (*layers, Layer("loss", "loss", (source,))))


def step(one: Network, sub_batch: int, scale: float, host_s: float) -> TimedStep:
    """Return a step that takes scale x kernels + host x calls."""
    total = 0.0
    for calls in lower(one, np.array([sub_batch]), optimizer="none", merged=False):
        entry = RATE if calls.kind == "gemm" else TRAFFIC
        each = np.broadcast_to(evaluate(entry, {**calls.work, "itemsize": 4.0}), (1, calls.layer.size))
        total += float((scale * each * calls.count).sum()) + host_s * float(calls.count.sum())
    return TimedStep(one, sub_batch, total)


def steps(scale: float, host_s: float) -> list[TimedStep]:
    """Return steps that kernels rule, and steps that calls rule."""
    return [step(network(f, d), n, scale, host_s) for f, d in ((8, 6), (32, 12), (2048, 2), (1024, 3)) for n in (1, 64)]


def test_steps_that_are_their_kernels_have_no_overheads() -> None:
    found = fit_overheads(ENTRIES, steps(1.0, 0.0))
    assert found.coefficients["kernel_scale"] == pytest.approx(1.0)
    assert found.coefficients["host_s_per_call"] == pytest.approx(0.0, abs=1e-12)
    assert found.error == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("scale", "host_s"), [(1.1, 4e-6), (0.95, 1e-5)])
def test_known_overheads_come_back_drawn_a_little_towards_none(scale: float, host_s: float) -> None:
    found = fit_overheads(ENTRIES, steps(scale, host_s)).coefficients
    assert 0.4 < (found["kernel_scale"] - 1) / (scale - 1) <= 1.01
    assert found["host_s_per_call"] == pytest.approx(host_s, rel=0.1)


@pytest.mark.parametrize(
    ("scale", "which", "waits"),
    [
        (0.5, "kernels", False), (0.5, "kernels", True), (0.7, "kernels", True), (0.95, "", True), (1.0, "", False),
        (1.15, "", False), (1.15, "", True), (2.0, "steps", False), (2.0, "steps", True),
    ],
)  # fmt: skip
def test_a_scale_far_from_1_says_what_was_disturbed(scale: float, which: str, *, waits: bool) -> None:
    """Kernels that took twice as long as in the steps themselves, or steps that took twice as long as their kernels."""
    doubt = overheads_doubt(fit_overheads(ENTRIES, steps(scale, 0.0), waits=waits))
    assert bool(doubt) == bool(which)
    assert not which or f"slowed the machine down while {which} were timed" in doubt


def test_what_all_steps_have_in_common_is_believed_less_where_speed_drifts() -> None:
    """With errors r of each of n steps and d of all, the scale goes p² / (p² + d² + r²/n) of the way.

    p, how far a scale of 1 is believed, is 0.05 of the kernels, which are 1 / 1.1 of a step.
    """
    long = [step(network(4096, 2), 1024 * n, 1.1, 0.0) for n in range(1, 9)]
    steady, drifting = (fit_overheads(ENTRIES, long, waits=waits) for waits in (False, True))
    parts = [(one.coefficients["kernel_scale"] - 1) / 0.1 for one in (steady, drifting)]
    prior = 0.05 / 1.1
    known = [prior**2 / (prior**2 + drift**2 + 0.08**2 / 8) for drift in (0.0, 0.03)]
    assert parts == pytest.approx(known, rel=0.02)
    assert steady.standard_errors["kernel_scale"] < drifting.standard_errors["kernel_scale"]


def test_steps_that_disagree_say_little() -> None:
    """Kernels of two networks last as long as they do, those of two three times as long; the best scale is 0.4 too."""
    agreeing = [step(network(4096, depth), 2048, 0.4, 0.0) for depth in (2, 3, 4, 5)]
    factors = (1.0, 1.0, 1 / 3, 1 / 3)
    apart = [replace(one, time_s=one.time_s / 0.4 * factor) for one, factor in zip(agreeing, factors, strict=True)]
    sure, unsure = (fit_overheads(ENTRIES, timed).coefficients["kernel_scale"] for timed in (agreeing, apart))
    assert sure < 0.5
    assert 0.8 < unsure < 1


def test_host_time_is_never_negative() -> None:
    found = fit_overheads(ENTRIES, [step(network(8, 6), 1, 0.5, 0.0), step(network(2048, 2), 64, 1.2, 0.0)])
    assert found.coefficients["host_s_per_call"] >= 0


def test_every_precision_has_overheads_of_its_own_steps() -> None:
    halves = [replace(one, precision="bf16", time_s=1.08 * one.time_s) for one in steps(1.0, 0.0)]
    both = (*ENTRIES, replace(RATE, precision="bf16"), replace(TRAFFIC, coefficients={"calls": 1e-6, "bytes": 2e-10}))
    found = fit_overheads(both[2:], halves, precision="bf16")
    assert found.precision == "bf16"
    # Elements of half the size at half the bandwidth take as long.
    assert 0.4 < (found.coefficients["kernel_scale"] - 1) / 0.08 <= 1.01
    with pytest.raises(CoverageError, match="gemm"):
        fit_overheads(ENTRIES, halves, precision="bf16")


def uneven_steps() -> list[TimedStep]:
    """Return steps of four networks that no overheads fit, more so from network to network."""
    factors = (1.0, 0.97, 1.1, 1.25)
    return [replace(one, time_s=one.time_s * factors[at // 2]) for at, one in enumerate(steps(1.05, 5e-6))]


def test_overheads_are_scored_on_networks_that_took_no_part() -> None:
    timed = uneven_steps()
    found = fit_overheads(ENTRIES, timed, waits=True)
    errors = []
    for one in timed:
        rest = [each for each in timed if each.network.name != one.network.name]
        others = fit_overheads(ENTRIES, rest, waits=True).coefficients
        again = step(one.network, one.sub_batch, others["kernel_scale"], others["host_s_per_call"])
        errors.append(abs(again.time_s / one.time_s - 1))
    assert found.held_out_by == "network"
    assert found.held_out_error == pytest.approx(np.mean(errors))
    assert found.worst_error == pytest.approx(max(errors))
    worst = timed[int(np.argmax(errors))]
    assert found.worst_point.startswith(f"{worst.network.name} at sub-batch {worst.sub_batch}: ")
    assert found.held_out_error is not None
    assert found.error is not None
    assert found.held_out_error > found.error


def test_steps_of_two_networks_score_nothing() -> None:
    found = fit_overheads(ENTRIES, uneven_steps()[:4])
    assert found.error is not None
    assert (found.held_out_error, found.held_out_by, found.worst_error, found.worst_point) == (None, "", None, "")


def test_steps_that_nothing_prices_are_left_out_alone() -> None:
    conv = Network("conv", (3, 8, 8), (Layer("c", "convolution", (INPUT,), {"channels": 4, "kernel": 3}),))
    timed = steps(1.05, 5e-6)
    found, whole = (fit_overheads(ENTRIES, some) for some in ([TimedStep(conv, 1, 1.0), *timed], timed))
    assert found == replace(whole, notes=f"{whole.notes}; without steps of conv, whose kernels are not all fitted")


@pytest.mark.parametrize("waits", [False, True])
def test_a_host_that_waits_adds_to_its_kernels_in_every_network(waits: bool) -> None:  # noqa: FBT001 - a pytest parameter
    found = fit_overheads(ENTRIES, steps(1.0, 0.0), waits=waits)
    assert (found.coefficients["exponent"] == 1.0) == waits
    assert (found.coefficients["exponent_attention"] == 1.0) == waits
    assert {"exponent", "exponent_attention"} <= set(found.fixed)


def test_kernel_that_nothing_prices_is_named() -> None:
    with pytest.raises(CoverageError, match="gemm forward"):
        fit_overheads((TRAFFIC,), steps(1.0, 0.0))


def test_kinds_contained_in_others_cost_nothing() -> None:
    copy = {"kind": "copy", "direction": "forward"}
    rows: list[Mapping[str, Any]] = [
        copy | {"elements": n, "traffic": 2 * n, "time_s": 1e-9 * n} for n in (1e4, 1e5, 1e6)
    ]
    found = fit_kernels(Samples.from_rows(rows, {"contained": "bias"})).entries
    (bias,) = [entry for entry in found if entry.kind == "bias"]
    assert evaluate(bias, {"elements": 1e6, "traffic": 2e6, "fixed_bytes": 0.0, "itemsize": 4.0}) == 0
    assert bias.fixed == ("calls", "bytes")


def test_calibration_without_the_kernels_of_its_steps_says_so() -> None:
    copy = {"kind": "copy", "direction": "forward"}
    rows: list[Mapping[str, Any]] = [
        copy | {"elements": n, "traffic": 2 * n, "time_s": 1e-9 * n} for n in (1e4, 1e5, 1e6)
    ]
    device = Accelerator("cpu-test", "cpu", 1e9, 1e10, {"fp32": 1e11})
    found = fit_calibration(Samples.from_rows(rows, {}), "here", device, Node(1, device), steps=steps(1.0, 0.0))
    assert not [entry for entry in found.entries if entry.scope == "overheads"]
    assert any("overheads" in warning for warning in found.warnings)


@pytest.mark.parametrize(("factor", "is_poor"), [(1.0, False), (6.0, True)])
def test_poor_overheads_say_so(factor: float, *, is_poor: bool) -> None:
    """Of one network in four the steps take six times as long: the scale stays near 1, the held-out error tells."""
    timed = [replace(one, time_s=one.time_s * factor) if at < 2 else one for at, one in enumerate(steps(1.0, 5e-6))]
    found = fit_overheads(ENTRIES, timed)
    assert found.held_out_error is not None
    assert (found.held_out_error > 0.3) == is_poor
    assert found.notes.startswith(f"poor: {found.held_out_error:.0%} off on networks left out") == is_poor
    said = (
        f"training steps in fp32 are {found.held_out_error:.0%} off what their kernels and the steps of other networks "
    )
    assert overheads_doubt(found).startswith(said) == is_poor


def test_steps_are_compared_with_their_kernels_and_a_little_host_time() -> None:
    one, bare = network(2048, 2), step(network(2048, 2), 64, 1.0, 0.0)
    calls = round(step(one, 64, 1.0, 1.0).time_s - bare.time_s)
    times = [bare.time_s, bare.time_s + 0.9e-5 * calls, 1e3 * (bare.time_s + 1e-5 * calls), 1e-3 * bare.time_s]
    found = times_over_kernels(ENTRIES, [replace(bare, time_s=time_s) for time_s in times])
    assert found.tolist() == pytest.approx([1, 1, 1e3, 1e-3])
    assert times_over_kernels((TRAFFIC,), [bare]).tolist() == [1]
