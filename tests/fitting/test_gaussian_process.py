from typing import Any

import numpy as np
import pytest

from planner.costs.features import number, vector
from planner.costs.gaussian_process import ROUGH_ORDER, SMOOTH_ORDER, coordinates, covariances, log_prior
from planner.costs.terms import evaluate, term_named
from planner.costs.work import flop, moved_bytes
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry
from planner.domain.cluster import Accelerator
from planner.domain.samples import Samples
from planner.fitting.gaussian_process import (
    MOST_POINTS,
    Process,
    fit_entry,
    fit_gaussian_process,
    times_left_out,
)
from planner.fitting.kernels import fit_kernels
from planner.fitting.rows import work_of

GPU = Accelerator("gpu", "gpu", 16e9, 900e9, {"fp32": 15e12}, 80)
CPU = Accelerator("cpu", "cpu", 16e9, 100e9, {"fp32": 1e12})
KEY = ("kernels", "gemm", "", "fp32", "")
PEAKS = {"peak_flop_per_s": 15e12, "peak_bytes_per_s": 900e9}


def products(count: int, wave: float, batch: int = 1) -> Samples:
    """Return products in groups of equal m and k, whose rate goes up and down with log m, by a factor of e^wave."""
    rng = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for place in range(count // 5):
        m, k = (int(size) for size in np.exp(rng.uniform(np.log(128), np.log(8192), 2)))
        for n in (16, 32, 128, 1024, 4096):
            work = 2.0 * m * n * k * batch
            moved = 4.0 * batch * (m * k + k * n + m * n)
            time_s = (1e-5 + work * 1.5e-13 + moved / 4e11) * np.exp(wave * np.sin(np.log(m)))
            rows.append(
                {"kind": "gemm", "precision": "fp32", "m": m, "n": n, "k": k, "batch": batch, "time_s": time_s,
                 "group": f"layer {place}"}
            )  # fmt: skip
    return Samples.from_rows(list(rows), {})


def base_of(samples: Samples) -> Entry:
    return fit_entry(samples, KEY, "gemm.tiles", PEAKS)


def process_of(samples: Samples, around: str = "mean", share: float = 1.0, order: float = SMOOTH_ORDER) -> Entry:
    found = fit_gaussian_process(samples, base_of(samples), Process(around, share, order), 80.0)
    assert found is not None
    return found[0]


def residuals(entry: Entry, samples: Samples) -> FloatArray:
    mean, work = term_named("gemm.tiles"), work_of(samples, "gemm")
    found: FloatArray = np.log(samples.time_s) - log_prior(mean, work, entry.settings)
    return found


@pytest.mark.parametrize("order", [SMOOTH_ORDER, ROUGH_ORDER])
def test_where_every_call_is_a_point_it_is_the_mean_of_the_process(order: float) -> None:
    samples = products(60, 0.5)
    entry, work = process_of(samples, order=order), work_of(samples, "gemm")
    places, lengths = coordinates(work, entry.settings), vector(entry.settings, "lengths")
    left = residuals(entry, samples)
    covariance = covariances(places, places, lengths, order)
    noisy = covariance + number(entry.settings, "nugget", 0.0) * np.eye(samples.size)
    closed = covariance @ np.linalg.solve(noisy, left - left.mean()) + left.mean()
    found = np.log(evaluate(entry, work)) - (np.log(samples.time_s) - left)
    np.testing.assert_allclose(found, closed, atol=1e-4)


def test_a_process_learns_what_the_linear_term_does_not_hold() -> None:
    samples = products(200, 0.5)
    base, entry = base_of(samples), process_of(samples)
    assert entry.held_out_error is not None
    assert base.held_out_error is not None
    assert entry.held_out_error < base.held_out_error / 3
    (chosen,) = fit_kernels(samples, GPU).entries
    assert chosen.term == "gaussian.process"
    assert chosen.held_out_by == "group"


def test_a_coordinate_that_tells_more_has_a_shorter_length_scale() -> None:
    lengths = vector(process_of(products(200, 0.5)).settings, "lengths")
    m, n = lengths[:2]  # beside a wave of log m, nothing is left that n could tell
    assert m < n / 2


def test_length_scales_are_likelier_than_any_with_one_of_them_doubled_or_halved() -> None:
    samples = products(60, 0.5)
    entry = process_of(samples)
    places, lengths = coordinates(work_of(samples, "gemm"), entry.settings), vector(entry.settings, "lengths")
    left = residuals(entry, samples)

    def log_density(tried: FloatArray) -> float:
        noisy = covariances(places, places, tried) + number(entry.settings, "nugget", 0.0) * np.eye(samples.size)
        rest = left - left.mean()
        likelihood = -0.5 * samples.size * np.log(rest @ np.linalg.solve(noisy, rest)) - np.linalg.slogdet(noisy)[1] / 2
        prior = np.log(tried[tried < 1e6] / 2.0) / 1.4  # around 2, of deviation 1.4
        return float(likelihood - 0.5 * prior @ prior)

    told = np.flatnonzero(lengths < 1e6)
    assert told.size > 3
    for place in told:
        for factor in (0.5, 2.0):
            other = lengths.copy()
            other[place] *= factor
            assert log_density(other) < log_density(lengths) + 0.01


def test_a_process_is_held_out_by_group() -> None:
    samples = products(60, 0.5)
    entry = process_of(samples)
    errors = np.abs(times_left_out(entry, samples)[0] / samples.time_s - 1)
    assert entry.held_out_error == pytest.approx(errors.mean())
    assert entry.worst_error == pytest.approx(errors.max())
    # a group left out takes no part: its rows may be anything
    first = samples.text["group"] == "layer 0"
    other = Samples(samples.text, {**samples.number, "time_s": samples.time_s * np.where(first, 3, 1)}, {})
    np.testing.assert_allclose(
        times_left_out(entry, other)[0][first], times_left_out(entry, samples)[0][first], rtol=1e-9
    )


@pytest.mark.parametrize("accelerator", [GPU, CPU, None])
def test_a_linear_machine_and_a_cpu_have_no_process(accelerator: Accelerator | None) -> None:
    samples = products(60, 0.0 if accelerator is GPU else 0.5)
    assert [entry.term for entry in fit_kernels(samples, accelerator).entries] != ["gaussian.process"]


def test_few_calls_have_no_process() -> None:
    samples = products(15, 0.5)
    assert fit_gaussian_process(samples, base_of(samples), Process("mean")) is None


def test_points_are_no_more_than_a_file_can_hold() -> None:
    samples = products(600, 0.5)
    entry = process_of(samples)
    points = [name for name in entry.coefficients if name.startswith("point_")]
    assert len(points) == MOST_POINTS
    assert entry.held_out_error is not None
    assert entry.held_out_error < (base_of(samples).held_out_error or 0) / 3


@pytest.mark.parametrize(("around", "share"), [("mean", 1.0), ("roofline", 1.0), ("roofline", 0.5)])
@pytest.mark.parametrize("size", [1, 8, 2**15, 2**20])
def test_far_outside_the_samples_times_stay_near_the_roofline(around: str, share: float, size: int) -> None:
    entry = process_of(products(100, 0.5), around, share)
    for m, n, k in ((size, size, size), (size, 1, 1), (1, size, 1), (1, 1, size), (size, 64, 64), (512, size, 512)):
        work = {"m": m, "n": n, "k": k, "batch": 1, "itemsize": 4.0, "trans_a": 1.0}
        roofline = 1e-5 + float(flop(work)) * 1.5e-13 + float(moved_bytes(work)) / 4e11
        assert 0.2 < float(evaluate(entry, work)) / roofline < 5


def test_batches_take_the_linear_term_and_single_products_decide() -> None:
    several, single = products(300, 0.0, batch=16), products(60, 0.5)
    (entry,) = fit_kernels(several.joined(single), GPU).entries
    assert entry.term == "gaussian.process"
    work = work_of(several, "gemm")
    mean = term_named(str(entry.settings["mean"]))
    expected = mean.features(work, entry.settings) @ vector(entry.settings, "mean_coefficients")
    np.testing.assert_allclose(evaluate(entry, work), expected, rtol=1e-9)
