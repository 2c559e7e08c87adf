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

Operators that are parts of one layer are found by structure, and become one operator in the place of several:
attention of products and a softmax; heads, whose queries, keys and values come from one linear layer or several of one
tensor, rotated or normalised between; normalisation and activations of primitives; gates; biases that are added behind
a product. What is replaced is not removed: nothing needs it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

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
    is_frozen : of a parameter that is not trained
    """

    shape: tuple[int, ...]
    role: str = CONSTANT
    maker: Operator | None = None
    name: str = ""
    is_mask: bool = False
    is_frozen: bool = False

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

    ``name``: the part of the model that it belongs to; ``place``: in the order of execution.
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
    is_merged : whether parameters of equal values may be one, so that it is not known which layers share them
    repeated : parameters of which it is known
    """

    name: str
    batch: int
    inputs: list[Tensor]
    parameters: list[Tensor]
    operators: list[Operator] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_merged: bool = False
    repeated: set[Tensor] = field(default_factory=set)

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


_MOVES = ("view", "slice", "expand", "concat", "copy")
_SHAPES = ("view", "expand", "slice")
_GATES = ("silu", "gelu")
_ROOTS = ("rsqrt", "sqrt", "pow", "reciprocal", "div")
_NORMS = ("rms_norm", "layer_norm")
_LARGEST_FUNCTION = 40
"""Pointwise operators that one activation is made of, at most."""


def rewrite(graph: Graph) -> None:
    """Replace operators that are parts of one layer, in order, so that what stands before one is changed already."""
    readers = graph.readers()
    for change in (
        partial(_with_bias, readers),
        _without_nothing,
        _primitive_attention,
        _normed,
        _scaled_norm,
        _functions,
        _tables,
    ):
        for one in graph.operators:
            if one.output.role == SAMPLE:
                change(one)
    _merge_products(graph)


def _become(one: Operator, kind: str, inputs: Iterable[Tensor], **attributes: object) -> None:
    one.kind, one.inputs, one.attributes = kind, list(inputs), attributes


def behind_moves(tensor: Tensor, kinds: Iterable[str] = ("view",)) -> Tensor:
    """Return what a tensor was before operators of these kinds, each with one input that counts."""
    while tensor.maker is not None and tensor.maker.kind in kinds:
        inputs = tensor.maker.samples() or [one for one in tensor.maker.inputs if one.role == tensor.role]
        if len(inputs) != 1:
            break
        tensor = inputs[0]
    return tensor


def _without_nothing(one: Operator) -> None:
    """Turn what changes no element into a view."""
    samples = one.samples()
    is_same = len(samples) == 1 == len(one.outputs) and samples[0].size == one.output.size
    is_idle = (one.kind == "dropout" and not one.attributes["rate"]) or one.kind in ("slice", "expand", "copy")
    if is_same and is_idle and (one.kind != "copy" or one.label.endswith("_pad_nd")):
        _become(one, "view", samples)


def _with_bias(readers: Mapping[Tensor, list[Operator]], one: Operator) -> None:
    """Turn the sum of a product, which nothing else reads, and a vector of weights into a product with a bias."""
    if one.kind != "pointwise" or one.attributes.get("function") != "add" or len(one.inputs) != 2:
        return
    values, weight = sorted(one.inputs, key=lambda tensor: tensor.role != SAMPLE)
    product = behind_moves(values).maker
    if weight.role == WEIGHT and product is not None and product.kind in ("product", "convolution"):
        wide = product.output.shape[-1] if product.kind == "product" else product.output.shape[1]
        has_bias = sum(1 for tensor in product.inputs if tensor.role == WEIGHT) != 1
        is_only = max(len(readers.get(tensor, ())) for tensor in (values, product.output)) == 1
        if weight.size == wide and weight.maker is None and not has_bias and is_only:
            flat = Operator("view", [weight])
            flat.outputs = [weight := Tensor((wide,), WEIGHT, flat)]
            _become(one, product.kind, [*product.inputs, weight], **product.attributes)


def _primitive_attention(one: Operator) -> None:
    """Turn a product of a softmax and values into attention."""
    if one.kind != "product" or len(one.samples()) != 2:
        return
    weights, values = one.samples()
    rate, softmax = 0.0, weights
    while softmax.maker is not None and (
        softmax.maker.kind in ("dropout", *_SHAPES) or softmax.maker.attributes.get("function") in ("mask", "mul")
    ):
        rate = max(rate, float(softmax.maker.attributes.get("rate", 0.0)))
        if not softmax.maker.samples():
            return
        softmax = softmax.maker.samples()[0]
    if softmax.maker is None or softmax.maker.kind != "softmax":
        return
    bias: list[Tensor] = []
    scores = softmax.maker.samples()[0]
    while scores.maker is not None and scores.maker.kind in (*_SHAPES, "pointwise"):
        bias += [tensor for tensor in scores.maker.inputs if tensor.role != SAMPLE]
        samples = scores.maker.samples()
        if not samples:
            return
        scores = max(samples, key=lambda tensor: tensor.size)
    product = scores.maker
    if product is None or product.kind != "product" or len(product.samples()) < 2:
        return
    bias += [tensor for tensor in product.inputs if tensor.role != SAMPLE]
    queries, keys = product.samples()[:2]
    positions = product.output.shape[-2:]
    learned = [tensor for tensor in bias if tensor.role == WEIGHT]
    is_causal = any(tensor.is_mask and tensor.shape[-2:] == positions for tensor in bias)
    if keys.shape[-1] == positions[-1] and keys.shape[-2] == queries.shape[-1]:
        turned = Operator("view", [keys], place=product.place - 0.5)
        turned.outputs = [keys := Tensor((*keys.shape[:-2], *keys.shape[:-3:-1]), SAMPLE, turned)]
    queries, keys, values = map(_by_heads, (queries, keys, values))
    _become(one, "attention", [queries, keys, values, *learned[:1]], causal=is_causal, dropout=rate, fused=False)


def _by_heads(tensor: Tensor) -> Tensor:
    """Return a tensor before its heads and samples became one axis."""
    before = tensor
    while before.maker is not None and before.maker.kind in ("view", "expand") and len(before.maker.samples()) == 1:
        before = before.maker.samples()[0]
        if before.shape[-2:] == tensor.shape[-2:] and len(before.shape) > 3 and before.size == tensor.size:
            return before
    return tensor


def _of_other_type(tensor: Tensor) -> Tensor:
    """Return a tensor before it was given other numbers of bytes, its shape the same."""
    while tensor.maker is not None and tensor.maker.kind == "view" and tensor.maker.samples():
        before = tensor.maker.samples()[0]
        if before.shape != tensor.shape:
            break
        tensor = before
    return tensor


def _dominator(output: Tensor) -> tuple[Tensor, set[str]] | None:
    """Return the last tensor that all of a pointwise result is made of, and the functions between, if there is one."""
    frontier, functions = {output}, set[str]()
    for _ in range(_LARGEST_FUNCTION):
        last = max(frontier, key=lambda one: one.maker.place if one.maker else -1.0)
        maker = last.maker
        if maker is None or maker.kind not in ("pointwise", "view") or any(one.role == WEIGHT for one in maker.inputs):
            return None
        functions.add(str(maker.attributes.get("function", "view")))
        frontier = (frontier - {last}) | set(maker.samples())
        if len(frontier) == 1:
            return next(iter(frontier)), functions
    return None


def _squared(scale: Tensor) -> Tensor | None:
    """Return the tensor whose squares, or variance, are averaged over the last axis to give a scale by their root."""
    functions = set[str]()
    while scale.maker is not None and scale.maker.kind in ("pointwise", "view") and len(scale.maker.samples()) == 1:
        functions.add(str(scale.maker.attributes.get("function", "view")))
        scale = scale.maker.samples()[0]
    reduction = scale.maker
    if reduction is None or not functions & set(_ROOTS) or not _is_row_mean(reduction):
        return None
    inner = reduction.samples()[0]
    if reduction.attributes["function"] in ("var", "var_mean"):
        return inner
    square = _of_other_type(inner).maker
    if (
        square is None
        or square.kind != "pointwise"
        or square.attributes.get("function") not in ("pow", "mul", "square")
    ):
        return None
    return square.samples()[0] if len(set(square.samples())) == 1 else None


def _is_row_mean(one: Operator) -> bool:
    if one.kind != "reduce" or one.attributes["function"] not in ("mean", "var", "var_mean"):
        return False
    axes = one.attributes["axes"] or []
    rank = len(one.samples()[0].shape)
    return [axis % rank for axis in axes] == [rank - 1]


def _normed(one: Operator) -> None:
    """Turn values times the root of the mean of their squares into a normalisation."""
    if one.kind != "pointwise" or one.attributes.get("function") not in ("mul", "div") or len(one.samples()) != 2:
        return
    values, scale = sorted(one.samples(), key=lambda tensor: -tensor.size)
    if not values.shape or scale.size * values.shape[-1] != values.size:
        return
    squared, values = _squared(scale), _of_other_type(values)
    if squared is None:
        return
    squared, centring = _of_other_type(squared), values.maker
    if centring is not None and centring.kind == "pointwise" and len(centring.samples()) == 2:
        whole, mean = sorted(centring.samples(), key=lambda tensor: -tensor.size)
        is_mean = mean.maker is not None and _is_row_mean(mean.maker)
        if is_mean and squared in (values, _of_other_type(whole)):
            _become(one, "layer_norm", [whole])
            return
    if squared is values:
        _become(one, "rms_norm", [values])


def _scaled_norm(one: Operator) -> None:
    """Take the scale and the shift behind a normalisation of primitives into it."""
    if one.kind != "pointwise" or len(one.inputs) != 2 or one.attributes.get("function") not in ("mul", "add"):
        return
    values, weight = sorted(one.inputs, key=lambda tensor: tensor.role != SAMPLE)
    norm = _of_other_type(values).maker
    if weight.role != WEIGHT or norm is None or norm.kind not in _NORMS or weight.size != values.shape[-1]:
        return
    wanted = 1 if one.attributes["function"] == "mul" else 2
    if len(norm.inputs) == wanted and (wanted == 1 or norm.kind == "layer_norm"):
        _become(one, norm.kind, [*norm.inputs, weight])


def _functions(one: Operator) -> None:
    """Turn pointwise operators of one tensor into the activation that they are."""
    if one.kind != "pointwise":
        return
    if _gate(one) or _scaled_function(one):
        return
    found = _dominator(one.output)
    if found is None or len(found[1] - {"view"}) < 2:  # one is itself
        return
    root, functions = found
    curved = {"tanh": "gelu", "erf": "gelu", "gelu": "gelu", "sigmoid": "silu", "softplus": "softplus", "exp": "elu",
              "relu": "relu", "silu": "silu"}  # fmt: skip
    function = next((name for key, name in curved.items() if key in functions), "")
    if function and root.size == one.output.size:
        _become(one, "pointwise", [root], function=function)


def _scaled_function(one: Operator) -> bool:
    """Take a number that an activation of primitives is multiplied by into it."""
    samples = one.samples()
    function = samples[0].maker if len(samples) == 1 else None
    is_number = all(tensor.role == CONSTANT and tensor.size == 1 for tensor in one.inputs if tensor not in samples)
    if one.attributes.get("function") not in ("mul", "div") or function is None or not is_number:
        return False
    if function.kind != "pointwise" or function.attributes.get("function") not in _GATES:
        return False
    _become(one, "pointwise", function.inputs, **function.attributes)
    return True


def _gate(one: Operator) -> bool:
    """Turn a function of one half of a tensor, times the other half, into a gated activation."""
    if one.attributes.get("function") != "mul" or len(one.samples()) != 2:
        return False
    for gate, values in (one.inputs, one.inputs[::-1]):
        function = gate.maker
        if function is None or function.kind != "pointwise" or function.attributes.get("function") not in _GATES:
            continue
        halves = [behind_moves(function.samples()[0], ("slice",)), behind_moves(values, ("slice",))]
        if halves[0] is halves[1] and halves[0].size == 2 * one.output.size:
            _become(one, "gate", halves[:1], function=function.attributes["function"])
            return True
        makers = [behind_moves(half).maker for half in (function.samples()[0], values)]
        are_apart = makers[0] is not makers[1]
        if are_apart and all(map(_is_linear, makers)) and _source(makers[0]) is _source(makers[1]):
            _become(one, "gates", [function.samples()[0], values], function=function.attributes["function"])
            return True
    return False


def _is_linear(one: Operator | None) -> bool:
    one = None if one is None else behind_moves(one.output).maker
    return one is not None and one.kind == "product" and len(one.samples()) == 1


def _source(one: Operator | None) -> Tensor:
    """Return what a linear layer reads, whatever its shape."""
    assert one is not None  # noqa: S101 - asked of linear layers
    product = behind_moves(one.output).maker
    assert product is not None  # noqa: S101
    return behind_moves(product.samples()[0])


def _tables(one: Operator) -> None:
    """Turn the sum of rows of a table of tokens, and of positions or types, into one embedding."""
    if one.kind != "pointwise" or one.attributes.get("function") != "add" or len(one.inputs) != 2:
        return
    values, weight = sorted(one.inputs, key=lambda tensor: tensor.role != SAMPLE)
    embedding, other = behind_moves(values).maker, behind_moves(weight).maker
    if embedding is None or embedding.kind != "embedding" or weight.shape[-2:] != values.shape[-2:]:
        return
    tables = list(weight.parameters())
    if other is not None and other.kind == "embedding" and other.output.role == SAMPLE:  # of types of tokens
        tables = [leaf for tensor in other.inputs for leaf in tensor.parameters()]
    features, mine = values.shape[-1], {leaf for tensor in embedding.inputs for leaf in tensor.parameters()}
    if tables and not mine & set(tables) and all(table.size % features == 0 for table in tables):
        _become(one, "embedding", [*embedding.inputs, *tables])


@dataclass(slots=True)
class Heads:
    """Where queries, keys or values of attention come from.

    Attributes
    ----------
    source : the tensor before anything is done head by head
    rotated : features of a position that are rotated
    norm : features of a head that is normalised; 0: none is
    weights : parameters of that
    """

    source: Tensor
    rotated: int = 0
    norm: int = 0
    weights: list[Tensor] = field(default_factory=list)


def heads_of(tensor: Tensor, graph: Graph) -> Heads:
    """Return where the heads of a tensor come from: before shapes, rotations by position and norms of heads."""
    found = Heads(tensor)
    sources: dict[Tensor, None] = {}
    todo, seen, width = [tensor], set[Tensor](), tensor.shape[-1]
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        maker = one.maker
        if maker is not None and maker.output.role == SAMPLE and _is_inner(maker, width):
            if maker.kind in _NORMS:
                found.norm, found.weights = width, [leaf for leaf in maker.inputs if leaf.role == WEIGHT]
            elif maker.kind == "pointwise" and any(other.role == CONSTANT and other.size > 1 for other in maker.inputs):
                positions = max(graph.batch * tensor.shape[-2], 1)
                found.rotated = max(found.rotated, one.size // positions)
            todo += maker.samples()
        else:
            sources[one] = None
    if len(sources) != 1:
        return Heads(tensor)
    found.source = next(iter(sources))
    return found


def _is_inner(maker: Operator, width: int) -> bool:
    """Tell whether an operator between a linear layer and attention works on heads alone."""
    if maker.kind in _MOVES:
        return True
    if maker.kind == "pointwise" and maker.attributes.get("function") in ("mul", "add", "neg", "div"):
        is_of_heads = len(maker.samples()) == 1 or maker.output.shape[-1] <= width
        return is_of_heads and all(one.role != WEIGHT for one in maker.inputs)
    is_of_head = maker.kind == "rms_norm" and maker.samples()[0].shape[-1] == width
    return is_of_head and len(maker.inputs) <= 2  # values and a scale


def _merge_products(graph: Graph) -> None:
    """Make one linear layer of those before attention, or before a gate, that read the same tensor."""
    for one in list(graph.operators):
        if one.output.role == SAMPLE and one.kind == "gates":
            merged = _merged(graph, list(one.inputs), one)
            if merged is not None:
                _become(one, "gate", [merged], **one.attributes)
            else:
                first = Operator(
                    "pointwise", [one.inputs[0]], {"function": one.attributes["function"]}, one.name, one.label,
                    one.place - 0.5,
                )  # fmt: skip
                first.outputs = [Tensor(one.inputs[0].shape, SAMPLE, first)]
                graph.operators.append(first)
                _become(one, "pointwise", [first.output, one.inputs[1]], function="mul")
        elif one.output.role == SAMPLE and one.kind == "attention":
            _join_heads(graph, one)


def _join_heads(graph: Graph, one: Operator) -> None:
    """Give attention its sources in the place of queries, keys and values: one tensor, or queries and both others."""
    heads = [heads_of(tensor, graph) for tensor in one.inputs[:3]]
    query, key, value = one.inputs[:3]
    norms = [one for one in heads if one.norm]
    is_masked = any(mask.is_mask and mask.shape[-2:] == (query.shape[-2], key.shape[-2]) for mask in one.inputs[3:])
    attributes = {
        **one.attributes, "causal": one.attributes["causal"] or is_masked, "query": query.shape, "key": key.shape,
        "value": value.shape, "rotated": heads[0].rotated + heads[1].rotated,
        "norm": max(part.norm for part in heads[:2]), "norms": [leaf for part in norms for leaf in part.weights],
    }  # fmt: skip
    sources = list(dict.fromkeys(part.source for part in heads))
    joined: Tensor | None = sources[0] if len(sources) == 1 else _merged(graph, sources, one)
    rest = [bias for bias in one.inputs[3:] if bias.role == WEIGHT]
    if joined is not None:
        _become(one, "attention", [joined, *rest], **attributes)
        return
    others = list(dict.fromkeys(part.source for part in heads[1:]))
    both = others[0] if len(others) == 1 else _merged(graph, others, one)
    parts = others if both is None else [both]
    if query.shape[-2] == key.shape[-2] and (both is None or both.size != 2 * query.size):  # of one sequence
        joined = _concat(graph, [heads[0].source, *parts], key.shape[-2], one)
        _become(one, "attention", [joined, *rest], **attributes)
        return
    both = both or _concat(graph, parts, key.shape[-2], one)
    _become(one, "attention", [heads[0].source, both, *rest], **attributes)


def _concat(graph: Graph, parts: list[Tensor], positions: int, before: Operator) -> Tensor:
    """Return a tensor of the features of several, position by position."""
    one = Operator("concat", parts, {"axis": -1}, before.name, "concat", before.place - 0.5)
    rows = graph.batch * positions
    one.outputs = [Tensor((rows, sum(part.size for part in parts) // rows), SAMPLE, one)]
    graph.operators.append(one)
    return one.output


def _merged(graph: Graph, parts: list[Tensor], before: Operator) -> Tensor | None:
    """Return the output of one linear layer in the place of several that read the same tensor; None: they do not."""
    products = []
    for part in parts:
        maker = behind_moves(part).maker
        if not _is_linear(maker):
            return None
        products.append(maker)
    if len({_source(one) for one in products}) != 1:
        return None
    makers = [one for one in products if one is not None]
    width = sum(one.output.shape[-1] for one in makers)
    first = makers[0]
    weights = [leaf for one in makers for leaf in one.inputs if leaf.role == WEIGHT]
    inputs = [first.samples()[0], *weights]
    joined = Operator("product", inputs, {"merged": makers}, before.name, first.label, first.place + 0.25)
    joined.outputs = [Tensor((*first.output.shape[:-1], width), SAMPLE, joined)]
    graph.operators.append(joined)
    return joined.output
