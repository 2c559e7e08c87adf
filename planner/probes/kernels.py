"""A timed PyTorch call of every kind and direction, given its point.

Calls of the generic design go to the operators that autograd itself calls, outside of autograd; but what PyTorch
composes of many, and batch normalisation on a GPU, for which it chooses among cuDNN's kernels and its own, is done as a
network's layer does it. Layers of a network are timed by their own module, forward and through autograd, but for
products, convolutions and attention (:mod:`planner.probes.operands`), timed as those of the design are.
What a training step has just written comes warm, weights and saved activations cold (:mod:`planner.probes.operands`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from planner.domain.kernels import FORWARD
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.attentions import is_plain
from planner.domain.layers.record import INPUT, Layer, tensors_of
from planner.domain.network import LayerCall, Point
from planner.probes import operands as products
from planner.probes.layer_points import OPTIMIZERS
from planner.probes.operands import Operands, backward_call, is_mixed, kept, wide_tensors
from planner.probes.precisions import NARROW, autocast, import_torch
from planner.probes.timing import Call

TOGETHER_ELEMENTS = 1 << 20
"""Updates of fewer parameters are timed several at once: a step of an optimizer has a cost of its own."""
MOST_UPDATES = 16


def of_heads(point: Point, operands: Operands) -> Point:
    """Return the point of attention that a call of such a layer is.

    ``wide``: its softmax leaves fp32, as of scores under a mask, and always on a GPU.
    """
    call = _call(point)
    positions, features = call.inputs[0]
    heads, causal = call.layer.integer("heads"), int(bool(call.layer.attributes["causal"]))
    wide = int(is_mixed(point, operands) and (causal or operands.device != "cpu"))
    sizes = {"images": point.sub_batch, "positions": positions, "heads": heads}
    sizes |= {"width": features // (3 * heads), "causal": causal, "wide": wide}
    return Point(call.kind, call.direction, point.work, sizes, precision=point.precision)


def _call(point: Point) -> LayerCall:
    assert point.call is not None  # noqa: S101 - asked for such points only
    return point.call


def _embedding(torch: Any, point: Point, operands: Operands) -> Call:
    """Return a look-up, told apart by work: of positions once for all samples, their gradients summed."""
    call, work = _call(point), point.work
    features, positions = call.layer.integer("features"), call.inputs[0][0]
    elements, slope = call.work["elements"]
    if call.direction == FORWARD:
        table = "vocabulary" if slope else "positions"
        rows, tokens = call.layer.integer(table), (elements + slope * point.sub_batch) // features
        geometry = {"rows": rows, "tokens": tokens, "features": features, "summed": 1}
    else:
        rows, traffic = call.work["traffic"][0] // features, call.work["traffic"][1]
        summands = point.sub_batch if traffic == slope else 1
        tokens = positions if traffic == slope else positions * point.sub_batch
        geometry = {"rows": rows, "tokens": tokens, "features": features, "summed": summands}
    return products.embedding(torch, Point(call.kind, call.direction, work, geometry), operands)


def add(_torch: Any, point: Point, operands: Operands) -> Call:
    """Return a sum; of 16-bit numbers and fp32 with the cast of the gradient, as the layer has no call backward."""
    elements, call, wide = point.work["elements"], point.call, wide_tensors(point, operands)
    is_wide = is_other_wide = False  # of gradients of a layer's output or of weights, or of the layer's two inputs
    if call is not None:
        is_wide = is_other_wide = wide[-1] or (is_mixed(point, operands) and not call.depends_on_sub_batch)
        if call.layer.kind == "add" and call.direction == FORWARD:
            is_wide, is_other_wide = wide[0], wide[1]
    first, second = kept(operands, wide=is_wide).warm(elements), kept(operands, wide=is_other_wide).cold(elements)
    if point.direction != FORWARD:
        total = first.clone()
        return Call(lambda: total.add_(next(second)))
    if is_wide == is_other_wide:
        return Call(lambda: first + next(second))
    gradient = operands.of("fp32").warm(elements)
    return Call(lambda: (first + next(second), gradient.to(operands.dtype)))


def update(torch: Any, point: Point, operands: Operands) -> Call:
    """Return one step over the tensors of a layer's parameters; of the generic design with momentum on one tensor."""
    call, elements = point.call, point.work["elements"]
    sizes = tensors_of(call.layer, call.inputs[0]) if call else (elements,)
    together = max(1, min(MOST_UPDATES, TOGETHER_ELEMENTS // elements)) if call else 1
    parameters = []
    for size in sizes * together:
        parameter = torch.nn.Parameter(operands.warm(size).clone())
        parameter.grad = operands.warm(size) * 1e-6
        parameters.append(parameter)
    name, options = OPTIMIZERS[call.optimizer if call else "sgd-momentum"]
    optimizer = getattr(torch.optim, name)(parameters, **options)
    return Call(optimizer.step, calls=together)


def module_call(torch: Any, point: Point, operands: Operands) -> Call:
    """Return the forward or backward pass of a layer's module, under mixed precision where that is 16 bits."""
    call, n = _call(point), point.sub_batch
    with torch.device(operands.device):
        part = LAYER_KINDS[call.layer.kind].module(torch, call.layer, call.inputs)
        shape = call.inputs[0]
        rest = (torch.randint(0, shape[-1], (n, *shape[:-1])),) if call.layer.kind == "loss" else ()
    mixed = operands.dtype != torch.float32
    sources = [kept(operands, wide=wide) for wide in wide_tensors(point, operands)[:-1]]

    def forward(leaves: Any) -> Any:
        if not mixed:
            return part(*leaves, *rest)
        with autocast(operands.device, point.precision):
            return part(*leaves, *rest)

    def run() -> tuple[Any, list[Any]]:
        shapes = zip(sources, call.inputs, strict=True)
        leaves = [source.warm(n, *shape).detach().requires_grad_() for source, shape in shapes]
        return forward(leaves), leaves

    if point.direction == FORWARD:
        leaves = run()[1]
        return Call(lambda: forward(leaves) if mixed else part(*leaves, *rest))
    weights = list(part.parameters()) if isinstance(part, torch.nn.Module) else []
    read_bytes = n * sum(source.itemsize * prod(shape) for source, shape in zip(sources, call.inputs, strict=True))
    graphs = [run() for _ in range(operands.graphs(max(read_bytes, _saved_bytes(torch, run))))]
    inputs = ((result, [*leaves, *weights]) for result, leaves in graphs)
    return backward_call(torch, inputs, torch.ones_like(graphs[0][0]))


def _saved_bytes(torch: Any, run: Callable[[], object]) -> int:
    """Return what a graph saves for its backward pass [bytes]: of layers of many operators far more than is read."""
    tensors: dict[int, Any] = {}

    def note(tensor: Any) -> None:
        tensors[tensor.data_ptr()] = tensor.detach()  # which outlives the operators, so that no memory counts twice

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(tensor.nbytes for tensor in tensors.values())


OWN_CALLS: Mapping[str, Callable[[Any, Point, Operands], Call]] = {
    "convolution": products.convolution, "gemm": products.product, "embedding": _embedding, "add": add,
    "update": update,
}  # fmt: skip
"""Kind of a layer's call -> what makes it, where that is not the layer's module."""


DROPOUT_RATE = 0.1
"""Of transformers, whose dropout moves most: a CPU draws at 0.5 half as fast, as it guesses branches wrong."""

_Made = Call | Callable[[], object]


def timed_call(point: Point, operands: Operands) -> Call:
    """Return the call of a point, ready to be timed."""
    torch, operands = import_torch(), operands.of(point.precision)
    if point.precision in NARROW and point.kind == "convolution":
        return products.quantised_convolution(torch, point, operands)
    if point.precision in NARROW:
        return products.narrow_product(torch, point, operands)
    if point.call and point.call.layer.kind == "attention" and is_plain(point.call.layer):
        point = of_heads(point, operands)
    own: Mapping[str, _Maker] = OWN_CALLS if point.call else _GENERIC_CALLS
    makers = _ATTENTION_CALLS if "heads" in point.geometry else own
    call = makers.get(point.kind, module_call)(torch, point, operands)
    return call if isinstance(call, Call) else Call(call)


def reference_call(operands: Operands) -> Call:
    """Return a call of about 3 ms whose time shows whether the machine is disturbed: arithmetic, then memory."""
    torch = import_torch()
    x, weight, source = operands.warm(2, 64, 56, 56), operands.warm(64, 64, 3, 3), operands.warm(1 << 22)
    target = torch.empty_like(source)
    return Call(lambda: (torch.conv2d(x, weight, None, 1, 1), target.copy_(source)))


def _shape(point: Point) -> tuple[int, ...]:
    geometry = point.geometry
    return (geometry["images"], geometry["channels"], geometry["side"], geometry["side"])


def _activation(torch: Any, point: Point, operands: Operands) -> _Made:
    x = operands.warm(*_shape(point))
    if point.direction == FORWARD:
        return lambda: torch.relu(x)
    activations = operands.cold(*x.shape)
    return lambda: torch.ops.aten.threshold_backward(x, next(activations), 0)


def _max_pool(torch: Any, point: Point, operands: Operands) -> _Made:
    """Every call gets other numbers: the processor would learn where the largest of the same ones are."""
    aten = torch.ops.aten
    images = operands.cold(*_shape(point))
    rest = ([point.geometry["window"]] * 2, [point.geometry["stride"]] * 2, [0, 0], [1, 1], False)
    if point.direction == FORWARD:
        return lambda: aten.max_pool2d_with_indices(next(images), *rest)
    result, index = aten.max_pool2d_with_indices(next(images), *rest)
    further = (aten.max_pool2d_with_indices(next(images), *rest)[1] for _ in range(operands.graphs(index.nbytes) - 1))
    gradient, indices = operands.warm(*result.shape), itertools.cycle([index, *further])
    return lambda: aten.max_pool2d_with_indices_backward(gradient, next(images), *rest, next(indices))


def _average_pool(torch: Any, point: Point, operands: Operands) -> _Made:
    """Over the whole image as a mean, as global pooling is done; else over windows."""
    aten, geometry = torch.ops.aten, point.geometry
    x, activations = operands.warm(*_shape(point)), operands.cold(*_shape(point))
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
    return lambda: aten.avg_pool2d_backward(gradient, next(activations), *rest)


def _batch_norm(torch: Any, point: Point, operands: Operands) -> _Made:
    """Parameters and statistics are fp32 whatever the precision, as they are under mixed precision."""
    if operands.device != "cpu":
        return _by_layer("batch_norm", torch, point, operands)
    aten, single = torch.ops.aten, operands.of("fp32")
    x, activations = operands.warm(*_shape(point)), operands.cold(*_shape(point))
    channels = x.shape[1]
    weight, bias = single.warm(channels), single.warm(channels)
    mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
    forward = (weight, bias, mean, variance, True, 0.1, 1e-5)
    if point.direction == FORWARD:
        return lambda: aten.native_batch_norm(x, *forward)
    _, kept_mean, kept_scale = aten.native_batch_norm(x, *forward)
    backward = (weight, mean, variance, kept_mean, kept_scale, True, 1e-5, [True, True, True])
    return lambda: aten.native_batch_norm_backward(x, next(activations), *backward)


def _by_layer(kind: str, torch: Any, point: Point, operands: Operands) -> Call:
    classes = point.geometry.get("classes")
    shape = (point.geometry["images"], classes) if classes else _shape(point)
    call = LayerCall(point.kind, point.direction, {}, Layer(kind, kind, (INPUT,)), (shape[1:],))
    return module_call(torch, replace(point, call=call, sub_batch=shape[0]), operands)


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
    aten, x, activations = torch.ops.aten, operands.warm(rows, features), operands.cold(rows, features)
    weight, bias = operands.warm(features), operands.warm(features)
    if point.direction == FORWARD:
        return lambda: aten.native_layer_norm(x, [features], weight, bias, 1e-5)
    _, mean, scale = aten.native_layer_norm(x, [features], weight, bias, 1e-5)
    masks = [True, True, True]
    return lambda: aten.native_layer_norm_backward(x, next(activations), [features], mean, scale, weight, bias, masks)


def _gelu(torch: Any, point: Point, operands: Operands) -> _Made:
    x, activations = operands.warm(point.work["elements"]), operands.cold(point.work["elements"])
    if point.direction == FORWARD:
        return lambda: torch.nn.functional.gelu(x)
    return lambda: torch.ops.aten.gelu_backward(x, next(activations))


def _upsample(torch: Any, point: Point, operands: Operands) -> _Made:
    aten, shape = torch.ops.aten, _shape(point)
    larger = [2 * side for side in shape[2:]]
    x = operands.warm(*shape)
    if point.direction == FORWARD:
        return lambda: aten.upsample_nearest2d(x, larger)
    gradient = operands.warm(*shape[:2], *larger)
    return lambda: aten.upsample_nearest2d_backward(gradient, larger, list(shape))


def _copy(torch: Any, point: Point, operands: Operands) -> _Made:
    """Copy; backward the gradient of a sequence of which the first position alone was read."""
    if point.direction == FORWARD:
        x = operands.cold(*_shape(point))
        return lambda: next(x).clone()
    shape = tuple(point.geometry[key] for key in ("images", "positions", "features"))
    gradient = operands.warm(shape[0], shape[2])
    return lambda: torch.ops.aten.select_backward(gradient, shape, 1, 0)


_Maker = Callable[[Any, Point, Operands], _Made]
_ATTENTION_CALLS: Mapping[str, _Maker] = {
    "attention": products.fused_attention_call,
    "gemm": products.attention_product,
    "softmax": products.attention_softmax,
    "dropout": products.attention_dropout,
}
"""Of attention, by kind."""
_GENERIC_CALLS: Mapping[str, _Maker] = {
    **OWN_CALLS, "activation": _activation, "max_pool": _max_pool, "average_pool": _average_pool,
    "batch_norm": _batch_norm, "lrn": partial(_by_layer, "lrn"), "dropout": _dropout, "bias": _bias, "concat": _concat,
    "embedding": products.embedding, "gelu": _gelu, "layer_norm": _layer_norm, "upsample": _upsample, "copy": _copy,
    "softmax": partial(_by_layer, "loss"),
}  # fmt: skip
"""Of the generic design, by kind."""
