"""One rank's shard of a network, as a network of its own; networks of which a part is trained.

t: tensor-parallel degree. As Megatron-LM splits a transformer (Shoeybi et al. 2019, arXiv:1909.08053, section 3):

=====================================  ================================================================
layer                                  of each rank
=====================================  ================================================================
linear before attention (QKV)          by columns: a t-th of the features out
attention                              a t-th of the heads; of fewer heads of keys and values at least one
linear behind attention                by rows: a t-th of the features in, all features out
first linear of a feed-forward part    by columns; the activation behind it has as few features
second linear of a feed-forward part   by rows
attention to another sequence          the same, queries by columns, keys and values by columns
table of tokens, logits, loss          a t-th of the vocabulary, rounded up (padding to round sizes is not in it)
all others                             whole: normalisation, residual sums, dropout between, other tables
=====================================  ================================================================

Sums over ranks are messages, not kernel calls, and the bias behind rows is added once they are done: neither changes
a shape. Layers are told by what reads them, whatever their names. Latent attention splits its heads, and makes the
compressed keys and values on every rank. Experts are split by columns and rows as a feed-forward part, each over all
tensor ranks, and over x expert ranks: each of these has E/x of them, and as many rows of the tokens of all as it sends.

Of c context ranks each has a c-th of the positions, which attend to the keys of all.

Networks of which a part is trained: the last layers, or small products added to frozen ones (LoRA).

LoRA (Hu et al. 2021, arXiv:2106.09685) adds to a frozen product W·x of m features the product B·(A·x), A of R rows, B
of R columns, both trained. The first is a layer ``linear``, the second an ``adapter``. What is one layer here and
several in a model, such as queries, keys and values, has such a pair for each. Default targets are queries and values,
as of huggingface/peft (utils/constants.py) for Llama, Mistral, BERT, T5 and others; its GPT-2 changes the joined
product of all three, which has as many parameters and as many FLOP where heads of all are as many. All targets are all
linear layers but the output layer (its ``all-linear``); experts and convolutions have none. No dropout, its default.

Whatever stands before the first trained layer has a forward pass alone; what keeps a table of tokens as its own is
frozen with the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd
from typing import NamedTuple, TypeVar

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, check_count, once_of
from planner.domain.axes import ALL, ATTENTION, LAST, Trainable, trainable_of
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.attentions import core_of
from planner.domain.layers.record import Layer, Shape, tensors_of
from planner.domain.network import Network, input_shapes, layer_shapes
from planner.errors import ParameterError
from planner.workload.program import block_starts

_Count = TypeVar("_Count", int, IntArray)


def expert_shard(network: Network, degree: int) -> Network:
    """Return what one of ``degree`` expert-parallel ranks computes; the network itself for one rank.

    ParameterError: the degree does not divide the experts of a layer, or there are none.
    """
    check_count("expert-parallel degree", degree)
    if degree == 1:
        return network
    if not any(layer.kind == "experts" for layer in network.layers):
        raise ParameterError("expert-parallel degree", f"1 of {network.name}, which has no experts", degree)
    layers = tuple(_with(layer, ranks=degree) if layer.kind == "experts" else layer for layer in network.layers)
    name = f"{network.name} (one of {degree} expert-parallel ranks)"
    return replace(network, name=name, layers=layers)


def context_shard(network: Network, degree: int) -> Network:
    """Return what one of ``degree`` ranks that share the positions of each sample computes; the network for one rank.

    ParameterError: the degree does not divide the positions.
    """
    check_count("context-parallel degree", degree)
    if degree == 1:
        return network
    whole = network.input_shape[0]
    if whole % degree:
        raise ParameterError("context-parallel degree", f"a divisor of the {whole} positions of {network.name}", degree)
    shapes = layer_shapes(network)
    layers = tuple(_of_positions(layer, shapes, degree) for layer in network.layers)
    name = f"{network.name} (one of {degree} context-parallel ranks)"
    positions = (whole // degree, *network.input_shape[1:])
    return replace(network, name=name, layers=layers, input_shape=positions)


def _of_positions(layer: Layer, shapes: Mapping[str, Shape], degree: int) -> Layer:
    """Return the layer of a part of the positions; ``shapes``: of all of them."""
    if layer.kind in ("attention", "cross_attention"):
        return _with(layer, keys=shapes[layer.inputs[-1]][0])
    if layer.kind == "positions":
        start, count = (layer.integer(key) for key in ("start", "count"))
        return _with(layer, start=start // degree, count=-(-count // degree))
    return layer


def has_tensor_shards(network: Network) -> bool:
    """Tell whether shards of a network are defined: it has attention."""
    return any(layer.kind == "attention" for layer in network.layers)


class Divided(NamedTuple):
    """What tensor ranks divide of a layer: ``whole`` of them, of which several ranks may have the same one each."""

    layer: str
    what: str
    whole: int
    is_shared: bool = False

    def holds(self, degree: IntArray) -> BoolArray:
        """Return whether so many ranks divide it, of the shape of the degrees."""
        return np.asarray((self.whole % degree == 0) | (self.is_shared & (degree % self.whole == 0)))

    @property
    def words(self) -> str:
        """What the degree must be."""
        if not self.what:
            return f"1, as no products split by heads make what layer {self.layer} reads"
        return f"a divisor{' or multiple' * self.is_shared} of the {self.whole} {self.what} of layer {self.layer}"


@once_of
def divided_by_tensors(network: Network) -> tuple[Divided, ...]:
    """Return what tensor ranks divide, each number of a thing once, with the first layer that has it."""
    found: dict[tuple[str, int], Divided] = {}
    for one in _divided(network):
        found.setdefault((one.what, one.whole), one)
    return tuple(found.values())


def _divided(network: Network) -> Iterator[Divided]:
    columns = dict(columns_of(network))
    by_name, shapes, bases = {layer.name: layer for layer in network.layers}, layer_shapes(network), _bases(network)

    def is_divided(name: str) -> bool:
        """Tell whether a tensor is of products by columns alone."""
        name = bases.get(name, name)
        kind, inputs = (by_name[name].kind, by_name[name].inputs) if name in by_name else ("", ())
        if kind == "latent":
            return any(map(is_divided, inputs))
        return name in columns or (kind in _BEFORE_ATTENTION and all(map(is_divided, inputs)))

    def starts_with_queries(attention: Layer) -> bool:
        """Tell whether the first of what is joined before grouped attention is its queries."""
        source = by_name.get(attention.inputs[0])
        while source is not None and source.kind in ("rotary", "adapter"):
            source = by_name.get(source.inputs[0])
        if source is None or source.kind != "concat" or not attention.integer("kv_heads"):
            return True
        core = core_of(attention, *shapes[attention.inputs[0]])
        return shapes[source.inputs[0]][-1] == attention.integer("heads") * core.width

    for layer in network.layers:
        behind = columns.get(layer.name, ())
        if layer.kind in ("attention", "cross_attention"):
            heads = layer.integer("heads")
            yield Divided(layer.name, "heads", heads)
            if layer.kind == "attention" and layer.integer("kv_heads") not in (0, heads):
                yield Divided(layer.name, "heads of keys and values", layer.integer("kv_heads"), is_shared=True)
            if not all(map(is_divided, layer.inputs)) or (layer.kind == "attention" and not starts_with_queries(layer)):
                yield Divided(layer.name, "", 1)
        elif behind and behind[0].kind.endswith("activation"):
            gates = 2 if behind[0].kind == "gated_activation" else 1
            yield Divided(layer.name, "features" + " of each product" * (gates - 1), layer.integer("features") // gates)
        elif (share := LAYER_KINDS[layer.kind].share(layer)) is not None and not share.is_rounded_up:
            yield Divided(layer.name, share.attribute, layer.integer(share.attribute))


@once_of
def attended_positions(network: Network) -> tuple[int, ...]:
    """Return the numbers of positions of layers of attention, rising; empty: there are none."""
    shapes = layer_shapes(network)
    return tuple(sorted({shapes[one.inputs[0]][0] for one in network.layers if one.kind == "attention"}))


@once_of
def expert_number(network: Network) -> int:
    """Return the experts of a layer, of layers with several numbers what divides all; 0: there are none."""
    return gcd(*(layer.integer("experts") for layer in network.layers if layer.kind == "experts"))


def tensor_shard(network: Network, degree: int) -> Network:
    """Return what one of ``degree`` ranks computes of a network; the network itself for one rank.

    ParameterError: the network has no attention, or the degree does not divide a layer, which is named.
    """
    check_count("tensor-parallel degree", degree)
    if degree == 1:
        return network
    if not has_tensor_shards(network):
        rule = "1 of a network without attention, of which no shards are defined"
        raise ParameterError("tensor-parallel degree", rule, degree, f"leave {network.name} out")
    for one in divided_by_tensors(network):
        if not one.holds(np.array(degree)):
            raise ParameterError("tensor-parallel degree", f"{one.words} of {network.name}", degree)
    behind = dict(columns_of(network))
    for some in tuple(behind.values()):
        behind |= {one.name: some[at + 1 :] for at, one in enumerate(some) if one.kind == "rotary"}
    logits = {layer.name for layer in logits_of(network)}
    layers = tuple(
        _with(layer, features=-(-layer.integer("features") // degree))
        if layer.name in logits
        else _shard(layer, degree, behind.get(layer.name, ()))
        for layer in network.layers
    )
    name = f"{network.name} (one of {degree} tensor-parallel ranks)"
    split = replace(network, name=name, layers=layers)
    if not (bases := _bases(network)):
        return split
    whole, parts = products_of(network), products_of(split)
    widths = {
        base: {one: part for (_, one), (_, part) in zip(whole[base], parts[base], strict=True)} | {0: 0}
        for base in {*bases.values()}
    }
    return replace(
        split,
        layers=tuple(
            _with(one, features=widths[bases[one.name]][one.integer("features")]) if one.name in bases else one
            for one in layers
        ),
    )


def padded_vocabulary(vocabulary: int, tensor: _Count, multiple: int = 128) -> _Count:
    """Return V rounded up to a multiple of 128 a tensor rank, as Megatron-LM pads the table of tokens by default.

    >>> padded_vocabulary(50257, 1), padded_vocabulary(50257, 8), padded_vocabulary(128256, 8)
    (50304, 51200, 129024)
    """
    unit = multiple * tensor
    return -(-vocabulary // unit) * unit


def with_padded_vocabulary(network: Network, degree: int) -> Network:
    """Return a network with tables of tokens, and logits, of a multiple of 128 rows a tensor rank (Megatron-LM)."""
    names = {layer.name: "features" for layer in logits_of(network)}
    names |= {layer.name: "vocabulary" for layer in network.layers if layer.kind == "embedding"}
    layers = (
        _with(layer, **{key: padded_vocabulary(layer.integer(key), degree)})
        if (key := names.get(layer.name))
        else layer
        for layer in network.layers
    )
    return replace(network, layers=tuple(layers))


_BEFORE_ATTENTION = ("rotary", "concat")
"""Kinds of layers between products by columns and attention: they have a rank's heads of each."""
_BEHIND_COLUMNS = (
    ("attention",), ("cross_attention",), ("latent", "attention"),
    ("activation", "linear"), ("activation", "dropout", "linear"), ("gated_activation", "linear"),
    ("gated_activation", "dropout", "linear"),
)  # fmt: skip
"""Kinds of what stands behind a linear layer that is split by columns."""
_LOGITS = ("loss",)


def tied_table(network: Network) -> tuple[int, int] | None:
    """Return the rows and features of a table of tokens that a later layer has too; None: none has."""
    shapes, tied = layer_shapes(network), (one for one in network.layers if one.attributes.get("tied"))
    return next(((layer.integer("features"), shapes[layer.inputs[0]][-1]) for layer in tied), None)


def logits_of(network: Network) -> tuple[Layer, ...]:
    """Return the products of logits: of as many features as a table of tokens has rows, tied to it or before a loss."""
    rows = {layer.integer("vocabulary") for layer in network.layers if layer.kind == "embedding"}
    last = {name for name, behind in columns_of(network) if behind[0].kind == "loss"}
    found = (layer for layer in network.layers if layer.name in last or layer.attributes.get("tied"))
    return tuple(layer for layer in found if layer.integer("features") in rows)


def columns_of(network: Network) -> Iterator[tuple[str, tuple[Layer, ...]]]:
    """Yield the linear layers that are split by columns, or that a loss alone reads, each with what stands behind.

    Those before and behind blocks are whole on every rank, but for logits (NVIDIA/Megatron-LM, its pooler).
    """
    starts = block_starts(network) or (0, len(network.layers))
    place, plain = {layer.name: at for at, layer in enumerate(network.layers)}, without_adapters(network)
    readers: dict[str, list[Layer]] = {}
    for layer in plain:
        for source in layer.inputs:
            readers.setdefault(source, []).append(layer)
    for layer in plain:
        if layer.kind != "linear":
            continue
        at, last, line = place[layer.name], layer, list[Layer]()
        while len(readers.get(last.name, ())) == 1:  # each is read by one layer alone
            (last,) = readers[last.name]
            line.append(last)
        behind = tuple(line)
        kinds = tuple(one.kind for one in behind)
        joining = next((at for at, kind in enumerate(kinds) if kind not in _BEFORE_ATTENTION), 0)
        kinds = kinds[joining:] if kinds[joining : joining + 1] == ("attention",) else kinds
        if any(kinds[: len(head)] == head for head in (*_BEHIND_COLUMNS * (starts[0] <= at < starts[-1]), _LOGITS)):
            yield layer.name, behind


def _bases(network: Network) -> dict[str, str]:
    """Return what each adapter, or the last of several, adds to."""
    bases: dict[str, str] = {}
    for layer in network.layers:
        if layer.kind == "adapter":
            bases[layer.name] = bases.get(layer.inputs[0], layer.inputs[0])
    return bases


def without_adapters(network: Network) -> tuple[Layer, ...]:
    """Return the layers without adapters and the products before them; what reads an adapter reads its base."""
    if not (bases := _bases(network)):
        return network.layers
    left_out = {name for layer in network.layers if layer.kind == "adapter" for name in (layer.name, layer.inputs[1])}
    return tuple(
        replace(layer, inputs=tuple(bases.get(one, one) for one in layer.inputs))
        for layer in network.layers
        if layer.name not in left_out
    )


def products_of(network: Network) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return of each linear layer the products that it stands for: role, empty for no other, and features.

    Queries, keys and values before attention, a gate and what it multiplies; those of adapters are not among them.
    """
    plain, roles = without_adapters(network), dict[str, tuple[tuple[str, int], ...]]()
    behind = {name: [one for one in some if one.kind != "rotary"] for name, some in columns_of(network)}
    rotated = {one.name: one.inputs[0] for one in plain if one.kind == "rotary"}
    for layer in plain:
        if layer.kind == "linear":
            features, some = layer.integer("features"), behind.get(layer.name, [])
            kind, names = (some[0].kind, [rotated.get(one, one) for one in some[0].inputs]) if some else ("", [])
            roles[layer.name] = (("", features),)
            if kind == "gated_activation":
                roles[layer.name] = ("gate", features // 2), ("up", features // 2)
            elif kind == "attention":
                heads = some[0].integer("heads")
                groups = some[0].integer("kv_heads") or heads
                each = features // (heads + 2 * groups)
                roles[layer.name] = ("query", each * heads), ("key", each * groups), ("value", each * groups)
            elif kind in ("concat", "cross_attention", "latent") and layer.name in names:
                is_first, is_last = names[0] == layer.name, names[-1] == layer.name
                both = kind != "latent" and len(names) == 2
                role = "query" if is_first else "value" if is_last else "key"
                whole = ((role, features),)
                roles[layer.name] = (("key", features // 2), ("value", features // 2)) if both and is_last else whole
    return roles


def _shard(layer: Layer, degree: int, behind: tuple[Layer, ...]) -> Layer:
    """Return a rank's part of a layer."""
    if layer.kind in ("linear", "rotary") and behind and behind[0].kind != "loss":
        whole, part = _heads_of(layer, degree, behind)
        return _with(layer, features=layer.integer("features") * part // whole)
    if layer.kind == "attention" and layer.integer("kv_heads"):
        heads, kv_heads = _heads(layer, degree)[1]
        return _with(layer, heads=heads, kv_heads=kv_heads)
    share = LAYER_KINDS[layer.kind].share(layer)
    return layer if share is None else _with(layer, **{share.attribute: -(-layer.integer(share.attribute) // degree)})


def _heads_of(layer: Layer, degree: int, behind: tuple[Layer, ...]) -> tuple[int, int]:
    """Return the heads of all ranks and of one that a layer by columns makes, or rotates, of queries, keys and values.

    The first of what is joined before attention is queries. What does not come before heads is a part of all ranks.
    """
    at = next((at for at, one in enumerate(behind) if one.kind not in _BEFORE_ATTENTION), 0)
    if behind[at].kind != "attention":
        return degree, 1
    both = zip(*_heads(behind[at], degree), strict=True)
    (heads, own), (kv_heads, own_kv) = both
    before = (layer, *behind[:at])
    joined = next((place for place, one in enumerate(before) if one.kind == "concat"), 0)
    if joined:
        return (heads, own) if before[joined].inputs[0] == before[joined - 1].name else (kv_heads, own_kv)
    each = 1 if layer.kind == "rotary" else 2
    return heads + each * kv_heads, own + each * own_kv


def _heads(layer: Layer, degree: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return heads of queries, and of keys and values, of all ranks and of one."""
    heads = layer.integer("heads")
    kv_heads = layer.integer("kv_heads") or heads
    return (heads, kv_heads), (heads // degree, max(1, kv_heads // degree))


def _with(layer: Layer, **values: int) -> Layer:
    return replace(layer, attributes={**layer.attributes, **values})


def second_products(network: Network) -> FloatArray:
    """Return the share of each layer's products that are every second one of a block, shape (L,).

    Queries, keys and values count as three products, a gate and what it multiplies as two, as torchtitan has them; all
    in order, each block from the first (pytorch/torchtitan, "selective" activation checkpointing of operators).
    """
    products = products_of(network)
    starts, share, number = set(block_starts(network)), np.zeros(len(network.layers)), 0
    for position, layer in enumerate(network.layers):
        number = 0 if position in starts else number
        if layer.name in products:
            some = products[layer.name]  # keys and values of another sequence are one
            joined = some if some[0][0] != "key" else (("", layer.integer("features")),)
            widths = np.array([width for _, width in joined], dtype=np.float64)
            is_second = (number + np.arange(widths.size)) % 2 == 1
            share[position] = float(widths[is_second].sum() / widths.sum())
            number += widths.size
    return share


def whole_parameters(whole: Network, split: Network) -> FloatArray:
    """Return the trained parameters of layers that a tensor rank has whole and sees its own positions of alone, (L,).

    Where ranks share positions: of blocks, and norms around them (NVIDIA/Megatron-LM, parameters marked
    ``sequence_parallel``); an embedding sees all positions.
    """
    starts = block_starts(whole) or (0, len(whole.layers))
    shapes = layer_shapes(whole), layer_shapes(split)
    counts = np.zeros(len(whole.layers))
    for at, pair in enumerate(zip(whole.layers, split.layers, strict=True)):
        if not pair[0].is_frozen and (starts[0] <= at < starts[-1] or pair[0].kind.endswith("_norm")):
            sizes = (tensors_of(one, input_shapes(one, of)[0]) for one, of in zip(pair, shapes, strict=True))
            counts[at] = sum(one for one, other in zip(*sizes, strict=True) if one == other)
    return counts


_WHAT = "--trainable"


@once_of
def _known(network: Network) -> dict[str, Network]:  # noqa: ARG001 - those made of it
    return {}


def trained_as(network: Network, text: str) -> Network:
    """Return a network of which the rest is frozen; the same one each time. ParameterError: it has no such layers."""
    asked, known = trainable_of(text), _known(network)
    if asked.kind == ALL:
        return network
    if text not in known:
        layers = _last(network, asked.number) if asked.kind == LAST else _adapted(network, asked)
        known[text] = replace(network, layers=tuple(layers))
    return known[text]


def _last(network: Network, number: int) -> Iterator[Layer]:
    """Yield the layers, all before the last blocks, or products with weights, frozen."""
    starts, what = block_starts(network)[:-1], "blocks"
    if not starts:
        kinds = {name for name, kind in LAYER_KINDS.items() if kind.outputs}
        starts = tuple(at for at, layer in enumerate(network.layers) if layer.kind in kinds)
        what = "convolutions and linear layers"
    if number > len(starts):
        raise ParameterError(f"layers in {_WHAT}", f"at most the {len(starts)} {what} of {network.name}", number)
    for at, layer in enumerate(network.layers):
        yield replace(layer, is_frozen=at < starts[-number] or bool(layer.attributes.get("tied")))


def _adapted(network: Network, asked: Trainable) -> Iterator[Layer]:
    """Yield the layers, all frozen, with those that change the targets behind each."""
    shapes, behind = layer_shapes(network), dict[str, str]()
    read = {source for layer in network.layers for source in layer.inputs}
    ends = {layer.name for layer in logits_of(network)} | {layer.name for layer in network.layers} - read
    ends |= {layer.inputs[0] for layer in network.layers if layer.kind == "loss"}
    products = products_of(network)
    for layer in network.layers:
        inputs = tuple(behind.get(source, source) for source in layer.inputs)
        yield replace(layer, inputs=inputs, is_frozen=True)
        for role, width in () if layer.name in ends else products.get(layer.name, ()):
            if asked.targets != ALL and role not in ("query", "value"):
                continue
            least = min(width, shapes[layer.inputs[0]][-1])
            if asked.number > least:
                rule = f"at most {least}, the least side of product {layer.name} of {network.name}"
                raise ParameterError(f"rank in {_WHAT}", rule, asked.number)
            name, base = f"{layer.name}.lora_{role or 'all'}", behind.get(layer.name, layer.name)
            yield Layer(f"{name}_a", "linear", inputs, {"features": asked.number, "bias": False})
            features = 0 if len(products[layer.name]) == 1 else width
            yield Layer(f"{name}_b", "adapter", (base, f"{name}_a"), {"rank": asked.number, "features": features})
            behind[layer.name] = f"{name}_b"
    if not behind:
        what = "products of queries and values" if asked.targets == ATTENTION else "linear layers but the last"
        remedy = "say targets=all" if asked.targets == ATTENTION else "train its last layers with last:K"
        raise ParameterError(_WHAT, f"of another kind for {network.name}, which has no {what}", "lora", remedy)
