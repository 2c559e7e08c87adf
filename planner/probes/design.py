"""The generic design: the points that a calibration times, the same on every machine."""

from __future__ import annotations

import numpy as np

from planner.probes.attention_points import attention_families
from planner.probes.points import SEED, Point, depthwise_convolution, image_points
from planner.probes.sequence_points import sequence_families

__all__ = ["DESIGN", "designed_points"]

DESIGN = f"{SEED}, large, sequences, depthwise, attention"
"""Name of the design: measurements of another one are not continued."""


def designed_points(
    *,
    convolutions: int = 190,
    products: int = 50,
    passes: int = 14,
    sequences: int = 14,
    depthwise: int = 24,
    attention: int = 10,
) -> tuple[Point, ...]:
    """Return the points of a calibration, kinds in turn so that any prefix is balanced.

    Parameters
    ----------
    convolutions, products, passes, sequences, depthwise, attention : int
        Shapes of convolutions, of matrix products, of each kind whose work is bytes, of each kind of layer on
        sequences, of depthwise convolutions, and of fused attention; a few large ones come on top.
    """
    random = np.random.default_rng(SEED + 1)
    further = [*sequence_families(random, sequences), *(depthwise_convolution(random) for _ in range(depthwise))]
    further += attention_families(random, attention)
    return image_points(convolutions, products, passes, further)
