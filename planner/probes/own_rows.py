"""Calls of networks that are the same in several precisions: measured once, they stand in the samples for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import BoolArray
from planner.domain.kernels import FP32_KINDS, MATRIX_KINDS
from planner.domain.samples import Samples
from planner.probes.precisions import HALVES

__all__ = ["with_shared_rows"]


def with_shared_rows(samples: Samples, precisions: Sequence[str]) -> Samples:
    """Return samples with the fp32 rows of networks' calls that are the same in other precisions, for each of these.

    TF32 is fp32 but for products, convolutions and attention; under 16 bits updates and embeddings are fp32.
    """
    kind = samples.text["kind"]
    single = (samples.text["call"] != "") & (samples.text["precision"] == "fp32")
    same: dict[str, BoolArray] = {"tf32": ~np.isin(kind, MATRIX_KINDS)}
    same |= {name: np.isin(kind, FP32_KINDS) for name in HALVES}
    whole = samples
    for precision in precisions:
        is_shared = single & same[precision] if precision in same else np.zeros(samples.size, dtype=np.bool_)
        if is_shared.any():
            rows = samples.select(is_shared)
            names: NDArray[np.str_] = np.full(rows.size, precision)
            whole = whole.joined(Samples({**rows.text, "precision": names}, rows.number, rows.circumstances))
    return whole
