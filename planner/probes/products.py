"""Timed products and convolutions: those of linear layers in the layouts of their directions, batched and of 8 bits.

Biases are part of the calls, which fuse them. On a GPU those of convolutions are not: behind cuDNN's kernels PyTorch
adds them, and sums their gradients, in passes of their own. Calls of a network's layers in 16 bits have the types and
casts of mixed precision (:mod:`planner.probes.mixed`), those of the generic design operands of one type.

Tensor cores take 8-bit operands with the summed dimension contiguous in both, so the second one is handed over as the
transpose of a matrix with that dimension last; a training step keeps transposed copies for it (NVIDIA Transformer
Engine documentation, "FP8 primer"). No bias is added to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, convolution_output
from planner.probes.mixed import gradients_in_fp32, is_mixed, kept, wide_tensors
from planner.probes.operands import Operands
from planner.probes.points import Point
from planner.probes.precisions import COMPUTING, NARROW
from planner.probes.timing import Call

__all__ = ["convolution", "has_kernel", "narrow_product", "product"]


def convolution(torch: Any, point: Point, operands: Operands) -> Call:
    """Return a convolution, or one of its gradients."""
    work = point.work
    inputs = (work["images"], work["in_c"], work["in_h"], work["in_w"])
    weights = (work["out_c"], work["in_c"] // work["groups"], work["k_h"], work["k_w"])
    stride, padding = [work["stride_h"], work["stride_w"]], [work["pad_h"], work["pad_w"]]
    adds = operands.device == "cpu" and _adds_bias(point)
    mixed = is_mixed(point, operands)
    reads_fp32 = mixed and wide_tensors(point, operands)[0]
    single, half = kept(operands, wide=mixed), operands.dtype
    weight = (single if point.direction == FORWARD else operands).cold(*weights)
    if point.direction == FORWARD:
        x, bias = kept(operands, wide=reads_fp32).warm(*inputs), single.warm(work["out_c"]) if adds else None
        convolve = torch.ops.aten.convolution
        rest = (stride, padding, [1, 1], False, [0, 0], work["groups"])
        if mixed:
            return Call(
                lambda: convolve(x.to(half), next(weight).to(half), None if bias is None else bias.to(half), *rest)
            )
        return Call(lambda: convolve(x, next(weight), bias, *rest))
    gradient = operands.warm(work["images"], work["out_c"], *convolution_output(work))
    activations, backward = operands.cold(*inputs), torch.ops.aten.convolution_backward
    masks = {BACKWARD_DATA: [True, False, False], BACKWARD_WEIGHT: [False, True, adds]}
    biases = [work["out_c"]] if adds else None
    options = (biases, stride, padding, [1, 1], False, [0, 0], work["groups"], masks[point.direction])
    kept_bytes = single.itemsize * math.prod(weights) if point.direction == BACKWARD_WEIGHT else 0

    def gradients() -> Any:
        return backward(gradient, next(activations), next(weight), *options)

    is_cast = mixed and (reads_fp32 or point.direction == BACKWARD_WEIGHT)
    return Call(gradients_in_fp32(torch, gradients) if is_cast else gradients, kept_bytes)


def product(torch: Any, point: Point, operands: Operands) -> Call:
    """Return a linear layer's product of a direction, x·Wᵀ + b, g·W or gᵀ·x, weights of shape (out, in); or batched."""
    m, n, k, batch = (point.work[name] for name in ("m", "n", "k", "batch"))
    if batch > 1:
        x, weight = operands.warm(batch, n, k), operands.cold(batch, m, k)
        return Call(lambda: x.bmm(next(weight).transpose(1, 2)))
    adds, mixed, half = _adds_bias(point), is_mixed(point, operands), operands.dtype
    reads_fp32 = mixed and wide_tensors(point, operands)[0]
    single, linear = kept(operands, wide=mixed), torch.nn.functional.linear
    if point.direction == FORWARD:
        x, bias = kept(operands, wide=reads_fp32).warm(n, k), single.warm(m) if adds else None
        weight = single.cold(m, k)
        if mixed:
            return Call(lambda: linear(x.to(half), next(weight).to(half), None if bias is None else bias.to(half)))
        return Call(lambda: linear(x, next(weight), bias))
    if point.direction == BACKWARD_DATA:
        gradient, weight = operands.warm(n, k), operands.cold(k, m)
        if reads_fp32:
            return Call(lambda: gradient.mm(next(weight)).to(torch.float32))
        return Call(lambda: gradient.mm(next(weight)))
    gradient, activations = operands.warm(k, m), operands.cold(k, n)

    def gradients() -> tuple[Any, ...]:
        return gradient.t().mm(next(activations)), gradient.sum(0) if adds else None

    return Call(gradients_in_fp32(torch, gradients) if mixed else gradients, single.itemsize * m * n)


def _adds_bias(point: Point) -> bool:
    """Tell whether the layer of a point adds a bias; all do of the generic design."""
    return point.call is None or bool(point.call.layer.attributes["bias"])


def has_kernel(precision: str, direction: str, work: Mapping[str, int]) -> bool:
    """Tell whether PyTorch has a kernel of a GPU for a linear layer's product; it has for all not of 8 bits."""
    if precision not in NARROW or "m" not in work:
        return True
    rows, columns, depth = _sizes(direction, work)
    own = COMPUTING[precision]
    return rows >= own.least_rows and columns % own.multiple == depth % own.multiple == 0


def _sizes(direction: str, work: Mapping[str, int]) -> tuple[int, int, int]:
    """Return rows of the first operand, columns of the second, and the summed dimension."""
    m, n, k = (work[name] for name in ("m", "n", "k"))
    return (n, m, k) if direction in (FORWARD, BACKWARD_DATA) else (m, n, k)


def narrow_product(torch: Any, point: Point, operands: Operands) -> Call:
    """Return a linear layer's product of a direction: int8 summed to int32, fp8 (e4m3) to bf16.

    Weights come cold, as saved activations do; what was just written comes warm.
    """
    rows, columns, depth = _sizes(point.direction, point.work)
    first, second = operands.warm(rows, depth), operands.cold(columns, depth)
    is_kept = point.direction not in (FORWARD, BACKWARD_DATA)
    kept_bytes = is_kept * COMPUTING[point.precision].result_bytes * rows * columns
    if point.precision == "int8":
        multiply = torch._int_mm  # noqa: SLF001 - the operator has no other name
        return Call(lambda: multiply(first, next(second).t()), kept_bytes)
    scale = torch.ones((), device=operands.device)
    multiply = torch._scaled_mm  # noqa: SLF001 - the operator has no other name
    return Call(lambda: multiply(first, next(second).t(), scale, scale, out_dtype=torch.bfloat16), kept_bytes)
