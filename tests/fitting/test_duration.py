"""The estimate of a fit's time, against a fit of a whole made-up design."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from planner.domain.cluster import Accelerator
from planner.domain.network import Point
from planner.domain.samples import Samples
from planner.fitting.kernels import expected_fit_s, fit_kernels
from planner.probes.points import designed_points, gpu_points

CPU = Accelerator("made-up", "cpu", 8 * 2.0**30, 1e10, {"fp32": 1e11})
GPU = Accelerator("made-up card", "gpu", 80 * 2.0**30, 3e12, {"fp32": 5e13, "bf16": 7e14}, 132)


@pytest.mark.live  # compares times of this machine, of some 25 s
@pytest.mark.parametrize(
    ("accelerator", "points"), [(CPU, designed_points()), (GPU, gpu_points(("fp32", "bf16")))], ids=["cpu", "gpu"]
)
def test_a_whole_fit_takes_about_what_is_expected(accelerator: Accelerator, points: tuple[Point, ...]) -> None:
    random = np.random.default_rng(3)
    rows: list[Mapping[str, Any]] = [
        {"kind": point.kind, "direction": point.direction, "precision": point.precision, **point.work,
         "time_s": 1e-5 + 1e-10 * max(point.work.values()) * float(np.exp(random.normal(0, 0.1)))}
        for point in points
    ]  # fmt: skip
    expected_s = expected_fit_s(accelerator, len(points) / sum(point.precision == "fp32" for point in points))
    start = time.perf_counter()
    fit_kernels(Samples.from_rows(rows, {}), accelerator)
    taken_s = time.perf_counter() - start
    assert taken_s / 4 < expected_s < 12 * taken_s
