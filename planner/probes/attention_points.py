"""Designed points of fused attention, causal and not.

Lengths are geometric, one from each of as many equal stretches as there are shapes; samples, heads and features of a
head are drawn independently of them within the multiply-adds that a call may have.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.domain.kernels import ATTENTION_COLUMNS, BACKWARD_DATA, FORWARD
from planner.probes.points import Point, geometric

__all__ = ["attention_families"]

LENGTH_STEP, LONGEST = 16, 1024
LARGEST_MAC = 6e7
"""Of one product, heads x queries x keys x features: the backward pass takes some 10 ms of one thread."""
WIDTHS = (32, 64, 80, 128)
"""Features of a head in use: 64 in GPT-2 and BERT, 80 in GPT-3 2.7B, 128 in larger ones."""


def attention_families(
    random: np.random.Generator, shapes: int, longest: int = LONGEST, largest_mac: float = LARGEST_MAC
) -> Iterator[tuple[Point, ...]]:
    """Yield both directions of so many shapes, two in four causal, so that every other one is as often as all are."""
    steps = longest / LENGTH_STEP
    for number in range(shapes):
        length = LENGTH_STEP * geometric(random, *(steps ** (end / shapes) for end in (number, number + 1)))
        while True:
            samples, heads = geometric(random, 1, 16), geometric(random, 1, 16)
            width = WIDTHS[int(random.integers(len(WIDTHS)))]
            if samples * heads * length**2 * width <= largest_mac:
                break
        geometry = {"images": samples, "positions": length, "heads": heads}
        work = dict(zip(ATTENTION_COLUMNS, (samples * heads, length, length, width, number // 2 % 2), strict=True))
        yield tuple(Point("attention", direction, work, geometry) for direction in (FORWARD, BACKWARD_DATA))
