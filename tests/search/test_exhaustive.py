from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.domain.configuration import MODES, Configuration, Configurations
from planner.domain.request import SpaceRequest
from planner.search import block, exhaustive, space
from planner.search.exhaustive import Asked, Outcome
from planner.search.search import search

OFTEN = settings(max_examples=20)
SUBSETS = st.sets(st.integers(1, 6), min_size=1).map(tuple)


def asked(target_batch: int, **given: Any) -> SpaceRequest:
    return SpaceRequest(target_batch).changed(**given)


REQUESTS = st.builds(
    asked,
    target_batch=st.integers(1, 60),
    tolerance_sync=st.sampled_from([0.0, 0.1, 0.25]),
    tolerance_async=st.sampled_from([0.05, 0.25, 0.5]),
    nodes=st.none() | SUBSETS,
    gpus_per_node=st.none() | st.sets(st.integers(1, 3), min_size=1).map(tuple),
    sub_batch=st.none() | st.sets(st.integers(1, 30), min_size=1).map(tuple),
    accumulation_steps=st.none() | st.sets(st.integers(1, 4), min_size=1).map(tuple),
    precision=st.sampled_from([("fp32",), ("fp16", "fp32"), ("fp32", "int8")]),
    mode=st.sampled_from([("sync",), ("async",), MODES]),
)


def searched(machine: Any, request: SpaceRequest, keep: int = 4, limits: Any = None) -> Outcome:
    limits = limits or machine.limits()
    return search(Asked(request, limits, machine, machine.order(request)), keep=keep, pareto=True)


def records(outcome: Outcome) -> list[Configuration]:
    return [] if outcome.best is None else [outcome.best.configurations.one(i) for i in range(outcome.best.size)]


def usable(request: SpaceRequest) -> SpaceRequest:
    return request.changed(precision=tuple(p for p in request["precision"] or () if p != "int8"))


@OFTEN
@given(REQUESTS)
def test_best_plans_are_those_of_brute_force_in_the_same_order(machine: Any, request: SpaceRequest) -> None:
    outcome = searched(machine, request)
    expected = machine.brute_force(usable(request), machine.limits())
    assert records(outcome) == expected[:4]
    assert outcome.evaluated == len(expected)


@OFTEN
@given(REQUESTS)
def test_front_is_that_of_brute_force(machine: Any, request: SpaceRequest) -> None:
    lawful = machine.brute_force(usable(request), machine.limits())
    points = []
    for c in lawful:
        epoch, gpus, _, away, *_ = machine.key(c, request.target_batch)
        points.append((epoch, gpus, away))
    expected = [
        c
        for i, (c, q) in enumerate(zip(lawful, points, strict=True))
        if q not in points[:i] and not any(p != q and all(x <= y for x, y in zip(p, q, strict=True)) for p in points)
    ]
    front = searched(machine, request).pareto
    assert ([] if front is None else [front.configurations.one(i) for i in range(front.size)]) == expected


@OFTEN
@given(REQUESTS)
def test_refused_and_evaluated_add_up_to_the_candidates(machine: Any, request: SpaceRequest) -> None:
    outcome = searched(machine, request)
    assert sum(outcome.refused.values()) + outcome.evaluated == outcome.candidates
    assert outcome.candidates == space.space_of(request, machine.limits()).candidates
    assert all(count > 0 for count in outcome.refused.values())


@OFTEN
@given(REQUESTS, st.integers(1, 40))
def test_chunks_change_nothing(machine: Any, request: SpaceRequest, chunk: int) -> None:
    whole = searched(machine, request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "CHUNK", chunk)
        patch.setattr(exhaustive, "CHUNK", chunk)
        parts = searched(machine, request)
    assert records(parts) == records(whole)
    assert (parts.candidates, parts.evaluated, parts.refused) == (whole.candidates, whole.evaluated, whole.refused)
    for one, other in ((parts.pareto, whole.pareto), (parts.nearest, whole.nearest)):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert [one.configurations.one(i) for i in range(one.size)] == [
                other.configurations.one(i) for i in range(other.size)
            ]


RELAXATIONS: dict[str, dict[str, Any]] = {
    "tolerance": {"tolerance_sync": 0.6, "tolerance_async": 0.9},
    "nodes": {"nodes": None},
    "gpus_per_node": {"gpus_per_node": (1, 2, 3)},
    "sub_batch": {"sub_batch": tuple(range(1, 31))},
    "accumulation": {"accumulation_steps": None},
    "precisions": {"precision": ("fp32", "fp16", "int8")},
    "modes": {"mode": MODES},
}


@OFTEN
@given(constraint=st.sampled_from(sorted(RELAXATIONS)), request=REQUESTS)
def test_relaxing_a_constraint_never_worsens_the_best_epoch(
    machine: Any, constraint: str, request: SpaceRequest
) -> None:
    strict = searched(machine, request).best
    assume(strict is not None)
    relaxed = searched(machine, request.changed(**RELAXATIONS[constraint])).best
    assert strict is not None
    assert relaxed is not None
    assert relaxed.predictions.epoch_s[0] <= strict.predictions.epoch_s[0] * (1 + 1e-9)


@OFTEN
@given(REQUESTS)
def test_more_memory_never_worsens_the_best_epoch(machine: Any, request: SpaceRequest) -> None:
    strict = searched(machine, request).best
    assume(strict is not None)
    larger = replace(machine, capacity=40.0 * 2**30)
    relaxed = searched(larger, request).best
    assert strict is not None
    assert relaxed is not None
    assert relaxed.predictions.epoch_s[0] <= strict.predictions.epoch_s[0] * (1 + 1e-9)


@OFTEN
@given(REQUESTS)
def test_faster_links_never_hurt(machine: Any, faster_links: Any, request: SpaceRequest) -> None:
    # a shorter update means smaller asynchronous mini-batches: with no lower edge, what was lawful stays lawful
    request = request.changed(tolerance_async=1.0)
    slow, fast = searched(machine, request).best, searched(faster_links, request).best
    assume(slow is not None)
    assert slow is not None
    assert fast is not None
    assert fast.predictions.epoch_s[0] <= slow.predictions.epoch_s[0] * (1 + 1e-9)


@OFTEN
@given(REQUESTS, st.randoms())
def test_order_of_values_does_not_matter(machine: Any, request: SpaceRequest, random: Any) -> None:
    def shuffled(values: Any) -> Any:
        return tuple(random.sample(values, len(values)))

    other = request.changed(**{name: shuffled(values) for name, values in request.asked.items()})
    assert records(searched(machine, other)) == records(searched(machine, request))


@OFTEN
@given(st.integers(20, 60), st.sampled_from([("sync",), ("async",), MODES]), SUBSETS, SUBSETS)
def test_nearest_are_the_closest_of_what_fits_in_memory(
    machine: Any, target: int, modes: tuple[str, ...], nodes: tuple[int, ...], sub_batch: tuple[int, ...]
) -> None:
    def reached(c: Configuration) -> float:
        return float(machine.one(c)["mini_batch_mean"])

    def place(c: Configuration) -> tuple[tuple[str, bool], float]:
        """Return mode and side, and how far a window must reach: to whole sub-batches, where asynchronous."""
        excess = c.sub_batch - target if c.mode == "async" else 0
        is_below = reached(c) < target and c.sub_batch <= target * 1.001
        return (c.mode, is_below), max(abs(reached(c) - target), excess)

    request = SpaceRequest(target).changed(
        tolerance_sync=0.0,
        tolerance_async=0.001,
        nodes=nodes,
        sub_batch=(*sub_batch, 25),
        precision=("fp32",),
        mode=modes,
    )
    outcome = searched(machine, request)
    assume(outcome.best is None)
    # 6 nodes x 3 GPUs x 6 samples are five times 20 above it
    least: dict[tuple[str, bool], float] = {}
    for c in machine.brute_force(request.changed(tolerance_sync=5.0, tolerance_async=40.0), machine.limits()):
        key, off = place(c)
        least[key] = min(least.get(key, off), off)
    assert outcome.nearest is not None
    found = [outcome.nearest.configurations.one(i) for i in range(outcome.nearest.size)]
    assert len(found) == len(least)
    for c in found:
        key, off = place(c)
        assert off == pytest.approx(least[key], rel=1e-6)
        assert c.sub_batch <= 18


def counted(outcome: Outcome) -> dict[str, int]:
    """Return how many candidates were refused, by the sentence that says why."""
    return {str(why): count for why, count in outcome.refused.items()}


def test_reasons_of_a_small_space_by_hand(machine: Any) -> None:
    # 18 samples fit in fp32; 2 nodes x 3 GPUs
    request = SpaceRequest(36).changed(
        nodes=(2,), sub_batch=(1, 2, 3, 6, 19), accumulation_steps=(1, 2, 3), precision=("fp32",), mode=("sync",)
    )
    outcome = searched(machine, request)
    assert [(c.sub_batch, c.accumulation_steps) for c in records(outcome)] == [(6, 1), (3, 2), (2, 3)]
    # 6 x (1, 2, 3, 6, 19) x (1, 2, 3) = 6 12 18, 12 24 _, 18 _ 54, _ 72 108, 114 228 342
    assert counted(outcome) == {"mini-batch below the window": 6, "mini-batch above the window": 6}
    wide = searched(machine, request.changed(tolerance_sync=3.0))
    assert counted(wide) == {"mini-batch above the window": 2, "sub-batch larger than fits in memory": 1}


def test_accumulation_in_asynchronous_plans_is_a_reason(machine: Any) -> None:
    request = SpaceRequest(20).changed(accumulation_steps=(2, 3), precision=("fp32",), mode=("async",))
    outcome = searched(machine, request)
    assert counted(outcome) == {"accumulation in an asynchronous plan": 6 * 18 * 2}
    assert outcome.best is None
    assert outcome.nearest is None


def test_a_sub_batch_above_the_window_is_refused_whatever_the_mean(machine: Any) -> None:
    """One GPU deposits 12 samples every .01 + 12·.09 = 1.09 s, and every .05 s is an update: .55 samples on average."""
    request = SpaceRequest(1).changed(
        tolerance_sync=0.0,
        tolerance_async=0.5,
        nodes=(1,),
        gpus_per_node=(1,),
        sub_batch=(1, 2, 12),
        precision=("fp32",),
        mode=("async",),
    )
    outcome = searched(machine, request)
    assert records(outcome) == [Configuration(1, 1, 1, mode="async")]
    assert counted(outcome) == {"sub-batch above the window": 2}
    assert outcome.nearest is None


def test_a_sub_batch_above_the_window_can_be_the_nearest(machine: Any) -> None:
    request = SpaceRequest(1).changed(
        tolerance_sync=0.0,
        tolerance_async=0.5,
        nodes=(1,),
        gpus_per_node=(1,),
        sub_batch=(3, 12, 19),
        precision=("fp32",),
        mode=("async",),
    )
    outcome = searched(machine, request)
    assert counted(outcome) == {"sub-batch above the window": 3}
    assert outcome.nearest is not None
    assert [outcome.nearest.configurations.one(0).sub_batch] == [3]
    order = machine.order(request)
    assert order.reaches(outcome.nearest.configurations, outcome.nearest.predictions.mini_batch_mean).tolist() == [2.0]


def test_cheap_reasons_come_before_the_price(machine: Any) -> None:
    class Counting:
        asked = 0

        def evaluate(self, configurations: Configurations) -> Any:
            self.asked += configurations.size
            return machine.evaluate(configurations)

        def describe(self, *_: Any) -> Any:
            raise AssertionError

        def least_epoch_s(self, configurations: Configurations, *, split: bool, closely: bool = False) -> Any:
            raise AssertionError((configurations, split, closely))

        compare = describe

    counting = Counting()
    request = SpaceRequest(36).changed(precision=("fp32",), mode=("sync",), sub_batch=tuple(range(1, 40)))
    outcome = search(Asked(request, machine.limits(), counting, machine.order(request)), keep=1)
    assert counting.asked == outcome.evaluated < outcome.candidates
