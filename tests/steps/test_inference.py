"""Batches of inference, and the replicas that a rate needs."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import find_calibration, find_cluster, find_framework, find_network
from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Settings
from planner.domain.prediction import Batch, Quantity
from planner.domain.request import Problem
from planner.errors import ParameterError
from planner.sources.sources import Sources
from planner.steps.inference import Inference, check_batch, replicas_of

BATCHES = st.lists(
    st.builds(
        Batch,
        st.sampled_from(("fp32", "fp16", "int8")), st.integers(1, 64), st.builds(Quantity, st.floats(1e-4, 1.0)),
        st.just({"weights": 1.0}),
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


def batch_of(calibrations: tuple[Calibration, ...]) -> Batch:
    network, cluster = find_network("resnet50"), find_cluster("ec2-g4dn-12xlarge")
    settings = Settings(input="synthetic", framework=find_framework("tensorrt"))
    problem = Problem(network, None, cluster, calibrations, settings=settings)
    return Inference(Sources(problem), "fp16").batch(32)


def test_an_interval_is_of_what_kernels_missed_and_of_no_whole_step() -> None:
    """Scales that were fitted to training steps have no part in either."""
    bundled = tuple(find_calibration(name) for name in ("t4", "any-steps"))
    assert {entry.scope for one in bundled for entry in one.entries} >= {"kernels", "overheads"}

    def batch(misses: float, scale: float) -> Batch:
        def changed(one: Entry) -> Entry:
            if one.scope == "kernels":
                return replace(one, error=misses, held_out_error=misses, sum_error=misses)
            scales = {name: value * scale for name, value in one.coefficients.items() if name.endswith("_scale")}
            return replace(one, coefficients={**one.coefficients, **scales})

        return batch_of(tuple(replace(one, entries=tuple(map(changed, one.entries))) for one in bundled))

    good, scaled, poor = batch(0.02, 1.0), batch(0.02, 3.0), batch(0.2, 1.0)
    assert good.latency == scaled.latency
    assert poor.latency.value == good.latency.value
    assert poor.latency.high is not None
    assert good.latency.high is not None
    assert poor.latency.high / good.latency.high > 1.1
