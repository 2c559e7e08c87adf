"""Schedules of steps: compiled from what a framework does, and read in closed form.

A task starts when what it waits for is done, and what its resource did before. So it ends with the longest path to it,
and a thread's period is the latest end: sums and maxima, of many configurations at once. Intervals and fits
differentiate along the path that decides (:attr:`TimedSchedule.slopes`).

Of a task that follows the parts of another one by one, what outlasts the other is given
(:mod:`planner.steps.synchronous`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, reduce

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.framework import Strategy
from planner.domain.schedule import ONCE, Count, Schedule, Task

__all__ = ["GPU_THREAD", "STAGE_RUNS", "UPDATE_THREAD", "TimedSchedule", "step_schedule"]

Times = Mapping[str, FloatArray]
EACH_PASS = Count(0, 1)
STAGE_RUNS = {"forward": EACH_PASS, "backward": ONCE, "accumulating": Count(-1, 1), "update": ONCE}
"""How often a synchronous step runs each stage; all passes but the first add to the gradients."""
PASSES = ("backward", "accumulating")

GPU_THREAD = Schedule(
    "gpu",
    (
        Task("load_node_input", "storage", term="load_input", is_paced=True),
        Task("load_input", "thread"),
        Task("host_to_device", "thread"),
        Task("forward", "thread"),
        Task("backward", "thread"),
        Task("update_gradient", "thread"),
    ),
)
"""What a GPU thread of asynchronous training repeats; those of a node read from the same storage."""
UPDATE_THREAD = Schedule(
    "update",
    (
        Task("sum_gradient", "thread"),
        Task("host_all_reduce", "thread", term="all_reduce"),
        Task("update_weights", "thread"),
    ),
)
"""What a node's update thread repeats."""


@lru_cache
def step_schedule(strategy: Strategy) -> Schedule:
    """Return what a synchronous step does; of several passes only the last overlaps with messages."""
    tasks = (
        Task("load_input", "input"),
        # Where input is prefetched, a step computes on what was loaded during the step before.
        Task("host_to_device", "gpu", EACH_PASS, after=() if strategy.prefetch else ("load_input",)),
        Task("forward", "gpu", STAGE_RUNS["forward"]),
        Task("backward", "gpu", STAGE_RUNS["backward"]),
        Task("accumulating", "gpu", STAGE_RUNS["accumulating"], term="backward"),
        Task(
            "all_reduce",
            "network",
            after=() if strategy.overlap else PASSES,
            each_after=PASSES if strategy.overlap else (),
        ),
        Task("update", "gpu", STAGE_RUNS["update"], after=("all_reduce",)),
        Task("replica_wait", "gpu", share_of=tuple(STAGE_RUNS)),
    )
    return Schedule("step", tasks)


class TimedSchedule:
    """A schedule with its times, of n configurations.

    Parameters
    ----------
    schedule : Schedule
    given : task -> ndarray of float, shape (n,)
        Seconds of all its runs; of tasks with ``share_of`` the share.
    outlasting : task -> ndarray of float, shape (n,)
        Of tasks with ``each_after``: by how much they outlast what they follow [s].

    Attributes
    ----------
    seconds : task -> ndarray of float, shape (n,)
    period_s : ndarray of float, shape (n,)
        How long the thread takes to repeat.
    """

    def __init__(self, schedule: Schedule, times: Times, outlasting: Times) -> None:
        self.schedule, self.given, self.outlasting = schedule, times, outlasting
        self.seconds, self._ends = dict(times), dict[str, FloatArray]()
        for task in schedule.tasks:
            if task.share_of:
                base_s = reduce(np.add, [self.seconds[name] for name in task.share_of])
                self.seconds[task.name] = times[task.name] * base_s
            adds, before = self._adds(task), schedule.awaited[task.name]
            self._ends[task.name] = self._latest(before) + adds if before else adds
        self.period_s = self._latest(schedule.last)

    def changed(self, times: Times, outlasting: Times | None = None) -> TimedSchedule:
        """Return the schedule with other times of some tasks."""
        return TimedSchedule(self.schedule, {**self.given, **times}, {**self.outlasting, **(outlasting or {})})

    @staticmethod
    def stacked(parts: Sequence[TimedSchedule]) -> TimedSchedule:
        """Return the configurations of several, one after another; all have the same schedule."""
        given, outlasting = (
            {task: np.concatenate([getattr(one, name)[task] for one in parts]) for task in getattr(parts[0], name)}
            for name in ("given", "outlasting")
        )
        return TimedSchedule(parts[0].schedule, given, outlasting)

    @cached_property
    def on_path(self) -> Mapping[str, BoolArray]:
        """Whether a task is on the path that decides the period, shape (n,)."""
        return self._path_to(self.schedule.last)

    @cached_property
    def slopes(self) -> Times:
        """Derivatives of the period by the seconds of each task, shape (n,), those that share in them included."""
        slopes = {name: is_on.astype(np.float64) for name, is_on in self.on_path.items()}
        for task in self.schedule.tasks:
            if task.each_after:
                slopes[task.name] = slopes[task.name] * (self.outlasting[task.name] > 0)
            for name in task.share_of:
                slopes[name] = slopes[name] + self.given[task.name] * slopes[task.name]
        return slopes

    @cached_property
    def exposed_s(self) -> Times:
        """What each task adds to the period [s], shape (n,)."""
        paced_tasks = [task.name for task in self.schedule.tasks if task.is_paced]
        last = tuple(name for name in self.schedule.last if name not in paced_tasks)
        path, alone_s = self._path_to(last), self._latest(last)
        seconds = {task.name: np.where(path[task.name], self._adds(task), 0.0) for task in self.schedule.tasks}
        return seconds | {name: np.maximum(self._ends[name] - alone_s, 0.0) for name in paced_tasks}

    def _adds(self, task: Task) -> FloatArray:
        return self.outlasting[task.name] if task.each_after else self.seconds[task.name]

    def _latest(self, names: tuple[str, ...]) -> FloatArray:
        return reduce(np.maximum, [self._ends[name] for name in names])

    def _path_to(self, last: tuple[str, ...]) -> dict[str, BoolArray]:
        """Return whether each task is on the path to the latest of some; of equal ones the one listed last decides."""
        path = {task.name: np.zeros(self.period_s.shape, dtype=np.bool_) for task in self.schedule.tasks}
        self._mark(last, np.ones(self.period_s.shape, dtype=np.bool_), path)
        for task in reversed(self.schedule.tasks):
            self._mark(self.schedule.awaited[task.name], path[task.name], path)
        return path

    def _mark(self, names: tuple[str, ...], where: BoolArray, path: dict[str, BoolArray]) -> None:
        for name in reversed(names):
            latest = where & (self._ends[name] >= self._latest(names))
            path[name] = path[name] | latest
            where = where & ~latest
