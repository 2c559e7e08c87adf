"""A network as a graph of layers in topological order, and the calls of these, whatever the sub-batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

import numpy as np

from planner.domain.arrays import LARGEST_COUNT, IntArray, check_count, frozen_map, once_of
from planner.domain.framework import OPTIMIZERS
from planner.domain.kernels import COSTLY_ACTIVATIONS, LINEAR_BIAS, OF_LAYERS, SERVED_BY
from planner.domain.keys import Key
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, Layer, Shape, tensors_of
from planner.errors import ParameterError, UnknownNameError

MOST_LAYERS = 20_000
"""ResNet-1001 has 3,340, ResNet-5000 17,504; of more, steps take seconds to lay out."""


def family_of(name: str) -> str:
    """Return the family of a network from its name, ``family:key=value,...``."""
    return name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Network:
    """A network: layers in topological order, the shape of one sample, and where it comes from.

    Its name has arguments, as a user would type it: ``resnet50:stride=1x1``.
    """

    name: Annotated[str, Key("name to refer to it", is_name=True)]
    input_shape: Annotated[tuple[int, ...], Key("shape of one sample", name="input", size=(1, 3), most=LARGEST_COUNT)]
    layers: Annotated[tuple[Layer, ...], Key("layers, each behind those it reads", size=(1, MOST_LAYERS))]
    dataset: Annotated[str | None, Key("default data set", is_name=True)] = None
    optimizer: Annotated[str, Key("default optimizer", choices=tuple(OPTIMIZERS))] = "sgd-momentum"
    notes: Annotated[str, Key("variant and source")] = ""
    unmodelled: Annotated[tuple[str, ...], Key("what the model has otherwise than these layers, a sentence each")] = ()

    @property
    def tokens(self) -> int:
        """Tokens of a sample of a language model; 0: it is none."""
        reads_tokens = len(self.input_shape) == 1 and any(layer.kind == "embedding" for layer in self.layers)
        return self.input_shape[0] if reads_tokens else 0

    @property
    def has_frozen(self) -> bool:
        """Whether some layers are frozen."""
        return any(layer.is_frozen for layer in self.layers)

    def __post_init__(self) -> None:
        if not 1 <= len(self.input_shape) <= 3:
            raise ParameterError("input", "one to three sizes", self.input_shape)
        for size in self.input_shape:
            check_count("input", size)
        if not self.layers:
            raise ParameterError("layers", "at least one layer", 0)
        _check_graph(self.layers)


def _check_graph(layers: tuple[Layer, ...]) -> None:
    names = {INPUT}
    for layer in layers:
        if layer.name in names:
            raise ParameterError("layer names", "unique, and not 'input'", layer.name)
        if not layer.inputs:
            raise ParameterError(f"layer {layer.name}: inputs", "at least one layer", "none")
        for source in layer.inputs:
            if source not in names:
                raise UnknownNameError(f"layer {layer.name}: input", source, names, "It must stand before.")
        names.add(layer.name)


@once_of
def layer_shapes(network: Network) -> Mapping[str, Shape]:
    """Return the output shape of every layer, per sample, INPUT first; of one network it is worked out once.

    A ``loss`` gives one number: (1,).

    ParameterError: a layer cannot read what it is given; the sentence names the layer.
    """
    shapes: dict[str, Shape] = {INPUT: network.input_shape}
    for layer in network.layers:
        output = output_shape(layer, shapes)
        if layer.kind == "linear" and layer.attributes["tied"]:
            embedding = next((one for one in network.layers if one.kind == "embedding"), None)
            if embedding is None:
                raise ParameterError(f"layer {layer.name}: tied", "false in a network without an embedding", value=True)
            table = embedding.integer("vocabulary"), embedding.integer("features")
            sizes = layer.integer("features"), shapes[layer.inputs[0]][-1]
            if sizes != table:
                rule = f"those of the table of {embedding.name}, {table}"
                raise ParameterError(f"layer {layer.name}: features out and in", rule, sizes)
        shapes[layer.name] = output
    return MappingProxyType(shapes)


def output_shape(layer: Layer, shapes: Mapping[str, Shape]) -> Shape:
    """Return the shape of a layer's output, from those of the layers that it reads; ParameterError as above."""
    inputs = input_shapes(layer, shapes)
    _check_inputs(layer, inputs)
    return LAYER_KINDS[layer.kind].output(layer, inputs)


def layer_parameters(network: Network) -> IntArray:
    """Return the parameters of every layer in order, shape (L,).

    Convolution m·(m_in/g)·c_h·c_w, linear m_in·m, or 0 where they are those of the embedding, each with m more where
    it has a bias; batch and layer normalisation 2m (scale and shift; the running statistics are not trained);
    embedding m a row of every table; every other kind, and a layer that shares those of an earlier one, 0.
    """
    shapes = layer_shapes(network)
    counts = [parameters_of(layer, shapes[layer.inputs[0]]) for layer in network.layers]
    return np.array(counts, dtype=np.int64)


def parameters_of(layer: Layer, shape: Shape) -> int:
    """Return the parameters of a layer that reads a shape; see :func:`layer_parameters`."""
    return sum(tensors_of(layer, shape))


def input_shapes(layer: Layer, shapes: Mapping[str, Shape]) -> tuple[Shape, ...]:
    """Return the shapes that a layer reads, in the order of its inputs."""
    return tuple(shapes[source] for source in layer.inputs)


def _check_inputs(layer: Layer, inputs: tuple[Shape, ...]) -> None:
    kind = LAYER_KINDS[layer.kind]
    if kind.joins:
        if len(inputs) < 2:
            raise ParameterError(f"layer {layer.name}: inputs", f"at least two for kind {layer.kind}", len(inputs))
    elif kind.joins is not None and len(inputs) != 1:
        raise ParameterError(f"layer {layer.name}: inputs", f"one for kind {layer.kind}", len(inputs))
    for shape in inputs:
        if len(shape) not in kind.ranks:
            forms = " or ".join(_FORMS[rank] for rank in kind.ranks)
            remedy = "add a flatten layer before it" if layer.kind == "linear" else ""
            raise ParameterError(f"layer {layer.name}: input shape", forms, shape, remedy)


_FORMS = {1: "a vector (features)", 2: "a sequence (positions, features)", 3: "an image (channels, height, width)"}


LOOKED_UP = "calls.measured"
"""Term of entries that look calls up by name."""
_COMPLETE_KINDS = ("convolution", "linear")
"""Kinds of layers of whose products the work says all but whether they add a bias."""


def kind_of_kernel(kind: str, layer: Layer) -> str:
    """Return the kind of kernel of a layer's call: some calls of a kind have one of their own."""
    if layer.kind in OF_LAYERS and kind == SERVED_BY[OF_LAYERS[layer.kind]]:
        return OF_LAYERS[layer.kind]
    if kind == "activation":
        return COSTLY_ACTIVATIONS.get(str(layer.attributes.get("function", "")), kind)
    return LINEAR_BIAS if (kind, layer.kind) == ("bias", "linear") else kind


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A kernel call that a layer makes, with work a + b·n for a sub-batch of n samples.

    Attributes
    ----------
    work : mapping of work column to (a, b)
    layer : one that makes the call
    inputs : shapes per sample that the layer reads
    optimizer : of an update; empty for any other call
    tensors : that an update changes, 0 for any other call
    count : how often a step makes the call
    wide : mapping of "cpu" or "gpu" to tuple of bool, whether each input of the layer, and last its output, stays fp32
        there in mixed precision of 16 bits; empty: none does. Not part of the name: a call that a network makes both
        ways is as most often
    """

    kind: str
    direction: str
    work: Mapping[str, tuple[int, int]]
    layer: Layer
    inputs: tuple[tuple[int, ...], ...]
    optimizer: str = ""
    tensors: int = 0
    count: int = 1
    wide: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "work", frozen_map(self.work))
        object.__setattr__(self, "wide", frozen_map(self.wide))

    def at(self, sub_batch: int) -> dict[str, int]:
        """Return the work columns of a sub-batch."""
        return {column: base + slope * sub_batch for column, (base, slope) in self.work.items()}

    @property
    def depends_on_sub_batch(self) -> bool:
        """Whether any of its work does."""
        return any(slope for _, slope in self.work.values())

    @property
    def name(self) -> str:
        """What tells calls of a kind and direction apart: work, and of what work does not say all, the layer."""
        work = " ".join(f"{column}={_amount(*amount)}" for column, amount in self.work.items())
        return f"{work} {self._variant}".strip()

    @property
    def _variant(self) -> str:
        if self.optimizer:
            return f"{self.optimizer} tensors={self.tensors}"
        if self.layer.kind in _COMPLETE_KINDS:
            return "bias" if self.layer.attributes["bias"] else ""
        declared = LAYER_KINDS[self.layer.kind].attributes
        shapes = " ".join("x".join(map(str, shape)) for shape in self.inputs)
        attributes = " ".join(
            f"{key}={value}"
            for key, value in sorted(self.layer.attributes.items())
            if not declared[key].quiet or value != declared[key].default
        )
        return " ".join(filter(None, (self.layer.kind, shapes, attributes)))


def _amount(base: int, slope: int) -> str:
    if not slope:
        return str(base)
    return f"{base}+{slope}n" if base else f"{slope}n"


_AMOUNT = re.compile(r"(\w+)=(?:(\d+)\+)?(\d+)(n?)")


def work_named(name: str) -> dict[str, tuple[int, int]]:
    """Return the amounts a + b·n that the name of a :class:`LayerCall` states, as (a, b), its work first."""
    amounts: dict[str, tuple[int, int]] = {}
    for part in filter(None, map(_AMOUNT.fullmatch, name.split())):
        column, base, amount, of_samples = part.groups()
        amounts.setdefault(column, (int(base or 0), int(amount)) if of_samples else (int(base or 0) + int(amount), 0))
    return amounts


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel call to time.

    Attributes
    ----------
    geometry : what the call needs beyond its work: shapes of a pooling window, channels of a normalisation
    call : the call of a network's layer that the point is, at ``sub_batch``; None: of the generic design
    precision : that the call computes in; of what moves bytes, that of its elements
    """

    kind: str
    direction: str
    work: Mapping[str, int]
    geometry: Mapping[str, int] = field(default_factory=dict)
    call: LayerCall | None = None
    sub_batch: int = 0
    precision: str = "fp32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "work", frozen_map(self.work))
        object.__setattr__(self, "geometry", frozen_map(self.geometry))

    @property
    def name(self) -> str:
        """A name that tells points apart, such as ``gemm forward m=64 n=4 k=512 batch=1``."""
        precision = () if self.precision == "fp32" else (self.precision,)
        sizes = [f"{key}={value}" for key, value in {**self.work, **self.geometry}.items()]
        rest = [f"{self.call.name} at {self.sub_batch}"] if self.call else sizes
        return " ".join([self.kind, self.direction, *precision, *rest])
