"""Kernels in a precision that a device was not measured in: from which other, how sure, and how it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.domain.calibration import Calibration, Entry, PrecisionScore, Transfers, precision_score
from planner.domain.cluster import Accelerator
from planner.domain.network import LOOKED_UP
from planner.sources.devices import derived_precisions

PEAKS = {"fp32": 10e12, "tf32": 40e12, "fp16": 80e12, "bf16": 80e12, "fp8": 160e12, "int8": 160e12}
DEVICE = Accelerator("some", "gpu", 16e9, 1e12, PEAKS, 80)


def score(kind: str, precision: str, mean: float, units: str = "matrix") -> PrecisionScore:
    return PrecisionScore(units, kind, precision, 2, 100, mean, mean, mean, 0.9)


KNOWN = Transfers(
    precisions=(score("gemm", "tf32", 0.2), score("gemm", "fp8", 0.3), score("gemm", "fp16", 0.1, "lanes"))
)


def kernel(precision: str, flop: float = 1e-14, kind: str = "gemm", error: float = 0.05, **keys: Any) -> Entry:
    term = "flop.rate" if kind == "gemm" else "traffic.bytes"
    coefficients = {"flop": flop} if kind == "gemm" else {"calls": 1e-6, "bytes": 1e-12}
    return Entry("kernels", kind, "", precision, "", term, {}, coefficients, held_out_error=error, **keys)


def of(*entries: Entry, **keys: Any) -> Calibration:
    return replace(Calibration("mine", DEVICE.name, entries), **keys)


def derived(*calibrations: Calibration, device: Accelerator = DEVICE) -> dict[str, tuple[str, Entry]]:
    """Return precision -> (calibration, entry) of all that is derived."""
    served = {entry.key[1:4] for one in calibrations for entry in one.entries}
    found = derived_precisions(device, calibrations, KNOWN, lambda *key: key not in served)
    return {entry.precision: (one.name, entry) for one in found for entry in one.entries}


def test_the_nearest_rate_of_the_same_units_serves() -> None:
    found = derived(of(kernel("fp32", 1e-13), kernel("fp8", 0.5e-14), kernel("bf16")))
    assert {name: one.coefficients["flop"] for name, (_, one) in found.items()} == {"tf32": 2e-14, "fp16": 1e-14}
    assert found["tf32"][0] == "tf32 derived from bf16 of mine"


def test_neither_across_units_nor_in_8_bits() -> None:
    assert derived(of(kernel("fp32"))) == {}
    assert not {"fp8", "int8"} & set(derived(of(kernel("bf16"))))
    assert "int8" not in derived(of(kernel("fp8")))


def test_fused_attention_of_a_gpu_stays_in_16_bits() -> None:
    assert set(derived(of(kernel("bf16", kind="attention")))) == {"fp16"}


def test_single_calls_of_a_network_leave_the_fit_behind_them_to_be_derived() -> None:
    calls = Entry("kernels", "gemm", "", "bf16", "own layers", LOOKED_UP, {}, {"measured_s": 1.0, "beyond": 0.0})
    for entries in ((calls, kernel("bf16")), (kernel("bf16"), calls)):
        assert derived(of(*entries))["tf32"][1].coefficients == {"flop": 2e-14}


def test_lanes_add_halves_at_the_rate_of_fp32() -> None:
    lanes = replace(DEVICE, peak_flop_per_s={"fp32": 10e12, "fp16": 20e12})
    found = derived(of(kernel("fp32", 1e-13)), device=lanes)
    assert found["fp16"][1].coefficients == {"flop": 1e-13}
    assert found["fp16"][1].held_out_error == 0.1


def test_what_is_measured_stays_and_the_first_of_equals_serves() -> None:
    first, second = of(kernel("bf16")), of(kernel("fp16", 3e-14), name="later")
    found = derived(first, second)
    assert set(found) == {"tf32"}
    assert found["tf32"][0] == "tf32 derived from bf16 of mine"


@pytest.mark.parametrize(
    "given",
    [
        of(kernel("bf16", origin="specified")),
        of(kernel("bf16", origin="reconstructed")),
        of(kernel("bf16", kind="pointwise")),
        of(kernel("bf16"), accelerator="another"),
        of(Entry("kernels", "gemm", "", "bf16", "", LOOKED_UP, {}, {"measured_s": 1.0, "beyond": 0.0})),
    ],
)
def test_nothing_comes_from_sheets_traffic_other_devices_or_single_calls(given: Calibration) -> None:
    assert derived(given) == {}


def test_a_derived_entry_is_as_unsure_as_its_evidence_or_its_own_fit() -> None:
    assert derived(of(kernel("bf16")))["tf32"][1].held_out_error == 0.2
    assert derived(of(kernel("bf16", error=0.4)))["tf32"][1].held_out_error == 0.4
    # fp16 was not scored on matrix units: as bad as the worst of products on them.
    assert derived(of(kernel("bf16")))["fp16"][1].held_out_error == 0.3


def test_what_was_not_scored_is_taken_for_as_bad_as_what_comes_close() -> None:
    scores = (*KNOWN.precisions, score("convolution", "fp16", 0.5, "lanes"))

    def mean(units: str, kind: str, precision: str) -> float | None:
        found = precision_score(scores, units, kind, precision)
        return None if found is None else found.mean

    assert mean("lanes", "gemm", "fp32") == 0.1
    assert mean("matrix", "convolution", "tf32") == 0.5
    assert mean("matrix", "attention", "tf32") == 0.5
    assert precision_score((), "matrix", "gemm", "tf32") is None


def test_the_warning_says_from_what_and_how_to_measure_it() -> None:
    (told, *others) = next(
        one.warnings
        for one in derived_precisions(DEVICE, [of(kernel("bf16"), warnings=("old",))], KNOWN, lambda *_: True)
        if one.entries[0].precision == "tf32"
    )
    assert told.startswith("tf32 kernels (gemm) were derived from those in bf16, which the same units compute")
    assert "gemm 20%" in told
    assert told.endswith("`planner calibrate --device cuda --precision tf32` measures them.")
    assert others == ["old"]
