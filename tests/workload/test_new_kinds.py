"""Calls of layers of shared heads, experts, patches, windows and products of tensors, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.layers.record import INPUT, AttributeValue, Layer
from planner.domain.network import LayerCall, Network, kind_of_kernel, layer_shapes
from planner.errors import ParameterError
from planner.networks.zoo import build
from planner.workload.calls import layer_work, lower, totals
from tests.workload.conftest import SAMPLES, memory_bytes, rows_of


def behind_linear(kind: str, shape: tuple[int, ...], read: int, **attributes: AttributeValue) -> Network:
    before = Layer("before", "linear", (INPUT,), {"features": read})
    return Network(kind, shape, (before, Layer("it", kind, ("before",), attributes)))


def test_heads_that_share_keys_by_hand() -> None:
    """4 heads of 3 features share 2 of keys and values, of 5 positions: 12 + 6 + 6 features."""
    network = behind_linear("attention", (5, 8), 24, heads=4, kv_heads=2)
    batch, weights, repeated = 4 * SAMPLES, SAMPLES * 4 * 5 * 5, SAMPLES * 5 * 4 * 6
    copied = (1, repeated, repeated + SAMPLES * 5 * 2 * 6, 0)
    assert rows_of(network, "it") == {
        ("gemm", FORWARD): [(1, 5, 5, 3, batch), (1, 5, 3, 5, batch)],
        ("gemm", BACKWARD_DATA): [(1, 5, 5, 3, batch), (3, 5, 3, 5, batch)],
        ("softmax", FORWARD): [(1, weights, 2 * weights, 0, weights // 5)],
        ("softmax", BACKWARD_DATA): [(1, weights, 3 * weights, 0, weights // 5)],
        ("copy", FORWARD): [copied],
        ("copy", BACKWARD_DATA): [copied],
    }
    assert layer_shapes(network)["it"] == (5, 12)
    fused = behind_linear("attention", (5, 8), 24, heads=4, kv_heads=2, fused=True)
    assert rows_of(fused, "it")["attention", FORWARD] == [(1, batch, 5, 5, 8, 0)]  # 3 features a head, aligned
    for one in (network, fused):
        assert layer_work(one)[1].forward_mac == 2 * 4 * 5 * 5 * 3


def test_values_of_another_width_by_hand() -> None:
    """2 heads with keys of 6 features and values of 4."""
    network = behind_linear("attention", (5, 8), 2 * (6 + 6 + 4), heads=2, value_size=4)
    batch = 2 * SAMPLES
    rows = rows_of(network, "it")
    assert rows["gemm", FORWARD] == [(1, 5, 5, 6, batch), (1, 5, 4, 5, batch)]
    assert sorted(rows["gemm", BACKWARD_DATA]) == [(1, 5, 4, 5, batch), (1, 5, 5, 4, batch), (2, 5, 6, 5, batch)]
    assert layer_shapes(network)["it"] == (5, 8)
    assert layer_work(network)[1].forward_mac == 2 * 5 * 5 * (6 + 4)
    fused = behind_linear("attention", (5, 8), 2 * (6 + 6 + 4), heads=2, value_size=4, fused=True)
    assert rows_of(fused, "it")["attention", FORWARD] == [(1, batch, 5, 5, 8, 0)]  # 5 features a head, aligned


def test_a_learned_bias_by_hand() -> None:
    network = behind_linear("attention", (5, 8), 24, heads=2, bias="learned", buckets=7)
    rows, weights = rows_of(network, "it"), SAMPLES * 2 * 5 * 5
    assert rows["add", FORWARD] == [(1, weights, 50 + 2 * weights, 0)]
    assert rows["add", BACKWARD_DATA] == [(1, weights, 50 + weights, 0)]
    assert layer_work(network)[1].parameters == 7 * 2
    fixed = behind_linear("attention", (5, 8), 24, heads=2, bias="fixed")
    assert ("add", BACKWARD_DATA) not in rows_of(fixed, "it")
    assert rows_of(fixed, "it")["add", FORWARD] == rows["add", FORWARD]


def test_attention_to_another_sequence_by_hand() -> None:
    """2 heads of 3 features; 4 queries, 5 keys."""
    layers = (
        Layer("all", "linear", (INPUT,), {"features": 6}),
        Layer("queries", "positions", ("all",), {"count": 4}),
        Layer("others", "positions", ("all",), {"start": 4, "count": 5}),
        Layer("both", "linear", ("others",), {"features": 12}),
        Layer("it", "cross_attention", ("queries", "both"), {"heads": 2}),
    )
    network, batch = Network("cross", (9, 8), layers), 2 * SAMPLES
    rows = rows_of(network, "it")
    assert rows["gemm", FORWARD] == [(1, 4, 5, 3, batch), (1, 4, 3, 5, batch)]
    assert sorted(rows["gemm", BACKWARD_DATA]) == [(1, 4, 3, 5, batch), (1, 4, 5, 3, batch), (2, 5, 3, 4, batch)]
    assert rows["softmax", FORWARD] == [(1, batch * 20, 2 * batch * 20, 0, batch * 4)]
    assert layer_work(network)[4].forward_mac == 2 * 2 * 4 * 5 * 3
    cleared = SAMPLES * 9 * 6
    assert rows_of(network, "others")["copy", BACKWARD_DATA] == [(1, cleared, cleared + 2 * SAMPLES * 5 * 6, 0)]


def test_rotation_gates_and_root_norms_by_hand() -> None:
    rotated = SAMPLES * 5 * 18
    rows = rows_of(behind_linear("rotary", (5, 8), 24, features=18), "it")
    assert rows == {("activation", way): [(1, rotated, 2 * rotated, 0)] for way in (FORWARD, BACKWARD_DATA)}
    gated = SAMPLES * 5 * 12
    for fused, forward, backward in ((False, 5, 8), (True, 3, 5)):
        rows = rows_of(behind_linear("gated_activation", (5, 8), 24, fused=fused), "it")
        assert rows["activation", FORWARD] == [(1, gated, forward * gated, 0)]
        assert rows["activation", BACKWARD_DATA] == [(1, gated, backward * gated, 0)]
    network = behind_linear("rms_norm", (5, 8), 24, features=20)
    normed = SAMPLES * 5 * 20
    assert rows_of(network, "it")["layer_norm", FORWARD] == [(1, normed, 2 * normed, 0, SAMPLES * 5)]
    assert (layer_shapes(network)["it"], layer_work(network)[1].parameters) == ((5, 20), 20)


@pytest.mark.parametrize(("capacity", "each", "rows"), [(0.0, 4, 10), (1.25, 5, 15), (4.0, 14, 42)])
def test_experts_by_hand(capacity: float, each: int, rows: int) -> None:
    """5 positions of 8 features go to 2 of 3 experts of 4 features inside, 10/3 rows each, rounded up."""
    layers = (
        Layer("x", "linear", (INPUT,), {"features": 8}),
        Layer("scores", "linear", ("x",), {"features": 3}),
        Layer("it", "experts", ("x", "scores"), {"experts": 3, "top_k": 2, "ffn": 4, "capacity": capacity}),
    )
    network = Network("experts", (5, 8), layers)
    n = each * SAMPLES
    found = rows_of(network, "it")
    assert found["gemm", FORWARD] == [(1, 8, n, 8, 3), (1, 8, n, 4, 3)]
    assert found["gemm", BACKWARD_DATA] == [(1, 8, n, 8, 3), (1, 4, n, 8, 3)]
    assert found["gemm", BACKWARD_WEIGHT] == [(1, 8, 8, n, 3), (1, 8, 4, n, 3)]
    inside, moved = SAMPLES * rows * 4, SAMPLES * rows * 8
    assert found["activation", FORWARD] == [(1, inside, 5 * inside, 0)]
    assert found["copy", BACKWARD_DATA] == [(1, moved, 2 * moved, 0)]
    assert found["add", FORWARD] == [(1, SAMPLES * 40, moved + SAMPLES * 40, 0)]
    assert found["softmax", FORWARD] == [(1, SAMPLES * 15, 3 * SAMPLES * 15, 0, SAMPLES * 5)]
    work = layer_work(network)[2]
    assert (work.parameters, work.forward_mac) == (3 * 3 * 8 * 4, 5 * 2 * 3 * 8 * 4)
    assert work.training_flop == 3 * 2 * work.forward_mac


def test_patches_by_hand() -> None:
    network = build("vit", {"layers": "1", "hidden": "8", "heads": "2", "image": "32", "patch": "16", "classes": "3"})
    rows, all_of = rows_of(network, "class_token"), SAMPLES * 5 * 8
    assert rows["concat", FORWARD] == [(1, all_of, 2 * all_of, 0)]
    assert rows["concat", BACKWARD_DATA] == [(1, SAMPLES * 32, 2 * SAMPLES * 32, 0)]
    assert rows["add", FORWARD] == [(1, all_of, 40 + 2 * all_of, 0)]
    met = (1, all_of, 3 * all_of, 0)  # gradients of the first block and of what goes around it
    assert rows["add", BACKWARD_DATA] == [(1, all_of, 40 + all_of, 0), met]
    assert layer_work(network)[1].parameters == 5 * 8 + 8


@pytest.mark.parametrize(
    ("kind", "shape", "features", "attributes", "sentence"),
    [
        ("attention", (5, 8), 24, {"heads": 4, "kv_heads": 3}, "layer it: kv_heads must be a divisor of heads = 4"),
        ("attention", (5, 8), 25, {"heads": 4, "kv_heads": 2}, r"divisible by heads \+ 2 x kv_heads = 8: .*, got 25"),
        ("attention", (5, 8), 25, {"heads": 2, "value_size": 4}, "those of values and a multiple of heads"),
        ("gated_activation", (5, 8), 25, {}, "even: gate and what it multiplies, got 25"),
        ("rms_norm", (5, 8), 25, {"features": 26}, "features must be at most the 25 it reads, got 26"),
        ("positions", (5, 8), 25, {"start": 3, "count": 3}, "at most the 5 it reads, got 6"),
    ],
)
def test_what_does_not_fit_is_refused(
    kind: str, shape: tuple[int, ...], features: int, attributes: dict[str, AttributeValue], sentence: str
) -> None:
    with pytest.raises(ParameterError, match=sentence):
        layer_shapes(behind_linear(kind, shape, features, **attributes))


def test_kernels_have_names_of_their_own() -> None:
    layers = {layer.name.rpartition(".")[2]: layer for layer in build("llama", {"layers": "1"}).layers}
    assert kind_of_kernel("layer_norm", layers["norm"]) == "rms_norm"
    assert kind_of_kernel("activation", layers["swiglu"]) == "swiglu"
    assert kind_of_kernel("activation", layers["rotary"]) == "rotary"
    assert kind_of_kernel("gemm", layers["qkv"]) == "gemm"


def test_names_of_measured_calls_say_younger_attributes_only_where_they_matter() -> None:
    def named(**attributes: AttributeValue) -> str:
        layer = Layer("it", "attention", (INPUT,), {"heads": 2, **attributes})
        return LayerCall("softmax", FORWARD, {"elements": (0, 1)}, layer, ((5, 24),)).name

    assert named() == "elements=1n attention 5x24 causal=False dropout=0.0 fused=False heads=2"
    assert named(kv_heads=1) == "elements=1n attention 5x24 causal=False dropout=0.0 fused=False heads=2 kv_heads=1"


@pytest.mark.parametrize(("heads", "kv_heads", "ffn"), [(32, 32, 11008), (32, 8, 14336)])
def test_a_layer_of_llama_keeps_what_is_read_again(heads: int, kv_heads: int, ffn: int) -> None:
    """Inputs of two norms and two products, q, k, v and output; gate, its activation, up, product; statistics."""
    h, s = 4096, 256
    sizes = {"heads": str(heads), "kv_heads": str(kv_heads), "ffn": str(ffn), "sequence": str(s)}
    kept = [
        memory_bytes(build("llama", {**sizes, "layers": layers}), 1, "bf16", "adam", "gpu").activations
        for layers in ("1", "2")
    ]
    width = h // heads
    assert kept[1] - kept[0] == s * (8 * h + 4 * heads * width + 4 * kv_heads * width + 8 * ffn) + 4 * s * heads + 8 * s


def test_absurd_sizes_do_not_wrap() -> None:
    huge = {"sequence": "999999", "heads": "9999", "hidden": "999900", "vocabulary": "9999999", "ffn": "9999999"}
    network = build("llama", {**huge, "layers": "99", "attention": "unfused"})
    assert totals(network).parameters > 10**15
    sub_batch = np.array([1, 10**9])
    for calls in lower(network, sub_batch, optimizer="adam"):
        for values in calls.work.values():
            assert (values >= 0).all()
            assert values[-1].max() >= values[0].max()
    assert np.isfinite(memory_bytes(network, sub_batch, "bf16", "adam", "gpu").total).all()


def gated(gate: tuple[Layer, ...], reads: str) -> Network:
    values = Layer("values", "convolution", (INPUT,), {"channels": 4, "kernel": 1})
    return Network("gated", (3, 5, 6), (values, *gate, Layer("it", "multiply", ("values", reads))))


def test_products_of_channels_by_hand() -> None:
    """4 channels of 30 pixels, multiplied by one number each, which comes from them, and by as many pixels."""
    network = gated((Layer("means", "global_pool", ("values",)),), "means")
    rows, elements, means = rows_of(network, "it"), SAMPLES * 4 * 30, SAMPLES * 4
    assert rows["add", FORWARD] == [(1, elements, 2 * elements + means, 0)]
    assert rows["add", BACKWARD_DATA] == [(1, elements, 2 * elements + means, 0), (1, elements, 3 * elements, 0)]
    assert rows["average_pool", BACKWARD_DATA] == [(1, elements, elements + means, 0)]
    whole = rows_of(gated((Layer("gate", "activation", ("values",)),), "gate"), "it")
    assert whole["add", FORWARD] == [(1, elements, 3 * elements, 0)]
    assert whole["add", BACKWARD_DATA] == [(1, elements, 3 * elements, 0)] * 2
    assert ("average_pool", BACKWARD_DATA) not in whole
    kept = memory_bytes(network, np.array([1, 2]), "fp32", "sgd", "gpu").activations
    assert kept[1] - kept[0] == 4 * (3 * 30 + 4 * 30 + 4)  # input, values and means
    with pytest.raises(ParameterError, match=r"layer it: inputs must be two, the second of the shape \(4, 5, 6\) of"):
        layer_shapes(gated((Layer("other", "pool", ("values",), {"window": 1, "stride": 2}),), "other"))


def test_scaled_and_dropped_channels_by_hand() -> None:
    network = behind_linear("drop_path", (5, 8), 24, rate=0.1)
    elements = SAMPLES * 5 * 24
    assert rows_of(network, "it") == {
        ("add", way): [(1, elements, 2 * elements, 0)] for way in (FORWARD, BACKWARD_DATA)
    }
    before = Layer("before", "convolution", (INPUT,), {"channels": 4, "kernel": 1})
    network = Network("scale", (3, 5, 6), (before, Layer("it", "layer_scale", ("before",))))
    rows, elements = rows_of(network, "it"), SAMPLES * 4 * 30
    assert rows["add", FORWARD] == [(1, elements, 2 * elements, 0)]
    assert rows["add", BACKWARD_DATA] == [(1, elements, 3 * elements, 0), (1, elements, 2 * elements, 0)]
    assert rows["bias", BACKWARD_WEIGHT] == [(1, elements, elements, 0)]
    assert layer_work(network)[1].parameters == 4


def test_transposed_convolutions_by_hand() -> None:
    """3 channels of 5 x 6 to 4 of 10 x 12: for each pixel 2 x 2 x 4 products of 3 numbers."""
    before = Layer("before", "convolution", (INPUT,), {"channels": 3, "kernel": 1})
    network = Network("up", (3, 5, 6), (before, Layer("it", "up_convolution", ("before",), {"channels": 4})))
    rows, pixels = rows_of(network, "it"), SAMPLES * 30
    assert layer_shapes(network)["it"] == (4, 10, 12)
    assert rows["gemm", FORWARD] == [(1, 16, pixels, 3, 1)]
    assert rows["gemm", BACKWARD_DATA] == [(1, 3, pixels, 16, 1)]
    assert rows["gemm", BACKWARD_WEIGHT] == [(1, 16, 3, pixels, 1)]
    work = layer_work(network)[1]
    assert (work.parameters, work.forward_mac) == (3 * 4 * 4 + 4, 30 * 16 * 3)


def test_windows_by_hand() -> None:
    """4 x 6 positions in windows of 2 x 2: shifted ones are copied twice; merged ones have the features of all four."""
    elements = SAMPLES * 24 * 12
    for shift, copies in ((0, 1), (1, 2)):
        rows = rows_of(behind_linear("windows", (24, 8), 12, height=4, side=2, shift=shift), "it")
        assert rows == {("copy", way): [(1, elements, 2 * elements, 0)] * copies for way in (FORWARD, BACKWARD_DATA)}
    assert layer_shapes(behind_linear("windows", (24, 8), 12, height=4, side=2, merged=True))["it"] == (6, 48)
    with pytest.raises(ParameterError, match="layer it: side must be a divisor of both sides of the 24 positions"):
        layer_shapes(behind_linear("windows", (24, 8), 12, height=4, side=4))


@pytest.mark.parametrize("fused", [False, True])
def test_attention_within_windows_is_that_of_as_many_samples(*, fused: bool) -> None:
    """But for the table of biases, which all windows share."""
    whole = behind_linear("attention", (6, 8), 24, heads=2, fused=fused)
    parts = behind_linear("attention", (24, 8), 24, heads=2, fused=fused, windows=4)
    own, other = rows_of(parts, "it"), rows_of(whole, "it", 4 * SAMPLES)
    assert own == other
    assert layer_work(parts)[1].forward_mac == 4 * layer_work(whole)[1].forward_mac
    assert layer_shapes(parts)["it"] == (24, 8)
    kept = [
        memory_bytes(one, np.array([n, 2 * n]), "fp32", "sgd", "gpu").activations for one, n in ((whole, 4), (parts, 1))
    ]
    assert kept[0][1] - kept[0][0] == kept[1][1] - kept[1][0]
    with pytest.raises(ParameterError, match="layer it: windows must be 1, or a divisor of the 24 positions"):
        layer_shapes(behind_linear("attention", (24, 8), 24, heads=2, windows=5))


def test_pixels_are_positions_and_back() -> None:
    layers = (
        Layer("pixels", "sequence", (INPUT,)),
        Layer("norm", "layer_norm", ("pixels",)),
        Layer("image", "image", ("norm",), {"height": 5}),
    )
    network = Network("pixels", (3, 5, 6), layers)
    assert list(layer_shapes(network).values()) == [(3, 5, 6), (30, 3), (30, 3), (3, 5, 6)]
    assert (rows_of(network, "pixels"), rows_of(network, "image")) == ({}, {})
    with pytest.raises(
        ParameterError, match="layer image: height must be a divisor of the 30 positions it reads, got 4"
    ):
        layer_shapes(Network("bad", (3, 5, 6), (*layers[:2], Layer("image", "image", ("norm",), {"height": 4}))))
