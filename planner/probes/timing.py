"""Time one call: blocks of at least 2 ms, the median over blocks and their spread; fewer blocks of long calls.

A result is dropped before the next call, whose memory then comes from the allocator's free list, as a training step's
does once the first steps are over: until then calls touch memory for the first time, and are not timed. glibc puts an
aligned block where more than its size is free, so seldom where the last one was, and a call may touch new memory again
after some that did not: so blocks that did are timed again.

On a CPU it is the time that the thread ran, not that of the wall, which other processes make longer.

NOTE: glibc maps large blocks anew for every call, and gives the end of its heap back to the system or not, depending on
what was allocated before; page faults then double the time of some calls. So the allocator is told to keep what it has,
as the allocators do that are recommended for training on CPUs. What was measured of all this: docs/cpu.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

LEAST_BLOCK_S = 2e-3
BLOCKS = 5
LONG_CALL_S = 0.01
LONG_CALL_BLOCKS = 3
"""Of calls longer than LONG_CALL_S [s]: they are disturbed less for their length, and cost the budget most."""
VERY_LONG_CALL_S = 0.05
VERY_LONG_CALL_BLOCKS = 2
"""Of calls longer than VERY_LONG_CALL_S [s]."""
MOST_WARM_UP_CALLS = 3
"""Calls at most, after the first one, that are not timed as they touch memory for the first time."""
MOST_SPOILT_BLOCKS = 12
"""Blocks at most that are timed again as they touched memory for the first time."""
FIRST_TOUCH_S = 2e-6
TOUCHING_SHARE = 0.02
"""Touching a page for the first time takes so long [s]; of what is timed, from which on it matters."""

COARSEST_TICK_S = 1e-4
"""Step of a clock that can time blocks [s]."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3), as glibc numbers them."""
NO_LIMIT_BYTES = 2**31 - 1

MOST_KEPT_BYTES = 128 * 2**20

LEAST_QUEUED_BLOCK_S = 1e-3
MOST_QUEUED_CALLS = 512
"""Drivers hold about a thousand kernels that wait."""
AHEAD_FACTOR, LEAST_AHEAD_S, MOST_AHEAD_S = 1.5, 1e-4, 0.05
"""The device is held back for as many times the time that queueing took before, and at least and most as long [s]."""
TYPICAL_HANDING_S = 5e-6
"""What handing over a call takes, to begin with."""
SIZING_TRIES = 3
EVENT_RESOLUTION_S = 5e-7
"""Of the time between two events of a GPU (CUDA Runtime API, cudaEventElapsedTime), which may be told as none."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call ready to be timed; ``calls``: kernel calls that one run makes, which share its time.

    ``kept_bytes``: of a result that outlives the clock, as gradients of parameters do, and is freed between blocks; 0:
    the result is dropped before the next call.
    """

    run: Callable[[], object]
    kept_bytes: int = 0
    calls: int = 1


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: median over blocks, spread (scaled median absolute deviation), calls timed.

    ``parts``: timings of what it consists of and of what follows it, by name, where those were timed too.
    """

    time_s: float
    spread_s: float
    repeats: int
    parts: Mapping[str, Timing] = field(default_factory=dict)


def own_clock(clock: Callable[[], float] = time.thread_time) -> Callable[[], float]:
    """Return the clock of the CPU time of the calling thread, that of the wall where the system's is too coarse."""
    before_s, until_s = clock(), time.perf_counter() + 10 * COARSEST_TICK_S
    while (step_s := clock() - before_s) == 0 and time.perf_counter() < until_s:
        pass
    return clock if 0 < step_s <= COARSEST_TICK_S else time.perf_counter


def keep_freed_memory() -> bool:
    """Tell this process's allocator to keep what it frees; False where it is not glibc and stays as it is."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, NO_LIMIT_BYTES) and mallopt(_MMAP_THRESHOLD, NO_LIMIT_BYTES))


def resident_bytes() -> int:
    """Return the memory that this process holds now [bytes]; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def give_back_memory() -> None:
    """Let the allocator return what is free to the system, where it is glibc: pieces too small to be used again."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def touched_pages() -> int:
    """Return how many pages of memory this process has touched for the first time; 0 where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[MINOR_FAULTS_FIELD])


MINOR_FAULTS_FIELD = 7
"""Place in /proc/self/stat, counted from the state behind the name: proc(5)."""


def time_call(
    call: Call, clock: Callable[[], float] = time.perf_counter, pages: Callable[[], int] = touched_pages
) -> Timing:
    """Return the time of a call, after calls that are not timed: until one touches no memory for the first time.

    The last of these sets the block's length, and counts as a block where the call is long. Blocks that touch memory
    for the first time do not count, unless all do.
    """

    def block(calls: int) -> tuple[float, bool]:
        """Return the mean time of some calls [s], and whether they touched hardly any memory for the first time."""
        run, results, before, start = call.run, list[object](), pages(), clock()
        if call.kept_bytes:
            results = [run() for _ in range(calls)]
        else:
            for _ in range(calls):
                run()
        each_s = (clock() - start) / calls
        results.clear()
        return each_s, (pages() - before) * FIRST_TOUCH_S <= TOUCHING_SHARE * calls * each_s

    call.run()
    once_s, is_settled = math.inf, False
    for _ in range(MOST_WARM_UP_CALLS):
        once_s, is_settled = block(1)
        if is_settled:
            break
    once_s, in_block, count = max(once_s, 1e-9), 1, BLOCKS
    times_s, spoilt_s = list[float](), list[float]()
    if once_s >= LONG_CALL_S:
        times_s += [once_s] if is_settled else []
        count = VERY_LONG_CALL_BLOCKS if once_s >= VERY_LONG_CALL_S else LONG_CALL_BLOCKS
    else:
        in_block = max(1, math.ceil(LEAST_BLOCK_S / once_s))
        if call.kept_bytes:
            in_block = max(1, min(in_block, MOST_KEPT_BYTES // call.kept_bytes))
    while len(times_s) < count and len(spoilt_s) < MOST_SPOILT_BLOCKS:
        each_s, is_clean = block(in_block)
        (times_s if is_clean else spoilt_s).append(each_s)
    return summary(times_s or spoilt_s[-count:], in_block, call.calls)


def summary(times_s: list[float], calls_each: int = 1, kernels: int = 1) -> Timing:
    """Return median and spread of times, each the mean of so many calls, which share it among kernels."""
    median = statistics.median(times_s)
    spread = 1.4826 * statistics.median([abs(t - median) for t in times_s])
    return Timing(median / kernels, spread / kernels, len(times_s) * calls_each)


class Stopwatch(Protocol):
    """What tells how long a device takes for calls that it is handed, but does later."""

    def run(self, call: Callable[[], object], calls: int, ahead_s: float) -> tuple[float, float]:
        """Return the seconds of so many calls on the device, and those that handing them over took.

        The device begins ``ahead_s`` [s] late: while handing over takes less, the device never waits for it.
        """


def time_queued_call(call: Call, stopwatch: Stopwatch) -> Timing:
    """Return the time of a call on a device that works through a queue, after one call that is not timed.

    Blocks of at least 1 ms, their calls handed over before the first one begins, so that no time of the host is in
    them: what a step waits for the host is an overhead of its own.
    """
    stopwatch.run(call.run, 1, 0.0)
    once_s, handing_s, ahead_s = 0.0, math.inf, LEAST_AHEAD_S
    for _ in range(SIZING_TRIES):  # what a kernel's first calls load can take the host long
        once_s, handing_s = stopwatch.run(call.run, 1, ahead_s)
        if handing_s <= ahead_s:
            break
        ahead_s = _ahead(handing_s)
    if once_s >= LONG_CALL_S:
        times = [once_s, *(stopwatch.run(call.run, 1, ahead_s)[0] for _ in range(LONG_CALL_BLOCKS - 1))]
        return summary(times, 1, call.calls)
    in_block = min(MOST_QUEUED_CALLS, max(1, math.ceil(LEAST_QUEUED_BLOCK_S / max(once_s, 1e-9))))
    times, attempts, ahead_s = [], 2 * BLOCKS, _ahead(in_block * min(handing_s, TYPICAL_HANDING_S))
    while len(times) < BLOCKS:
        block_s, handing_s = stopwatch.run(call.run, in_block, ahead_s)
        attempts -= 1
        if handing_s <= ahead_s or attempts < BLOCKS:  # else the device has waited; the next block begins later
            times.append(block_s / in_block)
        ahead_s = _ahead(handing_s)
    return summary(times, in_block, call.calls)


def _ahead(handing_s: float) -> float:
    return min(max(AHEAD_FACTOR * handing_s, LEAST_AHEAD_S), MOST_AHEAD_S)
