"""Time what one thread takes to make images ready: decode a JPEG, crop and resize it, lay it out as numbers.

The images are made here, coarse shapes under so much noise that they take about as many bytes per pixel as photographs
of ImageNet do (110 KB at 500 x 375). Decoding takes time by pixels and by bytes stored, resizing and
layout by numbers made; sizes differ in all three.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.domain.inputs import DECODE
from planner.probes.storage import InputRows
from planner.probes.timing import summary

__all__ = ["CASES", "Case", "measure_images"]


class Case(NamedTuple):
    """Pixels of a stored image, and the side of what a network takes of it."""

    width: int
    height: int
    side: int


CASES = (
    Case(500, 375, 224), Case(250, 188, 224), Case(500, 375, 112), Case(800, 600, 224), Case(64, 48, 32),
    Case(500, 375, 384), Case(250, 188, 64),
)  # fmt: skip
QUALITY = 92
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
MEAN, DEVIATION = 118.0, 58.0
SEED = 20_160_702
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

    It is time on a processor: nothing is waited for, so that only other programs would make more of it.

    Parameters
    ----------
    for_s : float
        Wall time to spend [s]; one image more is made and decoded at most. Sizes that time did not suffice for are left
        out.
    clock : callable
        Wall time [s].
    thread_clock : callable
        Time of this thread on a processor [s].
    """
    try:
        from PIL import Image  # noqa: PLC0415 - heavy, and optional
    except ImportError:
        return InputRows(warning=NO_PILLOW)
    until_s = clock() + for_s
    generator = np.random.default_rng(SEED)
    files: dict[tuple[int, int], list[bytes]] = {case[:2]: [] for case in CASES}
    times: dict[Case, list[float]] = {case: [] for case in CASES}
    for case in islice(cycle(CASES), MOST_REPEATS * len(CASES)):
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
    rows = tuple(_row(case, files[case[:2]], times[case]) for case in CASES if len(times[case]) >= LEAST_REPEATS)
    return InputRows(rows, "" if rows else "decoding of images was not measured: too little time")


def _encoded(image: Any, case: Case, generator: np.random.Generator) -> bytes:
    """Return the JPEG of an image of coarse shapes and noise."""
    coarse = generator.integers(0, 256, (max(case.height // COARSE_PIXELS, 2), max(case.width // COARSE_PIXELS, 2), 3))
    shapes = image.fromarray(coarse.astype(np.uint8)).resize((case.width, case.height), image.Resampling.BICUBIC)
    noise = generator.normal(0.0, NOISE, (case.height, case.width, 1))
    pixels = np.clip(np.asarray(shapes, dtype=np.float64) + noise, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
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
    numbers = (np.asarray(pixels, dtype=np.float32) - MEAN) / DEVIATION
    return np.ascontiguousarray(numbers.transpose(2, 0, 1))


def _row(case: Case, files: list[bytes], times_s: list[float]) -> Mapping[str, Any]:
    return {
        "kind": DECODE,
        "library": "pillow",
        "images": 1,
        "in_c": 3,
        "in_h": case.height,
        "in_w": case.width,
        "bytes": round(float(np.mean([len(data) for data in files]))),
        "elements": 3 * case.side**2,
        **asdict(summary(times_s)),
    }
