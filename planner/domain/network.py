"""A neural network as a directed graph of layers, in topological order; kinds stand in :mod:`planner.domain.layers`."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.arrays import check_count
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, AttributeValue, Layer
from planner.errors import ParameterError, UnknownNameError

__all__ = ["INPUT", "LAYER_KINDS", "AttributeValue", "Layer", "Network", "family_of"]


def family_of(name: str) -> str:
    """Return the family of a network from its name, ``family:key=value,...``."""
    return name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Network:
    """A network: layers in topological order, the shape of one sample, and where it comes from.

    Attributes
    ----------
    name : with arguments, as a user would type it: ``resnet50:stride=1x1``
    input_shape : of one sample
    layers : every layer stands behind those it reads
    dataset : default data set
    optimizer : default optimizer of the family
    notes : variant and source, one sentence
    """

    name: str
    input_shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    dataset: str | None = None
    optimizer: str = "sgd-momentum"
    notes: str = ""

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
