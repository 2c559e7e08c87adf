"""Training steps of four networks at sub-batches that were not measured, with their own layers timed and without.

With: every distinct call at two sub-batches, and a step of each network at a third; without: what ``planner calibrate``
measures by default. A step is forward and backward. Each run of the command must keep to its budget and to 2 GB; other
work on the machine only lengthens what it takes, so the better of two tries counts; a second is made of what failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import planner
from planner.catalog import find_calibration, find_network
from planner.domain.calibration import Calibration
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.network import Network
from planner.domain.prediction import Prediction
from planner.domain.request import Problem
from planner.probes.bench import DISTURBED_RATIO, CpuBench, least_disturbed, on_threads
from planner.probes.steps import build_module, gradient_time
from planner.steps.predict import Evaluator

NETWORKS = (
    "resnet18",
    "mlp:input=1024,hidden=2048,layers=3,classes=1000",
    "gpt:layers=4,hidden=256,heads=4,sequence=128,vocabulary=8192",
    "mobilenet-v2",
)
SUB_BATCHES = (3, 12)
BUDGETS_S = {"own layers": 30.0, "generic": 25.0}
"""The default is 60 s; less is enough for bounds that see gross faults."""
LARGEST_MEAN_ERROR = 0.25
"""Means of 3 to 12 % were seen with own layers, of 7 to 16 % without: one step of an MLP took 31 ms, and hours later
48, on a machine that shares its memory with others. So this bound sees gross faults alone, and the report the rest.
"""
LEAST_INSIDE = 0.6
"""Share of steps in their 90 % intervals."""
LONGEST = 1.1
"""Of the budget, measuring and fitting."""
MOST_BYTES = 2e9
REPEATS = 2
PACKAGE = str(Path(planner.__file__).parents[1])


STARTER = """
import os, subprocess, sys
with open(sys.argv[1], "w") as output:
    process = subprocess.Popen(sys.argv[2:], stdout=output, stderr=subprocess.STDOUT)
    _, status, used = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""
"""Starts a command and prints its exit code and the most memory it held [bytes]. Linux counts the memory of a process
that starts another as the other's too (``maxrss`` outlives ``exec``): so one that holds next to nothing starts it.
"""


def say(line: str = "") -> None:
    """Write a line of the report."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Run:
    """A calibration, how long the command took [s], and the most memory that it held [bytes]."""

    calibration: Calibration
    took_s: float
    most_bytes: float


@dataclass(frozen=True)
class Outcome:
    """What one try found: mean absolute error, shares in the intervals and of the budget, most memory [bytes]."""

    mean_error: float
    inside: float
    budget_share: float
    most_bytes: float


def calibrated(way: str, folder: Path) -> Run:
    """Run the command, with the networks' own layers first where they are asked for."""
    out = folder / f"{way.replace(' ', '-')}.json"
    named = [f"--network={name}" for name in NETWORKS] if way == "own layers" else []
    command = [sys.executable, "-m", "planner", "calibrate", f"--budget={BUDGETS_S[way]:.0f}s", f"--out={out}", *named]
    environment = os.environ | {"PYTHONPATH": PACKAGE, "XDG_DATA_HOME": str(folder)}
    start = time.perf_counter()
    starter = [sys.executable, "-c", STARTER, str(folder / "output.txt"), *command]
    code, most = map(float, subprocess.run(starter, env=environment, stdout=subprocess.PIPE, check=True).stdout.split())
    took_s = time.perf_counter() - start
    assert code == 0, (folder / "output.txt").read_text()
    say(f"{way}: {took_s:.1f} s of {BUDGETS_S[way]:.0f} s, at most {most / 1e9:.2f} GB")
    return Run(find_calibration(str(out)), took_s, most)


def predicted(calibration: Calibration, network: Network) -> list[Prediction]:
    """Return what a gradient computation takes at SUB_BATCHES: one node, no input, no update."""
    settings = Settings(optimizer="none", input="synthetic")
    assert calibration.node is not None
    cluster = Cluster("local", 1, calibration.node)
    problem = Problem(network, None, cluster, (calibration,), explicit_calibration=True, settings=settings)
    return Evaluator(problem).describe(Configurations.of([Configuration(1, 1, size) for size in SUB_BATCHES]))


def real_s(networks: Mapping[str, Network], quiet_s: float) -> dict[tuple[str, int], float]:
    """Return the measured seconds of every network and sub-batch; those that were disturbed are left out."""
    times: dict[tuple[str, int], float] = {}
    with on_threads(1):
        bench = CpuBench()
        for name, network in networks.items():
            module = build_module(network)
            for sub_batch in SUB_BATCHES:
                measure = partial(gradient_time, module, network, sub_batch, REPEATS)
                trial = least_disturbed(measure, bench, quiet_s, tries=10, pause_s=1)
                if trial and trial[1] <= DISTURBED_RATIO:
                    times[name, sub_batch] = trial[0].time_s
    return times


def report(folder: Path, ways: Iterable[str]) -> dict[str, Outcome]:
    """Calibrate each way, predict, measure, print every row; nothing where the machine was disturbed."""
    folder.mkdir()
    networks = {name: find_network(name) for name in NETWORKS}
    runs = {way: calibrated(way, folder) for way in ways}
    quiet_s = min(float(run.calibration.environment["reference_s"]) for run in runs.values())
    real = real_s(networks, quiet_s)
    outcomes = {}
    for way, run in runs.items():
        errors, inside = [], []
        for name, network in networks.items():
            for sub_batch, one in zip(SUB_BATCHES, predicted(run.calibration, network), strict=True):
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
        mean = float(np.mean(np.abs(errors))) if errors else np.inf
        within = float(np.mean(inside)) if inside else 0.0
        say(f"{way}: mean absolute error {mean:.1%}, {within:.0%} of {len(errors)} in 90 % intervals")
        outcomes[way] = Outcome(mean, within, run.took_s / BUDGETS_S[way], run.most_bytes)
    return outcomes if len(real) >= len(networks) * len(SUB_BATCHES) - 3 else {}


DISTURBED_S = 110
"""Of a first try; a quiet machine takes some 95."""


def is_good(one: Outcome | None) -> bool:
    """Tell whether a try met its bounds of error and time."""
    if one is None:
        return False
    return one.mean_error < LARGEST_MEAN_ERROR and one.inside >= LEAST_INSIDE and one.budget_share <= LONGEST


@pytest.mark.live
def test_steps_at_other_sub_batches(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    start = time.monotonic()
    with capsys.disabled():
        say()
        tries = [report(tmp_path / "first", BUDGETS_S)]
        again = [way for way in BUDGETS_S if not is_good(tries[0].get(way))]
        if again and time.monotonic() - start > DISTURBED_S:
            pytest.skip("the machine was disturbed all along: measuring took too long to do it once more")
        if again:
            say("the machine may have been disturbed: once more")
            tries.append(report(tmp_path / "second", again))
    outcomes = {way: [one[way] for one in tries if way in one] for way in BUDGETS_S}
    if not all(outcomes.values()):
        pytest.skip("the machine did not become as quiet as it was when it was calibrated")
    for quiet in outcomes.values():
        assert min(one.mean_error for one in quiet) < LARGEST_MEAN_ERROR
        assert max(one.inside for one in quiet) >= LEAST_INSIDE
        assert min(one.budget_share for one in quiet) <= LONGEST
        assert max(one.most_bytes for one in quiet) < MOST_BYTES
