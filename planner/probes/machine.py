"""What this machine is, without PyTorch: its CPU as an accelerator, its node, and a measurement's circumstances."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from planner.domain.cluster import Accelerator, Node
from planner.probes.gpu_names import gpu_name
from planner.probes.gpu_state import installed_gpus

__all__ = ["cpu_steal_s", "describe_cpu", "present_accelerators"]

ASSUMED_CLOCK_HZ = 2.5e9
"""Where the system states no clock."""
FLOP_PER_CYCLE = (("avx512f", 64), ("avx2", 32), ("avx", 16))
"""fp32 FLOP of one core a cycle, by instruction set: two fused multiply-adds of all lanes, half of that before AVX2."""
LEAST_FLOP_PER_CYCLE = 8
ASSUMED_MEMORY_BYTES_PER_S = 1e10
"""What one core reads and writes in memory; measuring replaces it."""


def describe_cpu() -> tuple[Accelerator, Node, dict[str, str]]:
    """Return this CPU as an accelerator of one thread, the node it stands in, and the circumstances.

    Rates are estimates from clock and instruction set until a measurement replaces them; ``source`` says so.

    Returns
    -------
    Accelerator
        Named ``cpu-`` and the model.
    Node
    dict of str to str
        host_os, cpu_model, cpu_threads, python, load_average, steal_s; values that the system does not state are
        absent.
    """
    facts = _cpu_facts()
    model = facts.get("model name", "") or platform.processor() or platform.machine() or "unknown"
    threads = os.cpu_count() or 1
    memory = _memory_bytes()
    flags = facts.get("flags", facts.get("Features", "")).split()
    per_cycle = next((count for flag, count in FLOP_PER_CYCLE if flag in flags), LEAST_FLOP_PER_CYCLE)
    clock = float(facts.get("cpu MHz", 0)) * 1e6 or ASSUMED_CLOCK_HZ
    accelerator = Accelerator(
        name="cpu-" + _slug(model),
        kind="cpu",
        memory_bytes=memory,
        memory_bytes_per_s=ASSUMED_MEMORY_BYTES_PER_S,
        peak_flop_per_s={"fp32": per_cycle * clock},
        source="estimated for one thread from clock and instruction set",
    )
    circumstances = {
        "host_os": f"{platform.system()} {platform.release()}",
        "cpu_model": model,
        "cpu_threads": str(threads),
        "python": platform.python_version(),
        **_load(),
    }
    return accelerator, Node(1, accelerator, memory, threads), circumstances


def present_accelerators() -> tuple[str, ...]:
    """Return the names of the devices of this machine that a calibration can belong to: GPUs, then the CPU."""
    gpus = dict.fromkeys(gpu_name(name, memory_bytes) for name, memory_bytes in installed_gpus())
    return (*gpus, describe_cpu()[0].name)


def cpu_steal_s() -> float | None:
    """Return the seconds that the host has taken from this machine's CPUs since it started; None where not stated."""
    first = _read("/proc/stat").splitlines()[:1]
    fields = first[0].split() if first else []
    return int(fields[8]) / os.sysconf("SC_CLK_TCK") if len(fields) > 8 else None


def _load() -> Mapping[str, str]:
    circumstances = {}
    if hasattr(os, "getloadavg"):
        circumstances["load_average"] = f"{os.getloadavg()[0]:.2f}"
    steal = cpu_steal_s()
    if steal is not None:
        circumstances["steal_s"] = f"{steal:.2f}"
    return circumstances


def _cpu_facts() -> dict[str, str]:
    """Return the first processor's block of /proc/cpuinfo; empty where there is none."""
    block = _read("/proc/cpuinfo").split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _memory_bytes() -> float:
    match = re.search(r"^MemTotal:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    if match:
        return float(match[1]) * 1024
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _slug(model: str) -> str:
    """Return a model fit for a file name: ``Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz`` as intel-xeon-e5-2690-v4."""
    plain = re.sub(r"\((?:r|tm|c)\)|@.*$|\b(?:cpu|processor|\d+-core)\b", " ", model.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-") or "unknown"
