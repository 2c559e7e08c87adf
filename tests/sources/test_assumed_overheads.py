"""Intervals where no framework was measured."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.domain.calibration import Calibration, Entry
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.prediction import Prediction
from planner.domain.request import Problem
from planner.sources.overheads import ASSUMED_SCALE_DEVIATION, EXPONENTS
from planner.steps.intervals import ASSUMED_OVERHEADS_DEVIATION, RECONSTRUCTED_DEVIATION, STATED_DEVIATION
from planner.steps.predict import Evaluator

Predicted = Callable[[str, tuple[Entry, ...]], Prediction]


@pytest.fixture
def exact(calibration: Calibration) -> tuple[Entry, ...]:
    """Kernels without error, and overheads that add nothing."""
    return tuple(replace(entry, covariance=None, error=0.0) for entry in calibration.entries)


@pytest.fixture
def predicted(make_problem: Callable[..., Problem], cluster: Cluster, calibration: Calibration) -> Predicted:
    def of(kind: str, entries: tuple[Entry, ...]) -> Prediction:
        node = replace(cluster.node, accelerator=replace(cluster.node.accelerator, kind=kind))
        made = (replace(calibration, entries=entries),)
        settings = Settings(input="synthetic")
        problem = make_problem(cluster=replace(cluster, node=node), calibrations=made, settings=settings)
        return Evaluator(problem).describe(Configurations.of([Configuration(1, 1, 8)]))[0]

    return of


def kernels_of(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if entry.scope == "kernels")


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_kernels_are_as_unsure_as_frameworks_differ(predicted: Predicted, exact: tuple[Entry, ...], kind: str) -> None:
    """Of a stage of t seconds, k of kernels alone, kernels answer for t·(k/t)^p, the host for the rest; p: exponent."""
    with_host, without = predicted(kind, kernels_of(exact)), predicted(kind, exact)
    assumed, fitted = with_host.iteration_s, without.iteration_s
    of_kernels_s = sum(
        t.seconds * (k.seconds / t.seconds) ** EXPONENTS["exponent"]
        for t, k in zip(with_host.terms, without.terms, strict=True)
        if t.seconds
    )
    host_s = assumed.value - of_kernels_s
    assert (host_s > 1e-9) == (kind == "gpu")
    parts = (ASSUMED_SCALE_DEVIATION[kind] * of_kernels_s, ASSUMED_OVERHEADS_DEVIATION * host_s)
    assert assumed.deviation == pytest.approx(math.hypot(*parts) / assumed.value)
    assert (assumed.interval_basis, fitted.interval_basis) == ("assumed", "covariance")
    assert fitted.low == fitted.high == fitted.value


@pytest.mark.parametrize(
    ("origin", "error", "deviation"),
    [("reconstructed", 0.0, RECONSTRUCTED_DEVIATION), ("specified", None, STATED_DEVIATION["kernels"])],
)
def test_a_stated_deviation_is_one_of_whole_steps(
    predicted: Predicted, exact: tuple[Entry, ...], origin: str, error: float | None, deviation: float
) -> None:
    stated = tuple(replace(entry, origin=origin, error=error) for entry in kernels_of(exact))
    assert predicted("cpu", stated).iteration_s.deviation == pytest.approx(deviation)
