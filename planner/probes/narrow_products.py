"""Timed products of 8-bit numbers: PyTorch's operators for them, in the layouts that GPUs multiply.

Tensor cores take 8-bit operands with the summed dimension contiguous in both, so the second one is handed over as the
transpose of a matrix with that dimension last; a training step keeps transposed copies for it (NVIDIA Transformer
Engine documentation, "FP8 primer"). No bias is added. On a GPU the library has no kernel for some sizes
(:func:`has_kernel`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.domain.kernels import BACKWARD_DATA, FORWARD
from planner.probes.operands import Operands
from planner.probes.points import Point
from planner.probes.timing import Call

__all__ = ["NARROW", "has_kernel", "narrow_product"]

NARROW = ("int8", "fp8")
"""Precisions of 8 bits."""
RESULT_BYTES = {"int8": 4, "fp8": 2}
LEAST_ROWS, MULTIPLE = {"int8": 17, "fp8": 1}, {"int8": 8, "fp8": 16}
"""Of the first operand; of the summed dimension and of the columns of the second (checks of ``_int_mm`` and
``_scaled_mm`` in PyTorch, aten/src/ATen/native/cuda)."""


def has_kernel(precision: str, direction: str, work: Mapping[str, int]) -> bool:
    """Tell whether PyTorch has a kernel of a GPU for a linear layer's product; it has for all not of 8 bits."""
    if precision not in NARROW or "m" not in work:
        return True
    rows, columns, summed = _sizes(direction, work)
    return rows >= LEAST_ROWS[precision] and columns % MULTIPLE[precision] == summed % MULTIPLE[precision] == 0


def _sizes(direction: str, work: Mapping[str, int]) -> tuple[int, int, int]:
    """Return rows of the first operand, columns of the second, and the summed dimension."""
    m, n, k = (work[name] for name in ("m", "n", "k"))
    return (n, m, k) if direction in (FORWARD, BACKWARD_DATA) else (m, n, k)


def narrow_product(torch: Any, point: Point, operands: Operands) -> Call:
    """Return a linear layer's product of a direction: int8 summed to int32, fp8 (e4m3) to bf16.

    Weights come cold, as saved activations do; what was just written comes warm.
    """
    rows, columns, summed = _sizes(point.direction, point.work)
    first, second = operands.warm(rows, summed), operands.cold(columns, summed)
    kept = 0 if point.direction in (FORWARD, BACKWARD_DATA) else RESULT_BYTES[point.precision] * rows * columns
    if point.precision == "int8":
        multiply = torch._int_mm  # noqa: SLF001 - the operator has no other name
        return Call(lambda: multiply(first, next(second).t()), kept)
    scale = torch.ones((), device=operands.device)
    scaled = torch._scaled_mm  # noqa: SLF001 - the operator has no other name
    return Call(lambda: scaled(first, next(second).t(), scale, scale, out_dtype=torch.bfloat16), kept)
