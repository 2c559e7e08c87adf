"""The bench of a GPU on this CPU, which has no queue; CUDA's events alone are made up."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planner.domain.kernels import FORWARD
from planner.domain.network import Point
from planner.errors import ParameterError
from planner.probes import bench as module
from planner.probes.bench import MEMORY_SHARE, CudaBench, EventStopwatch, cuda_bench, host_times
from planner.probes.operands import Operands
from planner.probes.timing import EVENT_RESOLUTION_S, Call, Timing, time_queued_call


class WallStopwatch:
    """A device that does at once what it is handed."""

    def run(self, call: Callable[[], object], calls: int, ahead_s: float) -> tuple[float, float]:
        """Return the wall time, and nothing for handing over."""
        assert ahead_s >= 0
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - start, 0.0

    def count_cycles(self) -> None:
        """Do nothing: this device is never held back."""


@pytest.fixture
def bench() -> CudaBench:
    return CudaBench(Operands(elements=1 << 20), WallStopwatch(), side=64)


def product(precision: str, side: int = 64) -> Point:
    return Point("gemm", FORWARD, {"m": side, "n": side, "k": side, "batch": 1}, precision=precision)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "int8", "fp8"])
def test_products_of_every_precision_are_timed(bench: CudaBench, precision: str) -> None:
    timing = bench.time(product(precision))
    assert timing is not None
    assert 0 < timing.time_s < 1
    assert not bench.refused


def test_tf32_is_on_while_its_points_are_timed_alone(bench: CudaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    backends: Any = torch.backends
    seen = []

    def call(point: Point, _operands: Operands) -> Any:
        seen.append((point.precision, backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32))
        raise RuntimeError("no kernel")

    before = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
    monkeypatch.setattr(module, "timed_call", call)
    assert [bench.time(product(precision)) for precision in ("fp32", "tf32")] == [None, None]
    assert seen == [("fp32", False, False), ("tf32", True, True)]
    assert (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32) == before


def test_what_does_not_fit_or_has_no_kernel_is_left_out_and_counted(
    bench: CudaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.time(product("fp32", side=2048)) is None  # larger than the block of numbers
    errors = iter([torch.OutOfMemoryError("full"), torch.OutOfMemoryError("full"), RuntimeError("not supported")])

    def call(_point: Point, _operands: Operands) -> Any:
        raise next(errors)

    monkeypatch.setattr(module, "timed_call", call)
    assert [bench.time(product("fp32")) for _ in range(3)] == [None] * 3
    assert bench.refused == {"memory": 3, "kernel": 1}


def test_a_call_that_starts_no_kernel_has_no_time(bench: CudaBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200 the gradient of a concatenation, a view, came out at 4 PB/s and led the fit of all kinds astray."""
    quick = Timing(EVENT_RESOLUTION_S / 200, 0.0, 200)
    monkeypatch.setattr(module, "time_queued_call", lambda _call, _stopwatch: quick)
    assert bench.time(product("fp32")) is None
    assert bench.refused == {"view": 1}


def test_reference_and_host_times_are_positive(bench: CudaBench) -> None:
    assert bench.reference() > 0
    start = bench.clock()
    bench.warm_up(0.05)
    assert bench.clock() - start >= 0.05
    found = host_times(bench)
    assert set(found) == {"host_s_per_call", "kernel_s_at_least"}
    assert 1e-8 < found["kernel_s_at_least"] < 1e-2
    assert 1e-8 < found["host_s_per_call"] < 1e-2


class FakeCuda:
    """CUDA with one stream that begins what it is handed when it has done what is before: 1 cycle is 1 ns at first."""

    def __init__(self) -> None:
        self.host_s = self.device_s = 0.0
        self.clock_hz = 1e9
        fake = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_s = max(fake.device_s, fake.host_s)

            def synchronize(self) -> None:
                fake.host_s = max(fake.host_s, self.at_s)

            def elapsed_time(self, end: "Event") -> float:
                return 1e3 * (end.at_s - self.at_s)

        self.Event = Event

    def synchronize(self) -> None:
        """Wait for the device."""
        self.host_s = max(self.host_s, self.device_s)

    def kernel(self, seconds: float, handing_s: float) -> None:
        """Hand over what takes the device so long."""
        self.host_s += handing_s
        self.device_s = max(self.device_s, self.host_s) + seconds

    def _sleep(self, cycles: int) -> None:
        self.kernel(cycles / self.clock_hz, 0.0)


def test_events_tell_the_time_of_the_device_where_it_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(time, "perf_counter", lambda: cuda.host_s)
    stopwatch = EventStopwatch(cuda)
    free, held = (stopwatch.run(lambda: cuda.kernel(2e-6, 5e-6), 100, ahead_s) for ahead_s in (0.0, 6e-4))
    assert free[0] == pytest.approx(100 * 5e-6 + 2e-6)
    assert held[0] == pytest.approx(100 * 2e-6)
    assert free[1] == held[1] == pytest.approx(5e-4)


def test_a_call_that_makes_no_kernel_takes_the_resolution_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(time, "perf_counter", lambda: cuda.host_s)
    stopwatch = EventStopwatch(cuda)
    assert stopwatch.run(lambda: None, 1, 0.0)[0] == EVENT_RESOLUTION_S
    timing = time_queued_call(Call(lambda: None), stopwatch)
    assert 0 < timing.time_s <= EVENT_RESOLUTION_S / 500


def test_a_device_whose_clock_has_risen_is_held_back_as_long_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(time, "perf_counter", lambda: cuda.host_s)
    stopwatch = EventStopwatch(cuda)
    cuda.clock_hz = 4e9
    assert stopwatch.run(lambda: cuda.kernel(2e-6, 5e-6), 100, 6e-4)[0] > 1.5 * 100 * 2e-6
    stopwatch.count_cycles()
    assert stopwatch.run(lambda: cuda.kernel(2e-6, 5e-6), 100, 6e-4)[0] == pytest.approx(100 * 2e-6)


@pytest.mark.parametrize(
    ("free_gib", "total_gib", "most"), [(79.0, 80.0, 0.6), (20.0, 80.0, 0.16), (15.5, 16.0, 0.6), (2.5, 16.0, 0.12)]
)
def test_a_gpu_is_never_taken_beyond_its_share(
    free_gib: float, total_gib: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}
    fake = SimpleNamespace(
        set_device=lambda device: made.update(device=device),
        mem_get_info=lambda _device: (int(free_gib * 2**30), int(total_gib * 2**30)),
        set_per_process_memory_fraction=lambda share, _device: made.update(share=share),
    )

    def operands(*, elements: int, device: str, cold_bytes: int) -> Operands:
        made.update(elements=elements, pool=device, cold=cold_bytes)
        return Operands(elements=1 << 20)

    monkeypatch.setattr(module, "import_torch", lambda: SimpleNamespace(cuda=fake, empty_like=torch.empty_like))
    monkeypatch.setattr(module, "check_gpu", lambda _device: 1)
    monkeypatch.setattr(module, "why_no_kernel", lambda _torch, _device: "")
    monkeypatch.setattr(module, "Operands", operands)
    monkeypatch.setattr(module, "EventStopwatch", lambda _cuda: WallStopwatch())
    monkeypatch.setattr(module, "REFERENCE_SIDE", 64)
    monkeypatch.setattr(module, "CudaBench", lambda given, watch: SimpleNamespace(warm_up=lambda: (given, watch)))
    cuda_bench("cuda", cache_bytes=60 * 2**20)
    assert made["elements"] >= module.REFERENCE_COPY
    assert made["device"] == made["pool"] == "cuda:1"
    assert 0 < made["share"] <= min(most, MEMORY_SHARE)
    blocks_bytes = (4 + 2 + 2 + 1 + 1) * made["elements"]
    assert blocks_bytes <= 0.5 * made["share"] * total_gib * 2**30
    assert made["cold"] == 120 * 2**20


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((2**30, 80 * 2**30), "with 2.5 GiB of free memory, got 'cuda:1, which has 1 GiB'; end what else uses it"),
        (
            RuntimeError("CUDA error: out of memory\nCompile with"),
            "got 'cuda:1: CUDA error: out of memory'; end what",
        ),
        ((70 * 2**30, 80 * 2**30), "got 'cuda:1: CUDA error: no kernel image is available'; end what"),
    ],
)
def test_a_gpu_that_others_hold_or_that_pytorch_was_not_built_for_is_refused(
    found: tuple[int, int] | RuntimeError, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mem_get_info(_device: str) -> tuple[int, int]:
        if isinstance(found, RuntimeError):
            raise found
        return found

    def zeros(_size: int, *, device: str) -> torch.Tensor:
        if device == "cuda:1" and "no kernel" in words:
            raise RuntimeError("CUDA error: no kernel image is available\nCUDA kernel errors might be")
        return torch.zeros(1)

    fake = SimpleNamespace(set_device=lambda _device: None, mem_get_info=mem_get_info)
    monkeypatch.setattr(module, "import_torch", lambda: SimpleNamespace(cuda=fake, zeros=zeros))
    monkeypatch.setattr(module, "check_gpu", lambda _device: 1)
    with pytest.raises(ParameterError) as error:
        cuda_bench("cuda:1")
    assert words in str(error.value)
