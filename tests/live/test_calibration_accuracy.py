"""The main promise of measuring a CPU: gradient computation of networks that took no part in the fit.

Nothing of the networks here is known to the design: its convolutions and products are drawn from generic ranges
(:mod:`planner.probes.points`), its training steps are of small networks of its own (:mod:`planner.probes.steps`).
"""

from __future__ import annotations

import sys
import time
from functools import partial

import numpy as np
import pytest

from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.network import Network
from planner.domain.request import Problem
from planner.fitting.calibration import fit_calibration
from planner.networks.zoo import build
from planner.probes.bench import CpuBench, one_thread, undisturbed
from planner.probes.calibrate import Measurement, measure_device
from planner.probes.modules import build_module, gradient_time
from planner.probes.places import CpuPlace
from planner.steps.predict import Evaluator

NETWORKS = ("resnet34", "googlenet")
SUB_BATCHES = (1, 4, 16)
LARGEST_MEAN_ERROR = 0.12
BUDGET_S = 50.0
LONGEST_CALIBRATION_S = 60.0


def say(line: str = "") -> None:
    """Write a line of the report."""
    sys.stdout.write(line + "\n")


def predicted_s(measurement: Measurement, network: Network) -> list[float]:
    """Return the predicted seconds of a gradient computation at SUB_BATCHES: one node, no input, no update."""
    calibration = fit_calibration(
        measurement.samples, "here", measurement.accelerator, measurement.node, steps=measurement.steps
    )
    cluster = Cluster("local", 1, measurement.node)
    settings = Settings(optimizer="none", input="synthetic")
    problem = Problem(network, None, cluster, (calibration,), explicit_calibration=True, settings=settings)
    wanted = Configurations.of([Configuration(1, 1, sub_batch) for sub_batch in SUB_BATCHES])
    return [float(time_s) for time_s in Evaluator(problem).evaluate(wanted).iteration_s]


def measured_s(measurement: Measurement, network: Network) -> list[float]:
    """Return the measured seconds at SUB_BATCHES; skip them all (empty) where the machine does not become quiet."""
    quiet_s = float(measurement.samples.circumstances["reference_s"])
    times = []
    with one_thread():
        bench, module = CpuBench(), build_module(network)
        for sub_batch in SUB_BATCHES:
            timing = undisturbed(partial(gradient_time, module, network, sub_batch), bench, quiet_s, tries=8, pause_s=2)
            if timing is None:
                return []
            times.append(timing.time_s)
    return times


def mean_error() -> float | None:
    """Calibrate, predict, measure, print every row; None where the machine was disturbed."""
    start = time.perf_counter()
    measurement = measure_device(CpuPlace(), BUDGET_S)
    assert time.perf_counter() - start < LONGEST_CALIBRATION_S
    errors = []
    for name in NETWORKS:
        network = build(name, {})
        rows = zip(SUB_BATCHES, predicted_s(measurement, network), measured_s(measurement, network), strict=False)
        for sub_batch, predicted, measured in rows:
            errors.append(predicted / measured - 1)
            say(
                f"{name:10} sub-batch {sub_batch}: predicted {predicted * 1e3:7.1f} ms, "
                f"measured {measured * 1e3:7.1f} ms, error {errors[-1]:+.1%}"
            )
    if len(errors) < len(NETWORKS) * len(SUB_BATCHES):
        return None
    mean = float(np.mean(np.abs(errors)))
    say(f"mean absolute error {mean:.1%} of {len(errors)} rows")
    return mean


@pytest.mark.live
def test_gradient_time_of_unseen_networks_within_12_percent(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        say()
        error = mean_error()
        if error is None or error >= LARGEST_MEAN_ERROR:
            say("the machine may have been disturbed: once more")
            error = mean_error()
    assert error is not None, "the machine did not become as quiet as it was when it was calibrated"
    assert error < LARGEST_MEAN_ERROR
