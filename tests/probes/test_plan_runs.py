"""Short runs of plans: how long they may take, and what is left out, with a bench that takes no time."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.probes import gpu
from planner.probes import steps as plan_runs
from planner.probes.gpu import DeviceLostError
from planner.probes.steps import WantedRun, enough_s, timed_runs
from planner.probes.timing import Timing

MakeBench = Callable[..., Any]
NETWORK = Network("one", (8,), (Layer("a", "linear", (INPUT,), {"features": 4}), Layer("loss", "loss", ("a",))))
STEP_S = 0.05
"""Of a sample."""


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, fake_bench: MakeBench) -> Callable[..., tuple[Any, list[tuple[int, int]]]]:
    """Return a function that puts a bench in place and gives it, with the list of (sub-batch, repeats) of runs.

    ``pace``: how many times longer than expected steps take.
    """

    def use(pace: float = 1.0, **given: Any) -> tuple[Any, list[tuple[int, int]]]:
        bench, runs = fake_bench(**given), []

        @contextlib.contextmanager
        def opened(_device: str) -> Iterator[Any]:
            yield bench

        def gradient_time(
            _module: object,
            _net: object,
            sub_batch: int,
            repeats: int,
            *,
            precision: str,
            until_s: float,
            warm_up: int,
            optimizer: str,
        ) -> Timing:
            assert precision == "fp32"
            assert (warm_up >= 1, optimizer) == (True, "")
            step_s, made = pace * STEP_S * sub_batch, 1
            bench.now += (warm_up + 1) * step_s
            while made < repeats and bench.now < until_s:
                bench.now, made = bench.now + step_s, made + 1
            runs.append((sub_batch, made))
            return Timing(step_s, 1e-4, made)

        monkeypatch.setattr(plan_runs, "bench_of", opened)
        monkeypatch.setattr(plan_runs, "gradient_time", gradient_time)
        monkeypatch.setattr(plan_runs, "PAUSE_S", 0.0)
        return bench, runs

    return use


def points_of(*sub_batches: int) -> list[WantedRun]:
    return [WantedRun(n, "fp32", STEP_S * n) for n in sub_batches]


def test_every_cell_is_run_once_within_the_time(running: Callable[..., Any]) -> None:
    bench, runs = running()
    found = timed_runs(NETWORK, points_of(4, 1, 2), 60.0)
    steps = [one.step for one in found]
    assert [step.sub_batch for step in steps if step] == [4, 1, 2]
    assert [step.time_s for step in steps if step] == pytest.approx([4 * STEP_S, STEP_S, 2 * STEP_S])
    assert not any(one.is_disturbed for one in found)
    assert runs == [(4, 7), (1, 7), (2, 7)]
    assert bench.now <= 60


def test_long_steps_are_repeated_less_and_left_out_where_they_do_not_fit(running: Callable[..., Any]) -> None:
    bench, runs = running()
    found = timed_runs(NETWORK, points_of(16, 100, 1), 6.0)
    assert [one.step is not None for one in found] == [True, False, True]
    (first, repeats), _ = runs
    assert (first, 1 <= repeats < 7) == (16, True)
    assert bench.now <= 6


def test_the_best_is_run_first_even_where_it_takes_most_of_the_time(running: Callable[..., Any]) -> None:
    """Steps of 64 take 3.2 s: two fit in 10 s, and two of each of the others beside them."""
    bench, runs = running()
    found = timed_runs(NETWORK, points_of(64, 8, 4, 2), 10.0)
    assert all(one.step for one in found)
    assert (runs[0], [n for n, _ in runs]) == ((64, 1), [64, 8, 4, 2])
    assert bench.now <= 10


def test_time_that_steps_did_not_take_is_offered_to_those_left_out(running: Callable[..., Any]) -> None:
    """Half as long as expected: what did not fit at first does once a run has shown it."""
    bench, runs = running(pace=0.5)
    found = timed_runs(NETWORK, points_of(100, 4, 1), 9.0)
    assert [n for n, _ in runs] == [4, 100, 1]
    assert all(one.step for one in found)
    assert bench.now <= 9


def test_steps_that_take_longer_than_expected_leave_no_time_to_overrun(running: Callable[..., Any]) -> None:
    bench, runs = running(pace=2.0)
    found = timed_runs(NETWORK, points_of(4, 16, 12, 1), 6.0)
    assert [one.step is not None for one in found] == [True, True, False, True]
    assert [n for n, _ in runs] == [4, 16, 1]
    assert bench.now <= 6


@pytest.mark.parametrize("pace", [0.7, 1.0, 1.8])
def test_the_time_that_is_said_to_suffice_does(running: Callable[..., Any], pace: float) -> None:
    cells = points_of(64, 32, 16, 8)
    running(pace=pace)
    found = timed_runs(NETWORK, cells, 5.0)
    assert not all(one.step for one in found)
    seconds = 1.05 * enough_s(cells, found)
    bench, _ = running(pace=pace)
    assert all(one.step for one in timed_runs(NETWORK, cells, seconds))
    assert bench.now <= seconds


def test_runs_that_were_never_quiet_are_marked_in_time(running: Callable[..., Any]) -> None:
    bench, runs = running(slow=(0.5, 1e9))
    found = timed_runs(NETWORK, points_of(1, 2), 10.0)
    assert [(one.step is not None, one.is_disturbed) for one in found] == [(True, True)] * 2
    assert found[0].slower == pytest.approx(3.0)
    assert len(runs) > 2
    assert bench.now <= 1.1 * 10


def test_a_run_that_fails_is_said_and_the_others_are_made(
    running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    running()

    def failing(_module: object, _net: object, sub_batch: int, repeats: int, *, precision: str, **_: float) -> Timing:
        assert precision == "fp32"
        if sub_batch == 2:
            raise RuntimeError("could not create a primitive\nException raised from ...")
        return Timing(STEP_S, 1e-4, repeats)

    monkeypatch.setattr(plan_runs, "gradient_time", failing)
    first, second, third = timed_runs(NETWORK, points_of(1, 2, 4), 60.0)
    assert (second.step, second.failed) == (None, "could not create a primitive")
    assert first.step is not None
    assert third.step is not None


def test_what_is_out_of_memory_is_said(running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    running()

    def failing(*_: Any, **__: Any) -> Timing:
        raise MemoryError

    monkeypatch.setattr(plan_runs, "gradient_time", failing)
    assert timed_runs(NETWORK, points_of(1), 60.0) == (plan_runs.PlanRun(failed=gpu.NO_MEMORY),)


@pytest.mark.parametrize(
    ("error", "said"), [(torch.OutOfMemoryError("CUDA"), gpu.NO_MEMORY), (RuntimeError("no\nkernel"), "no")]
)
def test_a_network_that_the_device_does_not_hold_is_left_out(
    running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: RuntimeError, said: str
) -> None:
    _, runs = running()

    def build_module(_network: Network, device: str) -> None:
        assert device == "cpu"
        raise error

    monkeypatch.setattr(plan_runs, "build_module", build_module)
    assert timed_runs(NETWORK, points_of(1, 2), 60.0) == (plan_runs.PlanRun(failed=said),) * 2
    assert runs == []


@pytest.mark.parametrize("lost_in", ["build_module", "gradient_time"])
def test_a_lost_device_is_no_run_that_failed(
    running: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, lost_in: str
) -> None:
    running()

    def failing(*_: Any, **__: Any) -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setattr(plan_runs, lost_in, failing)
    monkeypatch.setattr(gpu, "why_no_kernel", lambda _torch, _device: "illegal memory access")
    with pytest.raises(DeviceLostError) as lost:
        timed_runs(NETWORK, points_of(2), 60.0)
    assert lost.value.what == (
        "making one" if lost_in == "build_module" else "training steps of one on 2 samples in fp32"
    )


def test_the_quiet_of_an_earlier_run_counts(running: Callable[..., Any]) -> None:
    running(slow=(-1.0, 1e9))
    assert not timed_runs(NETWORK, points_of(1), 5.0)[0].is_disturbed
    running(slow=(-1.0, 1e9))
    assert timed_runs(NETWORK, points_of(1), 5.0, quiet_s=0.003)[0].is_disturbed


TOUCHING = """
import torch
from planner.probes.steps import WantedRun, timed_runs
from planner.probes.timing import keep_freed_memory, touched_pages
from planner.catalog import find_network

size = 2**28
touched = touched_pages()
if touched and keep_freed_memory():
    network = find_network("mlp:input=64,hidden=64,layers=2,classes=10")
    timed_runs(network, [WantedRun(1, "fp32", 1e-3, float(size))], 5.0)
    before = touched_pages()
    torch.ones(size // 4, dtype=torch.float32)
    print(before - touched, touched_pages() - before)
"""


def test_memory_is_touched_before_a_run_that_needs_it() -> None:
    """Blocks of a later allocation are in memory already; in a process of its own, where no test left pieces behind."""
    made = subprocess.run([sys.executable, "-c", TOUCHING], capture_output=True, text=True, check=True)
    if not made.stdout:
        pytest.skip("only where glibc allocates, and the system counts pages")
    first, later = (int(count) for count in made.stdout.split())
    pages = 2**28 / 4096
    assert first >= 1.2 * pages
    assert later < 0.05 * pages
