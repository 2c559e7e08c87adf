"""Designed points of fused attention, causal and not.

Lengths are geometric, one from each of as many equal stretches as there are shapes; samples, heads and features of a
head are drawn independently of them as long as the call does not take more than some 10 ms of one thread.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.domain.kernels import ATTENTION_COLUMNS, BACKWARD_DATA, FORWARD
from planner.probes.points import Point, geometric

__all__ = ["attention_families"]

LENGTH_STEP, LONGEST_STEPS = 16, 64
LARGEST_MAC = 6e7
"""Of one product: heads x queries x keys x features."""
WIDTHS = (32, 64, 80, 128)
"""Features of a head in use: 64 in GPT-2 and BERT, 80 in GPT-3 2.7B, 128 in larger ones."""


def attention_families(random: np.random.Generator, shapes: int) -> Iterator[tuple[Point, ...]]:
    """Yield both directions of so many shapes, causal in turn."""
    for number in range(shapes):
        shortest, longest = (LONGEST_STEPS ** (end / shapes) for end in (number, number + 1))
        length = LENGTH_STEP * geometric(random, shortest, longest)
        while True:
            samples, heads = geometric(random, 1, 16), geometric(random, 1, 16)
            width = WIDTHS[int(random.integers(len(WIDTHS)))]
            if samples * heads * length**2 * width <= LARGEST_MAC:
                break
        geometry = {"images": samples, "positions": length, "heads": heads}
        work = dict(zip(ATTENTION_COLUMNS, (samples * heads, length, length, width, number % 2), strict=True))
        yield tuple(Point("attention", direction, work, geometry) for direction in (FORWARD, BACKWARD_DATA))
