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
from planner.probes.attention_kernels import fused_attention_call
from planner.probes.modules import PARTS
from planner.probes.operands import Operands
from planner.probes.points import Point
from planner.probes.precisions import autocast
from planner.probes.sequence_kernels import (
    attention_dropout,
    attention_product,
    attention_softmax,
    embedding,
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
        inner = Point(call.kind, call.direction, point.work, _heads(point), precision=point.precision)
        return _ATTENTION[call.kind](torch, inner, operands)
    return _OWN.get(call.kind, _module)(torch, point, operands)


def _heads(point: Point) -> dict[str, int]:
    call = _call(point)
    positions, joined = call.inputs[0]
    heads = call.layer.integer("heads")
    causal = int(bool(call.layer.attributes["causal"]))
    sizes = {"images": point.sub_batch, "positions": positions, "heads": heads}
    return {**sizes, "width": joined // (3 * heads), "causal": causal}


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
    elements = point.work["elements"]
    x, other = operands.warm(elements), operands.cold(elements)
    if point.direction == FORWARD:
        return Call(lambda: x + next(other))
    total = x.clone()
    return Call(lambda: total.add_(next(other)))


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

    def forward(leaves: Any) -> Any:
        if not mixed:
            return part(*leaves, *rest)
        with autocast(operands.device, point.precision):
            return part(*leaves, *rest)

    def run() -> tuple[Any, list[Any]]:
        leaves = [operands.warm(n, *shape).detach().requires_grad_() for shape in call.inputs]
        return forward(leaves), leaves

    if point.direction == FORWARD:
        leaves = run()[1]
        return Call(lambda: forward(leaves) if mixed else part(*leaves, *rest))
    trained = list(part.parameters()) if isinstance(part, torch.nn.Module) else []
    read = operands.itemsize * n * sum(prod(shape) for shape in call.inputs)
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


_OWN: dict[str, Callable[[Any, Point, Operands], Call]] = {
    "gemm": _product,
    "embedding": _embedding,
    "add": _sum,
    "update": _update,
}
