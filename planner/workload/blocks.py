"""The blocks of a network, found in its graph: where a pipeline may cut it, whatever its layers are called.

A block is a layer of attention that a shortcut reaches around, with what follows it up to the next one. It begins
behind the tensor that is added again behind the attention; of several shortcuts the shortest says which. The last block
ends behind the last sum; where layers stand between the sum behind the attention and the next tensor that is added
again, such as a norm, as many behind the last sum are of it. What stands before the first block is the head, behind the
last the tail. Blocks need not be equal: those that are stand once (:func:`planner.workload.units.units_of`). A network
with more sums outside of blocks, such as a ResNet with one layer of attention, is not made of them.

Where to cut a chain into stages so that the slowest one is as fast as it can be (MODEL 10.2).

best(k, j) = min over i < j of max(best(k - 1, i), cost(i, j)): the slowest of k stages that hold the first j units, in
O(V^2) a stage. It is exact for any costs, of sums or not, and for costs that differ from stage to stage: infinite where
a stage does not fit its memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, once_of
from planner.domain.layers.record import INPUT
from planner.domain.network import Network
from planner.errors import ParameterError

__all__ = ["Partition", "best_cuts", "block_starts", "crossing"]


@once_of
def block_starts(network: Network) -> tuple[int, ...]:
    """Return the position of the first layer of every block, and of the first one behind the last; empty: no blocks.

    A network without blocks may be cut before any layer with parameters.
    """
    place = {layer.name: at for at, layer in enumerate(network.layers)} | {INPUT: -1}
    sums = [at for at, layer in enumerate(network.layers) if layer.kind == "add"]
    shortcuts = [(min(place[name] for name in network.layers[at].inputs), at) for at in sums]
    around = [
        max(one for one in shortcuts if one[0] < at < one[1])
        for at, layer in enumerate(network.layers)
        if layer.kind == "attention" and any(first < at < end for first, end in shortcuts)
    ]
    if not around:
        return ()
    behind = around[-1][1]
    again = [source - behind for source, _ in shortcuts if source >= behind]
    end = min(sums[-1] + 1 + min(again, default=0), len(network.layers) - 1)
    starts = sorted({max(source + 1, 1) for source, _ in around} | {end})
    ahead = sum(at < starts[0] for at in sums)
    return tuple(starts) if ahead <= len(sums) - ahead else ()


def crossing(network: Network, elements: Mapping[str, int]) -> IntArray:
    """Return how many elements of tensors cross the cut before each layer, shape (L,)."""
    names = INPUT, *(layer.name for layer in network.layers)
    last, changes = dict.fromkeys(names, 0), np.zeros(len(network.layers) + 1, dtype=np.int64)
    for at, layer in enumerate(network.layers):
        last |= dict.fromkeys((layer.name, *layer.inputs), at)
    for at, name in enumerate(names):
        changes[at] += elements[name]
        changes[max(last[name] + 1, at)] -= elements[name]
    return np.cumsum(changes)[:-1]


class Partition:
    """Cuts of one chain of V units; what was worked out for fewer stages stays for more.

    Parameters
    ----------
    cost : of a stage that starts with unit i and ends before unit j; only i < j are looked at, (V + 1, V + 1)
    crossing : what a cut before a unit costs where several make the slowest stage as fast, (V + 1,)
    """

    def __init__(self, cost: FloatArray, crossing: FloatArray) -> None:
        self._cost = _forward_alone(cost)
        self._crossing = crossing
        self._best = [_nothing_held(crossing.size)]

    def slowest(self, stages: int) -> float:
        """Return the cost of the slowest of so many stages.

        ParameterError: more stages than units, or less than one.
        """
        units = self._crossing.size - 1
        if not 1 <= stages <= units:
            raise ParameterError("pipeline stages", f"from 1 to the {units} units", stages)
        while len(self._best) <= stages:
            self._best.append(_with_stage(self._best[-1], self._cost))
        return float(self._best[stages][-1])

    def cuts(self, stages: int) -> IntArray:
        """Return the unit that each stage starts with, and V, shape (stages + 1,).

        Cuts are set from the last one on: of those that leave the slowest stage as fast, where the least crosses.
        """
        limit = self.slowest(stages)
        is_open = [best <= limit for best in self._best[:stages]]
        return _from_the_last(is_open, [self._cost <= limit] * stages, self._crossing)


def best_cuts(cost: FloatArray, tie: FloatArray, crossing: FloatArray) -> IntArray | None:
    """Return the unit that each of p stages starts with, and V, shape (p + 1,); None: no cuts have finite costs.

    Parameters
    ----------
    cost : ndarray of float, shape (p, V + 1, V + 1)
        Of stage k where it starts with unit i and ends before unit j, i < j; the largest is minimised.
    tie : of cuts that leave the largest cost as it is, the largest of these is minimised, (p, V + 1, V + 1)
    crossing : what a cut before a unit costs where several are equal in both, (V + 1,)
    """
    cost = _forward_alone(cost)
    limit = _largest(cost)[-1][-1]
    if not np.isfinite(limit):
        return None
    tie = np.where(cost <= limit, tie, np.inf)
    largest = _largest(tie)
    limit = largest[-1][-1]
    return _from_the_last([best <= limit for best in largest[:-1]], [one <= limit for one in tie], crossing)


def _forward_alone(cost: FloatArray) -> FloatArray:
    """Return costs with those of stages that hold nothing, or end before they start, infinite."""
    return np.where(np.tri(cost.shape[-1], dtype=bool), np.inf, cost)


def _nothing_held(ends: int) -> FloatArray:
    return np.where(np.arange(ends) == 0, 0.0, np.inf)


def _with_stage(best: FloatArray, cost: FloatArray) -> FloatArray:
    """Return the least largest cost with one more stage, by the unit before which it ends, shape (V + 1,)."""
    return np.asarray(np.maximum(best[:, None], cost).min(axis=0))


def _largest(cost: FloatArray) -> list[FloatArray]:
    """Return the least largest cost of the first k stages, k from 0 to p, by the unit before which they end."""
    largest = [_nothing_held(cost.shape[-1])]
    for one in cost:
        largest.append(_with_stage(largest[-1], one))
    return largest


def _from_the_last(reaches: list[BoolArray], is_open: list[BoolArray], crossing: FloatArray) -> IntArray:
    """Return cuts, set from the last on where the least crosses, of those that are lawful.

    ``reaches``: whether the first k stages may end before a unit, k < p; ``is_open``: whether a stage may be from i to
    j.
    """
    end = crossing.size - 1
    cuts = [end]
    for before, stage in zip(reversed(reaches), reversed(is_open), strict=True):
        end = int(np.argmin(np.where(before & stage[:, end], crossing, np.inf)))
        cuts.append(end)
    return np.array(cuts[::-1])
