"""Products under lasting load, on a made-up device whose clocks fall after a while."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from planner.domain.kernels import FORWARD
from planner.domain.network import Point
from planner.domain.samples import FREE_CIRCUMSTANCES
from planner.probes import gpu
from planner.probes.bench import LEFT_OUT, WARNING_CLOCKS, CudaBench, sustained
from planner.probes.gpu import DeviceLostError
from planner.probes.operands import Operands
from planner.probes.precisions import COMPUTING

BURST_S = 1e-3


class Hot:
    """A device whose calls take 1 ms, and a fifth more once it was busy for 0.1 s; it makes none of them."""

    def __init__(self, slower: float = 1.2) -> None:
        self.busy_s, self.slower = 0.0, slower

    def run(self, _call: Callable[[], object], calls: int, ahead_s: float) -> tuple[float, float]:
        """Return the seconds, and none for handing over."""
        assert ahead_s == 0
        taken_s = sum(BURST_S * (self.slower if self.busy_s + at * BURST_S > 0.1 else 1.0) for at in range(calls))
        self.busy_s += taken_s
        return taken_s, 0.0


def product(precision: str, side: int = 64) -> Point:
    return Point("gemm", FORWARD, {"m": side, "n": side, "k": side, "batch": 1}, precision=precision)


POINTS = [product("fp32"), product("bf16", 8), product("bf16"), product("bf16", 128), product("tf32")]
TIMES = {point.name: BURST_S for point in POINTS if point.work["m"] < 128}
"""The largest one did not fit."""


def made(slower: float = 1.2) -> tuple[Hot, CudaBench]:
    device = Hot(slower)
    return device, CudaBench(Operands(elements=1 << 16), device, side=64)


def test_the_largest_product_that_was_timed_is_loaded_and_warned_of() -> None:
    device, bench = made()
    found = sustained(bench, POINTS, TIMES, 1.8)
    assert {key: value for key, value in found.items() if key != WARNING_CLOCKS} == {
        "sustained_bf16": "1.200", "sustained_tf32": "1.200",
    }  # fmt: skip
    assert found[WARNING_CLOCKS].startswith("large products take longer under lasting load than in the short blocks")
    assert "(bf16 1.20, tf32 1.20 times)" in found[WARNING_CLOCKS]
    assert 1.8 < device.busy_s < 1.25 * 1.8


def test_products_that_the_device_waits_for_the_host_of_have_no_ratio() -> None:
    device, bench = made()
    times = TIMES | {point.name: 8e-6 for point in POINTS if point.precision == "tf32"}
    assert sustained(bench, POINTS, times, 1.8).keys() == {"sustained_bf16", WARNING_CLOCKS}
    busy_s = device.busy_s
    assert sustained(bench, POINTS, dict.fromkeys(TIMES, 8e-6), 1.8) == {}
    assert device.busy_s == busy_s


def test_a_ratio_that_hardly_differs_from_1_is_kept_without_a_warning() -> None:
    assert sustained(made(1.04)[1], POINTS, TIMES, 9.0) == {"sustained_bf16": "1.040", "sustained_tf32": "1.040"}


@pytest.mark.parametrize("for_s", [0.0, 0.4])
def test_a_short_budget_loads_nothing(for_s: float) -> None:
    device, bench = made()
    assert sustained(bench, POINTS, TIMES, for_s) == {}
    assert device.busy_s == 0
    assert sustained(bench, [], {}, 1.8) == {}


def test_a_cpu_is_not_loaded(fake_bench: Callable[..., Any]) -> None:
    assert sustained(fake_bench(), POINTS, TIMES, 9.0) == {}


def test_runs_that_differ_in_it_are_fitted_together() -> None:
    assert {f"sustained_{name}" for name in COMPUTING if name != "fp32"} | {WARNING_CLOCKS} <= FREE_CIRCUMSTANCES


@pytest.mark.parametrize("is_memory", [True, False])
def test_what_a_device_fails_in_under_load_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, *, is_memory: bool
) -> None:
    _, bench = made()
    under_load = bench.under_load

    def fails(point: Point, for_s: float) -> float:
        if point.precision == "bf16":
            raise torch.OutOfMemoryError("full") if is_memory else RuntimeError("no engine\nat somewhere.cpp:7")
        return under_load(point, for_s)

    monkeypatch.setattr(bench, "under_load", fails)
    found = sustained(bench, POINTS, TIMES, 1.8)
    reason = "it does not fit the memory" if is_memory else "no engine"
    assert found.pop(LEFT_OUT) == f"what the device failed in: lasting load in bf16 ({reason})"
    assert set(found) == {"sustained_tf32", WARNING_CLOCKS}


def test_a_load_that_lost_the_device_is_named_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _, bench = made()

    def fails(point: Point, _for_s: float) -> float:
        raise RuntimeError(point.precision)

    monkeypatch.setattr(bench, "under_load", fails)
    monkeypatch.setattr(gpu, "why_no_kernel", lambda _torch, _device: "CUDA error")
    left_out: list[str] = []
    for precision in ("bf16", "tf32"):
        with pytest.raises(DeviceLostError, match=f"^{precision}$") as caught:
            sustained(bench, POINTS, TIMES, 1.8, left_out)
        left_out.append(caught.value.what)
    assert left_out == ["lasting load in bf16", "lasting load in tf32"]
    assert sustained(bench, POINTS, TIMES, 1.8, left_out) == {}
