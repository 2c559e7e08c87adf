"""The generic designs of a CPU thread and of a GPU: the points that a calibration times, the same on every machine.

Those of a GPU are larger, and in every precision. Products stand on a grid of their own: square, with few rows, with
much to sum, of sizes that tensor cores take whole and of any size, batched; a linear layer's three directions are the
three layouts (weights transposed, neither, the first operand transposed).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.domain.kernels import BACKWARD_WEIGHT, FORWARD
from planner.probes.points import (
    SEED,
    Family,
    Point,
    Range,
    Sizes,
    attention_families,
    convolution,
    depthwise_convolution,
    features,
    geometric,
    image_points,
    linear,
    passes_over,
    sequence_families,
    sequence_product,
    traffic_work,
)
from planner.probes.precisions import has_kernel, measures

__all__ = ["DESIGN", "GPU_DESIGN", "designed_points", "gpu_points"]

DESIGN = f"{SEED}, large, sequences, depthwise, attention, rows"
"""Name of the design: measurements of another one are not continued."""
FURTHER_PRECISION_STEP = 3
"""One point in so many is measured in the further precisions too."""


def designed_points(precisions: Sequence[str] = ("fp32",)) -> tuple[Point, ...]:
    """Return the points of a calibration of a CPU, kinds in turn so that any prefix is balanced.

    fp32 is first of the precisions; a third of the points that a further one has a kernel for is measured in it too,
    the same ones every time.
    """
    random = np.random.default_rng(SEED + 1)
    further = [*sequence_families(random, shapes=14), *(depthwise_convolution(random) for _ in range(24))]
    further += attention_families(random, shapes=10)
    further += (sequence_product(random) for _ in range(12))
    points = image_points(convolutions=190, products=50, passes=14, further=further)
    whole = [*points]
    for precision in precisions[1:]:
        own = in_precision(points, precision, precisions)
        positions = np.random.default_rng(SEED + 3).permutation(len(own))[: len(own) // FURTHER_PRECISION_STEP]
        whole += [own[at] for at in sorted(positions.tolist())]
    return tuple(whole)


def in_precision(points: Iterable[Point], precision: str, precisions: Sequence[str]) -> list[Point]:
    """Return points in one of the precisions wanted that is not fp32, those that are measured in it."""
    return [
        replace(one, precision=precision)
        for one in points
        if measures(precision, precisions, (one.kind, one.direction), one.work.get("batch", 1))
    ]


GPU_DESIGN = f"{SEED}, gpu"
"""Name of the design: measurements of another one are not continued."""

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
GPU_PRECISION_STEP = 2
"""One in so many shapes is measured in the other precisions too."""


def gpu_points(precisions: Sequence[str]) -> tuple[Point, ...]:
    """Return the points of a GPU: every shape in fp32, every other one in the further precisions that have its kind.

    ``precisions``: fp32 first; kinds whose work is bytes are measured in one of the 16-bit precisions besides. Of
    products of 8 bits those that have a kernel.
    """
    families = list(_families(np.random.default_rng(SEED + 2)))
    points = [point for family in families for point in family]
    fewer = [point for family in families[::GPU_PRECISION_STEP] for point in family]
    for precision in precisions[1:]:
        own = in_precision(fewer, precision, precisions)
        points += (point for point in own if has_kernel(precision, point.direction, point.work))
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
    pairs = 0
    while pairs < BATCHED_PRODUCTS:  # of small matrices, many at once
        batch, k = geometric(random, 4, 1024), 8 * features(random, 4, 64)
        m, n = (8 * features(random, 4, 256) for _ in range(2))
        if _fits(m, n, k, batch):
            yield (Point("gemm", FORWARD, {"m": m, "n": n, "k": k, "batch": batch}),)
            pairs += 1


def _wide(random: np.random.Generator) -> tuple[int, int]:
    """Return output and input features, multiples of 16 as tensor cores of 8 bits need them."""
    return 16 * features(random, 4, 1024), 16 * features(random, 4, 1024)


def _odd(random: np.random.Generator) -> int:
    return geometric(random, 33, 6000) | 1


def _fits(m: int, n: int, k: int, batch: int = 1) -> bool:
    largest = batch * max(m * n, m * k, n * k)
    return largest <= MOST_PRODUCT_ELEMENTS and 2 * batch * m * n * k <= MOST_PRODUCT_FLOP
