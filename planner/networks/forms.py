"""What stands between tensors of a model that is read and layers: names, forms, views and parameters.

And what autograd saves of a model as it is written, where its layers would keep less: GELU, norms, gates of primitives.
An operator saves inputs, its output, or neither, as PyTorch's tools/autograd/derivatives.yaml declares. Memory that
several save, or that is saved under several shapes, counts once. Masks and whole numbers are left to kinds of layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from planner.domain.layers.record import INPUT, LAYER_KINDS, AttributeValue, Layer, Shape, Site
from planner.domain.network import Network, input_shapes, layer_shapes, output_shape, parameters_of
from planner.errors import ParameterError
from planner.networks.builder import NetworkBuilder
from planner.networks.operators import CONSTANT, SAMPLE, UNKNOWN, WEIGHT, Graph, Operator, Tensor, behind_moves

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
        self.marks: dict[str, tuple[bool, bool]] = {}
        self.tokens: list[Tensor] = []
        self.input_shape = self._read_inputs()
        self.shapes: dict[str, Shape] = {INPUT: self.input_shape}
        self.check(0)

    def _read_inputs(self) -> Shape:
        first = self.graph.inputs[0]
        shape = first.shape[1:] or (1,)
        embeddings = [one for one in self.graph.needed() if one.kind == "embedding"]
        self.tokens = list(dict.fromkeys(tokens_of(one.samples()[0]) for one in embeddings))
        if len(shape) > (1 if self.tokens else IMAGE):
            rule = "tokens, (positions,), as others are" if self.tokens else "one to three sizes"
            raise ParameterError(f"input {first.name} of {self.graph.name}", rule, shape)
        self.forms |= {one: (INPUT, one.shape[1:] or (1,)) for one in self.graph.inputs}
        read = {tensor for one in self.graph.needed() for tensor in one.samples()}
        others = [one for one in self.graph.inputs if one in read and one not in self.tokens]
        if self.tokens:
            shape = (sum(prod(one.shape[1:]) for one in self.tokens),)
        elif len({one.shape for one in others}) > 1:  # a sample has all of them, one behind the other
            shape = (sum(map(self.elements, others)),)
        sums = (one for one in self.graph.needed() if one.attributes.get("function") == "add")
        added = {tensor for one in sums for tensor in one.samples()}
        for one in others:
            form, part = self.default(one), Operator(INPUT, [], name=one.name)
            if one in added and form == shape and len(form) == 2:  # what stands before the first block
                self.give(part, self.append("reshape", part, INPUT, **sizes_of(form)), form, one)
            elif self.tokens or prod(shape) != prod(form):
                name = self.append("operator", part, INPUT, forward=0, backward=0, **sizes_of(form))
                self.give(part, name, form, one)
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

    def rows(self, tensor: Tensor, like: Tensor | None = None) -> Shape:
        """Return the shape of a sample as a sequence: its last axis are features; ``like``: as many rows as of that."""
        whole = like or tensor
        positions = max(1, self.elements(whole) // (whole.shape[-1] if len(whole.shape) > 1 else 1))
        features = max(1, self.elements(tensor) // positions)
        is_vector = positions == 1 and len(whole.shape) <= 2  # batch and features
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

    def check(self, before: int) -> None:
        """Work out the shapes of the layers appended since; ParameterError where one cannot read what it is given."""
        for layer in self.net.layers[before:]:
            self.shapes[layer.name] = output_shape(layer, self.shapes)

    def mark(self, before: int, *, shares: bool, is_frozen: bool) -> None:
        """Note of the layers appended since whether their parameters are an earlier layer's, and are not trained."""
        self.marks |= {layer.name: (shares, is_frozen) for layer in self.net.layers[before:]}

    def marked(self, network: Network) -> Network:
        """Return the network with what is noted of layers that have parameters."""
        shapes = layer_shapes(network)

        def marked(one: Layer) -> Layer:
            shares, is_frozen = self.marks.get(one.name, (False, False))
            is_tied = bool(one.attributes.get("tied"))
            has_own = is_tied or parameters_of(one, shapes[one.inputs[0]]) > 0
            return replace(one, shares=shares and not is_tied, is_frozen=is_frozen) if has_own else one

        return replace(network, layers=tuple(map(marked, network.layers)))

    def general(self, one: Operator, sources: list[str], shape: Shape, moved: int, **more: AttributeValue) -> str:
        """Append an operator of no kind of its own, which moves so many elements forward and backward."""
        return self.append(
            "operator", one, tuple(sources), **{"forward": moved, "backward": moved, **sizes_of(shape), **more}
        )

    def is_shared(self, leaves: set[Tensor]) -> bool:
        """Tell whether parameters are known to be those of an earlier layer."""
        return leaves <= self.used and (not self.graph.is_merged or leaves <= self.graph.repeated)

    def own(self, *weights: Tensor) -> int:
        """Return the parameters that weights are made of and that no layer before has."""
        leaves = {leaf: None for weight in weights for leaf in weight.parameters()}
        fresh = [leaf for leaf in leaves if leaf not in self.used]
        self.used.update(fresh)
        return sum(leaf.size for leaf in fresh)

    def take(self, one: Operator, layer_parameters: int, name: str, form: Shape, *weights: Tensor) -> str:
        """Count the parameters of a layer as used; where weights have more of them, these get a layer behind it.

        Those of an earlier layer count in both, unless they are all that this one has and known to be shared.
        """
        leaves = {leaf for weight in weights for leaf in weight.parameters()}
        again = sum(leaf.size for leaf in leaves & self.used)
        is_shared = self.is_shared(leaves)
        more = self.own(*weights) + again - layer_parameters
        if again and not more:
            self.shared += again * (not is_shared)
        elif more > 0:
            name = self.general(one, [name], form, 2 * prod(form), parameters=more)
        return name


def tokens_of(tensor: Tensor) -> Tensor:
    """Return the input that numbers of tokens come from."""
    return behind_moves(tensor, ("view", "slice", "copy", "expand"))


def sizes_of(shape: Shape) -> dict[str, AttributeValue]:
    """Return the attributes of a layer that say the sizes of its output."""
    return dict(zip(("first", "second", "third"), shape, strict=False))


_FACTORS = ("mul", "addcmul", "product", "convolution")
"""Kinds and functions of which each operand is saved for the gradient of the other."""
_ADDENDS = ("addmm", "baddbmm", "addmv", "addcmul")
"""Operators whose first operand is added."""
_EXTREMES = ("amax", "amin", "std", "prod", "logsumexp", "linalgvectornorm", "reducemax", "reducemin", "reducel2")
_RESULTS = (
    "relu", "tanh", "sigmoid", "exp", "exp2", "expm1", "sqrt", "rsqrt", "reciprocal", "tan", "softmax", "safesoftmax",
    *_EXTREMES,
)  # fmt: skip
_ARGUMENTS = (
    "pow", "square", "log", "log1p", "log2", "erf", "sin", "cos", "abs", "gelu", "silu", "swish", "mish", "softplus",
    "elu", "celu", "selu", "leakyrelu", "hardtanh", "relu6", "clamp", "clampmin", "clampmax", "clip", "threshold",
    "hardswish", "hardsigmoid", "logsigmoidforward", "softsign", "glu", "prelu", "prelukernel", "maximum", "minimum",
    "max", "min", "atan2", "var", "varmean", "reducesumsquare", "gather", "reflectionpad2d", "replicationpad2d",
    "gridsampler2d", *_EXTREMES,
)  # fmt: skip
_RESULTS_IN_PLACE = (*_RESULTS, "elu", "leakyrelu", "celu", "selu")
_NAMED = ("pointwise", "reduce", "softmax", "copy")
"""Kinds of which the name of the operator tells what is saved."""
_KINDS = ("batch_norm", "group_norm", "layer_norm", "rms_norm", "pool", "attention", UNKNOWN)
"""Operators whose inputs are saved for the backward pass."""
_EXPORTED = ("Erf", "Sigmoid")
"""Of functions that an exporter takes apart, where PyTorch has one operator: GELU and SiLU."""


class Saved:
    """What a graph saves before it is rewritten, and what layers keep of that besides what their kinds keep.

    ``elements``: of a sample that each operator is the first to save, in order.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.readers = graph, graph.readers()
        self.elements: dict[Operator, int] = {}
        trained, seen = set[Tensor](), set[Tensor]()
        for one in graph.needed():
            self.elements[one] = 0
            if any(_is_trained(tensor) or tensor in trained for tensor in one.inputs):
                trained.update(one.outputs)
                fresh = {_memory(saved) for saved in _saved(one, trained) if saved.role == SAMPLE} - seen
                seen |= fresh
                self.elements[one] = sum(tensor.size for tensor in fresh) // graph.batch
                if one.kind == "attention" and _has_scores(one):
                    query, key = (tensor.shape for tensor in one.inputs[:2])
                    self.elements[one] += prod(query[:-1]) * key[-2] // graph.batch

    def kept(self, network: Network, made: Mapping[Operator, Sequence[str]]) -> Network:
        """Return the network whose layers keep what is saved; ``made``: of each operator that is left, in order."""
        shapes, counts, parts = layer_shapes(network), _counted(network), self._parts()
        kept, owed = dict[str, float](), 0.0
        for one, names in made.items():
            if any(part.label in _EXPORTED for part in parts[one] if part is not one):
                continue
            saved = [self.elements[part] for part in parts[one] if self.elements[part]]
            has_statistics = len(saved) > 1 or len(one.outputs) > 1
            layers = [name for name in names if name in counts]
            owed += sum(saved) - sum(counts[name][0] + counts[name][1] * has_statistics for name in layers)
            if layers and owed > 0:
                kept[layers[-1]], owed = owed / prod(shapes[layers[-1]]), 0.0
        return replace(network, layers=tuple(replace(one, kept=kept.get(one.name, 0.0)) for one in network.layers))

    def _parts(self) -> dict[Operator, list[Operator]]:
        """Return the operators that each of the rewritten graph was made of, itself among them."""
        there = self.graph.needed()
        parts: dict[Operator, list[Operator]] = {one: [] for one in there}
        owner = {part: one for one in there for part in one.attributes.get("merged", ())} | {one: one for one in there}
        for one in reversed(self.elements):
            if one not in owner:
                readers = [owner[reader] for tensor in one.outputs for reader in self.readers.get(tensor, ())]
                owner[one] = min(readers, key=lambda reader: reader.place, default=there[-1])
            parts[owner[one]].append(one)
        return parts


def _base(one: Operator) -> str:
    return one.label.removeprefix("aten.").partition(".")[0].replace("_", "").lower()


def _is_in_place(one: Operator) -> bool:
    return one.kind == "pointwise" and one.label.startswith("aten.") and one.label.endswith("_")


def _has_scores(one: Operator) -> bool:
    """Tell whether attention keeps its scores: fused kernels give no gradient of a bias."""
    return any(tensor.role == WEIGHT for tensor in one.inputs)


def _is_trained(tensor: Tensor) -> bool:
    return any(not leaf.is_frozen for leaf in tensor.parameters())


def _memory(tensor: Tensor) -> Tensor:
    """Return the tensor whose memory a tensor is in, as a view of it or written over it."""
    while tensor.maker is not None and tensor.maker.samples():
        one = tensor.maker
        is_view = one.kind == "slice" or one.label.startswith(("aten.expand", "aten.broadcast_to"))
        if one.kind == "view":  # one kernel of attention writes heads side by side: no copy is made
            before = behind_moves(tensor).maker
            is_view = not one.attributes.get("moved") or (before is not None and before.kind == "attention")
        if one.kind == "dropout":
            is_view = not one.attributes["rate"]
        if _is_in_place(one):
            is_plain = all(other.role == CONSTANT for other in one.inputs[1:]) and _base(one) not in _ARGUMENTS
            is_sum = one.attributes.get("function") in ("add", "mask")
            is_view = is_plain or is_sum or _base(one) in _RESULTS_IN_PLACE
        if not is_view:
            break
        tensor = one.samples()[0]
    return tensor


def _saved(one: Operator, trained: set[Tensor]) -> Iterator[Tensor]:
    """Yield what an operator saves; ``trained``: tensors that have a gradient, besides weights."""
    base, inputs, function = _base(one), one.inputs, one.attributes.get("function")
    gradients = [_is_trained(tensor) or tensor in trained for tensor in inputs]
    is_over = _is_in_place(one) and base in _RESULTS_IN_PLACE
    if one.kind in _FACTORS or function in _FACTORS:
        for at, tensor in enumerate(inputs):
            if any(gradients[:at] + gradients[at + 1 :]) and (at or base not in _ADDENDS):
                yield tensor
    elif function == "div":
        yield from inputs if any(gradients[1:]) else inputs[1:]
    elif one.kind == "attention":  # keys of fewer heads are read by several in one kernel
        yield from (behind_moves(tensor, ("view", "expand")) for tensor in inputs)
        yield from () if _has_scores(one) else one.outputs
    elif one.kind in _KINDS:
        is_mean = one.attributes.get("mode") == "average" and one.attributes.get("resized")
        yield from () if is_mean and prod(one.output.shape[2:]) == 1 else inputs
        yield from one.outputs[1:] if one.kind in ("layer_norm", "group_norm") else ()  # statistics of rows
    elif one.kind in _NAMED:
        yield from inputs if base in _ARGUMENTS and not is_over else ()
        yield from one.outputs if base in _RESULTS or is_over else ()


def _counted(network: Network) -> dict[str, tuple[int, float]]:
    """Return elements that layers but views keep by kind, tensors once, and statistics in elements of 4 bytes."""
    shapes, root, seen, trained = layer_shapes(network), {INPUT: INPUT}, set[str](), {INPUT: False}
    found = {}
    for layer in network.layers:
        kind, inputs = LAYER_KINDS[layer.kind], input_shapes(layer, shapes)
        parameters, flows = parameters_of(layer, inputs[0]), tuple(trained[source] for source in layer.inputs)
        trained[layer.name] = ((parameters > 0 or layer.shares) and not layer.is_frozen) or any(flows)
        root[layer.name] = root[layer.inputs[0]] if kind.is_view else layer.name
        if not kind.is_view:
            site = Site(0, layer, inputs, shapes[layer.name], parameters, flows, 1)
            of_inputs, of_output = layer.keeps
            names = {root[name] for name in (*layer.inputs * of_inputs, *(layer.name,) * of_output)} - seen
            statistics, elements = kind.kept_besides(site, 0), sum(prod(shapes[name]) for name in names)
            elements += (kind.kept_besides(site, 1) - statistics) * (layer.kind != "embedding")
            has_statistics = layer.kind.endswith("_norm") or layer.kind == "rotary"
            seen |= names if trained[layer.name] else set()
            found[layer.name] = elements * trained[layer.name], statistics / 4 * has_statistics * trained[layer.name]
    return found
