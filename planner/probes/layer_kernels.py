"""Timed calls of a network's own layers, made as the module of the network makes them.

Products, convolutions and attention are timed as those of the generic design are; every other kind by the layer's own
module, forward and through autograd.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from planner.domain.calls import LayerCall
from planner.domain.kernels import BACKWARD_DATA, FORWARD
from planner.probes.mixed import gradients_in_fp32, is_mixed, kept, wide_tensors
from planner.probes.modules import PARTS
from planner.probes.operands import Operands
from planner.probes.points import Point
from planner.probes.precisions import autocast
from planner.probes.sequence_kernels import (
    attention_dropout,
    attention_product,
    attention_softmax,
    embedding,
    fused_attention_call,
)
from planner.probes.timing import Call

__all__ = ["OPTIMIZERS", "own_call"]

OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sgd": ("SGD", {"lr": 1e-3}),
    "sgd-momentum": ("SGD", {"lr": 1e-3, "momentum": 0.9}),
    "nesterov": ("SGD", {"lr": 1e-3, "momentum": 0.9, "nesterov": True}),
    "adagrad": ("Adagrad", {"lr": 1e-3}),
    "rmsprop": ("RMSprop", {"lr": 1e-3}),
    "adam": ("Adam", {"lr": 1e-3}),
}
"""Optimizer -> PyTorch's class and options."""
TOGETHER_ELEMENTS = 1 << 20
"""Updates of fewer parameters are timed several at once: a step of an optimizer has a cost of its own."""
MOST_TOGETHER = 16
_ATTENTION = {
    "attention": fused_attention_call,
    "gemm": attention_product,
    "softmax": attention_softmax,
    "dropout": attention_dropout,
}


def own_call(torch: Any, point: Point, operands: Operands) -> Call:
    """Return the call of a point that is a layer's."""
    call = point.call
    assert call is not None  # noqa: S101 - asked for such points only
    if call.layer.kind == "attention":
        geometry = _heads(point, operands)
        inner = Point(call.kind, call.direction, point.work, geometry, precision=point.precision)
        return _ATTENTION[call.kind](torch, inner, operands)
    return _OWN.get(call.kind, _module)(torch, point, operands)


def _heads(point: Point, operands: Operands) -> dict[str, int]:
    """Return the sizes of attention; ``wide``: softmax leaves fp32, as of scores under a mask, and always on a GPU."""
    call = _call(point)
    positions, joined = call.inputs[0]
    heads = call.layer.integer("heads")
    causal = int(bool(call.layer.attributes["causal"]))
    sizes = {"images": point.sub_batch, "positions": positions, "heads": heads}
    wide = int(is_mixed(point, operands) and (causal or operands.device != "cpu"))
    return {**sizes, "width": joined // (3 * heads), "causal": causal, "wide": wide}


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
        rows, moved = call.work["traffic"][0] // features, call.work["traffic"][1]
        summed = point.sub_batch if moved == slope else 1
        tokens = positions if moved == slope else positions * point.sub_batch
        geometry = {"rows": rows, "tokens": tokens, "features": features, "summed": summed}
    return embedding(torch, Point(call.kind, call.direction, work, geometry), operands)


def _sum(_torch: Any, point: Point, operands: Operands) -> Call:
    """Return a sum; of 16-bit numbers and fp32 with the cast of the gradient, as the layer has no call backward."""
    elements, wide = point.work["elements"], _wide_terms(point, operands)
    x, other = (kept(operands, wide=one) for one in wide)
    first, second = x.warm(elements), other.cold(elements)
    if point.direction != FORWARD:
        total = first.clone()
        return Call(lambda: total.add_(next(second)))
    if wide[0] == wide[1]:
        return Call(lambda: first + next(second))
    gradient = operands.of("fp32").warm(elements)
    return Call(lambda: (first + next(second), gradient.to(operands.dtype)))


def _wide_terms(point: Point, operands: Operands) -> tuple[bool, bool]:
    """Tell whether either term of a sum is fp32: inputs of a layer, or gradients of its output or of weights."""
    call, wide = _call(point), wide_tensors(point, operands)
    if call.layer.kind == "add" and call.direction == FORWARD:
        return wide[0], wide[1]
    of_weights = is_mixed(point, operands) and not call.depends_on_sub_batch
    return (wide[-1] or of_weights,) * 2


def _update(torch: Any, point: Point, operands: Operands) -> Call:
    """Return one step over the tensors of a layer's parameters."""
    call, elements = _call(point), point.work["elements"]
    name, options = OPTIMIZERS[call.optimizer]
    together = max(1, min(MOST_TOGETHER, TOGETHER_ELEMENTS // elements))
    parameters = []
    for size in _tensors(call, elements) * together:
        parameter = torch.nn.Parameter(operands.warm(size).clone())
        parameter.grad = operands.warm(size) * 1e-6
        parameters.append(parameter)
    optimizer = getattr(torch.optim, name)(parameters, **options)
    return Call(optimizer.step, calls=together)


def _tensors(call: LayerCall, elements: int) -> list[int]:
    if call.tensors == 1:
        return [elements]
    layer = call.layer
    if layer.kind in ("batch_norm", "layer_norm"):
        return [elements // 2] * 2
    small = layer.integer("channels" if layer.kind == "convolution" else "features")
    if layer.kind == "embedding":
        tables = [layer.integer(table) * small for table in ("vocabulary", "positions", "types")]
        return [size for size in tables if size]
    return [elements - small, small]


def _module(torch: Any, point: Point, operands: Operands) -> Call:
    """Return the forward or backward pass of a layer's module, under mixed precision where that is 16 bits."""
    call, n = _call(point), point.sub_batch
    with torch.device(operands.device):
        part = PARTS[call.layer.kind](torch, call.layer, call.inputs)
        rest = _targets(torch, call, n)
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
    trained = list(part.parameters()) if isinstance(part, torch.nn.Module) else []
    read = n * sum(source.itemsize * prod(shape) for source, shape in zip(sources, call.inputs, strict=True))
    graphs = [run() for _ in range(operands.graphs(max(read, _saved_bytes(torch, run))))]
    gradient, turn = torch.ones_like(graphs[0][0]), itertools.cycle(graphs)

    def backward() -> object:
        result, leaves = next(turn)
        return torch.autograd.grad(result, [*leaves, *trained], gradient, retain_graph=True)

    return Call(backward)


def _saved_bytes(torch: Any, run: Callable[[], object]) -> int:
    """Return what a graph saves for its backward pass [bytes]: of layers made of many operators far more than is read.

    Parameters
    ----------
    run : callable
        Makes the graph.
    """
    saved: dict[int, Any] = {}

    def note(tensor: Any) -> None:
        saved[tensor.data_ptr()] = tensor.detach()  # which outlives the operators, so that no memory counts twice

    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        run()
    return sum(tensor.nbytes for tensor in saved.values())


def _targets(torch: Any, call: LayerCall, n: int) -> tuple[Any, ...]:
    if call.layer.kind != "loss":
        return ()
    *positions, classes = call.inputs[0]
    return (torch.randint(0, classes, (n, *positions)),)


def _product(torch: Any, point: Point, operands: Operands) -> Call:
    """Make a linear layer's product in the layout of its direction: x·Wᵀ + b, g·W, gᵀ·x; weights of shape (out, in)."""
    m, n, k = (point.work[name] for name in ("m", "n", "k"))
    adds = bool(_call(point).layer.attributes["bias"])
    if is_mixed(point, operands):
        return _mixed_product(torch, point, operands, adds=adds)
    if point.direction == FORWARD:
        x, bias, weight = operands.warm(n, k), operands.warm(m) if adds else None, operands.cold(m, k)
        return Call(lambda: torch.nn.functional.linear(x, next(weight), bias))
    if point.direction == BACKWARD_DATA:
        gradient, weight = operands.warm(n, k), operands.cold(k, m)
        return Call(lambda: gradient.mm(next(weight)))
    gradient, saved = operands.warm(k, m), operands.cold(k, n)
    if not adds:
        return Call(lambda: gradient.t().mm(next(saved)), operands.itemsize * m * n)
    return Call(lambda: (gradient.t().mm(next(saved)), gradient.sum(0)), operands.itemsize * m * n)


def _mixed_product(torch: Any, point: Point, operands: Operands, *, adds: bool) -> Call:
    """Make the same of 16 bits, with the casts of weights, and of inputs where they are fp32."""
    m, n, k = (point.work[name] for name in ("m", "n", "k"))
    half, single, reads_fp32 = operands.dtype, operands.of("fp32"), wide_tensors(point, operands)[0]
    linear = torch.nn.functional.linear
    if point.direction == FORWARD:
        x, weight = kept(operands, wide=reads_fp32).warm(n, k), single.cold(m, k)
        if not adds:
            return Call(lambda: linear(x.to(half), next(weight).to(half)))
        bias = single.warm(m)
        return Call(lambda: linear(x.to(half), next(weight).to(half), bias.to(half)))
    if point.direction == BACKWARD_DATA:
        gradient, weight = operands.warm(n, k), operands.cold(k, m)
        if not reads_fp32:
            return Call(lambda: gradient.mm(next(weight)))
        return Call(lambda: gradient.mm(next(weight)).to(torch.float32))
    gradient, saved = operands.warm(k, m), operands.cold(k, n)

    def made() -> tuple[Any, ...]:
        return gradient.t().mm(next(saved)), gradient.sum(0) if adds else None

    return Call(gradients_in_fp32(torch, made), single.itemsize * m * n)


_OWN: dict[str, Callable[[Any, Point, Operands], Call]] = {
    "gemm": _product,
    "embedding": _embedding,
    "add": _sum,
    "update": _update,
}
