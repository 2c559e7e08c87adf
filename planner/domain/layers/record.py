"""What is known of a kind of layer: one record, declared once, from which every room reads.

Shapes are per sample: (channels, height, width) of an image, (features,) of a vector, (positions, features) of a
sequence, (positions,) of the token numbers that an embedding reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, NamedTuple

from planner.domain.arrays import LARGEST_COUNT, check_count, frozen_map
from planner.domain.kernels import BACKWARD_DATA, FORWARD
from planner.domain.keys import Key
from planner.errors import ParameterError, UnknownNameError

AttributeValue = int | float | str | bool | tuple[int, int]
Shape = tuple[int, ...]
Amount = tuple[int, int]
"""A count (a, b) that is a + b·n for a sub-batch of n samples."""

INPUT = "input"
"""The name under which layers refer to the network's input."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of a layer kind: type, default (None: required), rule in words, and the least whole number.

    ``pair`` is a whole number for both axes, or two of them: (height, width). ``quiet``: at its default it is not part
    of the names that measured calls have, as it is younger than they are.
    """

    type: str  # "int", "pair", "float", "bool" or one of "a|b|c"
    default: AttributeValue | None
    doc: str
    least: int = 1
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: kind, name, the layers it reads, and every attribute of its kind (defaults filled in).

    Parameters that are not trained have no gradient, no optimizer state and no update.
    """

    name: Annotated[str, Key("unique in the network", is_name=True)]
    kind: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    is_frozen: Annotated[bool, Key("whether its parameters are not trained; absent: false", name="frozen")] = False
    shares: Annotated[bool, Key("whether its parameters are an earlier layer's; absent: false")] = False
    kept: Annotated[float, Key("elements kept for the backward pass besides those of its kind, per element out")] = 0.0

    def __post_init__(self) -> None:
        if self.kind not in LAYER_KINDS:
            raise UnknownNameError(f"layer {self.name}: kind", self.kind, LAYER_KINDS)
        spec = LAYER_KINDS[self.kind].attributes
        for key in self.attributes:
            if key not in spec:
                raise UnknownNameError(f"layer {self.name}: attribute", key, spec)
        filled = {key: _checked(self, key, attribute) for key, attribute in spec.items()}
        object.__setattr__(self, "attributes", frozen_map(filled))

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Whether it keeps its inputs, and its output, for the backward pass."""
        kind = LAYER_KINDS[self.kind]
        of_inputs, of_output = kind.keeps(self)
        return of_inputs and not (self.is_frozen and kind.keeps_for_weights), of_output

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


def tensors_of(layer: Layer, shape: Shape) -> tuple[int, ...]:
    """Return the elements of each tensor of parameters of a layer that reads a shape, none of an earlier layer's."""
    return () if layer.shares else LAYER_KINDS[layer.kind].parameters(layer, shape)


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
class Site:
    """A layer at its place in a network; what equal layers share.

    Attributes
    ----------
    position : of the first such layer in ``Network.layers``
    layer : the first
    inputs : per sample, in the order of ``layer.inputs``
    input_gradients : whether a gradient has to be passed on to each input: something trained stands before it
    reads : how often the output is read
    """

    position: int
    layer: Layer
    inputs: tuple[Shape, ...]
    output: Shape
    parameters: int
    input_gradients: tuple[bool, ...]
    reads: int

    @property
    def trained(self) -> int:
        """Parameters that have a gradient and are updated: all, or none."""
        return 0 if self.layer.is_frozen else self.parameters

    @property
    def has_gradient(self) -> bool:
        """Whether the output has a gradient: the layer, or one before it, is trained."""
        shares = self.layer.shares and not self.layer.is_frozen
        return self.trained > 0 or shares or any(self.input_gradients)

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
        """Multiply-adds of products forward, per sample."""
        return LAYER_KINDS[self.layer.kind].macs(self)

    @property
    def training_flop(self) -> int:
        """FLOP of products forward and backward, per sample, two a multiply-add.

        Backward takes each operand's gradient, of as many FLOP as forward: of weights unless they are frozen, of inputs
        where one has to be passed on. Scores that a fused kernel makes again are not counted.
        """
        weights = LAYER_KINDS[self.layer.kind].multiplies_weights
        operands = any(self.input_gradients) * (1 if weights else 2)
        return 2 * self.forward_mac * (1 + operands + (weights and not self.layer.is_frozen))


def fixed(count: int) -> Amount:
    """Return a count that does not depend on the sub-batch."""
    return (count, 0)


def per_sample(count: int) -> Amount:
    """Return a count proportional to the sub-batch."""
    return (0, count)


def traffic(elements: int, moved_elements: int, fixed_bytes: int = 0) -> tuple[Amount, Amount, Amount]:
    """Return the work of a kernel that moves bytes, each count per sample."""
    return per_sample(elements), per_sample(moved_elements), per_sample(fixed_bytes)


@dataclass(frozen=True, slots=True)
class Call:
    """``count`` kernel calls that a layer makes, work in the order of the kind's columns."""

    kind: str
    direction: str
    work: tuple[Amount, ...]
    count: Amount = (1, 0)


class Lowering(NamedTuple):
    """How convolutions are done: by im2col and products, and then of one image at a time."""

    im2col: bool = False
    per_image: bool = False


class Share(NamedTuple):
    """The attribute of a layer that a tensor-parallel rank has a part of: an exact one, or rounded up."""

    attribute: str
    is_rounded_up: bool = False


def passes(kind: str, site: Site, forward: tuple[Amount, ...], backward: tuple[Amount, ...]) -> Iterator[Call]:
    """Yield a call forward, and one backward where the output has a gradient."""
    yield Call(kind, FORWARD, forward)
    if site.has_gradient:
        yield Call(kind, BACKWARD_DATA, backward)


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A kind of layer; what is left out is as of a layer that changes nothing, has no parameters and makes no call.

    Attributes
    ----------
    attributes : mapping of name to Attribute
    output : layer, input shapes -> Shape, ParameterError where the layer cannot read them
    ranks : lengths of the shapes that it reads
    joins : whether it reads two layers or more, else one; None: any number
    parameters : layer, input shape -> tuple of int, elements of each tensor of its parameters
    calls : site, lowering -> Call of one step, but for its update
    macs : site -> int, multiply-adds of products forward, per sample
    multiplies_weights : whether one operand of its products are weights; else both are inputs
    keeps : layer -> (bool, bool), whether it keeps its inputs, and its output, for the backward pass
    keeps_for_weights : whether it keeps its inputs for the gradients of its weights alone
    kept_besides : site, bytes of an element -> int, bytes per sample that it keeps besides tensors of layers
    kept_between : site, bytes of an element -> int, those of them that tensor ranks have a part of each which share
        positions, where it is not all
    repeated : site, bytes of an element -> int, those of them that are made again where attention is (selective
        recompute)
    inside : site -> int, elements per sample of gradients that exist inside of it only
    is_view : whether its output is another name for a tensor that is there
    computes : {"widest", "16 bits", "fp32", "fp32 on gpu"}, in mixed precision of 16 bits: in the widest type of its
        inputs, or in one whatever they are
    share : layer -> Share or None, what a tensor-parallel rank has of it, where layers around it do not say; None: the
        whole layer
    outputs : attribute that counts the channels or features out of a layer that sums over all those in; empty: it is
        no such product
    window : attribute of what slides over the rows of an image: a part of them needs so many of its neighbours
    divides : {"channels", "space"}, along what a part of every input gives the same part of the output by itself
    module : PyTorch, layer, input shapes -> callable, what computes it: a module, or a function where nothing is
        trained. It takes a tensor for each input, and a loss the targets besides; PyTorch is handed over, so that
        nothing is imported here
    """

    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    output: Callable[[Layer, tuple[Shape, ...]], Shape] = lambda _layer, inputs: inputs[0]
    ranks: tuple[int, ...] = (1, 2, 3)
    joins: bool | None = False
    parameters: Callable[[Layer, Shape], tuple[int, ...]] = lambda _layer, _shape: ()
    calls: Callable[[Site, Lowering], Iterable[Call]] = lambda _site, _lowering: ()
    macs: Callable[[Site], int] = lambda _site: 0
    multiplies_weights: bool = True
    keeps: Callable[[Layer], tuple[bool, bool]] = lambda _layer: (False, False)
    keeps_for_weights: bool = False
    kept_besides: Callable[[Site, int], int] = lambda _site, _itemsize: 0
    kept_between: Callable[[Site, int], int] = lambda _site, _itemsize: 0
    repeated: Callable[[Site, int], int] = lambda _site, _itemsize: 0
    inside: Callable[[Site], int] = lambda _site: 0
    is_view: bool = False
    computes: str = "widest"
    share: Callable[[Layer], Share | None] = lambda _layer: None
    outputs: str = ""
    window: str = ""
    divides: tuple[str, ...] = ()
    module: Callable[[Any, Layer, tuple[Shape, ...]], Any] = lambda _torch, _layer, _inputs: lambda values: values


LAYER_KINDS: dict[str, LayerKind] = {}
"""By name; filled by the modules beside this one."""
