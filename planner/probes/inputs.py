"""The way of samples to a device: reads from storage, decoding of images, copies; within a share of a budget.

Storage: a file is written, dropped from the system's cache, read, and read again for the cached times; each cold read
has a slot that nothing has touched since. Samples are read in random order, sizes mixed, so that a disturbance meets
all alike. NOTE: memory file systems ignore the drop, so resident pages are counted and cold reads must be slower.

Images are coarse shapes under so much noise that a pixel takes about as many bytes as in photographs of ImageNet
(110 KB at 500 x 375). Decoding takes time by pixels and bytes stored, resizing and layout by numbers made.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import math
import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.domain.samples import DECODE, DEVICE_TO_HOST, HOST_TO_DEVICE, LOAD, LOAD_CACHED, PAGEABLE, PINNED, Samples
from planner.probes.precisions import import_torch
from planner.probes.timing import Timing, summary
from planner.units import format_bytes

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
STORAGE_SEED = 20_160_701


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

    A file of ``most_bytes`` (less, where writing is slow) is written for the moment. ``for_s`` [s] are spent, and one
    block of 4 MiB more is written or read at most.
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
            rows, warning = _measured(file.fileno(), size, start, for_s, clock)
            return InputRows(rows, warning, {"storage": _file_system(folder)})
    except OSError as error:
        return InputRows(warning=f"storage was not measured: {folder}: {error.strerror}")


def _write(file: int, most_bytes: int, until_s: float, clock: Clock) -> int:
    """Write blocks that do not compress, each through to the disk; return the bytes written."""
    generator = np.random.default_rng(STORAGE_SEED)
    size = 0
    while size < most_bytes and clock() < until_s:
        rest = memoryview(generator.bytes(min(CHUNK_BYTES, most_bytes - size)))
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
        size = os.fstat(file).st_size
    return size


_Read = tuple[int, int]
"""Offset and size [byte]."""


def _measured(file: int, size: int, start_s: float, for_s: float, clock: Clock) -> tuple[tuple[Row, ...], str]:
    """Return the rows of reads of a file, and why those of cold reads are missing; empty where they are not."""
    warning = "" if hasattr(os, "posix_fadvise") else "this system cannot drop a file from its cache"
    if not warning:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        share = resident_share(file, size)
        if share is not None and share > MOST_RESIDENT_SHARE:
            warning = f"{share:.0%} of the file stayed in the cache of the system"
    reads = _planned(size)
    cold = _times(file, reads, start_s + COLD_SHARE * for_s, clock)
    cold_reads = reads[: len(cold)]
    again = _times(file, cold_reads, start_s + for_s, clock)
    if not warning and sum(cold[: len(again)]) < LEAST_COLD_RATIO * sum(again):
        warning = "they took no longer than the same reads again"
    rows = _rows(LOAD_CACHED, cold_reads, again)
    if warning:
        return rows, f"cold reads could not be told from cached ones ({warning}): only cached reads are recorded"
    return (*_rows(LOAD, cold_reads, cold), *rows), ""


def _times(file: int, reads: Sequence[_Read], until_s: float, clock: Clock) -> list[float]:
    """Return the time of each read [s] that begins in time, without what the thread waited for a processor."""
    buffer, times = memoryview(bytearray(CHUNK_BYTES)), list[float]()
    for offset, size in reads:
        if clock() >= until_s:
            break
        waited_s, begin = processor_wait_s(), clock()
        os.preadv(file, [buffer[:size]], offset)
        elapsed_s = clock() - begin
        times.append(max(elapsed_s - (processor_wait_s() - waited_s), LEAST_READ_S))
    return times


def _planned(size: int) -> list[_Read]:
    """Return reads in random order, each in a slot of its own."""
    generator = np.random.default_rng(STORAGE_SEED)
    return [
        (int(slot) * SLOT_BYTES + 4096 * int(generator.integers((SLOT_BYTES - length) // 4096 + 1)), length)
        for slot, length in zip(generator.permutation(size // SLOT_BYTES), itertools.cycle(SAMPLE_BYTES), strict=False)
    ]


def _rows(kind: str, reads: Sequence[_Read], times_s: Sequence[float]) -> tuple[Row, ...]:
    # A sub-batch waits for all cold reads, the slow ones too; what slows a cached one is another program.
    typical = statistics.median if kind == LOAD_CACHED else statistics.fmean
    by_size: dict[int, list[float]] = {}
    for (_, size), time_s in zip(reads, times_s, strict=False):
        by_size.setdefault(size, []).append(time_s)
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
    where, best = str(folder.resolve()), ("", "")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, point, kind, *_ = line.split(" ")
            if (where + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
                best = (point, kind)
    return best[1]


class ImageCase(NamedTuple):
    """Pixels of a stored image, and the side of what a network takes of it."""

    width: int
    height: int
    side: int


IMAGE_CASES = (
    ImageCase(500, 375, 224), ImageCase(250, 188, 224), ImageCase(500, 375, 112), ImageCase(800, 600, 224),
    ImageCase(64, 48, 32), ImageCase(500, 375, 384), ImageCase(250, 188, 64),
)  # fmt: skip
JPEG_QUALITY = 92
IMAGES_OF_A_SIZE = 3
"""Images of a size: decoding is not to profit from branches that it remembers."""
LEAST_REPEATS = 3
MOST_REPEATS = 40
COARSE_PIXELS = 16
"""Pixels of a coarse shape."""
NOISE = 16.0
"""Standard deviation of the noise, of 255."""
LEAST_CROP_SHARE = 0.08
"""Share of an image that a random crop keeps at least, as is usual in training on ImageNet."""
IMAGE_MEAN, IMAGE_DEVIATION = 118.0, 58.0
IMAGES_SEED = 20_160_702
FloatArray32 = NDArray[np.float32]
NO_PILLOW = (
    "decoding of images was not measured: there is no package pillow; pip install 'epoch-planner[torch]' and calibrate "
    "again"
)


def measure_images(
    for_s: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    thread_clock: Callable[[], float] = time.thread_time,
) -> InputRows:
    """Return the median time of one thread for an image of several sizes, from bytes in memory to numbers.

    Time on a processor (``thread_clock``): nothing is waited for. ``for_s`` of wall time [s] are spent, and one image
    more is made and decoded at most; sizes that time did not suffice for are left out.
    """
    try:
        from PIL import Image  # noqa: PLC0415 - heavy, and optional
    except ImportError:
        return InputRows(warning=NO_PILLOW)
    until_s = clock() + for_s
    generator = np.random.default_rng(IMAGES_SEED)
    files: dict[tuple[int, int], list[bytes]] = {case[:2]: [] for case in IMAGE_CASES}
    times: dict[ImageCase, list[float]] = {case: [] for case in IMAGE_CASES}
    for case in islice(cycle(IMAGE_CASES), MOST_REPEATS * len(IMAGE_CASES)):
        if clock() >= until_s:
            break
        alike = files[case[:2]]
        if len(alike) < IMAGES_OF_A_SIZE:
            alike.append(_encoded(Image, case, generator))
            _made_ready(Image, alike[-1], case.side, generator)
        data = alike[int(generator.integers(len(alike)))]
        begin = thread_clock()
        _made_ready(Image, data, case.side, generator)
        times[case].append(thread_clock() - begin)
    rows = tuple(
        {
            "kind": DECODE, "library": "pillow", "images": 1, "in_c": 3, "in_h": case.height, "in_w": case.width,
            "bytes": round(float(np.mean([len(data) for data in files[case[:2]]]))), "elements": 3 * case.side**2,
            **asdict(summary(times[case])),
        }
        for case in IMAGE_CASES
        if len(times[case]) >= LEAST_REPEATS
    )  # fmt: skip
    return InputRows(rows, "" if rows else "decoding of images was not measured: too little time")


def _encoded(image: Any, case: ImageCase, generator: np.random.Generator) -> bytes:
    """Return the JPEG of an image of coarse shapes and noise."""
    coarse = generator.integers(0, 256, (max(case.height // COARSE_PIXELS, 2), max(case.width // COARSE_PIXELS, 2), 3))
    shapes = image.fromarray(coarse.astype(np.uint8)).resize((case.width, case.height), image.Resampling.BICUBIC)
    noise = generator.normal(0.0, NOISE, (case.height, case.width, 1))
    pixels = np.clip(np.asarray(shapes, dtype=np.float64) + noise, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY)
    return file.getvalue()


def _made_ready(image: Any, data: bytes, side: int, generator: np.random.Generator) -> FloatArray32:
    """Return an image as the numbers that a network takes: decoded, a random crop resized, shape (3, side, side)."""
    with image.open(io.BytesIO(data)) as file:
        whole = file.convert("RGB")
    share = float(generator.uniform(LEAST_CROP_SHARE, 1.0)) ** 0.5
    width, height = share * whole.width, share * whole.height
    left, top = generator.uniform(0, whole.width - width), generator.uniform(0, whole.height - height)
    box = (left, top, left + width, top + height)
    pixels = whole.resize((side, side), image.Resampling.BILINEAR, box=box)
    numbers = (np.asarray(pixels, dtype=np.float32) - IMAGE_MEAN) / IMAGE_DEVIATION
    return np.ascontiguousarray(numbers.transpose(2, 0, 1))


COPY_SIZES = tuple(2**power for power in (10, 13, 16, 18, 20, 22, 24, 26))
"""1 KiB to 64 MiB [byte]."""
BLOCK_S = 2e-3
MOST_COPIES = 64
COPY_BLOCKS = 5


def measure_copies(
    device: str,
    for_s: float,
    *,
    sizes: tuple[int, ...] = COPY_SIZES,
    memories: tuple[str, ...] = (PINNED, PAGEABLE),
    clock: Clock = time.perf_counter,
) -> tuple[Mapping[str, Any], ...]:
    """Return rows as of a samples file: the median time of a copy by size [byte], way and host memory.

    ``for_s`` [s] are spent, and one copy more at most; what time or memory did not suffice for is left out, large sizes
    first. Pinned memory is for devices that PyTorch copies to by themselves, as CUDA's.
    MissingPackageError: PyTorch is not installed.
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
                timing = _timed_copy(_copying(torch, target, source, library), clock)
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


def _timed_copy(copy: Callable[[int], None], clock: Clock) -> Timing:
    """Return the time of a copy, the median over blocks, after one that is not timed."""

    def seconds(times: int) -> float:
        start = clock()
        copy(times)
        return clock() - start

    copy(1)
    in_block = max(1, min(math.ceil(BLOCK_S / max(seconds(1), 1e-9)), MOST_COPIES))
    return summary([seconds(in_block) / in_block for _ in range(COPY_BLOCKS)], in_block)


INPUT_SHARE = 0.06
"""Of the budget of a calibration."""
MOST_INPUT_S = 6.0
"""More time changes no mean."""
IMAGES_SHARE = 0.35
COPIES_SHARE = 0.15
"""Of the time, where there is a device to copy to."""


def measure_input(
    folder: Path, for_s: float, accelerator: str, *, device: str = "cpu", clock: Callable[[], float] = time.perf_counter
) -> Samples:
    """Return the rows of the input side, with circumstances; what was not measured is said in ``warning_...`` ones.

    A file stands on the disk of ``folder`` for the moment. ``for_s`` [s], 6 s at most, are spent. Rows name
    ``accelerator``; to a ``device`` that is ``cpu`` nothing is copied.
    """
    for_s = min(for_s, MOST_INPUT_S)
    until_s = clock() + for_s
    copies = () if device == "cpu" else measure_copies(device, COPIES_SHARE * for_s, clock=clock)
    images = measure_images(IMAGES_SHARE * for_s, clock=clock)
    storage = measure_storage(folder, until_s - clock(), clock=clock)
    warnings = {"warning_input_decode": images.warning, "warning_input_storage": storage.warning}
    rows: list[Mapping[str, Any]] = [
        dict(row) | {"device": accelerator} for row in (*storage.rows, *images.rows, *copies)
    ]
    sentences = {key: sentence for key, sentence in warnings.items() if sentence}
    return Samples.from_rows(rows, {**storage.circumstances, **images.circumstances, **sentences})
