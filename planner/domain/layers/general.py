"""Layers of no kind of their own, as models that are read have them: other shapes, any operator, products of inputs.

=================  ========================================  ==========================================
call               forward                                   backward
=================  ========================================  ==========================================
reshape            0, a view                                 0; of a part, clearing and copying
operator           elements moved, as the layer says         the same
product            batch products (m x k)·(k x n)            one for each input
=================  ========================================  ==========================================
"""

from __future__ import annotations

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
        (per_sample(site.output_elements), per_sample(layer.integer(key)), fixed(0)) for key in ("forward", "backward")
    )
    return passes(str(layer.attributes["kernel"]), site, forward, backward)


def _multiplied(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
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
            yield Call("gemm", direction, (*map(fixed, sides), per_sample(batch)))


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
KINDS = {
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
        _multiplied,
        joins=True,
        calls=_product,
        macs=lambda site: prod(site.layer.integer(key) for key in _PRODUCT),
        multiplies_weights=False,
        keeps=lambda _layer: (True, False),
        computes="16 bits",
        module=_product_module,
    ),
}
