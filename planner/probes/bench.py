"""A device to measure on: PyTorch on one pinned thread of this CPU, or on one GPU within 60 % of its memory.

Calls on a GPU are timed by events on one stream. The GPU is held back while calls are handed over to it, so that they
run one behind the other: their time is the device's alone. What the host takes for a call is timed apart
(:func:`host_times`), and how much longer products take under lasting load, as clocks fall (:func:`sustained`).
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from planner.domain.network import Point
from planner.errors import ParameterError
from planner.numbers import constant
from planner.probes.gpu import check_computes, check_gpu, first_line, why_no_kernel
from planner.probes.kernels import reference_call, timed_call
from planner.probes.operands import COLD_BYTES, Operands
from planner.probes.precisions import computing_in, import_torch
from planner.probes.timing import (
    COARSEST_TICK_S,
    EVENT_RESOLUTION_S,
    Stopwatch,
    Timing,
    give_back_memory,
    keep_freed_memory,
    own_clock,
    resident_bytes,
    time_call,
    time_queued_call,
)
from planner.units import format_bytes

DISTURBED_RATIO = 1.2
"""The machine is disturbed where the reference takes this much longer than in the quiet part of a run."""
REFERENCE_POWER = constant("disturbances.follows")
"""Power of the reference by which calls are slower where it is (docs/numbers.md)."""
REFERENCE_REPEATS = 3
LARGE_CALL_S = 0.05
"""Calls as long leave much memory free in pieces; without giving it back a run would need 2 GB."""
LARGE_RESIDENT_BYTES = 0.8e9
"""Held by the process: short calls leave memory in pieces too, a little each."""

Result = TypeVar("Result")


class CpuBench:
    """PyTorch on this thread, or on several; call it inside :func:`on_threads`.

    Calls and the reference take what the thread ran: other work on the CPU is left out, but for what it does to caches.
    Of several threads they take the wall time.
    """

    def __init__(self) -> None:
        self._own_clock = own_clock() if import_torch().get_num_threads() == 1 else time.perf_counter
        self._began = time.perf_counter(), self._own_clock()
        keep_freed_memory()
        self._operands = Operands(beyond=True)
        self._reference = reference_call(self._operands)
        self._reference.run()

    def clock(self) -> float:
        """Return the wall time [s]."""
        return time.perf_counter()

    def time(self, point: Point) -> Timing:
        """Return the time of a point's call."""
        timing = time_call(timed_call(point, self._operands), self._own_clock)
        if timing.time_s >= LARGE_CALL_S or resident_bytes() >= LARGE_RESIDENT_BYTES:
            give_back_memory()
        return timing

    @property
    def slowed(self) -> float:
        """How many times as long as the thread ran it has taken by the wall so far: 2 where it has half a CPU."""
        wall_s, own_s = time.perf_counter() - self._began[0], self._own_clock() - self._began[1]
        return max(wall_s / max(own_s, COARSEST_TICK_S), 1.0)

    def reference(self) -> float:
        """Return the median of three calls of the reference kernel [s], after one that is not timed."""
        self._reference.run()
        times = []
        for _ in range(REFERENCE_REPEATS):
            start = self._own_clock()
            self._reference.run()
            times.append(self._own_clock() - start)
        return statistics.median(times)


def least_disturbed(
    measure: Callable[[], Result],
    bench: Bench,
    quiet_s: float,
    *,
    tries: int = 3,
    pause_s: float = 0.0,
    until_s: float = math.inf,
) -> tuple[Result, float] | None:
    """Return what the first try in quiet gives, else the least disturbed one; None where none was begun in time.

    Besides, how many times slower than ``quiet_s`` [s] the reference was then: the slower of before and after. There is
    a pause after a disturbed try [s]; none begins when the bench's clock shows ``until_s`` [s].
    """
    best: tuple[Result, float] | None = None
    for attempt in range(tries):
        if attempt:
            time.sleep(pause_s)
        if bench.clock() >= until_s:
            break
        before = bench.reference()
        result = measure()
        slower = max(before, bench.reference()) / quiet_s
        if best is None or slower < best[1]:
            best = result, slower
        if slower <= DISTURBED_RATIO:
            break
    return best


def as_if_quiet(time_s: float, slower: float) -> float:
    """Return the time of what was measured while the reference was so many times slower, corrected by that [s]."""
    return float(time_s / max(slower, 1.0) ** REFERENCE_POWER)


def quietest(part_s: float, fastest_s: float) -> float:
    """Return the reference time of the quiet machine [s]: that of the quiet part of a run.

    Where even this one is disturbed beside the fastest reference of all, the machine was quiet but for a short while.
    NOTE: not always the fastest, beside which quiet runs would look disturbed (docs/cpu.md).
    """
    return part_s if part_s <= DISTURBED_RATIO * fastest_s else fastest_s


@contextlib.contextmanager
def on_threads(number: int) -> Iterator[None]:
    """Run on so many threads, pinned to as many of the last CPUs that this process may use; undone afterwards.

    MissingPackageError: PyTorch is not installed.
    """
    torch = import_torch()
    threads = torch.get_num_threads()
    torch.set_num_threads(number)
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if cpus:
        os.sched_setaffinity(0, set(sorted(cpus)[-number:]))
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, cpus)
        torch.set_num_threads(threads)


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
LEAST_FREE_BYTES = 2.5 * 2**30
"""With so much the block of numbers holds what the reference copies."""
REMEDY = "end what else uses it, name another GPU or --device cpu, or install a PyTorch built for it"
SHORTEST_KERNEL_S = 1e-7
"""An empty kernel takes some 1 us on the device; what takes less started none, such as the slice of a gradient."""
RATE_CYCLES = 20_000_000
HOST_CALLS, HOST_BLOCKS = 500, 7


class EventStopwatch:
    """Times calls by events of the current CUDA stream.

    ``cuda``: ``torch.cuda``, its current device the one to be timed.
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

    ``refused``: points without a time, for want of ``memory`` or of a ``kernel``, or as a ``view``, which starts none.
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

        DeviceLostError: the device computes nothing any more.
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


Bench = CpuBench | CudaBench


def usable_bytes(free_bytes: float, memory_bytes: float) -> float:
    """Return what may be taken of a GPU's memory, of which so much is free, besides what CUDA itself takes."""
    available = min(free_bytes + CONTEXT_BYTES, memory_bytes)
    return max(MEMORY_SHARE * available - CONTEXT_BYTES, LEAST_FREE_SHARE * free_bytes)


def usable_now(device: str) -> float:
    """Return what may be taken of a GPU's memory now [bytes]; it is the current device from then on.

    ParameterError: PyTorch cannot use the GPU.
    """
    return usable_bytes(*_memory(import_torch().cuda, device))


def operand_elements(usable: float) -> int:
    """Return the elements of the largest operand where so many bytes may be taken."""
    return min(MOST_POOL_ELEMENTS, int(POOL_SHARE * usable / 4))


def cuda_bench(device: str, cache_bytes: int = 0) -> CudaBench:
    """Return the bench of a GPU, warmed up; this process takes at most 60 % of its memory from then on.

    MissingPackageError, ParameterError: there is no such GPU, or others use so much of its memory that nothing can be
    measured.
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


@contextlib.contextmanager
def bench_of(device: str) -> Iterator[Bench]:
    """Give a bench of a device, on one pinned thread where that is the CPU; errors as of :func:`cuda_bench`."""
    if device != "cpu":
        yield cuda_bench(device)
        return
    with on_threads(1):
        yield CpuBench()


def _memory(cuda: Any, device: str) -> tuple[float, float]:
    """Return how many bytes of a GPU are free, and how many there are; it is the current device from then on."""
    free = total = 0
    try:
        cuda.set_device(device)
        reason = why_no_kernel(import_torch(), device)
        if not reason:
            free, total = cuda.mem_get_info(device)  # behind the trial, which takes a little for good
    except RuntimeError as error:  # CUDA's own, as where its context finds no memory
        reason = str(error).partition("\n")[0]
    if reason:
        raise ParameterError("--device", "a GPU that PyTorch can use", f"{device}: {reason}", REMEDY)
    return float(free), float(total)


def host_times(bench: CudaBench) -> dict[str, float]:
    """Return what the host takes for a call of a tiny kernel, and the device for it [s].

    ``host_s_per_call``: wall time of calls that do not wait for each other, as long as the host is slower than the
    device; the median over blocks. ``kernel_s_at_least``: the time of such a kernel on the device.
    """
    torch = import_torch()
    x = torch.zeros(1, device=bench.device)
    wait = partial(torch.cuda.synchronize, bench.device) if bench.device != "cpu" else lambda: None
    times = []
    for _ in range(HOST_BLOCKS):
        wait()
        start = time.perf_counter()
        for _ in range(HOST_CALLS):
            torch.relu(x)
        wait()
        times.append((time.perf_counter() - start) / HOST_CALLS)
    point = Point("activation", "forward", {}, {"images": 1, "channels": 1, "side": 1})
    timing = bench.time(point)
    least = {} if timing is None else {"kernel_s_at_least": timing.time_s}
    return {"host_s_per_call": statistics.median(times), **least}


SUSTAINED_SHARE = 0.03
"""Of the budget of a GPU's calibration."""
MOST_LOAD_S, LEAST_LOAD_S = 1.0, 0.25
"""Of load in one precision; in less clocks need not have fallen."""
LARGEST_LOAD_RATIO = 1.05
LEAST_CALL_S = 2e-4
"""Of a product: nothing holds the device back under load, so that it waits for the host of shorter ones."""
WARNING_CLOCKS = "warning_clocks"
LEFT_OUT = "left_out"
"""Circumstance that says what could not be measured."""


def sustained(
    bench: Bench, points: Iterable[Point], times_s: Mapping[str, float], for_s: float, left_out: Collection[str] = ()
) -> dict[str, str]:
    """Return the ratio of the times under load and in blocks of the largest product timed in each precision but fp32.

    As circumstances ``sustained_PRECISION``, with a warning where one is above 1.05; empty where ``for_s`` of wall time
    [s] is too short, and on a CPU. Precisions in which every product is shorter than LEAST_CALL_S have none. What the
    device fails in is left out and named; what it was lost in before, in ``left_out``, is not tried.

    ``times_s``: of the points that were timed, by name [s]. DeviceLostError: the device computes nothing any more.
    """
    long = (point for point in points if times_s.get(point.name, 0.0) >= LEAST_CALL_S)
    products = [point for point in long if point.kind == "gemm" and point.precision != "fp32"]
    largest = {point.precision: point for point in sorted(products, key=lambda point: math.prod(point.work.values()))}
    each_s = min(MOST_LOAD_S, for_s / max(len(largest), 1))
    if not isinstance(bench, CudaBench) or each_s < LEAST_LOAD_S:
        return {}
    ratios, failures = dict[str, float](), list[str]()
    for name, one in largest.items():
        what = f"lasting load in {name}"
        if what in left_out:
            continue
        try:
            ratios[name] = bench.under_load(one, each_s) / times_s[one.name]
        except RuntimeError as error:  # no memory among them: what was timed before can have left it in pieces
            check_computes(bench.device, error, what)
            failures.append(f"{what} ({first_line(error)})")
    circumstances = {f"sustained_{name}": f"{ratio:.3f}" for name, ratio in ratios.items()}
    if failures:
        circumstances[LEFT_OUT] = f"what the device failed in: {'; '.join(failures)}"
    slower = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items() if ratio > LARGEST_LOAD_RATIO)
    if slower:
        circumstances[WARNING_CLOCKS] = (
            "large products take longer under lasting load than in the short blocks that are fitted "
            f"({slower} times): the clocks fall, and long training steps may be slower too"
        )
    return circumstances
