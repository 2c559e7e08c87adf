"""Wait-free backpropagation: the closed form against the recurrence."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from planner.domain.arrays import FloatArray
from planner.steps.synchronous import (
    Runs,
    backward_end_s,
    communication_prefix_s,
    exposed_s,
    ready_s,
    runs_end_s,
)

End = Callable[[FloatArray, FloatArray], float]
TIMES = st.floats(0, 100)


@st.composite
def tables(draw: st.DrawFn) -> tuple[FloatArray, FloatArray]:
    cases, messages, slots = (draw(st.integers(1, 5)) for _ in range(3))
    backward = draw(arrays(np.float64, (cases, slots), elements=TIMES))
    communication = draw(arrays(np.float64, (messages, slots), elements=TIMES))
    return backward, communication


def ends(backward: FloatArray, communication: FloatArray, compute_case: Any, message_case: Any) -> FloatArray:
    ready, prefix = ready_s(backward), communication_prefix_s(communication)
    return backward_end_s(ready, prefix, np.asarray(compute_case), np.asarray(message_case))


def test_worked_example(communication_end_s: End) -> None:
    backward, communication = np.array([4.0, 3, 2, 1]), np.array([1.0, 2, 3, 4])
    assert communication_end_s(backward, communication) == 11
    end = ends(backward[None], communication[None], [0], [0])
    assert end[0] == 11
    assert exposed_s(end, np.array([10.0]))[0] == 1


@given(tables=tables())
def test_closed_form_equals_recurrence(communication_end_s: End, tables: tuple[FloatArray, FloatArray]) -> None:
    backward, communication = tables
    compute, message = (axis.ravel() for axis in np.indices((len(backward), len(communication))))
    found = ends(backward, communication, compute, message)
    expected = [communication_end_s(backward[i], communication[j]) for i, j in zip(compute, message, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(tables=tables(), random=st.randoms())
def test_order_and_choice_of_pairs_do_not_matter(
    communication_end_s: End, tables: tuple[FloatArray, FloatArray], random: Random
) -> None:
    backward, communication = tables
    pairs = [(i, j) for i in range(len(backward)) for j in range(len(communication))] * 2
    random.shuffle(pairs)
    some = pairs[: max(1, len(pairs) // 2)]
    found = ends(backward, communication, *zip(*some, strict=True))
    expected = [communication_end_s(backward[i], communication[j]) for i, j in some]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(tables())
def test_overlap_never_costs_and_never_hides_the_first_layer(tables: tuple[FloatArray, FloatArray]) -> None:
    backward, communication = (table[0] for table in tables)
    end = ends(backward[None], communication[None], [0], [0])[0]
    tolerance = 1e-9 * (1 + end)
    assert end <= backward.sum() + communication.sum() + tolerance
    assert end >= backward.sum() + communication[0] - tolerance


@given(tables(), TIMES, st.data())
def test_a_longer_message_never_ends_sooner(
    tables: tuple[FloatArray, FloatArray], more: float, data: st.DataObject
) -> None:
    backward, communication = (table[0] for table in tables)
    slower = communication.copy()
    slower[data.draw(st.integers(0, slower.size - 1))] += more
    before, after = (ends(backward[None], sent[None], [0], [0])[0] for sent in (communication, slower))
    assert after >= before - 1e-9


@pytest.mark.parametrize("tile", [1 << 15, 100])
@pytest.mark.parametrize("few", [0, 1 << 12])
def test_pairs_are_the_same_together_and_one_by_one(tile: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    backward, communication = rng.random((7, 33)), rng.random((40, 33))
    compute, message = (axis.ravel() for axis in np.indices((7, 40)))
    alone = [ends(backward, communication, [c], [m])[0] for c, m in zip(compute, message, strict=True)]
    monkeypatch.setattr("planner.steps.synchronous._TILE", tile)
    monkeypatch.setattr("planner.steps.synchronous._FEWEST_TILED_PAIRS", few)
    np.testing.assert_array_equal(ends(backward, communication, compute, message), alone)


@given(st.integers(0, 2**32 - 1))
def test_of_alike_cases_no_slot_is_left_out_that_decides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots = rng.integers(1, 40)
    sub_batches, widths = np.arange(1, 100)[:, None], rng.choice([0.1, 1, 10], 9)[:, None]
    backward = rng.choice([0, 1, 5], slots) * rng.random(slots) * sub_batches + rng.random(slots)
    communication = rng.choice([0, 1, 50], slots) * rng.random(slots) * widths
    ready, prefix = ready_s(backward), communication_prefix_s(communication)
    found = backward_end_s(ready, prefix, np.arange(len(ready))[:, None], np.arange(len(prefix)))
    np.testing.assert_array_equal(found, (ready[:, None] + prefix).max(axis=2))


def test_no_slots_end_at_once() -> None:
    assert ends(np.zeros((1, 0)), np.zeros((1, 0)), [0, 0], [0, 0]).tolist() == [0, 0]


@given(st.lists(st.tuples(TIMES, TIMES, st.integers(0, 6)), min_size=1, max_size=5))
def test_runs_of_equal_messages_are_so_many_slots(runs: list[tuple[float, float, int]]) -> None:
    """Backward time, time of a message and messages of each run; one without messages only takes time."""
    share, message, count = (np.array(column)[:, None] for column in zip(*runs, strict=True))
    found = runs_end_s(np.ones(1), Runs(share, message, count.astype(np.float64)))
    backward, sent = [0.0], [0.0]
    for each_s, message_s, number in runs:
        backward += [each_s / number] * number if number else [each_s]
        sent += [message_s] * number if number else [0.0]
    slots = np.array(backward)[None], np.array(sent)[None]
    expected = ends(*slots, [0], [0])[0] if count.any() else 0.0
    computed = float(share.sum())
    assert max(found[0], computed) == pytest.approx(max(expected, computed), rel=1e-12, abs=1e-12)
