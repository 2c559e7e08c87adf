"""A timed PyTorch call of every kind and direction, given its point.

Calls go to the operators that autograd itself calls, outside of autograd; but what PyTorch composes of many, and batch
normalisation on a GPU, for which it chooses among cuDNN's kernels and its own, is done as a network's layer does it.
What a training step has just written comes warm, weights and saved activations come cold
(:mod:`planner.probes.operands`). Biases are part of the convolution and product calls, which fuse them. On a GPU those
of convolutions are not: behind cuDNN's kernels PyTorch adds them, and sums their gradients, in passes of their own.
Calls of a network's layers in 16 bits have the types and casts of mixed precision (:mod:`planner.probes.mixed`); those
of the generic design have operands of one type.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planner.domain.calls import LayerCall
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.network import INPUT, Layer
from planner.probes.layer_kernels import own_call
from planner.probes.mixed import gradients_in_fp32, is_mixed, kept, wide_tensors
from planner.probes.narrow_products import NARROW, narrow_product
from planner.probes.operands import Operands
from planner.probes.points import Point, convolution_output
from planner.probes.sequence_kernels import attention_product, attention_softmax, embedding, fused_attention_call
from planner.probes.timing import Call
from planner.probes.torch_package import import_torch

__all__ = ["reference_call", "timed_call"]

DROPOUT_RATE = 0.1
"""Of transformers, whose dropout moves most: a CPU draws at 0.5 half as fast, as it guesses branches wrong."""

_Made = Call | Callable[[], object]


def timed_call(point: Point, operands: Operands) -> Call:
    """Return the call of a point, ready to be timed."""
    torch, operands = import_torch(), operands.of(point.precision)
    if point.precision in NARROW:
        return narrow_product(torch, point, operands)
    is_own = point.call is not None and point.kind != "convolution"
    made = (own_call if is_own else _CALLS[point.kind])(torch, point, operands)
    return made if isinstance(made, Call) else Call(made)


def reference_call(operands: Operands) -> Call:
    """Return a call of about 3 ms whose time shows whether the machine is disturbed: arithmetic, then memory."""
    torch = import_torch()
    x, weight, copied = operands.warm(2, 64, 56, 56), operands.warm(64, 64, 3, 3), operands.warm(1 << 22)
    target = torch.empty_like(copied)
    return Call(lambda: (torch.conv2d(x, weight, None, 1, 1), target.copy_(copied)))


def _convolution(torch: Any, point: Point, operands: Operands) -> _Made:
    work = point.work
    height, width = convolution_output(work)
    inputs = (work["images"], work["in_c"], work["in_h"], work["in_w"])
    weights = (work["out_c"], work["in_c"] // work["groups"], work["k_h"], work["k_w"])
    outputs = (work["images"], work["out_c"], height, width)
    stride, padding = [work["stride_h"], work["stride_w"]], [work["pad_h"], work["pad_w"]]
    adds = operands.device == "cpu" and (point.call is None or bool(point.call.layer.attributes["bias"]))
    mixed = is_mixed(point, operands)
    reads_fp32 = mixed and wide_tensors(point, operands)[0]
    single, half = kept(operands, wide=mixed), operands.dtype
    weight = (single if point.direction == FORWARD else operands).cold(*weights)
    if point.direction == FORWARD:
        x, bias = kept(operands, wide=reads_fp32).warm(*inputs), single.warm(work["out_c"]) if adds else None
        convolution = torch.ops.aten.convolution
        rest = (stride, padding, [1, 1], False, [0, 0], work["groups"])
        if mixed:
            return lambda: convolution(
                x.to(half), next(weight).to(half), None if bias is None else bias.to(half), *rest
            )
        return lambda: convolution(x, next(weight), bias, *rest)
    gradient, saved = operands.warm(*outputs), operands.cold(*inputs)
    backward = torch.ops.aten.convolution_backward
    masks = {BACKWARD_DATA: [True, False, False], BACKWARD_WEIGHT: [False, True, adds]}
    biases = [work["out_c"]] if adds else None
    options = (biases, stride, padding, [1, 1], False, [0, 0], work["groups"], masks[point.direction])
    kept_bytes = single.itemsize * math.prod(weights) if point.direction == BACKWARD_WEIGHT else 0

    def made() -> Any:
        return backward(gradient, next(saved), next(weight), *options)

    is_cast = mixed and (reads_fp32 or point.direction == BACKWARD_WEIGHT)
    return Call(gradients_in_fp32(torch, made) if is_cast else made, kept_bytes)


def _product(torch: Any, point: Point, operands: Operands) -> _Made:
    """Make a linear layer's product in the layout of its direction: x·Wᵀ + b, g·W, gᵀ·x; weights of shape (out, in)."""
    if "heads" in point.geometry:
        return attention_product(torch, point, operands)
    m, n, k, batch = (point.work[name] for name in ("m", "n", "k", "batch"))
    if batch > 1:
        x, weight = operands.warm(batch, n, k), operands.cold(batch, m, k)
        return lambda: x.bmm(next(weight).transpose(1, 2))
    if point.direction == FORWARD:
        x, bias, weight = operands.warm(n, k), operands.warm(m), operands.cold(m, k)
        return lambda: torch.nn.functional.linear(x, next(weight), bias)
    if point.direction == BACKWARD_DATA:
        gradient, weight = operands.warm(n, k), operands.cold(k, m)
        return lambda: gradient.mm(next(weight))
    gradient, saved = operands.warm(k, m), operands.cold(k, n)
    return Call(lambda: (gradient.t().mm(next(saved)), gradient.sum(0)), operands.itemsize * m * n)


def _shape(point: Point) -> tuple[int, ...]:
    geometry = point.geometry
    return (geometry["images"], geometry["channels"], geometry["side"], geometry["side"])


def _activation(torch: Any, point: Point, operands: Operands) -> _Made:
    x = operands.warm(*_shape(point))
    if point.direction == FORWARD:
        return lambda: torch.relu(x)
    saved = operands.cold(*x.shape)
    return lambda: torch.ops.aten.threshold_backward(x, next(saved), 0)


def _max_pool(torch: Any, point: Point, operands: Operands) -> _Made:
    """Every call gets other numbers: the processor would learn where the largest of the same ones are."""
    aten = torch.ops.aten
    read = operands.cold(*_shape(point))
    rest = ([point.geometry["window"]] * 2, [point.geometry["stride"]] * 2, [0, 0], [1, 1], False)
    if point.direction == FORWARD:
        return lambda: aten.max_pool2d_with_indices(next(read), *rest)
    result, index = aten.max_pool2d_with_indices(next(read), *rest)
    further = (aten.max_pool2d_with_indices(next(read), *rest)[1] for _ in range(operands.graphs(index.nbytes) - 1))
    gradient, indices = operands.warm(*result.shape), itertools.cycle([index, *further])
    return lambda: aten.max_pool2d_with_indices_backward(gradient, next(read), *rest, next(indices))


def _average_pool(torch: Any, point: Point, operands: Operands) -> _Made:
    """Over the whole image as a mean, as global pooling is done; else over windows."""
    aten, geometry = torch.ops.aten, point.geometry
    x, saved = operands.warm(*_shape(point)), operands.cold(*_shape(point))
    rest = ([geometry["window"]] * 2, [geometry["stride"]] * 2, [0, 0], False, True, None)
    everywhere = geometry["window"] == geometry["side"]
    if point.direction == FORWARD:
        if everywhere:
            return lambda: x.mean((2, 3), keepdim=True)
        return lambda: aten.avg_pool2d(x, *rest)
    if everywhere:
        gradient = operands.warm(*x.shape[:2], 1, 1)
        return lambda: gradient.expand(x.shape) / geometry["side"] ** 2
    gradient = operands.warm(*aten.avg_pool2d(x, *rest).shape)
    return lambda: aten.avg_pool2d_backward(gradient, next(saved), *rest)


def _batch_norm(torch: Any, point: Point, operands: Operands) -> _Made:
    """Parameters and statistics are fp32 whatever the precision, as they are under mixed precision."""
    if operands.device != "cpu":
        return _by_layer(torch, point, operands, "batch_norm", _shape(point))
    aten, single = torch.ops.aten, operands.of("fp32")
    x, saved = operands.warm(*_shape(point)), operands.cold(*_shape(point))
    channels = x.shape[1]
    weight, bias = single.warm(channels), single.warm(channels)
    mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
    forward = (weight, bias, mean, variance, True, 0.1, 1e-5)
    if point.direction == FORWARD:
        return lambda: aten.native_batch_norm(x, *forward)
    _, kept_mean, kept_scale = aten.native_batch_norm(x, *forward)
    backward = (weight, mean, variance, kept_mean, kept_scale, True, 1e-5, [True, True, True])
    return lambda: aten.native_batch_norm_backward(x, next(saved), *backward)


def _by_layer(torch: Any, point: Point, operands: Operands, kind: str, shape: tuple[int, ...]) -> Call:
    """Return the call as a network's layer of a kind makes it that reads a tensor of a shape."""
    call = LayerCall(point.kind, point.direction, {}, Layer(kind, kind, (INPUT,)), (shape[1:],))
    return own_call(torch, replace(point, call=call, sub_batch=shape[0]), operands)


def _lrn(torch: Any, point: Point, operands: Operands) -> _Made:
    return _by_layer(torch, point, operands, "lrn", _shape(point))


def _dropout(torch: Any, point: Point, operands: Operands) -> _Made:
    x = operands.warm(*_shape(point))
    if point.direction == FORWARD:
        x = x.detach().requires_grad_()
        return lambda: torch.nn.functional.dropout(x, DROPOUT_RATE, training=True)
    if operands.device == "cpu":  # there PyTorch multiplies by a mask of the numbers' own type
        mask = operands.cold(*x.shape)
        return lambda: x * next(mask)
    drop, scale = torch.ops.aten.native_dropout_backward, 1 / (1 - DROPOUT_RATE)
    turns = operands.graphs(torch.bool.itemsize * x.numel())
    masks = itertools.cycle([torch.rand(x.shape, device=x.device) > DROPOUT_RATE for _ in range(turns)])
    return lambda: drop(x, next(masks), scale)


def _add(_torch: Any, point: Point, operands: Operands) -> _Made:
    x, other = operands.warm(*_shape(point)), operands.cold(*_shape(point))
    if point.direction == FORWARD:
        return lambda: x + next(other)
    total = x.clone()
    return lambda: total.add_(next(other))


def _concat(torch: Any, point: Point, operands: Operands) -> _Made:
    """Join four parts; backward each part of the gradient is a view."""
    images, channels, side, _ = _shape(point)
    quarter = channels // 4
    parts = [operands.warm(images, c, side, side) for c in (quarter, quarter, quarter, channels - 3 * quarter)]
    x = operands.warm(images, channels, side, side)
    if point.direction == FORWARD:
        return lambda: torch.cat(parts, 1)
    return lambda: [x.narrow(1, i * quarter, quarter) for i in range(4)]


def _bias(_torch: Any, point: Point, operands: Operands) -> _Made:
    """Add one to a convolution's output, in place; backward sum up over images and positions."""
    x, bias = operands.warm(*_shape(point)), operands.warm(point.geometry["channels"], 1, 1)
    if point.direction == FORWARD:
        result = x.clone()
        return lambda: result.add_(bias)
    return lambda: x.sum((0, 2, 3))


def _layer_norm(torch: Any, point: Point, operands: Operands) -> _Made:
    rows, features = point.geometry["rows"], point.geometry["features"]
    aten, x, saved = torch.ops.aten, operands.warm(rows, features), operands.cold(rows, features)
    weight, bias = operands.warm(features), operands.warm(features)
    if point.direction == FORWARD:
        return lambda: aten.native_layer_norm(x, [features], weight, bias, 1e-5)
    _, mean, scale = aten.native_layer_norm(x, [features], weight, bias, 1e-5)
    masks = [True, True, True]
    return lambda: aten.native_layer_norm_backward(x, next(saved), [features], mean, scale, weight, bias, masks)


def _gelu(torch: Any, point: Point, operands: Operands) -> _Made:
    x, saved = operands.warm(point.work["elements"]), operands.cold(point.work["elements"])
    if point.direction == FORWARD:
        return lambda: torch.nn.functional.gelu(x)
    return lambda: torch.ops.aten.gelu_backward(x, next(saved))


def _upsample(torch: Any, point: Point, operands: Operands) -> _Made:
    aten, shape = torch.ops.aten, _shape(point)
    larger = [2 * side for side in shape[2:]]
    x = operands.warm(*shape)
    if point.direction == FORWARD:
        return lambda: aten.upsample_nearest2d(x, larger)
    gradient = operands.warm(*shape[:2], *larger)
    return lambda: aten.upsample_nearest2d_backward(gradient, larger, list(shape))


def _first_position(torch: Any, point: Point, operands: Operands) -> _Made:
    geometry = point.geometry
    shape = (geometry["images"], geometry["positions"], geometry["features"])
    gradient = operands.warm(shape[0], shape[2])
    return lambda: torch.ops.aten.select_backward(gradient, shape, 1, 0)


def _copy(torch: Any, point: Point, operands: Operands) -> _Made:
    if point.direction != FORWARD:
        return _first_position(torch, point, operands)
    x = operands.cold(*_shape(point))
    return lambda: next(x).clone()


def _softmax(torch: Any, point: Point, operands: Operands) -> _Made:
    if "heads" in point.geometry:
        return attention_softmax(torch, point, operands)
    return _by_layer(torch, point, operands, "loss", (point.geometry["images"], point.geometry["classes"]))


def _update(torch: Any, point: Point, operands: Operands) -> _Made:
    """Stochastic gradient descent with momentum on one tensor of parameters."""
    parameter = torch.nn.Parameter(operands.warm(point.work["elements"]).clone())
    parameter.grad = operands.warm(point.work["elements"]) * 1e-6
    optimizer = torch.optim.SGD([parameter], lr=1e-3, momentum=0.9)
    step: Callable[[], object] = optimizer.step
    return step


_CALLS: Mapping[str, Callable[[Any, Point, Operands], _Made]] = {
    "attention": fused_attention_call,
    "convolution": _convolution,
    "gemm": _product,
    "activation": _activation,
    "max_pool": _max_pool,
    "average_pool": _average_pool,
    "batch_norm": _batch_norm,
    "lrn": _lrn,
    "dropout": _dropout,
    "add": _add,
    "bias": _bias,
    "concat": _concat,
    "embedding": embedding,
    "gelu": _gelu,
    "layer_norm": _layer_norm,
    "upsample": _upsample,
    "copy": _copy,
    "softmax": _softmax,
    "update": _update,
}
