from __future__ import annotations

import numpy as np
import pytest

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, UPDATE
from planner.domain.layers.record import INPUT, AttributeValue, Layer
from planner.domain.network import Network
from planner.networks.zoo import build
from planner.workload.calls import lower, totals
from planner.workload.program import gradient_slots
from tests.workload.conftest import SAMPLES, rows_of


def core(**attributes: AttributeValue) -> Network:
    layers = (
        Layer("qkv", "linear", (INPUT,), {"features": 24}),
        Layer("core", "attention", ("qkv",), {"heads": 2, **attributes}),
    )
    return Network("core", (5, 8), layers)


def test_attention_by_hand() -> None:
    rows = rows_of(core(dropout=0.1), "core")
    batch, weights = 2 * SAMPLES, SAMPLES * 2 * 5 * 5
    scores, context = (5, 5, 4, batch), (5, 4, 5, batch)
    assert rows == {
        ("gemm", FORWARD): [(1, *scores), (1, *context)],
        ("gemm", BACKWARD_DATA): [(1, *scores), (3, *context)],
        ("softmax", FORWARD): [(1, weights, 2 * weights, 0, weights // 5)],
        ("softmax", BACKWARD_DATA): [(1, weights, 3 * weights, 0, weights // 5)],
        ("dropout", FORWARD): [(1, weights, 2 * weights, weights)],
        ("dropout", BACKWARD_DATA): [(1, weights, 2 * weights, weights)],
    }


def test_attention_without_dropout_calls_none() -> None:
    assert not {kind for kind, _ in rows_of(core(), "core")} & {"dropout"}


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_is_one_call_a_direction(*, causal: bool) -> None:
    """2 heads a sample, of 5 queries and keys of 4 features, aligned to 8."""
    work = (1, 2 * SAMPLES, 5, 5, 8, int(causal))
    network = core(fused=True, causal=causal)
    assert rows_of(network, "core") == {("attention", FORWARD): [work], ("attention", BACKWARD_DATA): [work]}
    assert totals(network).training_flop == totals(core()).training_flop  # what is made again is not counted


def test_attention_that_nothing_trained_stands_before_has_no_backward() -> None:
    network = Network("bare", (5, 24), (Layer("core", "attention", (INPUT,), {"heads": 2}),))
    calls = lower(network, np.array([SAMPLES]))
    fused = Network("bare", (5, 24), (Layer("core", "attention", (INPUT,), {"heads": 2, "fused": True}),))
    assert {call.direction for call in calls} == {FORWARD}
    assert [(call.kind, call.direction) for call in lower(fused, np.array([SAMPLES]))] == [("attention", FORWARD)]
    assert totals(network).training_flop == 2 * totals(network).forward_mac == 2 * 2 * 5 * 5 * 8


def embedded(**attributes: AttributeValue) -> Network:
    layers = (
        Layer("e", "embedding", (INPUT,), {"vocabulary": 50, "features": 6, **attributes}),
        Layer("logits", "linear", ("e",), {"features": 50, "tied": True, "bias": False}),
    )
    return Network("embedded", (7,), layers)


def test_embedding_by_hand() -> None:
    elements, tokens = SAMPLES * 7 * 6, 8 * SAMPLES * 7
    assert rows_of(embedded(), "e") == {
        ("embedding", FORWARD): [(1, elements, 2 * elements, tokens)],
        ("embedding", BACKWARD_WEIGHT): [(1, elements, 50 * 6 + 3 * elements, tokens)],
        ("update", UPDATE): [(1, 300, 0, 20 * 300)],
    }


def test_tables_of_positions_and_types_are_added() -> None:
    elements, tokens = SAMPLES * 7 * 6, 8 * SAMPLES * 7
    rows = rows_of(embedded(positions=9, types=2), "e")
    assert rows["add", FORWARD] == [(2, elements, 3 * elements, 0)]
    assert rows["embedding", FORWARD][1:] == [(1, elements, 2 * elements, tokens), (1, 42, 84, 56)]
    assert rows["embedding", BACKWARD_WEIGHT][1:] == [
        (1, elements, 2 * 6 + 3 * elements, tokens),
        (1, elements, 9 * 6 + elements, 0),
    ]


def test_tied_layer_works_like_any_other_and_adds_its_gradient_to_the_table() -> None:
    rows = rows_of(embedded(), "logits")
    assert rows["gemm", FORWARD] == [(1, 50, SAMPLES * 7, 6, 1)]
    assert rows["gemm", BACKWARD_WEIGHT] == [(1, 50, 6, SAMPLES * 7, 1)]
    assert rows["add", BACKWARD_DATA] == [(1, 300, 900, 0)]
    assert ("update", UPDATE) not in rows
    slots = gradient_slots(embedded())
    assert (slots.layer.tolist(), slots.elements.tolist()) == ([0], [300])  # ready when the embedding's is


def test_first_position_spreads_its_gradient() -> None:
    layers = (Layer("l", "linear", (INPUT,), {"features": 6}), Layer("f", "first_position", ("l",)))
    rows = rows_of(Network("first", (7, 4), layers), "f")
    assert rows == {("copy", BACKWARD_DATA): [(1, SAMPLES * 42, SAMPLES * (42 + 12), 0)]}


def test_layer_norm_by_hand() -> None:
    rows = rows_of(Network("norm", (7, 4), (Layer("n", "layer_norm", (INPUT,)),)), "n")
    elements = SAMPLES * 28
    assert rows["layer_norm", FORWARD] == [(1, elements, 2 * elements, 0, SAMPLES * 7)]
    assert rows["layer_norm", BACKWARD_DATA] == [(1, elements, 5 * elements, 0, SAMPLES * 7)]


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "sequence", "vocabulary"),
    [(2, 64, 4, 32, 100), (24, 1024, 16, 512, 30000), (30, 3072, 32, 2048, 50257)],
)
def test_parameters_and_flop_of_gpt_are_the_closed_forms(
    layers: int, hidden: int, heads: int, sequence: int, vocabulary: int
) -> None:
    """FLOP: Narayanan et al. 2021, arXiv:2104.04473, equation 3 without making activations again (72, not 96)."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "sequence": sequence, "vocabulary": vocabulary}
    counted = totals(build("gpt", {key: str(value) for key, value in sizes.items()}))
    per_layer = 12 * hidden**2 + 13 * hidden
    assert counted.parameters == layers * per_layer + (vocabulary + sequence) * hidden + 2 * hidden
    relative = 1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden)
    assert counted.training_flop == pytest.approx(72 * sequence * layers * hidden**2 * relative, rel=1e-12)


def test_products_of_attention_are_apart_from_those_of_linear_layers() -> None:
    network = build("gpt", {"layers": "2", "hidden": "64", "heads": "4", "sequence": "32", "vocabulary": "100"})
    for call in lower(network, np.array([SAMPLES])):
        if call.kind == "gemm":
            batch = np.broadcast_to(call.work["batch"], (1, call.layer.size))[0]
            of_attention = [network.layers[at].kind == "attention" for at in call.layer]
            np.testing.assert_array_equal(batch == 4 * SAMPLES, of_attention)
            np.testing.assert_array_equal(batch == 1, np.logical_not(of_attention))


def test_every_kernel_of_a_transformer_is_named() -> None:
    calls = lower(build("bert", {"layers": "1", "head": "tokens"}), np.array([1]), optimizer="adam")
    assert {call.kind for call in calls if call.direction == FORWARD} == {
        "gemm", "bias", "activation", "layer_norm", "dropout", "embedding", "add", "softmax",
    }  # fmt: skip
    assert {call.kind for call in calls if call.direction == BACKWARD_WEIGHT} == {"gemm", "bias", "embedding"}
    assert {call.kind for call in calls if call.direction == UPDATE} == {"update"}
