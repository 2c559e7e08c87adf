"""The measuring loop: points within a budget, and a reference kernel that finds bad stretches.

A chooser says what is measured next: after a short balanced start the points, a stretch at a time, that lower the error
which is expected of wanted predictions most for the time they take. Without one, calls of networks come first, those
that matter most before the others; then, as where no point helps any more, the rest in random order.

A busy host can slow a CPU many times over for tens of seconds without any spread in the timings of one point. So a
reference kernel is timed between short stretches of points; where it is slower than in the run's quiet part, the
points of that stretch are measured again, last, and what stays disturbed is corrected by the reference. What time is
left goes to further passes over all points, then to points that were kept for later. Nothing is fitted without the
points of the start: these may take what is kept for fitting, too.

The partial measurements of a run that was interrupted: one JSON line each, behind a line of circumstances.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import math
import os
import secrets
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from planner.domain.network import Point
from planner.domain.samples import DISTURBED_NOTE, Samples
from planner.errors import OutputError, ParameterError
from planner.probes.bench import DISTURBED_RATIO, Bench, as_if_quiet, quietest
from planner.probes.gpu import DeviceLostError, check_computes
from planner.probes.points import SEED
from planner.probes.timing import Timing

FAILED = "failed"
PASSING_CIRCUMSTANCES = frozenset({"load_average", "steal_s", "steal_during_s"})
"""Circumstances that say how a run went, not what was measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One timing of a point.

    ``reference_s``: the slower of the reference timings before and after it; ``used_s``: what measuring points had
    taken by then, in the runs before that this one continues too. Time that measures none, for loading, choosing or
    training steps, is each run's own.
    """

    name: str
    time_s: float
    spread_s: float
    repeats: int
    reference_s: float
    used_s: float


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier run left, and a sentence about it for the user; empty: there was nothing.

    ``failed``: points and steps in which a device was lost.
    """

    measured: tuple[Measured, ...] = ()
    note: str = ""
    failed: tuple[str, ...] = ()

    @property
    def used_s(self) -> float:
        """Seconds of the budget that measuring points used."""
        return max((one.used_s for one in self.measured), default=0.0)

    def used_for(self, names: Collection[str]) -> float:
        """Return the seconds of it that points among names took: of what was timed in one stretch, equal parts."""
        total_s, before_s = 0.0, 0.0
        for until_s, stretch in itertools.groupby(self.measured, key=lambda one: one.used_s):
            own = [one.name in names for one in stretch]
            total_s += (until_s - before_s) * sum(own) / len(own)
            before_s = until_s
        return total_s


def seconds_used(path: Path, circumstances: Mapping[str, str], names: Collection[str]) -> float:
    """Return what points among names took in an earlier run that will be continued from a file [s]; 0: none will.

    Points of other networks, which are not among ``names``, are not charged.
    """
    with contextlib.suppress(OSError):
        lines = _lines(path)
        if lines and lines[0] == _lasting(circumstances):
            return Earlier(_measurements(lines)).used_for(names)
    return 0.0


def holds_measured(path: Path) -> bool:
    """Tell whether anything was measured by the run that left a file, if there is one."""
    with contextlib.suppress(OSError):
        return bool(_measurements(_lines(path)))
    return False


def remove_if_empty(path: Path) -> None:
    """Remove the file of a run that has measured nothing yet, and lost no device; any other stays."""
    with contextlib.suppress(OSError):
        lines = _lines(path)
        if len(lines) == 1 and isinstance(lines[0], dict):
            path.unlink()


def read_measured(path: Path, circumstances: Mapping[str, str], names: Collection[str]) -> Earlier:
    """Return what an earlier run left under the same circumstances; a last line that was cut off is left out.

    All of it is kept; the sentence tells what of it is among ``names``, the points of the run that goes on. A file of
    other circumstances, or that is no such file, is renamed. OutputError: the file cannot be read or renamed.
    """
    try:
        lines = _lines(path)
    except FileNotFoundError:
        return Earlier()
    except OSError as error:
        raise OutputError(f"the file of partial samples must be readable, got {path}: {error.strerror}") from error
    if not lines:
        return Earlier()
    now = _lasting(circumstances)
    if lines[0] != now:
        return Earlier(note=_set_aside(path, lines[0], now))
    failures = tuple(str(line[FAILED]) for line in lines[1:] if isinstance(line, dict) and set(line) == {FAILED})
    earlier = Earlier(_measurements(lines), failed=failures)
    points = {one.name for one in earlier.measured}
    own = points & set(names)
    others = len(points) - len(own)
    more = f"; {others} points that other networks asked for are kept, not counted" if others else ""
    note = f"continuing from {path}: {len(own)} points, {earlier.used_for(own):.0f} s used{more}" if points else ""
    return replace(earlier, note=note)


def _lasting(circumstances: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in circumstances.items() if key not in PASSING_CIRCUMSTANCES}


def _set_aside(path: Path, before: object, now: Mapping[str, str]) -> str:
    """Rename a file of other circumstances to the first name that is free, and say so."""
    why = "which does not hold measurements of this program"
    if isinstance(before, dict):
        key = next(key for key in sorted({*before, *now}) if before.get(key) != now.get(key))
        why = f"which was measured under other circumstances ({key} {before.get(key)!r}, now {now.get(key)!r})"
    names = (path.with_name(f"{path.name}.old{'' if at == 1 else f'-{at}'}") for at in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    try:
        path.rename(aside)
    except OSError as error:
        raise OutputError(f"{path}, {why}, must be renamed to {aside.name}, got {error.strerror}") from error
    return f"starting anew: {path}, {why}, is now {aside.name}"


def start_file(
    path: Path, circumstances: Mapping[str, str], timings: Sequence[Measured], failures: Sequence[str] = ()
) -> None:
    """Write the file anew, with what is kept of an earlier run, and what failed in it; whole or not at all.

    OutputError: it cannot be written.
    """
    text = _text((_lasting(circumstances), *timings, *failures))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # one process has the output: of a killed one
            left.unlink()
        with temporary.open("x", encoding="utf-8") as file:  # a new file: no link that somebody laid is followed
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"the file of partial samples must be writable, got {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def append(path: Path, values: Iterable[Measured | str]) -> None:
    """Add a line for each timing, or point or step in which a device was lost, all at once.

    A link in place of the file is not followed. OutputError: the file cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(_text(values))
    except OSError as error:
        raise OutputError(f"the file of partial samples must be writable, got {path}: {error.strerror}") from error


def _text(values: Iterable[object]) -> str:
    """Return a line of JSON for each timing, mapping, or what failed."""
    texts = []
    for one in values:
        table = {FAILED: one} if isinstance(one, str) else one
        texts.append(json.dumps(asdict(table) if isinstance(table, Measured) else table) + "\n")
    return "".join(texts)


def _lines(path: Path) -> list[object]:
    """Return the value of every line of a file; None of one that was cut off."""
    values: list[object] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values.append(json.loads(line))
        except json.JSONDecodeError:
            values.append(None)
    return values


def _measurements(lines: Sequence[object]) -> tuple[Measured, ...]:
    """Return the timings among the lines behind the first one."""
    names = set(Measured.__slots__)
    tables = (line for line in lines[1:] if isinstance(line, dict) and set(line) == names)
    return tuple(
        Measured(**table) for table in tables if all(isinstance(table[name], int | float) for name in names - {"name"})
    )


RETRY, OTHER_DEVICE = "try the same command once more", "; if the device fails again, name another GPU or --device cpu"


@contextlib.contextmanager
def told_when_lost(device: str, resume: Path | None) -> Iterator[None]:
    """Say in a ParameterError that a device was lost; what it failed in is left out where a file is continued."""
    try:
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, DeviceLostError):
                check_computes(device, error)
            raise
    except DeviceLostError as lost:
        where, remedy = f" in {lost.what}" if lost.what else "", RETRY + (OTHER_DEVICE if resume else "")
        without = " without it" if lost.what else ""
        if resume and holds_measured(resume):
            remedy = f"what was measured is kept in {resume}; the same command goes on from there{without}"
        elif resume and lost.what:
            remedy = f"the same command begins again{without}"
        if resume and lost.what:
            append(resume, [lost.what])
        rule, value = "a device that goes on computing", f"{device}, which failed{where}: {lost}"
        raise ParameterError("--device", rule, value, remedy) from lost


STRETCH_S = 0.7
CHOICE_S, CHOICE_SHARE = 1.5, 0.05
"""What is measured between two choices [s], and longer where a choice takes more than such a share of it."""
QUIET_SHARE = 0.25
"""The quiet part: the reference timings up to this quantile."""
STOP_SHARE = 0.97
MOST_PASSES = 3
EXPECTED_ERROR = "expected_error"
"""Circumstance: the mean relative error that wanted predictions are expected to have by what was measured."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: points with a timing of all points, seconds used of the budget, points in bad stretches.

    ``expected_error``: of wanted predictions, relative; None where nothing tells it yet. ``doing``: what is measured.
    """

    done: int
    total: int
    elapsed_s: float
    budget_s: float
    disturbed: int
    expected_error: float | None = None
    doing: str = "kernels"


def continued(resume: Path | None, circumstances: Mapping[str, str], names: Collection[str]) -> Earlier:
    """Return what an earlier run left of all points that this run may measure, by name; its file is open for more."""
    if not resume:
        return Earlier()
    earlier = read_measured(resume, circumstances, names)
    start_file(resume, circumstances, earlier.measured, earlier.failed)
    return earlier


class Run:
    """One run of the loop: what is measured, and when to stop.

    ``budget_s``: wall time for the points that a chooser starts with, and for all where ``later_s`` does not say, by
    the number of points with a timing, how much it is once those are measured [s]. ``charged_s``: what points of this
    run took of the budget in the run that it continues [s]. ``missing``: points that a chooser starts with, which no
    time was left for: without them not all can be fitted. ``expected_error``: of wanted predictions, relative, by what
    was measured.
    """

    def __init__(
        self,
        bench: Bench,
        points: Sequence[Point],
        budget_s: float,
        earlier: Earlier,
        *,
        goal: Goal | None = None,
        resume: Path | None,
        progress: Callable[[Progress], None] | None,
        later_s: Callable[[int], float] | None = None,
    ) -> None:
        self.bench, self.resume, self.progress = bench, resume, progress
        self.most_s, self.later_s = budget_s, later_s
        self.missing: tuple[Point, ...] = ()
        self.points = {point.name: point for point in points if point.name not in earlier.failed}
        self.measured = list(earlier.measured)
        self.timed = {timing.name for timing in self.measured}
        self.expected_error: float | None = None
        self.fastest_s = math.inf
        self.measuring_s = earlier.used_s
        self.random = np.random.default_rng(SEED)
        later = goal.later if goal else ()
        self.later = {point.name: point for point in later if point.name not in earlier.failed}
        self.target_error = goal.target_error if goal else None
        self.charged_s = earlier.used_for({point.name for point in (*points, *later)})
        self.start_s = bench.clock() - self.charged_s
        self.chooser = goal.chooser((*points, *later)) if goal else None
        self.is_started = self.chooser is None
        # In passes; points kept for later come last, but before further passes where an error is aimed at.
        self.points |= {name: point for name, point in self.later.items() if name in self.timed}
        self.first_pass()
        if self.target_error is None:
            self.further_passes()
        if not self.is_over:
            self.points |= self.later
            self.first_pass()
            self.further_passes()
        self.learn()

    def best(self) -> dict[str, list[Measured]]:
        """Return the quiet timings of every point that was measured, else the least disturbed one alone, corrected."""
        least: dict[str, Measured] = {}
        for timing in self.measured:
            if timing.name not in least or timing.reference_s < least[timing.name].reference_s:
                least[timing.name] = timing
        quiet = self.quiet()
        for name in least.keys() - quiet.keys():
            timing = least[name]
            least[name] = replace(timing, time_s=as_if_quiet(timing.time_s, timing.reference_s / self.quiet_s()))
        return {name: quiet.get(name) or [least[name]] for name in self.points if name in least}

    @property
    def budget_s(self) -> float:
        """Wall time for points, by what is known of it now [s]."""
        return self.later_s(len(self.timed)) if self.is_started and self.later_s else self.most_s

    @property
    def elapsed_s(self) -> float:
        """Wall time used, with what the runs which this one continues took to measure points [s]."""
        return self.bench.clock() - self.start_s

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up, or the error that is aimed at is reached."""
        return self.is_reached or self.elapsed_s >= STOP_SHARE * self.budget_s

    @property
    def is_reached(self) -> bool:
        """Whether the error that is aimed at is reached; False where none is."""
        aim, error = self.target_error, self.expected_error
        return aim is not None and error is not None and error <= aim

    @property
    def limit_s(self) -> float:
        """The reference time from which on a stretch is disturbed [s]."""
        return DISTURBED_RATIO * self.quiet_s() if self.measured else 0.0

    def quiet_s(self) -> float:
        """Return the reference time of the quiet machine, by the run and by what was measured beside it [s]."""
        times = [timing.reference_s for timing in self.measured]
        return quietest(float(np.quantile(times, QUIET_SHARE)), min(*times, self.fastest_s))

    def quiet(self) -> dict[str, list[Measured]]:
        """Return the timings outside of disturbed stretches of every point that has any."""
        limit_s, by_name = self.limit_s, dict[str, list[Measured]]()
        for timing in self.measured:
            if timing.reference_s <= limit_s and timing.name in self.points:
                by_name.setdefault(timing.name, []).append(timing)
        return by_name

    def disturbed(self) -> list[str]:
        """Return the points that were timed, but in disturbed stretches alone."""
        limit_s = self.limit_s
        quiet = {timing.name for timing in self.measured if timing.reference_s <= limit_s}
        slow = {timing.name for timing in self.measured if timing.reference_s > limit_s} - quiet
        return [name for name in self.points if name in slow] if slow else []

    def first_pass(self) -> None:
        """Measure every point that has no timing yet."""
        names_left = [name for name in self.points if name not in self.timed]
        if self.chooser:
            names_left = self.chosen_pass(self.chooser, names_left)
        own = [name for name in names_left if self.points[name].call]
        for names in (own, self.shuffled([name for name in names_left if not self.points[name].call])):
            if names and not (self.measured and self.is_over):
                self.measure(names)

    def chosen_pass(self, chooser: Chooser, names: Sequence[str]) -> list[str]:
        """Measure points in the order of the chooser while they help; return those that are left."""
        rest = dict.fromkeys(names)
        stretch, stretch_s = [name for name in chooser.start() if name in rest], CHOICE_S
        self.is_started = self.is_started or not stretch
        while rest:
            if stretch:
                self.measure(stretch)
            began_s = self.bench.clock()
            for name in stretch:
                rest.pop(name, None)
            if not self.is_started:
                self.missing = tuple(self.points[name] for name in stretch if name in self.points.keys() - self.timed)
                self.is_started = not self.missing
            self.learn()
            if self.measured and self.is_over:
                break
            stretch = list(dict.fromkeys(chooser.choose(rest, stretch_s, self.budget_s - self.elapsed_s)))
            if not stretch:
                break
            stretch_s = max(CHOICE_S, (self.bench.clock() - began_s) / CHOICE_SHARE)
        return list(rest)

    def learn(self) -> None:
        """Tell the chooser what was measured, in quiet where it was."""
        if self.chooser is None:
            return
        times_s = {name: statistics.median([timing.time_s for timing in of]) for name, of in self.best().items()}
        self.expected_error = self.chooser.learn(times_s)

    def shuffled(self, names: Sequence[str]) -> list[str]:
        """Return names in random order, the same in every run."""
        return [names[position] for position in self.random.permutation(len(names))]

    def further_passes(self) -> None:
        """Measure what was disturbed again, then the points with the fewest quiet timings, until time is up."""
        while not self.is_over:
            quiet = self.quiet()
            counts = {name: len(quiet.get(name, ())) for name in self.points}
            fewest = min(counts.values(), default=MOST_PASSES)
            if fewest >= MOST_PASSES:
                return
            self.measure(self.shuffled([name for name, count in counts.items() if count == fewest]))
            self.learn()

    def measure_again(self, reference_s: float, until_s: float) -> None:
        """Take in a reference time that was seen after the run; measure anew what was disturbed beside it.

        Calls of networks that the run is for come first; none begins when the bench's clock shows ``until_s`` [s].
        """
        self.fastest_s = min(self.fastest_s, reference_s)
        self.target_error = None  # reached by disturbed timings, where it was
        self.most_s, self.later_s = self.elapsed_s + until_s - self.bench.clock(), None
        is_new = False
        while names := self.disturbed():
            if self.is_over:
                break
            own = [name for name in names if self.points[name].call and name not in self.later]
            self.measure([*own, *self.shuffled([name for name in names if name not in own])])
            is_new = True
        if is_new:
            self.learn()

    def measure(self, names: Sequence[str]) -> None:
        """Measure points in their order, in stretches between two reference timings."""
        start_s = self.bench.clock()
        stretch: list[tuple[str, Timing]] = []
        before, began = self.bench.reference(), self.bench.clock()
        for position, name in enumerate(names):
            timing = self.bench.time(self.points[name])
            if timing:
                stretch.append((name, timing))
            else:  # the device cannot time it
                del self.points[name]
            over = self.is_over
            if over or position == len(names) - 1 or self.bench.clock() - began >= STRETCH_S:
                after, end_s = self.bench.reference(), self.bench.clock()
                self.measuring_s += end_s - start_s
                beside = max(before, after), self.measuring_s
                timings = [Measured(name, t.time_s, t.spread_s, t.repeats, *beside) for name, t in stretch]
                self.measured += timings
                self.timed |= {one.name for one in timings}
                if self.resume:
                    append(self.resume, timings)
                self.tell()
                before, stretch, start_s, began = after, [], end_s, self.bench.clock()
            if over:
                return

    def tell(self, doing: str = "kernels") -> None:
        """Tell how far the run is, and what is measured now."""
        if self.progress:
            count, total, disturbed = len(self.points.keys() & self.timed), len(self.points), len(self.disturbed())
            self.progress(Progress(count, total, self.elapsed_s, self.budget_s, disturbed, self.expected_error, doing))

    def samples(self, device: str, circumstances: Mapping[str, str]) -> Samples:
        """Return a row for every point: the median of its quiet timings, else the least disturbed one, corrected."""
        limit_s = self.limit_s
        rows: list[Mapping[str, Any]] = [
            {
                "kind": point.kind,
                "direction": point.direction,
                "precision": point.precision,
                "device": device,
                "library": "pytorch",
                **point.work,
                **({"call": point.call.name, "sub_batch": point.sub_batch} if point.call else {}),
                "time_s": statistics.median(timing.time_s for timing in timings),
                "spread_s": statistics.median(timing.spread_s for timing in timings),
                "repeats": sum(timing.repeats for timing in timings),
                "notes": "" if timings[0].reference_s <= limit_s else DISTURBED_NOTE,
            }
            for point, timings in ((self.points[name], timings) for name, timings in self.best().items())
        ]
        facts = {**circumstances, "reference_s": f"{self.quiet_s():.6g}"}
        if self.expected_error is not None:
            facts[EXPECTED_ERROR] = f"{self.expected_error:.4f}"
        return Samples.from_rows(rows, facts)


class Chooser(Protocol):
    """What decides which points are measured next; the same timings give the same choice."""

    def start(self) -> Sequence[str]:
        """Return the names of the points that are measured before any is chosen."""

    def learn(self, timed: Mapping[str, float]) -> float:
        """Take in the times of points by name [s]; return the expected relative error of wanted predictions."""

    def choose(self, left: Collection[str], seconds: float, most_s: float) -> Sequence[str]:
        """Return names among those left that take about so long to measure, each at most ``most_s``; none help: ()."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a run is for.

    Attributes
    ----------
    chooser : points -> Chooser
    later : measured once all others had their passes, or as soon as they are through where an error is aimed at
    target_error : expected error at which the run stops; None: it goes on until its time is up
    kept_s : number of points with a timing -> what is kept of the budget to fit them [s]. Asked once the points that
        the chooser starts with are measured: where time does not suffice for these, nothing is kept
    """

    chooser: Callable[[Sequence[Point]], Chooser]
    later: tuple[Point, ...] = ()
    target_error: float | None = None
    kept_s: Callable[[int], float] = lambda _points: 0.0
