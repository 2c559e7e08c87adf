"""Layers that work element by element, join what they read, or give a loss.

Behind them layers of no kind of their own, as models that are read have them: other shapes, any operator, products.

=================  ========================================  ==========================================
call               forward                                   backward
=================  ========================================  ==========================================
reshape            0, a view                                 0; of a part, clearing and copying
operator           elements moved, as the layer says         the same
product            batch products (m x k)·(k x n)            one for each input
=================  ========================================  ==========================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import prod
from typing import Any

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.layers import record
from planner.domain.layers.record import Attribute, Call, Layer, LayerKind, Lowering, Shape, Site, passes, traffic
from planner.errors import ParameterError

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
    yield Call("add", FORWARD, traffic(elements, 3 * elements), record.fixed(len(site.inputs) - 1))


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
    rows = record.per_sample(elements // (shape[0] if len(shape) == IMAGE_AXES else shape[-1]))
    return passes("softmax", site, (*traffic(elements, 3 * elements), rows), (*traffic(elements, 2 * elements), rows))


def _multiplied(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    """Return the shape of the first input; the second has it, or one number a channel."""
    values, gate = inputs[0], inputs[-1]
    if len(inputs) != 2 or gate not in (values, (values[0], *(1 for _ in values[1:]))):
        rule = f"two, the second of the shape {values} of {layer.inputs[0]}, or of 1 a channel"
        raise ParameterError(f"layer {layer.name}: inputs", rule, inputs)
    return values


def _multiply(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield the product; backward one for each input, summed over the image where the second has one number a channel.

    Forward E + g + E for g numbers of the second; backward 2E + g for the first, 3E for the second and E + g to sum.
    """
    elements, gate = site.output_elements, prod(site.inputs[1])
    yield Call("add", FORWARD, traffic(elements, 2 * elements + gate))
    if site.input_gradients[0]:
        yield Call("add", BACKWARD_DATA, traffic(elements, 2 * elements + gate))
    if site.input_gradients[1]:
        yield Call("add", BACKWARD_DATA, traffic(elements, 3 * elements))
        if gate < elements:
            yield Call("average_pool", BACKWARD_DATA, traffic(elements, elements + gate))


def _layer_scale(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield 2E; backward 2E of the input, and 3E and a sum over E of the parameters."""
    elements = site.output_elements
    yield Call("add", FORWARD, traffic(elements, 2 * elements))
    if site.trained:
        yield Call("add", BACKWARD_DATA, traffic(elements, 3 * elements))
    yield Call("bias", BACKWARD_WEIGHT, traffic(elements, elements))
    if site.input_gradients[0]:
        yield Call("add", BACKWARD_DATA, traffic(elements, 2 * elements))


def _drop_path(site: Site, _lowering: Lowering) -> Iterator[Call]:
    work = traffic(site.output_elements, 2 * site.output_elements)
    return passes("add", site, work, work)


def _activation_keeps(layer: Layer) -> tuple[bool, bool]:
    is_of_input = layer.attributes["function"] in ("gelu", "silu", "hard_swish", "hard_sigmoid")
    return is_of_input, not is_of_input


def _function(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    functions = {
        "relu": torch.nn.ReLU, "leaky_relu": lambda: torch.nn.LeakyReLU(LEAKY_SLOPE), "tanh": torch.nn.Tanh,
        "sigmoid": torch.nn.Sigmoid, "gelu": torch.nn.GELU, "silu": torch.nn.SiLU, "hard_swish": torch.nn.Hardswish,
        "hard_sigmoid": torch.nn.Hardsigmoid,
    }  # fmt: skip
    return functions[str(layer.attributes["function"])]()


def _gate(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    """Return f(gate)·x of features that stand side by side."""
    function = getattr(torch.nn.functional, str(layer.attributes["function"]))

    def multiplied(joined: Any) -> Any:
        gate, wide = joined.chunk(2, dim=-1)
        return function(gate) * wide

    return multiplied


def _layer_scale_module(torch: Any, _layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    class LayerScale(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            shape = (inputs[0][0], 1, 1) if len(inputs[0]) == IMAGE_AXES else inputs[0][-1:]
            self.scale = torch.nn.Parameter(torch.full(shape, 1e-6))

        def forward(self, values: Any) -> Any:
            return values * self.scale

    return LayerScale()


def _drop_path_module(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return what drops samples and makes up for it in the others."""
    rate, ones = layer.number("rate"), (1,) * len(inputs[0])
    return lambda values: values * (torch.rand(len(values), *ones, device=values.device) >= rate).div(1 - rate)


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
        {
            "function": Attribute(
                "relu|leaky_relu|tanh|sigmoid|gelu|silu|hard_swish|hard_sigmoid", "relu", "the function"
            )
        },
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
    "multiply": LayerKind(
        {},
        _multiplied,
        joins=True,
        calls=_multiply,
        keeps=lambda _layer: (True, False),
        divides=("channels",),
        module=lambda _torch, _layer, _inputs: lambda values, gate: values * gate,
    ),
    "layer_scale": LayerKind(
        parameters=lambda _layer, shape: (shape[0] if len(shape) == IMAGE_AXES else shape[-1],),
        calls=_layer_scale,
        keeps=lambda _layer: (True, False),
        keeps_for_weights=True,
        computes="fp32",
        divides=("channels", "space"),
        module=_layer_scale_module,
    ),
    "drop_path": LayerKind(
        {"rate": Attribute("float", 0.2, "fraction of samples dropped, each as a whole")},
        calls=_drop_path,
        divides=("channels", "space"),
        module=_drop_path_module,
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


def _shaped(layer: Layer, _inputs: tuple[Shape, ...]) -> Shape:
    sizes = [layer.integer(key) for key in _SIZES]
    if sizes[2] and not sizes[1]:
        raise ParameterError(f"layer {layer.name}: third", "0 where second is 0", sizes[2])
    return tuple(size for size in sizes if size)


def _reshaped(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    shape = _shaped(layer, inputs)
    if prod(shape) > prod(inputs[0]):
        raise ParameterError(f"layer {layer.name}: elements", f"at most the {prod(inputs[0])} it reads", prod(shape))
    return shape


def _reshape(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Forward is a view; of a part, backward clears the gradient of the whole and copies that of the part."""
    if site.has_gradient and site.output_elements < site.input_elements:
        moved_elements = site.input_elements + 2 * site.output_elements
        yield Call("copy", BACKWARD_DATA, traffic(site.input_elements, moved_elements))


def _operator(site: Site, _lowering: Lowering) -> Iterator[Call]:
    layer = site.layer
    forward, backward = (
        (record.per_sample(site.output_elements), record.per_sample(layer.integer(key)), record.fixed(0))
        for key in ("forward", "backward")
    )
    return passes(str(layer.attributes["kernel"]), site, forward, backward)


def _product_of_inputs(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    m, n, k, batch = (layer.integer(key) for key in _PRODUCT)
    wanted = (batch * m * k, batch * k * n)
    if tuple(map(prod, inputs)) != wanted:
        raise ParameterError(f"layer {layer.name}: inputs", f"two of {wanted} elements", tuple(map(prod, inputs)))
    return (batch * m, n)


def _product(site: Site, _lowering: Lowering) -> Iterator[Call]:
    m, n, k, batch = (site.layer.integer(key) for key in _PRODUCT)
    products = ((FORWARD, True, (m, n, k)), *zip(
        (BACKWARD_DATA,) * 2, site.input_gradients, ((m, k, n), (k, n, m)), strict=True
    ))  # fmt: skip
    for direction, is_made, sides in products:
        if is_made:
            yield Call("gemm", direction, (*map(record.fixed, sides), record.per_sample(batch)))


def _reshape_module(_torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    shape = _reshaped(layer, inputs)
    return lambda values: values.flatten(1)[:, : prod(shape)].reshape(-1, *shape)


def _operator_module(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return what reads the inputs and writes as many elements as the operator, with as many parameters."""
    shape, parameters = _shaped(layer, inputs), layer.integer("parameters")

    class Operator(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(parameters)) if parameters else None

        def forward(self, *values: Any) -> Any:
            flat = torch.cat([one.flatten(1) for one in values], dim=1)
            copies = -(-prod(shape) // flat.shape[1])
            result = flat.repeat(1, copies)[:, : prod(shape)].reshape(-1, *shape)
            return result if self.weight is None else result * self.weight.mean()

    return Operator()


def _product_module(_torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    m, n, k, batch = (layer.integer(key) for key in _PRODUCT)
    return lambda first, second: (first.reshape(-1, m, k) @ second.reshape(-1, k, n)).reshape(-1, batch * m, n)


_SIZES, _PRODUCT = ("first", "second", "third"), ("m", "n", "k", "batch")
_SHAPE = {
    "first": Attribute("int", None, "first size of the output"),
    "second": Attribute("int", 0, "second size of the output; 0: none", least=0),
    "third": Attribute("int", 0, "third size of the output; 0: none", least=0),
}
KINDS |= {
    "reshape": LayerKind(_SHAPE, _reshaped, calls=_reshape, is_view=True, module=_reshape_module),
    "operator": LayerKind(
        {
            **_SHAPE,
            "kernel": Attribute("add|copy", "add", "kernels whose speed it has"),
            "forward": Attribute("int", None, "elements read and written forward, per sample", least=0),
            "backward": Attribute("int", None, "elements read and written backward, per sample", least=0),
            "kept": Attribute("int", 0, "elements kept besides inputs, per sample", least=0),
            "keeps": Attribute("bool", default=False, doc="whether inputs are kept for the backward pass"),
            "parameters": Attribute("int", 0, "trained parameters", least=0),
        },
        _shaped,
        joins=None,
        parameters=lambda layer, _shape: (layer.integer("parameters"),) * (layer.integer("parameters") > 0),
        calls=_operator,
        keeps=lambda layer: (bool(layer.attributes["keeps"]), False),
        kept_besides=lambda site, itemsize: itemsize * site.layer.integer("kept"),
        module=_operator_module,
    ),
    "product": LayerKind(
        {
            "m": Attribute("int", None, "rows of the first input"),
            "n": Attribute("int", None, "columns of the second input"),
            "k": Attribute("int", None, "columns of the first input and rows of the second"),
            "batch": Attribute("int", 1, "products of a sample"),
        },
        _product_of_inputs,
        joins=True,
        calls=_product,
        macs=lambda site: prod(site.layer.integer(key) for key in _PRODUCT),
        multiplies_weights=False,
        keeps=lambda _layer: (True, False),
        computes="16 bits",
        module=_product_module,
    ),
}
