"""Designed points of a GPU: larger than those of a CPU thread, and in every precision.

Products stand on a grid of their own: square, with few rows, with much to sum, of sizes that tensor cores take whole
and of any size, batched; a linear layer's three directions are the three layouts (weights transposed, neither, the
first operand transposed).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from planner.domain.kernels import BACKWARD_WEIGHT, FORWARD
from planner.probes.design import in_precision
from planner.probes.points import (
    SEED,
    Point,
    Range,
    convolution,
    depthwise_convolution,
    features,
    geometric,
    linear,
    passes_over,
    traffic_work,
)
from planner.probes.products import has_kernel
from planner.probes.sequence_points import Sizes, attention_families, sequence_families

__all__ = ["GPU_DESIGN", "gpu_points"]

GPU_DESIGN = f"{SEED}, gpu"
"""Name of the design: measurements of another one are not continued."""

Family = tuple[Point, ...]

USUAL_RANGE = Range((3e7, 2e11), (0, 4.5e8), (1e5, 1e8), (1, 2, 4, 8, 16, 32, 32, 64, 128, 256), (5, 120))
SEQUENCE_SIZES = Sizes(scores=1e8, elements=1e8, rows=65536, samples=64, positions=128)
MOST_PRODUCT_FLOP, MOST_PRODUCT_ELEMENTS = 1.2e12, 1.2e8
LONGEST_ATTENTION, MOST_ATTENTION_MAC = 4096, 4e10
SQUARES = (256, 512, 1024, 1536, 2048, 4096, 8192)
COPY_ELEMENTS = 1 << 26
"""Elements of the copy that shows the memory's rate: far beyond any cache."""
CONVOLUTION_SHAPES, DEPTHWISE_SHAPES, LINEAR_SHAPES = 56, 8, 30
PASS_SHAPES, SEQUENCE_SHAPES, ATTENTION_SHAPES = 9, 8, 16
SKINNY_PRODUCTS, DEEP_PRODUCTS, UNALIGNED_PRODUCTS, BATCHED_PRODUCTS = 10, 6, 10, 10
FURTHER_PRECISION_STEP = 2
"""One in so many shapes is measured in the other precisions too."""


def gpu_points(precisions: Sequence[str]) -> tuple[Point, ...]:
    """Return the points of a GPU: every shape in fp32, every other one in the further precisions that have its kind.

    Parameters
    ----------
    precisions : sequence of str
        fp32 first; kinds whose work is bytes are measured in one of the 16-bit precisions besides. Of products of 8
        bits those that have a kernel.
    """
    families = list(_families(np.random.default_rng(SEED + 2)))
    points = [point for family in families for point in family]
    fewer = [point for family in families[::FURTHER_PRECISION_STEP] for point in family]
    for precision in precisions[1:]:
        points += (
            point
            for point in in_precision(fewer, precision, precisions)
            if has_kernel(precision, point.direction, point.work)
        )
    return tuple(points)


def _families(random: np.random.Generator) -> Iterator[Family]:
    """Yield points that belong together, the square products and the large copy first."""
    shape = {"images": 1, "channels": COPY_ELEMENTS >> 20, "side": 1024}
    yield (Point("copy", FORWARD, traffic_work(COPY_ELEMENTS, 2 * COPY_ELEMENTS), shape),)
    for side in SQUARES:
        yield ()  # so that every square is measured in every precision
        yield linear(side, side, side)
    for _ in range(CONVOLUTION_SHAPES):
        yield convolution(random, USUAL_RANGE)
    for _ in range(DEPTHWISE_SHAPES):
        yield depthwise_convolution(random, USUAL_RANGE)
    yield from _products(random)
    for _ in range(PASS_SHAPES):
        activations, *others = passes_over(random, USUAL_RANGE)
        yield from (activations, *others, _biases(activations[0]))
    yield from sequence_families(random, SEQUENCE_SHAPES, SEQUENCE_SIZES)
    yield from attention_families(random, ATTENTION_SHAPES, LONGEST_ATTENTION, MOST_ATTENTION_MAC)


def _biases(activation: Point) -> Family:
    """Return the passes that a bias takes behind a convolution whose output has an activation's shape."""
    elements = activation.work["elements"]
    return tuple(
        Point("bias", direction, traffic_work(elements, passes * elements), activation.geometry)
        for direction, passes in ((FORWARD, 2), (BACKWARD_WEIGHT, 1))
    )


def _products(random: np.random.Generator) -> Iterator[Family]:
    draws: tuple[tuple[int, Callable[[], tuple[int, int, int]]], ...] = (
        (LINEAR_SHAPES, lambda: (16 * features(random, 1, 2048), *_wide(random))),
        (SKINNY_PRODUCTS, lambda: (geometric(random, 1, 32), *_wide(random))),
        (DEEP_PRODUCTS, lambda: (geometric(random, 2**13, 2**18), 32 * geometric(random, 1, 32), 64)),
        (UNALIGNED_PRODUCTS, lambda: (_odd(random), _odd(random), _odd(random))),
    )
    for count, draw in draws:
        fitting = (sizes for sizes in iter(draw, None) if _fits(*sizes))
        yield from (linear(*sizes) for sizes in itertools.islice(fitting, count))
    yield from (_batched(random) for _ in range(BATCHED_PRODUCTS))


def _wide(random: np.random.Generator) -> tuple[int, int]:
    """Return output and input features, multiples of 16 as tensor cores of 8 bits need them."""
    return 16 * features(random, 4, 1024), 16 * features(random, 4, 1024)


def _odd(random: np.random.Generator) -> int:
    return geometric(random, 33, 6000) | 1


def _fits(m: int, n: int, k: int, batch: int = 1) -> bool:
    """Tell whether a product takes neither too long nor too much memory."""
    largest = batch * max(m * n, m * k, n * k)
    return largest <= MOST_PRODUCT_ELEMENTS and 2 * batch * m * n * k <= MOST_PRODUCT_FLOP


def _batched(random: np.random.Generator) -> Family:
    """Return a product of many pairs of small matrices."""
    while True:
        batch, k = geometric(random, 4, 1024), 8 * features(random, 4, 64)
        m, n = (8 * features(random, 4, 256) for _ in range(2))
        if _fits(m, n, k, batch):
            return (Point("gemm", FORWARD, {"m": m, "n": n, "k": k, "batch": batch}),)
