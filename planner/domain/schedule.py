"""Schedules: what a thread of training repeats, as tasks on resources that work at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from planner.domain.arrays import IntArray
from planner.errors import ParameterError

__all__ = ["ONCE", "Count", "Schedule", "Task"]


@dataclass(frozen=True, slots=True)
class Count:
    """How often a task runs in a step: ``fixed`` + ``per_pass`` times the passes before an update."""

    fixed: int = 0
    per_pass: int = 0

    def of(self, passes: IntArray) -> IntArray:
        """Return how often, shape of ``passes``."""
        return self.fixed + self.per_pass * passes


ONCE = Count(1)


@dataclass(frozen=True, slots=True)
class Task:
    """One task.

    Attributes
    ----------
    name : str
        Unlike that of any other task of its schedule; what its seconds are given by.
    resource : str
        Runs one task at a time, in the order of the schedule.
    count : Count
    term : str
        Name of the term that shows its time; empty: its own.
    after : tuple of str
        Tasks that are done before it starts, besides the one before it on its resource.
    each_after : tuple of str
        Tasks of which the last that runs is followed part by part, each part as it is done.
    share_of : tuple of str
        Tasks of whose time it takes a share; empty: its time is its own.
    is_paced : bool
        It keeps a resource busy for several threads, which start apart. The thread whose period it outlasts waits in
        the task that shares its term.
    """

    name: str
    resource: str
    count: Count = ONCE
    term: str = ""
    after: tuple[str, ...] = ()
    each_after: tuple[str, ...] = ()
    share_of: tuple[str, ...] = ()
    is_paced: bool = False


@dataclass(frozen=True)
class Schedule:
    """What a thread repeats: it starts anew when the last of its tasks is done.

    Attributes
    ----------
    thread : str
    tasks : tuple of Task
        Each behind those that it waits for.
    """

    thread: str
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        before: set[str] = set()
        for task in self.tasks:
            if missing := [name for name in (*_predecessors(task), *task.share_of) if name not in before]:
                raise ParameterError(
                    f"what task {task.name} of {self.thread} waits for", "a task before it", missing[0]
                )
            if task.name in before:
                raise ParameterError(f"tasks of {self.thread}", "of different names", task.name)
            before.add(task.name)

    @cached_property
    def awaited(self) -> dict[str, tuple[str, ...]]:
        """Tasks whose ends decide when a task starts, by its name: those that none of the others waits for."""
        waits: dict[str, tuple[str, ...]] = {}
        behind: dict[str, set[str]] = {}  # task -> all that are done when it is
        last: dict[str, str] = {}
        for task in self.tasks:
            names = dict.fromkeys(_predecessors(task) + ((last[task.resource],) if task.resource in last else ()))
            waits[task.name] = tuple(one for one in names if not any(one in behind[other] for other in names))
            behind[task.name] = set(names).union(*(behind[one] for one in names))
            last[task.resource] = task.name
        return waits

    @cached_property
    def last(self) -> tuple[str, ...]:
        """Tasks that no other waits for, in order: the longest of their ends is the period."""
        predecessors = {one for names in self.awaited.values() for one in names}
        return tuple(task.name for task in self.tasks if task.name not in predecessors)


def _predecessors(task: Task) -> tuple[str, ...]:
    return task.after + task.each_after
