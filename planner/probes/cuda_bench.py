"""PyTorch on one GPU: calls timed by events on one stream, within 60 % of the GPU's memory.

The GPU is held back while calls are handed over to it, so that they run one behind the other: their time is the
device's alone. What the host takes for a call is timed apart (:func:`host_times`).
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from planner.errors import ParameterError
from planner.probes.gpu import check_gpu, why_no_kernel
from planner.probes.kernels import timed_call
from planner.probes.lost_device import check_computes
from planner.probes.operands import COLD_BYTES, Operands
from planner.probes.points import Point
from planner.probes.precisions import computing_in
from planner.probes.timing import EVENT_RESOLUTION_S, Stopwatch, Timing, time_queued_call
from planner.probes.torch_package import import_torch
from planner.units import format_bytes

__all__ = [
    "MEMORY_SHARE",
    "CudaBench",
    "EventStopwatch",
    "cuda_bench",
    "host_times",
    "operand_elements",
    "usable_bytes",
    "usable_now",
]

MEMORY_SHARE = 0.6
"""Of a GPU's memory, or of what others leave of it, that measuring may take."""
CONTEXT_BYTES = 7e8
"""Taken besides by CUDA itself, its libraries' kernels above all."""
LEAST_FREE_SHARE = 0.2
POOL_SHARE = 0.12
"""Of the memory that may be taken, for the block of fp32 numbers; those of the other precisions together take as much
and a half."""
MOST_POOL_ELEMENTS = 1 << 28
COLD_CACHES = 2
"""Cold operands cover so many times the last cache."""
WARM_UP_S = 0.6
"""Clocks of an idle GPU are low, and rise within tenths of a second."""
REFERENCE_SIDE, REFERENCE_COPY = 2048, 1 << 25
REFERENCE_REPEATS = 3
LEAST_FREE_BYTES = 2.5 * 2**30
"""With so much the block of numbers holds what the reference copies."""
REMEDY = "end what else uses it, name another GPU or --device cpu, or install a PyTorch built for it"
SHORTEST_KERNEL_S = 1e-7
"""An empty kernel takes some 1 us on the device; what takes less started none, such as the slice of a gradient."""
RATE_CYCLES = 20_000_000
HOST_CALLS, HOST_BLOCKS = 500, 7


class EventStopwatch:
    """Times calls by events of the current CUDA stream.

    Parameters
    ----------
    cuda : module
        ``torch.cuda``, its current device the one to be timed.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._wait = cuda._sleep  # noqa: SLF001 - the kernel that waits has no other name
        self._cycles_per_s = 0.0
        self.count_cycles()

    def run(self, call: Callable[[], object], calls: int, ahead_s: float) -> tuple[float, float]:
        """Return the seconds of so many calls on the device, and those that handing them over took.

        At least the resolution of events: there are calls that make no kernel, and no time is none.
        """
        start, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        self._cuda.synchronize()
        cycles = int(ahead_s * self._cycles_per_s)
        if cycles:
            self._wait(cycles)
        start.record()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        handing_s = time.perf_counter() - began
        end.record()
        end.synchronize()
        return max(start.elapsed_time(end) * 1e-3, EVENT_RESOLUTION_S), handing_s

    def count_cycles(self) -> None:
        """Measure the cycles a second that waiting is counted in: at the low clocks of an idle device they are few."""
        times = [self.run(lambda: self._wait(RATE_CYCLES), 1, 0.0)[0] for _ in range(REFERENCE_REPEATS)]
        self._cycles_per_s = RATE_CYCLES / max(min(times), 1e-9)


class CudaBench:
    """Calls on a device that works through a queue; made for a GPU by :func:`cuda_bench`.

    Attributes
    ----------
    refused : Counter of str
        Points that have no time: for want of ``memory`` or of a ``kernel``, or as a ``view``, which starts none.
    """

    def __init__(self, operands: Operands, stopwatch: Stopwatch, *, side: int = REFERENCE_SIDE) -> None:
        self._torch = import_torch()
        self._operands, self._stopwatch = operands, stopwatch
        self.refused: Counter[str] = Counter()
        x, weight = operands.warm(side, side), operands.warm(side, side)
        source = operands.warm(min(REFERENCE_COPY, 8 * side * side))
        target = self._torch.empty_like(source)
        self._reference: Callable[[], object] = lambda: (x.mm(weight), target.copy_(source))

    @property
    def device(self) -> str:
        """The device, as PyTorch names it."""
        return self._operands.device

    def clock(self) -> float:
        """Return the wall time [s]."""
        return time.perf_counter()

    def warm_up(self, for_s: float = WARM_UP_S) -> None:
        """Keep the device busy for a while."""
        until_s = self.clock() + for_s
        while self.clock() < until_s:
            self.reference()

    def time(self, point: Point) -> Timing | None:
        """Return the time of a point's call; None where it does not fit, or the library starts no kernel for it.

        Raises
        ------
        DeviceLostError
            The device computes nothing any more.
        """
        try:
            with computing_in(point.precision):
                timing = time_queued_call(timed_call(point, self._operands), self._stopwatch)
        except self._torch.OutOfMemoryError:
            self.refused["memory"] += 1
        except RuntimeError as error:
            check_computes(self.device, error, point.name)
            self.refused["kernel"] += 1
        else:
            if timing.time_s > SHORTEST_KERNEL_S:
                return timing
            self.refused["view"] += 1
            return None
        self._torch.cuda.empty_cache()
        return None

    def under_load(self, point: Point, for_s: float) -> float:
        """Return the time of a point's call [s] in the second half of so long a load without a pause [s]."""
        with computing_in(point.precision):
            call = timed_call(point, self._operands)
            once_s, _ = self._stopwatch.run(call.run, 1, 0.0)
            runs = max(1, round(for_s / 2 / max(once_s, 1e-9)))
            self._stopwatch.run(call.run, runs, 0.0)
            return self._stopwatch.run(call.run, runs, 0.0)[0] / runs / call.calls

    def reference(self) -> float:
        """Return the median time of three calls of a product and a copy [s]: clocks or another user show in it."""
        with computing_in("fp32"):
            times = [self._stopwatch.run(self._reference, 1, 1e-4)[0] for _ in range(REFERENCE_REPEATS)]
        return statistics.median(times)


def usable_bytes(free_bytes: float, memory_bytes: float) -> float:
    """Return what may be taken of a GPU's memory, of which so much is free, besides what CUDA itself takes."""
    available = min(free_bytes + CONTEXT_BYTES, memory_bytes)
    return max(MEMORY_SHARE * available - CONTEXT_BYTES, LEAST_FREE_SHARE * free_bytes)


def usable_now(device: str) -> float:
    """Return what may be taken of a GPU's memory now [bytes]; it is the current device from then on.

    Raises
    ------
    ParameterError
        PyTorch cannot use the GPU.
    """
    return usable_bytes(*_memory(import_torch().cuda, device))


def operand_elements(usable: float) -> int:
    """Return the elements of the largest operand where so many bytes may be taken."""
    return min(MOST_POOL_ELEMENTS, int(POOL_SHARE * usable / 4))


def cuda_bench(device: str, cache_bytes: int = 0) -> CudaBench:
    """Return the bench of a GPU, warmed up; this process takes at most 60 % of its memory from then on.

    Raises
    ------
    MissingPackageError, ParameterError
        There is no such GPU, or others use so much of its memory that nothing can be measured.
    """
    device, torch = f"cuda:{check_gpu(device)}", import_torch()
    free, total = _memory(torch.cuda, device)
    usable = usable_bytes(free, total)
    if operand_elements(usable) < REFERENCE_COPY:
        got = f"{device}, which has {format_bytes(free)}"
        raise ParameterError("--device", f"a GPU with {format_bytes(LEAST_FREE_BYTES)} of free memory", got, REMEDY)
    torch.cuda.set_per_process_memory_fraction(usable / total, device)
    operands = Operands(
        elements=operand_elements(usable), device=device, cold_bytes=max(COLD_BYTES, COLD_CACHES * cache_bytes)
    )
    stopwatch = EventStopwatch(torch.cuda)
    bench = CudaBench(operands, stopwatch)
    bench.warm_up()
    stopwatch.count_cycles()  # by then clocks have risen: waits of so many cycles are shorter
    return bench


def _memory(cuda: Any, device: str) -> tuple[float, float]:
    """Return how many bytes of a GPU are free, and how many there are; it is the current device from then on."""
    try:
        cuda.set_device(device)
        reason = why_no_kernel(import_torch(), device)
        if reason:
            raise _unusable(device, reason)
        free, total = cuda.mem_get_info(device)  # behind the trial, which takes a little for good
    except RuntimeError as error:  # CUDA's own, as where its context finds no memory
        raise _unusable(device, str(error).partition("\n")[0]) from error
    return float(free), float(total)


def _unusable(device: str, reason: str) -> ParameterError:
    return ParameterError("--device", "a GPU that PyTorch can use", f"{device}: {reason}", REMEDY)


def host_times(bench: CudaBench) -> dict[str, float]:
    """Return what the host takes for a call of a tiny kernel, and the device for it [s].

    Returns
    -------
    dict of str to float
        host_s_per_call: wall time of calls that do not wait for each other, as long as the host is slower than the
        device; the median over blocks. kernel_s_at_least: the time of such a kernel on the device.
    """
    torch = import_torch()
    x = torch.zeros(1, device=bench.device)
    times = []
    for _ in range(HOST_BLOCKS):
        _synchronize(torch, bench.device)
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            torch.relu(x)
        _synchronize(torch, bench.device)
        times.append((time.perf_counter() - start) / HOST_CALLS)
    point = Point("activation", "forward", {}, {"images": 1, "channels": 1, "side": 1})
    timing = bench.time(point)
    least = {} if timing is None else {"kernel_s_at_least": timing.time_s}
    return {"host_s_per_call": statistics.median(times), **least}


def _synchronize(torch: Any, device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
