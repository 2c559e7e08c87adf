"""Gradients that are sent at cycles, against a loop over cycles."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.domain.arrays import FloatArray
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import PYTORCH, Strategy
from planner.domain.request import Problem
from planner.steps.predict import Evaluator
from planner.steps.synchronous import cycle_fusion, ready_s

Make = Callable[..., Problem]


def linear(bytes_: FloatArray, start_s: float, byte_s: float) -> FloatArray:
    ahead = np.concatenate([[0.0], np.cumsum(bytes_)])
    return np.asarray(start_s + byte_s * (ahead[None, 1:] - ahead[:-1, None]))


def by_cycles(ready: FloatArray, message: FloatArray, bytes_: FloatArray, most: float, cycle: float) -> list[float]:
    """Return when all is sent, and what sending takes: cycle by cycle, each message packed slot by slot."""
    waiting, tick, done, taken = list(range(ready.size))[::-1], 0, 0.0, 0.0
    while waiting:
        now = [slot for slot in waiting if ready[slot] <= tick * cycle]
        waiting = waiting[len(now) :]
        while now:
            packed = [now.pop(0)]
            while now and bytes_[packed].sum() + bytes_[now[0]] <= most:
                packed.append(now.pop(0))
            seconds = float(message[packed[-1], packed[0]])
            done, taken = max(done, tick * cycle) + seconds, taken + seconds
        tick += 1
    return [done, taken]


@pytest.mark.parametrize("seed", range(40))
def test_messages_are_those_of_a_loop_over_cycles(seed: int) -> None:
    draw = np.random.default_rng(seed)
    slots, cases = int(draw.integers(1, 12)), 3
    ready = ready_s(draw.exponential(1.0, (cases, slots)))
    bytes_ = draw.exponential(1.0, slots)
    message = linear(bytes_, *draw.exponential(1.0, 2))
    most, cycle = float(draw.choice([0.0, 1.5, math.inf])), float(draw.choice([0.1, 1.0, 5.0]))
    found = cycle_fusion(ready, message, bytes_, most, cycle)
    for case in range(cases):
        ends = by_cycles(ready[case], message, bytes_, most, cycle)
        assert [found.end_s[case], found.taken_s[case]] == pytest.approx(ends, rel=1e-12)
        lowest = found.slots(case)
        highest = np.append(lowest[1:], slots) - 1
        assert message[lowest, highest].sum() == pytest.approx(found.taken_s[case])


def test_all_that_is_ready_at_once_is_one_message_up_to_the_threshold() -> None:
    """Four gradients of 1 byte, the last ready at 0.4 s: sent at 1 s, in one message of 5 s or two of 3 s."""
    ready, bytes_ = np.array([[0.4, 0.3, 0.2, 0.1]]), np.ones(4)
    message = linear(bytes_, 1.0, 1.0)
    assert cycle_fusion(ready, message, bytes_, 4.0, 1.0).end_s[0] == 6.0
    assert cycle_fusion(ready, message, bytes_, 2.0, 1.0).end_s[0] == 7.0
    assert cycle_fusion(ready, message, bytes_, 0.0, 1.0).end_s[0] == 9.0


def test_nothing_to_send_is_done_at_once() -> None:
    assert cycle_fusion(np.zeros((2, 0)), np.zeros((0, 0)), np.zeros(0), 1.0, 1.0).end_s.tolist() == [0.0, 0.0]


def test_a_step_by_cycles_is_no_faster_than_the_best_messages(make_problem: Make, cluster: Cluster) -> None:
    """And what is told of a plan is what was priced; one GPU sends and copies nothing."""
    plans = Configurations.of([Configuration(n, g, 8) for n in (1, 4) for g in (1, 4)])
    times = {}
    for strategy in ("tensor-fusion", "best-fusion", "no-overlap"):
        problem = make_problem(settings=Settings(strategy=strategy, input="synthetic"), cluster=cluster)
        times[strategy] = Evaluator(problem).evaluate(plans).iteration_s
        told = Evaluator(problem).describe(plans)
        np.testing.assert_allclose(times[strategy], [one.iteration_s.value for one in told], rtol=1e-12)
    assert times["tensor-fusion"][0] == times["no-overlap"][0]
    assert (times["tensor-fusion"] >= times["best-fusion"]).all()
    often = replace(PYTORCH, strategies={"tensor-fusion": Strategy(cycle_s=1e-9)})
    settings = Settings(strategy="tensor-fusion", input="synthetic", framework=often)
    layers = make_problem(settings=Settings(strategy="wait-free", input="synthetic"), cluster=cluster)
    small = Evaluator(make_problem(settings=settings, cluster=cluster)).evaluate(plans).iteration_s
    np.testing.assert_allclose(small, Evaluator(layers).evaluate(plans).iteration_s, rtol=0, atol=2e-9)
