"""Training steps of six networks at sub-batches that were not measured, with their own layers timed and without.

With: every distinct call at two sub-batches, and a step of each network at a third; without: what ``planner calibrate``
measures by default. A step is forward and backward; the machine must be as quiet as it was when it was calibrated, and
each run must keep to its budget and to 2 GB.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from planner.catalog import find_network
from planner.cli.progress import bar
from planner.cli.streams import note
from planner.domain.calibration import Calibration
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.network import Network
from planner.domain.prediction import Prediction
from planner.domain.request import Problem
from planner.fitting.calibration import fit_calibration
from planner.probes.bench import CpuBench, if_quiet, least_disturbed, one_thread
from planner.probes.calibrate import Measurement
from planner.probes.modules import build_module, gradient_time
from planner.probes.timing import give_back_memory
from planner.sessions.asked import Asked
from planner.sessions.measure import measured
from planner.sessions.session import Session
from planner.steps.predict import Evaluator

NETWORKS = (
    "resnet18",
    "googlenet",
    "mlp:input=1024,hidden=2048,layers=3,classes=1000",
    "gpt:layers=4,hidden=256,heads=4,sequence=128,vocabulary=8192",
    "bert:layers=4,hidden=256,heads=4,sequence=64,vocabulary=4096",
    "mobilenet-v2",
)
SUB_BATCHES = (3, 6, 12)
BUDGETS_S = {"own layers": 110.0, "generic": 60.0}
"""The second is the default."""
LARGEST_MEAN_ERROR = {"own layers": 0.08, "generic": 0.15}
"""Wanted are 0.05 and 0.10; times of one call on one machine drift by a tenth within minutes."""
LONGEST = 1.1
"""Of the budget, measuring and fitting."""
MOST_BYTES = 2e9
REPEATS = 3


def say(line: str = "") -> None:
    """Write a line of the report."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def calibrated(way: str, networks: tuple[Network, ...], partial_file: Path) -> tuple[Measurement, Calibration]:
    """Measure as the command does, with the networks' own layers first where there are any, and fit."""
    give_back_memory()  # of the run before, which as a command has a process of its own
    start, budget_s = time.perf_counter(), BUDGETS_S[way]
    made = measured(Asked(budget_s, networks), partial_file, Session(note, bar))
    found = made, fit_calibration(made.samples, "here", made.accelerator, made.node, steps=made.steps)
    took_s, most = time.perf_counter() - start, peak_bytes()
    say(f"{way}: {took_s:.1f} s of {budget_s:.0f} s, at most {most / 1e9:.2f} GB, {made.samples.size} rows")
    assert took_s <= LONGEST * budget_s
    assert most < MOST_BYTES
    return found


def peak_bytes() -> float:
    """Return the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def predicted(calibration: Calibration, made: Measurement, network: Network) -> list[Prediction]:
    """Return what a gradient computation takes at SUB_BATCHES: one node, no input, no update."""
    settings = Settings(optimizer="none", input="synthetic")
    cluster = Cluster("local", 1, made.node)
    problem = Problem(network, None, cluster, (calibration,), explicit_calibration=True, settings=settings)
    return Evaluator(problem).describe(Configurations.of([Configuration(1, 1, size) for size in SUB_BATCHES]))


def real_s(networks: Mapping[str, Network], quiet_s: float) -> dict[tuple[str, int], float]:
    """Return the measured seconds of every network and sub-batch; those that were disturbed are left out."""
    times: dict[tuple[str, int], float] = {}
    with one_thread():
        bench = CpuBench()
        for name, network in networks.items():
            module = build_module(network)
            for sub_batch in SUB_BATCHES:
                measure = partial(gradient_time, module, network, sub_batch, REPEATS)
                timing = if_quiet(least_disturbed(measure, bench, quiet_s, tries=10, pause_s=1))
                if timing:
                    times[name, sub_batch] = timing.time_s
    return times


def report(folder: Path) -> dict[str, float] | None:
    """Calibrate both ways, predict, measure, print every row; None where the machine was disturbed."""
    networks = {name: find_network(name) for name in NETWORKS}
    ways = {
        way: calibrated(way, tuple(networks.values()) if way == "own layers" else (), folder / f"{way}.jsonl")
        for way in BUDGETS_S
    }
    quiet_s = min(float(made.samples.circumstances["reference_s"]) for made, _ in ways.values())
    real = real_s(networks, quiet_s)
    means = {}
    for way, (made, calibration) in ways.items():
        errors, inside = [], []
        for name, network in networks.items():
            for sub_batch, one in zip(SUB_BATCHES, predicted(calibration, made, network), strict=True):
                if (name, sub_batch) not in real:
                    continue
                taken, guess = real[name, sub_batch], one.iteration_s
                error = guess.value / taken - 1
                errors.append(error)
                inside.append((guess.low or 0) <= taken <= (guess.high or 0))
                say(
                    f"{way:10} {network.name.partition(':')[0]:12} sub-batch {sub_batch:2}: predicted "
                    f"{guess.value * 1e3:7.1f} ms, measured {taken * 1e3:7.1f} ms, error {error:+.1%}"
                )
        means[way] = float(np.mean(np.abs(errors)))
        shown = f"mean absolute error {means[way]:.1%}, {np.mean(inside):.0%} of {len(errors)} in 90 % intervals"
        say(f"{way}: {shown}")
    return means if len(real) >= len(networks) * len(SUB_BATCHES) - 3 else None


@pytest.mark.live
def test_steps_at_other_sub_batches(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with capsys.disabled():
        say()
        means = report(tmp_path / "first")
        if means is None or any(means[way] > most for way, most in LARGEST_MEAN_ERROR.items()):
            say("the machine may have been disturbed: once more")
            means = report(tmp_path / "second")
    assert means is not None, "the machine did not become as quiet as it was when it was calibrated"
    for way, most in LARGEST_MEAN_ERROR.items():
        assert means[way] < most
