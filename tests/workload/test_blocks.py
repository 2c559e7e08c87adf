"""Blocks and what splits them, found in the graph, against what the names and sizes of bundled networks say."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from planner.catalog import find_network
from planner.domain.layers.record import Layer
from planner.domain.network import Network, layer_shapes
from planner.errors import ParameterError
from planner.formats.network import NETWORK
from planner.networks.zoo import zoo_names
from planner.workload.lawful import most_stages
from planner.workload.program import block_starts, crossing, program
from planner.workload.shards import (
    attended_positions,
    context_shard,
    divided_by_tensors,
    expert_number,
    logits_of,
    tensor_shard,
    tied_table,
    with_padded_vocabulary,
)
from planner.workload.split_messages import Attending, network_sends
from planner.workload.units import few_blocks, units_of
from tests.workload.closed_transformer import DENSE, ENCODER, EXPERTS, blocks, layer_parameters, record_of

MORE = (
    "gpt:layers=1", "gpt:layers=3,hidden=100,heads=3,head_size=16,ffn=70", "gpt:head=labels,layers=2", "bert:layers=1",
    "bert:layers=2,head=pretraining", "bert:layers=2,head=tokens", "bert:layers=2,head=labels", "t5:layers=1",
    "t5:layers=2,target=100", "llama:layers=2,heads=4,kv_heads=1,tied=true", "moe:layers=1", "vit:layers=1",
    "moe:layers=3,dense_layers=1,shared_experts=2", "moe:layers=2,kv_rank=20", "mpt:layers=1",
)  # fmt: skip
SPLIT = [*(name for name in zoo_names() if name != "swin-t" and block_starts(find_network(name))), *MORE]


def renamed(network: Network) -> Network:
    """Return the same graph, whose names say nothing."""
    names = {layer.name: f"x{at * 7919 % 10007}" for at, layer in enumerate(network.layers)}
    layers = tuple(
        replace(one, name=names[one.name], inputs=tuple(names.get(name, name) for name in one.inputs))
        for one in network.layers
    )
    return replace(network, layers=layers)


def test_networks_with_attention_have_blocks_and_no_others() -> None:
    for name in zoo_names():
        network = find_network(name)
        assert bool(block_starts(network)) == any(layer.kind == "attention" for layer in network.layers), name


@pytest.mark.parametrize("name", SPLIT)
def test_blocks_are_the_layers_that_names_number(name: str) -> None:
    """What stands between the stacks of T5 is part of the block before."""
    network = find_network(name)
    numbers = [match[0] if (match := re.match(r"(\w+\.)?layer\d+\.", one.name)) else "" for one in network.layers]
    first = [at for at, one in enumerate(numbers) if one and one not in numbers[:at]]
    end = max(at for at, one in enumerate(numbers) if one) + 1
    # with a norm behind each sum that is part of the block
    assert block_starts(network) == (*first, end)


def test_blocks_of_stages_of_several_widths_are_found() -> None:
    """What merges patches is part of the block before."""
    network = find_network("swin-t")
    starts = [network.layers[at].name for at in block_starts(network)]
    stages = ((1, 2), (2, 2), (3, 6), (4, 2))
    assert starts == [
        *(f"stage{stage}.{number + 1}.attention.norm" for stage, blocks in stages for number in range(blocks)), "norm"
    ]  # fmt: skip


@pytest.mark.parametrize("name", SPLIT)
def test_what_is_found_is_the_architecture_in_numbers(name: str) -> None:
    network = find_network(name)
    of, sends, divided = record_of(network), network_sends(network), divided_by_tensors(network)
    starts, units = block_starts(network), units_of(network, program(network))
    assert most_stages(network) == len(starts) - 1 == of.layers + of.encoder_layers
    values, keys = (of.latent.value, of.latent.plain + of.latent.rotary) if of.latent else (of.head_size, of.head_size)
    positions = {kind: of.encoder_sequence if kind == ENCODER else of.sequence for kind in (ENCODER, DENSE, EXPERTS)}
    kinds = [kind for kind, count in blocks(of) for _ in range(count)]
    for kind, unit in zip(kinds, sends.units[1:-1], strict=True):
        assert unit.attending == (Attending(positions[kind], of.heads, of.kv_heads, keys, values, of.fused),)
        assert {size for part in unit.parts for size in (part.reads, part.gives)} == {positions[kind] * of.hidden}
        experts = [(one.positions, one.features, one.experts, one.top_k, one.capacity) for one in unit.routing]
        assert experts == [(of.sequence, of.hidden, of.experts, of.top_k, of.capacity)] * (kind == EXPERTS)
    buckets = of.buckets * of.heads  # the first layer of a stack has them, the last of the encoder the norm behind it
    for kind, unit in zip(kinds, units.sequence[1:-1], strict=True):
        assert 0 <= units.parameters[unit] - layer_parameters(of, kind).total <= buckets + of.hidden
    assert {one.whole for one in divided if one.what == "heads"} == {of.heads}
    assert {one.whole for one in divided if one.is_shared} == {of.kv_heads} - {of.heads}
    widths = {of.ffn} if len(kinds) > of.expert_layers else set()
    widths |= {one for one in (of.expert_ffn, of.shared_ffn) if one}
    assert {one.whole for one in divided if "heads" not in one.what} == widths
    assert attended_positions(network) == tuple(sorted({of.sequence, of.encoder_sequence or of.sequence}))
    assert expert_number(network) == of.experts
    assert sends.boundary == (of.sequence + of.encoder_sequence) * of.hidden * (len(kinds) > 1)
    assert {layer.integer("features") for layer in logits_of(network)} == ({of.vocabulary} if of.has_logits else set())
    assert tied_table(network) == ((of.vocabulary, of.hidden) if of.ties_logits else None)


@pytest.mark.parametrize("name", SPLIT)
def test_names_are_not_read(name: str) -> None:
    network = find_network(name)
    other = renamed(network)
    assert block_starts(other) == block_starts(network)
    assert network_sends(other) == network_sends(network)
    assert [one._replace(layer="") for one in divided_by_tensors(other)] == [
        one._replace(layer="") for one in divided_by_tensors(network)
    ]
    assert block_starts(NETWORK.parse(NETWORK.dump(other), "x.toml")) == block_starts(network)


@pytest.mark.parametrize("name", [one for one in MORE if "heads=3" not in one])
def test_a_rank_has_the_blocks_of_the_whole(name: str) -> None:
    network = find_network(name)
    starts = block_starts(network)
    shards = [network if "kv_heads=1" in name and degree > 4 else tensor_shard(network, degree) for degree in (2, 4)]
    if len(network.input_shape) == 1:
        shards.append(context_shard(network, 2))
    assert [block_starts(one) for one in shards] == [starts] * len(shards)
    few, place = few_blocks(network)
    assert len(block_starts(few)) == place.max()
    np.testing.assert_array_equal(few_blocks(few)[1], np.arange(place.max() + 1))


def block(name: str, source: str, width: int, heads: int = 4, inner: int = 64) -> tuple[Layer, ...]:
    """Return a block whose attention and feed-forward part read the same tensor, with one sum."""
    return (
        Layer(f"{name}.qkv", "linear", (source,), {"features": 3 * width}),
        Layer(f"{name}.core", "attention", (f"{name}.qkv",), {"heads": heads}),
        Layer(f"{name}.out", "linear", (f"{name}.core",), {"features": width}),
        Layer(f"{name}.up", "linear", (source,), {"features": inner}),
        Layer(f"{name}.relu", "activation", (f"{name}.up",), {}),
        Layer(f"{name}.down", "linear", (f"{name}.relu",), {"features": width}),
        Layer(f"{name}.sum", "add", (f"{name}.out", f"{name}.down", source), {}),
    )


def parallel(*blocks: tuple[int, int]) -> Network:
    """Return a network of blocks of some heads and inner features each."""
    layers = [Layer("in", "linear", ("input",), {"features": 24})]
    for number, (heads, inner) in enumerate(blocks):
        layers += block(f"b{number}", layers[-1].name, 24, heads, inner)
    layers += [Layer("out", "linear", (layers[-1].name,), {"features": 10}), Layer("loss", "loss", ("out",), {})]
    return Network("parallel", (32, 16), tuple(layers))


def test_parts_side_by_side_are_one_block() -> None:
    network = parallel((4, 64), (4, 64), (4, 64))
    assert block_starts(network) == (1, 8, 15, 22)
    units = units_of(network, program(network))
    assert units.sequence.tolist() == [0, 1, 1, 2, 3]  # the last is read once
    assert [part.name for part in network_sends(network).units[1].parts] == ["attention", "feed_forward"]
    assert network_sends(network).boundary == 32 * 24


def test_unequal_blocks_are_units_and_the_layer_that_no_rank_divides_is_named() -> None:
    network = parallel((4, 64), (6, 64), (4, 66))
    assert most_stages(network) == 3
    assert units_of(network, program(network)).sequence.tolist() == [0, 1, 2, 3, 4]
    assert tensor_shard(network, 2).layers[2].integer("heads") == 2
    with pytest.raises(ParameterError, match=r"a divisor of the 6 heads of layer b1\.core of parallel, got 4"):
        tensor_shard(network, 4)
    with pytest.raises(ParameterError, match=r"a divisor of the 64 features of layer b0\.up of parallel, got 6"):
        tensor_shard(parallel((6, 64)), 6)


def test_attention_that_no_product_by_columns_feeds_is_named() -> None:
    layers = (
        Layer("in", "linear", ("input",), {"features": 24}),
        Layer("norm", "layer_norm", ("in",), {}),
        Layer("wide", "linear", ("norm",), {"features": 72}),
        Layer("between", "layer_norm", ("wide",), {}),
        Layer("core", "attention", ("between",), {"heads": 4}),
        Layer("sum", "add", ("core", "in"), {}),
        Layer("out", "linear", ("sum",), {"features": 10}),
        Layer("loss", "loss", ("out",), {}),
    )
    network = Network("odd", (32, 16), layers)
    assert block_starts(network) == (1, 6)
    with pytest.raises(ParameterError, match="1, as no products split by heads make what layer core reads of odd"):
        tensor_shard(network, 2)


def of_three_products(kv_heads: int, joined: tuple[str, ...] = ("q.rotary", "k.rotary", "v")) -> Network:
    """Return a network whose queries, keys and values are products of their own, 8 heads of 4 features."""
    layers = (
        Layer("in", "linear", ("input",), {"features": 32}),
        *(Layer(name, "linear", ("in",), {"features": 4 * heads}) for name, heads in (("q", 8), ("k", kv_heads))),
        Layer("v", "linear", ("in",), {"features": 4 * kv_heads}),
        Layer("q.rotary", "rotary", ("q",), {"features": 32}),
        Layer("k.rotary", "rotary", ("k",), {"features": 4 * kv_heads}),
        Layer("joined", "concat", joined, {}),
        Layer("core", "attention", ("joined",), {"heads": 8, "kv_heads": kv_heads}),
        Layer("out", "linear", ("core",), {"features": 32}),
        Layer("sum", "add", ("out", "in"), {}),
        Layer("last", "linear", ("sum",), {"features": 10}),
        Layer("loss", "loss", ("last",), {}),
    )
    return Network("three", (64, 16), layers)


@pytest.mark.parametrize(("kv_heads", "degree"), [(8, 2), (8, 8), (2, 2), (2, 4)])
def test_three_products_that_are_joined_are_split_by_heads(kv_heads: int, degree: int) -> None:
    """Of more ranks than heads of keys and values each has one of these."""
    shard = tensor_shard(of_three_products(kv_heads), degree)
    sizes = {one.name: one.attributes.get("features") for one in shard.layers}
    own, own_kv = 8 // degree, max(1, kv_heads // degree)
    assert [sizes[name] for name in ("in", "q", "q.rotary", "k", "k.rotary", "v", "out")] == [
        32, 4 * own, 4 * own, 4 * own_kv, 4 * own_kv, 4 * own_kv, 32,
    ]  # fmt: skip
    assert layer_shapes(shard)["core"] == (64, 4 * own)
    (part,) = network_sends(of_three_products(kv_heads)).units[1].parts
    assert (part.name, part.reads, part.gives, part.other) == ("attention", 64 * 32, 64 * 32, 0)


@pytest.mark.parametrize("joined", [("k.rotary", "q.rotary", "v"), ("q.rotary", "k.rotary", "norm")])
def test_what_is_joined_in_no_order_of_heads_is_refused(joined: tuple[str, ...]) -> None:
    network = of_three_products(2, tuple(name if name != "norm" else "v" for name in joined))
    if "norm" in joined:  # of values, which every rank has whole
        at = next(at for at, layer in enumerate(network.layers) if layer.name == "joined")
        norm, other = Layer("norm", "layer_norm", ("v",), {}), replace(network.layers[at], inputs=joined)
        network = replace(network, layers=(*network.layers[:at], norm, other, *network.layers[at + 1 :]))
    with pytest.raises(ParameterError, match="1, as no products split by heads make what layer core reads of three"):
        tensor_shard(network, 2)


def test_attention_without_a_shortcut_makes_no_block() -> None:
    layers = (
        Layer("qkv", "linear", ("input",), {"features": 24}),
        Layer("core", "attention", ("qkv",), {"heads": 2}),
        Layer("out", "linear", ("core",), {"features": 24}),
    )
    assert block_starts(Network("plain", (5, 4), layers)) == ()


def test_what_crosses_a_cut_is_read_behind_it() -> None:
    layers = (
        Layer("a", "linear", ("input",), {"features": 7}),
        Layer("unread", "activation", ("a",), {}),
        Layer("b", "linear", ("a",), {"features": 7}),
        Layer("sum", "add", ("a", "b"), {}),
    )
    sizes = {"input": 1, "a": 10, "unread": 100, "b": 1000, "sum": 10000}
    assert crossing(Network("some", (3,), layers), sizes).tolist() == [1, 10, 10, 1010]


def test_a_tied_product_is_of_logits_whatever_reads_it() -> None:
    layers = (
        Layer("table", "embedding", ("input",), {"features": 24, "vocabulary": 100}),
        *block("b", "table", 24),
        Layer("tied", "linear", ("b.sum",), {"features": 100, "tied": True}),
    )
    network = Network("tokens", (32,), layers)
    shard = tensor_shard(with_padded_vocabulary(network, 2), 2)
    assert [shard.layers[at].attributes[key] for at, key in ((0, "vocabulary"), (-1, "features"))] == [128, 128]
    assert layer_shapes(shard)["tied"] == (32, 128)
    assert network_sends(network).logits == ((32 * 24, 32),)


@pytest.mark.parametrize(("units", "starts"), [(1, (4, 11)), (2, ())])
def test_a_network_with_more_sums_before_its_attention_is_not_made_of_blocks(
    units: int, starts: tuple[int, ...]
) -> None:
    layers = [Layer("x", "linear", ("input",), {"features": 24})]
    for number in range(units):
        last = layers[-1].name
        layers.append(Layer(f"u{number}.a", "linear", (last,), {"features": 24}))
        layers.append(Layer(f"u{number}.b", "activation", (layers[-1].name,), {}))
        layers.append(Layer(f"u{number}.sum", "add", (layers[-1].name, last), {}))
    layers += [*block("b", layers[-1].name, 24), Layer("out", "linear", ("b.sum",), {"features": 10})]
    network = Network("mixed", (32, 16), tuple(layers))
    assert block_starts(network) == starts
    assert most_stages(network) == (1 if starts else 8)  # layers with parameters


def test_products_behind_blocks_are_whole_but_for_logits() -> None:
    """No message of a part sums what tensor ranks make there, as they do of logits."""
    whole = find_network("bert:layers=2,head=pretraining")
    shard = tensor_shard(whole, 2)
    split = [one.name for one, other in zip(shard.layers, whole.layers, strict=True) if one != other]
    behind = whole.layers[block_starts(whole)[-1] :]
    assert [one.name for one in behind if one.name in split] == ["logits"]
