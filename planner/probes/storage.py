"""Time reads from storage: a file is written, dropped from the cache of the system, and read, then read again.

The file has no name where the system allows that, so that nothing is left however the program ends. It is cut into
slots; a read that is to be cold has a slot of its own, which nothing has touched since the file was dropped, and the
same reads are repeated for the cached times. Samples are read in random order one at a time, their sizes mixed, so that
a disturbance meets all of them alike.

NOTE: where the drop is without effect (memory file systems, layers that cache themselves) times would be those of
memory. So the pages that the system still holds are counted, and cold reads must take longer than the same reads again.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from planner.domain.inputs import LOAD, LOAD_CACHED
from planner.probes.timing import summary
from planner.units import format_bytes

__all__ = ["InputRows", "measure_storage", "processor_wait_s", "resident_share"]

Row = Mapping[str, Any]
Clock = Callable[[], float]

FILE_BYTES = 256 * 2**20
LEAST_FILE_BYTES = 32 * 2**20
"""Below, there are too few slots for a mean."""
FREE_FILES = 4
"""The disk must have this many times the file free: a probe is not what fills it."""
CHUNK_BYTES = 4 * 2**20
SLOT_BYTES = 2**20
SAMPLE_BYTES = (16 * 2**10, 64 * 2**10, 112 * 2**10, 512 * 2**10)
"""112 KiB is a photograph of ImageNet."""
WRITING_SHARE, COLD_SHARE = 0.4, 0.7
"""Of the time, after which writing and cold reads end; the rest is for the same reads again."""
LEAST_READS = 4
MOST_RESIDENT_SHARE = 0.1
"""Share of pages still held beyond which the drop had no effect."""
LEAST_READ_S = 1e-7
"""No read takes less, whatever the clocks say."""
LEAST_COLD_RATIO = 1.2
"""Cold reads take at least this many times what the same reads take again, or they were not cold."""
SEED = 20_160_701


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows as of a samples file, what a user must know of them (else empty), and circumstances."""

    rows: tuple[Row, ...] = ()
    warning: str = ""
    circumstances: Mapping[str, str] = field(default_factory=dict)


def measure_storage(
    folder: Path, for_s: float, *, most_bytes: int = FILE_BYTES, clock: Clock = time.perf_counter
) -> InputRows:
    """Return the mean time of reads of several sizes from the disk of a folder, cold and cached.

    Parameters
    ----------
    folder : Path
        Where a file of ``most_bytes`` (less, where writing is slow) is written for the moment.
    for_s : float
        Wall time to spend [s]; one block of 4 MiB more is written or read at most.
    most_bytes : int
    clock : callable
    """
    start = clock()
    if not hasattr(os, "preadv"):
        return InputRows(warning="storage was not measured: this system has no reads at an offset (preadv)")
    try:
        free = shutil.disk_usage(folder).free
        if free < FREE_FILES * most_bytes:
            least = format_bytes(FREE_FILES * most_bytes)
            return InputRows(
                warning=f"storage was not measured: {folder} has {format_bytes(free)} free, {least} wanted"
            )
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            size = _write(file.fileno(), most_bytes, start + WRITING_SHARE * for_s, clock)
            if size < min(LEAST_FILE_BYTES, most_bytes):
                progress = f"{format_bytes(size)} written in {clock() - start:.2f} s"
                return InputRows(warning=f"storage was not measured: too little time, {progress}")
            reads = _Reads(file.fileno(), size, start, for_s, clock)
            return InputRows(*reads.measured(), {"storage": _file_system(folder)})
    except OSError as error:
        return InputRows(warning=f"storage was not measured: {folder}: {error.strerror}")


def _write(file: int, most_bytes: int, until_s: float, clock: Clock) -> int:
    """Write blocks that do not compress, each through to the disk; return the bytes written."""
    generator = np.random.default_rng(SEED)
    size = 0
    while size < most_bytes and clock() < until_s:
        rest = memoryview(generator.bytes(min(CHUNK_BYTES, most_bytes - size)))
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
        size = os.fstat(file).st_size
    return size


class _Read(NamedTuple):
    """Bytes to read from an offset."""

    offset: int
    size: int


class _Reads:
    """The reads of one file and their times."""

    def __init__(self, file: int, size: int, start_s: float, for_s: float, clock: Clock) -> None:
        self.file, self.size, self.clock = file, size, clock
        self.start_s, self.for_s = start_s, for_s
        self.buffer = memoryview(bytearray(CHUNK_BYTES))

    def measured(self) -> tuple[tuple[Row, ...], str]:
        """Return the rows, and why those of cold reads are missing; empty where they are not."""
        warning = self._drop()
        reads = _planned(self.size)
        cold = self._times(reads, self.start_s + COLD_SHARE * self.for_s)
        cold_reads = reads[: len(cold)]
        again = self._times(cold_reads, self.start_s + self.for_s)
        if not warning and sum(cold[: len(again)]) < LEAST_COLD_RATIO * sum(again):
            warning = "they took no longer than the same reads again"
        rows = _rows(LOAD_CACHED, cold_reads, again)
        if warning:
            return rows, f"cold reads could not be told from cached ones ({warning}): only cached reads are recorded"
        return (*_rows(LOAD, cold_reads, cold), *rows), ""

    def _drop(self) -> str:
        """Drop the file from the cache; return why that had no effect, or an empty string."""
        if not hasattr(os, "posix_fadvise"):
            return "this system cannot drop a file from its cache"
        os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        share = resident_share(self.file, self.size)
        if share is not None and share > MOST_RESIDENT_SHARE:
            return f"{share:.0%} of the file stayed in the cache of the system"
        return ""

    def _times(self, reads: Sequence[_Read], until_s: float) -> list[float]:
        """Return the time of each read [s] while the clock shows less than ``until_s``; those after it are left out.

        Without what the thread waited for a processor: storage is not slower for other programs that compute.
        """
        times: list[float] = []
        for read in reads:
            if self.clock() >= until_s:
                break
            waited_s, begin = processor_wait_s(), self.clock()
            os.preadv(self.file, [self.buffer[: read.size]], read.offset)
            elapsed_s = self.clock() - begin
            times.append(max(elapsed_s - (processor_wait_s() - waited_s), LEAST_READ_S))
        return times


def _planned(size: int) -> list[_Read]:
    """Return reads in random order, each in a slot of its own."""
    generator = np.random.default_rng(SEED)
    return [
        _Read(int(slot) * SLOT_BYTES + 4096 * int(generator.integers((SLOT_BYTES - length) // 4096 + 1)), length)
        for slot, length in zip(generator.permutation(size // SLOT_BYTES), itertools.cycle(SAMPLE_BYTES), strict=False)
    ]


def _rows(kind: str, reads: Sequence[_Read], times_s: Sequence[float]) -> tuple[Row, ...]:
    """Return a row for every size.

    Cold reads at their mean, as a sub-batch waits for all of them, the slow ones too; cached ones at their median, as
    what slows a copy in memory is another program.
    """
    typical = statistics.median if kind == LOAD_CACHED else statistics.fmean
    by_size: dict[int, list[float]] = {}
    for read, time_s in zip(reads, times_s, strict=False):
        by_size.setdefault(read.size, []).append(time_s)
    return tuple(
        {"kind": kind, "images": 1, "bytes": size, **asdict(summary(times)), "time_s": typical(times)}
        for size, times in sorted(by_size.items())
        if len(times) >= LEAST_READS
    )


def resident_share(file: int, size: int) -> float | None:
    """Return the share of a file's pages that the system holds in memory; None where it does not say."""
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError, TypeError):
        return None
    pages = -(-size // mmap.PAGESIZE)
    pages_held = (ctypes.c_ubyte * pages)()
    with mmap.mmap(file, size) as memory:
        start = ctypes.c_char.from_buffer(memory)
        error = mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages_held)
        del start  # else the map could not be closed
    return None if error else float((np.frombuffer(bytes(pages_held), dtype=np.uint8) & 1).mean())


def processor_wait_s() -> float:
    """Return how long this thread was ready to run without a processor since it began [s]; 0 where not stated."""
    try:
        fields = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return int(fields[1]) * 1e-9


def _file_system(folder: Path) -> str:
    """Return the kind of file system that a folder is on, as the system names it; empty where it does not."""
    where = str(folder.resolve())
    best = ("", "")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, point, kind, *_ = line.split(" ")
            if (where + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
                best = (point, kind)
    return best[1]
