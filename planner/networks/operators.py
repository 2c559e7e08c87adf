"""What importers make of a model: tensors, and operators between them, in order of execution.

A *sample* tensor depends on the input; a *weight* on parameters alone (a parameter, or what is made of some); a
*constant* on neither. What no sample goes into is worked out once, whatever the operator, and makes no layer.

==============  =================================================================================================
kind            inputs; attributes
==============  =================================================================================================
view            one; the same elements under another shape, order or type; ``moved``: they are written anew
slice           one; ``axis``, ``start``
expand          one; fewer elements, repeated
concat          any; ``axis``
pointwise       any; ``function``
reduce          one; ``axes``, ``function``
product         two, and a bias; matrix products over the last axis of the first
convolution     values, weights, bias; ``stride``, ``padding``, ``dilation``, ``groups``, ``transposed``
embedding       table, numbers
softmax         one
loss            one; logarithms of a softmax
batch_norm      values and parameters; so ``group_norm``, ``layer_norm`` and ``rms_norm``
pool            one; ``mode``, ``window``, ``stride``, ``padding``, ``ceil``; ``resized``: to the shape of its output
upsample        one
dropout         one; ``rate``
attention       queries, keys, values (..., heads, positions, features) and a bias; ``causal``
copy            one; other elements: padded, rolled, picked
==============  =================================================================================================

Any other kind is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

__all__ = ["CONSTANT", "SAMPLE", "UNKNOWN", "WEIGHT", "Graph", "Operator", "Tensor", "is_square"]

SAMPLE, WEIGHT, CONSTANT = "sample", "weight", "constant"
UNKNOWN = "unknown"


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor, with its whole batch.

    Attributes
    ----------
    role : SAMPLE, WEIGHT or CONSTANT
    maker : of an output; None: of an input, a parameter or a constant
    name : of a parameter or an input
    is_mask : whether it tells earlier positions from later ones: made by an order, or as a triangle
    """

    shape: tuple[int, ...]
    role: str = CONSTANT
    maker: Operator | None = None
    name: str = ""
    is_mask: bool = False

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    def parameters(self) -> dict[Tensor, None]:
        """Return the parameters that a weight is made of, in order."""
        if self.role != WEIGHT or self.maker is None:
            return {self: None} if self.role == WEIGHT else {}
        return {leaf: None for one in self.maker.inputs for leaf in one.parameters()}


@dataclass(eq=False, slots=True)
class Operator:
    """An operator: its kind, inputs and attributes as the module says; ``label``: as its framework calls it.

    Attributes
    ----------
    name : the part of the model that it belongs to
    place : in the order of execution
    """

    kind: str
    inputs: list[Tensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    label: str = ""
    place: float = 0.0
    outputs: list[Tensor] = field(default_factory=list)

    @property
    def output(self) -> Tensor:
        """The first."""
        return self.outputs[0]

    def samples(self) -> list[Tensor]:
        """Return the inputs that depend on the sample."""
        return [one for one in self.inputs if one.role == SAMPLE]


@dataclass(slots=True)
class Graph:
    """A model that was read.

    Attributes
    ----------
    name : of the model
    batch : samples of its tensors
    inputs : in order; tokens of several stand side by side in a sample
    parameters : all of them, used or not
    operators : in order of execution
    outputs : that are trained
    notes : what the model has otherwise, a sentence each
    """

    name: str
    batch: int
    inputs: list[Tensor]
    parameters: list[Tensor]
    operators: list[Operator] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, kind: str, inputs: Iterable[Tensor], shapes: Iterable[tuple[int, ...]], **attributes: Any
    ) -> Operator:
        """Append an operator whose outputs have these shapes; ``name`` and ``label`` are not attributes."""
        name, label = attributes.pop("name", ""), attributes.pop("label", kind)
        one = Operator(kind, list(inputs), attributes, name, label, float(len(self.operators)))
        roles = {tensor.role for tensor in one.inputs}
        role = next((role for role in (SAMPLE, WEIGHT) if role in roles), CONSTANT)
        is_ordered = attributes.get("function") == "order"
        had_order = kind != "embedding" and any(tensor.is_mask for tensor in one.inputs)
        for shape in shapes:
            is_mask = role != SAMPLE and (had_order or (is_ordered and len(shape) > 1 and shape[-1] >= shape[-2] > 1))
            one.outputs.append(Tensor(tuple(shape), role, one, is_mask=is_mask))
        self.operators.append(one)
        return one

    def needed(self, *outputs: Tensor) -> list[Operator]:
        """Return the operators that outputs, or those of the graph, depend on and a sample goes into, in order."""
        found: dict[Operator, None] = {}
        todo = list(outputs or self.outputs)
        while todo:
            maker = todo.pop().maker
            if maker is not None and maker not in found and maker.output.role == SAMPLE:
                found[maker] = None
                todo += maker.samples()
        return sorted(found, key=lambda one: one.place)

    def readers(self) -> dict[Tensor, list[Operator]]:
        """Return the operators that read each tensor, of those that are needed."""
        found: dict[Tensor, list[Operator]] = {}
        for one in self.needed():
            for tensor in dict.fromkeys(one.inputs):
                found.setdefault(tensor, []).append(one)
        return found


def is_square(shape: tuple[int, ...]) -> bool:
    """Tell whether a shape has two last sides alike, as what pairs positions has."""
    return len(shape) > 1 and shape[-1] == shape[-2] > 1
