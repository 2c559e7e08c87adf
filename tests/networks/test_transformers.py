from __future__ import annotations

from itertools import pairwise

import pytest

from planner.domain.network import layer_shapes
from planner.errors import ParameterError, UnknownNameError
from planner.networks.zoo import arguments_of, build
from planner.workload.calls import layer_work, totals


def test_gpt_normalises_before_and_bert_behind_each_part() -> None:
    gpt, bert = build("gpt2", {}), build("bert-base", {})
    readers = {
        network.name: {
            reader.kind for layer in network.layers if layer.kind == "layer_norm" for reader in network.layers
            if layer.name in reader.inputs
        }
        for network in (gpt, bert)
    }  # fmt: skip
    assert readers["gpt2"] == {"linear"}
    assert readers["bert-base"] == {"linear", "add", "dropout", "first_position"}
    assert [layer.kind for layer in gpt.layers].count("layer_norm") == 2 * 12 + 1
    assert [layer.kind for layer in bert.layers].count("layer_norm") == 2 * 12 + 1
    assert {layer.attributes["causal"] for layer in gpt.layers if layer.kind == "attention"} == {True}
    assert {layer.attributes["causal"] for layer in bert.layers if layer.kind == "attention"} == {False}


def test_default_gpt_is_gpt2() -> None:
    assert build("gpt", {}).layers == build("gpt2", {}).layers
    assert build("bert", {}).layers == build("bert-base", {}).layers
    assert build("gpt2", {}).optimizer == build("bert-large", {}).optimizer == "adam"
    assert build("gpt2", {}).dataset is None


@pytest.mark.parametrize(
    ("name", "arguments", "rows"),
    [
        ("gpt2", {"sequence": "128"}, 1024),
        ("gpt", {"sequence": "128"}, 128),
        ("gpt2", {"sequence": "2048"}, 2048),
        ("bert-base", {"sequence": "384"}, 512),
        ("opt-1.3b", {}, 2050),
    ],
)
def test_published_sizes_keep_their_table_of_positions(name: str, arguments: dict[str, str], rows: int) -> None:
    network = build(name, arguments)
    assert network.layers[0].integer("positions") == rows
    assert layer_shapes(network)["embedding"][0] == network.input_shape[0]


def test_heads() -> None:
    shapes = {
        head: layer_shapes(network)[network.layers[-1].inputs[0]]
        for head in ("pooler", "labels", "tokens")
        for network in [build("bert-base", {"sequence": "384", "head": head})]
    }
    assert shapes == {"pooler": (768,), "labels": (384, 2), "tokens": (384, 30522)}
    gpt = build("gpt2", {"sequence": "60", "head": "labels"})
    assert layer_shapes(gpt)["labels"] == (60, 2)
    assert totals(gpt).parameters == totals(build("gpt2", {})).parameters + 2 * 768


def test_attention_grows_with_the_square_of_the_sequence_and_the_rest_linearly() -> None:
    short, long = ({row.name: row for row in layer_work(build("gpt2", {"sequence": s}))} for s in ("256", "512"))
    for name, row in short.items():
        factor = 4 if row.kind == "attention" else 2
        assert long[name].forward_mac == factor * row.forward_mac


def test_width_of_the_feed_forward_part() -> None:
    plain, narrow = build("gpt", {"hidden": "96"}), build("gpt", {"hidden": "96", "ffn": "100"})
    assert layer_shapes(plain)["layer1.mlp.widen"] == (1024, 384)
    assert layer_shapes(narrow)["layer1.mlp.widen"] == (1024, 100)
    assert narrow.name == "gpt:ffn=100,hidden=96"
    assert build("gpt", {"ffn": "4 x hidden"}).layers == build("gpt", {}).layers


SMALL = {"layers": "2", "hidden": "100", "heads": "3", "sequence": "8", "vocabulary": "50"}


@pytest.mark.parametrize(("head_size", "width"), [(None, 33), ("33", 33), ("32", 32), ("64", 64)])
@pytest.mark.parametrize("family", ["gpt", "bert"])
def test_heads_need_not_divide_hidden(family: str, head_size: str | None, width: int) -> None:
    network = build(family, SMALL if head_size is None else SMALL | {"head_size": head_size})
    shapes, work = layer_shapes(network), {row.name: row for row in layer_work(network)}
    part = "layer1.attention"
    found = [shapes[f"{part}.{name}"] for name in ("qkv", "core", "project")]
    assert found == [(8, 3 * 3 * width), (8, 3 * width), (8, 100)]
    assert work[f"{part}.qkv"].parameters == 100 * 9 * width + 9 * width
    assert work[f"{part}.project"].parameters == 3 * width * 100 + 100
    # Scores and context: of each head 8 x 8 sums over the features of a head, and 8 x width over the positions.
    assert work[f"{part}.core"].forward_mac == 3 * 2 * 8 * 8 * width
    qkv_and_project = 9 * width * 101 + 100 * (3 * width + 1)
    others = 2 * 200 + 400 * 101 + 100 * 401  # two normalisations, and the feed-forward part
    of_gpt = 50 * 100 + 8 * 100 + 200  # tokens, positions, the last normalisation
    of_bert = 50 * 100 + 512 * 100 + 2 * 100 + 200 + 100 * 101  # types, the first normalisation and the pooler besides
    top = of_gpt if family == "gpt" else of_bert
    assert totals(network).parameters == 2 * (qkv_and_project + others) + top
    assert f"3 heads of {width}" in network.notes


def test_the_size_of_a_head_that_follows_changes_nothing() -> None:
    plain = build("gpt", {})
    assert build("gpt", {"head_size": "64"}).layers == plain.layers
    assert build("gpt", {"head_size": "hidden / heads"}).layers == plain.layers
    assert "12 heads, " in plain.notes


def test_wider_heads_work_only_more() -> None:
    work = [totals(build("gpt", SMALL | {"head_size": str(size)})) for size in (16, 33, 34, 80)]
    for narrow, wide in pairwise(work):
        assert narrow.parameters < wide.parameters
        assert narrow.training_flop < wide.training_flop


@pytest.mark.parametrize("name", ["gpt", "gpt2", "opt-1.3b", "bert", "bert-base", "bert-large"])
def test_fused_attention_changes_nothing_else(name: str) -> None:
    plain, fused = build(name, {}), build(name, {"attention": "fused"})
    assert build(name, {"attention": "unfused"}).layers == plain.layers
    assert totals(fused).parameters == totals(plain).parameters
    assert totals(fused).training_flop == totals(plain).training_flop
    for ours, theirs in zip(fused.layers, plain.layers, strict=True):
        changed = {key for key, value in ours.attributes.items() if theirs.attributes[key] != value}
        assert changed == ({"fused", "dropout"} if ours.kind == "attention" else set())
        assert (ours.name, ours.kind, ours.inputs) == (theirs.name, theirs.kind, theirs.inputs)


def test_arguments() -> None:
    assert set(arguments_of("gpt")) == {
        "layers",
        "hidden",
        "heads",
        "head_size",
        "ffn",
        "sequence",
        "vocabulary",
        "positions",
        "function",
        "head",
        "attention",
    }
    assert set(arguments_of("gpt2")) == {"sequence", "head", "attention"}
    assert "a whole number from 1 to 9999999; default 4 x hidden" in arguments_of("gpt")["ffn"]
    rule = "argument heads of network gpt must be at most hidden = 768 unless head_size is given, got 769"
    with pytest.raises(ParameterError, match=rule):
        build("gpt", {"heads": "769"})
    assert layer_shapes(build("gpt", {"heads": "769", "head_size": "1"}))["layer1.attention.core"] == (1024, 769)
    with pytest.raises(ParameterError, match="argument head of network gpt2 must be tokens or labels, got 'pooler'"):
        build("gpt2", {"head": "pooler"})
    with pytest.raises(UnknownNameError, match="argument of network gpt2"):
        build("gpt2", {"layers": "3"})


@pytest.mark.parametrize(("sequence", "predictions"), [(128, 20), (16, 16)])
def test_bert_predicts_20_positions_a_sequence_unless_told_otherwise(sequence: int, predictions: int) -> None:
    found = build("bert-base", {"head": "pretraining", "sequence": str(sequence)})
    assert [one.integer("count") for one in found.layers if one.kind == "positions"] == [predictions]
