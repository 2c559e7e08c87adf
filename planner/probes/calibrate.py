"""Calibrating a device: what it is, timings of kernels and steps within a budget, what its user must know."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import check_positive
from planner.domain.cluster import Accelerator, Node
from planner.domain.kernels import LINEAR_BIAS, is_that_of_fp32
from planner.domain.network import Network, Point
from planner.domain.samples import DISTURBED_NOTE, Samples, TimedStep
from planner.probes.bench import (
    LEFT_OUT,
    SUSTAINED_SHARE,
    WARNING_CLOCKS,
    Bench,
    CpuBench,
    cuda_bench,
    host_times,
    on_threads,
    operand_elements,
    sustained,
    usable_now,
)
from planner.probes.gpu import Lookup, describe_gpu
from planner.probes.inputs import INPUT_SHARE, measure_input
from planner.probes.layer_points import GPU_SUB_BATCHES, Extent
from planner.probes.machine import (
    busy,
    cpu_steal_s,
    describe_cpu,
    first_look,
    state_circumstances,
    threads_in_words,
    throttled,
    watched,
)
from planner.probes.points import DESIGN, GPU_DESIGN, designed_points, gpu_points
from planner.probes.precisions import CPU_PRECISIONS, HALVES, import_torch, wanted_precisions
from planner.probes.run import Goal, Progress, Run, continued, told_when_lost
from planner.probes.steps import StepNeed, StepTimes, timed_steps
from planner.probes.timing import keep_freed_memory


def with_shared_rows(samples: Samples, precisions: Sequence[str]) -> Samples:
    """Return samples with the fp32 rows of networks' calls that are the same in other precisions, for each of these."""
    kinds = samples.text["kind"].tolist()
    single = (samples.text["call"] != "") & (samples.text["precision"] == "fp32")
    whole = samples
    for precision in (name for name in precisions if name in ("tf32", *HALVES)):
        is_shared = single & np.array([is_that_of_fp32(kind, precision) for kind in kinds], dtype=np.bool_)
        if is_shared.any():
            rows = samples.select(is_shared)
            names: NDArray[np.str_] = np.full(rows.size, precision)
            whole = whole.joined(Samples({**rows.text, "precision": names}, rows.number, rows.circumstances))
    return whole


KEPT_MEMORY = "freed memory kept"
ALLOCATOR_WARNING = (
    "measured with an allocator that keeps freed memory; training with the default of glibc can take up to 40% more: "
    "start it with MALLOC_MMAP_THRESHOLD_=2147483647 MALLOC_TRIM_THRESHOLD_=2147483647, or with jemalloc or tcmalloc"
)
CONTAINED, CONTAINED_GPU = "bias", LINEAR_BIAS
"""Kinds whose time is part of that of other calls: on a GPU cuBLAS adds the bias of a linear layer, and the sum of its
gradient is timed with the gradient of weights; biases of convolutions are passes of their own."""
ELEMENTS_SHARE = 0.5
"""Of the memory that may be taken, for the operands and results of a call of a network."""


_cpu_design, _gpu_design = cache(designed_points), cache(gpu_points)


class CpuPlace:
    """The CPU of this machine, one pinned thread of it, or several.

    Attributes
    ----------
    began_s : when its making began, on :func:`time.perf_counter`
    precisions : to be measured, fp32 first
    has_stated_peaks : whether the accelerator's rates are a maker's, not to be replaced by measured ones
    circumstances : known before anything is measured
    warning : what must be said before; empty: nothing
    """

    device = "cpu"
    has_stated_peaks = False
    warning = ""

    def __init__(self, precisions: Sequence[str] = (), threads: int = 1) -> None:
        self.began_s, self._threads = time.perf_counter(), threads
        torch = import_torch()
        self.precisions = wanted_precisions(precisions, CPU_PRECISIONS, ("fp32",))
        self.accelerator, self.node, facts = describe_cpu(threads)
        self._keeps_memory = keep_freed_memory()
        self.circumstances: Mapping[str, str] = facts | {
            "framework": f"pytorch {torch.__version__}", "threads": str(threads),
            "allocator": KEPT_MEMORY if self._keeps_memory else "as it is", "design": DESIGN, "contained": CONTAINED,
        }  # fmt: skip
        self._steal_s = cpu_steal_s()

    def points(self) -> tuple[Point, ...]:
        """Return the generic design."""
        return _cpu_design(precisions=self.precisions)

    def extent(self) -> Extent:
        """Return how far the calls of networks are measured."""
        return Extent(precisions=self.precisions)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Bench]:
        """Yield the bench."""
        with on_threads(self._threads):
            yield CpuBench()

    def seen(self) -> dict[str, str]:
        """Return the warning about the allocator, and the time that the host took."""
        circumstances = {"warning_allocator": ALLOCATOR_WARNING} if self._keeps_memory else {}
        after_s = cpu_steal_s()
        if self._steal_s is not None and after_s is not None:
            circumstances["steal_during_s"] = f"{after_s - self._steal_s:.2f}"
        return circumstances


class GpuPlace:
    """One GPU of this machine; attributes are those of :class:`CpuPlace`.

    MissingPackageError: PyTorch is not installed, or sees no GPU.
    ParameterError: there is no such GPU, or it does not have a precision.
    """

    def __init__(self, device: str, precisions: Sequence[str] = (), lookup: Lookup = lambda _name: None) -> None:
        self.began_s = time.perf_counter()
        self._gpu = describe_gpu(device, lookup)
        self.device, self.accelerator, self.node = self._gpu.device, self._gpu.accelerator, self._gpu.node
        self.has_stated_peaks = self._gpu.is_known
        self.precisions = wanted_precisions(precisions, self._gpu.precisions, self._gpu.precisions)
        before, others = first_look(self._gpu.label)
        self.warning = busy(before, others)
        design = {"design": GPU_DESIGN, "contained": CONTAINED_GPU}
        self.circumstances: Mapping[str, str] = {**self._gpu.circumstances, **design}
        self._findings: dict[str, str] = {"warning_busy": self.warning} if self.warning else {}

    def points(self) -> tuple[Point, ...]:
        """Return the generic design."""
        return _gpu_design(self.precisions)

    def extent(self) -> Extent:
        """Return how far the calls of networks are measured: operands and results within the share of free memory.

        As the bench will find it: what others take or leave meanwhile is left out, or not asked for.

        ParameterError: PyTorch cannot use the GPU, as where others leave no memory for CUDA itself.
        """
        usable = usable_now(self.device)
        largest, total = operand_elements(usable), int(ELEMENTS_SHARE * usable / 4)
        return Extent(GPU_SUB_BATCHES, self.precisions, largest, total, on_gpu=True)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Bench]:
        """Yield the bench; the state of the GPU is read meanwhile."""
        cuda = import_torch().cuda
        with watched(self._gpu.label) as readings:
            bench = cuda_bench(self.device, self._gpu.cache_bytes)
            host = host_times(bench)
            yield bench
        sentence = throttled(readings)
        self._findings |= {"warning_throttled": sentence} if sentence else {}
        self._findings |= {key: f"{seconds:.4g}" for key, seconds in host.items()} | state_circumstances(readings)
        self._findings["gpu_peak_memory_bytes"] = str(cuda.max_memory_reserved(self.device))
        if bench.refused:
            reasons = {
                "memory": "do not fit the memory", "kernel": "have no kernel in the library", "view": "start no kernel",
            }  # fmt: skip
            counts = ", ".join(
                f"{bench.refused[key]} {reason}" for key, reason in reasons.items() if bench.refused[key]
            )
            self._findings["left_out"] = f"points of the design and of networks: {counts}"

    def seen(self) -> dict[str, str]:
        """Return times of the host, clocks, temperature, power, and the warnings that follow from them."""
        return self._findings


Place = CpuPlace | GpuPlace


def place_of(
    device: str, precisions: Sequence[str] = (), lookup: Lookup = lambda _name: None, threads: int = 1
) -> Place:
    """Return the place of a device's name: ``cpu``, of which some ``threads`` are used, ``cuda`` or ``cuda:INDEX``."""
    return CpuPlace(precisions, threads) if device == "cpu" else GpuPlace(device, precisions, lookup)


STEPS_SHARE = 0.12
"""Of the budget, for training steps."""
WARNING_DISTURBED = "warning_disturbed"
"""Circumstance that says how much was measured while the machine was disturbed; absent where little was."""
LEAST_DISTURBED_SHARE = 0.05
"""Of convolutions and products, measured while the machine was disturbed: less does not matter to a fit."""
WARNING_STEPS = "warning_steps"
"""Circumstance that says that no training step could be timed, so that no overheads can be fitted."""
WARNING_FAILED_STEPS = "warning_steps_failed"
"""Circumstance that says which training steps are left out, and why; absent where none are."""
LATE_WARNINGS = (LEFT_OUT, WARNING_FAILED_STEPS, WARNING_CLOCKS, "warning_throttled")
"""Circumstances that the user is told at once; one of a busy device was said before."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured, on what; ``precisions``: that were to be measured.

    ``missing``: points without which not all can be fitted, that no time was left for.
    """

    samples: Samples
    steps: tuple[TimedStep, ...]
    accelerator: Accelerator
    node: Node
    precisions: tuple[str, ...] = ("fp32",)
    missing: tuple[Point, ...] = ()


@dataclass(frozen=True, slots=True)
class Own:
    """Networks that a calibration is for, none: small generic ones; what their steps ask of a CPU, by name.

    ``points``: their calls, measured before all points of the generic design, in their order.
    """

    networks: tuple[Network, ...] = ()
    points: tuple[Point, ...] = ()
    needs: Mapping[str, StepNeed] = field(default_factory=dict)


NO_NETWORKS = Own()


def measure_device(
    place: Place,
    budget_s: float,
    *,
    own: Own = NO_NETWORKS,
    goal: Goal | None = None,
    input_folder: Path | None = None,
    resume: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Measurement:
    """Return timed kernels and training steps of a CPU or a GPU.

    Parameters
    ----------
    place : of :func:`place_of`: the device and its precisions
    budget_s : wall time to spend from the making of the place on, which loads PyTorch [s]. What measuring points of
        this run took in one that is continued is taken off; its other time is not, and training steps have their share
        in any case
    goal : what decides which points are measured next, and when that is enough
    input_folder : on the disk whose reads are timed, with the decoding of images; None: neither is
    resume : file of partial samples: continued where circumstances agree, else set aside; to be deleted by the caller
        once the fit is safe
    say : takes a sentence about what is continued, set aside or left out, and about a busy or throttled device

    ParameterError: the budget is not positive, or the device computes nothing any more; what was measured is kept.
    OutputError: the file of partial samples cannot be written.
    """
    check_positive("budget", budget_s, "seconds")
    start, tell = place.began_s, say or (lambda _sentence: None)
    name, points = place.accelerator.name, (*own.points, *place.points())
    every = (*points, *(goal.later if goal else ()))
    earlier = continued(resume, place.circumstances, {point.name for point in every})
    for sentence in filter(None, (earlier.note, place.warning)):
        tell(sentence)
    with told_when_lost(place.device, resume), place.measuring() as bench:
        for_load = 0.0 if place.device == "cpu" else SUSTAINED_SHARE
        share = 1 - STEPS_SHARE - for_load - (INPUT_SHARE if input_folder else 0.0)
        before_s, kept_s = time.perf_counter() - start, goal.kept_s if goal else lambda _points: 0.0
        run = Run(
            bench, points, max((budget_s if goal else budget_s * share) - before_s, 0.0), earlier, goal=goal,
            resume=resume, progress=progress,
            later_s=lambda count: max((budget_s - kept_s(count)) * share - before_s, 0.0),
        )  # fmt: skip
        whole_s = budget_s - (0.0 if run.missing else kept_s(len(run.timed)))
        input_rows = None
        if input_folder and not run.missing:
            run.tell("input")
            input_rows = measure_input(input_folder, INPUT_SHARE * whole_s, name, device=place.device)
        blocks_s = {point: statistics.median(timing.time_s for timing in of) for point, of in run.best().items()}
        load = sustained(bench, points, blocks_s, for_load * whole_s, earlier.failed)
        left_s = whole_s - (time.perf_counter() - start)  # earlier runs had their part of it, but for a share for steps
        until_s = bench.clock() + min(left_s, max(left_s - run.charged_s, STEPS_SHARE * whole_s))
        run.tell("training steps")
        step_times = timed_steps(
            bench, run.quiet_s(), until_s, own.networks, device=place.device, precisions=place.precisions,
            left_out=earlier.failed, needs=own.needs,
        )  # fmt: skip
        run.measure_again(step_times.reference_s, until_s)
        samples = with_shared_rows(run.samples(name, place.circumstances), place.precisions)
    samples = samples.joined(input_rows) if input_rows else samples
    findings = {**(input_rows.circumstances if input_rows else {}), **disturbed(samples)}
    findings |= _findings(step_times, load, place.seen(), earlier.failed)
    for sentence in (findings[key] for key in LATE_WARNINGS if key in findings):
        tell(sentence)
    samples = replace(samples, circumstances={**samples.circumstances, **findings})
    accelerator = place.accelerator if place.has_stated_peaks else _with_measured_peaks(place.accelerator, samples)
    node = replace(place.node, accelerator=accelerator)
    return Measurement(samples, step_times.steps, accelerator, node, place.precisions, run.missing)


def _findings(
    times: StepTimes, load: Mapping[str, str], of_place: Mapping[str, str], failures: Sequence[str]
) -> dict[str, str]:
    """Return what steps, lasting load and the device have shown, as circumstances, with all that was left out."""
    nothing = (
        "no training step was timed in quiet and in time, so what the framework adds to kernels is not known; run it "
        "again when the machine is quiet, or with a larger --budget"
    )
    before = f"what the device failed in before: {'; '.join(failures)}" if failures else ""
    sentences = {
        WARNING_STEPS: "" if times.steps else nothing,
        WARNING_FAILED_STEPS: f"training steps are left out of {'; '.join(times.failed)}" if times.failed else "",
        **load,
        **of_place,
        LEFT_OUT: "; ".join(filter(None, (of_place.get(LEFT_OUT), load.get(LEFT_OUT), before))),
    }
    return {key: sentence for key, sentence in sentences.items() if sentence}


def disturbed(samples: Samples) -> dict[str, str]:
    """Return what says that much was measured while the machine was disturbed, as circumstances.

    Of convolutions and products, or of all rows where there are none of these.
    """
    products = np.isin(samples.text["kind"], ("convolution", "gemm"))
    what, mask = ("convolutions and products", products) if products.any() else ("rows", ~products)
    share = float(np.mean(samples.text["notes"][mask] == DISTURBED_NOTE)) if mask.any() else 0.0
    if share < LEAST_DISTURBED_SHARE:
        return {}
    return {
        WARNING_DISTURBED: f"{share:.0%} of the {what} were measured while the machine was disturbed; "
        "run it again when it is quiet"
    }


LARGE_COPY_ELEMENTS = {"cpu": 1 << 21, "gpu": 1 << 25}
"""fp32 numbers, of which a copy is beyond the caches."""


def _with_measured_peaks(accelerator: Accelerator, samples: Samples) -> Accelerator:
    """Return the accelerator with the best rates that were measured: of a product, and of a copy beyond the caches."""
    kind, number, precision = samples.text["kind"], samples.number, samples.text["precision"]
    products = kind == "gemm"
    large = LARGE_COPY_ELEMENTS[accelerator.kind]
    copies = (kind == "copy") & (precision == "fp32") & (number["elements"] >= large)
    if not (products.any() and copies.any()):
        return accelerator
    rates = 2 * number["m"] * number["n"] * number["k"] * number["batch"] / samples.time_s
    names = dict.fromkeys(precision[products].tolist())
    peaks = {name: float(np.max(rates[products & (precision == name)])) for name in names}
    where = f" on {threads_in_words(accelerator.multiprocessors or 1)}" if accelerator.kind == "cpu" else ""
    return replace(
        accelerator,
        peak_flop_per_s={**accelerator.peak_flop_per_s, **peaks},
        memory_bytes_per_s=float(np.max((4 * number["traffic"] / samples.time_s)[copies])),
        source=f"measured{where}: best matrix product, best copy of more than {large >> 18} MiB",
    )
