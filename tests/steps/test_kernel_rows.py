"""Kernels one by one are what steps take, and what networks ask for."""

import numpy as np
import pytest

from planner.catalog import calibrations_for, find_cluster, find_network
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.request import Problem
from planner.steps.compute import PASSES, scaled
from planner.steps.kernel_rows import by_kind, kernel_rows, work_rows
from planner.steps.predict import Evaluator
from planner.workload.calls import totals

NETWORKS = ("resnet18", "vgg16", "alexnet", "googlenet")


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_kernels_add_up_to_the_passes_of_a_step(name: str, precision: str) -> None:
    cluster = find_cluster("dgx1-v100")
    settings = Settings(input="synthetic")
    evaluator = Evaluator(Problem(find_network(name), None, cluster, calibrations_for(cluster), settings=settings))
    plan = Configuration(1, 1, 16, precision=precision)
    rows = kernel_rows(evaluator, plan)
    pricer = evaluator.pricer_of(Configurations.of([plan]))
    costs = pricer.compute.cases
    costs.ensure(np.zeros(1, dtype=np.int64), np.array([16]))
    row = costs.rows(np.zeros(1, dtype=np.int64), np.array([16]))
    units = pricer.compute.ranks[0].units
    number = np.bincount(units.sequence, minlength=units.distinct)
    each = (scaled(costs.columns.kernel_s[row], pricer.overheads) @ number)[0]
    wanted = sum(float(each[PASSES.index(stage)]) for stage in ("forward", "backward", "update"))
    assert sum(one.seconds for one in rows) == pytest.approx(wanted)
    assert sum(by_kind(rows).values()) == pytest.approx(wanted)
    assert [one.seconds for one in rows] == sorted((one.seconds for one in rows), reverse=True)


@pytest.mark.parametrize("name", NETWORKS)
def test_work_is_that_of_the_totals(name: str) -> None:
    network = find_network(name)
    rows, whole = work_rows(network), totals(network)
    assert sum(one.calls for one in rows) == whole.kernel_calls
    assert sum(one.flop for one in rows) == whole.training_flop


def test_memory_bounds_what_lies_below_the_ridge_and_compute_what_lies_above() -> None:
    cluster = find_cluster("dgx-a100")
    device = cluster.node.accelerator
    settings = Settings(input="synthetic")
    evaluator = Evaluator(Problem(find_network("vgg16"), None, cluster, calibrations_for(cluster), settings=settings))
    for one in kernel_rows(evaluator, Configuration(1, 1, 64, precision="fp16")):
        if one.bound in ("memory", "compute"):
            assert (one.bound == "compute") == (one.flop / one.bytes >= device.ridges[one.precision])
