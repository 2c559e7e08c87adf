"""Schedules in closed form, against a count of events: one thing at a time, nothing known of paths."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.framework import STRATEGIES
from planner.domain.schedule import Schedule, Task
from planner.errors import ParameterError
from planner.steps.schedule import GPU_THREAD, TimedSchedule, step_schedule
from planner.steps.synchronous import backward_end_s, communication_prefix_s, exposed_s, ready_s

SECONDS = st.floats(0, 100)
Parts = Mapping[str, list[float]]


def counted_s(schedule: Schedule, parts: Parts) -> float:
    """Return when the last part of all tasks is done [s]; a resource does one part after the other, in order."""
    free = dict.fromkeys((task.resource for task in schedule.tasks), 0.0)
    done: dict[str, list[float]] = {}
    for task in schedule.tasks:
        ready = max([0.0, *(done[name][-1] for name in task.after if done[name])])
        leader = next((done[name] for name in reversed(task.each_after) if done[name]), [])
        done[task.name] = []
        for at, part in enumerate(parts[task.name]):
            begun = max(ready, free[task.resource], leader[at] if leader else 0.0)
            free[task.resource] = begun + part
            done[task.name].append(begun + part)
    return max(free.values())


def repeated_s(load: float, work: float, repetitions: int, *, prefetch: bool) -> float:
    """Return what one of many steps takes [s] where the next input is loaded once a step has begun, or has ended."""
    loaded, ended = load, 0.0
    for _ in range(repetitions):
        begun = max(loaded, ended)
        ended = begun + work
        loaded = max(loaded, begun if prefetch else ended) + load
    return ended / repetitions


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    tasks: list[Task] = []
    for at in range(draw(st.integers(1, 7))):
        before = [task.name for task in tasks]
        after = draw(st.lists(st.sampled_from(before), max_size=3, unique=True)) if before else []
        tasks.append(Task(f"task{at}", draw(st.sampled_from("abc")), after=tuple(after)))
    return Schedule("any", tuple(tasks))


@given(schedules(), st.data())
def test_the_period_is_when_the_last_event_ends(schedule: Schedule, data: st.DataObject) -> None:
    names = [task.name for task in schedule.tasks]
    seconds = data.draw(st.lists(SECONDS, min_size=len(names), max_size=len(names)))
    timed = TimedSchedule(schedule, {name: np.array([one]) for name, one in zip(names, seconds, strict=True)}, {})
    expected = counted_s(schedule, {name: [one] for name, one in zip(names, seconds, strict=True)})
    assert timed.period_s[0] == pytest.approx(expected)
    assert sum(float(one[0]) for one in timed.exposed_s.values()) == pytest.approx(expected)


@given(schedules(), st.data())
def test_slopes_are_those_of_small_steps(schedule: Schedule, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    given_s = {task.name: rng.uniform(1, 2, 4) for task in schedule.tasks}
    timed = TimedSchedule(schedule, given_s, {})
    for name, before in given_s.items():
        moved = timed.changed({name: before + 1e-9}).period_s - timed.period_s
        np.testing.assert_allclose(moved / 1e-9, timed.slopes[name], atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(st.data())
def test_a_step_is_what_its_events_take(strategy: str, data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 4))
    several = st.lists(SECONDS, min_size=slots, max_size=slots)
    parts: dict[str, list[float]] = {name: [data.draw(SECONDS)] for name in ("load_input", "host_to_device", "forward")}
    backward, sent = (np.array(data.draw(several)) for _ in range(2))
    further = data.draw(st.integers(0, 2))
    parts["backward"] = backward[::-1].tolist()
    parts["accumulating"] = parts["backward"] * further
    parts["all_reduce"], parts["update"] = sent[::-1].tolist(), [data.draw(SECONDS)]
    schedule = step_schedule(STRATEGIES[strategy])
    seconds = {name: np.array([sum(times)]) for name, times in parts.items()} | {"replica_wait": np.array([0.1])}
    end = backward_end_s(ready_s(backward)[None], communication_prefix_s(sent)[None], *np.zeros((2, 1), dtype=np.int64))
    outlasting = exposed_s(end, backward.sum())
    timed = TimedSchedule(schedule, seconds, {"all_reduce": outlasting})
    parts["replica_wait"] = [0.1 * sum(sum(parts[name]) for name in ("forward", "backward", "accumulating", "update"))]
    last_pass = {**parts, "accumulating": parts["accumulating"][-slots:]}
    last_pass["forward"] = [*parts["forward"], sum(parts["accumulating"][:-slots])]
    assert timed.period_s[0] == pytest.approx(counted_s(schedule, last_pass))
    assert sum(float(one[0]) for one in timed.exposed_s.values()) == pytest.approx(float(timed.period_s[0]))


@given(st.lists(SECONDS, min_size=6, max_size=6))
def test_threads_of_a_node_wait_for_the_storage_that_they_share(seconds: list[float]) -> None:
    names = [task.name for task in GPU_THREAD.tasks]
    timed = TimedSchedule(GPU_THREAD, {name: np.array([one]) for name, one in zip(names, seconds, strict=True)}, {})
    shared, *own = seconds
    assert timed.period_s[0] == pytest.approx(max(shared, sum(own)))
    assert [float(timed.exposed_s[name][0]) for name in names] == pytest.approx([max(shared - sum(own), 0.0), *own])
    assert timed.slopes["forward"][0] == (sum(own) >= shared)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(load=st.floats(0.1, 10), work=st.floats(0.1, 10))
def test_a_period_is_that_of_many_steps(strategy: str, load: float, work: float) -> None:
    what = STRATEGIES[strategy]
    nothing = np.zeros(1)
    seconds = {task.name: nothing for task in step_schedule(what).tasks}
    seconds |= {"load_input": np.array([load]), "forward": np.array([work])}
    period = TimedSchedule(step_schedule(what), seconds, {"all_reduce": nothing}).period_s[0]
    assert period == pytest.approx(repeated_s(load, work, 2000, prefetch=what.prefetch), rel=1e-3)


def test_tasks_wait_for_tasks_before_them() -> None:
    first, second = Task("first", "a"), Task("second", "a", after=("first",))
    assert Schedule("any", (first, second)).awaited == {"first": (), "second": ("first",)}
    for wrong in ((second, first), (first, first)):
        with pytest.raises(ParameterError):
            Schedule("any", wrong)


def test_what_others_wait_for_anyway_decides_nothing() -> None:
    step = step_schedule(STRATEGIES["wait-free"])
    assert step.last == ("load_input", "replica_wait")
    for before, after in pairwise(("host_to_device", "forward", "backward", "accumulating", "all_reduce", "update")):
        assert step.awaited[after] == (before,)
