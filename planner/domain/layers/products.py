"""Convolutions, transposed ones, fully connected layers, and what else images go through.

That is pooling, resizing, normalisation over channels and batches, and pixels as positions and back.
Pixels are a view of the image, as networks that normalise over channels are computed channels last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.layers import record
from planner.domain.layers.record import Amount, Attribute, Call, Layer, LayerKind, Lowering, Shape, Share, Site, passes
from planner.errors import ParameterError


def needs_columns(layer: Layer) -> bool:
    """Tell whether a layer needs im2col: a 1 x 1 convolution of stride 1 without padding has its columns as input."""
    if layer.kind != "convolution":
        return False
    return not (layer.pair("kernel") == layer.pair("stride") == (1, 1) and layer.pair("padding") == (0, 0))


def padded(layer: Layer, shape: Shape, window: str, spans: tuple[int, ...] = ()) -> tuple[int, int]:
    """Return the sides of a padded input; ParameterError where the window of that attribute, or its span, is larger."""
    sides, padding = spans or layer.pair(window), layer.pair("padding")
    sides_padded = (shape[1] + 2 * padding[0], shape[2] + 2 * padding[1])
    if sides[0] > sides_padded[0] or sides[1] > sides_padded[1]:
        raise ParameterError(f"layer {layer.name}: {window}", f"at most the padded input {sides_padded}", sides)
    return sides_padded


def _convolved(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    """Round sizes down: x' = ⌊(x + 2p - d(c - 1) - 1) / s⌋ + 1; side x, padding p, kernel c, dilation d, step s."""
    channels, groups = layer.integer("channels"), layer.integer("groups")
    for what, count in (("channels in", inputs[0][0]), ("channels", channels)):
        if count % groups:
            raise ParameterError(f"layer {layer.name}: {what}", f"divisible by groups = {groups}", count)
    kernel, dilation = layer.pair("kernel"), layer.pair("dilation")
    spans = tuple(step * (side - 1) + 1 for side, step in zip(kernel, dilation, strict=True))
    sides = zip(padded(layer, inputs[0], "kernel", spans), spans, layer.pair("stride"), strict=True)
    return (channels, *((side - kernel) // stride + 1 for side, kernel, stride in sides))


def _convolution_parameters(layer: Layer, shape: Shape) -> tuple[int, ...]:
    """m·(m_in/g)·c_h·c_w, and m of a bias."""
    channels = layer.integer("channels")
    weights = channels * (shape[0] // layer.integer("groups")) * prod(layer.pair("kernel"))
    return (weights, channels) if layer.attributes["bias"] else (weights,)


def _linear_parameters(layer: Layer, shape: Shape) -> tuple[int, ...]:
    """m_in·m, unless they are those of the embedding, and m of a bias."""
    features = layer.integer("features")
    weights = () if layer.attributes["tied"] else (shape[-1] * features,)
    return (*weights, features) if layer.attributes["bias"] else weights


def _convolution(site: Site, lowering: Lowering) -> Iterator[Call]:
    yield from _im2col(site, per_image=lowering.per_image) if lowering.im2col else _direct(site)
    yield from _bias(site)


def _direct(site: Site) -> Iterator[Call]:
    layer = site.layer
    kernel, spread = layer.pair("kernel"), zip(layer.pair("padding"), layer.pair("dilation"), strict=True)
    # A spread kernel has the output of a dense one whose input is padded by less.
    padding = [max(0, pad - (step - 1) * (side - 1) // 2) for side, (pad, step) in zip(kernel, spread, strict=True)]
    geometry = (*site.inputs[0], layer.integer("channels"), *kernel, *layer.pair("stride"), *padding)
    for direction in _directions(site):
        yield Call(
            "convolution", direction, (record.per_sample(1), *map(record.fixed, (*geometry, layer.integer("groups"))))
        )


def _im2col(site: Site, *, per_image: bool) -> Iterator[Call]:
    """Forward (m/g x c²m_in/g)·(c²m_in/g x qn), backward-data c²m_in/g x qn, backward-weight m/g x c²m_in/g; g each."""
    groups, kernel = site.layer.integer("groups"), prod(site.layer.pair("kernel"))
    positions, channels_in = prod(site.output[1:]), site.inputs[0][0]
    amount, calls = (record.fixed, record.per_sample) if per_image else (record.per_sample, record.fixed)
    outer, inner = record.fixed(site.output[0] // groups), record.fixed(kernel * channels_in // groups)
    columns = positions * kernel * channels_in
    work = (amount(columns), amount(site.input_elements + columns), record.fixed(0))
    for product in _products(site, outer, inner, amount(positions), calls(groups)):
        yield product
        if needs_columns(site.layer):
            kind = "col2im" if product.direction == BACKWARD_DATA else "im2col"
            yield Call(kind, product.direction, work, calls(1))


def _linear(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Forward (m x m_in)·(m_in x n), backward-data m_in x n, backward-weight m x m_in; a sequence has n·positions.

    The gradients of a table that a linear layer shares with the embedding are summed.
    """
    outer, inner = site.output[-1], site.inputs[0][-1]
    yield from _products(site, record.fixed(outer), record.fixed(inner), record.per_sample(prod(site.output[:-1])))
    if site.layer.attributes["tied"] and not site.layer.is_frozen:
        yield Call(
            "add", BACKWARD_DATA, (record.fixed(outer * inner), record.fixed(3 * outer * inner), record.fixed(0))
        )
    yield from _bias(site)


def _products(site: Site, outer: Amount, inner: Amount, columns: Amount, count: Amount = (1, 0)) -> Iterator[Call]:
    products = {
        FORWARD: (outer, columns, inner),
        BACKWARD_DATA: (inner, columns, outer),
        BACKWARD_WEIGHT: (outer, inner, columns),
    }
    for direction in _directions(site):
        yield Call("gemm", direction, (*products[direction], record.fixed(1)), count)


def _directions(site: Site) -> tuple[str, ...]:
    return (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT) if site.input_gradients[0] else (FORWARD, BACKWARD_WEIGHT)


def _bias(site: Site) -> Iterator[Call]:
    if site.layer.attributes["bias"]:
        elements = site.output_elements
        yield Call("bias", FORWARD, record.traffic(elements, 2 * elements))
        yield Call("bias", BACKWARD_WEIGHT, record.traffic(elements, elements))


def _convolution_macs(site: Site) -> int:
    """Output elements times channels in a group times kernel area."""
    inner = site.inputs[0][0] // site.layer.integer("groups")
    return site.output_elements * inner * prod(site.layer.pair("kernel"))


def _up_convolution(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield the product (f²m x m_in)·(m_in x n·pixels), whose columns are the windows of f x f that it writes."""
    outer = record.fixed(site.layer.integer("factor") ** 2 * site.output[0])
    yield from _products(site, outer, record.fixed(site.inputs[0][0]), record.per_sample(prod(site.inputs[0][1:])))
    yield from _bias(site)


def _up_parameters(layer: Layer, shape: Shape) -> tuple[int, ...]:
    channels = layer.integer("channels")
    weights = shape[0] * channels * layer.integer("factor") ** 2
    return (weights, channels) if layer.attributes["bias"] else (weights,)


def _adapted(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    base, small = inputs[0], inputs[-1]
    if len(inputs) != 2 or small[:-1] != base[:-1] or layer.integer("features") > base[-1]:
        rule = f"two of as many positions, the first of at least {layer.integer('features')} features"
        raise ParameterError(f"layer {layer.name}: inputs", rule, inputs)
    return base


def _adapter(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield (m x R)·(R x n) of the second input, and its sum with m features of the first: 3E; backward no sum."""
    outer, rows = _adapter_width(site.layer, site.output), prod(site.output[:-1])
    small = replace(site, inputs=site.inputs[1:], input_gradients=site.input_gradients[1:])
    yield from _products(small, record.fixed(outer), record.fixed(site.inputs[1][-1]), record.per_sample(rows))
    yield Call("add", FORWARD, record.traffic(outer * rows, 3 * outer * rows))


def _adapter_width(layer: Layer, shape: Shape) -> int:
    return layer.integer("features") or shape[-1]


def _adapter_module(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    class Adapter(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.Linear(inputs[1][-1], _adapter_width(layer, inputs[0]), bias=False)

        def forward(self, base: Any, small: Any) -> Any:
            made = self.up(small)
            return base + torch.nn.functional.pad(made, (0, base.shape[-1] - made.shape[-1]))

    return Adapter()


def _conv2d(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    return torch.nn.Conv2d(
        inputs[0][0], layer.integer("channels"), layer.pair("kernel"), layer.pair("stride"), layer.pair("padding"),
        layer.pair("dilation"), layer.integer("groups"), bias=bool(layer.attributes["bias"]),
    )  # fmt: skip


_BIAS = Attribute("bool", default=True, doc="whether a bias is added")
KINDS = {
    "convolution": LayerKind(
        {
            "channels": Attribute("int", None, "channels out"),
            "kernel": Attribute("pair", None, "height and width of the kernel"),
            "stride": Attribute("pair", 1, "step of the kernel"),
            "padding": Attribute("pair", 0, "zeros on each side", least=0),
            "groups": Attribute("int", 1, "groups of channels that do not mix"),
            "bias": _BIAS,
            "dilation": Attribute("pair", 1, "pixels from one element of the kernel to the next", quiet=True),
        },
        _convolved,
        (3,),
        parameters=_convolution_parameters,
        calls=_convolution,
        macs=_convolution_macs,
        keeps=lambda _layer: (True, False),
        keeps_for_weights=True,
        computes="16 bits",
        outputs="channels",
        window="kernel",
        divides=("space",),
        module=_conv2d,
    ),
    "up_convolution": LayerKind(
        {
            "channels": Attribute("int", None, "channels out"),
            "factor": Attribute("int", 2, "side of the kernel, which is also its step, so that windows do not overlap"),
            "bias": _BIAS,
        },
        lambda layer, inputs: (layer.integer("channels"), *(layer.integer("factor") * side for side in inputs[0][1:])),
        (3,),
        parameters=_up_parameters,
        calls=_up_convolution,
        macs=lambda site: site.output_elements * site.inputs[0][0],
        keeps=lambda _layer: (True, False),
        keeps_for_weights=True,
        computes="16 bits",
        outputs="channels",
        divides=("space",),
        module=lambda torch, layer, inputs: torch.nn.ConvTranspose2d(
            inputs[0][0],
            layer.integer("channels"),
            *(layer.integer("factor"),) * 2,
            bias=bool(layer.attributes["bias"]),
        ),
    ),
    "linear": LayerKind(
        {
            "features": Attribute("int", None, "features out"),
            "bias": _BIAS,
            "tied": Attribute("bool", default=False, doc="whether its weights are the table of the embedding"),
        },
        lambda layer, inputs: (*inputs[0][:-1], layer.integer("features")),
        (1, 2),
        parameters=_linear_parameters,
        calls=_linear,
        macs=lambda site: site.output_elements * site.inputs[0][-1],
        keeps=lambda _layer: (True, False),
        keeps_for_weights=True,
        computes="16 bits",
        share=lambda layer: Share("features", is_rounded_up=True) if layer.attributes["tied"] else None,
        outputs="features",
        module=lambda torch, layer, inputs: torch.nn.Linear(
            inputs[0][-1], layer.integer("features"), bias=bool(layer.attributes["bias"])
        ),
    ),
    "adapter": LayerKind(
        {
            "rank": Attribute("int", None, "features of its second input: the rank of the change"),
            "features": Attribute("int", 0, "features of the first input that a product is added to; 0: all", least=0),
        },
        _adapted,
        (1, 2),
        joins=True,
        parameters=lambda layer, shape: (layer.integer("rank") * _adapter_width(layer, shape),),
        calls=_adapter,
        macs=lambda site: prod(site.output[:-1]) * _adapter_width(site.layer, site.output) * site.inputs[1][-1],
        kept_besides=lambda site, itemsize: itemsize * prod(site.inputs[1]),
        computes="16 bits",
        module=_adapter_module,
    ),
}


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
    work = record.traffic(site.input_elements, site.input_elements + site.output_elements, index_bytes)
    return passes("max_pool" if of_maximum else "average_pool", site, work, work)


def _is_of_maximum(site: Site) -> bool:
    return site.layer.attributes.get("mode") == "max"


def _pooling(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    kind = torch.nn.MaxPool2d if layer.attributes["mode"] == "max" else torch.nn.AvgPool2d
    ceil = bool(layer.attributes["ceil"])
    return kind(layer.pair("window"), layer.pair("stride"), layer.pair("padding"), ceil_mode=ceil)


def _upsample(site: Site, _lowering: Lowering) -> Iterator[Call]:
    work = record.traffic(site.output_elements, site.input_elements + site.output_elements)
    return passes("upsample", site, work, work)


def _batch_norm(torch: Any, _layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    return (torch.nn.BatchNorm2d if len(inputs[0]) == 3 else torch.nn.BatchNorm1d)(inputs[0][0])


def _lrn_kept(site: Site, itemsize: int) -> int:
    """Squares, padded, their mean and its power."""
    return itemsize * (3 * site.output_elements + (site.layer.integer("window") - 1) * prod(site.output[1:]))


def _three_and_five(kind: str, site: Site) -> Iterator[Call]:
    elements = site.output_elements
    return passes(kind, site, record.traffic(elements, 3 * elements), record.traffic(elements, 5 * elements))


def _image_of(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    (positions, features), height = inputs[0], layer.integer("height")
    if positions % height:
        raise ParameterError(f"layer {layer.name}: height", f"a divisor of the {positions} positions it reads", height)
    return (features, height, positions // height)


KINDS |= {
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
