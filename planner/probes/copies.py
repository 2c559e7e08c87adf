"""Time copies between host memory and a device, each way, from pinned and from pageable memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from planner.domain.inputs import DEVICE_TO_HOST, HOST_TO_DEVICE, PAGEABLE, PINNED
from planner.probes.timing import Timing, summary
from planner.probes.torch_package import import_torch

__all__ = ["SIZES", "measure_copies"]

Clock = Callable[[], float]

SIZES = tuple(2**power for power in (10, 13, 16, 18, 20, 22, 24, 26))
"""1 KiB to 64 MiB [byte]."""
BLOCK_S = 2e-3
MOST_COPIES = 64
BLOCKS = 5


def measure_copies(
    device: str,
    for_s: float,
    *,
    sizes: tuple[int, ...] = SIZES,
    memories: tuple[str, ...] = (PINNED, PAGEABLE),
    clock: Clock = time.perf_counter,
) -> tuple[Mapping[str, Any], ...]:
    """Return rows as of a samples file: the median time of a copy by size, way and host memory.

    Parameters
    ----------
    device : str
        As PyTorch names it, such as ``cuda:0``.
    for_s : float
        Wall time to spend [s]; what it did not suffice for is left out, as is what memory did not. One copy
        more is timed at most.
    sizes : tuple of int
        In bytes; large ones come last, in every way and memory.
    memories : tuple of {"pinned", "pageable"}
        Pinned memory is for devices that PyTorch copies to by themselves, as CUDA's.
    clock : callable

    Raises
    ------
    MissingPackageError
        PyTorch is not installed.
    """
    torch = import_torch()
    until_s = clock() + for_s
    rows: list[Mapping[str, Any]] = []
    for size in sizes:
        for library in memories:
            try:
                there = torch.ones(size, dtype=torch.uint8, device=device)
                here = torch.ones(size, dtype=torch.uint8, pin_memory=library == PINNED)
            except RuntimeError:  # PyTorch's own for memory that is full, or cannot be pinned
                continue
            for kind, target, source in ((HOST_TO_DEVICE, there, here), (DEVICE_TO_HOST, here, there)):
                if clock() >= until_s:
                    return tuple(rows)
                timing = _timed(_copying(torch, target, source, library), clock)
                rows.append({"kind": kind, "library": library, "bytes": size, **asdict(timing)})
    return tuple(rows)


def _copying(torch: Any, target: Any, source: Any, library: str) -> Callable[[int], None]:
    """Return what copies so many times, and waits for the last: pinned copies do not wait for each other."""
    on_cuda = [one.device for one in (target, source) if one.device.type == "cuda"]

    def copy(times: int) -> None:
        for _ in range(times):
            target.copy_(source, non_blocking=library == PINNED)
        for device in on_cuda:
            torch.cuda.synchronize(device)

    return copy


def _timed(copy: Callable[[int], None], clock: Clock) -> Timing:
    """Return the time of a copy, the median over blocks, after one that is not timed."""
    copy(1)
    once = max(_seconds(copy, 1, clock), 1e-9)
    in_block = max(1, min(math.ceil(BLOCK_S / once), MOST_COPIES))
    return summary([_seconds(copy, in_block, clock) / in_block for _ in range(BLOCKS)], in_block)


def _seconds(copy: Callable[[int], None], times: int, clock: Clock) -> float:
    start = clock()
    copy(times)
    return clock() - start
