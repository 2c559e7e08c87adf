"""The blocks of a network, found in its graph: where a pipeline may cut it, whatever its layers are called.

A block is a layer of attention that a shortcut reaches around, with what follows it up to the next one. It begins
behind the tensor that is added again behind the attention; of several shortcuts the shortest says which. The last block
ends behind the last sum; where layers stand between the sum behind the attention and the next tensor that is added
again, such as a norm, as many behind the last sum are of it. What stands before the first block is the head, behind the
last the tail. Blocks need not be equal: those that are stand once (:func:`planner.workload.units.units_of`). A network
with more sums outside of blocks, such as a ResNet with one layer of attention, is not made of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.domain.arrays import IntArray, once_of
from planner.domain.layers.record import INPUT
from planner.domain.network import Network

__all__ = ["block_starts", "crossing"]


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
