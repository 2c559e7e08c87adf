"""Where to cut a chain into stages so that the slowest one is as fast as it can be (MODEL 10.2).

best(k, j) = min over i < j of max(best(k - 1, i), cost(i, j)): the slowest of k stages that hold the first j units, in
O(V^2) a stage.
"""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.errors import ParameterError

__all__ = ["Partition"]


class Partition:
    """Cuts of one chain of V units; what was worked out for fewer stages stays for more.

    Parameters
    ----------
    cost : ndarray of float, shape (V + 1, V + 1)
        Of a stage that starts with unit i and ends before unit j; only i < j are looked at.
    crossing : ndarray of float, shape (V + 1,)
        What a cut before a unit costs where several make the slowest stage as fast.
    """

    def __init__(self, cost: FloatArray, crossing: FloatArray) -> None:
        self._cost = np.where(np.tri(cost.shape[0], dtype=bool), np.inf, cost)
        self._crossing = crossing
        self._best = [np.where(np.arange(cost.shape[0]) == 0, 0.0, np.inf)]

    def slowest(self, stages: int) -> float:
        """Return the cost of the slowest of so many stages.

        Raises
        ------
        ParameterError
            More stages than units, or less than one.
        """
        units = self._crossing.size - 1
        if not 1 <= stages <= units:
            raise ParameterError("pipeline stages", f"from 1 to the {units} units", stages)
        while len(self._best) <= stages:
            self._best.append(np.maximum(self._best[-1][:, None], self._cost).min(axis=0))
        return float(self._best[stages][-1])

    def cuts(self, stages: int) -> IntArray:
        """Return the unit that each stage starts with, and V, shape (stages + 1,).

        Cuts are set from the last one on: of those that leave the slowest stage as fast, where the least crosses.
        """
        limit, end = self.slowest(stages), self._crossing.size - 1
        cuts = [end]
        for before in range(stages - 1, -1, -1):
            is_open = (self._best[before] <= limit) & (self._cost[:, end] <= limit)
            end = int(np.argmin(np.where(is_open, self._crossing, np.inf)))
            cuts.append(end)
        return np.array(cuts[::-1])
