"""Calibrating a device: what it is, timings of kernels and steps within a budget, what its user must know."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.domain.arrays import check_positive
from planner.domain.cluster import Accelerator, Node
from planner.domain.network import Network
from planner.domain.samples import Samples
from planner.domain.training import TimedStep
from planner.probes.bench import CpuBench, one_thread
from planner.probes.design import DESIGN, designed_points
from planner.probes.inputs import INPUT_SHARE, with_input
from planner.probes.machine import cpu_steal_s, describe_cpu
from planner.probes.points import Point
from planner.probes.run import DISTURBED_NOTE, Progress, Run, Wanted, continued
from planner.probes.steps import timed_steps
from planner.probes.timing import keep_freed_memory
from planner.probes.torch_package import import_torch

__all__ = ["DISTURBED", "Measurement", "measure_cpu"]

STEPS_SHARE = 0.12
"""Of the budget, for training steps."""
DISTURBED = "warning_disturbed"
"""Circumstance that says how much was measured while the machine was disturbed; absent where little was."""
LEAST_SHARE = 0.05
"""Of convolutions and products, measured while the machine was disturbed: less does not matter to a fit."""
KEPT = "freed memory kept"
ALLOCATOR_WARNING = (
    "measured with an allocator that keeps freed memory; training with the default of glibc can take up to 40 % more: "
    "start it with MALLOC_MMAP_THRESHOLD_=2147483647 MALLOC_TRIM_THRESHOLD_=2147483647, or with jemalloc or tcmalloc"
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured, on what."""

    samples: Samples
    steps: tuple[TimedStep, ...]
    accelerator: Accelerator
    node: Node


def measure_cpu(
    budget_s: float,
    *,
    first: Sequence[Point] = (),
    networks: Sequence[Network] = (),
    wanted: Wanted | None = None,
    input_folder: Path | None = None,
    resume: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Measurement:
    """Return timed kernels and training steps of this CPU, on one pinned thread.

    Parameters
    ----------
    budget_s : float
        Wall time to spend, loading PyTorch and the measuring of a run that is continued included [s].
    first : sequence of Point
        Measured before all points of the generic design, in their order: the calls of networks.
    networks : sequence of Network
        Whose training steps are timed for the framework's overheads; none: small generic ones.
    wanted : Wanted, optional
        What decides which points are measured next, and when that is enough.
    input_folder : Path, optional
        On the disk whose reads are timed, with the decoding of images; None: neither is.
    resume : Path, optional
        File of partial samples: continued where circumstances agree, else set aside; to be deleted by the caller once
        the fit is safe.
    progress : callable, optional
    say : callable, optional
        Takes a sentence about what is continued or set aside.

    Raises
    ------
    MissingPackageError
        PyTorch is not installed.
    ParameterError
        The budget is not positive.
    OutputError
        The file of partial samples cannot be written.
    """
    check_positive("budget", budget_s, "seconds")
    start = time.perf_counter()
    torch = import_torch()
    accelerator, node, circumstances = describe_cpu()
    circumstances |= {
        "framework": f"pytorch {torch.__version__}",
        "threads": "1",
        "allocator": KEPT if keep_freed_memory() else "as it is",
        "design": DESIGN,
        "contained": "bias",
    }
    steal, earlier = cpu_steal_s(), continued(resume, circumstances)
    if say and earlier.note:
        say(earlier.note)
    with one_thread():
        bench = CpuBench()
        share = 1 - STEPS_SHARE - (INPUT_SHARE if input_folder else 0.0)
        for_points = max(budget_s * share - (time.perf_counter() - start), 0.0)
        points = (*first, *designed_points())
        run = Run(bench, points, for_points, earlier, wanted=wanted, resume=resume, progress=progress)
        samples = run.samples(accelerator.name, circumstances)
        if input_folder:
            samples = with_input(samples, input_folder, budget_s, accelerator.name)
        left_s = budget_s - earlier.used_s - (time.perf_counter() - start)
        steps = timed_steps(bench, float(samples.circumstances["reference_s"]), bench.clock() + left_s, networks)
    added = _warnings(samples, kept=circumstances["allocator"] == KEPT)
    after = cpu_steal_s()
    if steal is not None and after is not None:
        added["steal_during_s"] = f"{after - steal:.2f}"
    samples = replace(samples, circumstances={**samples.circumstances, **added})
    accelerator = _with_measured_peaks(accelerator, samples)
    return Measurement(samples, steps, accelerator, replace(node, accelerator=accelerator))


def _warnings(samples: Samples, *, kept: bool) -> dict[str, str]:
    """Return what whoever uses the calibration must know, as circumstances of the samples."""
    found = {"warning_allocator": ALLOCATOR_WARNING} if kept else {}
    products = np.isin(samples.text["kind"], ("convolution", "gemm"))
    disturbed = (samples.text["notes"] == DISTURBED_NOTE) & products
    share = float(disturbed.sum() / max(products.sum(), 1))
    if share >= LEAST_SHARE:
        found[DISTURBED] = (
            f"{share:.0%} of the convolutions and products were measured while the machine was disturbed; "
            "run it again when it is quiet"
        )
    return found


LARGE_COPY_ELEMENTS = 1 << 21


def _with_measured_peaks(accelerator: Accelerator, samples: Samples) -> Accelerator:
    """Return the accelerator with the best rates that were measured: of a product, and of a copy beyond the caches."""
    kind, number = samples.text["kind"], samples.number
    products = kind == "gemm"
    copies = (kind == "copy") & (number["elements"] >= LARGE_COPY_ELEMENTS)
    if not (products.any() and copies.any()):
        return accelerator
    flop = 2 * number["m"] * number["n"] * number["k"] * number["batch"]
    return replace(
        accelerator,
        peak_flop_per_s={"fp32": float(np.max((flop / samples.time_s)[products]))},
        memory_bytes_per_s=float(np.max((4 * number["traffic"] / samples.time_s)[copies])),
        source="measured on one thread: best matrix product, best copy of more than 8 MiB",
    )
