"""One rank's shard of a transformer under tensor, context and expert parallelism, as a network of its own.

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
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.domain.arrays import FloatArray, check_count
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import Shape
from planner.domain.network import Layer, Network
from planner.domain.shapes import input_shapes, layer_shapes
from planner.errors import ParameterError

__all__ = [
    "columns_of", "context_shard", "expert_shard", "has_tensor_shards", "second_products", "tensor_shard",
    "whole_parameters", "with_padded_vocabulary",
]  # fmt: skip


def expert_shard(network: Network, degree: int) -> Network:
    """Return what one of ``degree`` expert-parallel ranks computes; the network itself for one rank.

    Raises
    ------
    ParameterError
        The degree does not divide the experts of a layer, or there are none.
    """
    check_count("expert-parallel degree", degree)
    if degree == 1:
        return network
    if not any(layer.kind == "experts" for layer in network.layers):
        raise ParameterError("expert-parallel degree", f"1 of {network.name}, which has no experts", degree)
    layers = tuple(_with(layer, ranks=degree) if layer.kind == "experts" else layer for layer in network.layers)
    name = f"{network.name} (one of {degree} expert-parallel ranks)"
    return replace(network, name=name, layers=layers, transformer=None)


def context_shard(network: Network, degree: int) -> Network:
    """Return what one of ``degree`` ranks that share the positions of each sample computes; the network for one rank.

    Raises
    ------
    ParameterError
        The degree does not divide the positions.
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
    return replace(network, name=name, layers=layers, input_shape=positions, transformer=None)


def _of_positions(layer: Layer, shapes: Mapping[str, Shape], degree: int) -> Layer:
    """Return the layer of a part of the positions; ``shapes``: of all of them."""
    if layer.kind in ("attention", "cross_attention"):
        return _with(layer, keys=shapes[layer.inputs[-1]][0])
    if layer.kind == "positions":
        start, count = (layer.integer(key) for key in ("start", "count"))
        return _with(layer, start=start // degree, count=-(-count // degree))
    return layer


def has_tensor_shards(network: Network) -> bool:
    """Tell whether shards of a network are defined: it is a transformer."""
    return any(layer.kind == "attention" for layer in network.layers)


def tensor_shard(network: Network, degree: int) -> Network:
    """Return what one of ``degree`` ranks computes of a transformer; the network itself for one rank.

    Raises
    ------
    ParameterError
        The network has no attention, or the degree does not divide its heads or the features between linear layers.
    """
    check_count("tensor-parallel degree", degree)
    if degree == 1:
        return network
    if not has_tensor_shards(network):
        rule = "1 of a network without attention, of which no shards are defined"
        raise ParameterError("tensor-parallel degree", rule, degree, f"leave {network.name} out")
    behind = dict(columns_of(network))
    tokens = {layer.integer("vocabulary") for layer in network.layers if layer.kind == "embedding"}
    layers = tuple(_shard(layer, network, degree, behind.get(layer.name, ()), tokens) for layer in network.layers)
    name = f"{network.name} (one of {degree} tensor-parallel ranks)"
    return replace(network, name=name, layers=layers, transformer=None)


def with_padded_vocabulary(network: Network, degree: int, multiple: int = 128) -> Network:
    """Return a network with tables of tokens, and logits, of a multiple of 128 rows a tensor rank (Megatron-LM)."""
    rows = {layer.integer("vocabulary") for layer in network.layers if layer.kind == "embedding"}
    logits = {layer.inputs[0] for layer in network.layers if layer.kind == "loss"}

    def padded(layer: Layer) -> Layer:
        name = {"embedding": "vocabulary", "linear": "features"}.get(layer.kind, "")
        if not name or (name == "features" and (layer.name not in logits or layer.integer(name) not in rows)):
            return layer
        unit = multiple * degree
        return _with(layer, **{name: -(-layer.integer(name) // unit) * unit})

    return replace(network, layers=tuple(map(padded, network.layers)))


_BEHIND_COLUMNS = (
    ("attention",), ("rotary", "attention"), ("cross_attention",), ("latent", "attention"),
    ("activation", "linear"), ("activation", "dropout", "linear"), ("gated_activation", "linear"),
)  # fmt: skip
"""Kinds of what stands behind a linear layer that is split by columns."""
_LOGITS = ("loss",)


def columns_of(network: Network) -> Iterator[tuple[str, tuple[Layer, ...]]]:
    """Yield the linear layers that are split by columns, or that a loss alone reads, each with what stands behind."""
    readers: dict[str, list[Layer]] = {}
    for layer in network.layers:
        for source in layer.inputs:
            readers.setdefault(source, []).append(layer)
    for layer in network.layers:
        if layer.kind != "linear":
            continue
        behind = tuple(_alone_behind(layer, readers))
        kinds = tuple(one.kind for one in behind)
        if any(kinds[: len(head)] == head for head in (*_BEHIND_COLUMNS, _LOGITS)):
            yield layer.name, behind


def _alone_behind(layer: Layer, readers: dict[str, list[Layer]]) -> Iterator[Layer]:
    """Yield the layers behind one, as long as each is read by one alone."""
    while len(readers.get(layer.name, ())) == 1:
        (layer,) = readers[layer.name]
        yield layer


def _shard(layer: Layer, network: Network, degree: int, behind: tuple[Layer, ...], tokens: Collection[int]) -> Layer:
    """Return a rank's part of a layer; ``tokens``: rows of tables of tokens."""
    is_loss_next = bool(behind) and behind[0].kind == "loss"
    if layer.kind == "linear" and is_loss_next and layer.integer("features") in tokens:
        return _with(layer, features=-(-layer.integer("features") // degree))
    if layer.kind == "linear" and behind and not is_loss_next:
        return _columns(layer, network, degree, behind)
    if layer.kind == "rotary":
        attention = next(one for one in network.layers if one.kind == "attention")
        whole, part = _heads(attention, network, degree)
        return _with(layer, features=layer.integer("features") * sum(part) // sum(whole))
    if layer.kind == "attention" and layer.integer("kv_heads"):
        heads, kv_heads = _heads(layer, network, degree)[1]
        return _with(layer, heads=heads, kv_heads=kv_heads)
    share = LAYER_KINDS[layer.kind].share(layer)
    if share is None:
        return layer
    rounded_up = -(-layer.integer(share.attribute) // degree)
    rows = rounded_up if share.is_rounded_up else _part(layer, share.attribute, network, degree)
    return _with(layer, **{share.attribute: rows})


def _columns(layer: Layer, network: Network, degree: int, behind: tuple[Layer, ...]) -> Layer:
    """Return a linear layer with a rank's columns; before attention those of its heads."""
    attention = next((one for one in behind[:2] if one.kind == "attention"), None)
    if attention is None or not attention.integer("kv_heads"):
        return _with(layer, features=_part(layer, "features", network, degree))
    whole, part = ((heads + 2 * kv_heads) for heads, kv_heads in _heads(attention, network, degree))
    return _with(layer, features=layer.integer("features") * part // whole)


def _heads(layer: Layer, network: Network, degree: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return heads of queries, and of keys and values, of all ranks and of one."""
    heads, own = layer.integer("heads"), _part(layer, "heads", network, degree)
    kv_heads = layer.integer("kv_heads") or heads
    if kv_heads % degree and degree % kv_heads:
        rule = (
            f"a divisor or multiple of the {kv_heads} heads of keys and values of layer {layer.name} of {network.name}"
        )
        raise ParameterError("tensor-parallel degree", rule, degree)
    return (heads, kv_heads), (own, max(1, kv_heads // degree))


def _part(layer: Layer, attribute: str, network: Network, degree: int) -> int:
    whole = layer.integer(attribute)
    if whole % degree:
        rule = f"a divisor of the {whole} {attribute} of layer {layer.name} of {network.name}"
        raise ParameterError("tensor-parallel degree", rule, degree)
    return whole // degree


def _with(layer: Layer, **values: int) -> Layer:
    return replace(layer, attributes={**layer.attributes, **values})


def second_products(network: Network) -> FloatArray:
    """Return the share of each layer's products that are every second one of a block, shape (L,).

    Queries, keys and values count as three products, a gate and what it multiplies as two, as torchtitan has them; all
    in order, each block from the first (pytorch/torchtitan, "selective" activation checkpointing of operators).
    """
    behind = {name: [one for one in some if one.kind != "rotary"] for name, some in columns_of(network)}
    starts, share, number = set(network.blocks), np.zeros(len(network.layers)), 0
    for position, layer in enumerate(network.layers):
        number = 0 if position in starts else number
        if layer.kind == "linear":
            widths = np.array(_widths(layer, behind.get(layer.name, [])))
            is_second = (number + np.arange(widths.size)) % 2 == 1
            share[position] = float(widths[is_second].sum() / widths.sum())
            number += widths.size
    return share


def _widths(layer: Layer, behind: list[Layer]) -> list[float]:
    """Return the features of the products that a linear layer stands for."""
    features = float(layer.integer("features"))
    kind = behind[0].kind if behind else ""
    if kind == "gated_activation":
        return [features / 2] * 2
    if kind != "attention":
        return [features]
    heads = behind[0].integer("heads")
    groups = behind[0].integer("kv_heads") or heads
    each = features / (heads + 2 * groups)
    return [each * heads, each * groups, each * groups]


def whole_parameters(whole: Network, split: Network) -> FloatArray:
    """Return the parameters of each layer that a tensor rank has whole and sees its own positions of alone, shape (L,).

    Where ranks share positions: of blocks, and norms around them (NVIDIA/Megatron-LM, parameters marked
    ``sequence_parallel``); an embedding sees all positions.
    """
    starts = whole.blocks or (0, len(whole.layers))
    shapes = layer_shapes(whole), layer_shapes(split)
    counts = np.zeros(len(whole.layers))
    for at, pair in enumerate(zip(whole.layers, split.layers, strict=True)):
        if starts[0] <= at < starts[-1] or pair[0].kind.endswith("_norm"):
            sizes = (
                LAYER_KINDS[one.kind].parameters(one, input_shapes(one, of)[0])
                for one, of in zip(pair, shapes, strict=True)
            )
            counts[at] = sum(one for one, other in zip(*sizes, strict=True) if one == other)
    return counts
