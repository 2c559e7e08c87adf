"""Layers that work element by element, join what they read, or give a loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import prod
from typing import Any

from planner.domain.kernels import BACKWARD_DATA, FORWARD
from planner.domain.layers.record import (
    Attribute,
    Call,
    Layer,
    LayerKind,
    Lowering,
    Shape,
    Site,
    fixed,
    passes,
    per_sample,
    traffic,
)
from planner.errors import ParameterError

__all__ = ["KINDS"]

IMAGE_AXES = 3
"""Channels, height, width: a loss over an image sums over the channels of each pixel, any other over the last axis."""
LEAKY_SLOPE = 0.1
"""Of a leaky ReLU below zero, as in YOLO; no time depends on it."""


def _activation(site: Site, _lowering: Lowering) -> Iterator[Call]:
    elements = site.output_elements
    return passes("activation", site, traffic(elements, 2 * elements), traffic(elements, 3 * elements))


def _gated(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    *rest, features = inputs[0]
    if features % 2:
        raise ParameterError(f"layer {layer.name}: features in", "even: gate and what it multiplies", features)
    return (*rest, features // 2)


def _gated_activation(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield f(gate)·x: in one kernel 3E forward and 5E backward; in two, 2E + 3E, and 5E + 3E."""
    elements = site.output_elements
    forward, backward = (3, 5) if site.layer.attributes["fused"] else (5, 8)
    return passes("activation", site, traffic(elements, forward * elements), traffic(elements, backward * elements))


def _dropout(site: Site, _lowering: Lowering) -> Iterator[Call]:
    elements = site.output_elements
    work = traffic(elements, 2 * elements, elements)
    return passes("dropout", site, work, work)


def _added(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    for source, shape in zip(layer.inputs, inputs, strict=True):
        if shape != inputs[0]:
            rule = f"of the shape {inputs[0]} of {layer.inputs[0]}"
            raise ParameterError(f"layer {layer.name}: input {source}", rule, shape)
    return inputs[0]


def _add(site: Site, _lowering: Lowering) -> Iterator[Call]:
    elements = site.output_elements
    yield Call("add", FORWARD, traffic(elements, 3 * elements), fixed(len(site.inputs) - 1))


def _joined(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    """Join images and vectors along channels, sequences along features; the other sizes must agree."""
    axis = 1 if len(inputs[0]) == 2 else 0
    rest = [(*shape[:axis], *shape[axis + 1 :]) for shape in inputs]
    for source, shape, others in zip(layer.inputs, inputs, rest, strict=True):
        if len(shape) != len(inputs[0]) or others != rest[0]:
            rule = f"like {layer.inputs[0]}, which is {inputs[0]}, but for channels"
            raise ParameterError(f"layer {layer.name}: input {source}", rule, shape)
    return (*inputs[0][:axis], sum(shape[axis] for shape in inputs), *inputs[0][axis + 1 :])


def _concat(site: Site, _lowering: Lowering) -> Iterator[Call]:
    yield Call("concat", FORWARD, traffic(site.output_elements, 2 * site.output_elements))
    elements = sum(prod(shape) for shape, flows in zip(site.inputs, site.input_gradients, strict=True) if flows)
    if elements:
        yield Call("concat", BACKWARD_DATA, traffic(elements, 2 * elements))


def _loss(site: Site, _lowering: Lowering) -> Iterator[Call]:
    elements, shape = site.input_elements, site.inputs[0]
    rows = per_sample(elements // (shape[0] if len(shape) == IMAGE_AXES else shape[-1]))
    return passes("softmax", site, (*traffic(elements, 3 * elements), rows), (*traffic(elements, 2 * elements), rows))


def _activation_keeps(layer: Layer) -> tuple[bool, bool]:
    is_gelu = layer.attributes["function"] == "gelu"
    return is_gelu, not is_gelu


def _function(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    functions = {
        "relu": torch.nn.ReLU,
        "leaky_relu": lambda: torch.nn.LeakyReLU(LEAKY_SLOPE),
        "tanh": torch.nn.Tanh,
        "sigmoid": torch.nn.Sigmoid,
        "gelu": torch.nn.GELU,
    }
    return functions[str(layer.attributes["function"])]()


def _gate(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    """Return f(gate)·x of features that stand side by side."""
    function = getattr(torch.nn.functional, str(layer.attributes["function"]))

    def multiplied(joined: Any) -> Any:
        gate, wide = joined.chunk(2, dim=-1)
        return function(gate) * wide

    return multiplied


def _concatenation(torch: Any, _layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    axis = 2 if len(inputs[0]) == 2 else 1
    return lambda *values: torch.cat(values, dim=axis)


def _cross_entropy(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    weight, classes = layer.number("weight"), inputs[0][-1]

    def loss(logits: Any, targets: Any) -> Any:
        rows, numbers = logits.reshape(-1, classes), targets.reshape(-1)
        if len(rows) != len(numbers):  # of several losses, the one over fewest classes says how many targets there are
            numbers = numbers.repeat_interleave(len(rows) // len(numbers))
        entropy = torch.nn.functional.cross_entropy(rows, numbers)
        return entropy if math.isclose(weight, 1.0) else entropy * weight

    return loss


KINDS = {
    "activation": LayerKind(
        {"function": Attribute("relu|leaky_relu|tanh|sigmoid|gelu", "relu", "the function")},
        calls=_activation,
        keeps=_activation_keeps,
        divides=("channels", "space"),
        module=_function,
    ),
    "gated_activation": LayerKind(
        {
            "function": Attribute("silu|gelu", "silu", "the function of the gate, the first half of the features"),
            "fused": Attribute("bool", default=False, doc="whether one kernel does it all, and keeps its input alone"),
        },
        _gated,
        (1, 2),
        calls=_gated_activation,
        keeps=lambda _layer: (True, False),
        kept_besides=lambda site, itemsize: 0 if site.layer.attributes["fused"] else itemsize * site.output_elements,
        module=_gate,
    ),
    "dropout": LayerKind(
        {"rate": Attribute("float", 0.5, "fraction dropped")},
        calls=_dropout,
        kept_besides=lambda site, _itemsize: site.output_elements,
        divides=("channels", "space"),
        module=lambda torch, layer, _inputs: torch.nn.Dropout(layer.number("rate")),
    ),
    "add": LayerKind(
        {},
        _added,
        joins=True,
        calls=_add,
        divides=("channels", "space"),
        module=lambda _torch, _layer, _inputs: lambda first, *others: sum(others, first),
    ),
    "concat": LayerKind({}, _joined, joins=True, calls=_concat, divides=("channels", "space"), module=_concatenation),
    "flatten": LayerKind(
        {},
        lambda _layer, inputs: (prod(inputs[0]),),
        is_view=True,
        divides=("channels",),
        module=lambda torch, _layer, _inputs: torch.nn.Flatten(),
    ),
    "loss": LayerKind(
        {"weight": Attribute("float", 1.0, "weight of this softmax cross-entropy in the total")},
        lambda _layer, _inputs: (1,),
        calls=_loss,
        computes="fp32",
        module=_cross_entropy,
    ),
}
