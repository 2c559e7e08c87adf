"""``planner calibrate --samples``: measured samples of which some are in another unit."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.domain.samples import Samples
from planner.formats.samples import read_samples, write_samples

Run = Callable[..., tuple[int, str, str]]
MEASURED = Path(__file__).parents[2] / "validation/samples/cpu-epyc-example/cpu-epyc-example.csv"


@pytest.fixture(scope="module")
def measured() -> Samples:
    """Return a CPU's samples as they were measured."""
    return read_samples(MEASURED)[0]


@pytest.fixture
def refused(run: Run, measured: Samples) -> Callable[..., str]:
    """Return a function: factor, words that rows of another unit have -> the sentence that refuses them."""

    def call(factor: float, words: Mapping[str, str]) -> str:
        mixed = np.logical_and.reduce([measured.text[name] == word for name, word in words.items()])
        times = np.where(mixed, factor * measured.time_s, measured.time_s)
        Path("x").mkdir()
        Path("x/a.csv").write_text(write_samples(replace(measured, number={**measured.number, "time_s": times})))
        code, out, err = run("calibrate", "--samples", "x", "--out", "fit.json")
        assert (code, out, err.count("\n")) == (3, "", 1)
        return err

    return call


@pytest.mark.parametrize(
    ("kind", "direction", "factor", "end"),
    [
        ("gemm", "forward", 1e6, "microseconds; divide those by 1,000,000"),
        ("gemm", "backward_data", 1e3, "milliseconds; divide those by 1,000"),
        ("activation", "forward", 1e3, "milliseconds; divide those by 1,000"),
        ("softmax", "", 1e-3, "seconds divided by 1,000 once too often; multiply those by 1,000"),
    ],
)
def test_a_kind_or_one_of_its_directions_is_named(
    refused: Callable[..., str], kind: str, direction: str, factor: float, end: str
) -> None:
    words = {"kind": kind, **({"direction": direction} if direction else {})}
    err = refused(factor, words)
    assert err.startswith(f"planner: x/a.csv: time_s must be in seconds, got times of kind {' '.join(words.values())} ")
    assert err.endswith(f": looks like {end}\n")
