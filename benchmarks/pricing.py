"""Price 1 048 576 configurations and compare with a fixed NumPy workload.

ResNet-50 on dgx1-v100, wait-free: 64 node counts x 8 GPU counts x 256 sub-batches x 2 precisions x 4 accumulation
steps, all tables included. The ratio to the fixed workload says how fast pricing is on any machine.

    python benchmarks/pricing.py

prints one JSON line: seconds, configurations per second, peak resident memory in MB, and the ratio.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from planner.catalog import calibrations_for, find_cluster, find_dataset, find_network
from planner.domain.configuration import Configurations, Settings
from planner.domain.request import Problem
from planner.steps.predict import Evaluator

NODES, GPUS, SUB_BATCHES, PRECISIONS, STEPS = 64, 8, 256, ("fp32", "fp16"), 4
ROUNDS = 3


def configurations() -> Configurations:
    """Return the product of the axes, accumulation steps fastest."""
    sizes = (NODES, GPUS, SUB_BATCHES, len(PRECISIONS), STEPS)
    rest = np.arange(int(np.prod(sizes)), dtype=np.int64)
    mode = np.zeros_like(rest)
    axes = []
    for size in reversed(sizes):
        axes.append(rest % size)
        rest = rest // size
    steps, precision, sub_batch, gpus, nodes = axes
    return Configurations(nodes + 1, gpus + 1, sub_batch + 1, steps + 1, precision, mode, precisions=PRECISIONS)


def problem() -> Problem:
    """Return ResNet-50 on the bundled cluster with its bundled calibrations."""
    cluster = find_cluster("dgx1-v100")
    settings = Settings(strategy="wait-free", input="synthetic" if cluster.storage is None else "storage")
    network, dataset = find_network("resnet50"), find_dataset("imagenet-1k")
    return Problem(network, dataset, cluster, calibrations_for(cluster), settings=settings)


def fixed_workload() -> float:
    """Do 600 passes of multiply, add and maximum over 65 536 doubles; return their sum."""
    a, b = np.linspace(0, 1, 1 << 16), np.linspace(1, 2, 1 << 16)
    total = 0.0
    for _ in range(600):
        a = np.maximum(a * b + 0.25, 0.5) % 1.0
        total += float(a[0])
    return total


def best_s(work: Callable[[], object]) -> float:
    """Return the shortest of ROUNDS wall times [s]."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_resident_bytes() -> float:
    """Return the most memory that this process has held [bytes].

    From /proc where there is one: the resource usage of a process there begins with that of its parent at the fork.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return float(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Measure and print."""
    every, task = configurations(), problem()
    pricing_s = best_s(lambda: Evaluator(task).evaluate(every))
    figures = {
        "configurations": every.size,
        "seconds": round(pricing_s, 4),
        "configurations_per_s": round(every.size / pricing_s),
        "peak_resident_MB": round(peak_resident_bytes() / 1e6, 1),
        "ratio_to_fixed_workload": round(pricing_s / best_s(fixed_workload), 3),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
