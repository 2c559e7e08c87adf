"""Entries of one device as they would be on another: every factor by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner import catalog
from planner.costs.features import Work
from planner.costs.gaussian_process import GAUSSIAN_PROCESS
from planner.costs.kernels import FLOP_BEYOND
from planner.costs.measured_calls import MEASURED_S
from planner.costs.specified import (
    LANES_OF_CHIP,
    NARROW_MISS,
    in_8_bits,
    in_precision,
    rate_ratio,
    ratios,
    scaled_entry,
    specified_entry,
    without_process,
)
from planner.costs.terms import TERMS, evaluate
from planner.domain.calibration import Entry, SettingValue
from planner.domain.cluster import Accelerator
from planner.domain.network import LOOKED_UP
from planner.errors import ParameterError

HERE = Accelerator("here", "gpu", 16e9, 1e12, {"fp32": 10e12, "fp16": 80e12}, 80)
# FLOP in half the time (fp16: a quarter), bytes in 4/5 of it, half as many multiprocessors, each four times as fast.
THERE = Accelerator("there", "gpu", 32e9, 1.25e12, {"fp32": 20e12, "fp16": 320e12}, 40)
LANES = replace(THERE, name="lanes", peak_flop_per_s={"fp32": 20e12, "fp16": 40e12})
CONVOLUTION = {
    "images": 8, "in_c": 64, "in_h": 56, "in_w": 56, "out_c": 128, "k_h": 1, "k_w": 1, "stride_h": 1, "stride_w": 1,
    "pad_h": 0, "pad_w": 0, "groups": 1, "itemsize": 4,
}  # fmt: skip


def entry(term: str, coefficients: dict[str, float], kind: str = "gemm", precision: str = "fp32", **keys: Any) -> Entry:
    fields: dict[str, Any] = {"settings": {}} | keys
    return Entry("kernels", kind, "", precision, "", term, coefficients=coefficients, **fields)


def test_ratios_are_those_of_the_sheets() -> None:
    found = ratios(HERE, THERE, "fp16")
    assert (found.flop, found.wide, found.bytes, found.processor) == (1 / 4, 1 / 2, 4 / 5, 1 / 8)
    assert ratios(HERE, THERE, "any") == ratios(HERE, THERE, "fp32")
    unknown = replace(THERE, multiprocessors=None)
    assert ratios(HERE, unknown, "fp16").processor == 1 / 4


def test_convolutions_of_matrix_units_go_by_multiprocessors_and_clock_up_to_the_peak() -> None:
    """Twice the multiprocessors times clock, by fp32 over lanes; matrix units of half, 0.9 and four times the rate.

    The last are faster by more than what feeds them: they go by the peak.
    """
    volta = replace(HERE, chip="GV100")
    consumer, workstation, later = (
        replace(HERE, chip="GA102", peak_flop_per_s={"fp32": 40e12, "fp16": fp16, "tf32": fp16 / 2})
        for fp16 in (40e12, 72e12, 320e12)
    )

    def flop_s(target: Accelerator, coefficient: float = 1.5 / 80e12, kind: str = "convolution") -> float:
        one = entry("flop.rate", {"flop": coefficient}, kind, "fp16")
        return scaled_entry(one, volta, target).coefficients["flop"]

    assert ratios(volta, later, "fp16").fed == 1 / 4
    assert ratios(volta, workstation, "fp16").fed == 1 / 2
    assert flop_s(later) == pytest.approx(1.5 / 320e12)
    assert flop_s(workstation) == pytest.approx(1 / 72e12)
    assert flop_s(consumer) == pytest.approx(1 / 40e12)
    # What is faster than the peak, by an algorithm that multiplies less, stays as much faster; products go by the peak.
    assert flop_s(consumer, 0.5 / 80e12) == pytest.approx(0.5 / 40e12)
    assert flop_s(later, kind="gemm") == pytest.approx(1.5 / 320e12)
    assert (
        "FLOP x 0.25 up to the peak"
        in scaled_entry(entry("flop.rate", {"flop": 1e-14}, "convolution", "fp16"), volta, later).notes
    )


@pytest.mark.parametrize(("chip", "precision"), [("GA102", "fp32"), ("", "fp16"), ("Another", "fp16")])
def test_other_convolutions_go_by_the_peak(chip: str, precision: str) -> None:
    """Those of CUDA cores, and those of chips whose lanes are not known."""
    of = ratios(replace(HERE, chip="GV100"), replace(THERE, chip=chip), precision)
    assert of.fed is None
    one = entry("flop.rate", {"flop": 1e-14}, "convolution", precision)
    scaled = scaled_entry(one, replace(HERE, chip="GV100"), replace(THERE, chip=chip))
    assert scaled.coefficients["flop"] == pytest.approx(1e-14 * of.flop)


def test_lanes_tell_the_clock_of_every_bundled_chip_with_matrix_units() -> None:
    """A table that is wrong by a factor of two makes a clock that no such chip has."""
    for device in map(catalog.find_accelerator, catalog.names("accelerators")):
        if device.vendor == "NVIDIA" and device.has_matrix_units("fp16") and device.multiprocessors:
            clock_hz = device.peak_flop_per_s["fp32"] / (2 * LANES_OF_CHIP[device.chip] * device.multiprocessors)
            assert 1.2e9 < clock_hz < 2.7e9, device.name


def test_bytes_scale_with_bandwidth_and_launches_stay() -> None:
    one = entry("traffic.bytes", {"calls": 5e-6, "bytes": 2e-12}, "pointwise", "any")
    scaled = scaled_entry(one, HERE, THERE)
    assert scaled.coefficients == {"calls": 5e-6, "bytes": pytest.approx(1.6e-12)}


def test_every_column_of_products_has_its_own_factor() -> None:
    settings: dict[str, SettingValue] = {
        "tiles": (128.0, 64.0),
        "multiprocessors": 80.0,
        "peak_flop_per_s": 80e12,
        "peak_bytes_per_s": 1e12,
    }
    names = TERMS["gemm.tiles"].names(settings)
    one = entry("gemm.tiles", dict.fromkeys(names, 1.0), precision="fp16", settings=settings)
    scaled = scaled_entry(one, HERE, THERE)
    assert scaled.coefficients == pytest.approx(
        {
            "calls": 1, "flop": 1 / 4, "a_bytes": 4 / 5, "b_bytes": 4 / 5, "c_bytes": 4 / 5, "k": 1 / 8,
            "padded_flop_128x64": 1 / 4, "wave_flop_128x64": 1 / 4,
        }
    )  # fmt: skip
    assert scaled.settings == {
        "tiles": (128.0, 64.0), "multiprocessors": 40.0, "peak_flop_per_s": 320e12, "peak_bytes_per_s": 1.25e12,
    }  # fmt: skip


def test_waves_are_those_of_the_other_device() -> None:
    """60 tiles are one wave of 80 processors, and two of 40; so a time of waves alone doubles but for the rate."""
    names = TERMS["gemm.tiles"].names({"tiles": (128.0, 64.0), "multiprocessors": 80.0})
    coefficients = dict.fromkeys(names, 0.0) | {"wave_flop_128x64": 1e-13}
    one = entry("gemm.tiles", coefficients, settings={"tiles": (128.0, 64.0), "multiprocessors": 80.0})
    work = {"m": 128 * 60, "n": 64, "k": 1024, "batch": 1, "itemsize": 4}
    before, after = (float(evaluate(e, work)) for e in (one, scaled_entry(one, HERE, THERE)))
    # One wave of 80 tiles' FLOP here; two of 40 there: as many FLOP, at twice the rate.
    assert after == pytest.approx(before / 2)
    thirty = {**work, "m": 128 * 30}
    assert float(evaluate(scaled_entry(one, HERE, THERE), thirty)) == pytest.approx(after / 2)
    assert float(evaluate(one, thirty)) == pytest.approx(before)


@pytest.mark.parametrize(("kind", "work", "factor"), [
    ("convolution", CONVOLUTION, 1 / 2), ("pointwise", {"elements": 1e6, "traffic": 3e6, "fixed_bytes": 0.0}, 4 / 5),
])  # fmt: skip
def test_a_feature_of_any_name_goes_by_what_its_kind_does(kind: str, work: dict[str, float], factor: float) -> None:
    one = entry("work.linear", {"calls": 0.0, "work": 1e-9}, kind)
    sized = {"itemsize": 4, **work}
    assert float(evaluate(scaled_entry(one, HERE, THERE), sized)) == pytest.approx(factor * float(evaluate(one, sized)))


@pytest.mark.parametrize("batch", [1, 8, 512])
def test_a_specified_kernel_becomes_that_of_the_other_device(batch: int) -> None:
    """The roofline is its own oracle: scaling the one sheet gives what the other sheet says."""
    for kind in ("gemm", "convolution", "copy"):
        here, there = (specified_entry(device, kind, "", "fp32") for device in (HERE, THERE))
        assert here is not None
        assert there is not None
        work = {"convolution": {**CONVOLUTION, "images": batch}, "gemm": {"m": 512, "n": batch, "k": 512, "batch": 1}}
        one = {"itemsize": 4} | work.get(kind, {"elements": batch, "traffic": 2 * batch, "fixed_bytes": 0.0})
        np.testing.assert_allclose(evaluate(scaled_entry(here, HERE, THERE), one), evaluate(there, one))


def test_to_the_same_device_nothing_changes_but_the_notes() -> None:
    for calibration in map(catalog.find_calibration, ("v100-sxm2-16gb", "p4", "a40")):
        device = catalog.find_accelerator(calibration.accelerator)
        for one in map(without_process, calibration.entries):
            assert replace(scaled_entry(one, device, device), notes=one.notes) == one


def test_there_and_back_is_where_it_started() -> None:
    calibration = catalog.find_calibration("v100-sxm2-16gb")
    here, there = (catalog.find_accelerator(name) for name in ("v100-sxm2-16gb", "t4"))
    for one in map(without_process, calibration.entries):
        back = scaled_entry(scaled_entry(one, here, there), there, here)
        assert back.coefficients == pytest.approx(dict(one.coefficients), rel=0.02)
        assert back.settings == one.settings
        if one.covariance is not None:
            # each way by the faster of two ratios, which differ by 1 % here
            np.testing.assert_allclose(np.array(back.covariance), np.array(one.covariance), rtol=0.05)


def tiled(device: Accelerator, **keys: Any) -> Entry:
    settings = {"tiles": (32.0, 64.0), "peak_flop_per_s": device.peak_flop_per_s["fp16"]}
    return entry(
        "convolution.channels", {"calls": 0.0, "channel_flop": 1e-14}, "convolution", "fp16", settings=settings, **keys
    )


def test_without_matrix_units_channels_are_not_padded() -> None:
    """Three channels are computed as 32 in tiles, so a time of FLOP alone is 32 / 3 times that of lanes."""
    work = CONVOLUTION | {"in_c": 3, "itemsize": 2}
    full = dict.fromkeys(TERMS["convolution.channels"].names({}), 0.0) | {"channel_flop": 1e-12}
    one = replace(tiled(HERE), coefficients=full)
    times = [float(evaluate(scaled_entry(one, HERE, there), work)) for there in (THERE, LANES)]
    assert times[1] / times[0] == pytest.approx((320 / 40) / (32 / 3))
    back = scaled_entry(replace(one, settings=tiled(LANES).settings), LANES, HERE)
    assert back.settings["tiles"] == (32.0, 64.0)


def test_lanes_take_as_long_as_in_fp32() -> None:
    """What serves is the fp32 entry of the very kernel, at the ratio of fp32, with the floor of halves."""
    flop = entry("work.linear", {"calls": 1e-6, "work": 1e-13}, "convolution")
    stored = replace(flop, settings={"peak_flop_per_s": 10e12}, notes="as measured", library="one")
    others = (replace(flop, direction="forward"), replace(flop, kind="gemm"), replace(flop, precision="tf32"))
    one = replace(
        tiled(HERE), coefficients=dict.fromkeys(TERMS["convolution.channels"].names({}), 1e-12), library="two"
    )
    found = scaled_entry(one, HERE, LANES, (*others, stored))
    assert found.coefficients == {"calls": 1e-6, "work": pytest.approx(0.5e-13)}
    assert (found.key, found.settings) == (one.key, {"peak_flop_per_s": 40e12})
    assert found.notes == "as in fp32; scaled from here: FLOP x 0.5, bytes x 0.8; as measured"
    assert scaled_entry(one, HERE, THERE, (stored,)).term == "convolution.channels"
    assert scaled_entry(one, HERE, LANES, others).term == "convolution.channels"


def test_covariance_follows_the_coefficients() -> None:
    one = entry(
        "traffic.bytes", {"calls": 5e-6, "bytes": 2e-12}, "add", "any", covariance=((4.0, 2.0), (2.0, 9.0)),
        standard_errors={"calls": 2.0, "bytes": 3.0},
    )  # fmt: skip
    scaled = scaled_entry(one, HERE, THERE)
    np.testing.assert_allclose(np.array(scaled.covariance), [[4, 1.6], [1.6, 9 * 0.64]])
    assert scaled.standard_errors == pytest.approx({"calls": 2.0, "bytes": 2.4})


def test_8_bits_are_16_of_the_very_shape_at_the_ratio_of_the_peaks() -> None:
    """Of any term: 0.925 of twice the rate; a product whose sides are no multiple of 16 bytes stays in 16 bits."""
    device = replace(HERE, peak_flop_per_s={"fp32": 10e12, "bf16": 80e12, "fp8": 160e12, "int8": 320e12})
    one = entry("gemm.tiles", dict.fromkeys(TERMS["gemm.tiles"].names({}), 1e-14), precision="bf16", error=0.05)
    one = replace(one, settings={"misaligned": (3.0, 7.0)})
    found = {name: in_8_bits(one, device, name) for name in ("fp8", "int8")}
    shape: dict[str, float] = {"n": 64.0, "k": 256.0, "batch": 1.0, "itemsize": 2.0, "trans_a": 1.0, "trans_b": 0.0}
    work: Work = {"m": np.array([512.0, 511.0]), **shape}
    before = evaluate(one, work)
    for name, faster in (("fp8", 0.925 * 2), ("int8", 0.895 * 4)):
        narrow = found[name]
        assert narrow is not None
        assert narrow.precision == name
        np.testing.assert_allclose(evaluate(narrow, work), before / np.array([faster, 1.0]))
        assert narrow.held_out_error == pytest.approx(np.hypot(0.05, NARROW_MISS[name]))
    assert in_8_bits(replace(one, error=None), device, "fp8").held_out_error is None  # type: ignore[union-attr]
    assert in_8_bits(replace(one, precision="fp32"), HERE, "fp8") is None
    lanes = replace(LANES, peak_flop_per_s={"fp32": 20e12, "int8": 80e12})
    assert in_8_bits(replace(one, precision="fp32"), lanes, "int8") is None


def test_notes_name_the_device_and_the_ratios() -> None:
    one = entry("flop.rate", {"flop": 1e-13}, precision="fp16", notes="as measured", held_out_error=0.1)
    scaled = scaled_entry(one, HERE, THERE)
    assert scaled.notes == "scaled from here: FLOP x 0.25, bytes x 0.8; as measured"
    assert (scaled.origin, scaled.held_out_error) == (one.origin, 0.1)


def test_what_cannot_be_scaled_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"precision must be one that here has \(fp32, fp16\), got 'bf16'"):
        scaled_entry(entry("flop.rate", {"flop": 1e-13}, precision="bf16"), HERE, THERE)
    overheads = Entry("overheads", "generic", "", "", "", "overheads", {}, {"kernel_scale": 1.0})
    with pytest.raises(ParameterError, match="one of kernels, got 'overheads'"):
        scaled_entry(overheads, HERE, THERE)
    settings = {"m=4096 n=1n k=4096 batch=1": (1.0, 1e-4, 4096.0, 2e-2)}
    grid = {"m": (1.0, 4096.0), "n": (4096.0,), "k": (4096.0,)}
    points = dict.fromkeys(TERMS["gemm.interpolation"].names(grid), -7.0)
    for one in (
        entry(LOOKED_UP, {MEASURED_S: 1.0}, settings=settings),
        entry("gemm.interpolation", points, settings=grid),
    ):
        with pytest.raises(ParameterError, match="term to scale to another device must be a linear one"):
            scaled_entry(one, HERE, THERE)


def test_of_a_process_the_linear_term_is_scaled() -> None:
    """Far from its points a process around a linear term is that term: so it is the oracle, on the other device too."""
    mean = entry("work.linear", {"calls": 1e-6, "work": 1e-13})
    settings = {
        "mean": "work.linear", "mean_coefficients": (1e-6, 1e-13), "around": "mean", "share": 1.0, "processors": 80.0,
        "points": (0.0,) * 6, "lengths": (1e-3,) * 6, "nugget": 0.1,
    }  # fmt: skip
    coefficients = {"log_prior": 1.0, "level": 0.0, "point_1": 0.5, "calls": 0.0, "work": 0.0}
    process = entry(GAUSSIAN_PROCESS, coefficients, settings=settings, covariance=None, ranges={"work": (1.0, 2.0)})
    work = {"m": 512, "n": 64, "k": 512, "batch": 1, "itemsize": 4}
    assert float(evaluate(process, work)) == pytest.approx(float(evaluate(mean, work)))
    assert without_process(process) == replace(mean, ranges={"work": (1.0, 2.0)})
    assert scaled_entry(process, HERE, THERE).coefficients == scaled_entry(mean, HERE, THERE).coefficients


UNITS = replace(HERE, peak_flop_per_s={"fp32": 10e12, "tf32": 40e12, "fp16": 80e12, "bf16": 80e12, "fp8": 160e12})


def test_precisions_of_the_same_units_differ_by_their_peaks_and_halves_on_lanes_do_not() -> None:
    assert rate_ratio(UNITS, "bf16", "tf32") == 2.0
    assert rate_ratio(UNITS, "bf16", "fp8") == 0.5
    assert rate_ratio(LANES, "fp32", "fp16") == 1.0
    assert rate_ratio(UNITS, "fp32", "tf32") is None
    assert rate_ratio(UNITS, "bf16", "int8") is None  # it has none
    assert rate_ratio(replace(UNITS, kind="cpu"), "bf16", "tf32") is None


def test_in_another_precision_flop_take_the_ratio_and_bytes_those_of_the_same_shapes() -> None:
    """Of m = n = k = 1024: 2 us, 2^31 FLOP, and 3·2^20 elements of 2, then 4 bytes."""
    settings: dict[str, SettingValue] = {"peak_flop_per_s": 80e12, "peak_bytes_per_s": 1e12}
    names = TERMS["gemm.tiles"].names(settings)
    known = dict.fromkeys(names, 0.0) | {
        "calls": 2e-6, "flop": 2e-14, "a_bytes": 1e-12, "b_bytes": 1e-12, "c_bytes": 1e-12,
    }  # fmt: skip
    one = entry(
        "gemm.tiles", known, precision="bf16", settings=settings, ranges={"a_bytes": (2e6, 4e6), "flop": (1e9, 2e9)}
    )
    found = in_precision(one, UNITS, "tf32", 2.0)
    assert (found.precision, found.settings["peak_flop_per_s"]) == ("tf32", 40e12)
    assert found.ranges == {"a_bytes": (4e6, 8e6), "flop": (1e9, 2e9)}
    assert found.notes == "derived from bf16: FLOP x 2, tensors x 2"
    work = {"m": 1024.0, "n": 1024.0, "k": 1024.0, "batch": 1.0}
    assert float(evaluate(one, work | {"itemsize": 2.0})) == pytest.approx(2e-6 + 2**31 * 2e-14 + 6e-12 * 2**20)
    assert float(evaluate(found, work | {"itemsize": 4.0})) == pytest.approx(2e-6 + 2**31 * 4e-14 + 12e-12 * 2**20)


def test_a_precision_of_the_same_rate_and_bytes_takes_the_same_time() -> None:
    """A Gaussian process stays; in other precisions the linear term that it stands around is what scales."""
    one = next(e for e in catalog.find_calibration("h100-sxm5-80gb").entries if e.key[1:4] == ("gemm", "", "bf16"))
    device = catalog.find_accelerator("h100-sxm5-80gb")
    assert one.term == GAUSSIAN_PROCESS
    work = {"m": 4096.0, "n": 512.0, "k": 4096.0, "batch": 1.0, "itemsize": 2.0}
    same = in_precision(one, device, "fp16", 1.0)
    assert same.precision == "fp16"
    assert float(evaluate(same, work)) == float(evaluate(one, work))
    assert in_precision(one, device, "tf32", 2.0).term == without_process(one).term


def test_measured_times_are_of_their_precision_alone() -> None:
    one = entry(LOOKED_UP, {MEASURED_S: 1.0, FLOP_BEYOND: 0.0}, precision="bf16")
    with pytest.raises(ParameterError, match=r"^term to derive tf32 from must be a linear one"):
        in_precision(one, UNITS, "tf32", 2.0)
