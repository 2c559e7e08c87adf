from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import OPTIMIZERS
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, DIRECTIONS, FORWARD, KINDS, UPDATE, KernelCalls
from planner.domain.layers.record import INPUT, AttributeValue, Layer
from planner.domain.network import Network, layer_shapes
from planner.errors import ParameterError, UnknownNameError
from planner.networks.zoo import build, zoo_names
from planner.workload.calls import UPDATE_BYTES, layer_work, lower

PUBLISHED = json.loads((Path(__file__).parents[1] / "data/published/networks.json").read_text())
ONE = np.array([1])

Key = tuple[str, str]


def network_of(shape: tuple[int, ...], *layers: tuple[str, dict[str, AttributeValue]]) -> Network:
    """Return a chain of layers named 0, 1, ..."""
    names = [INPUT, *(str(position) for position in range(len(layers)))]
    made = [Layer(names[p + 1], kind, (names[p],), attributes) for p, (kind, attributes) in enumerate(layers)]
    return Network("chain", shape, tuple(made))


def by_key(calls: tuple[KernelCalls, ...]) -> dict[Key, KernelCalls]:
    found = {(call.kind, call.direction): call for call in calls}
    assert len(found) == len(calls)
    return found


def table(call: KernelCalls, sub_batch: int = 0) -> dict[int, tuple[int, ...]]:
    """Return count and work of a kind and direction by layer, for one of the sub-batches."""
    columns = [np.atleast_2d(call.count), *(np.atleast_2d(column) for column in call.work.values())]
    rows = [column[min(sub_batch, column.shape[0] - 1)] for column in columns]
    return {int(layer): tuple(int(row[k]) for row in rows) for k, layer in enumerate(call.layer)}


def flop_of_products(call: KernelCalls) -> FloatArray:
    """Return FLOP by sub-batch and call, with how often it is made, shape (s, k)."""
    m, n, k, batch = call.work.values()
    return np.asarray(2.0 * m * n * k * batch * call.count)


def multiplications(network: Network) -> int:
    """Count the multiplications of the first layer, a convolution, with one loop an index."""
    layer, shapes = network.layers[0], layer_shapes(network)
    groups, (c_h, c_w) = layer.integer("groups"), layer.pair("kernel")
    channels, height, width = shapes[layer.name]
    count = 0
    for _ in product(range(channels), range(height), range(width), range(network.input_shape[0] // groups)):
        for _ in product(range(c_h), range(c_w)):
            count += 1
    return count


@st.composite
def convolutions(draw: st.DrawFn) -> Network:
    groups = draw(st.integers(1, 2))
    attributes: dict[str, AttributeValue] = {
        "channels": groups * draw(st.integers(1, 3)),
        "kernel": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "stride": draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "padding": draw(st.tuples(st.integers(0, 1), st.integers(0, 1))),
        "groups": groups,
    }
    shape = (groups * draw(st.integers(1, 2)), draw(st.integers(3, 5)), draw(st.integers(3, 5)))
    return network_of(shape, ("convolution", attributes), ("convolution", {"channels": 2, "kernel": 1}))


@given(convolutions(), st.integers(1, 4), st.booleans())
def test_products_count_every_multiplication(network: Network, samples: int, per_image: bool) -> None:  # noqa: FBT001 - drawn
    calls = by_key(lower(network, np.array([samples]), convolution="im2col", per_image=per_image))
    expected = 2 * samples * multiplications(network)
    for direction in (FORWARD, BACKWARD_WEIGHT):
        call = calls["gemm", direction]
        assert flop_of_products(call)[0][call.layer == 0].sum() == expected
    assert 0 not in calls["gemm", BACKWARD_DATA].layer


def test_im2col_toy_example() -> None:
    example = PUBLISHED["im2col_example"]
    kernel, image = np.array(example["kernel"]), np.array(example["image"])
    network = network_of((1, 3, 3), ("convolution", {"channels": 1, "kernel": 2, "bias": False}))
    calls = by_key(lower(network, ONE, convolution="im2col", optimizer="none"))
    count, m, n, k, batch = table(calls["gemm", FORWARD])[0]
    assert (count, m, n, k, batch) == (1, 1, 4, 4, 1)
    columns = np.array([image[row : row + 2, column : column + 2].ravel() for row in (0, 1) for column in (0, 1)]).T
    weights = kernel.reshape(m, k)
    assert columns.shape == (k, n)
    np.testing.assert_array_equal((weights @ columns).reshape(2, 2), example["output"])
    assert table(calls["im2col", FORWARD])[0][1:] == (columns.size, image.size + columns.size, 0)


def test_products_of_a_grouped_convolution_by_hand() -> None:
    attributes: dict[str, AttributeValue] = {"channels": 6, "kernel": (3, 5), "groups": 2, "padding": (1, 2)}
    network = network_of((3, 7, 8), ("convolution", {"channels": 4, "kernel": 1}), ("convolution", attributes))
    whole = by_key(lower(network, np.array([10]), convolution="im2col"))
    assert table(whole["gemm", FORWARD])[1] == (2, 3, 560, 30, 1)
    assert table(whole["gemm", BACKWARD_DATA]) == {1: (2, 30, 560, 3, 1)}
    assert table(whole["gemm", BACKWARD_WEIGHT])[1] == (2, 3, 30, 560, 1)
    columns = 10 * 56 * 15 * 4
    for kind, direction in (("im2col", FORWARD), ("im2col", BACKWARD_WEIGHT), ("col2im", BACKWARD_DATA)):
        assert table(whole[kind, direction]) == {1: (1, columns, columns + 10 * 4 * 56, 0)}
    single = by_key(lower(network, np.array([10]), convolution="im2col", per_image=True))
    assert table(single["gemm", FORWARD])[1] == (20, 3, 56, 30, 1)
    assert table(single["gemm", BACKWARD_WEIGHT])[1] == (20, 3, 30, 56, 1)
    assert table(single["im2col", FORWARD]) == {1: (10, columns // 10, columns // 10 + 4 * 56, 0)}


@pytest.mark.parametrize(
    ("attributes", "has_columns"),
    [
        ({"kernel": 1}, False),
        ({"kernel": 1, "stride": 2}, True),
        ({"kernel": 1, "padding": 1}, True),
        ({"kernel": 3}, True),
    ],
)
def test_only_a_plain_1x1_convolution_needs_no_columns(
    attributes: dict[str, AttributeValue], *, has_columns: bool
) -> None:
    network = network_of((3, 8, 8), ("convolution", {"channels": 4, **attributes}))
    calls = by_key(lower(network, ONE, convolution="im2col"))
    assert (("im2col", FORWARD) in calls) is has_columns


def test_columns_of_a_direct_convolution() -> None:
    attributes: dict[str, AttributeValue] = {
        "channels": 6,
        "kernel": (1, 7),
        "stride": (2, 1),
        "padding": (0, 3),
        "groups": 3,
    }
    calls = by_key(lower(network_of((9, 8, 5), ("convolution", attributes)), np.array([4])))
    row = (1, 4, 9, 8, 5, 6, 1, 7, 2, 1, 0, 3, 3)
    assert table(calls["convolution", FORWARD]) == {0: row}
    assert table(calls["convolution", BACKWARD_WEIGHT]) == {0: row}
    assert ("convolution", BACKWARD_DATA) not in calls
    assert not {"gemm", "im2col", "col2im"} & {kind for kind, _ in calls}


def test_linear_by_hand() -> None:
    network = network_of((12,), ("linear", {"features": 7}), ("linear", {"features": 5, "bias": False}))
    calls = by_key(lower(network, np.array([3])))
    assert table(calls["gemm", FORWARD]) == {0: (1, 7, 3, 12, 1), 1: (1, 5, 3, 7, 1)}
    assert table(calls["gemm", BACKWARD_DATA]) == {1: (1, 7, 3, 5, 1)}
    assert table(calls["gemm", BACKWARD_WEIGHT]) == {0: (1, 7, 12, 3, 1), 1: (1, 5, 7, 3, 1)}
    assert table(calls["bias", FORWARD]) == {0: (1, 21, 42, 0)}
    assert table(calls["bias", BACKWARD_WEIGHT]) == {0: (1, 21, 21, 0)}


def test_linear_over_a_sequence_has_a_column_a_position() -> None:
    calls = by_key(lower(network_of((9, 12), ("linear", {"features": 7})), np.array([3])))
    assert table(calls["gemm", FORWARD]) == {0: (1, 7, 27, 12, 1)}


FIRST: tuple[str, dict[str, AttributeValue]] = ("convolution", {"channels": 4, "kernel": 1})  # (4, 6, 6), 144 elements


@pytest.mark.parametrize(
    ("kind", "attributes", "called", "forward", "backward"),
    [
        ("activation", {}, "activation", (144, 288, 0), (144, 432, 0)),
        ("batch_norm", {}, "batch_norm", (144, 432, 0), (144, 720, 0)),
        ("lrn", {}, "lrn", (144, 432, 0), (144, 720, 0)),
        ("dropout", {}, "dropout", (144, 288, 144), (144, 288, 144)),
        ("pool", {"window": 2, "stride": 2}, "max_pool", (144, 180, 144), (144, 180, 144)),
        ("pool", {"window": 2, "stride": 2, "mode": "average"}, "average_pool", (144, 180, 0), (144, 180, 0)),
        ("global_pool", {}, "average_pool", (144, 148, 0), (144, 148, 0)),
        ("upsample", {"factor": 2}, "upsample", (576, 720, 0), (576, 720, 0)),
        ("loss", {}, "softmax", (144, 432, 0, 36), (144, 288, 0, 36)),
    ],
)
def test_traffic_by_hand(
    kind: str,
    attributes: dict[str, AttributeValue],
    called: str,
    forward: tuple[int, ...],
    backward: tuple[int, ...],
) -> None:
    network = network_of((3, 6, 6), FIRST, (kind, attributes))
    calls = by_key(lower(network, np.array([1, 5])))
    for sub_batch, samples in enumerate((1, 5)):
        assert table(calls[called, FORWARD], sub_batch) == {1: (1, *(samples * value for value in forward))}
        assert table(calls[called, BACKWARD_DATA], sub_batch) == {1: (1, *(samples * value for value in backward))}


def test_nothing_flows_back_to_the_input() -> None:
    network = network_of((3, 6, 6), ("pool", {"window": 2, "stride": 2}), ("activation", {}), FIRST, ("activation", {}))
    calls = lower(network, ONE, convolution="im2col")
    assert {int(layer) for call in calls if call.direction == BACKWARD_DATA for layer in call.layer} == {3}
    assert {int(layer) for call in calls if call.direction == BACKWARD_WEIGHT for layer in call.layer} == {2}


def test_the_gradient_of_the_input_passes_through_every_layer_where_it_is_asked_for() -> None:
    """What it adds to a first convolution is what the same convolution has behind one that is trained."""
    layers: list[tuple[str, dict[str, AttributeValue]]] = [
        ("pool", {"window": 2, "stride": 2}),
        ("activation", {}),
        FIRST,
    ]
    network = network_of((3, 6, 6), *layers)
    calls = lower(network, ONE, input_gradient=True)
    assert {int(layer) for call in calls if call.direction == BACKWARD_DATA for layer in call.layer} == {0, 1, 2}
    behind = lower(network_of((3, 6, 6), ("convolution", {"channels": 3, "kernel": 1}), *layers), ONE)
    added, known = (by_key(each)["convolution", BACKWARD_DATA] for each in (calls, behind))
    for name, column in added.work.items():
        np.testing.assert_array_equal(column, known.work[name])
    assert not any(call.direction == BACKWARD_DATA and 0 in call.layer for call in lower(network, ONE))


@pytest.mark.parametrize("name", [name for name in zoo_names() if len(build(name, {}).input_shape) == 3])
def test_first_layer_alone_has_no_backward_data(name: str) -> None:
    network = build(name, {})
    calls = by_key(lower(network, ONE))
    trained = calls["convolution", FORWARD].layer
    np.testing.assert_array_equal(calls["convolution", BACKWARD_WEIGHT].layer, trained)
    passed_on = calls["convolution", BACKWARD_DATA].layer if trained.size > 1 else ()
    np.testing.assert_array_equal(passed_on, trained[1:])
    assert trained[0] == 0


def residual() -> Network:
    layers = (
        Layer("c", "convolution", (INPUT,), {"channels": 4, "kernel": 1}),
        Layer("b", "convolution", ("c",), {"channels": 4, "kernel": 1}),
        Layer("s", "add", ("b", "c", "c")),
        Layer("j", "concat", ("s", INPUT)),
    )
    return Network("residual", (3, 6, 6), layers)


def test_gradients_that_meet_are_summed() -> None:
    calls = by_key(lower(residual(), ONE))
    assert table(calls["add", FORWARD]) == {2: (2, 144, 432, 0)}
    assert table(calls["add", BACKWARD_DATA]) == {0: (2, 144, 432, 0)}  # c is read three times


def test_concat_sends_back_only_what_is_wanted() -> None:
    calls = by_key(lower(residual(), ONE))
    assert table(calls["concat", FORWARD]) == {3: (1, 252, 504, 0)}
    assert table(calls["concat", BACKWARD_DATA]) == {3: (1, 144, 288, 0)}


def test_resnet50_sums_a_gradient_at_every_block() -> None:
    calls = by_key(lower(build("resnet50", {}), ONE))
    assert calls["add", FORWARD].count.sum() == calls["add", BACKWARD_DATA].count.sum() == 16


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_update_by_optimizer(optimizer: str) -> None:
    network = build("resnet18", {})
    calls = by_key(lower(network, np.array([1, 2]), optimizer=optimizer, merged=False))
    if optimizer == "none":
        assert ("update", UPDATE) not in calls
        return
    parameters = {p: row.parameters for p, row in enumerate(layer_work(network)) if row.parameters}
    assert table(calls["update", UPDATE]) == {p: (1, c, 0, UPDATE_BYTES[optimizer] * c) for p, c in parameters.items()}
    assert calls["update", UPDATE].work["fixed_bytes"].shape == (1, len(parameters))


def test_update_bytes_read_and_write_every_state_once() -> None:
    for optimizer, state_bytes in OPTIMIZERS.items():
        weight_and_gradient = 12  # weight read and written, gradient read; with an fp32 master 8 + 2 + 2
        assert UPDATE_BYTES[optimizer] == (0 if optimizer == "none" else weight_and_gradient + 2 * state_bytes)


@pytest.mark.parametrize("convolution", ["direct", "im2col"])
@pytest.mark.parametrize("name", ["alexnet", "resnet50", "googlenet"])
def test_three_directions_have_equal_flop(name: str, convolution: str) -> None:
    network, samples = build(name, {}), np.array([1, 3])
    calls = by_key(lower(network, samples, convolution=convolution, merged=False))
    work = layer_work(network)
    for direction in (FORWARD, BACKWARD_WEIGHT, BACKWARD_DATA):
        call = calls["gemm", direction]
        mac = np.array([work[layer].forward_mac for layer in call.layer])
        np.testing.assert_array_equal(flop_of_products(call), 2 * mac * samples[:, None])


@pytest.mark.parametrize("per_image", [False, True])
@pytest.mark.parametrize("convolution", ["direct", "im2col"])
def test_shapes_of_columns(convolution: str, *, per_image: bool) -> None:
    calls = lower(build("alexnet", {}), np.arange(1, 6), convolution=convolution, per_image=per_image)
    keys = [(call.kind, call.direction) for call in calls]
    assert keys == [(kind, direction) for kind in KINDS for direction in DIRECTIONS if (kind, direction) in keys]
    for call in calls:
        k = call.layer.size
        assert call.count.shape in ((k,), (5, k))
        for column in call.work.values():
            assert column.shape in ((1, k), (5, k))
            assert column.shape[0] == 1 or (column[1:] != column[:1]).any()
    counted = {call.kind for call in calls if call.count.ndim == 2}
    assert counted == ({"gemm", "im2col", "col2im"} if per_image and convolution == "im2col" else set())


@settings(max_examples=20)
@given(st.lists(st.integers(1, 512), min_size=1, max_size=4))
def test_one_sub_batch_at_a_time_is_the_same(sub_batches: list[int]) -> None:
    network = residual()
    together = lower(network, np.array(sub_batches), convolution="im2col", per_image=True)
    for position, sub_batch in enumerate(sub_batches):
        alone = lower(network, np.array([sub_batch]), convolution="im2col", per_image=True)
        assert [table(call, position) for call in together] == [table(call) for call in alone]


def test_flattening_costs_nothing() -> None:
    flat = network_of((3, 6, 6), FIRST, ("flatten", {}), ("linear", {"features": 2}))
    assert 1 not in {int(layer) for call in lower(flat, ONE) for layer in call.layer}


@pytest.mark.parametrize("sub_batch", [np.array([0]), np.array([4, -1]), np.array([[1]])])
def test_bad_sub_batches(sub_batch: IntArray) -> None:
    with pytest.raises(ParameterError, match="sub_batch must be a vector of whole numbers, at least 1"):
        lower(residual(), sub_batch)


def test_bad_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'im2col'"):
        lower(residual(), ONE, convolution="im2coll")
    with pytest.raises(UnknownNameError, match="did you mean 'adam'"):
        lower(residual(), ONE, optimizer="adamm")


def test_counts_of_the_largest_sub_batch_do_not_overflow() -> None:
    network = build("vgg16", {})
    one, most = (lower(network, np.array([samples]), convolution="im2col") for samples in (1, 10**9))
    for small, large in zip(one, most, strict=True):
        for name in small.work:
            exact = [int(value) * 10**9 for value in small.work[name].ravel()]
            assert large.work[name].ravel().tolist() in (exact, small.work[name].ravel().tolist())
