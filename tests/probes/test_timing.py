import itertools

import pytest

from planner.probes.timing import Call, summary, time_call


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
