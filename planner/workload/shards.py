"""One rank's shard of a transformer under tensor parallelism, as a network of its own.

t: tensor-parallel degree. As Megatron-LM splits a transformer (Shoeybi et al. 2019, arXiv:1909.08053, section 3):

=====================================  ================================================================
layer                                  of each rank
=====================================  ================================================================
linear before attention (QKV)          by columns: a t-th of the features out
attention                              a t-th of the heads
linear behind attention                by rows: a t-th of the features in, all features out
first linear of a feed-forward part    by columns; the activation behind it has as few features
second linear of a feed-forward part   by rows
table of tokens, logits, loss          a t-th of the vocabulary, rounded up (padding to round sizes is not in it)
all others                             whole: normalisation, residual sums, dropout between, other tables
=====================================  ================================================================

Sums over ranks are messages, not kernel calls, and the bias behind rows is added once they are done: neither changes
a shape. Layers are told by what reads them, whatever their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.domain.arrays import check_count
from planner.domain.network import Layer, Network
from planner.errors import ParameterError

__all__ = ["has_tensor_shards", "tensor_shard"]


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
    by_columns = frozenset(_split_by_columns(network))
    layers = tuple(_shard(layer, network, degree, by_columns=layer.name in by_columns) for layer in network.layers)
    return replace(network, name=f"{network.name} (one of {degree} tensor-parallel ranks)", layers=layers)


def _split_by_columns(network: Network) -> Iterator[str]:
    """Yield the names of the linear layers that are split by columns."""
    readers: dict[str, list[Layer]] = {}
    for layer in network.layers:
        for source in layer.inputs:
            readers.setdefault(source, []).append(layer)
    for layer in network.layers:
        if layer.kind != "linear":
            continue
        kinds = [one.kind for one in _alone_behind(layer, readers)]
        if kinds[:1] == ["attention"] or kinds[:2] == ["activation", "linear"]:
            yield layer.name


def _alone_behind(layer: Layer, readers: dict[str, list[Layer]]) -> Iterator[Layer]:
    """Yield the layers behind one, as long as each is read by one alone."""
    while len(readers.get(layer.name, ())) == 1:
        (layer,) = readers[layer.name]
        yield layer


def _shard(layer: Layer, network: Network, degree: int, *, by_columns: bool) -> Layer:
    """Return a rank's part of a layer."""
    if by_columns:
        return _with(layer, features=_part(layer, "features", network, degree))
    if layer.kind == "attention":
        return _with(layer, heads=_part(layer, "heads", network, degree))
    if layer.kind == "embedding":
        return _with(layer, vocabulary=-(-layer.integer("vocabulary") // degree))
    if layer.kind == "linear" and layer.attributes["tied"]:
        return _with(layer, features=-(-layer.integer("features") // degree))
    return layer


def _part(layer: Layer, attribute: str, network: Network, degree: int) -> int:
    whole = layer.integer(attribute)
    if whole % degree:
        rule = f"a divisor of the {whole} {attribute} of layer {layer.name} of {network.name}"
        raise ParameterError("tensor-parallel degree", rule, degree)
    return whole // degree


def _with(layer: Layer, **changed: int) -> Layer:
    return replace(layer, attributes={**layer.attributes, **changed})
