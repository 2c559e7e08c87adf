"""The measuring loop: points within a budget, and a reference kernel that finds bad stretches.

Calls of networks come first, those that matter most before the others; then the designed points in random order.

A busy host can slow a CPU many times over for tens of seconds without any spread in the timings of one point. So a
reference kernel is timed between short stretches of points; where it is slower than in the run's quiet part, the
points of that stretch are measured again, last. What time is left goes to a second pass over all points.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.domain.samples import Samples
from planner.probes.bench import DISTURBED as MOST_SLOWER
from planner.probes.bench import Bench
from planner.probes.points import SEED, Point
from planner.probes.resume import Earlier, Measured, append_measured, read_measured, start_file
from planner.probes.timing import Timing

__all__ = ["DISTURBED_NOTE", "Progress", "Run", "continued", "measure_points"]

STRETCH_S = 0.7
QUIET_SHARE = 0.25
"""The quiet part: the reference timings up to this quantile."""
LARGEST_TIMES_BEFORE_STOP = 0.97
MOST_PASSES = 3
DISTURBED_NOTE = "measured while the machine was disturbed"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: points with a timing of all points, seconds used of the budget, points in bad stretches."""

    done: int
    total: int
    elapsed_s: float
    budget_s: float
    disturbed: int


def measure_points(
    bench: Bench,
    points: Sequence[Point],
    budget_s: float,
    circumstances: Mapping[str, str],
    *,
    device: str = "",
    resume: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Samples:
    """Return the points' times as samples, as many as the budget allows; at least one stretch is measured.

    Parameters
    ----------
    bench : Bench
    points : sequence of Point
    budget_s : float
        Wall time to spend [s].
    circumstances : mapping of str to str
        Stored in the samples, with the reference time of the quiet part of the run as ``reference_s``; all but those
        that say how a run went must agree for an earlier run to be continued.
    device : str
    resume : Path, optional
        File of partial samples, to be deleted by the caller once it is done with them.
    progress : callable, optional
    """
    run = Run(bench, points, budget_s, continued(resume, circumstances), resume=resume, progress=progress)
    return run.samples(device, circumstances)


def continued(resume: Path | None, circumstances: Mapping[str, str]) -> Earlier:
    """Return what an earlier run left; its file is open for more."""
    if not resume:
        return Earlier()
    lasting = {key: value for key, value in circumstances.items() if key not in PASSING}
    earlier = read_measured(resume, lasting)
    start_file(resume, lasting, earlier.measured)
    return earlier


PASSING = frozenset({"load_average", "steal_s", "steal_during_s"})
"""Circumstances that say how a run went, not what was measured."""


class Run:
    """One run of the loop: what is measured, and when to stop."""

    def __init__(
        self,
        bench: Bench,
        points: Sequence[Point],
        budget_s: float,
        earlier: Earlier,
        *,
        resume: Path | None,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.bench, self.budget_s, self.resume, self.progress = bench, budget_s, resume, progress
        self.points = {point.name: point for point in points}
        self.measured = list(earlier.measured)
        self.skipped = 0
        """Points that the device cannot time."""
        self.start_s = bench.clock() - earlier.used_s
        self.random = np.random.default_rng(SEED)
        self.first_pass()
        self.further_passes()

    @property
    def elapsed_s(self) -> float:
        """Wall time used, that of the runs which this one continues included [s]."""
        return self.bench.clock() - self.start_s

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return self.elapsed_s >= LARGEST_TIMES_BEFORE_STOP * self.budget_s

    def quiet_s(self) -> float:
        """Return the reference time in the quiet part of the run."""
        return float(np.quantile([made.reference_s for made in self.measured], QUIET_SHARE))

    def quiet(self) -> dict[str, list[Measured]]:
        """Return the timings of every point outside of disturbed stretches."""
        limit = MOST_SLOWER * self.quiet_s() if self.measured else 0.0
        found: dict[str, list[Measured]] = {name: [] for name in self.points}
        for made in self.measured:
            if made.reference_s <= limit and made.name in found:
                found[made.name].append(made)
        return found

    def first_pass(self) -> None:
        """Measure every point that has no timing yet: calls of networks in their order, then the others in any."""
        known = {made.name for made in self.measured}
        left = [name for name in self.points if name not in known]
        own = [name for name in left if self.points[name].call]
        for names in (own, self.shuffled([name for name in left if name not in own])):
            if names and not (self.measured and self.is_over):
                self.measure(names)

    def shuffled(self, names: Sequence[str]) -> list[str]:
        """Return names in random order, the same in every run."""
        return [names[position] for position in self.random.permutation(len(names))]

    def further_passes(self) -> None:
        """Measure what was disturbed again, then the points with the fewest quiet timings, until time is up."""
        while not self.is_over:
            counts = {name: len(timings) for name, timings in self.quiet().items()}
            fewest = min(counts.values(), default=MOST_PASSES)
            if fewest >= MOST_PASSES:
                return
            self.measure(self.shuffled([name for name, count in counts.items() if count == fewest]))

    def measure(self, names: Sequence[str]) -> None:
        """Measure points in their order, in stretches between two reference timings."""
        before, stretch, began = self.bench.reference(), [], self.bench.clock()
        for position, name in enumerate(names):
            timing = self.bench.time(self.points[name])
            if timing:
                stretch.append((name, timing))
            else:
                del self.points[name]
                self.skipped += 1
            over = self.is_over
            if over or position == len(names) - 1 or self.bench.clock() - began >= STRETCH_S:
                after = self.bench.reference()
                self.note(stretch, max(before, after))
                before, stretch, began = after, [], self.bench.clock()
            if over:
                return

    def note(self, stretch: Sequence[tuple[str, Timing]], reference_s: float) -> None:
        """Keep a stretch, in the file too, and tell how far the run is."""
        used_s = self.elapsed_s
        made = [Measured(name, t.time_s, t.spread_s, t.repeats, reference_s, used_s) for name, t in stretch]
        self.measured += made
        if self.resume:
            append_measured(self.resume, made)
        if self.progress:
            seen = {timing.name for timing in self.measured}
            quiet = sum(1 for timings in self.quiet().values() if timings)
            self.progress(Progress(len(seen), len(self.points), self.elapsed_s, self.budget_s, len(seen) - quiet))

    def samples(self, device: str, circumstances: Mapping[str, str]) -> Samples:
        """Return a row for every point: the median of its quiet timings, else the least disturbed one."""
        rows: list[Mapping[str, Any]] = []
        everything: dict[str, list[Measured]] = {}
        for made in self.measured:
            everything.setdefault(made.name, []).append(made)
        for name, quiet in self.quiet().items():
            if name not in everything:
                continue
            timings = quiet or [min(everything[name], key=lambda made: made.reference_s)]
            point = self.points[name]
            rows.append(
                {
                    "kind": point.kind,
                    "direction": point.direction,
                    "precision": point.precision,
                    "device": device,
                    "library": "pytorch",
                    **point.work,
                    **({"call": point.call.name, "sub_batch": point.sub_batch} if point.call else {}),
                    "time_s": statistics.median(made.time_s for made in timings),
                    "spread_s": statistics.median(made.spread_s for made in timings),
                    "repeats": sum(made.repeats for made in timings),
                    "notes": "" if quiet else DISTURBED_NOTE,
                }
            )
        return Samples.from_rows(rows, {**circumstances, "reference_s": f"{self.quiet_s():.6g}"})
