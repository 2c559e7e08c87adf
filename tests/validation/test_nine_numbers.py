"""The baseline of nine numbers: what it is fitted to comes back, and what is left out takes no part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner import catalog
from planner.domain.configuration import Settings
from planner.domain.request import Problem
from planner.domain.runs import Run
from planner.scoring.refit import Asked
from validation.nine_numbers import NUMBERS, NineNumbers, fit_nine_numbers, held_out_errors

PLANS = ((1, 1, 4), (1, 1, 16), (1, 1, 64), (1, 4, 16), (2, 4, 16), (4, 4, 64))
"""Nodes, GPUs per node and sub-batch."""


def asked_of(network: str, cluster: str, precision: str) -> Asked:
    machine = catalog.find_cluster(cluster)
    machine = replace(machine, nodes=8)
    problem = Problem(
        catalog.find_network(network),
        None,
        machine,
        catalog.calibrations_for(machine),
        settings=Settings(input="synthetic"),
    )
    runs = [
        Run(
            id=f"{network}-{precision}-{at}", network=network, cluster=cluster, metric="iteration_s", value=1.0,
            nodes=nodes, gpus_per_node=gpus, sub_batch=batch, precision=precision, source=network,
        )
        for at, (nodes, gpus, batch) in enumerate(PLANS)
    ]  # fmt: skip
    return Asked(problem, runs)


ASKED = (
    asked_of("resnet18", "ec2-g4dn-12xlarge", "fp32"),
    asked_of("alexnet", "ec2-g4dn-12xlarge", "fp16"),
    asked_of("bert-base:sequence=64", "ec2-g4dn-12xlarge", "fp32"),
)
TRUE = NineNumbers(
    np.array([0.2, 0.0, 0.3, 0.4]), np.array([0.05, 0.2, -0.1]), {"exponent": 1.0, "exponent_attention": 3.0}
)
"""No run shows specified kernels here, whose scale stays that of the prior."""


def as_predicted(numbers: NineNumbers) -> list[Asked]:
    """Return the runs with the times that some numbers give."""
    found = []
    for one in ASKED:
        (observed,) = one.observed
        times = numbers.times_s(observed).tolist()
        found.append(Asked(one.problem, [replace(run, value=t) for run, t in zip(one.runs, times, strict=True)]))
    return found


def test_there_are_nine() -> None:
    assert NUMBERS == 9


def test_times_that_nine_numbers_make_are_predicted_by_a_fit_to_them() -> None:
    asked = as_predicted(TRUE)
    found = fit_nine_numbers([one for some in asked for one in some.observed])
    for some in asked:
        (observed,) = some.observed
        np.testing.assert_allclose(found.times_s(observed), observed.measured_s, rtol=0.02)


def test_what_is_left_out_takes_no_part() -> None:
    asked = as_predicted(TRUE)
    first, *others = held_out_errors(asked, "source")
    slow = Asked(asked[0].problem, [replace(run, value=5 * run.value) for run in asked[0].runs if run.value])
    again, *changed = held_out_errors([slow, *asked[1:]], "source")
    assert (1 + first) / 5 == pytest.approx(1 + again, rel=1e-9)
    assert all(abs(old - new).max() > 0.01 for old, new in zip(others, changed, strict=True))
