"""Short runs of plans: how long they may take, and what is left out, with a bench that takes no time."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from planner.domain.network import INPUT, Layer, Network
from planner.probes import plan_runs
from planner.probes.modules import WARM_UP_STEPS
from planner.probes.plan_runs import Wanted, timed_runs
from planner.probes.timing import Timing

MakeBench = Callable[..., Any]
NETWORK = Network("one", (8,), (Layer("a", "linear", (INPUT,), {"features": 4}), Layer("loss", "loss", ("a",))))
STEP_S = 0.05
"""Of a sample."""


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, fake_bench: MakeBench) -> Callable[..., tuple[Any, list[tuple[int, int]]]]:
    """Return a function that puts a bench in place and gives it, with the list of (sub-batch, repeats) of runs."""

    def use(**given: Any) -> tuple[Any, list[tuple[int, int]]]:
        bench, runs = fake_bench(**given), []

        @contextlib.contextmanager
        def opened(_device: str) -> Iterator[Any]:
            yield bench

        def gradient_time(_module: object, _net: object, sub_batch: int, repeats: int, *, precision: str) -> Timing:
            assert precision == "fp32"
            runs.append((sub_batch, repeats))
            bench.now += (repeats + WARM_UP_STEPS) * STEP_S * sub_batch
            return Timing(STEP_S * sub_batch, 1e-4, repeats)

        monkeypatch.setattr(plan_runs, "_bench", opened)
        monkeypatch.setattr(plan_runs, "gradient_time", gradient_time)
        monkeypatch.setattr(plan_runs, "PAUSE_S", 0.0)
        return bench, runs

    return use


def wanted(*sub_batches: int) -> list[Wanted]:
    return [Wanted(n, "fp32", STEP_S * n) for n in sub_batches]


def test_every_cell_is_run_once_within_the_time(running: Callable[..., Any]) -> None:
    bench, runs = running()
    found = timed_runs(NETWORK, wanted(4, 1, 2), 60.0)
    steps = [one.step for one in found]
    assert [step.sub_batch for step in steps if step] == [4, 1, 2]
    assert [step.time_s for step in steps if step] == pytest.approx([4 * STEP_S, STEP_S, 2 * STEP_S])
    assert not any(one.is_disturbed for one in found)
    assert runs == [(4, 7), (1, 7), (2, 7)]
    assert bench.now <= 60


def test_long_steps_are_repeated_less_and_left_out_where_they_do_not_fit(running: Callable[..., Any]) -> None:
    bench, runs = running()
    found = timed_runs(NETWORK, wanted(16, 100, 1), 12.0)
    assert [one.step is not None for one in found] == [True, False, True]
    (first, repeats), _ = runs
    assert (first, 1 <= repeats < 7) == (16, True)
    assert bench.now <= 12


def test_runs_that_were_never_quiet_are_marked_in_time(running: Callable[..., Any]) -> None:
    bench, runs = running(slow=(0.5, 1e9))
    found = timed_runs(NETWORK, wanted(1, 2), 10.0)
    assert [(one.step is not None, one.is_disturbed) for one in found] == [(True, True)] * 2
    assert found[0].slower == pytest.approx(3.0)
    assert len(runs) > 2
    assert bench.now <= 1.1 * 10


def test_a_run_that_fails_is_said_and_the_others_are_made(
    running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    running()

    def failing(_module: object, _net: object, sub_batch: int, repeats: int, *, precision: str) -> Timing:
        assert precision == "fp32"
        if sub_batch == 2:
            raise RuntimeError("could not create a primitive\nException raised from ...")
        return Timing(STEP_S, 1e-4, repeats)

    monkeypatch.setattr(plan_runs, "gradient_time", failing)
    first, second, third = timed_runs(NETWORK, wanted(1, 2, 4), 60.0)
    assert (second.step, second.failed) == (None, "could not create a primitive")
    assert first.step is not None
    assert third.step is not None


def test_what_is_out_of_memory_is_left_out_without_a_word(
    running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    running()

    def failing(*_: Any, **__: Any) -> Timing:
        raise MemoryError

    monkeypatch.setattr(plan_runs, "gradient_time", failing)
    assert timed_runs(NETWORK, wanted(1), 60.0) == (plan_runs.PlanRun(),)


def test_the_quiet_of_an_earlier_run_counts(running: Callable[..., Any]) -> None:
    running(slow=(-1.0, 1e9))
    assert not timed_runs(NETWORK, wanted(1), 5.0)[0].is_disturbed
    running(slow=(-1.0, 1e9))
    assert timed_runs(NETWORK, wanted(1), 5.0, quiet_s=0.003)[0].is_disturbed
