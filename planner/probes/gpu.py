"""What a GPU of this machine is, and whether it still computes: its index, name, precisions, description."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.domain.cluster import Accelerator, Node
from planner.errors import MissingPackageError, ParameterError
from planner.probes.machine import describe_cpu, first_look, gpu_name
from planner.probes.precisions import COMPUTING, gpu_precisions, import_torch

CUDA_CORES: Mapping[tuple[int, int], int] = {
    (3, 0): 192, (5, 0): 128, (6, 0): 64, (6, 1): 128, (7, 0): 64, (8, 0): 64, (8, 6): 128,
}  # fmt: skip
"""CUDA cores of a multiprocessor from a compute capability on (CUDA C++ Programming Guide, arithmetic throughput)."""
ASSUMED_CLOCK_HZ, ASSUMED_MEMORY_BYTES_PER_S = 1.5e9, 4e11
"""Where the driver does not state them; measuring replaces what follows from them."""

Lookup = Callable[[str], Accelerator | None]
"""Name of an accelerator -> the bundled one; None where there is none."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine.

    Attributes
    ----------
    device : as PyTorch names it, such as ``cuda:0``
    label : as ``nvidia-smi`` names it: a UUID where it is known, else a number
    precisions : that it can be measured in, fp32 first
    cache_bytes : of its last cache; 0 where not known
    is_known : whether the accelerator is one that the caller knows, and not made of what the driver says
    node : the machine, with all its GPUs that PyTorch sees
    circumstances : that stay the same from run to run
    """

    device: str
    label: str
    precisions: tuple[str, ...]
    cache_bytes: int
    is_known: bool
    accelerator: Accelerator
    node: Node
    circumstances: Mapping[str, str]


def default_device(say: Callable[[str], object]) -> str:
    """Return what is measured where nobody says what: ``cuda`` where PyTorch computes on a CUDA device, else ``cpu``.

    A PyTorch without CUDA, or without a driver that it can use, warns, which is of no use here. A device that it sees
    but has no kernels for is told to ``say``. The GPU's state is read before that is tried, as it is without this
    process. MissingPackageError: PyTorch is not installed.
    """
    torch = import_torch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not torch.cuda.is_available():
            return "cpu"
        with contextlib.suppress(RuntimeError):  # what is wrong with the GPU the trial tells
            first_look(_label(torch.cuda.get_device_properties(0), 0))
        reason = why_no_kernel(torch, "cuda")
    if reason:
        say(f"the CPU is measured, as PyTorch sees a GPU but computes nothing on it: {reason}")
    return "cpu" if reason else "cuda"


def present_gpus(lookup: Lookup) -> tuple[Gpu, ...]:
    """Return the GPUs of this machine that PyTorch sees, by number."""
    cuda = import_torch().cuda
    return tuple(describe_gpu(f"cuda:{at}", lookup) for at in range(cuda.device_count() if cuda.is_available() else 0))


def why_no_kernel(torch: Any, device: str) -> str:
    """Return what PyTorch says where it cannot compute on a device; empty where it can.

    A build holds kernels for some generations of GPUs alone, and sees the others all the same.
    """
    try:
        (torch.zeros(8, device=device) + 1).sum().item()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def check_gpu(device: str) -> int:
    """Return the index of a device named ``cuda`` or ``cuda:INDEX``.

    MissingPackageError: PyTorch is not installed, or sees no CUDA device. ParameterError: there is no such device.
    """
    cuda = import_torch().cuda
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None:
        raise ParameterError("--device", "cpu, cuda or cuda:INDEX", device)
    if not cuda.is_available():
        raise MissingPackageError(
            f"--device must be a device that PyTorch sees, got {device!r} without CUDA; use --device cpu"
        )
    index, count = int(match[1] or 0), int(cuda.device_count())
    if index >= count:
        last = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0, the only GPU that PyTorch sees"
        raise ParameterError("--device", last, device)
    return index


def describe_gpu(device: str, lookup: Lookup) -> Gpu:
    """Return a GPU of this machine; ``lookup`` gives the bundled accelerator of a name, None where there is none.

    MissingPackageError, ParameterError: as :func:`check_gpu`.
    """
    index, torch = check_gpu(device), import_torch()
    properties = torch.cuda.get_device_properties(index)
    name = gpu_name(properties.name, float(properties.total_memory))
    entry, label = lookup(name), _label(properties, index)
    accelerator = entry or _accelerator(name, properties)
    node = Node(int(torch.cuda.device_count()), accelerator, describe_cpu()[1].host_memory_bytes, os.cpu_count() or 1)
    host, states = describe_cpu()[2], first_look(label)[0]
    cudnn = torch.backends.cudnn.version()
    circumstances = {key: host[key] for key in ("host_os", "cpu_model", "cpu_threads", "python")} | {
        "framework": f"pytorch {torch.__version__}",
        "gpu": str(properties.name),
        "gpu_capability": f"{properties.major}.{properties.minor}",
        "cuda": str(torch.version.cuda),
        "cudnn": "none" if cudnn is None else str(cudnn),
        "cudnn_benchmark": str(bool(torch.backends.cudnn.benchmark)).lower(),
        **({"gpu_driver": states[0].driver or ""} if states else {}),
    }
    return Gpu(
        f"cuda:{index}", label, gpu_precisions((properties.major, properties.minor)),
        int(getattr(properties, "L2_cache_size", 0)), entry is not None, accelerator, node, circumstances,
    )  # fmt: skip


def _label(properties: Any, index: int) -> str:
    uuid = str(getattr(properties, "uuid", ""))
    if uuid:
        return uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[index].strip() if index < len(visible) and visible[index].strip() else str(index)


def _accelerator(name: str, properties: Any) -> Accelerator:
    """Return an accelerator made of what the driver says: processors, clocks, width of the memory's bus."""
    capability, processors = (properties.major, properties.minor), int(properties.multi_processor_count)
    cores = CUDA_CORES[max(least for least in CUDA_CORES if least <= max(capability, min(CUDA_CORES)))]
    clock = 1e3 * float(getattr(properties, "clock_rate", 0)) or ASSUMED_CLOCK_HZ
    memory_clock = 1e3 * float(getattr(properties, "memory_clock_rate", 0))
    width = float(getattr(properties, "memory_bus_width", 0))
    return Accelerator(
        name, "gpu", float(properties.total_memory), 2 * memory_clock * width / 8 or ASSUMED_MEMORY_BYTES_PER_S,
        {one: 2.0 * cores * processors * clock * COMPUTING[one].times_fp32 for one in gpu_precisions(capability)},
        processors, "estimated from the driver's clocks and number of multiprocessors", vendor="NVIDIA",
    )  # fmt: skip


NO_MEMORY = "it does not fit the memory"


class DeviceLostError(RuntimeError):
    """A device computes nothing any more in this process; ``what``: the call or step that it failed in, if known."""

    def __init__(self, message: str, what: str = "") -> None:
        super().__init__(message)
        self.what = what


def check_computes(device: str, error: RuntimeError, what: str = "") -> None:
    """Tell whether an error of PyTorch is over with the call that it came from, by a tiny kernel.

    Behind some errors of CUDA, such as an illegal address, all calls fail until the process ends (CUDA Runtime API,
    cudaErrorIllegalAddress); behind others, such as a launch with too much shared memory, none.

    DeviceLostError: the device computes nothing any more; ``what``, a call or step, is what it was lost in.
    """
    torch = import_torch()
    found_no_memory = isinstance(error, torch.OutOfMemoryError)  # by the allocator, which calls nothing
    if device != "cpu":
        with contextlib.suppress(RuntimeError):  # what is still to be said of earlier calls; the kernel decides
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
    if not found_no_memory and why_no_kernel(torch, device):
        raise DeviceLostError(first_line(error), what) from error


def first_line(error: RuntimeError) -> str:
    """Return what an error of PyTorch says, without the hints of CUDA and of its allocator behind that."""
    return NO_MEMORY if isinstance(error, import_torch().OutOfMemoryError) else str(error).partition("\n")[0]
