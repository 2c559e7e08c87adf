import itertools
import math
import mmap
import time
from collections.abc import Callable

import pytest

from planner.probes.timing import Call, own_clock, summary, time_call, time_queued_call, touched_pages


class Clock:
    """A clock that calls move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_short_calls_are_timed_in_blocks_of_two_milliseconds() -> None:
    clock = Clock()

    def run() -> None:
        clock.now += 1e-5

    timing = time_call(Call(run), clock)
    assert timing.time_s == pytest.approx(1e-5)
    assert timing.repeats * timing.time_s >= 0.999 * 5 * 2e-3
    assert timing.spread_s == pytest.approx(0.0, abs=1e-12)


def test_waiting_for_the_processor_is_not_timed() -> None:
    clock, wall_s = own_clock(), time.perf_counter()
    began = clock()
    time.sleep(0.05)
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        pass
    assert time.perf_counter() - wall_s >= 0.06
    assert clock() - began == pytest.approx(0.01, abs=5e-3)


@pytest.mark.parametrize(("step_s", "is_taken"), [(1e-6, True), (0.0156, False), (math.inf, False)])
def test_a_clock_that_is_too_coarse_for_blocks_is_not_taken(step_s: float, *, is_taken: bool) -> None:
    def coarse() -> float:
        return time.perf_counter() // step_s * step_s if math.isfinite(step_s) else 0.0

    assert own_clock(coarse) is (coarse if is_taken else time.perf_counter)


def test_one_slow_block_changes_the_median_little() -> None:
    clock = Clock()
    times = itertools.chain([0.01, 0.01, 0.01, 0.5], itertools.repeat(0.01))

    def run() -> None:
        clock.now += next(times)

    assert time_call(Call(run), clock).time_s == pytest.approx(0.01)


def test_freeing_kept_results_is_not_timed() -> None:
    clock = Clock()

    class Result:
        def __del__(self) -> None:
            clock.now += 1.0

    def run() -> Result:
        clock.now += 0.01
        return Result()

    assert time_call(Call(run, kept_bytes=10), clock).time_s == pytest.approx(0.01)
    assert time_call(Call(run), clock).time_s > 1


@pytest.mark.parametrize("seconds", [1e-4, 0.02, 0.2])
@pytest.mark.parametrize("touching", [(1,), (1, 2), (1, 2, 3), (1, 3, 4, 6)])
def test_calls_that_touch_memory_for_the_first_time_are_not_timed(seconds: float, touching: tuple[int, ...]) -> None:
    """The first ones, and later ones of an allocator that puts every other result elsewhere for a while."""
    clock, state = Clock(), {"calls": 0, "pages": 0}

    def run() -> None:
        state["calls"] += 1
        first = state["calls"] in touching
        state["pages"] += 10_000 * first
        clock.now += seconds + 0.02 * first

    timing = time_call(Call(run), clock, pages=lambda: state["pages"])
    assert timing.time_s == pytest.approx(seconds)
    assert timing.spread_s == pytest.approx(0.0, abs=1e-12)


def test_calls_that_always_touch_memory_are_timed_none_the_less() -> None:
    clock = Clock()

    def run() -> None:
        clock.now += 0.02

    timing = time_call(Call(run), clock, pages=itertools.count(step=10_000).__next__)
    assert timing.time_s == pytest.approx(0.02)
    assert timing.repeats == 3
    assert clock.now == pytest.approx((1 + 3 + 12) * 0.02)


def test_pages_touched_for_the_first_time_are_counted() -> None:
    # A mapping of its own: an allocator that was told to keep freed memory gives out pages that were touched before.
    with mmap.mmap(-1, 64 * 2**20) as mapping:
        before = touched_pages()
        for start in range(0, len(mapping), mmap.PAGESIZE):
            mapping[start] = 1
        if before:  # else the system does not tell
            assert touched_pages() - before > len(mapping) / 2**22  # pages are of 4 KiB to 2 MiB


def test_summary_is_median_and_scaled_median_deviation() -> None:
    timing = summary([1.0, 2.0, 3.0, 4.0, 100.0], 2)
    assert (timing.time_s, timing.repeats) == (3.0, 10)
    assert timing.spread_s == pytest.approx(1.4826)


@pytest.mark.parametrize("run_s", [1e-5, 0.02])
def test_a_run_of_several_calls_is_shared_among_them(run_s: float) -> None:
    clock = Clock()

    def run() -> None:
        clock.now += run_s

    assert time_call(Call(run, calls=4), clock).time_s == pytest.approx(run_s / 4)


class Queue:
    """A device that takes ``call_s`` a call from when it has it, and a host that hands one over in ``host_s``."""

    def __init__(self, call_s: float, host_s: float, first_s: float = 0.0) -> None:
        self.call_s, self.host_s, self.first_s = call_s, host_s, first_s
        self.calls: list[int] = []
        self.held_s = 0.0

    def run(self, call: Callable[[], object], calls: int, ahead_s: float) -> tuple[float, float]:
        """Return the time from the device's beginning to its last call's end."""
        self.held_s += ahead_s
        handed = self.first_s if len(self.calls) == 1 else 0.0
        now = begun = ahead_s
        for _ in range(calls):
            call()
            handed += self.host_s
            now = max(now, handed) + self.call_s
        self.calls.append(calls)
        return now - begun, handed


@pytest.mark.parametrize(("call_s", "host_s"), [(2e-6, 5e-6), (2e-6, 4e-5), (3e-4, 1e-5), (5e-3, 1e-3)])
def test_queued_calls_take_the_time_of_the_device_alone(call_s: float, host_s: float) -> None:
    queue, runs = Queue(call_s, host_s), itertools.count()
    timing = time_queued_call(Call(lambda: next(runs)), queue)
    assert timing.time_s == pytest.approx(call_s, rel=1e-9)
    assert timing.spread_s == pytest.approx(0.0, abs=1e-12)
    assert timing.repeats * timing.time_s >= 0.999 * 5 * 1e-3
    assert sum(queue.calls) == next(runs)


def test_a_long_queued_call_is_timed_three_times() -> None:
    queue = Queue(0.02, 1e-5)
    timing = time_queued_call(Call(lambda: None, calls=4), queue)
    assert timing.time_s == pytest.approx(0.005)
    assert timing.repeats == 3
    assert queue.calls == [1, 1, 1, 1]


def test_a_kernel_that_is_loaded_at_its_second_call_is_sized_again() -> None:
    queue = Queue(1e-5, 5e-6, first_s=0.04)
    assert time_queued_call(Call(lambda: None), queue).time_s == pytest.approx(1e-5, rel=1e-9)
    assert max(queue.calls) == 100


def test_a_host_that_is_never_fast_enough_ends_all_the_same() -> None:
    queue = Queue(2e-6, 1e-3)
    timing = time_queued_call(Call(lambda: None), queue)
    assert timing.repeats == 5 * 500
    assert timing.time_s > 5e-4
    assert queue.held_s < 1.0
