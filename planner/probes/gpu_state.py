"""The state of a GPU while it is measured, as ``nvidia-smi`` tells it: clocks, temperature, power, throttling, others.

Nothing here needs PyTorch. Where the program is absent, or does not know a figure, that figure is absent.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "GpuState",
    "busy",
    "first_look",
    "installed_gpus",
    "parse_states",
    "processes",
    "state_circumstances",
    "states",
    "throttled",
    "watched",
]

PROGRAM = "nvidia-smi"
TIMEOUT_S = 20.0
"""Without persistence mode the driver is loaded first, which takes seconds."""
READING_INTERVAL_MS = 500
QUERY = (
    "driver_version", "clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "utilization.gpu", "memory.used",
    "memory.total",
)  # fmt: skip
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The last value of a query: its name in current drivers, and before."""
SLOWDOWN_REASONS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
"""Bits of the reasons that slow a GPU down under load (NVML API reference, nvmlClocksThrottleReasons)."""
BUSY_UTILIZATION = 0.1
BUSY_MEMORY_SHARE = 0.05
"""Of a GPU's memory, held before this program uses any: more than a driver and a display take."""
LEAST_THROTTLED_SHARE = 0.2
"""Of the readings under load: a short dip does not change medians."""


@dataclass(frozen=True, slots=True)
class GpuState:
    """One reading; None where it is not known.

    Attributes
    ----------
    driver : str or None
    sm_clock_hz, memory_clock_hz, temperature_c, power_w : float or None
    utilization : float or None
        Share of the last second in which a kernel ran.
    memory_used_bytes, memory_bytes : float or None
    throttle : tuple of str
        Why the clocks are lower than they could be.
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
    clock, memory_clock, temperature, power, utilization, in_use, total = map(_number, row[1:8])
    mask = int(row[8], 16) if row[8].lower().startswith("0x") else 0
    return GpuState(
        None if row[0].startswith("[") else row[0],
        _times(1e6, clock),
        _times(1e6, memory_clock),
        temperature,
        power,
        _times(0.01, utilization),
        _times(2.0**20, in_use),
        _times(2.0**20, total),
        tuple(name for bit, name in SLOWDOWN_REASONS.items() if mask & bit),
    )


def _times(scale: float, value: float | None) -> float | None:
    return None if value is None else scale * value


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def states(gpu: str) -> tuple[GpuState, ...]:
    """Return one reading of a GPU, given its number or UUID; empty where none can be had."""
    return _read(gpu)[1]


def _read(gpu: str) -> tuple[list[str], tuple[GpuState, ...]]:
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

    It is to be asked for before this process computes on the GPU: from then on its own memory is part of the reading,
    and in a container the driver gives it another number than the system does there.
    """
    return states(gpu), processes(gpu)


def installed_gpus() -> tuple[tuple[str, float], ...]:
    """Return name and memory [byte] of every GPU of this machine; empty where the driver's program is absent."""
    rows = [line.rsplit(",", 1) for line in _said(["--query-gpu=name,memory.total"]).splitlines()]
    sizes = [(row[0].strip(), _number(row[1])) for row in rows if len(row) == 2]
    return tuple((name, size * 2.0**20) for name, size in sizes if size is not None)


def _said(arguments: Sequence[str]) -> str:
    """Return what the program prints as values without header and units; nothing where it fails."""
    program = shutil.which(PROGRAM)
    if program is None:
        return ""
    command = [program, *arguments, "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603 - no input of users
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return process.stdout if process.returncode == 0 else ""


@contextlib.contextmanager
def watched(gpu: str) -> Iterator[list[GpuState]]:
    """Read the state of a GPU again and again; the list is filled when the context ends.

    The program runs beside this one, so that no kernel waits for it. It is ended by a signal, which loses what it has
    not handed over; to a terminal the C library hands over every line at once, to a file or a pipe only a full block.
    """
    readings: list[GpuState] = []
    lines: list[str] = []
    ours, theirs = os.openpty() if hasattr(os, "openpty") else os.pipe()
    reader = threading.Thread(target=_collect, args=(ours, lines), daemon=True)
    reader.start()
    try:
        process = _started(gpu, theirs)
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


def _collect(descriptor: int, lines: list[str]) -> None:
    """Take in every line until the other end is closed, which a terminal tells by an error."""
    with open(descriptor, encoding="utf-8", errors="replace") as terminal, contextlib.suppress(OSError):
        lines += terminal


def _started(gpu: str, output: int) -> subprocess.Popen[bytes] | None:
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    what = [*_read(gpu)[0], "--format=csv,noheader,nounits", f"--loop-ms={READING_INTERVAL_MS}"]
    try:
        return subprocess.Popen([program, *what], stdout=output, stderr=subprocess.DEVNULL)  # noqa: S603 - no input of users
    except OSError:
        return None


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
