"""Event count of a pipeline: orders by hand, totals by hand, and what no schedule can beat."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import ParameterError
from tests.simulation.events import Operation, count_events, operations


def words(order: tuple[Operation, ...]) -> str:
    return " ".join(f"{one.kind}{one.micro_batch}" + f".{one.chunk}" * bool(one.chunk) for one in order)


def test_orders_of_two_stages() -> None:
    assert [words(one) for one in operations("gpipe", 2, 3)] == ["F0 F1 F2 B0 B1 B2"] * 2
    assert [words(one) for one in operations("1f1b", 2, 3)] == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]
    assert [words(one) for one in operations("zero-bubble", 2, 3)] == [
        "F0 F1 B0 W0 F2 B1 W1 B2 W2",
        "F0 B0 F1 B1 W0 F2 B2 W1 W2",
    ]
    assert [words(one) for one in operations("zero-bubble-h2", 2, 3)] == [
        "F0 F1 F2 B0 W0 B1 W1 B2 W2",
        "F0 B0 F1 B1 F2 B2 W0 W1 W2",
    ]
    assert [words(one) for one in operations("zero-bubble-v", 2, 4, 2)] == [
        "F0 F1 F2 F0.1 B0.1 W0.1 F1.1 B1.1 W1.1 F3 B0 W0 F2.1 B2.1 W2.1 B1 W1 F3.1 B3.1 W3.1 B2 W2 B3 W3",
        "F0 F0.1 F1 F1.1 B0.1 W0.1 F2 B0 W0 F2.1 B1.1 W1.1 F3 B1 W1 F3.1 B2.1 W2.1 B2 B3.1 B3 W2 W3.1 W3",
    ]
    assert [words(one) for one in operations("interleaved", 2, 2, 2)] == [
        "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1",
        "F0 F1 F0.1 B0.1 F1.1 B1.1 B0 B1",
    ]


def test_two_stages_by_hand() -> None:
    """Stage 1 starts at 1 s and never waits; the last backward of stage 0 follows."""
    forward, backward = np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]])
    events = count_events(operations("1f1b", 2, 2), forward, backward)
    assert events.end_s == 1 + 2 * (2 + 4) + 3
    assert events.last_backward_s.tolist() == [[16], [13]]
    assert events.idle_s.tolist() == [16 - 2 * 4, 16 - 2 * 6]
    assert events.live == (2, 1)


def test_transfers_count_between_stages_only() -> None:
    one = np.array([[1.0]])
    assert count_events(operations("1f1b", 1, 5), one, 2 * one, transfer_s=7).end_s == 15
    two = np.array([[1.0], [1.0]])
    assert count_events(operations("gpipe", 2, 1), two, 2 * two, transfer_s=7).end_s == 6 + 2 * 7


@pytest.mark.parametrize(("micro_batches", "end_s"), [(8, 37.8), (64, 231.0)])
def test_transfers_enter_the_steady_period(micro_batches: int, end_s: float) -> None:
    forward = np.ones((4, 1))
    events = count_events(operations("1f1b", 4, micro_batches), forward, 2 * forward, transfer_s=0.3)
    assert events.end_s == pytest.approx(end_s, rel=1e-12)


def test_interleaving_of_16_stages() -> None:
    forward = np.full((16, 3), 1 / 3)
    events = count_events(operations("interleaved", 16, 192, 3), forward, 2 * forward)
    assert events.end_s / (192 * 3) - 1 == pytest.approx(15 / (3 * 192), rel=1e-9)  # 2.60 %
    assert events.live[0] == 63


@given(
    schedule=st.sampled_from(["gpipe", "1f1b", "zero-bubble", "zero-bubble-h2", "zero-bubble-v", "interleaved"]),
    stages=st.integers(1, 6),
    groups=st.integers(1, 4),
    virtual_stages=st.integers(2, 3),
)
def test_every_micro_batch_passes_every_chunk_once(
    schedule: str, stages: int, groups: int, virtual_stages: int
) -> None:
    micro_batches = stages * groups
    chunks = {"interleaved": virtual_stages, "zero-bubble-v": 2}.get(schedule, 1)
    for order in operations(schedule, stages, micro_batches, chunks):
        for kind in "FBW" if schedule.startswith("zero") else "FB":
            passes = sorted((one.chunk, one.micro_batch) for one in order if one.kind == kind)
            assert passes == [(chunk, one) for chunk in range(chunks) for one in range(micro_batches)]


def test_a_v_turns_on_the_last_stage() -> None:
    """One micro-batch, 1 s a chunk, 4 transfers; weight gradients where it turns back, and at the end."""
    chunks = np.ones((2, 2))
    events = count_events(operations("zero-bubble-v", 2, 1, 2), chunks, chunks, chunks, transfer_s=10, v_shaped=True)
    assert events.end_s == 8 + 4 * 10 + 2


def test_a_step_is_never_shorter_than_its_slowest_stage() -> None:
    rng = np.random.default_rng(3)
    for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
        forward, backward = rng.uniform(1, 2, (5, chunks)), rng.uniform(1, 3, (5, chunks))
        events = count_events(operations(schedule, 5, 10, chunks), forward, backward)
        assert events.end_s >= 10 * (forward + backward).sum(axis=1).max()
        assert np.all(events.idle_s >= 0)
        assert events.last_backward_s.max() == events.end_s


@pytest.mark.parametrize(
    ("schedule", "stages", "micro_batches", "virtual_stages", "group"),
    [
        ("gantt", 2, 2, 1, None),
        ("1f1b", 2, 2, 2, None),
        ("gpipe", 2, 0, 1, None),
        ("interleaved", 4, 6, 2, None),  # a last group of 2
        ("interleaved", 4, 3, 2, None),
        ("interleaved", 4, 8, 2, 3),
        ("interleaved", 4, 8, 2, 0),
    ],
)
def test_what_cannot_run_is_refused(
    schedule: str, stages: int, micro_batches: int, virtual_stages: int, group: int | None
) -> None:
    with pytest.raises(ParameterError):
        operations(schedule, stages, micro_batches, virtual_stages, group)


def test_a_circle_of_waiting_is_refused() -> None:
    orders = [(Operation("B", 0, 0), Operation("F", 0, 0))] * 2
    with pytest.raises(ParameterError, match="circles"):
        count_events(orders, np.ones((2, 1)), np.ones((2, 1)))
