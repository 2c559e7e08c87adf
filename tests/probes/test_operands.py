from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT
from planner.domain.network import Point
from planner.probes.kernels import timed_call
from planner.probes.operands import COLD_BYTES, Operands

GPU = "cpu:0"
"""Not ``cpu``, so taken for a GPU, while PyTorch keeps its numbers in the memory of this machine."""
HEADS = {"images": 2, "positions": 16, "heads": 3, "width": 4, "causal": 0}
JOINED, SCORES = 2 * 16 * 3 * 3 * 4, 2 * 3 * 16 * 16
"""Elements of joined queries, keys and values, and of scores."""
ATTENTION = {"batch": 6, "queries": 16, "keys": 16, "width": 4, "causal": 0}
PRODUCT = {"batch": 6, "m": 16, "n": 16, "k": 4}
IMAGE = {"images": 2, "channels": 3, "side": 16}
ELEMENTS = 2 * 3 * 16 * 16
POOL = {**IMAGE, "window": 2, "stride": 2}
LOGITS = {"images": 16, "classes": 1000}


def operands_of(device: str, cold_bytes: int, elements: int = 1 << 16) -> Operands:
    """Return operands that take themselves for those of a device, their numbers in the memory of this one."""
    operands = Operands(elements=elements, cold_bytes=cold_bytes)
    operands.device = device
    return operands


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("cold_bytes", [100, 1000, COLD_BYTES, 2 * 50 * 2**20])
@pytest.mark.parametrize("saved_bytes", [0, 1, 999, 1000, 1001, 2**20, 6 * 2**20, 2**30])
def test_graphs_in_turn_cover_more_than_half_of_what_is_cold_or_are_as_many_as_allowed(
    device: str, cold_bytes: int, saved_bytes: int
) -> None:
    """So they overflow a cache half as large; and one more would take more than what is to be covered."""
    graphs = operands_of(device, cold_bytes).graphs(saved_bytes)
    most = 64 if device == GPU else 8
    assert 1 <= graphs <= most
    assert graphs == most or 2 * graphs * saved_bytes > cold_bytes
    assert graphs == 1 or graphs * saved_bytes <= cold_bytes


@pytest.mark.parametrize("l2_mib", [40, 50])
def test_graphs_of_two_mebibytes_overflow_the_cache_of_a_gpu(l2_mib: int) -> None:
    cold_bytes = max(COLD_BYTES, 2 * l2_mib * 2**20)
    assert operands_of(GPU, cold_bytes).graphs(2 * 2**20) * 2 > l2_mib


def test_operands_of_every_precision_cover_the_same() -> None:
    operands = operands_of("cpu", 5000)
    assert operands.of("bf16").graphs(1000) == operands.graphs(1000) == 5


def counted_turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that grows by the length of everything that is taken in turn from now on."""
    in_turn: list[int] = []

    def cycle(values: Any) -> Any:
        in_turn.append(len(values))
        return plain(values)

    plain = itertools.cycle
    monkeypatch.setattr(itertools, "cycle", cycle)
    return in_turn


@pytest.mark.parametrize(
    ("point", "saved_bytes"),
    [
        (Point("attention", BACKWARD_DATA, ATTENTION, HEADS), 4 * JOINED),
        (Point("gemm", BACKWARD_WEIGHT, PRODUCT, HEADS), 4 * (JOINED + SCORES)),
        (Point("attention", BACKWARD_DATA, ATTENTION, HEADS, precision="bf16"), 2 * JOINED),
        (Point("softmax", BACKWARD_DATA, {}, HEADS, precision="bf16"), 4 * SCORES),
        (Point("softmax", BACKWARD_DATA, {}, LOGITS), 4 * 16 * 1000),
        (Point("dropout", BACKWARD_DATA, {}, IMAGE), ELEMENTS),
        (Point("max_pool", BACKWARD_DATA, {}, POOL), 8 * ELEMENTS // 4),
        (Point("lrn", BACKWARD_DATA, {}, IMAGE), 4 * ELEMENTS * 16 // 3),
        (Point("batch_norm", BACKWARD_DATA, {}, IMAGE), 4 * ELEMENTS),
        (Point("batch_norm", BACKWARD_DATA, {}, IMAGE, precision="bf16"), 2 * ELEMENTS),
    ],
    ids=lambda given: f"{given.kind} {given.precision}" if isinstance(given, Point) else "",
)
def test_calls_of_a_gpu_take_as_many_graphs_in_turn_as_its_operands_say(
    point: Point, saved_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Targets and statistics of channels, saved besides, are a fiftieth at most."""
    in_turn = counted_turns(monkeypatch)
    timed_call(point, operands_of(GPU, 41 * saved_bytes // 2)).run()
    assert in_turn[-1] == 20  # what is cold besides comes first


@pytest.mark.parametrize("kind", ["lrn", "max_pool"])
def test_what_covers_the_cache_by_itself_is_saved_once_on_a_cpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_turn = counted_turns(monkeypatch)
    timed_call(Point(kind, BACKWARD_DATA, {}, POOL), operands_of("cpu", 8 * ELEMENTS // 4)).run()
    assert in_turn[-1] == 1


def test_an_operand_larger_than_the_block_is_made_for_its_call_alone_where_that_may_be() -> None:
    operands = Operands(elements=1000, beyond=True)
    first, second = operands.warm(1001, 2000), next(operands.of("int8").cold(1001))
    assert (first.shape, first.dtype, second.dtype) == ((1001, 2000), torch.float32, torch.int8)
    assert first.data_ptr() != operands.warm(1001, 2000).data_ptr()
    assert 0.9 < float(first.std()) < 1.1
    assert operands.warm(10, 100).data_ptr() == operands.warm(10, 100).data_ptr()


def test_an_operand_larger_than_the_block_is_a_want_of_memory() -> None:
    operands = Operands(elements=1000)
    assert operands.warm(10, 100).shape == (10, 100)
    with pytest.raises(torch.OutOfMemoryError, match="1001 elements does not fit a block of 1000"):
        operands.warm(7, 143)
    with pytest.raises(torch.OutOfMemoryError):
        operands.of("bf16").cold(1001)
