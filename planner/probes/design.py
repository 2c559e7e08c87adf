"""The generic design: the points that a calibration times, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from planner.probes.points import SEED, Point, depthwise_convolution, image_points, sequence_product
from planner.probes.precisions import measures
from planner.probes.sequence_points import attention_families, sequence_families

__all__ = ["DESIGN", "designed_points", "in_precision"]

DESIGN = f"{SEED}, large, sequences, depthwise, attention, rows"
"""Name of the design: measurements of another one are not continued."""
FURTHER_PRECISION_STEP = 3
"""One point in so many is measured in the further precisions too."""


def designed_points(
    *,
    precisions: Sequence[str] = ("fp32",),
    convolutions: int = 190,
    products: int = 50,
    passes: int = 14,
    sequences: int = 14,
    depthwise: int = 24,
    attention: int = 10,
    rows: int = 12,
) -> tuple[Point, ...]:
    """Return the points of a calibration, kinds in turn so that any prefix is balanced.

    Parameters
    ----------
    precisions : sequence of str
        fp32 first. A third of the points is measured in each further one too, those that it has a kernel for.
    convolutions, products, passes, sequences, depthwise, attention, rows : int
        Shapes of convolutions, of matrix products, of each kind whose work is bytes, of each kind of layer on
        sequences, of depthwise convolutions, of fused attention, and of products of many rows; a few large ones come
        on top.
    """
    random = np.random.default_rng(SEED + 1)
    further = [*sequence_families(random, sequences), *(depthwise_convolution(random) for _ in range(depthwise))]
    further += attention_families(random, attention)
    further += (sequence_product(random) for _ in range(rows))
    points = image_points(convolutions, products, passes, further)
    return (*points, *(point for precision in precisions[1:] for point in _also_in(precision, points, precisions)))


def in_precision(points: Iterable[Point], precision: str, precisions: Sequence[str]) -> list[Point]:
    """Return points in one of the precisions wanted that is not fp32, those that are measured in it."""
    return [
        replace(one, precision=precision)
        for one in points
        if measures(precision, precisions, (one.kind, one.direction), one.work.get("batch", 1))
    ]


def _also_in(precision: str, points: Sequence[Point], precisions: Sequence[str]) -> list[Point]:
    """Return a third of the points of the kinds that a precision has, the same ones every time."""
    own = in_precision(points, precision, precisions)
    positions = np.random.default_rng(SEED + 3).permutation(len(own))[: len(own) // FURTHER_PRECISION_STEP]
    return [own[at] for at in sorted(positions.tolist())]
