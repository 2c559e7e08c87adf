"""How long a person waits, in wall time of whole processes on this machine."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import planner

PACKAGE = str(Path(planner.__file__).parents[1])


def median_s(arguments: tuple[str, ...], folder: Path) -> float:
    """Return the median of five runs."""
    environment = os.environ | {"PYTHONPATH": PACKAGE, "XDG_DATA_HOME": str(folder)}
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        command = (sys.executable, "-m", "planner", *arguments)
        subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


@pytest.mark.live
@pytest.mark.parametrize(
    ("arguments", "most_s"), [(("--help",), 0.3), (("suggest", "--target-batch", "138"), 1.0)], ids=["help", "suggest"]
)
def test_an_answer_does_not_keep_one_waiting(arguments: tuple[str, ...], most_s: float, tmp_path: Path) -> None:
    took_s = median_s(arguments, tmp_path)
    if took_s >= most_s:  # once more: other work may have run beside
        took_s = median_s(arguments, tmp_path)
    sys.stdout.write(f"\nplanner {' '.join(arguments)}: {took_s:.2f} s\n")
    assert took_s < most_s
