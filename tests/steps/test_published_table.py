"""The published optima of the SPRINT work, from one reconstructed calibration and the two scenario rules.

In-sample: the calibration was solved for from this very table, so this checks the path from calibration to prediction
and the scenario rules. It is no evidence of accuracy.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import calibrations_for, find_accelerator, find_cluster, find_dataset, find_network
from planner.domain.configuration import Configuration, Configurations
from planner.domain.request import NO_SCENARIO, Problem
from planner.formats.cluster import parse_scenarios
from planner.steps.predict import Evaluator

PUBLISHED = json.loads((Path(__file__).parent.parent / "data" / "published" / "sprint.json").read_text())


def evaluator_of(row: dict[str, Any]) -> Evaluator:
    cluster = find_cluster("tsubame-kfc")
    scenario = parse_scenarios(row["scenario"], cluster, find_accelerator)[0] if row["scenario"] else NO_SCENARIO
    network, dataset = find_network("sprint-15"), find_dataset("imagenet-1k")
    return Evaluator(Problem(network, dataset, cluster, calibrations_for(cluster), scenario=scenario))


@pytest.mark.parametrize("row", PUBLISHED["rows"], ids=lambda row: row["name"])
def test_published_configurations_are_reproduced_in_sample(row: dict[str, Any]) -> None:
    plan = Configuration(row["nodes"], PUBLISHED["gpus_per_node"], row["sub_batch"], mode="async")
    found = evaluator_of(row).evaluate(Configurations.of([plan]))
    assert found.epoch_s[0] == pytest.approx(row["epoch_s"], rel=0.12)
    assert found.mini_batch_mean[0] == pytest.approx(row["mini_batch_mean"], rel=0.10)
    target, tolerance = PUBLISHED["target_mini_batch"], PUBLISHED["tolerance"]
    assert abs(found.mini_batch_mean[0] - target) <= tolerance * target


def test_the_answer_says_that_it_is_a_reconstruction() -> None:
    row = PUBLISHED["rows"][0]
    plan = Configuration(row["nodes"], PUBLISHED["gpus_per_node"], row["sub_batch"], mode="async")
    prediction = evaluator_of(row).describe(Configurations.of([plan]))[0]
    assert "reconstructed" in {warning.code for warning in prediction.warnings}
    assert {term.origin for term in prediction.terms if term.seconds > 0} == {"reconstructed"}
    assert prediction.epoch_s is not None
    assert prediction.epoch_s.interval_basis == "assumed"


def test_tsubame_2_5_is_specified_and_said_so() -> None:
    cluster = find_cluster("tsubame-2.5")
    problem = Problem(find_network("sprint-15"), find_dataset("imagenet-1k"), cluster, calibrations_for(cluster))
    loading = Evaluator(problem).sources
    assert loading.kernel("convolution", "forward", "fp32").calibration == "tsubame-2.5"
    assert {entry.origin for entry in calibrations_for(cluster)[0].entries} == {"specified"}
