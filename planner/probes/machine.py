"""What this machine is, without PyTorch: its CPU, names of its GPUs, and their state as ``nvidia-smi`` tells it.

Where that program is absent, or does not know a figure, the figure is absent.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import platform
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.domain.cluster import Accelerator, Node

MEMORY_GIB = {
    "b200-sxm-180gb": 179, "h200-sxm-141gb": 140.4, "h100-sxm5-80gb": 80, "h100-pcie-80gb": 80, "gh200-96gb": 96,
    "a100-sxm4-80gb": 80, "a100-sxm4-40gb": 40, "a100-pcie-80gb": 80, "a100-pcie-40gb": 40, "a40": 48, "a10": 24,
    "rtx-a6000": 48, "rtx-6000-ada": 48, "quadro-rtx-8000": 48, "l4": 24, "t4": 16, "v100-sxm2-16gb": 16,
    "v100-sxm2-32gb": 32, "v100-sxm3-32gb": 32, "v100-pcie-16gb": 16, "v100-pcie-32gb": 32, "p100-sxm2-16gb": 16,
    "p100-pcie-16gb": 16, "p40": 24, "p4": 8, "m40": 12, "m60": 8, "k80": 12, "k40": 12, "k20x": 6, "gtx-1080ti": 11,
    "gtx-1080": 8, "rtx-2080ti": 11, "rtx-3090": 24, "rtx-4090": 24, "titan-v": 12, "titan-rtx": 24, "titan-xp": 12,
    "titan-x-pascal": 12, "titan-x-maxwell": 12, "gb200": 185, "h800": 80, "h20": 96, "a800": 80, "a30": 24, "l40s": 48,
    "rtx-5090": 32, "rtx-3080": 10, "mi300x": 192,
}  # fmt: skip
"""Bundled name -> what memory a GPU of that name has [GiB]."""
DRIVER_NAMES = {
    "b200-sxm-180gb": "b200", "h200-sxm-141gb": "h200", "h100-sxm5-80gb": "h10080gbhbm3", "h100-pcie-80gb": "h100pcie",
    "gh200-96gb": "gh200480gb", "a100-sxm4-80gb": "a100sxm4?80gb", "a100-pcie-80gb": "a10080gbpcie|a100pcie80gb",
    "rtx-6000-ada": "rtx6000adageneration", "k40": "k40[cmst]?", "k20x": "k20x?m", "titan-x-maxwell": "gtxtitanx",
    "a800": "a800sxm480gb", "mi300x": "amdinstinctmi300x(?:vf)?",
}  # fmt: skip
"""Bundled name -> pattern of the letters and digits that the driver says, where those are not its own."""
MEMORY_TOLERANCE = 0.1
"""Drivers keep some of the memory, error correction on GDDR a sixteenth of it."""
GIB = 2.0**30


def gpu_name(driver_name: str, memory_bytes: float) -> str:
    """Return the bundled name of a GPU, else its own fit for a file name.

    >>> gpu_name("NVIDIA H100 80GB HBM3", 85e9), gpu_name("NVIDIA GeForce RTX 5070", 12e9)
    ('h100-sxm5-80gb', 'geforce-rtx-5070')
    """
    plain = re.sub(r"^nvidia\s+", "", driver_name.strip().lower())
    model = re.sub(r"[^a-z0-9]", "", re.sub(r"^(?:tesla|geforce)\s+", "", plain))
    for name, size_gib in MEMORY_GIB.items():
        pattern = DRIVER_NAMES.get(name, name.replace("-", ""))
        if re.fullmatch(pattern, model) and abs(memory_bytes / (size_gib * GIB) - 1) <= MEMORY_TOLERANCE:
            return name
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown-gpu"


def names_of_gpu(driver_name: str) -> tuple[str, ...]:
    """Return the bundled names that a GPU can have, whose memory is not known.

    >>> names_of_gpu("NVIDIA A100-SXM4-80GB"), names_of_gpu("AMD Instinct MI300X")
    (('a100-sxm4-80gb',), ('mi300x',))
    """
    names = dict.fromkeys(gpu_name(driver_name, size_gib * GIB) for size_gib in MEMORY_GIB.values())
    return tuple(name for name in names if name in MEMORY_GIB)


def likely_names(text: str, memory_bytes: float | None) -> tuple[tuple[str, ...], bool]:
    """Return the bundled names that a GPU may have, as its driver or somebody calls it, and whether it is the first.

    With its memory [byte] it is one, or its own where none is bundled.

    >>> likely_names("a30", None), likely_names("a100", None)[0][:2]
    ((('a30',), True), ('a100-sxm4-80gb', 'a100-sxm4-40gb'))
    """
    if memory_bytes is not None:
        name = gpu_name(text, memory_bytes)
        return (name,), name in MEMORY_GIB
    names, slug = names_of_gpu(text.replace("_", " ")), _slug(text)
    alike = tuple(name for name in MEMORY_GIB if f"-{slug}-" in f"-{name}-")
    return (names, True) if len(names) == 1 else (names or alike, False)


PROGRAM = "nvidia-smi"
TIMEOUT_S = 20.0
"""Without persistence mode the driver is loaded first, which takes seconds."""
READING_INTERVAL_MS = 500
QUERY = (
    "driver_version", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "utilization.gpu", "memory.used",
    "memory.total",
)  # fmt: skip
FIGURES = {
    "sm_clock_hz": 1e6, "memory_clock_hz": 1e6, "temperature_c": 1.0, "power_w": 1.0, "utilization": 0.01,
    "memory_used_bytes": 2.0**20, "memory_bytes": 2.0**20,
}  # fmt: skip
"""Figures of a query behind the driver, and how many of ours the program's unit is."""
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The last value of a query: its name in current drivers, and before."""
SLOWDOWN_REASONS = {
    0x04: "power limit", 0x08: "hardware slowdown", 0x20: "temperature (software)", 0x40: "temperature (hardware)",
    0x80: "power brake",
}  # fmt: skip
"""Bits of the reasons that slow a GPU down under load (NVML API reference, nvmlClocksThrottleReasons)."""
BUSY_UTILIZATION = 0.1
BUSY_MEMORY_SHARE = 0.05
"""Of a GPU's memory, held before this program uses any: more than a driver and a display take."""
LEAST_THROTTLED_SHARE = 0.2
"""Of the readings under load: a short dip does not change medians."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """One reading; None where it is not known.

    ``utilization``: share of the last second in which a kernel ran; ``throttle``: why the clocks are lower than they
    could be.
    """

    driver: str | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    utilization: float | None = None
    memory_used_bytes: float | None = None
    memory_bytes: float | None = None
    throttle: tuple[str, ...] = ()


def parse_states(text: str) -> tuple[GpuState, ...]:
    """Return the readings of lines of comma-separated values without units, in the order of QUERY and REASONS.

    A figure such as ``[N/A]`` or ``[Not Supported]`` is absent; a line of another number of values is passed over.
    """
    rows = [[value.strip() for value in line.split(",")] for line in text.splitlines()]
    return tuple(_state(row) for row in rows if len(row) == len(QUERY) + 1)


def _state(row: Sequence[str]) -> GpuState:
    mask = int(row[8], 16) if row[8].lower().startswith("0x") else 0
    return GpuState(
        None if row[0].startswith("[") else row[0],
        **{name: _number(text, scale) for (name, scale), text in zip(FIGURES.items(), row[1:8], strict=True)},
        throttle=tuple(name for bit, name in SLOWDOWN_REASONS.items() if mask & bit),
    )


def _number(value: str, scale: float = 1.0) -> float | None:
    try:
        return scale * float(value)
    except ValueError:
        return None


def states(gpu: str) -> tuple[GpuState, ...]:
    """Return one reading of a GPU, given its number or UUID; empty where none can be had."""
    return _query(gpu)[1]


def _query(gpu: str) -> tuple[list[str], tuple[GpuState, ...]]:
    """Return the arguments that this driver understands, and what it answers."""
    arguments: list[str] = []
    for reasons in REASONS:
        arguments = [f"--query-gpu={','.join((*QUERY, reasons))}", f"--id={gpu}"]
        readings = parse_states(_said(arguments))
        if readings:
            return arguments, readings
    return arguments, ()


def processes(gpu: str) -> tuple[int, ...]:
    """Return the numbers of other processes that compute on a GPU, as far as they can be seen."""
    numbers = (_number(line) for line in _said(["--query-compute-apps=pid", f"--id={gpu}"]).splitlines())
    return tuple(int(number) for number in numbers if number is not None and int(number) != os.getpid())


@functools.cache
def first_look(gpu: str) -> tuple[tuple[GpuState, ...], tuple[int, ...]]:
    """Return a reading of a GPU and the other processes on it, as they were when this was first asked for.

    To be asked for before this process computes on the GPU: from then on its own memory is part of the reading, and in
    a container the driver gives it another number than the system does.
    """
    return states(gpu), processes(gpu)


def installed_gpus() -> tuple[tuple[str, float], ...]:
    """Return name and memory [byte] of every GPU of this machine; empty where the driver's program is absent."""
    rows = [line.rsplit(",", 1) for line in _said(["--query-gpu=name,memory.total"]).splitlines()]
    sizes = [(row[0].strip(), _number(row[1], 2.0**20)) for row in rows if len(row) == 2]
    return tuple((name, size) for name, size in sizes if size is not None)


def _said(arguments: Sequence[str]) -> str:
    """Return what the program prints as values without header and units; nothing where it fails."""
    return printed([PROGRAM, *arguments, "--format=csv,noheader,nounits"])


def printed(command: Sequence[str]) -> str:
    """Return what a program prints; nothing where it is not installed, or fails."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        process = subprocess.run(  # noqa: S603 - no input of users
            [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout if process.returncode == 0 else ""


SYSTEM_FILES = (
    "class/infiniband/*/ports/*/rate", "class/infiniband/*/ports/*/state", "class/infiniband/*/ports/*/link_layer",
    "class/net/*/speed", "devices/system/cpu/present", "module/nvidia_peermem/initstate",
)  # fmt: skip


def reports(commands: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return what programs print, by name, and what files of the system say of adapters, as ``grep . FILES`` does."""
    texts = {name: text for name, command in commands.items() if (text := printed(command))}
    files = [path for pattern in SYSTEM_FILES for path in sorted(Path("/sys").glob(pattern))]
    lines = [f"{path}:{_read(str(path)).strip()}" for path in files]
    total = re.search(r"^MemTotal:.*", _read("/proc/meminfo"), re.MULTILINE)
    return texts | {"/sys": "\n".join([*lines, f"/proc/meminfo:{total[0]}" if total else ""])}


@contextlib.contextmanager
def watched(gpu: str) -> Iterator[list[GpuState]]:
    """Read the state of a GPU again and again; the list is filled when the context ends.

    The program runs beside this one, so that no kernel waits for it. It is ended by a signal, which loses what it has
    not handed over; to a terminal the C library hands over every line at once, to a file or a pipe only a full block.
    """
    readings, lines = list[GpuState](), list[str]()
    ours, theirs = os.openpty() if hasattr(os, "openpty") else os.pipe()

    def collect() -> None:  # until the other end is closed, which a terminal tells by an error
        with os.fdopen(ours, encoding="utf-8", errors="replace") as terminal, contextlib.suppress(OSError):
            lines.extend(terminal)

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    program, process = shutil.which(PROGRAM), None
    try:
        if program:
            what = [*_query(gpu)[0], "--format=csv,noheader,nounits", f"--loop-ms={READING_INTERVAL_MS}"]
            with contextlib.suppress(OSError):
                process = subprocess.Popen([program, *what], stdout=theirs, stderr=subprocess.DEVNULL)  # noqa: S603 - no input of users
    finally:
        os.close(theirs)
    try:
        yield readings
    finally:
        if process is not None:
            process.terminate()
            process.wait()
        reader.join()
        readings += parse_states("".join(lines))


def busy(before: Sequence[GpuState], others: Sequence[int]) -> str:
    """Return the sentence that says what else uses a GPU before it is measured; empty: nothing that is seen."""
    reasons = []
    if others:
        reasons.append(f"{len(others)} other process{'es' if len(others) > 1 else ''}")
    for state in before[:1]:
        if (state.utilization or 0.0) >= BUSY_UTILIZATION:
            reasons.append(f"{state.utilization:.0%} utilisation")
        share = (state.memory_used_bytes or 0.0) / (state.memory_bytes or 1.0)
        if share >= BUSY_MEMORY_SHARE and not others:
            reasons.append(f"{share:.0%} of its memory held")
    if not reasons:
        return ""
    return f"the GPU was busy before it was measured ({', '.join(reasons)}); run it again when it is idle"


def throttled(readings: Sequence[GpuState]) -> str:
    """Return the sentence that says how much of the time a GPU slowed itself down, and why; empty: little or never."""
    slow = [state for state in readings if state.throttle]
    share = len(slow) / max(len(readings), 1)
    if share < LEAST_THROTTLED_SHARE:
        return ""
    reasons = ", ".join(dict.fromkeys(name for state in slow for name in state.throttle))
    return f"the GPU slowed itself down in {share:.0%} of the readings ({reasons}); times hold for such cooling only"


def state_circumstances(readings: Sequence[GpuState]) -> dict[str, str]:
    """Return median clocks and power, the highest temperature, and the reasons of throttling, as circumstances."""
    circumstances: dict[str, str] = {}
    for name in ("sm_clock_hz", "memory_clock_hz", "temperature_c", "power_w"):
        values = [value for state in readings if isinstance(value := getattr(state, name), float)]
        if values:
            typical = max(values) if name == "temperature_c" else float(np.median(values))
            circumstances[f"gpu_{name}"] = f"{typical:.6g}"
    if readings:
        reasons = dict.fromkeys(name for state in readings for name in state.throttle)
        circumstances["gpu_throttle"] = ", ".join(reasons) or "none"
    return circumstances


ASSUMED_CLOCK_HZ = 2.5e9
"""Where the system states no clock."""
FLOP_PER_CYCLE = (("avx512f", 64), ("avx2", 32), ("avx", 16))
"""fp32 FLOP of one core a cycle, by instruction set: two fused multiply-adds of all lanes, half of that before AVX2."""
LEAST_FLOP_PER_CYCLE = 8
ASSUMED_MEMORY_BYTES_PER_S = 1e10
"""What one core reads and writes in memory; measuring replaces it."""


def cpu_name(model: str, threads: int) -> str:
    """Return what a device of so many threads of a CPU is called.

    >>> cpu_name("Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", 1), cpu_name("AMD EPYC 7742 64-Core Processor", 64)
    ('cpu-intel-xeon-e5-2690-v4', 'cpu-amd-epyc-7742-64-threads')
    """
    return f"cpu-{_slug(model)}{f'-{threads}-threads' if threads > 1 else ''}"


def describe_cpu(used: int = 1) -> tuple[Accelerator, Node, dict[str, str]]:
    """Return this CPU as an accelerator of so many threads, the node it stands in, and the circumstances.

    Rates are estimates from clock and instruction set until a measurement replaces them; ``source`` says so.
    Circumstances: host_os, cpu_model, cpu_threads, python; load_average and steal_s where the system states them.
    """
    first_processor = _read("/proc/cpuinfo").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first_processor.splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    model = facts.get("model name", "") or platform.processor() or platform.machine() or "unknown"
    threads = os.cpu_count() or 1
    total = re.search(r"^MemTotal:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    memory = 1024.0 * float(total[1]) if total else float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    flags = facts.get("flags", facts.get("Features", "")).split()
    per_cycle = next((count for flag, count in FLOP_PER_CYCLE if flag in flags), LEAST_FLOP_PER_CYCLE)
    clock = float(facts.get("cpu MHz", 0)) * 1e6 or ASSUMED_CLOCK_HZ
    accelerator = Accelerator(
        name=cpu_name(model, used), kind="cpu", memory_bytes=memory, memory_bytes_per_s=ASSUMED_MEMORY_BYTES_PER_S,
        peak_flop_per_s={"fp32": per_cycle * clock * used}, multiprocessors=used if used > 1 else None,
        source=f"estimated for {threads_in_words(used)} from clock and instruction set",
    )  # fmt: skip
    circumstances = {
        "host_os": f"{platform.system()} {platform.release()}",
        "cpu_model": model,
        "cpu_threads": str(threads),
        "python": platform.python_version(),
    }
    if hasattr(os, "getloadavg"):
        circumstances["load_average"] = f"{os.getloadavg()[0]:.2f}"
    steal_s = cpu_steal_s()
    if steal_s is not None:
        circumstances["steal_s"] = f"{steal_s:.2f}"
    return accelerator, Node(1, accelerator, memory, threads), circumstances


def available_bytes() -> float:
    """Return the memory that a program may take now [bytes]; inf where the system does not state it."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return 1024.0 * float(found[1]) if found else math.inf


def present_accelerators() -> tuple[str, ...]:
    """Return the names of the devices of this machine that a calibration can belong to: GPUs, the CPU, its threads."""
    gpus = dict.fromkeys(gpu_name(name, memory_bytes) for name, memory_bytes in installed_gpus())
    model = describe_cpu()[2]["cpu_model"]
    return (*gpus, *(cpu_name(model, number + 1) for number in range(os.cpu_count() or 1)))


def threads_in_words(number: int) -> str:
    """Return how many threads a device has."""
    return "one thread" if number == 1 else f"{number} threads"


def cpu_steal_s() -> float | None:
    """Return the seconds that the host has taken from this machine's CPUs since it started; None where not stated."""
    first = _read("/proc/stat").splitlines()[:1]
    fields = first[0].split() if first else []
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _slug(model: str) -> str:
    """Return a model fit for a file name: ``Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz`` as intel-xeon-e5-2690-v4."""
    plain = re.sub(r"\((?:r|tm|c)\)|@.*$|\b(?:cpu|processor|\d+-core)\b", " ", model.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown"
