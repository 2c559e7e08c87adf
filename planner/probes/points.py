"""Designed points: the calls that a calibration times, drawn from a fixed generic design.

Sizes are geometric, so that small and large calls count alike. Nothing here knows any network: channels, sides,
kernels, strides and batches are drawn independently within what convolutional networks use, and calls that would take
too long or too much memory are drawn again.
Work columns are those of :mod:`planner.domain.kernels`; traffic is counted as a training step counts it, each tensor
once (elements E of the output unless said; see the table there):

=============  ==============================  ================
kind           forward                         backward
=============  ==============================  ================
activation     2E                              3E
max_pool       in + E, 4-byte index of E       the same
average_pool   in + E                          the same
batch_norm     3E                              5E
lrn            3E                              5E
dropout        2E, 1-byte mask of E            the same
add            3E                              3E
concat         2E                              2E
softmax        3E                              2E
copy           2E                              -
update         -                               20 bytes each
=============  ==============================  ================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.domain.arrays import frozen_map
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, CONVOLUTION_COLUMNS, FORWARD, UPDATE

__all__ = ["Point", "convolution_output", "designed_points"]

SEED = 20160705
MOST_FLOP = 2.5e9
LEAST_FLOP = 1.5e6
MOST_OPERAND_BYTES = 64e6


@dataclass(frozen=True, slots=True)
class Point:
    """One call to time.

    Attributes
    ----------
    kind, direction : str
    work : mapping of work column to int
    geometry : mapping of str to int
        What the call needs beyond its work: shapes of a pooling window, channels of a normalisation.
    """

    kind: str
    direction: str
    work: Mapping[str, int]
    geometry: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "work", frozen_map(self.work))
        object.__setattr__(self, "geometry", frozen_map(self.geometry))

    @property
    def name(self) -> str:
        """A name that tells points apart, such as ``gemm forward m=64 n=4 k=512 batch=1``."""
        sizes = {**self.work, **self.geometry}
        return " ".join([self.kind, self.direction, *(f"{key}={value}" for key, value in sizes.items())])


def designed_points(convolutions: int = 240, products: int = 60, passes: int = 14) -> tuple[Point, ...]:
    """Return the points of a calibration, the same on every machine, kinds in turn so that any prefix is balanced.

    Parameters
    ----------
    convolutions, products, passes : int
        Shapes of convolutions, of matrix products, and of each kind whose work is bytes.
    """
    random = np.random.default_rng(SEED)
    families: list[tuple[Point, ...]] = [_peaks(), *(_convolution(random) for _ in range(convolutions))]
    families += [_product(random) for _ in range(products)]
    for make in _PASSES:
        families += [make(random) for _ in range(passes)]
    return tuple(point for position in random.permutation(len(families)) for point in families[position])


def _peaks() -> tuple[Point, ...]:
    """Return a square product and a copy beyond all caches, which show the peak rates."""
    shape = {"images": 1, "channels": 8, "side": 1024}
    elements = math.prod(shape.values()) * shape["side"]
    return (
        Point("gemm", FORWARD, {"m": 960, "n": 960, "k": 960, "batch": 1}),
        Point("copy", FORWARD, _traffic(elements, 2 * elements), shape),
    )


def convolution_output(work: Mapping[str, int]) -> tuple[int, int]:
    """Return height and width of a convolution's output: floor((x + 2p - c) / s) + 1."""
    height, width = (
        (work[f"in_{axis}"] + 2 * work[f"pad_{axis}"] - work[f"k_{axis}"]) // work[f"stride_{axis}"] + 1
        for axis in "hw"
    )
    return height, width


def _geometric(random: np.random.Generator, least: float, most: float) -> int:
    return round(math.exp(random.uniform(math.log(least), math.log(most))))


def _channels(random: np.random.Generator, least: int, most: int) -> int:
    """Return a count of channels as networks choose them: multiples of 8, of 16 above 64, of 32 above 256."""
    count = _geometric(random, least, most)
    step = 8 if count < 64 else 16 if count < 256 else 32
    return max(step, round(count / step) * step)


def _features(random: np.random.Generator, least: int, most: int) -> int:
    """Return a count of features as networks choose them, four to an octave: powers of two are slower in caches."""
    count = _geometric(random, least, most)
    step = 1 << max(0, count.bit_length() - 3)
    return round(count / step) * step


_KERNELS = (
    ((1, 1), 0.30), ((3, 3), 0.36), ((5, 5), 0.12), ((7, 7), 0.06), ((11, 11), 0.05),
    ((1, 7), 0.03), ((7, 1), 0.03), ((1, 3), 0.025), ((3, 1), 0.025),
)  # fmt: skip
_IMAGES = (1, 1, 2, 2, 3, 4, 4, 6, 8)
_FIRST_LAYER_SHARE = 0.14


def _convolution(random: np.random.Generator) -> tuple[Point, ...]:
    """Return the three directions of one convolution, or two of one that reads the samples."""
    while True:
        first = random.random() < _FIRST_LAYER_SHARE
        work = _first_convolution(random) if first else _inner_convolution(random)
        if _is_measurable(work):
            directions = (FORWARD, BACKWARD_WEIGHT) if first else (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT)
            return tuple(Point("convolution", direction, work) for direction in directions)


def _first_convolution(random: np.random.Generator) -> dict[str, int]:
    """Return a convolution of few channels on a large image: kernel 3 to 11, stride 1 to 4."""
    kernel = int(random.choice([3, 3, 5, 7, 7, 11]))
    stride = int(random.choice([1, 1, 2]) if kernel < 7 else random.choice([2, 2, 3, 4]))
    side = _geometric(random, 96, 260)
    padding = int(random.choice([0, kernel // 2]))
    return _columns(
        random,
        (int(random.choice([3, 3, 3, 1])), side, _channels(random, 16, 128)),
        (kernel, kernel),
        (stride, padding, padding),
    )


def _inner_convolution(random: np.random.Generator) -> dict[str, int]:
    kernels = [kernel for kernel, _ in _KERNELS]
    k_h, k_w = kernels[int(random.choice(len(kernels), p=[share for _, share in _KERNELS]))]
    stride = int(random.choice([1, 1, 1, 2]))
    same = random.random() < 0.75
    sizes = (_channels(random, 16, 1100), _geometric(random, 5, 120), _channels(random, 16, 1100))
    work = _columns(random, sizes, (k_h, k_w), (stride, k_h // 2 * same, k_w // 2 * same))
    in_whole_blocks = work["in_c"] % 32 == 0 == work["out_c"] % 32
    return work | {"groups": 2 if random.random() < 0.08 and in_whole_blocks else 1}


def _columns(
    random: np.random.Generator, sizes: tuple[int, int, int], kernel: tuple[int, int], steps: tuple[int, int, int]
) -> dict[str, int]:
    images = int(random.choice(_IMAGES))
    in_c, side, out_c = sizes
    stride, pad_h, pad_w = steps
    values = (images, in_c, side, side, out_c, *kernel, stride, stride, pad_h, pad_w, 1)
    return dict(zip(CONVOLUTION_COLUMNS, values, strict=True))


def _is_measurable(work: Mapping[str, int]) -> bool:
    height, width = convolution_output(work)
    if min(height, width) < 3:
        return False
    read = work["images"] * work["in_c"] * work["in_h"] * work["in_w"]
    written = work["images"] * work["out_c"] * height * width
    flop = 2 * written * work["in_c"] // work["groups"] * work["k_h"] * work["k_w"]
    return LEAST_FLOP < flop < MOST_FLOP and 4 * max(read, written) < MOST_OPERAND_BYTES


_LARGE_PRODUCT_SHARE = 0.2


def _product(random: np.random.Generator) -> tuple[Point, ...]:
    """Return the three products of a linear layer: tall and thin, with weights beyond all caches in a fifth of them."""
    large = random.random() < _LARGE_PRODUCT_SHARE
    while True:
        most_rows = int(random.choice([1, 4, 16] if large else [1, 1, 8, 64, 1024]))
        rows = _geometric(random, 1, most_rows)
        wide = _features(random, 1024, 8192) if large else _features(random, 10, 4096)
        deep = _features(random, 1024, 16384) if large else _features(random, 64, 4096)
        if not large or 6e6 < wide * deep < 3.4e7:
            break
    products = {FORWARD: (wide, rows, deep), BACKWARD_DATA: (deep, rows, wide), BACKWARD_WEIGHT: (wide, deep, rows)}
    return tuple(
        Point("gemm", direction, {"m": m, "n": n, "k": k, "batch": 1}) for direction, (m, n, k) in products.items()
    )


def _traffic(elements: int, traffic: int, fixed_bytes: int = 0) -> dict[str, int]:
    return {"elements": elements, "traffic": traffic, "fixed_bytes": fixed_bytes}


def _image(random: np.random.Generator) -> dict[str, int]:
    """Return images x channels x side x side, 1e4 to 8e6 elements in all."""
    while True:
        sizes = {
            "images": int(random.choice(_IMAGES)),
            "channels": _channels(random, 8, 1100),
            "side": _geometric(random, 6, 120),
        }
        if 1e4 <= sizes["images"] * sizes["channels"] * sizes["side"] ** 2 <= 8e6:
            return sizes


def _over(
    kind: str, forward: int, backward: int, mask_bytes: int = 0
) -> Callable[[np.random.Generator], tuple[Point, ...]]:
    """Return what draws both directions of a kind that goes over all E elements, moving so many times E."""

    def make(random: np.random.Generator) -> tuple[Point, ...]:
        geometry = _image(random)
        elements = geometry["images"] * geometry["channels"] * geometry["side"] ** 2
        times = {FORWARD: forward, BACKWARD_DATA: backward}
        return tuple(
            Point(kind, direction, _traffic(elements, n * elements, mask_bytes * elements), geometry)
            for direction, n in times.items()
            if n
        )

    return make


def _pool(random: np.random.Generator) -> Iterator[Point]:
    for kind in ("max_pool", "average_pool"):
        geometry = _image(random)
        everywhere = kind == "average_pool" and random.random() < 0.5
        window = geometry["side"] if everywhere else int(random.choice([2, 3, 3]))
        stride = window if everywhere or window == 2 else int(random.choice([1, 2, 2]))
        out = (geometry["side"] - window) // stride + 1
        planes = geometry["images"] * geometry["channels"]
        read, written = planes * geometry["side"] ** 2, planes * out**2
        work = _traffic(read, read + written, 4 * written if kind == "max_pool" else 0)
        for direction in (FORWARD, BACKWARD_DATA):
            yield Point(kind, direction, work, geometry | {"window": window, "stride": stride})


def _softmax(random: np.random.Generator) -> tuple[Point, ...]:
    geometry = {"images": _geometric(random, 1, 256), "classes": _geometric(random, 10, 4000)}
    elements = geometry["images"] * geometry["classes"]
    return tuple(
        Point("softmax", direction, _traffic(elements, n * elements), geometry)
        for direction, n in ((FORWARD, 3), (BACKWARD_DATA, 2))
    )


def _update(random: np.random.Generator) -> tuple[Point, ...]:
    elements = _geometric(random, 64, 1 << 24)
    return (Point("update", UPDATE, _traffic(elements, 0, 20 * elements)),)


_PASSES: tuple[Callable[[np.random.Generator], tuple[Point, ...]], ...] = (
    _over("activation", 2, 3),
    lambda random: tuple(_pool(random)),
    _over("batch_norm", 3, 5),
    _over("lrn", 3, 5),
    _over("dropout", 2, 2, mask_bytes=1),
    _over("add", 3, 3),
    _over("concat", 2, 2),
    _over("copy", 2, 0),
    _softmax,
    _update,
)
