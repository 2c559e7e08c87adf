"""Intervals by conformal scores: of which kind, and of which calibration."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.domain.calibration import Calibration
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.prediction import Quantity
from planner.domain.provenance import NORMAL_90, PREDICTION_KINDS, ConformalScore
from planner.domain.request import Problem
from planner.steps.predict import Evaluator

Make = Callable[..., Problem]
SYNTHETIC = Settings(input="synthetic")


def one(**changes: Any) -> Configurations:
    return Configurations.of([Configuration(**({"nodes": 1, "gpus_per_node": 1, "sub_batch": 8} | changes))])


def half(found: Quantity) -> float:
    """Return half the width of an interval, as a logarithm."""
    assert found.low is not None
    assert found.high is not None
    return math.log(found.high / found.low) / 2


def scores_of(inside: float | None, outside: float | None) -> dict[str, ConformalScore]:
    """Return half-widths of every kind, those of one GPU half of the others; None: of too few groups."""
    found = {}
    for name, kind in PREDICTION_KINDS.items():
        width = outside if kind.is_outside else inside
        factor = 0.5 if kind.place == "one_gpu" else 1.0
        found[name] = ConformalScore(None if width is None else factor * width, 0.9, 20, 100)
    return found


def shared(inside: float | None, outside: float | None) -> Calibration:
    return Calibration("shared", "any", (), conformal=scores_of(inside, outside))


def with_shared(problem: Problem, *more: Calibration) -> Problem:
    return replace(problem, calibrations=(*problem.calibrations, *more))


@pytest.mark.parametrize(("gpus", "width"), [(1, 0.15), (4, 0.3)])
def test_a_conformal_width_takes_the_place_of_the_stated_one(make_problem: Make, gpus: int, width: float) -> None:
    problem = make_problem()
    plain, scaled = (
        Evaluator(some).describe(one(gpus_per_node=gpus))[0]
        for some in (problem, with_shared(problem, shared(0.3, 0.3)))
    )
    for field in ("iteration_s", "epoch_s", "first_epoch_s", "samples_per_s"):
        before, after = getattr(plain, field), getattr(scaled, field)
        assert (after.value, after.interval_basis) == (before.value, "conformal")
        assert half(after) == pytest.approx(width)
        assert after.deviation == before.deviation
    assert plain.iteration_s.deviation == pytest.approx(half(plain.iteration_s) / NORMAL_90)


def test_asynchronous_periods_stay_as_they_are(make_problem: Make) -> None:
    problem = make_problem()
    plain, scored = (
        Evaluator(some).describe(one(mode="async"))[0] for some in (problem, with_shared(problem, shared(9.0, 9.0)))
    )
    assert (plain.iteration_s, plain.update_s, plain.kind) == (scored.iteration_s, scored.update_s, "")


def test_outside_of_what_was_seen_the_interval_is_another_and_that_is_said(
    make_problem: Make, calibration: Calibration
) -> None:
    narrow = tuple(
        replace(e, ranges={"flop": (0.0, 1.0)}) if e.kind == "convolution" else e for e in calibration.entries
    )
    found = {}
    for kind, entries in (("one_gpu_measured", calibration.entries), ("one_gpu_measured_outside", narrow)):
        problem = make_problem(calibrations=(replace(calibration, entries=entries), shared(2.0, 5.0)))
        found[kind] = Evaluator(problem).describe(one())[0]
        assert found[kind].kind == kind
    inside, outside = (half(some.iteration_s) for some in found.values())
    assert outside == pytest.approx(2.5 * inside)
    (first, *_) = (w for w in found["one_gpu_measured_outside"].warnings if w.code == "extrapolated")
    assert first.message == (
        "The forward and backward times lie outside what toy-kernels was fitted on; the interval comes from runs "
        "that were outside too."
    )
    unscored = make_problem(calibrations=(replace(calibration, entries=narrow), shared(2.0, None)))
    stated = Evaluator(unscored).describe(one())[0]
    assert stated.iteration_s.interval_basis in ("assumed", "covariance")
    assert not [w for w in stated.warnings if "outside too" in w.message]


def test_kinds_tell_measured_from_specified_kernels_and_one_from_several(make_problem: Make) -> None:
    specified, measured = make_problem(calibrations=(), settings=SYNTHETIC), make_problem(settings=SYNTHETIC)
    assert Evaluator(specified).describe(one())[0].kind == "one_gpu_specified"
    assert Evaluator(measured).describe(one())[0].kind == "one_gpu_measured"
    several = [Evaluator(p).describe(one(nodes=2))[0].kind for p in (specified, measured)]
    assert [PREDICTION_KINDS[kind][:2] for kind in several] == [
        ("several_nodes", "specified"),
        ("several_nodes", "measured"),
    ]
    on_node = Evaluator(measured).describe(one(gpus_per_node=4))[0].kind
    assert PREDICTION_KINDS[on_node].place == "one_node"


def test_an_accelerators_own_scores_go_before_pooled_ones(make_problem: Make, calibration: Calibration) -> None:
    def width(*calibrations: Calibration) -> float:
        return half(Evaluator(make_problem(calibrations=calibrations)).describe(one())[0].iteration_s)

    own = replace(calibration, conformal=scores_of(4.0, 4.0))
    assert width(shared(2.0, 2.0), own) == pytest.approx(2.0)
    assert width(calibration, shared(2.0, 2.0)) == pytest.approx(1.0)
    few = replace(calibration, conformal=scores_of(None, None))
    assert width(few, shared(2.0, 2.0)) == width(calibration, shared(2.0, 2.0))


def test_scores_of_gpus_say_nothing_of_a_cpu(make_problem: Make, cluster: Cluster) -> None:
    device = replace(cluster.node.accelerator, kind="cpu")
    problem = make_problem(cluster=replace(cluster, node=replace(cluster.node, accelerator=device)))
    plain, scored = (
        Evaluator(some).describe(one())[0].iteration_s for some in (problem, with_shared(problem, shared(9.0, 9.0)))
    )
    assert plain == scored
