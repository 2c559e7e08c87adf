"""The Pareto front of three quantities, of which one (the number of GPUs) takes few values."""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray

__all__ = ["Stairs", "pareto_front"]

MOST_CELLS = 2**20
"""Of the table of a front: fewer distances are told apart where it would have more."""


def pareto_front(value: FloatArray, gpus: IntArray, distance: FloatArray) -> IntArray:
    """Return the positions of the points that no other dominates, ascending; smaller is better in all three.

    A point dominates another if it is nowhere worse and somewhere better. Of equal points the first is kept. Exact, in
    O(k log k) for k points: sorted by (gpus, value, distance), a point survives within its GPU count where its
    distance is below the running minimum; the survivors of ascending GPU counts are then held against the staircase
    (value up, distance down) of all smaller counts.

    Parameters
    ----------
    value, gpus, distance : ndarray, shape (k,), without NaN
    """
    k = value.size
    if k == 0:
        return np.empty(0, dtype=np.int64)
    order = np.lexsort((distance, value, gpus))
    counts, group = np.unique(gpus[order], return_inverse=True)
    rank = np.unique(distance, return_inverse=True)[1][order]
    order = order[_below_all_before(rank - group * k)]  # every group starts below all groups before it
    parts = np.split(order, np.searchsorted(gpus[order], counts[1:]))
    survivors: list[IntArray] = []
    stairs_value, stairs_distance = np.empty(0), np.empty(0)
    for part in parts:
        step = np.searchsorted(stairs_value, value[part], side="right") - 1
        least = np.append(stairs_distance, np.inf)[step]  # step -1: no smaller count is as fast
        part = part[distance[part] < least]  # noqa: PLW2901 - the same points, fewer
        survivors.append(part)
        values = np.concatenate([stairs_value, value[part]])
        distances = np.concatenate([stairs_distance, distance[part]])
        stairs = np.lexsort((distances, values))
        stairs = stairs[_below_all_before(distances[stairs])]
        stairs_value, stairs_distance = values[stairs], distances[stairs]
    return np.sort(np.concatenate(survivors))


class Stairs:
    """The least value that a front of k points reaches within a number of GPUs and a distance.

    Parameters
    ----------
    value, gpus, distance : ndarray, shape (k,), without NaN
    """

    def __init__(self, value: FloatArray, gpus: IntArray, distance: FloatArray) -> None:
        self._gpus, row = np.unique(gpus, return_inverse=True)
        every = np.unique(distance)
        self._distance = every[:: -(-self._gpus.size * every.size // MOST_CELLS) or 1]
        column = np.searchsorted(self._distance, distance)
        least = np.full((self._gpus.size + 1, self._distance.size + 1), np.inf)  # the last of each: none is as small
        known = column < self._distance.size
        np.minimum.at(least, (row[known], column[known]), value[known])
        least[:-1, :-1] = np.minimum.accumulate(np.minimum.accumulate(least[:-1, :-1], axis=0), axis=1)
        self._least = least

    def least(self, gpus: IntArray, distance: FloatArray) -> FloatArray:
        """Return the least value of points with at most so many GPUs and so far away each, (n,); inf: there is none."""
        row = np.searchsorted(self._gpus, gpus, side="right") - 1
        column = np.searchsorted(self._distance, distance, side="right") - 1
        return np.asarray(self._least[row, column])


def _below_all_before(values: FloatArray | IntArray) -> BoolArray:
    """Return where a value (k,) is below every value before it."""
    mask = np.ones(values.size, dtype=np.bool_)
    mask[1:] = values[1:] < np.minimum.accumulate(values)[:-1]
    return mask
