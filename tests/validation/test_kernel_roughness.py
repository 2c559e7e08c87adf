import numpy as np
import pytest

from planner.domain.samples import Samples
from validation.kernel_roughness import batch_roughness_section, roughness, roughness_section
from validation.kernel_scores import Batches, Key, batch_scores, measured_batches, new_shapes

KEY = Key("t4", "gemm", "", "fp32")
SIGMA = 0.1


def batches_of(gpu: str, off: float) -> Batches:
    """Return 4000 shapes at batches 8, 16, 64, whose rows are off a bent course by a normal deviation."""
    batch = np.tile([8.0, 16.0, 64.0], (4000, 1))
    fitted = 1e-5 + 1e-7 * batch
    course = fitted * (batch / 8) ** 0.3  # a line in logarithms: the entry is wrong, but the rows are not rough
    times = course * np.exp(off * np.random.default_rng(5).standard_normal(batch.shape))
    return Batches(Key(gpu, *KEY[1:]), batch, times, fitted, 0.2, np.arange(batch.size).reshape(-1, 3))


def products() -> Samples:
    """Return products whose rate no two layers share, but all batches of a layer do."""
    rows = [
        {
            "kind": "gemm", "precision": "fp32", "m": m, "n": n, "k": 512, "batch": 1, "group": f"layer {m}",
            "time_s": (1e-5 + m * n * 1e-10) * (1 + m % 3),
        }
        for m in (65, 127, 257, 511, 1024, 2050) for n in (8, 16, 32, 64)
    ]  # fmt: skip
    return Samples.from_rows(list(rows), {})


def test_deviation_is_that_of_single_rows_and_a_steady_gpu_has_none() -> None:
    samples = {"t4": products()}
    (score,) = new_shapes(samples)
    found = next(roughness(samples, [(score, 0.1)], [batches_of("t4", SIGMA), batches_of("p4", 0.0)]))
    assert found.batches == pytest.approx(SIGMA * np.sqrt(2 / np.pi), rel=0.05)  # mean absolute deviation of a normal
    assert found.others == pytest.approx(0, abs=1e-12)


def test_one_row_left_out_is_easier_than_its_layer() -> None:
    samples = {"t4": products()}
    (score,) = new_shapes(samples)
    found = next(roughness(samples, [(score, 0.1)], measured_batches(samples)))
    assert found.one_row < found.score.mean
    assert found.others is None


def test_only_scores_above_their_target_are_listed() -> None:
    samples = {"t4": products()}
    (score,) = new_shapes(samples)
    assert score.mean > 0
    for target, rows in ((0.0, 1), (score.mean, 0)):
        text = roughness_section(samples, [score], {score.key: target}.__getitem__, measured_batches(samples))
        assert text.count("| t4 | gemm | any | fp32 |") == rows


def test_of_rows_at_other_batches_those_are_listed_that_the_ratio_misses() -> None:
    batches = [batches_of("t4", SIGMA), batches_of("p4", 0.0)]
    text = batch_roughness_section(batch_scores(batches), 0.05, batches)
    line = next(line for line in text.splitlines() if line.startswith("| t4 |"))
    assert float(line.split("|")[-2]) == pytest.approx(100 * SIGMA * np.sqrt(2 / np.pi), rel=0.05)
    assert "| p4 |" not in text
