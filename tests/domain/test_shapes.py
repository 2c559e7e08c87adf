from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.layers.record import INPUT, AttributeValue, Layer
from planner.domain.network import Network, layer_parameters, layer_shapes
from planner.errors import ParameterError

SIDES = st.integers(1, 24)


def one_layer(kind: str, shape: tuple[int, ...], **attributes: AttributeValue) -> Network:
    return Network("n", shape, (Layer("x", kind, (INPUT,), attributes),))


def shape_of(kind: str, shape: tuple[int, ...], **attributes: AttributeValue) -> tuple[int, ...]:
    return layer_shapes(one_layer(kind, shape, **attributes))["x"]


def windows(side: int, window: int, stride: int, padding: int) -> int:
    """Count, one by one, the windows that lie inside the padded input."""
    return sum(1 for start in range(0, side + 2 * padding, stride) if start + window <= side + 2 * padding)


def ceil_windows(side: int, window: int, stride: int, padding: int) -> int:
    """Count windows until the padded input is covered, without those that start beyond input and leading padding."""
    starts = [0]
    while starts[-1] + window < side + 2 * padding:
        starts.append(starts[-1] + stride)
    return sum(1 for start in starts if start < side + padding)


@given(st.tuples(SIDES, SIDES), st.tuples(st.integers(1, 5), st.integers(1, 5)), st.integers(1, 4), st.integers(0, 3))
def test_convolution_counts_windows(sides: tuple[int, int], kernel: tuple[int, int], stride: int, padding: int) -> None:
    def shape() -> tuple[int, ...]:
        return shape_of("convolution", (3, *sides), channels=6, kernel=kernel, stride=stride, padding=padding)

    expected = tuple(windows(side, c, stride, padding) for side, c in zip(sides, kernel, strict=True))
    if 0 in expected:
        with pytest.raises(ParameterError, match="layer x: kernel must be at most the padded input"):
            shape()
    else:
        assert shape() == (6, *expected)


@given(side=SIDES, window=st.integers(1, 5), stride=st.integers(1, 7), padding=st.integers(0, 4), ceil=st.booleans())
def test_pool_counts_windows(*, side: int, window: int, stride: int, padding: int, ceil: bool) -> None:
    def shape() -> tuple[int, ...]:
        return shape_of("pool", (3, side, side), window=window, stride=stride, padding=padding, ceil=ceil)

    if padding >= window or window > side + 2 * padding:
        with pytest.raises(ParameterError, match=r"layer x: (padding|window) must be"):
            shape()
    else:
        count = (ceil_windows if ceil else windows)(side, window, stride, padding)
        assert shape() == (3, count, count)


@pytest.mark.parametrize(
    ("side", "window", "stride", "padding", "ceil", "expected"),
    [
        (112, 3, 2, 1, False, 56),  # ResNet
        (112, 3, 2, 0, True, 56),  # GoogLeNet, Caffe
        (28, 3, 1, 1, True, 28),  # inside an inception block
        (55, 3, 2, 0, True, 27),  # AlexNet
        (4, 2, 2, 1, True, 3),  # starts 0 2 4 cover 6
        (3, 2, 2, 1, True, 2),  # starts 0 2 4 cover 5, but 4 lies beyond the input: dropped
    ],
)
def test_pool_of_known_networks(
    *, side: int, window: int, stride: int, padding: int, ceil: bool, expected: int
) -> None:
    shape = shape_of("pool", (1, side, side), window=window, stride=stride, padding=padding, ceil=ceil)
    assert shape == (1, expected, expected)


def test_the_other_kinds() -> None:
    assert shape_of("global_pool", (7, 5, 4)) == (7, 1, 1)
    assert shape_of("upsample", (7, 5, 4), factor=3) == (7, 15, 12)
    assert shape_of("flatten", (7, 5, 4)) == (140,)
    assert shape_of("linear", (140,), features=10) == (10,)
    assert shape_of("linear", (9, 140), features=10) == (9, 10)
    assert shape_of("embedding", (9,), vocabulary=50, features=6) == (9, 6)
    assert shape_of("attention", (9, 24), heads=2) == (9, 8)
    assert shape_of("layer_norm", (9, 8)) == (9, 8)
    assert shape_of("first_position", (9, 8)) == (8,)
    assert shape_of("loss", (10,)) == (1,)
    for kind in ("activation", "dropout", "batch_norm", "lrn"):
        assert shape_of(kind, (7, 5, 4)) == (7, 5, 4)


def test_joining_layers() -> None:
    convolutions = tuple(
        Layer(name, "convolution", (INPUT,), {"channels": c, "kernel": 1}) for name, c in (("a", 4), ("b", 4))
    )
    network = Network(
        "n", (3, 5, 6), (*convolutions, Layer("s", "add", ("a", "b")), Layer("c", "concat", ("a", "s", INPUT)))
    )
    shapes = layer_shapes(network)
    assert list(shapes) == [INPUT, "a", "b", "s", "c"]
    assert shapes["s"] == (4, 5, 6)
    assert shapes["c"] == (11, 5, 6)


def test_concat_of_sequences_joins_features() -> None:
    layers = (Layer("a", "linear", (INPUT,), {"features": 5}), Layer("c", "concat", ("a", INPUT)))
    assert layer_shapes(Network("n", (7, 3), layers))["c"] == (7, 8)


@pytest.mark.parametrize(
    ("kind", "shape", "attributes", "count"),
    [
        ("convolution", (6, 9, 9), {"channels": 4, "kernel": (3, 5)}, 4 * 6 * 15 + 4),
        ("convolution", (6, 9, 9), {"channels": 4, "kernel": (3, 5), "bias": False}, 4 * 6 * 15),
        ("convolution", (6, 9, 9), {"channels": 4, "kernel": 3, "groups": 2}, 2 * (2 * 3 * 9) + 4),
        ("linear", (6,), {"features": 4}, 28),
        ("linear", (9, 6), {"features": 4, "bias": False}, 24),
        ("batch_norm", (6, 9, 9), {}, 12),
        ("layer_norm", (9, 6), {}, 12),
        ("embedding", (9,), {"vocabulary": 50, "features": 6}, 300),
        ("embedding", (9,), {"vocabulary": 50, "features": 6, "positions": 12, "types": 2}, 384),
        ("attention", (9, 24), {"heads": 2}, 0),
        ("activation", (6, 9, 9), {}, 0),
    ],
)
def test_parameters(kind: str, shape: tuple[int, ...], attributes: dict[str, AttributeValue], count: int) -> None:
    np.testing.assert_array_equal(layer_parameters(one_layer(kind, shape, **attributes)), [count])


@pytest.mark.parametrize(
    ("kind", "shape", "attributes", "sentence"),
    [
        (
            "convolution",
            (3, 9, 9),
            {"channels": 4, "kernel": 3, "groups": 2},
            "channels in must be divisible by groups = 2, got 3",
        ),
        (
            "convolution",
            (4, 9, 9),
            {"channels": 5, "kernel": 3, "groups": 2},
            "channels must be divisible by groups = 2, got 5",
        ),
        (
            "convolution",
            (4, 9, 2),
            {"channels": 5, "kernel": 3},
            "kernel must be at most the padded input (9, 2), got (3, 3)",
        ),
        ("convolution", (40,), {"channels": 5, "kernel": 3}, "input shape must be an image"),
        ("pool", (4, 5, 5), {"window": 7, "stride": 1}, "window must be at most the padded input (5, 5), got (7, 7)"),
        ("pool", (4, 5, 5), {"window": 2, "stride": 1, "padding": 2}, "padding must be smaller than the window (2, 2)"),
        ("linear", (4, 5, 5), {"features": 7}, "got (4, 5, 5); add a flatten layer before it"),
        ("batch_norm", (4, 5), {}, "input shape must be a vector (features) or an image"),
        ("embedding", (9, 4), {"vocabulary": 50, "features": 6}, "input shape must be a vector"),
        (
            "embedding",
            (9,),
            {"vocabulary": 50, "features": 6, "positions": 8},
            "positions must be 0, or at least the 9",
        ),
        (
            "attention",
            (9, 24),
            {"heads": 3},
            "features in must be divisible by 3 x heads = 9: queries, keys and values",
        ),
        (
            "attention",
            (9, 24),
            {"heads": 2, "fused": True, "dropout": 0.1},
            "dropout must be 0 where attention is fused, as PyTorch's fused kernel on CPUs drops none, got 0.1",
        ),
        ("linear", (9, 4), {"features": 7, "tied": True}, "tied must be false in a network without an embedding"),
        ("add", (4,), {}, "inputs must be at least two for kind add, got 1"),
    ],
)
def test_errors_name_the_layer(
    kind: str, shape: tuple[int, ...], attributes: dict[str, AttributeValue], sentence: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        layer_shapes(one_layer(kind, shape, **attributes))
    assert str(caught.value).startswith("layer x: ")
    assert sentence in str(caught.value)


def tied(features: int, width: int) -> Network:
    layers = (
        Layer("e", "embedding", (INPUT,), {"vocabulary": 50, "features": 6}),
        Layer("l", "linear", ("e",), {"features": width}),
        Layer("t", "linear", ("l",), {"features": features, "tied": True}),
    )
    return Network("n", (9,), layers)


def test_tied_weights_count_once() -> None:
    assert layer_shapes(tied(50, 6))["t"] == (9, 50)
    np.testing.assert_array_equal(layer_parameters(tied(50, 6)), [300, 42, 50])


@pytest.mark.parametrize(("features", "width"), [(49, 6), (50, 7)])
def test_tied_weights_fit_the_table(features: int, width: int) -> None:
    sentence = r"layer t: features out and in must be those of the table of e, \(50, 6\)"
    with pytest.raises(ParameterError, match=sentence):
        layer_shapes(tied(features, width))


def test_an_embedding_reads_tokens() -> None:
    layers = (Layer("a", "activation", (INPUT,)), Layer("e", "embedding", ("a",), {"vocabulary": 50, "features": 6}))
    with pytest.raises(ParameterError, match="layer e: input must be input, the numbers of tokens, got 'a'"):
        layer_shapes(Network("n", (9,), layers))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("add", "layer j: input a must be of the shape (3, 8, 8) of input, got (4, 6, 6)"),
        (
            "concat",
            "layer j: input a must be like input, which is (3, 8, 8), but for channels, got (4, 6, 6)",
        ),
        ("activation", "layer j: inputs must be one for kind activation, got 2"),
    ],
)
def test_inputs_that_do_not_fit(kind: str, sentence: str) -> None:
    first = Layer("a", "convolution", (INPUT,), {"channels": 4, "kernel": 3})
    with pytest.raises(ParameterError) as caught:
        layer_shapes(Network("n", (3, 8, 8), (first, Layer("j", kind, (INPUT, "a")))))
    assert str(caught.value) == sentence
