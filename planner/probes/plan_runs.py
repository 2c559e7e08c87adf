"""Short real training runs of the sub-batches and precisions that plans of one network differ in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from planner.domain.network import Network
from planner.domain.samples import TimedStep
from planner.numbers import constant
from planner.probes.bench import DISTURBED_RATIO, Bench, CpuBench, cuda_bench, least_disturbed, one_thread
from planner.probes.gpu import NO_MEMORY, check_computes, first_line
from planner.probes.precisions import computing_in, import_torch
from planner.probes.steps import WARM_UP_STEPS, build_module, gradient_time
from planner.probes.timing import Timing, keep_freed_memory

if TYPE_CHECKING:
    import torch

__all__ = ["PlanRun", "WantedRun", "enough_s", "timed_runs"]

MOST_REPEATS = 7
MOST_STEPS = WARM_UP_STEPS + MOST_REPEATS
FEWEST_STEPS = 2
"""One that is not timed, and one that is."""
FIRST_STEP_S = 1e-3
"""A first try may begin for at least so long [s], where the steps take all the time there is."""
RUN_FACTOR = 1.15
"""What a run takes besides its steps, and what a first step takes longer."""
REFERENCES = 5
PAUSE_S = 0.2
MOST_TRIES = 1000
TOUCHED_FACTOR = constant("plan_runs.touched")
"""Times the memory of a run is touched before, so that its steps meet no new pages (docs/numbers.md)."""
BLOCK_BYTES = 2**26
MOST_FREE_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class WantedRun:
    """A run that is wanted: ``expected_s`` of forward and backward [s], ``memory_bytes``; 0: not known.

    ``optimizer``: whose updates are timed too, and part of what is expected; empty: none.
    """

    sub_batch: int
    precision: str
    expected_s: float
    memory_bytes: float = 0.0
    optimizer: str = ""


@dataclass(frozen=True, slots=True)
class PlanRun:
    """What came of a wanted run.

    ``step``: None where it could not be made, or not in time; ``failed``: why not, as PyTorch said. ``slower``: than
    the quiet machine, so many times; above DISTURBED_RATIO no try was in quiet. ``parts``: of the step, and its update.
    """

    step: TimedStep | None = None
    slower: float = 1.0
    failed: str = ""
    parts: Mapping[str, Timing] = field(default_factory=dict)

    @property
    def is_disturbed(self) -> bool:
        """Whether it was made, but never in quiet."""
        return self.step is not None and self.slower > DISTURBED_RATIO


def timed_runs(
    network: Network,
    wanted: Sequence[WantedRun],
    seconds: float,
    *,
    device: str = "cpu",
    quiet_s: float = 0.0,
    progress: Callable[[float, str], None] = lambda _used_s, _state: None,
) -> tuple[PlanRun, ...]:
    """Return what came of every wanted run: on a machine that is not quiet, the least disturbed of its tries.

    The first come first: one that fits with fewest steps is run, those after it where they fit beside it. All of
    these get as many steps as there is time for; those left out are looked at again after every run, with the time that
    is left by then and by what steps have taken, of what was expected.

    ``seconds``: wall time to spend [s]; ``quiet_s``: reference time of the quiet machine from an earlier run [s]; 0:
    from now on alone; ``progress`` takes the seconds used, and the state. DeviceLostError: the device computes nothing
    any more.
    """
    with _bench(device) as bench:
        began_s = bench.clock()
        now_s = min(bench.reference() for _ in range(REFERENCES))
        reference_s = min(now_s, quiet_s) if quiet_s > 0 else now_s
        try:
            module = build_module(network, device)
        except (RuntimeError, MemoryError) as error:
            return (_failed(device, error, f"making {network.name}"),) * len(wanted)
        largest_bytes, block = 0.0, None
        runs: dict[int, PlanRun] = {}
        while choice := _next(wanted, runs, began_s + seconds - bench.clock()):
            at, step_s, steps = choice
            one = wanted[at]
            state = f"sub-batch {one.sub_batch} in {one.precision}, {len(runs) + 1} of {len(wanted)}"
            progress(bench.clock() - began_s, state)
            if device == "cpu" and one.memory_bytes > largest_bytes:
                largest_bytes, block = one.memory_bytes, _touched(TOUCHED_FACTOR * one.memory_bytes)
            runs[at] = _run(bench, module, (network, one, device), (steps, step_s), reference_s)
            if runs[at].failed:  # only now, as the error held what the step did
                module.zero_grad(set_to_none=True)
                import_torch().cuda.empty_cache()
        del block
        return tuple(runs.get(at, PlanRun()) for at in range(len(wanted)))


def _touched(wanted_bytes: float) -> torch.Tensor | None:
    """Touch so much memory, as far as it is free, and leave it to the allocator; return the last block of it."""
    # While that block is kept, the rest is not at the end of the heap: glibc gives back more than 2 GiB there.
    library = import_torch()
    keep_freed_memory()
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count = int(min(wanted_bytes, MOST_FREE_SHARE * free_bytes) / BLOCK_BYTES)
    blocks: list[torch.Tensor] = [library.ones(BLOCK_BYTES, dtype=library.uint8) for _ in range(count + 1)]
    return blocks[-1] if count else None


def _next(wanted: Sequence[WantedRun], runs: Mapping[int, PlanRun], left_s: float) -> tuple[int, float, float] | None:
    """Return the first that fits the time left [s], what a step may take [s], and how many it may make."""
    pace = RUN_FACTOR * _pace(wanted, runs)
    fitting: list[int] = []
    together_s = 0.0
    for at, one in enumerate(wanted):
        step_s = pace * one.expected_s
        if at not in runs and FEWEST_STEPS * (together_s + step_s) <= left_s:
            fitting.append(at)
            together_s += step_s
    return (fitting[0], pace * wanted[fitting[0]].expected_s, left_s / together_s) if fitting else None


def _pace(wanted: Sequence[WantedRun], runs: Mapping[int, PlanRun]) -> float:
    """Return how many times longer than expected the steps of the runs took, together; 1 of none."""
    times = [(run.step.time_s, wanted[at].expected_s) for at, run in runs.items() if run.step]
    return sum(time_s for time_s, _ in times) / sum(expected_s for _, expected_s in times) if times else 1.0


def enough_s(wanted: Sequence[WantedRun], runs: Sequence[PlanRun]) -> float:
    """Return the time [s] that suffices for every wanted run, by what runs of some have taken.

    ``runs``: what came of each; those that failed are left out.
    """
    timings = {at: run for at, run in enumerate(runs) if run.step}
    expected_s = sum(one.expected_s for one, run in zip(wanted, runs, strict=True) if not run.failed)
    return FEWEST_STEPS * RUN_FACTOR * max(1.0, _pace(wanted, timings)) * expected_s


def _run(
    bench: Bench,
    module: torch.nn.Module,
    what: tuple[Network, WantedRun, str],
    steps: tuple[float, float],
    quiet_s: float,
) -> PlanRun:
    """Return what came of a run; ``steps``: at most so many, each of so long [s]; fewer where that time is up."""
    (network, one, device), (count, step_s) = what, steps
    warm_up = min(WARM_UP_STEPS, int(count) // FEWEST_STEPS)
    repeats = min(MOST_REPEATS, int(count) - warm_up)
    of_run = network, one.sub_batch, repeats
    timed = partial(gradient_time, module, *of_run, precision=one.precision, optimizer=one.optimizer)

    def measure() -> Timing:
        as_expected_s = bench.clock() + (warm_up + repeats - 1) * step_s
        return timed(until_s=max(as_expected_s, end_s - step_s), warm_up=warm_up)

    end_s = bench.clock() + count * step_s
    until_s = max(end_s - MOST_STEPS * step_s, bench.clock() + FIRST_STEP_S)
    try:
        with computing_in(one.precision):
            trial = least_disturbed(measure, bench, quiet_s, tries=MOST_TRIES, pause_s=PAUSE_S, until_s=until_s)
    except (RuntimeError, MemoryError) as error:
        return _failed(device, error, f"training steps of {network.name} on {one.sub_batch} samples in {one.precision}")
    if trial is None:
        return PlanRun()
    timing, slower = trial
    step = TimedStep(network, one.sub_batch, timing.time_s, timing.spread_s, one.precision)
    return PlanRun(step, slower, parts=timing.parts)


def _failed(device: str, error: RuntimeError | MemoryError, what: str) -> PlanRun:
    """Return the run that an error left out: PyTorch raises RuntimeError for whatever a library or device refuses."""
    if isinstance(error, MemoryError):
        return PlanRun(failed=NO_MEMORY)
    check_computes(device, error, what)
    return PlanRun(failed=first_line(error))


@contextlib.contextmanager
def _bench(device: str) -> Iterator[Bench]:
    """Give a bench of the device, on one pinned thread where that is the CPU."""
    if device != "cpu":
        yield cuda_bench(device)
        return
    with one_thread():
        yield CpuBench()
