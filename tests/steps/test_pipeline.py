"""Closed forms of pipelines against the event count of the same schedule."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import find_network
from planner.domain.arrays import FloatArray
from planner.domain.axes import SCHEDULES
from planner.domain.configuration import Configurations
from planner.domain.framework import Framework
from planner.errors import ParameterError
from planner.steps.pipeline import pipeline_s
from planner.steps.pipeline_runs import drain_s, exposed_exchange_s
from planner.steps.synchronous import Runs
from planner.workload.lawful import is_lawful
from planner.workload.memory_rules import live_micro_batches
from tests.simulation.events import Events, count_events, operations

TIMES = st.floats(0.5, 3)
Case = tuple[FloatArray, FloatArray, int, int]
"""Forward and backward of every stage, micro-batches, virtual stages."""


def count(
    schedule: str,
    case: Case,
    transfer_s: float = 0.0,
    weight_s: FloatArray | None = None,
) -> Events:
    """Return the event count of a case; weight gradients are a part of backward."""
    forward_s, backward_s, micro_batches, chunks = case
    orders = operations(schedule, len(forward_s), micro_batches, chunks)
    own_s = backward_s if weight_s is None else backward_s - weight_s
    apart_s = None if weight_s is None else weight_s[:, None]
    forwards_s, backwards_s = (np.repeat(times[:, None] / chunks, chunks, axis=1) for times in (forward_s, own_s))
    return count_events(orders, forwards_s, backwards_s, apart_s, transfer_s)


def closed(schedule: str, case: Case, transfer_s: float = 0.0, **keys: Any) -> float:
    forward_s, backward_s, micro_batches, chunks = case
    found = pipeline_s(
        forward_s[:, None],
        backward_s[:, None],
        np.array([transfer_s]),
        np.array([micro_batches]),
        schedule=schedule,
        virtual_stages=np.array([chunks]),
        **keys,
    )
    assert found.shape == (1,)
    return float(found[0])


@st.composite
def any_stages(draw: st.DrawFn) -> Case:
    stages = draw(st.integers(1, 8))
    forward, backward = (np.array(draw(st.lists(TIMES, min_size=stages, max_size=stages))) for _ in range(2))
    return forward, backward, draw(st.integers(1, 20)), 1


@st.composite
def equal_stages(draw: st.DrawFn, *, interleaved: bool = False) -> Case:
    stages = draw(st.integers(1 + interleaved, 8))
    micro_batches = stages * draw(st.integers(1, 4)) if interleaved else draw(st.integers(1, 20))
    forward, backward = np.full(stages, draw(TIMES)), np.full(stages, draw(TIMES))
    return forward, backward, micro_batches, draw(st.integers(2, 4)) if interleaved else 1


@given(case=any_stages(), transfer_s=st.floats(0, 5))
def test_gpipe_is_exact(case: Case, transfer_s: float) -> None:
    assert closed("gpipe", case, transfer_s) == pytest.approx(count("gpipe", case, transfer_s).end_s, rel=1e-12)


@given(case=equal_stages(), transfer_s=st.floats(0, 5))
def test_equal_stages_of_1f1b_are_exact(case: Case, transfer_s: float) -> None:
    assert closed("1f1b", case, transfer_s) == pytest.approx(count("1f1b", case, transfer_s).end_s, rel=1e-12)


@given(case=equal_stages())
def test_1f1b_without_transfers_by_formula(case: Case) -> None:
    forward, backward, micro_batches, _ = case
    expected = (micro_batches + len(forward) - 1) * (forward[0] + backward[0])
    assert closed("1f1b", case) == pytest.approx(expected, rel=1e-12)


@given(case=equal_stages(interleaved=True), share=st.floats(0, 1))
def test_equal_chunks_of_interleaving_are_exact(case: Case, share: float) -> None:
    forward, backward, micro_batches, chunks = case
    stages, transfer_s = len(forward), share * min(forward[0], backward[0]) / chunks
    whole_s = forward[0] + backward[0]
    expected = micro_batches * whole_s + (stages - 1) * whole_s / chunks + 2 * (chunks * stages - 1) * transfer_s
    assert closed("interleaved", case, transfer_s) == pytest.approx(expected, rel=1e-12)
    assert count("interleaved", case, transfer_s).end_s == pytest.approx(expected, rel=1e-12)


@given(stages=st.integers(1, 8), more=st.integers(0, 10), times=st.tuples(TIMES, TIMES, TIMES))
def test_equal_stages_with_weight_gradients_apart(stages: int, more: int, times: tuple[float, ...]) -> None:
    weight, forward, own = sorted(times)
    micro_batches = 2 * stages + more
    case = np.full(stages, forward), np.full(stages, own + weight), micro_batches, 1
    expected = micro_batches * sum(times) + (stages - 1) * (forward + own - weight)
    apart_s = np.full(stages, weight)
    assert closed("zero-bubble", case, weight_s=apart_s[:, None]) == pytest.approx(expected, rel=1e-12)
    assert count("zero-bubble", case, weight_s=apart_s).end_s == pytest.approx(expected, rel=1e-12)


@given(stages=st.integers(1, 8), more=st.integers(0, 10), times=st.tuples(TIMES, TIMES, TIMES))
def test_twice_as_many_forwards_ahead(stages: int, more: int, times: tuple[float, ...]) -> None:
    """ZB-H2 with an optimizer that waits for all stages: m (f + b + w) + (p - 1) f where w, f >= b."""
    own, weight, forward = sorted(times)
    micro_batches = 2 * stages + more
    case = np.full(stages, forward), np.full(stages, own + weight), micro_batches, 1
    expected = micro_batches * sum(times) + (stages - 1) * forward
    apart_s = np.full(stages, weight)
    assert closed("zero-bubble-h2", case, weight_s=apart_s[:, None]) == pytest.approx(expected, rel=1e-12)
    assert count("zero-bubble-h2", case, weight_s=apart_s).end_s == pytest.approx(expected, rel=1e-12)


@given(case=equal_stages(), weight=TIMES, schedule=st.sampled_from(["zero-bubble", "zero-bubble-h2"]))
def test_equal_stages_with_any_weight_gradients_are_exact(case: Case, weight: float, schedule: str) -> None:
    forward, own, micro_batches, _ = case
    if schedule == "zero-bubble-h2":
        micro_batches += 2 * len(forward)
    whole, apart_s = (forward, own + weight, micro_batches, 1), np.full(len(forward), weight)
    expected = count(schedule, whole, weight_s=apart_s).end_s
    assert closed(schedule, whole, weight_s=apart_s[:, None]) == pytest.approx(expected, rel=1e-12)


def random_case(rng: np.random.Generator, schedule: str) -> Case:
    """Return unrelated stages, stages that are heavier at the ends, or some with a layer more."""
    stages = int(rng.integers(2, 9))
    forward, ratio = np.ones(stages), rng.uniform(1.2, 3)
    kind = rng.choice(["unrelated", "ends", "layers"])
    if kind == "unrelated":
        forward = rng.uniform(0.5, 1.5, stages)
    elif kind == "ends":
        forward[0] += rng.uniform(0, 0.5)
        forward[-1] += rng.uniform(0, 1)
    else:
        layers = rng.integers(2, 6)
        forward = (layers + rng.integers(0, 2, stages)) / layers
    backward = ratio * forward * rng.uniform(0.8, 1.2, stages) ** (kind == "unrelated")
    if schedule == "interleaved":
        return forward, backward, stages * int(rng.integers(1, 6)), int(rng.integers(2, 4))
    return forward, backward, int(rng.integers(1, 6 * stages)), 1


@pytest.mark.parametrize(
    ("schedule", "most_transfer", "mean", "worst"),
    [
        ("1f1b", 1.0, 0.0015, 0.05),
        ("interleaved", 1.0, 0.0025, 0.065),
        ("zero-bubble", 0.3, 0.0025, 0.09),
        ("zero-bubble-h2", 0.3, 0.004, 0.13),
    ],
)
def test_uneven_stages_are_a_little_above_the_closed_form(
    schedule: str, most_transfer: float, mean: float, worst: float
) -> None:
    rng = np.random.default_rng(7)
    above = []
    for _ in range(200):
        case = random_case(rng, schedule)
        forward, backward, micro_batches, chunks = case
        transfer_s = rng.uniform(0, most_transfer) * rng.integers(0, 2) * forward.min() / chunks
        weight_s = backward * 0.45 if schedule.startswith("zero") else None
        keys = {} if weight_s is None else {"weight_s": weight_s[:, None]}
        found = closed(schedule, case, transfer_s, **keys)
        above.append(count(schedule, case, transfer_s, weight_s).end_s / found - 1)
        slowest_s = micro_batches * (forward + backward)
        assert found >= slowest_s.max() * (1 - 1e-12)
        if weight_s is None and transfer_s == 0:
            earlier_s = (np.cumsum(forward + backward) - forward - backward) / chunks
            assert found >= (slowest_s + earlier_s).max() * (1 - 1e-12)
            assert found <= closed("gpipe", (forward, backward, micro_batches, 1)) * (1 + 1e-12)
    assert min(above) >= -1e-12
    assert max(above) <= worst
    assert np.mean(above) <= mean
    assert max(above) > 0


@pytest.mark.parametrize("heavier", [0, -1])
def test_one_heavier_end_is_exact(heavier: int) -> None:
    forward = np.ones(6)
    forward[heavier] = 1.4
    case = forward, 2 * forward, 13, 1
    assert closed("1f1b", case) == pytest.approx(count("1f1b", case).end_s, rel=1e-12)


@pytest.mark.parametrize(("micro_batches", "expected"), [(8, 37.8), (64, 231.0)])
def test_transfers_enter_every_micro_batch_of_1f1b(micro_batches: int, expected: float) -> None:
    one = np.ones(4)
    assert closed("1f1b", (one, 2 * one, micro_batches, 1), 0.3) == pytest.approx(expected, rel=1e-12)


def test_blocking_exchange_adds_to_every_pass() -> None:
    one = np.ones(4)
    found = closed("1f1b", (one, 2 * one, 8, 1), 0.1, blocking=True)
    assert found == pytest.approx((8 + 4 - 1) * (3 + 2 * 0.1))
    assert found >= closed("1f1b", (one, 2 * one, 8, 1), 0.1)


def test_one_virtual_stage_interleaved_is_1f1b() -> None:
    rng = np.random.default_rng(2)
    case = rng.random(4), rng.random(4), 12, 1
    assert closed("interleaved", case, 0.2) == closed("1f1b", case, 0.2)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble", "zero-bubble-h2", "no-flush"])
def test_one_stage_computes_without_a_pause(schedule: str) -> None:
    assert closed(schedule, (np.array([1.0]), np.array([2.0]), 7, 1), 5.0) == pytest.approx(21)


def test_without_a_flush_a_period_a_micro_batch() -> None:
    """As fast as the marginal micro-batch of 1F1B, also where transfers decide."""
    rng = np.random.default_rng(4)
    for transfer_s in (0.0, 1.0):
        forward, backward = rng.uniform(1, 2, 5), rng.uniform(1, 2, 5)
        many = [count("1f1b", (forward, backward, m, 1), transfer_s).end_s for m in (120, 180)]
        found = closed("no-flush", (forward, backward, 60, 1), transfer_s)
        assert found == pytest.approx(many[1] - many[0], rel=1e-9)


def test_configurations_are_independent() -> None:
    rng = np.random.default_rng(5)
    forward, backward, transfer = rng.random((6, 40)), rng.random((6, 40)), rng.random(40) * rng.integers(0, 2, 40)
    micro_batches, chunks = 6 * rng.integers(1, 9, 40), rng.integers(1, 4, 40)
    together = pipeline_s(forward, backward, transfer, micro_batches, schedule="interleaved", virtual_stages=chunks)
    alone = [
        closed("interleaved", (forward[:, i], backward[:, i], int(micro_batches[i]), int(chunks[i])), transfer[i])
        for i in range(40)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_bubble_of_equal_stages() -> None:
    """Of 16 stages with f = 1 and b = 2, the time beyond m (f + b)."""
    one = np.ones((16, 1))
    for schedule, m, chunks, bubble in (
        ("1f1b", 64, 1, 15 * 3),
        ("interleaved", 192, 3, 15 / 3 * 3),
        ("zero-bubble", 64, 1, 15 * (1 + 1 - 1)),
    ):
        whole = pipeline_s(one, 2 * one, 0.0, m, schedule=schedule, virtual_stages=chunks)[0]
        assert whole - m * 3 == pytest.approx(bubble), schedule


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3)])
def test_live_micro_batches_are_those_of_the_order(schedule: str, chunks: int) -> None:
    for stages in (2, 4, 7):
        for micro_batches in (stages, 3 * stages) if schedule == "interleaved" else (1, 3, 20):
            found = live_micro_batches(np.arange(stages), micro_batches, stages, chunks, SCHEDULES.index(schedule))
            case = np.ones(stages), np.ones(stages), micro_batches, chunks
            np.testing.assert_allclose(found * chunks, count(schedule, case).live)


@pytest.mark.parametrize(
    ("schedule", "chunks", "micro_batches"),
    [
        *[(name, 1, number) for name in ("zero-bubble", "zero-bubble-h2") for number in (2, 6, 20)],
        ("zero-bubble-v", 2, 12),
        ("zero-bubble-v", 2, 20),
    ],
)
def test_live_micro_batches_with_weight_gradients_apart(schedule: str, chunks: int, micro_batches: int) -> None:
    found = live_micro_batches(np.arange(6), micro_batches, 6, chunks, SCHEDULES.index(schedule)) * chunks
    changes = {"F": 1, "B": 0, "W": -1}
    orders = operations(schedule, 6, micro_batches, chunks)
    assert [np.cumsum([changes[one.kind] for one in order]).max() for order in orders] == found.tolist()


def test_lawful_is_what_runs() -> None:
    """Interleaved stages run in groups of as many micro-batches as there are stages."""
    network, framework = find_network("gpt:layers=120,hidden=64,heads=4,sequence=32,vocabulary=128"), Framework("any")
    for stages, micro_batches in product((2, 3, 4, 5), range(1, 14)):
        degrees = {"pipeline_parallel": stages, "virtual_stages": 2, "accumulation_steps": micro_batches}
        plans = Configurations.having(**degrees, schedule=SCHEDULES.index("interleaved"))
        try:
            operations("interleaved", stages, micro_batches, 2)
            runs = True
        except ParameterError:
            runs = False
        assert is_lawful(network, framework, plans) == runs, degrees


@given(case=equal_stages(interleaved=True), transfer_s=st.floats(0, 0.1))
def test_interleaved_chunks_drain_before_the_end(case: Case, transfer_s: float) -> None:
    _, backward, _, chunks = case
    events = count("interleaved", case, transfer_s)
    for chunk in range(chunks):
        found = drain_s(backward[:, None], transfer_s, schedule="interleaved", virtual_stages=chunks, chunk=chunk)
        np.testing.assert_allclose(found[:, 0], events.end_s - events.last_backward_s[:, chunk], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble", "zero-bubble-h2"])
def test_stages_below_end_earlier(schedule: str) -> None:
    rng = np.random.default_rng(6)
    for _ in range(50):
        forward, backward, micro_batches, _ = random_case(rng, schedule)
        if is_equal := bool(rng.integers(0, 2)):
            forward, backward = np.ones(len(forward)), np.full(len(forward), 2.5)
        weight_s = backward * 0.4 if schedule.startswith("zero") else None
        case = forward, backward, max(micro_batches, 2 * len(forward)), 1
        events = count(schedule, case, 0.1 * (weight_s is None), weight_s)
        apart = None if weight_s is None else weight_s[:, None]
        found = drain_s(backward[:, None], 0.1 * (weight_s is None), schedule=schedule, weight_s=apart)[:, 0]
        true = events.end_s - events.last_backward_s[:, 0]
        assert np.all(found <= true + 1e-9)
        if is_equal and schedule != "zero-bubble-h2":
            np.testing.assert_allclose(found, true, atol=1e-9)


@given(
    case=equal_stages(interleaved=True),
    schedule=st.sampled_from(["1f1b", "interleaved"]),
    message_s=st.floats(0, 20),
    transfer_s=st.floats(0, 0.1),
)
def test_exchange_behind_the_last_backward_of_each_chunk(
    case: Case, schedule: str, message_s: float, transfer_s: float
) -> None:
    """One bucket a chunk, sent when it is ready and the channel of its stage is free."""
    forward, backward, micro_batches, chunks = case if schedule == "interleaved" else (*case[:3], 1)
    events = count(schedule, (forward, backward, micro_batches, chunks), transfer_s)
    stages = len(forward)
    found = exposed_exchange_s(
        backward[:, None],
        transfer_s,
        Runs.equal(np.full((stages, 1), message_s), np.full((stages, 1), chunks)),
        schedule=schedule,
        virtual_stages=chunks,
    )
    for stage in range(stages):
        free_s = 0.0
        for ready_s in sorted(events.last_backward_s[stage]):
            free_s = max(free_s, ready_s) + message_s
        assert found[stage, 0] == pytest.approx(max(free_s - events.end_s, 0), rel=1e-9, abs=1e-9)


def test_buckets_go_during_the_last_backward() -> None:
    """Of a stage alone: 4 buckets of 1 s beside 8 s of backward leave one, of 3 s they leave 2 + 4 x 3 - 8."""
    for message_s, expected in ((1.0, 1.0), (3.0, 6.0)):
        runs = Runs.equal(np.array([[message_s]]), np.array([[4]]))
        found = exposed_exchange_s(np.array([[8.0]]), 0.0, runs, schedule="1f1b")
        assert found.tolist() == [[expected]]


def test_unknown_schedules_are_refused() -> None:
    one = np.ones((2, 1))
    with pytest.raises(ParameterError, match="one of gpipe"):
        pipeline_s(one, one, 0.0, 4, schedule="chimera")
    with pytest.raises(ParameterError, match="virtual stages"):
        pipeline_s(one, one, 0.0, 4, schedule="1f1b", virtual_stages=2)
