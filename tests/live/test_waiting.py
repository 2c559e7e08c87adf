"""How long a person waits, in wall time of whole processes, relative to a fixed one on this machine."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import planner

PACKAGE = str(Path(planner.__file__).parents[1])


REFERENCE = """
import numpy, json, re
counts = {}
for i in range(400_000):
    counts[i % 997] = counts.get(i % 991, 0) + i * i % 7
"""
"""Imports and plain Python, as an answer has them: what slows the one slows the other."""


def median_s(command: tuple[str, ...], folder: Path) -> float:
    """Return the median of five runs of Python."""
    environment = os.environ | {"PYTHONPATH": PACKAGE, "XDG_DATA_HOME": str(folder)}
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run((sys.executable, *command), cwd=folder, env=environment, capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def ratio(arguments: tuple[str, ...], folder: Path) -> float:
    """Return how many times as long as the reference a command takes."""
    took_s, reference_s = median_s(("-m", "planner", *arguments), folder), median_s(("-c", REFERENCE), folder)
    sys.stdout.write(f"\nplanner {' '.join(arguments)}: {took_s:.2f} s, {took_s / reference_s:.1f} of the reference\n")
    return took_s / reference_s


@pytest.mark.live
@pytest.mark.parametrize(
    ("arguments", "most"), [(("--help",), 1.2), (("suggest", "--target-batch", "138"), 8.0)], ids=["help", "suggest"]
)
def test_an_answer_does_not_keep_one_waiting(arguments: tuple[str, ...], most: float, tmp_path: Path) -> None:
    found = ratio(arguments, tmp_path)
    if found >= most:  # once more: other work may have run beside
        found = ratio(arguments, tmp_path)
    assert found < most
