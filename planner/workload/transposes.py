"""Transposes around convolutions of matrix units, whose kernels take channels last.

Where tensors of 16 bits lie image by channel by row (NCHW), a library transposes what such a convolution reads, and
what it gives back: cuDNN's ``nchwToNhwc`` and ``nhwcToNchw`` kernels. Each element of input and output is read and
written once more in each direction: of a step, three times. Weights are small beside them. Tensor cores take channels
in eights; other convolutions, those of each channel by itself among them, run on CUDA cores as they are.

None are counted for TF32. Some of its kernels write NCHW themselves, and what others transpose is not known; with none,
networks, GPUs and clusters left out are predicted nearer.
"""

from __future__ import annotations

import numpy as np

from planner.domain.kernels import KernelCalls

__all__ = ["transposes"]

CHANNELS = 8
"""Of a group in and out, that matrix units take together."""


def transposes(calls: KernelCalls) -> KernelCalls | None:
    """Return the transposes of convolutions in their direction, a call each; None: none needs any."""
    work = calls.work
    needs = (work["in_c"] // work["groups"] % CHANNELS == 0) & (work["out_c"] // work["groups"] % CHANNELS == 0)
    needs = np.broadcast_to(needs, np.broadcast_shapes(needs.shape, calls.count.shape))
    if not needs.any():
        return None
    height, width = (
        (work[f"in_{axis}"] + 2 * work[f"pad_{axis}"] - work[f"k_{axis}"]) // work[f"stride_{axis}"] + 1
        for axis in "hw"
    )
    elements = work["images"] * (work["in_c"] * work["in_h"] * work["in_w"] + work["out_c"] * height * width)
    columns = {"elements": elements, "traffic": 2 * elements, "fixed_bytes": np.zeros_like(elements)}
    count = np.where(needs, calls.count, 0)
    return KernelCalls(
        "copy", calls.direction, calls.layer, count if calls.count.ndim > 1 else count.reshape(-1), columns
    )
