"""Shards of transformers under tensor parallelism: shapes, parameters and FLOP counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.domain.layers.attentions import aligned_head_size
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.errors import ParameterError
from planner.networks.zoo import build
from planner.workload.calls import distinct_calls, lower, totals
from planner.workload.shards import context_shard, has_tensor_shards, tensor_shard

N, S, H, A, V = 3, 8, 24, 6, 50
"""Samples, positions, features, heads (of 4 features) and tokens of the small transformers here."""
SMALL = {"layers": "1", "hidden": str(H), "heads": str(A), "sequence": str(S), "vocabulary": str(V)}


def calls_of(network: Network, layer: str) -> set[tuple[str, str, tuple[int, ...]]]:
    """Return kind, direction and work of every call of a layer but its update."""
    position = [one.name for one in network.layers].index(layer)
    return {
        (calls.kind, calls.direction, tuple(int(np.broadcast_to(v, (1, calls.layer.size))[0][at])
                                            for v in calls.work.values()))
        for calls in lower(network, np.array([N]), merged=False)
        for at in np.flatnonzero(calls.layer == position).tolist()
        if calls.direction != "update"
    }  # fmt: skip


def products(out: int, features: int) -> set[tuple[str, str, tuple[int, ...]]]:
    """Return the three products of a linear layer and its bias."""
    rows, elements = N * S, N * S * out
    return {
        ("gemm", "forward", (out, rows, features, 1)),
        ("gemm", "backward_data", (features, rows, out, 1)),
        ("gemm", "backward_weight", (out, features, rows, 1)),
        ("bias", "forward", (elements, 2 * elements, 0)),
        ("bias", "backward_weight", (elements, elements, 0)),
    }


@pytest.mark.parametrize("family", ["gpt", "bert"])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_linear_layers_of_a_block_by_hand(family: str, degree: int) -> None:
    """QKV and the widening layer by columns, projection and the narrowing layer by rows."""
    shard = tensor_shard(build(family, SMALL), degree)
    assert calls_of(shard, "layer1.attention.qkv") == products(3 * H // degree, H)
    assert calls_of(shard, "layer1.attention.project") == products(H, H // degree)
    assert calls_of(shard, "layer1.mlp.widen") == products(4 * H // degree, H)
    assert calls_of(shard, "layer1.mlp.narrow") == products(H, 4 * H // degree)
    wide = N * S * 4 * H // degree
    assert calls_of(shard, "layer1.mlp.gelu") == {
        ("activation", "forward", (wide, 2 * wide, 0)),
        ("activation", "backward_data", (wide, 3 * wide, 0)),
    }


@pytest.mark.parametrize("degree", [2, 3])
def test_attention_has_a_share_of_the_heads(degree: int) -> None:
    """As many heads of as many features, each on as many positions; weights S x S of each, dropped with a mask."""
    shard = tensor_shard(build("gpt", SMALL), degree)
    batch, width = N * A // degree, H // A
    weights = batch * S * S
    assert calls_of(shard, "layer1.attention.core") == {
        ("gemm", "forward", (S, S, width, batch)),
        ("gemm", "forward", (S, width, S, batch)),
        ("gemm", "backward_data", (S, S, width, batch)),
        ("gemm", "backward_data", (S, width, S, batch)),
        ("softmax", "forward", (weights, 2 * weights, 0, batch * S)),
        ("softmax", "backward_data", (weights, 3 * weights, 0, batch * S)),
        ("dropout", "forward", (weights, 2 * weights, weights)),
        ("dropout", "backward_data", (weights, 2 * weights, weights)),
    }
    fused = tensor_shard(build("gpt", {**SMALL, "attention": "fused"}), degree)
    assert calls_of(fused, "layer1.attention.core") == {
        ("attention", "forward", (batch, S, S, aligned_head_size(width), 1)),
        ("attention", "backward_data", (batch, S, S, aligned_head_size(width), 1)),
    }


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_the_vocabulary_is_split_and_rounded_up(family: str) -> None:
    shard = tensor_shard(build(family, {**SMALL, "head": "tokens"}), 3)
    rows = 17  # 50 tokens over 3 ranks
    found = calls_of(shard, "logits")
    assert {one for one in found if one[0] == "gemm"} == {one for one in products(rows, H) if one[0] == "gemm"}
    assert ("add", "backward_data", (rows * H, 3 * rows * H, 0)) in found  # of the table that both share
    logits = N * S * rows
    assert ("softmax", "forward", (logits, 3 * logits, 0, N * S)) in calls_of(shard, "loss")
    token = [one for one in calls_of(shard, "embedding") if one[:2] == ("embedding", "backward_weight")]
    assert ("embedding", "backward_weight", (N * S * H, rows * H + 3 * N * S * H, 8 * N * S)) in token


@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_all_else_is_whole(family: str) -> None:
    whole = build(family, SMALL)
    shard = tensor_shard(whole, 2)
    split = ("qkv", "core", "project", "widen", "gelu", "narrow", "embedding", "logits", "loss")
    same = [layer.name for layer in whole.layers if layer.name.rpartition(".")[2] not in split]
    assert {name.rpartition(".")[2] for name in same} >= {"norm", "add", "dropout"}
    for name in same:
        assert calls_of(shard, name) == calls_of(whole, name)
    if family == "bert":  # what reads the last layer is not split, as the layer behind it is not linear
        assert {"tokens", "tokens.gelu"} <= set(_names(tensor_shard(build("bert", {**SMALL, "head": "tokens"}), 2)))
        for name in ("pooler", "pooler.tanh"):
            assert calls_of(shard, name) == calls_of(whole, name)


def _names(network: Network) -> list[str]:
    return [layer.name for layer in network.layers]


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_parameters_of_a_rank_by_formula(degree: int) -> None:
    """24 layers: matrices of 12·h² and biases of 7·h are split; biases of 2·h and norms of 4·h are not."""
    h, layers, vocabulary, positions = 1024, 24, 51200, 1024
    sizes = {"layers": str(layers), "hidden": str(h), "heads": "16", "vocabulary": str(vocabulary)}
    block = (12 * h * h + 7 * h) // degree + 6 * h
    expected = layers * block + vocabulary // degree * h + positions * h + 2 * h
    whole = build("gpt", sizes)
    found = totals(tensor_shard(whole, degree))
    assert found.parameters == expected
    assert found.forward_mac * degree == totals(whole).forward_mac
    assert found.kernel_calls == totals(whole).kernel_calls


def test_one_rank_computes_the_network_itself() -> None:
    whole = build("gpt", SMALL)
    assert tensor_shard(whole, 1) is whole


def test_shards_add_only_calls_that_the_network_does_not_make() -> None:
    """Norms and sums are the network's own; every product of a block is another."""
    whole = build("gpt", {**SMALL, "layers": "2"})
    alone, together = distinct_calls([whole]), distinct_calls([whole, tensor_shard(whole, 2)])
    more = {call.name for call in together} - {call.name for call in alone}
    assert {call.name for call in alone} <= {call.name for call in together}
    kinds = {call.kind for call in together if call.name in more}
    assert "gemm" in kinds
    assert not kinds & {"layer_norm", "concat"}
    products_of = [call.layer.kind for call in together if call.kind == "gemm" and call.name in more]
    assert products_of.count("linear") == 3 * 5  # QKV, projection, two of the feed-forward part, logits
    assert products_of.count("attention") == 2 * 2  # scores and context, each way


@pytest.mark.parametrize(
    ("name", "sizes", "degree", "words"),
    [
        ("gpt", SMALL, 4, "a divisor of the 6 heads of layer layer1.attention.core of gpt:.*, got 4"),
        ("gpt", SMALL, 5, "a divisor of the 6 heads of layer layer1.attention.core of gpt:.*, got 5"),
        ("gpt", {**SMALL, "ffn": "95"}, 2, "a divisor of the 95 features of layer layer1.mlp.widen of gpt:.*, got 2"),
        ("mlp", {}, 2, "1 of a network without attention, of which no shards are defined, got 2; leave mlp out"),
        ("gpt", SMALL, 0, "a whole number from 1"),
    ],
)
def test_what_cannot_be_split_is_refused(name: str, sizes: dict[str, str], degree: int, words: str) -> None:
    with pytest.raises(ParameterError, match=f"^tensor-parallel degree must be {words}"):
        tensor_shard(build(name, sizes), degree)


def test_a_feed_forward_part_read_by_others_is_not_split() -> None:
    """Features that a sum reads too have to be whole."""
    layers = (
        Layer("qkv", "linear", (INPUT,), {"features": 24}),
        Layer("core", "attention", ("qkv",), {"heads": 2}),
        Layer("widen", "linear", ("core",), {"features": 8}),
        Layer("relu", "activation", ("widen",)),
        Layer("narrow", "linear", ("relu",), {"features": 8}),
        Layer("sum", "add", ("narrow", "relu")),
    )
    shard = tensor_shard(Network("read-twice", (5, 8), layers), 2)
    assert [layer.attributes.get("features") for layer in shard.layers] == [12, None, 8, None, 8, None]
    assert has_tensor_shards(shard)
    assert not has_tensor_shards(build("resnet18", {}))


@pytest.mark.parametrize(("kv_heads", "degree", "kept"), [(6, 2, 3), (6, 3, 2), (2, 2, 1), (2, 6, 1), (1, 6, 1)])
def test_heads_of_keys_are_split_until_one_is_left(kv_heads: int, degree: int, kept: int) -> None:
    """QKV of a rank has a/t heads and those of keys and values that they read, of 4 features each."""
    sizes = {**SMALL, "kv_heads": str(kv_heads), "ffn": "60", "vocabulary": "51"}
    whole = build("llama", sizes)
    shard = {layer.name: layer for layer in tensor_shard(whole, degree).layers}
    assert shard["layer1.attention.qkv"].integer("features") == (A // degree + 2 * kept) * 4
    assert shard["layer1.attention.rotary"].integer("features") == (A // degree + kept) * 4
    core = shard["layer1.attention.core"]
    assert (core.integer("heads"), core.integer("kv_heads")) == (A // degree, kept)
    assert shard["layer1.mlp.widen"].integer("features") == 120 // degree
    assert shard["logits"].integer("features") == -(-51 // degree)
    attention, wide = (A // degree + 2 * kept) * 4 * H + H * H // degree, 3 * H * 60 // degree
    tables = 2 * -(-51 // degree) * H
    assert totals(tensor_shard(whole, degree)).parameters == attention + wide + 2 * H + H + tables


def test_attention_to_another_sequence_is_split_by_heads() -> None:
    whole = build("t5", {**SMALL, "head_size": "5", "ffn": "60"})
    shard = {layer.name: layer for layer in tensor_shard(whole, 3).layers}
    cross = "decoder.layer1.cross"
    assert shard[f"{cross}.queries"].integer("features") == A * 5 // 3
    assert shard[f"{cross}.keys_values"].integer("features") == 2 * A * 5 // 3
    assert shard[f"{cross}.core"].integer("heads") == 2
    assert shard["encoder.layer1.mlp.widen"].integer("features") == 20
    assert calls_of(tensor_shard(whole, 3), "decoder.layer1.cross.norm") == calls_of(whole, "decoder.layer1.cross.norm")


def core_of(network: Network) -> set[tuple[str, str, tuple[int, ...]]]:
    return calls_of(network, "layer1.attention.core")


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_a_context_rank_has_its_positions_and_the_keys_of_all(degree: int) -> None:
    """Products of a layer have a c-th of the rows; scores are of q = s/c queries and of keys as ring_keys has them."""
    shard = context_shard(build("gpt", SMALL), degree)
    q, d = S // degree, H // A
    forward = {
        work for kind, way, work in calls_of(shard, "layer1.attention.qkv") if (kind, way) == ("gemm", "forward")
    }
    assert forward == {(3 * H, N * q, H, 1)}
    scores = {work for kind, way, work in core_of(shard) if (kind, way) == ("gemm", "forward")}
    visible = {1: 8, 2: 6, 4: 5}[degree]  # of 8 keys: all; 4 and half of 4; 2 and half of 6
    assert scores == {(q, visible, d, N * A), (q, d, visible, N * A)}
    weights = N * A * q * visible
    assert ("softmax", "forward", (weights, 2 * weights, 0, N * A * q)) in core_of(shard)
    assert totals(shard).forward_mac * degree == totals(build("gpt", SMALL)).forward_mac
    assert calls_of(shard, "layer1.mlp.gelu") == {
        ("activation", "forward", (N * q * 4 * H, 2 * N * q * 4 * H, 0)),
        ("activation", "backward_data", (N * q * 4 * H, 3 * N * q * 4 * H, 0)),
    }
    assert totals(shard).parameters == totals(build("gpt", SMALL)).parameters


def test_causal_pairs_are_dealt_out_evenly_where_attention_is_fused() -> None:
    """Of s(s + 1)/2 pairs each of c ranks has its part, but for half a key a query."""
    whole = build("gpt", {**SMALL, "attention": "fused", "sequence": "64"})
    for degree in (2, 4, 8):
        (work,) = {one for _, way, one in core_of(context_shard(whole, degree)) if way == "forward"}
        _, queries, keys, width, causal = work
        assert (queries, keys, width, causal) == (64 // degree, 32, aligned_head_size(H // A), 0)
        assert degree * queries * keys == pytest.approx(64 * 65 / 2, rel=1 / 64)


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_weights_that_a_ring_computes_are_those_of_its_blocks(kind: str, degree: int) -> None:
    """Block by block: chunks r and 2c - 1 - r of rank r; a block is the least rectangle of what is seen of it."""
    s = 64
    (first, *_) = {
        work
        for call, way, work in core_of(context_shard(build(kind, {**SMALL, "sequence": str(s)}), degree))
        if (call, way) == ("gemm", "forward")
    }
    chunk = s // (2 * degree)
    positions = [np.r_[r * chunk : (r + 1) * chunk, s - (r + 1) * chunk : s - r * chunk] for r in range(degree)]
    counts = []
    for queries in positions:
        blocks = [queries[:, None] >= keys[None, :] if kind == "gpt" else np.ones((2 * chunk,) * 2, bool)
                  for keys in positions]  # fmt: skip
        counts.append(sum(int(one.any(axis=1).sum() * one.any(axis=0).sum()) for one in blocks))
    assert len(set(counts)) == 1
    rows, columns, inner, batch = first
    assert rows * columns * inner * batch == counts[0] * H // A * N * A


def test_context_ranks_of_a_split_layer_and_of_two_sequences() -> None:
    small = {"layers": "2", "hidden": "32", "heads": "4", "head_size": "8", "sequence": "16", "vocabulary": "64"}
    shard = context_shard(tensor_shard(build("t5", {**small, "target": "8"}), 2), 4)
    crossed = {
        work for kind, way, work in calls_of(shard, "decoder.layer1.cross.core") if (kind, way) == ("gemm", "forward")
    }
    assert crossed == {(2, 16, 8, N * 2), (2, 8, 16, N * 2)}  # 2 of 8 queries, 16 keys, 2 of 4 heads
    with pytest.raises(ParameterError, match="context-parallel degree must be a divisor of the 24 positions of"):
        context_shard(build("t5", {**small, "target": "8"}), 5)
