"""Calls of networks that are the same in several precisions: measured once, they stand in the samples for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import BoolArray
from planner.domain.samples import Samples
from planner.probes.layer_points import ALWAYS_FP32

__all__ = ["with_shared_rows"]

COMPUTED = ("attention", "convolution", "gemm")
HALVES = ("fp16", "bf16")


def with_shared_rows(samples: Samples, precisions: Sequence[str]) -> Samples:
    """Return samples with the fp32 rows of networks' calls that are the same in other precisions, for each of these.

    TF32 is fp32 but for products, convolutions and attention; under 16 bits updates and embeddings are fp32.
    """
    kind = samples.text["kind"]
    single = (samples.text["call"] != "") & (samples.text["precision"] == "fp32")
    same: dict[str, BoolArray] = {"tf32": ~np.isin(kind, COMPUTED)}
    same |= {name: np.isin(kind, ALWAYS_FP32) for name in HALVES}
    whole = samples
    for precision in precisions:
        shared = single & same[precision] if precision in same else np.zeros(samples.size, dtype=np.bool_)
        if shared.any():
            rows = samples.select(shared)
            named: NDArray[np.str_] = np.full(rows.size, precision)
            whole = whole.joined(Samples({**rows.text, "precision": named}, rows.number, rows.circumstances))
    return whole
