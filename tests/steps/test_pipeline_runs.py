"""Runs of equal stages against every stage by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.steps.pipeline import pipeline_s
from planner.steps.pipeline_runs import RUN_SCHEDULES, drain_s, exchange_s, exposed_exchange_s, runs_s
from planner.steps.synchronous import Runs, runs_end_s

PLANS = 8


@settings(max_examples=120)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.sampled_from([1, 1, 2, 3, 7, 20]), min_size=1, max_size=5),
    st.sampled_from([0, 0.01, 0.1, 1, 4]),
    st.sampled_from(RUN_SCHEDULES),
)
def test_runs_take_what_their_stages_take(seed: int, lengths: list[int], transfer: float, schedule: str) -> None:
    rng, repeats = np.random.default_rng(seed), np.array(lengths)
    shape = repeats.size, PLANS
    forward = rng.choice([1, 1, 2, 3], (repeats.size, 1)) * (1 + rng.choice([0, 0.01, 0.3]) * rng.random(shape))
    backward = 2 * forward * (1 + rng.choice([0, 0.01, 0.3]) * rng.random(shape))
    transfers, steps = transfer * rng.random(PLANS), rng.choice([1, 2, 3, 5, 8, 16, 40, 100], PLANS)
    is_chunked = schedule == "interleaved"
    chunks = rng.choice([1, 2, 4], PLANS) if is_chunked else np.ones(PLANS, dtype=np.int64)
    steps = steps * repeats.sum() if is_chunked else steps
    ahead, back = (np.repeat(one, repeats, axis=0) for one in (forward, backward))
    found = runs_s(
        forward, backward, transfers, steps, repeats=repeats[:, None], schedule=schedule, virtual_stages=chunks
    )
    expected = pipeline_s(ahead, back, transfers, steps, schedule=schedule, virtual_stages=chunks)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_runs_of_several_lengths_are_as_each_alone() -> None:
    rng = np.random.default_rng(7)
    repeats = rng.choice([1, 2, 5, 30], (4, 100))
    forward = rng.choice([1.0, 1.0, 1.1, 1.5], (4, 100)) * (1 + rng.choice([0, 0.01], (4, 100)) * rng.random((4, 100)))
    chunks, sent = rng.choice([1, 1, 2], 100), rng.choice([0, 0.01, 0.1, 0.5], 100)
    steps = rng.choice([1, 2, 5, 9], 100) * repeats.sum(axis=0)
    found = runs_s(forward, 2 * forward, sent, steps, repeats=repeats, schedule="interleaved", virtual_stages=chunks)
    for at, lengths in enumerate(repeats.T):
        one = np.repeat(forward[:, at], lengths)[:, None]
        alone = pipeline_s(one, 2 * one, sent[at], steps[at], schedule="interleaved", virtual_stages=chunks[at])
        np.testing.assert_allclose(found[at], alone, rtol=1e-13)


@pytest.mark.parametrize("schedule", ["interleaved", "zero-bubble-v"])
def test_of_chunks_the_first_or_the_last_is_latest(schedule: str) -> None:
    rng, chunks = np.random.default_rng(8), 2 if schedule == "zero-bubble-v" else 5
    backward, message = rng.random((3, 200)), 3 * rng.random((3, 200))
    runs = Runs.equal(message, np.full((3, 1), 10))
    found = exposed_exchange_s(backward, 0.1, runs, schedule=schedule, virtual_stages=chunks)
    of_chunk = 10 / chunks
    of_one = runs_end_s(backward / chunks, Runs.equal(message, np.full((3, 1), of_chunk))) - backward / chunks
    every = [
        of_one + chunk * of_chunk * message
        - drain_s(backward, 0.1, schedule=schedule, virtual_stages=chunks, chunk=chunk)
        for chunk in range(chunks)
    ]  # fmt: skip
    np.testing.assert_allclose(found, np.maximum(np.max(every, axis=0), 0), rtol=1e-13)


def test_circles_are_among_what_is_compared() -> None:
    forward, repeats, steps = np.array([[1.0], [1.5], [1.0]]), np.array([1, 30, 4]), np.array([100])
    alone, sent = (
        runs_s(forward, 2 * forward, np.array([x]), steps, repeats=repeats[:, None], schedule="1f1b")
        for x in (0.0, 0.4)
    )
    assert sent[0] > alone[0] + 2 * 34 * 0.4 + 1  # more than the way down and up


@pytest.mark.parametrize("chunks", [1, 3])
def test_the_first_of_equal_stages_is_exposed_most(chunks: int) -> None:
    rng, repeats = np.random.default_rng(4), np.array([1, 5, 3, 1])
    backward, message = rng.random((4, PLANS)), 3 * rng.random((4, PLANS))
    schedule = "interleaved" if chunks > 1 else "1f1b"
    found = exposed_exchange_s(
        *(backward, 0.1, Runs.equal(message, np.full((4, 1), 6))),
        schedule=schedule,
        virtual_stages=chunks,
        repeats=repeats[:, None],
    )
    every = exposed_exchange_s(
        *(np.repeat(backward, repeats, axis=0), 0.1),
        Runs.equal(np.repeat(message, repeats, axis=0), np.full((10, 1), 6)),
        schedule=schedule,
        virtual_stages=chunks,
    )
    of_runs = np.maximum.reduceat(every, np.cumsum(repeats) - repeats, axis=0)
    np.testing.assert_allclose(found, of_runs, rtol=1e-13)


@pytest.mark.parametrize(
    ("exchanges", "overlapping", "behind"), [((3, 3, 3, 3), 36, 36), ((1, 2, 4, 7), 34, 40), ((7, 4, 2, 1), 40, 40)]
)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_partitions_exchange_gradients_while_earlier_ones_drain(
    exchanges: tuple[int, ...], overlapping: int, behind: int, schedule: str
) -> None:
    """Four partitions of 1 s forward and 2 s backward, eight micro-batches: the last backwards end at 33, 31, 29, 27 s.

    Each exchange begins where its partition ends; behind the whole pipeline the longest of them is added.
    """
    forward, backward = np.ones((4, 1)), np.full((4, 1), 2.0)
    whole = float(pipeline_s(forward, backward, np.zeros(1), np.array([8]), schedule=schedule)[0])
    ends = whole - drain_s(backward, 0.0, schedule=schedule)[:, 0]
    assert ends.tolist() == [33, 31, 29, 27]
    taken = np.array(exchanges, dtype=np.float64)[:, None]
    runs = Runs(np.zeros((1, 4, 1)), taken[None], np.ones((1, 4, 1)))
    longest, added = exchange_s(backward, 0.0, [runs], overlaps=False, schedule=schedule)
    assert (whole + added[0], whole + longest[0]) == (overlapping, behind)
