"""Whole steps under scenarios of another GPU: what is scored, and against what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.formats.runs import read_runs
from planner.scoring.refit import Asked
from planner.sessions.runs import table_of
from validation import transfer_steps
from validation.transfer_steps import StepScore, step_scores

FOLDER = Path(transfer_steps.__file__).parent


@pytest.fixture(scope="module")
def asked() -> list[Asked]:
    table = table_of(read_runs(FOLDER / "cnn-benchmarks.csv"), FOLDER, {}, print)
    every = [Asked(problem, runs) for table_ in (table,) for problem, runs in table_.problems]
    return [one for one in every if one.problem.cluster.node.accelerator.name == "gtx-1080ti"][:2]


@pytest.fixture(scope="module")
def found(asked: list[Asked]) -> dict[str, StepScore]:
    return {one.source: one for one in step_scores(asked)}


def test_steps_are_predicted_from_every_other_gpu_with_runs(asked: list[Asked], found: dict[str, StepScore]) -> None:
    assert {one.gpu for one in found.values()} == {"gtx-1080ti"}
    assert {"titan-x-pascal", "titan-x-maxwell", "p100-sxm2-16gb", "v100-sxm2-16gb"} <= found.keys()
    steps = sum(len(one.observed) for one in asked)
    assert {one.rows for one in found.values()} == {steps}
    assert (found["titan-x-pascal"].near, found["titan-x-maxwell"].near) == ("chip", "vendor")


def test_a_measurement_twice_as_long_is_missed_by_half(asked: list[Asked], found: dict[str, StepScore]) -> None:
    """The prediction does not move with what it is compared with: error + 1 is inversely as large."""
    slower = [
        Asked(one.problem, tuple(replace(run, value=2 * (run.value or 0.0)) for run in one.runs)) for one in asked
    ]
    then = {one.source: one for one in step_scores(slower)}
    assert then.keys() == found.keys()
    for source, one in then.items():
        assert one.bias + 1 == pytest.approx((found[source].bias + 1) / 2)
        assert one.width == pytest.approx(found[source].width)
