from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, UPDATE
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import LayerCall, Point
from planner.probes.kernels import timed_call
from planner.probes.operands import Operands, narrow_product, quantised_convolution
from planner.probes.points import designed_points
from planner.probes.precisions import HALF_KINDS


@pytest.fixture(scope="module")
def operands() -> Operands:
    return Operands(elements=1 << 25)


def smallest_points() -> list[Point]:
    """Return the smallest designed point of every kind and direction, attention's product apart from a layer's."""
    smallest = {}
    for point in sorted(designed_points(), key=lambda point: -max(point.work.values())):
        smallest[point.kind, point.direction, "heads" in point.geometry] = point
    return list(smallest.values())


def results(made: object) -> Iterator[torch.Tensor]:
    """Return the tensors of a result, those that are left out apart."""
    if isinstance(made, torch.Tensor):
        yield made
    elif isinstance(made, tuple | list):
        for part in made:
            yield from results(part)


def in_precision(point: Point, precision: str) -> Point:
    return Point(point.kind, point.direction, point.work, point.geometry, precision=precision)


SMALLEST = smallest_points()
NARROWED = [p for p in SMALLEST if p.kind in ("convolution", "gemm", "softmax", "attention") or p.kind in HALF_KINDS]


@pytest.mark.parametrize("point", NARROWED, ids=lambda point: f"{point.kind} {point.direction} {point.geometry}")
def test_a_call_of_16_bits_gives_what_that_of_fp32_gives(point: Point, operands: Operands) -> None:
    single = list(results(timed_call(point, operands).run()))
    half = list(results(timed_call(in_precision(point, "bf16"), operands).run()))
    assert [one.shape for one in half] == [one.shape for one in single]
    widths = {one.dtype for one in half if one.is_floating_point()}
    if point.kind == "batch_norm":
        assert widths == {torch.bfloat16, torch.float32}
    elif point.kind == "softmax" and point.direction == FORWARD:
        assert widths == {torch.float32}
    else:
        assert widths == {torch.bfloat16}


def test_what_trains_in_fp32_whatever_the_precision_is_made_of_it() -> None:
    assert not {"update", "embedding", "layer_norm", "softmax"} & HALF_KINDS
    assert {p.kind for p in SMALLEST if p.direction == UPDATE} == {"update"}


def product(direction: str, precision: str, sizes: tuple[int, int, int]) -> Point:
    m, n, k = sizes
    return Point("gemm", direction, {"m": m, "n": n, "k": k, "batch": 1}, precision=precision)


class Recorded(Operands):
    """Operands that remember what they gave out."""

    given: list[torch.Tensor]

    def warm(self, *shape: int) -> torch.Tensor:
        """Return one operand."""
        made = super().warm(*shape)
        self.given.append(made)
        return made


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT])
@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_products_of_8_bits_are_products(direction: str, precision: str) -> None:
    operands = Recorded(elements=1 << 16, cold_bytes=1)
    operands.given = []
    library: Any = torch
    made = narrow_product(library, product(direction, precision, (32, 48, 64)), operands.of(precision)).run()
    assert isinstance(made, torch.Tensor)
    first, second = (one.double() for one in operands.given)
    expected = first @ second.T
    assert sorted(made.shape) == [32, 48]
    assert made.dtype == {"int8": torch.int32, "fp8": torch.bfloat16}[precision]
    tolerance = 0.0 if precision == "int8" else 0.02 * float(expected.abs().max())
    assert float((made.double() - expected).abs().max()) <= tolerance


@pytest.mark.parametrize("groups", [1, 2])
def test_a_quantised_convolution_is_that_of_what_it_was_quantised_from(groups: int) -> None:
    work = {"images": 2, "in_c": 8, "in_h": 9, "in_w": 7, "out_c": 4, "k_h": 3, "k_w": 3}
    work |= {"stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1, "groups": groups}
    operands = Recorded(elements=1 << 16, cold_bytes=1)
    operands.given = []
    library: Any = torch
    made = quantised_convolution(library, Point("convolution", FORWARD, work, precision="int8"), operands).run()
    assert isinstance(made, torch.Tensor)
    x, bias, weight = operands.given
    scale = float(made.q_scale())
    exact = torch.nn.functional.conv2d(
        torch.fake_quantize_per_tensor_affine(x, scale, 64, 0, 255),
        torch.fake_quantize_per_tensor_affine(weight, scale, 0, -128, 127),
        bias, 2, 1, 1, groups,
    )  # fmt: skip
    expected = torch.fake_quantize_per_tensor_affine(exact, scale, 64, 0, 255)
    assert made.dtype == torch.quint8
    assert float((made.dequantize() - expected).abs().max()) <= 1.01 * scale


def test_kept_results_are_counted_in_bytes(operands: Operands) -> None:
    kept = {
        precision: timed_call(product(BACKWARD_WEIGHT, precision, (32, 48, 64)), operands).kept_bytes
        for precision in ("fp32", "bf16", "fp8")
    }
    assert kept == {"fp32": 4 * 32 * 48, "bf16": 2 * 32 * 48, "fp8": 2 * 32 * 48}


def test_dropout_backward_of_a_gpu_reads_a_mask_of_a_byte(operands: Operands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine tenths of the gradient come through, scaled up; the CPU's operator stands in for the GPU's."""
    point = Point("dropout", BACKWARD_DATA, {"elements": 65536}, {"images": 1, "channels": 64, "side": 32})
    monkeypatch.setattr(operands, "device", "cuda:0")
    monkeypatch.setattr(operands, "_next", 0)
    gradient = operands.warm(1, 64, 32, 32).clone()
    monkeypatch.setattr(operands, "_next", 0)
    call = timed_call(point, operands)
    first, second = (call.run() for _ in range(2))
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    for result in (first, second):
        through = result != 0
        assert torch.allclose(result[through], gradient[through] / 0.9)
        assert 0.88 < through.double().mean() < 0.92
    assert not torch.equal(first, second)


CONVOLUTION = {"images": 2, "in_c": 3, "in_h": 6, "in_w": 6, "out_c": 4, "k_h": 3, "k_w": 3, "stride_h": 1,
               "stride_w": 1, "pad_h": 1, "pad_w": 1, "groups": 1}  # fmt: skip
IMAGE = {"images": 2, "channels": 3, "side": 4}


def operands_of(device: str) -> Recorded:
    """Return operands of this machine that take themselves for those of a device: any but ``cpu`` is a GPU."""
    operands = Recorded(elements=1 << 12, device=device, cold_bytes=1)
    operands.given = []
    return operands


def operators(run: Callable[[], object]) -> set[str]:
    """Return the names of PyTorch's operators that run."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        run()
    return {event.key for event in seen.key_averages()}


LAYER = Layer("one", "convolution", (INPUT,), {"channels": 4, "kernel": 3, "padding": 1})


@pytest.mark.parametrize("call", [None, LayerCall("convolution", FORWARD, {}, LAYER, ((3, 6, 6),))])
def test_a_gpu_adds_the_bias_of_a_convolution_in_a_call_of_its_own(call: LayerCall | None) -> None:
    for device, biases in (("cpu", 1), ("cpu:0", 0)):
        operands = operands_of(device)
        made = timed_call(Point("convolution", FORWARD, CONVOLUTION, call=call), operands).run()
        weight, x, *bias = operands.given
        assert isinstance(made, torch.Tensor)
        torch.testing.assert_close(made, torch.nn.functional.conv2d(x, weight, bias[0] if bias else None, padding=1))
        assert [one.shape for one in bias] == [(4,)] * biases
        backward = timed_call(Point("convolution", BACKWARD_WEIGHT, CONVOLUTION, call=call), operands)
        assert [one.shape for one in results(backward.run())] == [(4, 3, 3, 3), *[(4,)] * biases]


def test_passes_of_a_bias_are_a_sum_with_it_and_a_sum_over_all_but_channels() -> None:
    operands = operands_of("cpu:0")
    added = timed_call(Point("bias", FORWARD, {}, IMAGE), operands).run()
    x, bias = operands.given
    assert isinstance(added, torch.Tensor)
    torch.testing.assert_close(added, x + bias)
    summed = timed_call(Point("bias", BACKWARD_WEIGHT, {}, IMAGE), operands).run()
    assert isinstance(summed, torch.Tensor)
    torch.testing.assert_close(summed, operands.given[2].sum((0, 2, 3)))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_batch_norm_of_a_gpu_is_what_a_training_step_runs(precision: str) -> None:
    """That chooses among libraries; on the CPU it is the operator that would be chosen."""
    point = Point("batch_norm", FORWARD, {}, IMAGE, precision=precision)
    operands = operands_of("cpu:0")
    here, chosen = timed_call(point, operands_of("cpu")), timed_call(point, operands)
    assert "aten::_batch_norm_impl_index" in operators(chosen.run)
    assert "aten::_batch_norm_impl_index" not in operators(here.run)
    (made,), (x,) = results(chosen.run()), operands.given
    expected = torch.nn.functional.batch_norm(x.float(), None, None, training=True)
    torch.testing.assert_close(made.detach().float(), expected, rtol=0.02, atol=0.02)
    backward = timed_call(replace(point, direction=BACKWARD_DATA), operands_of("cpu:0"))
    assert "autograd::engine::evaluate_function: NativeBatchNormBackward0" in operators(backward.run)
    assert [one.shape for one in results(backward.run())] == [(2, 3, 4, 4), (3,), (3,)]
