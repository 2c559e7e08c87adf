from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.costs.terms import evaluate, extrapolates
from planner.costs.work import flop
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator
from planner.domain.samples import DISTURBED_NOTE, Samples
from planner.fitting.gaussian_process import fit_entry, times_left_out
from planner.fitting.kernels import FittedKernels, TooFew, fit_kernels, preferred
from planner.fitting.rows import work_of

RNG = np.random.default_rng(21)
GPU = Accelerator("gpu", "gpu", 16e9, 900e9, {"fp32": 15e12}, 80)


def gemm(m: int, n: int, k: int, time_s: float = 1.0, **other: Any) -> dict[str, Any]:
    return {"kind": "gemm", "precision": "fp32", "m": m, "n": n, "k": k, "batch": 1, "time_s": time_s, **other}


def traffic(kind: str, elements: int, time_s: float, direction: str = "forward") -> dict[str, Any]:
    return {
        "kind": kind, "direction": direction, "precision": "fp32", "elements": elements, "traffic": 2 * elements,
        "fixed_bytes": 0, "time_s": time_s,
    }  # fmt: skip


def convolution(images: int, in_c: int, kernel: int = 3, time_s: float = 1.0, **other: Any) -> dict[str, Any]:
    """Return a convolution of 14 x 14 pixels that keeps its size, 32 channels out."""
    return {
        "kind": "convolution", "direction": "forward", "precision": "fp32", "images": images, "in_c": in_c,
        "in_h": 14, "in_w": 14, "out_c": 32, "k_h": kernel, "k_w": kernel, "stride_h": 1, "stride_w": 1,
        "pad_h": kernel // 2, "pad_w": kernel // 2, "groups": 1, "time_s": time_s, **other,
    }  # fmt: skip


def fit(rows: list[dict[str, Any]], accelerator: Accelerator | None = None) -> FittedKernels:
    return fit_kernels(Samples.from_rows(list(rows), {}), accelerator)


def only(fitted: FittedKernels, kind: str) -> Entry:
    return next(entry for entry in fitted.entries if entry.kind == kind)


def products(count: int = 30) -> list[dict[str, Any]]:
    sizes = RNG.integers(16, 2048, (count, 3)).tolist()
    return [gemm(m, n, k, 1e-5 + 2 * m * n * k * 1e-13 + 4 * m * n * 1e-12) for m, n, k in sizes]


def test_a_machine_with_known_coefficients_is_found_again() -> None:
    rows = products()
    entry = only(fit(rows), "gemm")
    samples = Samples.from_rows(list(products(10)), {})
    assert entry.held_out_error is not None
    assert entry.held_out_error < 1e-3
    np.testing.assert_allclose(evaluate(entry, work_of(samples, "gemm")), samples.time_s, rtol=1e-3)


def test_competing_terms_the_one_that_holds_wins() -> None:
    linear = [gemm(m, n, k, 1e-4 + 2e-13 * m * n * k) for m, n, k in RNG.integers(16, 2048, (20, 3)).tolist()]
    assert (only(fit(linear), "gemm").held_out_error or 0) < 1e-6
    assert only(fit(products()), "gemm").term == "gemm.tiles"


@pytest.mark.parametrize(
    ("rich", "plain", "expected"),
    [
        (0.279, 0.271, "convolution.classes"),  # less than 2 points
        (0.50, 0.47, "convolution.classes"),  # less than a tenth
        (0.30, 0.20, "work.linear"),
        (0.03, 0.005, "work.linear"),
        (None, 0.2, "work.linear"),
        (None, None, "convolution.classes"),
        (0.1, None, "convolution.classes"),
    ],
)
def test_plain_term_must_be_clearly_better(rich: float | None, plain: float | None, expected: str) -> None:
    candidates = [
        Entry("kernels", "convolution", "", "fp32", "", term, {}, {}, held_out_error=error)
        for term, error in (("convolution.classes", 0.9), ("convolution.classes", rich), ("work.linear", plain))
    ]
    assert preferred(candidates[1:]).term == expected
    if rich is not None:  # of one term's settings the best counts
        assert preferred(candidates) == preferred(candidates[1:])


def test_noise_does_not_decide_for_the_plain_term() -> None:
    noise = np.random.default_rng(3).lognormal(0, 0.02, 27).tolist()
    shapes = [(n, c, k) for n in (1, 4, 32) for c in (8, 64, 512) for k in (1, 3, 5)]
    rows = [convolution(n, c, k, 1e-5 + n * c * k * k * 1e-8 * e) for (n, c, k), e in zip(shapes, noise, strict=True)]
    assert only(fit(rows), "convolution").term == "convolution.classes"


def test_traffic_kinds_share_an_entry_and_serve_any_precision() -> None:
    rows = [traffic(kind, e, 1e-5 + 8e-12 * e) for kind in ("activation", "add") for e in (1000, 10000, 10**6, 10**7)]
    fitted = fit([*rows, traffic("bias", 10, 1e-5)])
    assert {entry.key for entry in fitted.entries} == {
        ("kernels", "activation", "forward", "any", ""),
        ("kernels", "add", "forward", "any", ""),
        ("kernels", "pointwise", "", "any", ""),
    }
    entry = only(fitted, "pointwise")
    np.testing.assert_allclose(list(entry.coefficients.values()), [1e-5, 1e-12], rtol=1e-3)
    assert tuple(map(str, fitted.missing)) == ("bias forward any: 1 rows, 3 needed",)


def test_a_copy_that_shows_the_memory_s_rate_is_not_missed() -> None:
    """Of one size among other kernels; of two sizes, or alone, too few copies are said."""
    others = [traffic("add", e, 1e-5 + 8e-12 * e) for e in (1000, 10000, 10**6, 10**7)]
    copies = [traffic("copy", 2**23, 1e-3), traffic("copy", 2**20, 1e-4)]
    assert fit([*others, copies[0]]).missing == ()
    assert tuple(map(str, fit([*others, *copies]).missing)) == ("copy forward any: 2 rows, 3 needed",)
    assert TooFew("copy", "forward", "any", "", 1, 3) in fit(copies[:1]).missing
    assert fit([*others, traffic("bias", 2**23, 1e-3)]).missing == (TooFew("bias", "forward", "any", "", 1, 3),)


def test_an_entry_that_predicts_badly_is_called_poor() -> None:
    """Two kinds of very different cost: each is known well, what they share is not."""
    sizes = [2**at for at in range(8, 20)]
    rows = [traffic("add", n, 1e-10 * n) for n in sizes] + [traffic("lrn", 3 * n, 1e-8 * n) for n in sizes]
    fitted = fit(rows)
    for entry in fitted.entries:
        assert entry.notes.startswith("poor: ") == (entry.kind == "pointwise")
    assert only(fitted, "pointwise").notes.endswith(
        "% off on rows left out; serves only kinds without an entry of their own"
    )


@pytest.mark.parametrize(("few", "said"), [(3, "3 of 12 rows "), (12, "")])
def test_an_entry_says_how_many_of_its_rows_were_measured_on_a_disturbed_machine(few: int, said: str) -> None:
    rows = [{**row, "notes": DISTURBED_NOTE if at < few else "by hand"} for at, row in enumerate(products(12))]
    assert only(fit(rows), "gemm").notes.split("; ") == [f"{said}{DISTURBED_NOTE}", *(["by hand"] if few < 12 else [])]


def test_rows_that_cannot_be_right_are_rejected_and_listed() -> None:
    rows = products(12)
    bad = [gemm(8, 8, 8, time) for time in (0.0, -1.0, np.nan, np.inf)] + [gemm(0, 8, 8), {"kind": "fft", "time_s": 1}]
    fitted = fit([bad[0], *rows, *bad[1:]])
    assert [row for row, _ in fitted.rejected] == [0, 13, 14, 15, 16, 17]
    assert fitted.rejected[0].reason == "time_s must be finite and above 0, got 0"
    assert fitted.rejected[4].reason == "m must be given and at least 1, got 0"
    assert fitted.rejected[5].reason == "kind must be known, got 'fft'"
    assert only(fitted, "gemm").samples == 12


def test_duplicates_count_once_at_their_median() -> None:
    rows = products(12)
    twice = [row | {"time_s": row["time_s"] * factor} for row in rows for factor in (1, 0.5, 40)]
    entry, expected = only(fit(twice), "gemm"), only(fit(rows), "gemm")
    assert entry.samples == 12
    np.testing.assert_allclose(list(entry.coefficients.values()), list(expected.coefficients.values()))


def test_features_that_the_rows_cannot_tell_apart_are_reported() -> None:
    one_layer = [gemm(512, n, 256, 1e-5 + 1e-9 * n) for n in (1, 2, 4, 8, 16, 32, 64)]
    entry = only(fit(one_layer), "gemm")
    # only n moves: constant and slope are all there is
    assert set(entry.fixed) >= {name for name in entry.coefficients if name in ("a_bytes", "c_bytes", "k")}
    assert all(entry.coefficients[name] == 0 for name in entry.fixed)
    assert set(entry.standard_errors) == set(entry.coefficients) - set(entry.fixed)
    assert entry.covariance is not None
    assert len(entry.covariance) == len(entry.coefficients)


def test_groups_are_held_out_whole() -> None:
    rows = [row | {"group": f"g{i % 3}"} for i, row in enumerate(products())]
    assert only(fit(rows), "gemm").held_out_by == "group"


def test_batches_of_products_that_run_otherwise_are_told_apart() -> None:
    single = products()
    several = [row | {"batch": 64, "time_s": 64 * 3e-13 * 2 * row["m"] * row["n"] * row["k"]} for row in single]
    entry = only(fit([*single, *several]), "gemm")
    assert entry.held_out_error is not None
    assert entry.held_out_error < 1e-2
    assert entry.coefficients["batched_flop"] == pytest.approx(3e-13, rel=1e-2)
    assert "batched_flop" not in only(fit([*single, *several[:3]]), "gemm").coefficients


def test_times_left_out_are_those_of_the_held_out_error() -> None:
    rows = [row | {"group": f"g{i % 5}"} for i, row in enumerate(products())]
    samples = Samples.from_rows(list(rows), {})
    entry = only(fit_kernels(samples), "gemm")
    errors = np.abs(times_left_out(entry, samples)[0] / samples.time_s - 1)
    assert entry.held_out_error == pytest.approx(errors.mean())
    assert entry.worst_error == pytest.approx(errors.max())


def test_rows_are_told_apart_by_length_where_that_is_known() -> None:
    shapes = [(count, length) for count in (64, 512, 4096) for length in (256, 1024, 2048, 6144, 16384)]
    rows = [
        traffic("softmax", n * length, 1e-5 + 8e-12 * n * length * (1 + (length > 1024))) | {"rows": n}
        for n, length in shapes
    ]
    entry = only(fit(rows), "softmax")
    assert entry.term == "traffic.rows"
    assert entry.coefficients["bytes_beyond_1024"] == pytest.approx(1e-12, rel=1e-3)
    assert only(fit([row | {"rows": np.nan} for row in rows]), "softmax").term == "traffic.bytes"


def test_reading_and_writing_have_rates_of_their_own() -> None:
    rows = [
        traffic(kind, n, 1e-5 + (tensors - 1) * n * 4e-12 + n * 8e-12) | {"traffic": tensors * n}
        for kind, tensors in (("add", 3), ("activation", 2))
        for n in (10**5, 10**6, 10**7)
    ]
    entry = only(fit(rows), "pointwise")
    assert entry.term == "traffic.read_write"
    assert entry.coefficients["read_bytes"] == pytest.approx(1e-12, rel=1e-3)
    assert entry.coefficients["written_bytes"] == pytest.approx(2e-12, rel=1e-3)
    assert only(fit(rows), "add").term == "traffic.bytes"
    in_bytes = [row | {"traffic": np.nan, "fixed_bytes": np.nan, "bytes": 4.0 * row["traffic"]} for row in rows]
    assert dict(only(fit(in_bytes), "pointwise").coefficients) == pytest.approx(dict(entry.coefficients))


def test_a_full_grid_is_interpolated_where_no_formula_holds() -> None:
    axes = (64, 128, 256, 512, 1024)
    # a plateau in each axis, smooth in logarithms, far from any sum of FLOP and bytes
    rows = [
        gemm(m, n, k, 1e-6 * (m * n * k) ** 0.5 * (1 + 0.5 * np.sin(np.log2(m))) * (2 + np.cos(np.log2(n * k))))
        for m in axes for n in axes for k in axes
    ]  # fmt: skip
    entry = only(fit(rows), "gemm")
    assert entry.term == "gemm.interpolation"
    assert entry.held_out_by == "plane"
    samples = Samples.from_rows(list(rows), {})
    np.testing.assert_allclose(evaluate(entry, work_of(samples, "gemm")), samples.time_s, rtol=1e-9)


def test_peaks_of_a_gpu_are_stored_as_a_floor() -> None:
    entry = only(fit(products(), GPU), "gemm")
    assert entry.settings["peak_flop_per_s"] == 15e12
    assert "peak_flop_per_s" not in only(fit(products()), "gemm").settings


def test_no_convolution_of_a_gpu_passes_its_peaks() -> None:
    rows = [convolution(n, c, kernel=k, time_s=1e-7 * n * c) for n in (1, 2, 8) for c in (8, 64) for k in (1, 3)]
    entry = only(fit(rows, GPU), "convolution")
    work = work_of(Samples.from_rows([convolution(64, 4096, kernel=1, out_c=4096)], {}), "convolution")
    assert float(evaluate(entry, work)[0]) >= float(flop(work)[0]) / GPU.peak_flop_per_s["fp32"]
    assert entry.settings["peak_bytes_per_s"] == GPU.memory_bytes_per_s


@pytest.mark.parametrize(("fp16_rate", "expected"), [(125e12, "convolution.channels"), (30e12, None)])
def test_tensor_cores_compute_whole_tiles_of_channels(fp16_rate: float, expected: str | None) -> None:
    def row(images: int, channels: int, kernel: int) -> dict[str, Any]:
        call = convolution(images, channels, kernel=kernel) | {"precision": "fp16"}
        tiles = np.ceil(channels / 32) * 32 * np.ceil(call["out_c"] / 64) * 64
        return call | {"time_s": 1e-5 + 2 * images * 196 * kernel**2 * tiles / 50e12}

    shapes = [(images, channels, kernel) for images in (8, 64) for channels in (1, 3, 16, 40, 96) for kernel in (1, 3)]
    device = replace(GPU, peak_flop_per_s={"fp32": 15e12, "fp16": fp16_rate})
    found = only(fit_kernels(Samples.from_rows([row(*shape) for shape in shapes], {}), device), "convolution")
    assert (found.term == "convolution.channels") == (expected is not None)
    if expected:
        assert found.held_out_error == pytest.approx(0, abs=0.01)


def test_convolution_direction_reaches_its_features() -> None:
    def row(direction: str, images: int, channels: int) -> dict[str, Any]:
        return convolution(images, channels, time_s=1e-5 + images * channels * 1e-7, direction=direction)

    directions = ("backward_data", "backward_weight", "forward")
    fitted = fit([row(d, n, c) for d in directions for n in (1, 2, 8, 32) for c in (8, 32, 64)])
    assert tuple(entry.direction for entry in fitted.entries) == directions
    for entry in fitted.entries:
        if entry.term == "convolution.classes":
            assert entry.settings["direction"] == entry.direction
            assert "flop_1x1" in entry.fixed


def test_class_without_rows_costs_what_the_dearest_class_does() -> None:
    def rows(*kernels: int) -> list[dict[str, Any]]:
        rate = {1: 2e-13, 3: 0.5e-13, 5: 1e-13}
        calls = [convolution(n, c, kernel=k) for k in kernels for n in (1, 4, 32) for c in (8, 64, 512)]
        return [
            row | {"time_s": 1e-5 + rate[row["k_h"]] * 2 * row["images"] * 196 * 32 * row["in_c"] * row["k_h"] ** 2}
            for row in calls
        ]

    entry = only(fit(rows(1, 3)), "convolution")
    assert {"flop_other", "flop_1x1_strided"} <= set(entry.fixed)
    assert entry.coefficients["flop_other"] == entry.coefficients["flop_1x1"] == pytest.approx(2e-13, rel=1e-3)
    # half the rate of 5 x 5, which took no part: dear, never cheap, and said to lie outside
    samples = Samples.from_rows(list(rows(5)), {})
    work = work_of(samples, "convolution")
    share = evaluate(entry, work) / samples.time_s
    assert 1 < share.max() <= 2
    assert extrapolates(entry, work).all()
    assert entry.ranges["flop_other"] == (0.0, 0.0)


@pytest.mark.parametrize("most", [1, 4])
def test_more_groups_than_were_seen_are_extrapolated(most: int) -> None:
    shapes = [(n, c, g) for n in (1, 4, 32) for c in (8, 64, 512) for g in (1, most)]
    rows = [convolution(n, c, 3, 1e-5 + n * c * 1e-7 / g, groups=g) for n, c, g in shapes]
    entry = only(fit(rows), "convolution")
    calls = [convolution(4, 64, 3, groups=g) for g in (1, 4, 32)]
    work = work_of(Samples.from_rows(list(calls), {}), "convolution")
    assert entry.ranges["groups"] == (1.0, float(most))
    assert extrapolates(entry, work).tolist() == [False, most < 4, True]


@pytest.mark.parametrize("estimator", ["relative-nnls", "least-squares"])
def test_estimator_is_recorded(estimator: str) -> None:
    samples = Samples.from_rows(list(products()), {})
    entry = fit_entry(samples, ("kernels", "gemm", "", "fp32", ""), "gemm.tiles", {}, estimator=estimator)
    assert entry.estimator == estimator


def attended(batch: int, length: int, width: int, causal: int, time_s: float = 1.0) -> dict[str, Any]:
    return {
        "kind": "attention", "direction": "backward_data", "precision": "fp16", "batch": batch, "queries": length,
        "keys": length, "width": width, "causal": causal, "time_s": time_s,
    }  # fmt: skip


def test_attention_of_known_coefficients_is_found_again() -> None:
    """10 FLOP a pair and feature backward, an exponential a pair, a launch; per precision, as products are."""
    sizes = [(b, s, w, c) for b in (8, 32) for s in (100, 250, 700) for w in (32, 64, 128) for c in (0, 1)]

    def made(b: int, s: int, w: int, c: int) -> dict[str, Any]:
        pairs = b * (s * (s + 1) / 2 if c else s * s)
        return attended(b, s, w, c, 2e-5 + 10 * pairs * w * 1e-13 + pairs * 2e-12)

    entry = only(fit([made(*row) for row in sizes], GPU), "attention")
    new = Samples.from_rows([made(5, 400, 80, 0), made(64, 333, 96, 1)], {})
    assert (entry.term, entry.direction, entry.precision) == ("attention.blocks", "backward_data", "fp16")
    np.testing.assert_allclose(evaluate(entry, work_of(new, "attention")), new.time_s, rtol=1e-3)


def test_attention_of_as_many_bytes_each_has_no_launch_of_its_own() -> None:
    """Of 1024 tokens and 64 features whatever the length: a time that all have may be of the launch, or of bytes."""

    def made(length: int, width: int, causal: int) -> dict[str, Any]:
        b = 1024 // length * (64 // width)
        pairs = b * (length * (length + 1) / 2 if causal else length**2)
        return attended(b, length, width, causal, 8e-5 + 10 * pairs * width * 1e-13 + pairs * 2e-12)

    lengths = (128, 256, 512, 1024)
    entry = only(fit([made(s, w, c) for s in lengths for w in (16, 32) for c in (0, 1)]), "attention")
    assert "calls" not in entry.coefficients
    assert entry.error is not None
    assert entry.error < 0.05
    half = Samples.from_rows([attended(8, 128, 16, 0), attended(4, 128, 16, 0)], {})
    whole_s, half_s = evaluate(entry, work_of(half, "attention"))
    assert half_s == pytest.approx(whole_s / 2)


def test_attention_needs_rows_enough_and_sizes_that_can_be() -> None:
    rows = [attended(8, 100 * n, 64, 0, n * 1e-3) for n in range(1, 6)]
    fitted = fit([*rows, attended(8, 0, 64, 0)])
    assert tuple(map(str, fitted.missing)) == ("attention backward_data fp16: 5 rows, 6 needed",)
    assert [one.reason for one in fitted.rejected] == ["queries must be given and at least 1, got 0"]


def test_on_a_gpu_calls_of_networks_teach_other_shapes() -> None:
    """What a network repeats in another precision, as it is the same call there, takes part once."""
    named = [{**gemm(m, n, 64, 1e-6 + 1e-12 * m * n * 64), "direction": "forward", "call": f"{m}", "sub_batch": n}
             for m in (64, 128, 256) for n in (32, 64, 512)]  # fmt: skip
    update = [{**traffic("update", 1000 * n, 1e-9 * n, "update"), "call": "u", "sub_batch": n} for n in (1, 2, 4, 8)]
    twice = [{**row, "precision": "bf16"} for row in update]
    rows: list[Mapping[str, Any]] = [
        *named,
        *update,
        *twice,
        gemm(512, 512, 64, 1e-6 + 1e-12 * 512 * 512 * 64, direction="forward"),
    ]
    fitted = {one.kind: one.samples for one in fit_kernels(Samples.from_rows(rows, {}), GPU).entries}
    assert (fitted["gemm"], fitted["update"]) == (10, 4)
