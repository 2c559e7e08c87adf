from dataclasses import replace

import pytest

from planner.catalog import find_network
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import LayerCall, Network, Point
from planner.networks.zoo import build
from planner.probes.kernels import timed_call
from planner.probes.layer_points import (
    ALONE_ELEMENTS,
    GPU_SUB_BATCHES,
    LARGE_SUB_BATCH,
    MOST_OPERAND_ELEMENTS,
    ROW_SUB_BATCHES,
    SMALL_SUB_BATCH,
    Extent,
    layer_points,
    unmeasurable,
)
from planner.probes.operands import Operands
from planner.workload.calls import distinct_calls

TINY = (
    "gpt:layers=1,hidden=32,heads=2,sequence=16,vocabulary=64",
    "gpt:layers=1,hidden=32,heads=2,sequence=16,vocabulary=64,attention=fused",
    "bert:layers=1,hidden=32,heads=2,sequence=16,vocabulary=64",
    "bert:layers=1,hidden=32,heads=2,sequence=16,vocabulary=64,head=tokens",
    "mlp:input=8,hidden=16,layers=2",
)
IMAGES = Network(
    "images",
    (3, 16, 16),
    (
        Layer("first", "convolution", (INPUT,), {"channels": 8, "kernel": 3, "padding": 1, "bias": False}),
        Layer("norm", "batch_norm", ("first",)),
        Layer("relu", "activation", ("norm",)),
        Layer("apart", "convolution", ("relu",), {"channels": 8, "kernel": 3, "padding": 1, "groups": 8}),
        Layer("sum", "add", ("relu", "apart")),
        Layer("lrn", "lrn", ("sum",)),
        Layer("pool", "pool", ("lrn",), {"mode": "max", "window": 3, "stride": 2, "padding": 1}),
        Layer("up", "upsample", ("pool",), {"factor": 2}),
        Layer("both", "concat", ("up", "sum")),
        Layer("mean", "global_pool", ("both",)),
        Layer("flat", "flatten", ("mean",)),
        Layer("drop", "dropout", ("flat",)),
        Layer("logits", "linear", ("drop",), {"features": 10}),
        Layer("loss", "loss", ("logits",)),
    ),
)


@pytest.fixture(scope="module")
def operands() -> Operands:
    return Operands(elements=1 << 20)


@pytest.mark.parametrize("network", [IMAGES, *map(find_network, TINY)], ids=lambda network: network.name)
def test_every_call_of_a_network_runs_at_both_sub_batches(network: Network, operands: Operands) -> None:
    calls = distinct_calls([network])
    points = layer_points(calls)
    assert {(point.kind, point.direction, point.call.name) for point in points if point.call} == {
        (call.kind, call.direction, call.name) for call in calls
    }
    for point in points:
        made = timed_call(point, operands)
        made.run()
        made.run()


@pytest.mark.parametrize("network", [IMAGES, *map(find_network, TINY)], ids=lambda network: network.name)
def test_every_call_of_a_network_runs_in_the_other_precisions_of_a_cpu(network: Network, operands: Operands) -> None:
    points = layer_points(distinct_calls([network]), Extent(precisions=("fp32", "bf16", "int8")))
    other = [point for point in points if point.precision != "fp32"]
    assert {point.precision for point in other} == {"bf16", "int8"}
    for point in other:
        made = timed_call(point, operands)
        made.run()
        made.run()


def test_each_precision_has_the_calls_that_are_its_own() -> None:
    def pairs(precision: str) -> set[tuple[str, str]]:
        return {(point.kind, point.direction) for point in points if point.precision == precision}

    everything = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")
    points = layer_points(distinct_calls([build("alexnet", {}), find_network(TINY[0])]), Extent(precisions=everything))
    products = {(k, d) for k in ("convolution", "gemm") for d in ("forward", "backward_data", "backward_weight")}
    assert pairs("tf32") == products
    same = {pair for pair in pairs("fp32") if pair[0] in ("embedding", "update")}
    assert pairs("bf16") == pairs("fp16") == pairs("fp32") - same
    assert pairs("int8") == {("gemm", "forward"), ("gemm", "backward_data"), ("convolution", "forward")}
    assert pairs("fp8") == {pair for pair in products if pair[0] == "gemm"}
    assert not any(p.call and p.call.layer.kind == "attention" for p in points if p.precision in ("int8", "fp8"))
    assert len({point.name for point in points}) == len(points)


def test_a_gpu_measures_between_small_and_large_too() -> None:
    (call,) = distinct_calls([Network("wide", (1 << 14,), (Layer("relu", "activation", (INPUT,)),))])
    for elements, expected in ((1 << 22, (1, 8, 64)), (1 << 18, (1, 8, 16)), (1 << 16, (1, 4)), (1 << 14, (1,))):
        extent = Extent(GPU_SUB_BATCHES, operand_elements=elements, on_gpu=True)
        assert tuple(point.sub_batch for point in layer_points([call], extent)) == expected


def test_points_are_small_and_large_and_of_fixed_work_once() -> None:
    calls = distinct_calls([build("resnet18", {})])
    by_call: dict[str, list[int]] = {}
    for point in layer_points(calls):
        assert point.call is not None
        assert dict(point.work) == point.call.at(point.sub_batch)
        by_call.setdefault(f"{point.kind} {point.direction} {point.call.name}", []).append(point.sub_batch)
    assert set(map(tuple, by_call.values())) == {
        (SMALL_SUB_BATCH, LARGE_SUB_BATCH),
        (SMALL_SUB_BATCH,),
        (SMALL_SUB_BATCH, *ROW_SUB_BATCHES, LARGE_SUB_BATCH),
    }
    assert all(name.startswith("gemm") for name, sizes in by_call.items() if len(sizes) > 2)
    assert all(name.startswith("update") for name, sizes in by_call.items() if sizes == [SMALL_SUB_BATCH])
    assert len({point.name for point in layer_points(calls)}) == len(layer_points(calls))


def test_a_convolution_is_timed_on_both_sides_of_where_its_way_changes() -> None:
    def found(side: int, precisions: tuple[str, ...] = ("fp32",), *, on_gpu: bool = False) -> list[tuple[str, int]]:
        layer = Layer("one", "convolution", (INPUT,), {"channels": 8, "kernel": kernel, "padding": kernel // 2})
        calls = distinct_calls([Network("one", (8, side, side), (layer,))])
        extent = Extent(precisions=precisions, on_gpu=on_gpu)
        points = layer_points([call for call in calls if call.kind == "convolution"], extent)
        return [(p.precision, p.sub_batch) for p in points if p.direction == "forward"]

    kernel = 1
    assert found(4) == [("fp32", n) for n in (SMALL_SUB_BATCH, 15, LARGE_SUB_BATCH)]
    assert found(700) == [("fp32", n) for n in (SMALL_SUB_BATCH, 8)]  # all that fit are computed in one way
    assert found(4, on_gpu=True) == [("fp32", n) for n in (SMALL_SUB_BATCH, LARGE_SUB_BATCH)]
    assert [n for name, n in found(4, ("fp32", "bf16")) if name == "bf16"] == [SMALL_SUB_BATCH, LARGE_SUB_BATCH]
    kernel = 3
    assert found(4) == [("fp32", n) for n in (SMALL_SUB_BATCH, 2, LARGE_SUB_BATCH)]
    assert found(60) == [("fp32", n) for n in (SMALL_SUB_BATCH, LARGE_SUB_BATCH)]


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "yolov3", "gpt2", "bert-large"])
def test_operands_stay_within_the_memory(name: str) -> None:
    large = {"vgg16": {"fc6"}, "gpt2": {"logits"}}.get(name, set())
    for point in layer_points(distinct_calls([build(name, {})])):
        assert point.call is not None
        is_large = _largest(point) > MOST_OPERAND_ELEMENTS
        assert _largest(point) <= ALONE_ELEMENTS
        assert not is_large or point.call.layer.name in large


@pytest.mark.parametrize(
    ("name", "layer", "sub_batches"), [("gpt2", "logits", {1, 2}), ("vgg16", "fc6", {1, 2, 3, 4, 8, 16})]
)
def test_products_of_large_layers_are_timed_at_two_sub_batches_at_least(
    name: str, layer: str, sub_batches: set[int]
) -> None:
    """They are much of a step: 27 % of the forward FLOP of GPT-2 are its logits. Several rows are no more memory."""
    points = [p for p in layer_points(distinct_calls([build(name, {})])) if p.call and p.call.layer.name == layer]
    products = [point for point in points if point.kind == "gemm"]
    assert {point.direction for point in products} == {"forward", "backward_data", "backward_weight"}
    for direction in ("forward", "backward_data", "backward_weight"):
        assert {point.sub_batch for point in products if point.direction == direction} == sub_batches


def test_large_calls_that_cast_are_timed_in_fp32_alone_and_other_types_take_of_the_limit() -> None:
    def held(extent: Extent) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = {}
        for point in layer_points(distinct_calls([build("gpt2", {})]), extent):
            assert point.call is not None
            found.setdefault((point.call.layer.name, point.kind), set()).add(point.precision)
        return found

    one, several = held(Extent()), held(Extent(precisions=("fp32", "bf16")))
    assert one["logits", "gemm"] == one["logits", "add"] == several["logits", "add"] == {"fp32"}
    assert ("logits", "gemm") not in several  # 551 MiB, of 448
    assert several["layer1.mlp.widen", "gemm"] == {"fp32", "bf16"}
    (call,) = [c for c in distinct_calls([build("gpt2", {})]) if (c.layer.name, c.kind) == ("embedding", "update")]
    said = unmeasurable(call, Extent(precisions=("fp32", "bf16")))
    assert said is not None
    assert said.words.endswith("where one call may have 448 MiB")


def test_a_large_call_has_two_points_or_none_and_the_true_limit_is_said() -> None:
    """An activation reads and makes as much, and its layer reads that: three times its elements."""

    def forward(features: int) -> LayerCall:
        layer = Layer("relu", "activation", (INPUT,))
        return distinct_calls([Network("wide", (features,), (layer,))])[0]

    half = ALONE_ELEMENTS // 8  # input, output and what is read: three times so much, at two samples six
    assert [point.sub_batch for point in layer_points([forward(half)])] == [1, 2]
    call = forward(ALONE_ELEMENTS // 5)
    assert layer_points([call]) == ()
    words = "operands and results at a sub-batch of 2, where one call may have 640 MiB"
    assert unmeasurable(call) == (4 * 6 * (ALONE_ELEMENTS // 5), f"of {words}")
    gpu = Extent(GPU_SUB_BATCHES, operand_elements=1 << 20, elements=1 << 21, on_gpu=True)
    assert unmeasurable(forward(1 << 20), gpu) == (
        12 << 20, "of operands and results at a sub-batch of 1, where one call may have 8 MiB"
    )  # fmt: skip
    assert unmeasurable(forward(1 << 19), gpu) is None
    of_one = unmeasurable(forward(1 << 21), replace(gpu, elements=1 << 30))
    assert of_one == (8 << 20, "of one operand at a sub-batch of 1, where one call may have 4 MiB")


def test_what_a_layer_reads_is_an_operand_of_its_calls_but_not_of_its_update() -> None:
    """A convolution of few weights whose stride makes little of a large input."""
    layer = Layer("sparse", "convolution", (INPUT,), {"channels": 4, "kernel": 1, "stride": 8, "bias": False})
    network = Network("large", (16, 512, 512), (layer,))
    gpu = Extent(GPU_SUB_BATCHES, operand_elements=1 << 20, elements=1 << 30, on_gpu=True)
    reasons = {call.direction: unmeasurable(call, gpu) for call in distinct_calls([network])}
    of_input = (16 << 20, "of one operand at a sub-batch of 1, where one call may have 4 MiB")
    assert reasons == {"forward": of_input, "backward_weight": of_input, "update": None}


def _largest(point: Point) -> int:
    work = point.work
    if "m" in work:
        return work["batch"] * max(work["m"] * work["n"], work["n"] * work["k"], work["m"] * work["k"])
    return work["images"] * work["in_c"] * work["in_h"] * work["in_w"] if "in_c" in work else work["elements"]


def test_a_large_sub_batch_that_does_not_fit_is_halved_and_a_call_that_never_fits_is_left_out() -> None:
    def network(features: int) -> Network:
        return Network("wide", (features,), (Layer("relu", "activation", (INPUT,)),))

    halved = layer_points(distinct_calls([network(MOST_OPERAND_ELEMENTS // 12)]))
    assert [point.sub_batch for point in halved] == [SMALL_SUB_BATCH, 8]
    (call,) = distinct_calls([network(2 * MOST_OPERAND_ELEMENTS)])
    assert layer_points([call]) == ()
    assert unmeasurable(call) is not None


def test_an_optimizer_that_is_not_measured_is_said() -> None:
    layer = Layer("one", "linear", (INPUT,), {"features": 4})
    network = Network("one", (8,), (layer,), optimizer="adam-8bit")
    (reason,) = filter(None, map(unmeasurable, distinct_calls([network])))
    assert "adam-8bit" in reason.words


def test_products_of_8_bits_are_asked_of_a_gpu_where_it_has_kernels_at_two_sub_batches() -> None:
    """Of sub-batches 1, 8 and 64 a layer of 4 positions has more than 16 rows at two, one of a position at one."""
    narrow, precisions = ("int8", "fp8"), ("fp32", "int8", "fp8")
    gpu = Extent(GPU_SUB_BATCHES, precisions, on_gpu=True)

    def rows(positions: int, features: int, extent: Extent = gpu) -> dict[str, list[int]]:
        layer = Layer("one", "linear", (INPUT,), {"features": features})
        points = layer_points(distinct_calls([Network("one", (positions, 32), (layer,))]), extent)
        forward = [point for point in points if point.kind == "gemm" and point.direction == "forward"]
        return {name: [p.work["n"] for p in forward if p.precision == name] for name in narrow}

    assert rows(4, 16) == {"int8": [32, 256], "fp8": [4, 32, 256]}
    assert rows(4, 24) == {"int8": [32, 256], "fp8": []}
    assert rows(4, 10) == {"int8": [], "fp8": []}
    assert rows(1, 16)["int8"] == []
    assert rows(1, 10, Extent(GPU_SUB_BATCHES, precisions))["int8"] == [1, 2, 3, 4, 8, 64]  # a CPU has them all
