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
    assert [step.sub_batch for step in found if step] == [4, 1, 2]
    assert [step.time_s for step in found if step] == pytest.approx([4 * STEP_S, STEP_S, 2 * STEP_S])
    assert runs == [(4, 7), (1, 7), (2, 7)]
    assert bench.now <= 60


def test_long_steps_are_repeated_less_and_left_out_where_they_do_not_fit(running: Callable[..., Any]) -> None:
    bench, runs = running()
    found = timed_runs(NETWORK, wanted(16, 100, 1), 12.0)
    assert [step is not None for step in found] == [True, False, True]
    (first, repeats), _ = runs
    assert (first, 1 <= repeats < 7) == (16, True)
    assert bench.now <= 12


def test_runs_that_were_never_quiet_are_left_out_in_time(running: Callable[..., Any]) -> None:
    bench, runs = running(slow=(0.5, 1e9))
    found = timed_runs(NETWORK, wanted(1, 2), 10.0)
    assert found == (None, None)
    assert len(runs) > 2
    assert bench.now <= 1.1 * 10


def test_the_quiet_of_an_earlier_run_counts(running: Callable[..., Any]) -> None:
    running(slow=(-1.0, 1e9))
    assert timed_runs(NETWORK, wanted(1), 5.0)[0] is not None
    running(slow=(-1.0, 1e9))
    assert timed_runs(NETWORK, wanted(1), 5.0, quiet_s=0.003)[0] is None
