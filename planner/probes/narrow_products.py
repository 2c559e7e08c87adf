"""Timed products of 8-bit numbers: PyTorch's operators for them, in the layouts that GPUs multiply.

Tensor cores take 8-bit operands with the summed dimension contiguous in both, so the second one is handed over as the
transpose of a matrix with that dimension last; a training step keeps transposed copies for it (NVIDIA Transformer
Engine documentation, "FP8 primer"). No bias is added. Restrictions on sizes are the library's, which refuses others.
"""

from __future__ import annotations

from typing import Any

from planner.domain.kernels import BACKWARD_DATA, FORWARD
from planner.probes.operands import Operands
from planner.probes.points import Point
from planner.probes.timing import Call

__all__ = ["NARROW", "narrow_product"]

NARROW = ("int8", "fp8")
"""Precisions of 8 bits."""
RESULT_BYTES = {"int8": 4, "fp8": 2}


def narrow_product(torch: Any, point: Point, operands: Operands) -> Call:
    """Return a linear layer's product of a direction: int8 summed to int32, fp8 (e4m3) to bf16.

    Weights come cold, as saved activations do; what was just written comes warm.
    """
    m, n, k = (point.work[name] for name in ("m", "n", "k"))
    if point.direction in (FORWARD, BACKWARD_DATA):
        rows, columns = (n, k), (m, k)
    else:
        rows, columns = (m, k), (n, k)
    first, second = operands.warm(*rows), operands.cold(*columns)
    kept = 0 if point.direction in (FORWARD, BACKWARD_DATA) else RESULT_BYTES[point.precision] * m * n
    if point.precision == "int8":
        multiply = torch._int_mm  # noqa: SLF001 - the operator has no other name
        return Call(lambda: multiply(first, next(second).t()), kept)
    scale = torch.ones((), device=operands.device)
    scaled = torch._scaled_mm  # noqa: SLF001 - the operator has no other name
    return Call(lambda: scaled(first, next(second).t(), scale, scale, out_dtype=torch.bfloat16), kept)
