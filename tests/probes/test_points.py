import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, WORK_COLUMNS, convolution_output
from planner.domain.layers.record import INPUT, AttributeValue, Layer
from planner.domain.network import Network, Point
from planner.networks.zoo import build, zoo_names
from planner.probes.points import designed_points
from planner.workload.calls import lower

POINTS = designed_points()


def test_design_is_the_same_every_time_and_has_no_point_twice() -> None:
    assert designed_points() == POINTS
    shapes = Counter(point.name for point in POINTS if point.kind == "convolution")
    assert max(shapes.values()) == 1


def test_columns_are_those_of_the_kind() -> None:
    assert all(tuple(point.work) == WORK_COLUMNS[point.kind] for point in POINTS)


def test_every_kind_and_direction_of_the_zoo_is_designed() -> None:
    designed = {(point.kind, point.direction) for point in POINTS}
    wanted = {(calls.kind, calls.direction) for name in zoo_names() for calls in lower(build(name, {}), np.array([1]))}
    fused = {("bias", FORWARD), ("bias", BACKWARD_WEIGHT)}
    assert wanted - designed == fused


def test_operands_stay_below_two_gigabytes_together() -> None:
    for point in POINTS:
        if point.kind == "convolution":
            work = point.work
            height, width = convolution_output(work)
            read = work["images"] * work["in_c"] * work["in_h"] * work["in_w"]
            written = work["images"] * work["out_c"] * height * width
            assert 4 * (2 * read + 2 * written) < 0.5e9
            assert min(height, width) >= 3
        if point.kind == "gemm":
            assert 4 * max(point.work[a] * point.work[b] for a, b in ("mn", "nk", "mk")) < 0.3e9


def flop(work: Mapping[str, int]) -> int:
    """Return the FLOP of a convolution, counted from its output."""
    height, width = convolution_output(work)
    written = work["images"] * work["out_c"] * height * width
    return 2 * written * work["in_c"] // work["groups"] * work["k_h"] * work["k_w"]


def test_calls_of_32_samples_of_resnet_lie_inside_the_design() -> None:
    """Its largest 3 x 3 and strided 1 x 1 convolutions, the output of its first one, its first activation."""
    convolutions = [point.work for point in POINTS if point.kind == "convolution"]
    assert max(flop(w) for w in convolutions if (w["k_h"], w["k_w"], w["stride_h"]) == (3, 3, 1)) > 32 * 231e6
    assert max(flop(w) for w in convolutions if (w["k_h"], w["k_w"], w["stride_h"]) == (1, 1, 2)) > 32 * 205e6
    written = [w["images"] * w["out_c"] * math.prod(convolution_output(w)) for w in convolutions if w["in_c"] == 3]
    for elements in (written, [point.work["elements"] for point in POINTS if point.kind == "activation"]):
        assert max(elements) > 0.95 * 32 * 64 * 112**2


def test_products_of_layers_on_sequences_lie_inside_the_design() -> None:
    """A step on sequences has a row a position: 16 samples of 128 and more of them, of every direction."""
    products = [point for point in POINTS if point.kind == "gemm" and not point.geometry]
    rows = {FORWARD: "n", BACKWARD_DATA: "n", BACKWARD_WEIGHT: "k"}
    for direction, column in rows.items():
        many = [one.work for one in products if one.direction == direction and one.work[column] >= 128]
        assert len(many) >= 8
        assert max(work[column] for work in many) > 16 * 128


def test_first_points_hold_every_kind() -> None:
    share = {point.kind for point in POINTS[: len(POINTS) // 3]}
    assert share == {point.kind for point in POINTS}


LAYERS: dict[str, tuple[str, dict[str, AttributeValue]]] = {
    "activation": ("activation", {}),
    "batch_norm": ("batch_norm", {}),
    "lrn": ("lrn", {}),
    "dropout": ("dropout", {}),
    "add": ("add", {}),
    "concat": ("concat", {}),
    "max_pool": ("pool", {"mode": "max"}),
    "average_pool": ("pool", {"mode": "average"}),
}


def network_of(point: Point) -> Network:
    """Return a network in which the point's layer stands behind a trained one, so that gradients flow through it."""
    kind, attributes = LAYERS[point.kind]
    geometry = point.geometry
    channels, side = geometry["channels"], geometry["side"]
    if kind == "pool":
        attributes = attributes | {"window": geometry["window"], "stride": geometry["stride"]}
    inputs: tuple[str, ...] = ("trained",)
    before = [Layer("trained", "convolution", (INPUT,), {"channels": channels, "kernel": 1})]
    if kind == "concat":
        before[0] = Layer("trained", "convolution", (INPUT,), {"channels": channels // 2, "kernel": 1})
    if kind in ("add", "concat"):
        half = channels - channels // 2 if kind == "concat" else channels
        before.append(Layer("other", "convolution", (INPUT,), {"channels": half, "kernel": 1}))
        inputs = ("trained", "other")
    return Network("one", (1, side, side), (*before, Layer("layer", kind, inputs, attributes)))


@pytest.mark.parametrize("kind", LAYERS)
def test_work_is_counted_as_lowering_counts_it(kind: str) -> None:
    for point in (point for point in POINTS if point.kind == kind):
        if (kind, point.direction) == ("add", BACKWARD_DATA):
            continue  # gradients that meet: counted where an output is read twice, as much as forward
        calls = lower(network_of(point), np.array([point.geometry["images"]]))
        (found,) = [c for c in calls if (c.kind, c.direction) == (kind, point.direction)]
        assert {name: int(value.ravel()[-1]) for name, value in found.work.items()} == dict(point.work)


def test_products_of_a_linear_layer_are_those_of_lowering() -> None:
    points = [point for point in POINTS if point.kind == "gemm" and point.work["m"] != 960 and not point.geometry]
    by_direction = {direction: [p.work for p in points if p.direction == direction] for direction in (FORWARD,)}
    work = by_direction[FORWARD][0]
    layers = (
        Layer("first", "linear", (INPUT,), {"features": work["k"]}),
        Layer("linear", "linear", ("first",), {"features": work["m"]}),
    )
    lowered = lower(Network("one", (2,), layers), np.array([work["n"]]))
    for calls in (c for c in lowered if c.kind == "gemm"):
        last = {name: int(np.broadcast_to(value, (1, calls.layer.size))[0, -1]) for name, value in calls.work.items()}
        assert any(point.direction == calls.direction and dict(point.work) == last for point in points)
    assert {c.direction for c in lowered if c.kind == "gemm"} == {FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT}
