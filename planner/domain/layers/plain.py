"""Layers that work element by element, join what they read, or give a loss."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

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
LOSS_BYTES = 4
"""Of an element of the softmax that a loss keeps, at least."""


def _activation(site: Site, _lowering: Lowering) -> Iterator[Call]:
    elements = site.output_elements
    return passes("activation", site, traffic(elements, 2 * elements), traffic(elements, 3 * elements))


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
    passed = sum(prod(shape) for shape, flows in zip(site.inputs, site.input_gradients, strict=True) if flows)
    if passed:
        yield Call("concat", BACKWARD_DATA, traffic(passed, 2 * passed))


def _loss(site: Site, _lowering: Lowering) -> Iterator[Call]:
    elements, shape = site.input_elements, site.inputs[0]
    rows = per_sample(elements // (shape[0] if len(shape) == IMAGE_AXES else shape[-1]))
    return passes("softmax", site, (*traffic(elements, 3 * elements), rows), (*traffic(elements, 2 * elements), rows))


def _activation_keeps(layer: Layer) -> tuple[bool, bool]:
    is_gelu = layer.attributes["function"] == "gelu"
    return is_gelu, not is_gelu


KINDS = {
    "activation": LayerKind(
        {"function": Attribute("relu|leaky_relu|tanh|sigmoid|gelu", "relu", "the function")},
        calls=_activation,
        keeps=_activation_keeps,
    ),
    "dropout": LayerKind(
        {"rate": Attribute("float", 0.5, "fraction dropped")},
        calls=_dropout,
        kept_besides=lambda site, _itemsize: site.output_elements,
    ),
    "add": LayerKind({}, _added, joins=True, calls=_add),
    "concat": LayerKind({}, _joined, joins=True, calls=_concat),
    "flatten": LayerKind({}, lambda _layer, inputs: (prod(inputs[0]),), is_view=True),
    "loss": LayerKind(
        {"weight": Attribute("float", 1.0, "weight of this softmax cross-entropy in the total")},
        lambda _layer, _inputs: (1,),
        calls=_loss,
        kept_besides=lambda site, itemsize: max(itemsize, LOSS_BYTES) * site.input_elements,
        computes="fp32",
    ),
}
