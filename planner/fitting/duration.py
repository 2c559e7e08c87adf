"""How long a fit is going to take on this machine, found by fitting a few made-up rows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from planner.domain.cluster import Accelerator
from planner.domain.kernels import FORWARD
from planner.domain.samples import Samples
from planner.fitting.kernels import fit_kernels
from planner.numbers import constant

__all__ = ["expected_fit_s"]

ROWS = 32
WHOLE_FITS = constant("duration.whole_fits")
"""What fitting the fp32 rows of a design is taken to need, in fits of ROWS products (docs/numbers.md)."""
SEED = 1


def expected_fit_s(accelerator: Accelerator, times: float = 1.0) -> float:
    """Return the time [s] that fitting a whole calibration is expected to take; loads what fitting needs.

    Parameters
    ----------
    accelerator : Accelerator
    times : float
        Rows of the design over those of it that are fp32: few shapes are measured in further precisions.
    """
    random = np.random.default_rng(SEED)
    sizes = np.exp2(random.uniform(3, 11, (ROWS, 3))).round()
    rows: list[Mapping[str, Any]] = [
        {"kind": "gemm", "direction": FORWARD, "precision": "fp32", "m": m, "n": n, "k": k, "batch": 1,
         "time_s": 1e-5 + 2e-11 * m * n * k} for m, n, k in sizes.tolist()
    ]  # fmt: skip
    samples = Samples.from_rows(rows, {})
    fit_kernels(samples.select(np.arange(ROWS) < ROWS // 2), accelerator)  # not timed: it loads packages
    start = time.perf_counter()
    fit_kernels(samples, accelerator)
    return WHOLE_FITS * times * (time.perf_counter() - start)
