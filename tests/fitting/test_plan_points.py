"""Cells from measured runs: the shrunken mean of what predictions miss, by hand."""

import math
from dataclasses import replace

import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster, Node
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.network import INPUT, Layer, Network
from planner.domain.request import Problem
from planner.domain.training import TimedStep
from planner.fitting.plan_points import PlanPointRun, with_plan_points
from planner.sources.plan_points import points_of_entry
from planner.steps.predict import Evaluator

CPU = Accelerator("made-up", "cpu", 8 * 2.0**30, 1e10, {"fp32": 1e11})
NETWORK = Network(
    "two",
    (64,),
    (Layer("a", "linear", (INPUT,), {"features": 32}), Layer("loss", "loss", ("a",))),
)
BASE = Calibration(
    "base",
    CPU.name,
    (
        Entry("kernels", "gemm", "", "any", "", "flop.rate", {}, {"flop": 1e-9}),
        Entry("kernels", "pointwise", "", "any", "", "traffic.bytes", {}, {"calls": 1e-6, "bytes": 1e-10}),
    ),
    node=Node(1, CPU),
)
PROBLEM = Problem(NETWORK, None, Cluster("local", 1, Node(1, CPU)), (BASE,), settings=Settings(input="synthetic"))


def passes_s(calibration: Calibration, sub_batch: int) -> float:
    """Return the predicted time of forward and backward passes."""
    plans = Configurations.of([Configuration(1, 1, sub_batch)])
    (one,) = Evaluator(replace(PROBLEM, calibrations=(calibration,))).describe(plans)
    return sum(term.seconds for term in one.terms if term.name in ("forward", "backward"))


def run(sub_batch: int, ratio: float) -> PlanPointRun:
    return PlanPointRun(1, "fp32", TimedStep(NETWORK, sub_batch, ratio * passes_s(BASE, sub_batch)))


@pytest.mark.parametrize("ratios", [(1.3,), (0.8,), (1.1, 1.2), (1.3, 1.3, 1.3)])
def test_a_plan_point_moves_k_of_k_and_a_fifth_of_the_way(ratios: tuple[float, ...]) -> None:
    better = with_plan_points(BASE, PROBLEM, [run(8, ratio) for ratio in ratios])
    k, mean = len(ratios), sum(map(math.log, ratios)) / len(ratios)
    assert passes_s(better, 8) / passes_s(BASE, 8) == pytest.approx(math.exp(mean * k / (k + 0.2)))
    assert 0 < math.log(passes_s(better, 4) / passes_s(BASE, 4)) / mean < k / (k + 0.2)
    assert better.entries[:2] == BASE.entries
    assert better.entries[2].samples == k


def test_the_same_runs_again_change_nothing_and_others_are_kept() -> None:
    first = with_plan_points(BASE, PROBLEM, [run(8, 1.3), run(2, 0.9)])
    assert with_plan_points(first, PROBLEM, [run(8, 1.3)]) == first
    second = with_plan_points(first, PROBLEM, [run(8, 1.1), run(16, 1.2)])
    (entry,) = second.entries[2:]
    points = {one.sub_batch: one for one in points_of_entry(entry, NETWORK.name)}
    assert {n: one.runs for n, one in points.items()} == {2: 1, 8: 1, 16: 1}
    for n, ratio in ((2, 0.9), (8, 1.1), (16, 1.2)):
        assert points[n].factor == pytest.approx(ratio ** (1 / 1.2))
    other = replace(NETWORK, name="other")
    again = with_plan_points(second, replace(PROBLEM, network=other), [run(8, 2.0)])
    assert passes_s(again, 8) == passes_s(second, 8)
    assert again.entries[2].samples == 4
