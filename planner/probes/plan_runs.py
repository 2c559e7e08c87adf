"""Short real training runs of the sub-batches and precisions that plans of one network differ in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from planner.domain.network import Network
from planner.domain.training import TimedStep
from planner.probes.bench import DISTURBED, Bench, CpuBench, least_disturbed, one_thread
from planner.probes.cuda_bench import cuda_bench
from planner.probes.modules import WARM_UP_STEPS, build_module, gradient_time
from planner.probes.precisions import computing_in
from planner.probes.timing import Timing
from planner.probes.torch_package import import_torch

__all__ = ["PlanRun", "Wanted", "timed_runs"]

MOST_REPEATS = 7
REFERENCES = 5
PAUSE_S = 0.2
MOST_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run that is wanted: samples of a pass, precision, and what a pass forward and backward is expected to take."""

    sub_batch: int
    precision: str
    expected_s: float

    def repeats(self, seconds: float) -> int:
        """Return how many steps can be timed in so long [s], besides those that are not."""
        return min(MOST_REPEATS, int(seconds / self.expected_s) - WARM_UP_STEPS)


@dataclass(frozen=True, slots=True)
class PlanRun:
    """What came of a wanted run.

    Attributes
    ----------
    step : TimedStep or None
        Its gradient computation; None: it could not be made.
    slower : float
        How many times slower than in quiet the machine was: above DISTURBED there was no quiet try.
    failed : str
        Why it could not be made, as PyTorch said; empty where time or memory was too short.
    """

    step: TimedStep | None = None
    slower: float = 1.0
    failed: str = ""

    @property
    def is_disturbed(self) -> bool:
        """Whether it was made, but never in quiet."""
        return self.step is not None and self.slower > DISTURBED


def timed_runs(
    network: Network,
    cells: Sequence[Wanted],
    seconds: float,
    *,
    device: str = "cpu",
    quiet_s: float = 0.0,
    progress: Callable[[float, str], None] = lambda _done, _state: None,
) -> tuple[PlanRun, ...]:
    """Return what came of the run of every cell: on a machine that is not quiet, the least disturbed of its tries.

    Every cell gets the same share of the time that is left, the first ones first; no try begins that is expected to
    take longer.

    Parameters
    ----------
    network : Network
    cells : sequence of Wanted
    seconds : float
        Wall time to spend [s].
    device : str
        As PyTorch names it; a CPU is one pinned thread.
    quiet_s : float
        Reference time of the quiet machine from an earlier run [s]; 0: from now on alone.
    progress : callable
        Takes the seconds used, and the state in words.
    """
    with _bench(device) as bench:
        began_s = bench.clock()
        now_s = min(bench.reference() for _ in range(REFERENCES))
        reference_s = min(now_s, quiet_s) if quiet_s > 0 else now_s
        module = build_module(network).to(device)
        found: list[PlanRun] = []
        for at, cell in enumerate(cells):
            state = f"sub-batch {cell.sub_batch} in {cell.precision}, {at + 1} of {len(cells)}"
            progress(bench.clock() - began_s, state)
            share_s = (began_s + seconds - bench.clock()) / (len(cells) - at)
            repeats = cell.repeats(share_s)
            until_s = bench.clock() + share_s - (repeats + WARM_UP_STEPS) * cell.expected_s
            run = partial(gradient_time, module, network, cell.sub_batch, repeats, precision=cell.precision)
            found.append(_run(bench, run, (network, cell), (reference_s, until_s)) if repeats > 0 else PlanRun())
        return tuple(found)


def _run(bench: Bench, run: Callable[[], Timing], what: tuple[Network, Wanted], limits: tuple[float, float]) -> PlanRun:
    """Return what came of a run; ``limits``: the reference time in quiet, and until when a try may begin [s]."""
    library = import_torch()
    (network, cell), (reference_s, until_s) = what, limits
    try:
        with computing_in(cell.precision):
            made = least_disturbed(run, bench, reference_s, tries=MOST_TRIES, pause_s=PAUSE_S, until_s=until_s)
    except (library.OutOfMemoryError, MemoryError):
        return PlanRun()
    except RuntimeError as error:  # PyTorch's only one for whatever a library or the device refuses
        return PlanRun(failed=str(error).partition("\n")[0])
    if made is None:
        return PlanRun()
    timing, slower = made
    step = TimedStep(network, cell.sub_batch, timing.time_s, timing.spread_s, cell.precision)
    return PlanRun(step, slower)


@contextlib.contextmanager
def _bench(device: str) -> Iterator[Bench]:
    """Give a bench of the device, on one pinned thread where that is the CPU."""
    if device != "cpu":
        yield cuda_bench(device)
        return
    with one_thread():
        yield CpuBench()
