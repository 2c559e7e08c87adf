"""Timed calls of a network's own layers, made as the module of the network makes them.

Products, convolutions and attention are timed as those of the generic design are; every other kind by the layer's own
module, forward and through autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from planner.domain.calls import LayerCall
from planner.domain.kernels import FORWARD
from planner.domain.layers import LAYER_KINDS
from planner.probes.mixed import is_mixed, kept, wide_tensors
from planner.probes.operands import Operands, backward_call
from planner.probes.points import Point
from planner.probes.precisions import autocast
from planner.probes.products import convolution, product
from planner.probes.sequence_kernels import embedding
from planner.probes.timing import Call

__all__ = ["OPTIMIZERS", "OWN_CALLS", "add", "module_call", "of_heads", "update"]

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
    return embedding(torch, Point(call.kind, call.direction, work, geometry), operands)


def add(_torch: Any, point: Point, operands: Operands) -> Call:
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
    call, wide = point.call, wide_tensors(point, operands)
    if call is None:
        return False, False
    if call.layer.kind == "add" and call.direction == FORWARD:
        return wide[0], wide[1]
    of_weights = is_mixed(point, operands) and not call.depends_on_sub_batch
    return (wide[-1] or of_weights,) * 2


def update(torch: Any, point: Point, operands: Operands) -> Call:
    """Return one step over the tensors of a layer's parameters; of the generic design with momentum on one tensor."""
    call, elements = point.call, point.work["elements"]
    sizes = LAYER_KINDS[call.layer.kind].parameters(call.layer, call.inputs[0]) if call else (elements,)
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
    weights = list(part.parameters()) if isinstance(part, torch.nn.Module) else []
    read_bytes = n * sum(source.itemsize * prod(shape) for source, shape in zip(sources, call.inputs, strict=True))
    graphs = [run() for _ in range(operands.graphs(max(read_bytes, _saved_bytes(torch, run))))]
    inputs = ((result, [*leaves, *weights]) for result, leaves in graphs)
    return backward_call(torch, inputs, torch.ones_like(graphs[0][0]))


def _saved_bytes(torch: Any, run: Callable[[], object]) -> int:
    """Return what a graph saves for its backward pass [bytes]: of layers made of many operators far more than is read.

    Parameters
    ----------
    run : callable
        Makes the graph.
    """
    tensors: dict[int, Any] = {}

    def note(tensor: Any) -> None:
        tensors[tensor.data_ptr()] = tensor.detach()  # which outlives the operators, so that no memory counts twice

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        run()
    return sum(tensor.nbytes for tensor in tensors.values())


def _targets(torch: Any, call: LayerCall, n: int) -> tuple[Any, ...]:
    if call.layer.kind != "loss":
        return ()
    *positions, classes = call.inputs[0]
    return (torch.randint(0, classes, (n, *positions)),)


OWN_CALLS: Mapping[str, Callable[[Any, Point, Operands], Call]] = {
    "convolution": convolution,
    "gemm": product,
    "embedding": _embedding,
    "add": add,
    "update": update,
}
"""Kind of a layer's call -> what makes it, where that is not the layer's module."""
