"""Passes from measured runs: what predictions miss, kept as it is and drawn towards 1 where it is used, by hand."""

import math
from dataclasses import replace

import pytest

from planner.domain.calibration import OF_PASSES, Calibration, Entry
from planner.domain.cluster import Accelerator, Cluster, Node
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.domain.request import Problem
from planner.fitting.step_fit import measured_steps, with_measured_steps
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


def with_runs(base: Calibration, ratios: dict[int, tuple[float, ...]], problem: Problem = PROBLEM) -> Calibration:
    """Return a calibration with runs by sub-batch: what they take over what is predicted without."""
    times_s = {Configuration(1, 1, n): [ratio * passes_s(BASE, n) for ratio in of] for n, of in ratios.items()}
    problem = replace(problem, calibrations=(base,))
    return with_measured_steps(base, measured_steps(problem, times_s, OF_PASSES))


@pytest.mark.parametrize("ratios", [(1.3,), (0.8,), (1.1, 1.2), (1.3, 1.3, 1.3)])
def test_runs_of_a_sub_batch_move_it_k_of_k_and_a_fifth_of_the_way(ratios: tuple[float, ...]) -> None:
    better = with_runs(BASE, {8: ratios})
    k, mean = len(ratios), sum(map(math.log, ratios)) / len(ratios)
    assert passes_s(better, 8) / passes_s(BASE, 8) == pytest.approx(math.exp(mean * k / (k + 0.2)))
    assert 0 < math.log(passes_s(better, 4) / passes_s(BASE, 4)) / mean < k / (k + 0.2)
    assert better.entries == BASE.entries
    assert [(one.cluster, one.runs) for one in better.measured_steps] == [("", k)]
    assert better.measured_steps[0].factor == pytest.approx(math.exp(mean))


def test_the_same_runs_again_change_nothing_and_others_are_kept() -> None:
    first = with_runs(BASE, {8: (1.3,), 2: (0.9,)})
    assert with_runs(first, {8: (1.3,)}) == first
    second = with_runs(first, {8: (1.1,), 16: (1.2,)})
    factors = {one.configuration.sub_batch: one.factor for one in second.measured_steps}
    assert factors == pytest.approx({8: 1.1, 2: 0.9, 16: 1.2})
    again = with_runs(second, {8: (2.0,)}, replace(PROBLEM, network=replace(NETWORK, name="other")))
    assert passes_s(again, 8) == passes_s(second, 8)
    assert (len(again.measured_steps), again.seen) == (4, ("two", "other"))
