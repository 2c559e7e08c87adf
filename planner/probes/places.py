"""What is measured on: this CPU or one of its GPUs, with its bench, its design, and what its user must know."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol

from planner.domain.cluster import Accelerator, Node
from planner.domain.kernels import LINEAR_BIAS
from planner.probes.bench import Bench, CpuBench, one_thread
from planner.probes.cuda_bench import cuda_bench, host_times, operand_elements, usable_now
from planner.probes.design import DESIGN, designed_points
from planner.probes.gpu import Lookup, describe_gpu
from planner.probes.gpu_points import GPU_DESIGN, gpu_points
from planner.probes.gpu_state import busy, first_look, state_circumstances, throttled, watched
from planner.probes.layer_points import GPU_SUB_BATCHES, Extent
from planner.probes.machine import cpu_steal_s, describe_cpu
from planner.probes.points import Point
from planner.probes.precisions import CPU_PRECISIONS, wanted_precisions
from planner.probes.timing import keep_freed_memory
from planner.probes.torch_package import import_torch

__all__ = ["KEPT_MEMORY", "CpuPlace", "GpuPlace", "Place", "place_of", "unknown"]

KEPT_MEMORY = "freed memory kept"
ALLOCATOR_WARNING = (
    "measured with an allocator that keeps freed memory; training with the default of glibc can take up to 40 % more: "
    "start it with MALLOC_MMAP_THRESHOLD_=2147483647 MALLOC_TRIM_THRESHOLD_=2147483647, or with jemalloc or tcmalloc"
)
CONTAINED, CONTAINED_GPU = "bias", LINEAR_BIAS
"""Kinds whose time is part of that of other calls: on a GPU cuBLAS adds the bias of a linear layer, and the sum of its
gradient is timed with the gradient of weights; biases of convolutions are passes of their own."""
ELEMENTS_SHARE = 0.5
"""Of the memory that may be taken, for the operands and results of a call of a network."""


def unknown(_name: str) -> None:
    """Know no accelerator."""


class Place(Protocol):
    """What is measured on.

    Attributes
    ----------
    began_s : float
        When its making began, on :func:`time.perf_counter`.
    device : str
        As PyTorch names it.
    precisions : tuple of str
        To be measured, fp32 first.
    accelerator : Accelerator
    node : Node
    has_stated_peaks : bool
        Whether the accelerator's rates are a maker's, not to be replaced by measured ones.
    circumstances : mapping of str to str
        Known before anything is measured.
    warning : str
        What must be said before; empty: nothing.
    """

    began_s: float
    device: str
    precisions: tuple[str, ...]
    accelerator: Accelerator
    node: Node
    has_stated_peaks: bool
    circumstances: Mapping[str, str]
    warning: str

    def points(self) -> tuple[Point, ...]:
        """Return the generic design."""

    def extent(self) -> Extent:
        """Return how far the calls of networks are measured."""

    def measuring(self) -> contextlib.AbstractContextManager[Bench]:
        """Return the bench, ready to time, until the context ends."""

    def seen(self) -> dict[str, str]:
        """Return what the measuring has shown besides times, as circumstances, once its context has ended."""


_cpu_design, _gpu_design = cache(designed_points), cache(gpu_points)


class CpuPlace:
    """The CPU of this machine, one pinned thread of it."""

    device = "cpu"
    has_stated_peaks = False
    warning = ""

    def __init__(self, precisions: Sequence[str] = ()) -> None:
        self.began_s = time.perf_counter()
        torch = import_torch()
        self.precisions = wanted_precisions(precisions, CPU_PRECISIONS, ("fp32",))
        self.accelerator, self.node, facts = describe_cpu()
        self._keeps_memory = keep_freed_memory()
        self.circumstances: Mapping[str, str] = facts | {
            "framework": f"pytorch {torch.__version__}",
            "threads": "1",
            "allocator": KEPT_MEMORY if self._keeps_memory else "as it is",
            "design": DESIGN,
            "contained": CONTAINED,
        }
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
        with one_thread():
            yield CpuBench()

    def seen(self) -> dict[str, str]:
        """Return the warning about the allocator, and the time that the host took."""
        circumstances = {"warning_allocator": ALLOCATOR_WARNING} if self._keeps_memory else {}
        after_s = cpu_steal_s()
        if self._steal_s is not None and after_s is not None:
            circumstances["steal_during_s"] = f"{after_s - self._steal_s:.2f}"
        return circumstances


class GpuPlace:
    """One GPU of this machine.

    Raises
    ------
    MissingPackageError
        PyTorch is not installed, or sees no GPU.
    ParameterError
        There is no such GPU, or it does not have a precision.
    """

    def __init__(self, device: str, precisions: Sequence[str] = (), lookup: Lookup = unknown) -> None:
        self.began_s = time.perf_counter()
        self._gpu = describe_gpu(device, lookup)
        self.device, self.accelerator, self.node = self._gpu.device, self._gpu.accelerator, self._gpu.node
        self.has_stated_peaks = self._gpu.is_known
        self.precisions = wanted_precisions(precisions, self._gpu.precisions, self._gpu.precisions)
        before, others = first_look(self._gpu.label)
        self.warning = busy(before, others)
        self.circumstances: Mapping[str, str] = {
            **self._gpu.circumstances,
            "design": GPU_DESIGN,
            "contained": CONTAINED_GPU,
        }
        self._findings: dict[str, str] = {"warning_busy": self.warning} if self.warning else {}

    def points(self) -> tuple[Point, ...]:
        """Return the generic design."""
        return _gpu_design(self.precisions)

    def extent(self) -> Extent:
        """Return how far the calls of networks are measured: operands and results within the share of free memory.

        As the bench will find it: what others take or leave meanwhile is left out, or not asked for.

        Raises
        ------
        ParameterError
            PyTorch cannot use the GPU, as where others leave no memory for CUDA itself.
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


def place_of(device: str, precisions: Sequence[str] = (), lookup: Lookup = unknown) -> Place:
    """Return the place of a device's name: ``cpu``, ``cuda`` or ``cuda:INDEX``."""
    return CpuPlace(precisions) if device == "cpu" else GpuPlace(device, precisions, lookup)
