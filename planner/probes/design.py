"""The generic design: the points that a calibration times, the same on every machine."""

from __future__ import annotations

import numpy as np

from planner.probes.points import SEED, Point, image_points
from planner.probes.sequence_points import sequence_families

__all__ = ["DESIGN", "designed_points"]

DESIGN = f"{SEED}, large, sequences"
"""Name of the design: measurements of another one are not continued."""


def designed_points(
    convolutions: int = 190, products: int = 50, passes: int = 14, sequences: int = 14
) -> tuple[Point, ...]:
    """Return the points of a calibration, kinds in turn so that any prefix is balanced.

    Parameters
    ----------
    convolutions, products, passes, sequences : int
        Shapes of convolutions, of matrix products, of each kind whose work is bytes, and of each kind of layer on
        sequences; a few large ones come on top.
    """
    further = sequence_families(np.random.default_rng(SEED + 1), sequences)
    return image_points(convolutions, products, passes, further)
