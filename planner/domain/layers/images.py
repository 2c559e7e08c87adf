"""Layers of images: pooling, resizing, normalisation over channels and batches, pixels as positions and back.

Pixels are a view of the image, as networks that normalise over channels are computed channels last.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from planner.domain.layers.products import padded
from planner.domain.layers.record import Attribute, Call, Layer, LayerKind, Lowering, Shape, Site, passes, traffic
from planner.errors import ParameterError

__all__ = ["KINDS"]

INDEX_BYTES = 8
"""Of a position in a pooling window, as PyTorch keeps it."""


def _pooled(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    """Sizes are rounded down, or up where the layer says ``ceil``.

    Then a last window that would start beyond the input and its leading padding is dropped, as Caffe and PyTorch do.
    """
    window, stride, padding = layer.pair("window"), layer.pair("stride"), layer.pair("padding")
    if padding[0] >= window[0] or padding[1] >= window[1]:
        raise ParameterError(f"layer {layer.name}: padding", f"smaller than the window {window}", padding)
    whole = padded(layer, inputs[0], "window")
    if not layer.attributes["ceil"]:
        return (inputs[0][0], *((whole[axis] - window[axis]) // stride[axis] + 1 for axis in (0, 1)))
    sides = []
    for axis, side in enumerate(inputs[0][1:]):
        count = -((window[axis] - whole[axis]) // stride[axis]) + 1
        starts_outside = (count - 1) * stride[axis] >= side + padding[axis]
        sides.append(count - 1 if starts_outside else count)
    return (inputs[0][0], *sides)


def _pool(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Pooling counts as many elements as it reads: its work follows the larger side."""
    of_maximum = _is_of_maximum(site)
    index_bytes = 4 * site.output_elements if of_maximum else 0
    work = traffic(site.input_elements, site.input_elements + site.output_elements, index_bytes)
    return passes("max_pool" if of_maximum else "average_pool", site, work, work)


def _is_of_maximum(site: Site) -> bool:
    return site.layer.attributes.get("mode") == "max"


def _pooling(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    kind = torch.nn.MaxPool2d if layer.attributes["mode"] == "max" else torch.nn.AvgPool2d
    ceil = bool(layer.attributes["ceil"])
    return kind(layer.pair("window"), layer.pair("stride"), layer.pair("padding"), ceil_mode=ceil)


def _upsample(site: Site, _lowering: Lowering) -> Iterator[Call]:
    work = traffic(site.output_elements, site.input_elements + site.output_elements)
    return passes("upsample", site, work, work)


def _batch_norm(torch: Any, _layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    return (torch.nn.BatchNorm2d if len(inputs[0]) == 3 else torch.nn.BatchNorm1d)(inputs[0][0])


def _lrn_kept(site: Site, itemsize: int) -> int:
    """Squares, padded, their mean and its power."""
    return itemsize * (3 * site.output_elements + (site.layer.integer("window") - 1) * prod(site.output[1:]))


def _three_and_five(kind: str, site: Site) -> Iterator[Call]:
    elements = site.output_elements
    return passes(kind, site, traffic(elements, 3 * elements), traffic(elements, 5 * elements))


def _image_of(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    (positions, features), height = inputs[0], layer.integer("height")
    if positions % height:
        raise ParameterError(f"layer {layer.name}: height", f"a divisor of the {positions} positions it reads", height)
    return (features, height, positions // height)


KINDS = {
    "pool": LayerKind(
        {
            "mode": Attribute("max|average", "max", "what is taken of a window"),
            "window": Attribute("pair", None, "height and width of the window"),
            "stride": Attribute("pair", None, "step of the window"),
            "padding": Attribute("pair", 0, "border on each side", least=0),
            "ceil": Attribute("bool", default=False, doc="round the output size up, as Caffe does"),
        },
        _pooled,
        (3,),
        calls=_pool,
        keeps=lambda _layer: (True, False),
        kept_besides=lambda site, _itemsize: INDEX_BYTES * site.output_elements * _is_of_maximum(site),
        window="window",
        divides=("channels", "space"),
        module=_pooling,
    ),
    "global_pool": LayerKind(
        {},
        lambda _layer, inputs: (inputs[0][0], 1, 1),
        (3,),
        calls=_pool,
        divides=("channels",),
        module=lambda torch, _layer, _inputs: torch.nn.AdaptiveAvgPool2d(1),
    ),
    "upsample": LayerKind(
        {"factor": Attribute("int", 2, "copies of every element along each axis")},
        lambda layer, inputs: (inputs[0][0], *(layer.integer("factor") * side for side in inputs[0][1:])),
        (3,),
        calls=_upsample,
        computes="fp32 on gpu",
        divides=("channels", "space"),
        module=lambda torch, layer, _inputs: torch.nn.Upsample(scale_factor=layer.integer("factor"), mode="nearest"),
    ),
    "sequence": LayerKind(
        {},
        lambda _layer, inputs: (inputs[0][1] * inputs[0][2], inputs[0][0]),
        (3,),
        is_view=True,
        divides=("channels",),
        module=lambda _torch, _layer, _inputs: lambda image: image.flatten(2).transpose(1, 2),
    ),
    "image": LayerKind(
        {"height": Attribute("int", None, "rows of the image")},
        _image_of,
        (2,),
        is_view=True,
        divides=("channels",),
        module=lambda _torch, layer, _inputs: (
            lambda sequence: sequence.transpose(1, 2).unflatten(2, (layer.integer("height"), -1))
        ),
    ),
    "batch_norm": LayerKind(
        ranks=(1, 3),
        parameters=lambda _layer, shape: (shape[0],) * 2,  # scale and shift; the running statistics are not trained
        calls=lambda site, _lowering: _three_and_five("batch_norm", site),
        keeps=lambda _layer: (True, False),
        divides=("channels", "space"),
        module=_batch_norm,
    ),
    "lrn": LayerKind(
        {"window": Attribute("int", 5, "channels normalised over")},
        ranks=(3,),
        calls=lambda site, _lowering: _three_and_five("lrn", site),
        keeps=lambda _layer: (True, False),
        kept_besides=_lrn_kept,
        computes="fp32",
        divides=("space",),
        module=lambda torch, layer, _inputs: torch.nn.LocalResponseNorm(layer.integer("window")),
    ),
}
