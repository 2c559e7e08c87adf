"""What lowering and memory need to know about every layer: sizes, and where gradients flow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod

from planner.domain.network import INPUT, Layer, Network
from planner.domain.shapes import Shape, input_shapes, layer_parameters, layer_shapes

__all__ = ["Site", "sites"]


@dataclass(frozen=True, slots=True)
class Site:
    """A layer at its place in a network.

    Attributes
    ----------
    position : int
        In ``Network.layers``.
    layer : Layer
    inputs : tuple of Shape
        Per sample, in the order of ``layer.inputs``.
    output : Shape
    parameters : int
    input_gradients : tuple of bool
        Whether a gradient has to be passed on to each input: something trained stands before it.
    reads : int
        How often the output is read.
    """

    position: int
    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape
    parameters: int
    input_gradients: tuple[bool, ...]
    reads: int

    @property
    def has_gradient(self) -> bool:
        """Whether the output has a gradient: the layer, or one before it, is trained."""
        return self.parameters > 0 or any(self.input_gradients)

    @property
    def input_elements(self) -> int:
        """Elements of all inputs, per sample."""
        return sum(prod(shape) for shape in self.inputs)

    @property
    def output_elements(self) -> int:
        """Elements of the output, per sample."""
        return prod(self.output)

    @property
    def forward_mac(self) -> int:
        """Multiply-adds of products forward, per sample; 0 for every kind but those below.

        Convolution: output elements times channels in a group times kernel area; linear: output elements times features
        in; attention over s positions of h features: 2·s²·h, whether or not a mask hides half of them, and whether or
        not a fused kernel leaves those out.
        """
        if self.layer.kind == "convolution":
            height, width = self.layer.pair("kernel")
            return self.output_elements * (self.inputs[0][0] // self.layer.integer("groups")) * height * width
        if self.layer.kind == "attention":
            return 2 * self.output_elements * self.output[0]
        return self.output_elements * self.inputs[0][-1] if self.layer.kind == "linear" else 0

    @property
    def training_flop(self) -> int:
        """FLOP of products forward and backward, per sample, two a multiply-add.

        Backward takes each operand's gradient, of as many FLOP as forward: of weights always, of inputs where one has
        to be passed on. Scores that a fused kernel makes again are not counted.
        """
        operands = any(self.input_gradients) * (2 if self.layer.kind == "attention" else 1)
        weights = self.layer.kind != "attention"
        return 2 * self.forward_mac * (1 + operands + weights)


_MOST_KEPT = 8
_KEPT: dict[tuple[int, bool], tuple[Network, tuple[Site, ...]]] = {}
"""Sites of the networks asked for last, by identity: a network is not hashable, and holding it keeps its identity."""


def sites(network: Network, *, input_gradient: bool = False) -> tuple[Site, ...]:
    """Return every layer at its place; ParameterError where a layer cannot read what it is given.

    ``input_gradient``: whether a gradient is passed on to the network's input, though nothing is trained there.
    """
    key = id(network), input_gradient
    kept = _KEPT.get(key)
    if kept is None:
        kept = (network, _sites(network, input_gradient=input_gradient))
        while len(_KEPT) >= _MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[key] = kept
    return kept[1]


def _sites(network: Network, *, input_gradient: bool) -> tuple[Site, ...]:
    shapes = layer_shapes(network)
    parameters = layer_parameters(network).tolist()
    reads = Counter(source for layer in network.layers for source in layer.inputs)
    has_gradient = {INPUT: input_gradient}
    found = []
    for position, layer in enumerate(network.layers):
        site = Site(
            position,
            layer,
            input_shapes(layer, shapes),
            shapes[layer.name],
            parameters[position],
            tuple(has_gradient[source] for source in layer.inputs),
            reads[layer.name],
        )
        has_gradient[layer.name] = site.has_gradient
        found.append(site)
    return tuple(found)
