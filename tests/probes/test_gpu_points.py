from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from planner.domain.kernels import BACKWARD_WEIGHT, FORWARD, WORK_COLUMNS, convolution_output
from planner.domain.network import Point
from planner.probes.kernels import timed_call
from planner.probes.operands import Operands
from planner.probes.points import designed_points, gpu_points

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")
POINTS = gpu_points(PRECISIONS)
INT8_PRODUCT = torch.ops.aten._int_mm  # noqa: SLF001 - the operator has no other name
PRODUCTS = [point.work for point in POINTS if point.kind == "gemm" and point.precision == "fp32"]


def test_columns_are_those_of_the_kind_and_the_design_is_the_same_every_time() -> None:
    assert gpu_points(PRECISIONS) == POINTS
    assert all(tuple(point.work) == WORK_COLUMNS[point.kind] for point in POINTS)


def test_every_kind_and_direction_of_a_cpu_is_one_of_a_gpu() -> None:
    here = {(point.kind, point.direction) for point in designed_points()}
    apart = {("bias", FORWARD), ("bias", BACKWARD_WEIGHT)}
    assert {(point.kind, point.direction) for point in gpu_points(("fp32",))} == here | apart


def test_products_are_square_skinny_deep_unaligned_and_batched() -> None:
    plain = [work for work in PRODUCTS if work["batch"] == 1]
    assert {work["m"] for work in plain if work["m"] == work["n"] == work["k"]} >= {256, 8192}
    assert sum(min(work["m"], work["n"]) <= 32 and work["k"] >= 64 for work in plain) >= 10
    assert sum(work["k"] >= 8 * max(work["m"], work["n"]) and work["k"] > 8000 for work in plain) >= 5
    assert sum(all(work[one] % 2 for one in "mnk") for work in plain) >= 25
    assert sum(all(work[one] % 16 == 0 for one in "mnk") for work in plain) >= 25
    assert sum(work["batch"] > 1 for work in PRODUCTS) >= 20
    assert set(Counter(p.direction for p in POINTS if p.kind == "gemm" and not p.geometry)) == {
        "forward", "backward_data", "backward_weight"
    }  # fmt: skip


def test_further_precisions_have_their_kinds_and_the_same_shapes() -> None:
    single = {point.name for point in POINTS if point.precision == "fp32"}
    kinds = {name: {point.kind for point in POINTS if point.precision == name} for name in PRECISIONS}
    assert kinds["tf32"] == kinds["fp16"] == {"gemm", "convolution", "attention"}
    assert kinds["bf16"] > kinds["tf32"]
    assert kinds["int8"] == kinds["fp8"] == {"gemm"}
    for point in POINTS:
        assert Point(point.kind, point.direction, point.work, point.geometry).name in single
        assert point.precision not in ("int8", "fp8") or point.work["batch"] == 1
    squares = [p.precision for p in POINTS if p.kind == "gemm" and set(p.work.values()) == {8192, 1}]
    assert Counter(squares) == {"fp32": 3, "tf32": 3, "fp16": 3, "bf16": 3, "int8": 2, "fp8": 3}


def test_operands_fit_a_gpu_of_8_gb() -> None:
    for point in POINTS:
        work = point.work
        if point.kind == "gemm":
            sizes = [work["batch"] * work[a] * work[b] for a, b in ("mn", "nk", "mk")]
        elif point.kind == "convolution":
            height, width = convolution_output(work)
            sizes = [work["images"] * work["out_c"] * height * width]
            sizes.append(work["images"] * work["in_c"] * work["in_h"] * work["in_w"])
        else:
            sizes = [work.get("elements", 0)] * 4
        assert 4 * max(sizes) < 0.6e9
        assert 4 * sum(sizes) < 2e9


def product_flop(first: Sequence[int], second: Sequence[int], *_rest: object, **_named: object) -> int:
    """Return the FLOP of a product of matrices of two shapes."""
    return 2 * first[0] * first[1] * second[1]


def expected_flop(point: Point) -> int:
    """Return two for each multiplication of products and convolutions; 0 of others."""
    work = point.work
    if point.kind == "gemm":
        return 2 * work["batch"] * work["m"] * work["n"] * work["k"]
    if point.kind == "convolution":
        height, width = convolution_output(work)
        summed = work["in_c"] // work["groups"] * work["k_h"] * work["k_w"]
        return 2 * work["images"] * work["out_c"] * height * width * summed
    return 0


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_the_smallest_of_every_kind_runs_here(precision: str) -> None:
    """PyTorch counts as many FLOP by the operators that run as the point's work says; all numbers are finite."""
    operands = Operands(elements=1 << 23)
    smallest = {}
    for point in sorted(POINTS, key=lambda point: -max(point.work.values())):
        if point.precision == precision:
            smallest[point.kind, point.direction, point.work.get("batch", 1) > 1, bool(point.geometry)] = point
    for point in smallest.values():
        call = timed_call(point, operands)
        with FlopCounterMode(display=False, custom_mapping={INT8_PRODUCT: product_flop}) as counter:
            made = call.run()
        assert counter.get_total_flops() == call.calls * expected_flop(point), point
        parts = made if isinstance(made, tuple | list) else (made,)
        assert all(part.isfinite().all() for part in parts if isinstance(part, torch.Tensor)), point


def test_further_precisions_of_a_cpu_come_after_the_design_of_fp32() -> None:
    points, single = designed_points(precisions=("fp32", "bf16", "int8")), designed_points()
    assert points[: len(single)] == single
    further = Counter(point.precision for point in points[len(single) :])
    assert set(further) == {"bf16", "int8"}
    counts = Counter((point.kind, point.direction) for point in points if point.precision == "bf16")
    assert min(counts[kind, "forward"] for kind in ("gemm", "convolution", "activation", "batch_norm")) >= 3
    assert {(p.kind, p.direction) for p in points if p.precision == "int8"} == {
        ("gemm", "forward"),
        ("gemm", "backward_data"),
        ("convolution", "forward"),
    }


def test_products_of_8_bits_are_those_that_a_gpu_has_kernels_for() -> None:
    """int8 takes more than 16 rows and multiples of 8, fp8 multiples of 16."""
    narrow = {name: [p for p in POINTS if p.precision == name] for name in ("fp16", "int8", "fp8")}
    for name, multiple in (("int8", 8), ("fp8", 16)):
        for point in narrow[name]:
            work = point.work
            rows, columns, summed = (work[one] for one in ("mnk" if point.direction == BACKWARD_WEIGHT else "nmk"))
            assert columns % multiple == summed % multiple == 0
            assert rows > 16 or name == "fp8"
    wide = [p.work for p in narrow["fp16"] if p.kind == "gemm" and p.direction == FORWARD and p.work["batch"] == 1]
    few, odd = [w for w in wide if w["n"] <= 16], [w for w in wide if w["m"] % 8]
    assert few
    assert odd
    assert len([p for p in narrow["int8"] if p.direction == FORWARD]) == len(wide) - len(few) - len(odd)


def test_biases_have_the_shapes_of_activations_and_their_own_passes() -> None:
    points = [point for point in POINTS if point.precision == "fp32"]
    shapes = [point.geometry for point in points if point.kind == "activation" and point.direction == FORWARD]
    for direction, moved in ((FORWARD, 2), (BACKWARD_WEIGHT, 1)):
        made = [point for point in points if (point.kind, point.direction) == ("bias", direction)]
        assert [point.geometry for point in made] == shapes
        assert all(point.work["traffic"] == moved * point.work["elements"] for point in made)
