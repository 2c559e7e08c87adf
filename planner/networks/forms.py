"""What stands between tensors of a model that is read and layers: names, forms, views and parameters."""

from __future__ import annotations

from collections import Counter
from math import prod

from planner.domain.layers.record import INPUT, AttributeValue, Shape
from planner.errors import ParameterError
from planner.networks.builder import NetworkBuilder
from planner.networks.operators import Graph, Operator, Tensor
from planner.networks.rewrites import behind_moves

__all__ = ["IMAGE", "Forms", "sizes_of", "tokens_of"]

IMAGE = 3
"""Sizes of an image: channels, height, width."""


class Forms:
    """The layers so far, the form that each tensor has, and the parameters that are counted."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.net = NetworkBuilder()
        self.forms: dict[Tensor, tuple[str, Shape]] = {}
        self.names: Counter[str] = Counter()
        self.used: set[Tensor] = set()
        self.table: Tensor | None = None
        self.embedded: dict[tuple[Tensor, ...], tuple[str, int]] = {}
        self.unknown: list[tuple[str, str]] = []
        self.notes = list(graph.notes)
        self.shared = 0
        self.tokens: list[Tensor] = []
        self.input_shape = self._read_inputs()

    def _read_inputs(self) -> Shape:
        first = self.graph.inputs[0]
        shape = first.shape[1:] or (1,)
        embeddings = [one for one in self.graph.needed() if one.kind == "embedding"]
        self.tokens = list(dict.fromkeys(tokens_of(one.samples()[0]) for one in embeddings))
        if len(shape) > (1 if self.tokens else IMAGE):
            rule = "tokens, (positions,), as others are" if self.tokens else "one to three sizes"
            raise ParameterError(f"input {first.name} of {self.graph.name}", rule, shape)
        self.forms |= {one: (INPUT, one.shape[1:] or (1,)) for one in self.graph.inputs}
        if self.tokens:
            return (sum(prod(one.shape[1:]) for one in self.tokens),)
        return shape

    def append(self, kind: str, one: Operator, source: str | tuple[str, ...], **attributes: AttributeValue) -> str:
        """Append a layer with the name of its part of the model, which is made unique."""
        base = ".".join(part for part in one.name.split(".") if part) or kind
        self.names[base] += 1
        name = base if self.names[base] == 1 and base != INPUT else f"{base}.{kind}{self.names[base]}"
        while name in self.names and name != base:
            name += "'"
        self.names[name] += name != base
        return self.net.add(kind, name, source, **attributes)

    def elements(self, tensor: Tensor) -> int:
        """Return the elements of a sample."""
        return max(1, tensor.size // self.graph.batch)

    def rows(self, tensor: Tensor) -> Shape:
        """Return the shape of a sample as a sequence: its last axis are features."""
        features = tensor.shape[-1] if len(tensor.shape) > 1 else 1
        positions = max(1, self.elements(tensor) // features)
        is_vector = positions == 1 and len(tensor.shape) <= 2  # batch and features
        return (features,) if is_vector else (positions, features)

    def default(self, tensor: Tensor) -> Shape:
        """Return the shape of a sample as it stands, of at most three sizes."""
        shape = tensor.shape[1:]
        if tensor.shape and tensor.shape[0] == self.graph.batch and 1 <= len(shape) <= IMAGE:
            return shape
        return self.rows(tensor)

    def image(self, tensor: Tensor) -> Shape:
        """Return the shape of a sample as an image; of a row of pixels with one of height 1."""
        channels, *sides = tensor.shape[1:]
        return (channels, *sides) if len(sides) == 2 else (channels, prod(sides), 1)

    def held(self, tensor: Tensor) -> tuple[str, Shape]:
        """Return the layer that made a tensor, and its form."""
        return self.forms[tensor]

    def read(self, one: Operator, tensor: Tensor, shape: Shape) -> str:
        """Return the layer that has a tensor in a form; where none has, a view is appended."""
        name, form = self.held(tensor)
        if form == shape:
            return name
        if len(form) == IMAGE and shape == (form[1] * form[2], form[0]):
            name = self.append("sequence", one, name)
        elif len(form) == IMAGE - 1 and len(shape) == IMAGE and shape[0] == form[1] and prod(form) == prod(shape):
            name = self.append("image", one, name, height=shape[1])
        elif len(shape) == 1 and prod(form) == shape[0]:
            name = self.append("flatten", one, name)
        elif prod(shape) > prod(form):
            return self.general(one, [name], shape, prod(form) + prod(shape), kernel="copy")
        else:
            name = self.append("reshape", one, name, **sizes_of(shape))
        self.forms[tensor] = name, shape
        return name

    def give(self, one: Operator, name: str, form: Shape, tensor: Tensor | None = None) -> None:
        """Note the layer that made an operator's output."""
        self.forms[tensor or one.output] = name, form

    def general(self, one: Operator, sources: list[str], shape: Shape, moved: int, **more: AttributeValue) -> str:
        """Append an operator of no kind of its own, which moves so many elements forward and backward."""
        return self.append(
            "operator", one, tuple(sources), **{"forward": moved, "backward": moved, **sizes_of(shape), **more}
        )

    def own(self, *weights: Tensor) -> int:
        """Return the parameters that weights are made of and that no layer before has."""
        leaves = {leaf: None for weight in weights for leaf in weight.parameters()}
        fresh = [leaf for leaf in leaves if leaf not in self.used]
        self.used.update(fresh)
        return sum(leaf.size for leaf in fresh)

    def take(self, one: Operator, layer_parameters: int, name: str, form: Shape, *weights: Tensor) -> str:
        """Count the parameters of a layer as used; where weights have more of them, these get a layer behind it."""
        leaves = list({leaf: None for weight in weights for leaf in weight.parameters()})
        again = sum(leaf.size for leaf in leaves if leaf in self.used)
        more = self.own(*weights) + again - layer_parameters
        if again and not more:
            self.shared += again
        elif more > 0:
            name = self.general(one, [name], form, 2 * prod(form), parameters=more)
        return name


def tokens_of(tensor: Tensor) -> Tensor:
    """Return the input that numbers of tokens come from."""
    return behind_moves(tensor, ("view", "slice", "copy", "expand"))


def sizes_of(shape: Shape) -> dict[str, AttributeValue]:
    """Return the attributes of a layer that say the sizes of its output."""
    return dict(zip(("first", "second", "third"), shape, strict=False))
