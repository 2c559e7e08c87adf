"""What a network is made of: distinct layers, gradient slots, blocks, and where a pipeline best cuts it.

Layers are equal by structure, whatever their names: kind, attributes, shapes that they read, inputs that a gradient is
passed on to, how often their output is read, and whether it is kept. What one makes and takes is worked out once, and
counted as often as the network has the like: 96 equal blocks cost what one costs.

A slot is a layer with parameters. Its segment is the layer and those without parameters behind it; what stands before
the first slot is the head, segment 0. Segments of equal layers are equal.

Blocks are found in the graph: where a pipeline may cut it, whatever its layers are called. A block is a layer of
attention that a shortcut reaches around, with what follows it up to the next one. It begins behind the tensor that is
added again behind the attention; of several shortcuts the shortest says which. The last block ends behind the last sum;
where layers stand between the sum behind the attention and the next tensor that is added again, such as a norm, as many
behind the last sum are of it. What stands before the first block is the head, behind the last the tail. Blocks need not
be equal: those that are stand once (:func:`planner.workload.units.units_of`). A network with more sums outside of
blocks, such as a ResNet with one layer of attention, is not made of them.

A chain is cut into stages so that the slowest one is as fast as it can be (MODEL 10.2):
best(k, j) = min over i < j of max(best(k - 1, i), cost(i, j)): the slowest of k stages that hold the first j units, in
O(V^2) a stage. It is exact for any costs, of sums or not, and for costs that differ from stage to stage: infinite where
a stage does not fit its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, once_of
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, Layer, Site
from planner.domain.network import Network, input_shapes, layer_shapes, parameters_of
from planner.errors import ParameterError


class Program:
    """A network whose equal layers stand once: S sites, D distinct segments.

    Attributes
    ----------
    sites : each with the first layer that is like it
    site : of every layer, (L,)
    layers : how many layers are like a site's, (S,)
    slot : position of every layer with parameters, (J,)
    segment : which of the distinct ones every segment is, (J + 1,)
    repeats : how many segments are alike, (D,)
    share : of what all layers like a site take, the part of those in one segment, (S, D)
    """

    def __init__(self, network: Network, *, input_gradient: bool = False, merged: bool = True) -> None:
        self.network = network
        self.sites, self.site = _sites(network, input_gradient=input_gradient, merged=merged)
        self.layers = np.bincount(self.site)
        parameters = np.array([site.parameters for site in self.sites])
        self.slot = np.flatnonzero(parameters[self.site])
        segments = [part.tobytes() for part in np.split(self.site, self.slot)]
        distinct = {segment: at for at, segment in enumerate(dict.fromkeys(segments))}
        self.segment = np.array([distinct[segment] for segment in segments])
        self.repeats = np.bincount(self.segment)
        sites_by_segment = [
            np.bincount(np.frombuffer(key, dtype=self.site.dtype), minlength=len(self.sites)) for key in distinct
        ]
        self.share: FloatArray = np.stack(sites_by_segment, axis=1) / self.layers[:, None]
        self._segments_of = cache(self._shares)

    def by_segment(self, totals: FloatArray, layer: IntArray) -> FloatArray:
        """Return what one segment takes of each distinct kind, shape (s, D, ...).

        ``totals``: of calls that layers like those at ``layer``, shape (k,), make, shape (s, k, ...).
        """
        call, share, present, starts = self._segments_of(layer.tobytes())
        parts = totals[:, call] * share.reshape(-1, *[1] * (totals.ndim - 2))
        by_kind = np.zeros((totals.shape[0], self.repeats.size, *totals.shape[2:]))
        by_kind[:, present] = np.add.reduceat(parts, starts, axis=1)
        return by_kind

    def _shares(self, layers: bytes) -> tuple[IntArray, FloatArray, IntArray, IntArray]:
        """Return calls, segment by segment, and the share of each; which segments have any, and where theirs start."""
        share = self.share[self.site[np.frombuffer(layers, dtype=np.int64)]]
        segment, call = np.nonzero(share.T)
        return call, share[call, segment], *np.unique(segment, return_index=True)

    def total(self, by_segment: FloatArray) -> FloatArray:
        """Return the sum over all segments of what each distinct one takes, shape (s, D) -> (s,)."""
        sums: FloatArray = (by_segment * self.repeats).sum(axis=1)
        return sums

    def gather(self, weight: FloatArray) -> FloatArray:
        """Return the weights of distinct segments, shape (D,), where every segment has one, shape (J + 1,)."""
        return np.bincount(self.segment, weight, minlength=self.repeats.size).astype(np.float64)

    @cached_property
    def parameters(self) -> int:
        """Parameters of the network."""
        return sum(site.parameters * count for site, count in self.site_counts())

    @cached_property
    def trained(self) -> int:
        """Those of them that are trained."""
        return sum(site.trained * count for site, count in self.site_counts())

    def site_counts(self) -> list[tuple[Site, int]]:
        """Return every site with the number of layers that are like it."""
        return list(zip(self.sites, self.layers.tolist(), strict=True))


@once_of
def _programs(network: Network) -> Callable[..., Program]:
    return cache(partial(Program, network))


def program(network: Network, *, input_gradient: bool = False, merged: bool = True) -> Program:
    """Return the program of a network; ParameterError where a layer cannot read what it is given.

    ``input_gradient``: whether a gradient is passed on to the network's input, though nothing is trained there: not
    through frozen layers;
    ``merged``: whether equal layers are one; else every layer is a site of its own.
    """
    return _programs(network)(input_gradient=input_gradient, merged=merged)


def _sites(network: Network, *, input_gradient: bool, merged: bool) -> tuple[tuple[Site, ...], IntArray]:
    """Return the distinct layers, and which of them each layer is."""
    shapes = layer_shapes(network)
    reads = Counter(source for layer in network.layers for source in layer.inputs)
    has_gradient = {INPUT: input_gradient and not network.has_frozen}
    places: dict[tuple[object, ...], int] = {}
    distinct: dict[tuple[object, ...], tuple[int, bool]] = {}  # structure -> parameters, whether it has a gradient
    structures = []
    for layer in network.layers:
        inputs = input_shapes(layer, shapes)
        flows = tuple(has_gradient[source] for source in layer.inputs)
        facts = (layer.kind, layer.is_frozen, layer.shares, layer.kept, *layer.attributes.values())
        structure = (*facts, inputs, flows, reads[layer.name])
        if structure not in distinct:
            parameters = parameters_of(layer, inputs[0])
            is_trained = (parameters > 0 or layer.shares) and not layer.is_frozen
            distinct[structure] = parameters, is_trained or any(flows)
        has_gradient[layer.name] = distinct[structure][1]
        structures.append((structure, inputs, flows))
    sites: list[Site] = []
    site = []
    for position, (layer, (structure, inputs, flows)) in enumerate(zip(network.layers, structures, strict=True)):
        key = (structure, 0 if merged else position)
        if key not in places:
            places[key] = len(sites)
            parameters = distinct[structure][0]
            sites.append(Site(position, layer, inputs, shapes[layer.name], parameters, flows, reads[layer.name]))
        site.append(places[key])
    return tuple(sites), np.array(site)


def wide_tensors(
    network: Network, *, on_gpu: bool, casts: bool = True, composes: tuple[str, ...] = ()
) -> Mapping[str, tuple[bool, ...]]:
    """Return for every layer whether each of its inputs, and last its output, is fp32, in mixed precision of 16 bits.

    ``casts``: by operator, so that the network's input is fp32; else alone what a GELU makes of primitives.
    """
    wide, tensors = {INPUT: casts}, {}
    for layer in network.layers:
        inputs = [wide[source] for source in layer.inputs]
        computes = LAYER_KINDS[layer.kind].computes
        in_fp32 = casts and (computes == "fp32" or (on_gpu and computes == "fp32 on gpu"))
        in_fp32 = in_fp32 or is_composed_gelu(layer, composes, casts=casts)
        wide[layer.name] = in_fp32 or (casts and computes != "16 bits" and any(inputs))
        tensors[layer.name] = (*inputs, wide[layer.name])
    return tensors


def is_composed_gelu(layer: Layer, composes: tuple[str, ...], *, casts: bool) -> bool:
    """Tell whether a layer is a GELU that a framework, or the model with powers that are cast, makes of primitives."""
    is_gelu = layer.kind == "activation" and layer.attributes["function"] == "gelu"
    return is_gelu and ("gelu" in composes or (casts and layer.kept >= 1))


@dataclass(frozen=True, slots=True)
class GradientSlots:
    """One slot for every layer with parameters, in forward order; gradients become ready in reverse.

    ``layer``: position in ``Network.layers``, (j,); ``elements``: gradient elements, as many as the layer's parameters,
    0 of frozen ones, (j,).
    """

    layer: IntArray
    elements: IntArray


def gradient_slots(network: Network) -> GradientSlots:
    """Return the gradient slots of a network; ParameterError where a layer cannot read what it is given."""
    of = program(network)
    trained = np.array([site.trained for site in of.sites], dtype=np.int64)
    return GradientSlots(of.slot, trained[of.site[of.slot]])


def gradient_buckets(gradient_bytes: FloatArray, first_bytes: float, bucket_bytes: float) -> IntArray:
    """Return the lowest slot of each bucket, shape (b,), ascending: the one whose gradient is its last to be ready.

    Buckets are filled in reverse order of the slots, the order in which gradients become ready. One is full, and the
    next begins, when it holds at least its size: static buckets of Li et al., "PyTorch Distributed: Experiences on
    Accelerating Data Parallel Training", VLDB 2020, which fill them tensor by tensor where this takes whole layers.

    ``gradient_bytes``: by slot, in forward order, (j,); ``first_bytes``, ``bucket_bytes``: size of the first bucket to
    be filled and of the others; 0 gives every slot its own.
    """
    lowest: list[int] = []
    filling, size = 0.0, first_bytes
    for slot in range(gradient_bytes.size - 1, -1, -1):
        filling += float(gradient_bytes[slot])
        if filling and (filling >= size or slot == 0):  # frozen layers have none
            lowest.append(slot)
            filling, size = 0.0, bucket_bytes
    return np.array(lowest[::-1], dtype=np.int64)


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

    ``cost``: of a stage that starts with unit i and ends before unit j, only i < j are looked at, (V + 1, V + 1);
    ``crossing``: what a cut before a unit costs where several make the slowest stage as fast, (V + 1,).
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
