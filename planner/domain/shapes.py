"""Shapes and parameters: what every kind of layer does to the shape of one sample.

Convolutions round sizes down: x' = ⌊(x + 2p - c) / s⌋ + 1, with input side x, padding p, kernel side c, stride s.
Pooling rounds down, or up where the layer says ``ceil``; then a last window that would start beyond the input and
its leading padding is dropped, as Caffe and PyTorch do.

Shapes: (channels, height, width) of an image, (features,) of a vector, (positions, features) of a sequence. An
embedding reads (positions,), the numbers of tokens; attention reads queries, keys and values side by side:
(positions, 3·features), each part split into heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.network import INPUT, Layer, Network
from planner.errors import ParameterError

__all__ = ["Shape", "input_shapes", "layer_parameters", "layer_shapes", "parameters_of"]

Shape = tuple[int, ...]


def layer_shapes(network: Network) -> dict[str, Shape]:
    """Return the output shape of every layer, per sample.

    Parameters
    ----------
    network : Network

    Returns
    -------
    dict of layer name to tuple of int, with INPUT first and the layers in their order
        A ``loss`` gives one number: (1,).

    Raises
    ------
    ParameterError
        A layer cannot read what it is given; the sentence names the layer.
    """
    shapes: dict[str, Shape] = {INPUT: network.input_shape}
    for layer in network.layers:
        inputs = input_shapes(layer, shapes)
        _check_inputs(layer, inputs)
        if layer.kind == "linear" and layer.attributes["tied"]:
            _check_tied(network, layer, inputs[0])
        shapes[layer.name] = _OUTPUT[layer.kind](layer, inputs)
    return shapes


def layer_parameters(network: Network) -> IntArray:
    """Return the trained parameters of every layer in order, shape (L,).

    Convolution m·(m_in/g)·c_h·c_w, linear m_in·m, or 0 where they are those of the embedding, each with m more where
    it has a bias; batch and layer normalisation 2m (scale and shift; the running statistics are not trained);
    embedding m a row of every table; every other kind 0.
    """
    shapes = layer_shapes(network)
    counts = [parameters_of(layer, shapes[layer.inputs[0]]) for layer in network.layers]
    return np.array(counts, dtype=np.int64)


def parameters_of(layer: Layer, shape: Shape) -> int:
    """Return the trained parameters of a layer that reads a shape; see :func:`layer_parameters`."""
    return _PARAMETERS.get(layer.kind, _none)(layer, shape)


def input_shapes(layer: Layer, shapes: Mapping[str, Shape]) -> tuple[Shape, ...]:
    """Return the shapes that a layer reads, in the order of its inputs."""
    return tuple(shapes[source] for source in layer.inputs)


def _check_inputs(layer: Layer, inputs: tuple[Shape, ...]) -> None:
    if layer.kind in _JOINING:
        if len(inputs) < 2:
            raise ParameterError(f"layer {layer.name}: inputs", f"at least two for kind {layer.kind}", len(inputs))
    elif len(inputs) != 1:
        raise ParameterError(f"layer {layer.name}: inputs", f"one for kind {layer.kind}", len(inputs))
    ranks = _RANKS.get(layer.kind, (1, 2, 3))
    for shape in inputs:
        if len(shape) not in ranks:
            forms = " or ".join(_FORMS[rank] for rank in ranks)
            remedy = "add a flatten layer before it" if layer.kind == "linear" else ""
            raise ParameterError(f"layer {layer.name}: input shape", forms, shape, remedy)


def _check_tied(network: Network, layer: Layer, shape: Shape) -> None:
    embedding = next((one for one in network.layers if one.kind == "embedding"), None)
    if embedding is None:
        raise ParameterError(f"layer {layer.name}: tied", "false in a network without an embedding", value=True)
    table = (embedding.integer("vocabulary"), embedding.integer("features"))
    if (layer.integer("features"), shape[-1]) != table:
        rule = f"those of the table of {embedding.name}, {table}"
        raise ParameterError(f"layer {layer.name}: features out and in", rule, (layer.integer("features"), shape[-1]))


def _convolution(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    channels, groups = layer.integer("channels"), layer.integer("groups")
    for what, count in (("channels in", inputs[0][0]), ("channels", channels)):
        if count % groups:
            raise ParameterError(f"layer {layer.name}: {what}", f"divisible by groups = {groups}", count)
    padded = _padded(layer, inputs[0], layer.pair("kernel"), "kernel")
    sides = zip(padded, layer.pair("kernel"), layer.pair("stride"), strict=True)
    return (channels, *((side - kernel) // stride + 1 for side, kernel, stride in sides))


def _pool(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    window, stride, padding = layer.pair("window"), layer.pair("stride"), layer.pair("padding")
    if padding[0] >= window[0] or padding[1] >= window[1]:
        rule = f"smaller than the window {window}"
        raise ParameterError(f"layer {layer.name}: padding", rule, padding)
    padded = _padded(layer, inputs[0], window, "window")
    if not layer.attributes["ceil"]:
        return (inputs[0][0], *((padded[axis] - window[axis]) // stride[axis] + 1 for axis in (0, 1)))
    sides = []
    for axis, side in enumerate(inputs[0][1:]):
        count = -((window[axis] - padded[axis]) // stride[axis]) + 1
        starts_outside = (count - 1) * stride[axis] >= side + padding[axis]
        sides.append(count - 1 if starts_outside else count)
    return (inputs[0][0], *sides)


def _padded(layer: Layer, shape: Shape, window: tuple[int, int], what: str) -> tuple[int, int]:
    padding = layer.pair("padding")
    padded = (shape[1] + 2 * padding[0], shape[2] + 2 * padding[1])
    if window[0] > padded[0] or window[1] > padded[1]:
        rule = f"at most the padded input {padded}"
        raise ParameterError(f"layer {layer.name}: {what}", rule, window)
    return padded


def _upsample(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    factor = layer.integer("factor")
    return (inputs[0][0], *(factor * side for side in inputs[0][1:]))


def _same(_layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    return inputs[0]


def _embedding(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    (positions,), rows = inputs[0], layer.integer("positions")
    if layer.inputs != (INPUT,):
        raise ParameterError(f"layer {layer.name}: input", f"{INPUT}, the numbers of tokens", layer.inputs[0])
    if 0 < rows < positions:
        raise ParameterError(f"layer {layer.name}: positions", f"0, or at least the {positions} of a sample", rows)
    return (positions, layer.integer("features"))


def _attention(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    (positions, features), heads = inputs[0], layer.integer("heads")
    if features % (3 * heads):
        rule = f"divisible by 3 x heads = {3 * heads}: queries, keys and values"
        raise ParameterError(f"layer {layer.name}: features in", rule, features)
    if layer.attributes["fused"] and layer.number("dropout"):
        rule = "0 where attention is fused, as PyTorch's fused kernel on CPUs drops none"
        raise ParameterError(f"layer {layer.name}: dropout", rule, layer.number("dropout"))
    return (positions, features // 3)


def _add(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    for source, shape in zip(layer.inputs, inputs, strict=True):
        if shape != inputs[0]:
            rule = f"of the shape {inputs[0]} of {layer.inputs[0]}"
            raise ParameterError(f"layer {layer.name}: input {source}", rule, shape)
    return inputs[0]


def _concat(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    """Join images and vectors along channels, sequences along features; the other sizes must agree."""
    axis = 1 if len(inputs[0]) == 2 else 0
    rest = [(*shape[:axis], *shape[axis + 1 :]) for shape in inputs]
    for source, shape, others in zip(layer.inputs, inputs, rest, strict=True):
        if len(shape) != len(inputs[0]) or others != rest[0]:
            rule = f"like {layer.inputs[0]}, which is {inputs[0]}, but for channels"
            raise ParameterError(f"layer {layer.name}: input {source}", rule, shape)
    return (*inputs[0][:axis], sum(shape[axis] for shape in inputs), *inputs[0][axis + 1 :])


def _convolution_parameters(layer: Layer, shape: Shape) -> int:
    channels, kernel = layer.integer("channels"), layer.pair("kernel")
    weights = channels * (shape[0] // layer.integer("groups")) * kernel[0] * kernel[1]
    return weights + (channels if layer.attributes["bias"] else 0)


def _linear_parameters(layer: Layer, shape: Shape) -> int:
    inner = 0 if layer.attributes["tied"] else shape[-1]
    return layer.integer("features") * (inner + (1 if layer.attributes["bias"] else 0))


def _embedding_parameters(layer: Layer, _shape: Shape) -> int:
    rows = sum(layer.integer(table) for table in ("vocabulary", "positions", "types"))
    return rows * layer.integer("features")


def _batch_norm_parameters(_layer: Layer, shape: Shape) -> int:
    return 2 * shape[0]


def _layer_norm_parameters(_layer: Layer, shape: Shape) -> int:
    return 2 * shape[-1]


def _none(_layer: Layer, _shape: Shape) -> int:
    return 0


_JOINING = ("add", "concat")
_FORMS = {1: "a vector (features)", 2: "a sequence (positions, features)", 3: "an image (channels, height, width)"}
_RANKS = {
    "convolution": (3,),
    "pool": (3,),
    "global_pool": (3,),
    "upsample": (3,),
    "lrn": (3,),
    "batch_norm": (1, 3),
    "linear": (1, 2),
    "layer_norm": (1, 2),
    "embedding": (1,),
    "attention": (2,),
    "first_position": (2,),
}
_OUTPUT: Mapping[str, Callable[[Layer, tuple[Shape, ...]], Shape]] = {
    "convolution": _convolution,
    "pool": _pool,
    "global_pool": lambda _layer, inputs: (inputs[0][0], 1, 1),
    "upsample": _upsample,
    "linear": lambda layer, inputs: (*inputs[0][:-1], layer.integer("features")),
    "embedding": _embedding,
    "attention": _attention,
    "first_position": lambda _layer, inputs: inputs[0][1:],
    "activation": _same,
    "batch_norm": _same,
    "layer_norm": _same,
    "lrn": _same,
    "dropout": _same,
    "add": _add,
    "concat": _concat,
    "flatten": lambda _layer, inputs: (math.prod(inputs[0]),),
    "loss": lambda _layer, _inputs: (1,),
}
_PARAMETERS: Mapping[str, Callable[[Layer, Shape], int]] = {
    "convolution": _convolution_parameters,
    "linear": _linear_parameters,
    "batch_norm": _batch_norm_parameters,
    "layer_norm": _layer_norm_parameters,
    "embedding": _embedding_parameters,
}
