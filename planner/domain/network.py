"""A neural network as a directed graph of layers, in topological order.

Shapes are per sample: (channels, height, width) of an image, (features,) of a vector, (positions, features) of a
sequence, (positions,) of the token numbers that an embedding reads. What each kind of layer does to shapes and
parameters stands in :mod:`planner.domain.shapes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.domain.arrays import LARGEST_COUNT, check_count, frozen_map
from planner.errors import ParameterError, UnknownNameError

__all__ = ["INPUT", "LAYER_KINDS", "Attribute", "AttributeValue", "Layer", "Network", "family_of"]

AttributeValue = int | float | str | bool | tuple[int, int]

INPUT = "input"
"""The name under which layers refer to the network's input."""


def family_of(name: str) -> str:
    """Return the family of a network from its name, ``family:key=value,...``."""
    return name.partition(":")[0]


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of a layer kind: type, default (None: required), rule in words, and the least whole number.

    ``pair`` is a whole number for both axes, or two of them: (height, width).
    """

    type: str  # "int", "pair", "float", "bool" or one of "a|b|c"
    default: AttributeValue | None
    doc: str
    least: int = 1


LAYER_KINDS: Mapping[str, Mapping[str, Attribute]] = frozen_map(
    {
        "convolution": {
            "channels": Attribute("int", None, "channels out"),
            "kernel": Attribute("pair", None, "height and width of the kernel"),
            "stride": Attribute("pair", 1, "step of the kernel"),
            "padding": Attribute("pair", 0, "zeros on each side", least=0),
            "groups": Attribute("int", 1, "groups of channels that do not mix"),
            "bias": Attribute("bool", default=True, doc="whether a bias is added"),
        },
        "pool": {
            "mode": Attribute("max|average", "max", "what is taken of a window"),
            "window": Attribute("pair", None, "height and width of the window"),
            "stride": Attribute("pair", None, "step of the window"),
            "padding": Attribute("pair", 0, "border on each side", least=0),
            "ceil": Attribute("bool", default=False, doc="round the output size up, as Caffe does"),
        },
        "global_pool": {},
        "upsample": {"factor": Attribute("int", 2, "copies of every element along each axis")},
        "linear": {
            "features": Attribute("int", None, "features out"),
            "bias": Attribute("bool", default=True, doc="whether a bias is added"),
            "tied": Attribute("bool", default=False, doc="whether its weights are the table of the embedding"),
        },
        "embedding": {
            "vocabulary": Attribute("int", None, "rows of the table of tokens"),
            "features": Attribute("int", None, "features of a token"),
            "positions": Attribute("int", 0, "rows of the table that is added by position; 0: none", least=0),
            "types": Attribute("int", 0, "rows of the table that is added by type of token; 0: none", least=0),
        },
        "attention": {
            "heads": Attribute("int", None, "heads that the features are split into"),
            "causal": Attribute("bool", default=False, doc="whether later positions are masked"),
            "dropout": Attribute("float", 0.0, "fraction of the attention weights dropped"),
            "fused": Attribute("bool", default=False, doc="whether one kernel does it all, without weights in memory"),
        },
        "layer_norm": {},
        "first_position": {},
        "activation": {"function": Attribute("relu|leaky_relu|tanh|sigmoid|gelu", "relu", "the function")},
        "batch_norm": {},
        "lrn": {"window": Attribute("int", 5, "channels normalised over")},
        "dropout": {"rate": Attribute("float", 0.5, "fraction dropped")},
        "add": {},
        "concat": {},
        "flatten": {},
        "loss": {"weight": Attribute("float", 1.0, "weight of this softmax cross-entropy in the total")},
    }
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: kind, name, the layers it reads, and every attribute of its kind (defaults filled in)."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in LAYER_KINDS:
            raise UnknownNameError(f"layer {self.name}: kind", self.kind, LAYER_KINDS)
        spec = LAYER_KINDS[self.kind]
        for key in self.attributes:
            if key not in spec:
                raise UnknownNameError(f"layer {self.name}: attribute", key, spec)
        filled = {key: _checked(self, key, attribute) for key, attribute in spec.items()}
        object.__setattr__(self, "attributes", frozen_map(filled))

    def integer(self, key: str) -> int:
        """Return an ``int`` attribute."""
        value = self.attributes[key]
        assert isinstance(value, int)  # noqa: S101 - checked when the layer was made
        return value

    def number(self, key: str) -> float:
        """Return a ``float`` attribute."""
        value = self.attributes[key]
        assert isinstance(value, int | float)  # noqa: S101 - checked when the layer was made
        return float(value)

    def pair(self, key: str) -> tuple[int, int]:
        """Return a ``pair`` attribute as (height, width)."""
        value = self.attributes[key]
        if isinstance(value, tuple):
            return value
        assert isinstance(value, int)  # noqa: S101 - checked when the layer was made
        return (value, value)


def _checked(layer: Layer, key: str, attribute: Attribute) -> AttributeValue:
    what = f"layer {layer.name}: {key}"
    value = layer.attributes.get(key, attribute.default)
    if value is None:
        raise ParameterError(what, f"given ({attribute.doc})", "nothing")
    check = {"int": _check_sizes, "pair": _check_sizes, "bool": _check_bool, "float": _check_number}.get(attribute.type)
    if check is not None:
        check(what, value, attribute)
    elif value not in attribute.type.split("|"):
        raise ParameterError(what, "one of " + ", ".join(attribute.type.split("|")), value)
    return value


def _check_sizes(what: str, value: AttributeValue, attribute: Attribute) -> None:
    for side in value if attribute.type == "pair" and isinstance(value, tuple) else (value,):
        check_count(what, side, attribute.least)


def _check_bool(what: str, value: AttributeValue, _attribute: Attribute) -> None:
    if not isinstance(value, bool):
        raise ParameterError(what, "true or false", value)


def _check_number(what: str, value: AttributeValue, _attribute: Attribute) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_COUNT:
        raise ParameterError(what, "a number, at least 0", value)


@dataclass(frozen=True, slots=True)
class Network:
    """A network: layers in topological order, the shape of one sample, and where it comes from.

    Attributes
    ----------
    name : str
        With arguments, as a user would type it: ``resnet50:stride=1x1``.
    input_shape : tuple of int
        Of one sample.
    layers : tuple of Layer
        Every layer stands behind those it reads.
    dataset : str or None
        Default data set.
    optimizer : str
        Default optimizer of the family.
    notes : str
        Variant and source, one sentence.
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
    seen = {INPUT}
    for layer in layers:
        if layer.name in seen:
            raise ParameterError("layer names", "unique, and not 'input'", layer.name)
        if not layer.inputs:
            raise ParameterError(f"layer {layer.name}: inputs", "at least one layer", "none")
        for source in layer.inputs:
            if source not in seen:
                raise UnknownNameError(f"layer {layer.name}: input", source, seen, "It must stand before.")
        seen.add(layer.name)
