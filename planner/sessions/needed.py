"""What a calibration for no network in particular must hold."""

from __future__ import annotations

import numpy as np

from planner.domain.kernels import FORWARD
from planner.networks.zoo import build, zoo_names
from planner.workload.lowering import lower

__all__ = ["needed_kernels"]


def needed_kernels() -> tuple[tuple[str, str], ...]:
    """Return kind and direction of every kernel that a bundled network calls, products first.

    Without copies forward, which experts and tables of positions alone make: where there are too few timings of them, a
    data sheet's bandwidth serves.
    """
    one = np.ones(1, dtype=np.int64)
    pairs = {(calls.kind, calls.direction) for name in zoo_names() for calls in lower(build(name, {}), one)}
    pairs -= {("copy", FORWARD)}
    return tuple(sorted(pairs, key=lambda pair: (pair[0] not in ("convolution", "gemm"), pair)))
