from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.samples import Samples
from planner.fitting.gaussian_process import fit_entry
from planner.formats.calibration import CALIBRATION
from planner.steps.intervals import Gradient, stated_deviation

KEY = ("kernels", "copy", "forward", "any", "")
WORK = {"elements": 5e5, "traffic": 1e6, "fixed_bytes": 0.0, "itemsize": 4.0}


def fitted(*factors: float) -> Entry:
    """Return launch and bandwidth of copies whose times stray by these factors, one row each."""
    rows: list[Mapping[str, Any]] = [
        {
            "kind": "copy", "direction": "forward", "precision": "fp32",
            "elements": n, "traffic": 2 * n, "time_s": factor * (1e-5 + 1e-10 * 8 * n),
        }
        for n, factor in zip(np.geomspace(1e4, 1e6, len(factors)), factors, strict=True)
    ]  # fmt: skip
    return fit_entry(Samples.from_rows(rows, {}), KEY, "traffic.bytes", {})


def test_a_fit_through_every_row_states_no_errors_of_its_own() -> None:
    entry = fitted(1.0, 1.1)
    assert dict(entry.standard_errors) == {}
    assert (entry.covariance, entry.error) == (None, None)
    assert entry.held_out_error is not None
    assert entry.held_out_error > 0
    again = CALIBRATION.parse(CALIBRATION.dump(Calibration("here", "cpu", (entry,))), "here.json").entries[0]
    assert (dict(again.standard_errors), again.covariance, again.error) == ({}, None, None)


def test_its_interval_rests_on_rows_left_out() -> None:
    entry, gradient = fitted(1.0, 1.1), Gradient()
    gradient.add(entry, WORK, 3.0)
    spread = gradient.spread()
    assert spread is not None
    assert entry.held_out_error is not None
    seconds = 3.0 * (entry.coefficients["calls"] + entry.coefficients["bytes"] * 4e6)
    assert spread.variance_s2 == pytest.approx((1.25 * entry.held_out_error * seconds) ** 2)


def test_one_row_tells_nothing_of_what_it_misses() -> None:
    assert stated_deviation(fitted(1.0)) == ("kernels", 0.5)


def test_a_row_more_than_coefficients_determines_errors() -> None:
    entry = fitted(1.0, 1.1, 0.9)
    assert set(entry.standard_errors) == {"calls", "bytes"}
    assert min(entry.standard_errors.values()) > 0
    assert entry.error is not None
    assert entry.error > 0


def test_a_layer_at_several_sub_batches_is_predicted_without_any_of_them() -> None:
    """Each layer has a speed of its own, so that a row of it tells of the others of it alone."""
    speeds = {64: 1.0, 128: 1.2, 256: 0.9}
    rows: list[Mapping[str, Any]] = [
        {"kind": "gemm", "direction": "forward", "m": m, "n": n, "k": 64, "time_s": 2e-9 * m * n * 64 * slow}
        for m, slow in speeds.items()
        for n in (8, 64)
    ]
    samples = Samples.from_rows(rows, {})
    key = ("kernels", "gemm", "forward", "fp32", "")
    entry = fit_entry(samples, key, "flop.rate", {})
    misses = []
    for m, slow in speeds.items():
        without = fit_entry(samples.select(samples.number["m"] != m), key, "flop.rate", {})
        misses.append(abs(without.coefficients["flop"] / (1e-9 * slow) - 1))
    assert entry.held_out_by == "shape"
    assert entry.held_out_error == pytest.approx(np.mean(misses))
