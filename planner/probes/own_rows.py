"""Calls of networks that are the same in several precisions: measured once, they stand in the samples for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.domain.kernels import is_that_of_fp32
from planner.domain.samples import Samples
from planner.probes.precisions import HALVES

__all__ = ["with_shared_rows"]


def with_shared_rows(samples: Samples, precisions: Sequence[str]) -> Samples:
    """Return samples with the fp32 rows of networks' calls that are the same in other precisions, for each of these."""
    kinds = samples.text["kind"].tolist()
    single = (samples.text["call"] != "") & (samples.text["precision"] == "fp32")
    whole = samples
    for precision in (name for name in precisions if name in ("tf32", *HALVES)):
        is_shared = single & np.array([is_that_of_fp32(kind, precision) for kind in kinds], dtype=np.bool_)
        if is_shared.any():
            rows = samples.select(is_shared)
            names: NDArray[np.str_] = np.full(rows.size, precision)
            whole = whole.joined(Samples({**rows.text, "precision": names}, rows.number, rows.circumstances))
    return whole
