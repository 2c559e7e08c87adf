"""Batches of inference, and the replicas that a rate needs."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.prediction import Batch
from planner.errors import ParameterError
from planner.steps.inference import check_batch, replicas_of

BATCHES = st.lists(
    st.builds(
        Batch,
        st.sampled_from(("fp32", "fp16", "int8")), st.integers(1, 64), st.floats(1e-4, 1.0), st.just({"weights": 1.0}),
        st.just(()),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(BATCHES, st.integers(1, 64), st.floats(1e-4, 1.0), st.floats(1.0, 1e5))
def test_the_first_plan_needs_the_fewest_replicas_of_all(
    batches: list[Batch], gpus: int, latency_s: float, rate: float
) -> None:
    needed = [ceil(rate / one.samples_per_s) for one in batches if one.latency_s <= latency_s]
    lawful = [count for count in needed if count <= gpus]
    plans = replicas_of(batches, gpus, latency_s, rate)
    assert bool(plans) == bool(lawful)
    if plans:
        assert plans[0][1] == min(lawful)
        assert all(one.latency_s <= latency_s and one.samples_per_s * count >= rate * 0.999999 for one, count in plans)
        assert len({one.precision for one, _ in plans}) == len(plans)


@given(BATCHES)
def test_without_a_rate_the_first_plan_is_the_fastest(batches: list[Batch]) -> None:
    best, count = replicas_of(batches, 8, None, None)[0]
    assert count == 1
    assert best.samples_per_s == max(one.samples_per_s for one in batches)


@given(st.integers(1, 4096))
def test_a_batch_that_int8_refuses_is_told_with_lawful_neighbours(size: int) -> None:
    if size % 4 == 0:
        check_batch("int8", size)
        return
    check_batch("fp16", size)
    with pytest.raises(ParameterError, match="a multiple of 4 in int8") as error:
        check_batch("int8", size)
    near = [int(word) for word in error.value.remedy.split() if word.isdecimal()]
    assert near
    assert all(abs(one - size) < 4 and one % 4 == 0 for one in near)
