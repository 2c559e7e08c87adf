"""The estimate of a fit's time, against a fit of a whole made-up design."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from planner.domain.cluster import Accelerator
from planner.domain.samples import Samples
from planner.fitting.duration import expected_fit_s
from planner.fitting.kernels import fit_kernels
from planner.probes.design import designed_points

CPU = Accelerator("made-up", "cpu", 8 * 2.0**30, 1e10, {"fp32": 1e11})


def test_a_whole_fit_takes_about_what_is_expected() -> None:
    random = np.random.default_rng(3)
    rows: list[Mapping[str, Any]] = [
        {"kind": point.kind, "direction": point.direction, "precision": "fp32", **point.work,
         "time_s": 1e-5 + 1e-10 * max(point.work.values()) * float(np.exp(random.normal(0, 0.1)))}
        for point in designed_points()
    ]  # fmt: skip
    expected_s = expected_fit_s(CPU)
    start = time.perf_counter()
    fit_kernels(Samples.from_rows(rows, {}), CPU)
    taken_s = time.perf_counter() - start
    assert taken_s / 4 < expected_s < 12 * taken_s
    assert expected_fit_s(CPU, 3) > expected_s
