"""A device to measure on: PyTorch on one pinned thread of this CPU."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from planner.numbers import constant
from planner.probes.kernels import reference_call, timed_call
from planner.probes.operands import Operands
from planner.probes.points import Point
from planner.probes.timing import (
    COARSEST_TICK_S,
    Timing,
    give_back_memory,
    keep_freed_memory,
    own_clock,
    resident_bytes,
    time_call,
)
from planner.probes.torch_package import import_torch

__all__ = [
    "DISTURBED_RATIO",
    "Bench",
    "CpuBench",
    "as_if_quiet",
    "if_quiet",
    "least_disturbed",
    "one_thread",
    "quietest",
]

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


class Bench(Protocol):
    """What the measuring loop needs of a device."""

    def clock(self) -> float:
        """Return the wall time [s]."""

    def time(self, point: Point) -> Timing | None:
        """Return the time of a point's call; None where the device cannot make it: no memory, no such kernel."""

    def reference(self) -> float:
        """Return the time of the reference kernel [s]."""


class CpuBench:
    """PyTorch on this thread; call it inside :func:`one_thread`.

    Calls and the reference take what the thread ran: other work on the CPU is left out, but for what it does to caches.
    """

    def __init__(self) -> None:
        self._own_clock = own_clock()
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
        wall_s, own_s = (
            clock() - at for clock, at in zip((time.perf_counter, self._own_clock), self._began, strict=True)
        )
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

    Besides, how many times slower than in quiet the reference was then: the slower of before and after.

    Parameters
    ----------
    measure : callable
    bench : Bench
    quiet_s : float
        The reference time of the quiet machine [s].
    tries : int
    pause_s : float
        What is waited after a disturbed try [s].
    until_s : float
        What the bench's clock may show when a try begins [s].
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


def if_quiet(trial: tuple[Result, float] | None) -> Result | None:
    """Return what :func:`least_disturbed` found, if that was in quiet."""
    return trial[0] if trial and trial[1] <= DISTURBED_RATIO else None


def as_if_quiet(time_s: float, slower: float) -> float:
    """Return the time of what was measured while the reference was so many times slower, corrected by that [s]."""
    return float(time_s / max(slower, 1.0) ** REFERENCE_POWER)


def quietest(part_s: float, fastest_s: float) -> float:
    """Return the reference time of the quiet machine [s].

    That of the quiet part of a run, ``part_s``; where even this one is disturbed beside the fastest reference of all,
    ``fastest_s``, the machine was quiet but for a short while, and the fastest one it is. NOTE: not always the fastest,
    beside which quiet runs would look disturbed (docs/cpu.md).
    """
    return part_s if part_s <= DISTURBED_RATIO * fastest_s else fastest_s


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run on one thread, pinned to the last CPU that this process may use; undone afterwards.

    Raises
    ------
    MissingPackageError
        PyTorch is not installed.
    """
    torch = import_torch()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if cpus:
        os.sched_setaffinity(0, {max(cpus)})
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, cpus)
        torch.set_num_threads(threads)
