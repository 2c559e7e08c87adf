"""What a network's kernels are before they are priced, and gradient slots: pieces that become ready to be sent.

Layers are equal by structure, whatever their names: kind, attributes, shapes that they read, inputs that a gradient is
passed on to, how often their output is read, and whether it is kept. What one makes and takes is worked out once, and
counted as often as the network has the like: 96 equal blocks cost what one costs.

A slot is a layer with parameters. Its segment is the layer and those without parameters behind it; what stands before
the first slot is the head, segment 0. Segments of equal layers are equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, once_of
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, Layer, Site
from planner.domain.network import Network, input_shapes, layer_shapes, parameters_of

__all__ = [
    "GradientSlots", "Program", "gradient_buckets", "gradient_slots", "is_composed_gelu", "program", "wide_tensors",
]  # fmt: skip


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

    def by_segment(self, totals: FloatArray, layer: IntArray) -> FloatArray:
        """Return what one segment takes of each distinct kind, shape (s, D, ...).

        ``totals``: of calls that layers like those at ``layer``, shape (k,), make, shape (s, k, ...).
        """
        share = self.share[self.site[layer]]
        segment, call = np.nonzero(share.T)
        present, starts = np.unique(segment, return_index=True)
        parts = totals[:, call] * share[call, segment].reshape(-1, *[1] * (totals.ndim - 2))
        by_kind = np.zeros((totals.shape[0], self.repeats.size, *totals.shape[2:]))
        by_kind[:, present] = np.add.reduceat(parts, starts, axis=1)
        return by_kind

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
        facts = (layer.kind, layer.is_frozen, layer.kept, *layer.attributes.values())
        structure = (*facts, inputs, flows, reads[layer.name])
        if structure not in distinct:
            parameters = parameters_of(layer, inputs[0])
            distinct[structure] = parameters, (parameters > 0 and not layer.is_frozen) or any(flows)
        has_gradient[layer.name] = distinct[structure][1]
        structures.append((structure, inputs, flows))
    tensor, kept_tensors = {INPUT: INPUT}, set[str]()  # kept for the backward pass; a view as what it is a view of
    for layer in network.layers:
        tensor[layer.name] = tensor[layer.inputs[0]] if LAYER_KINDS[layer.kind].is_view else layer.name
        if has_gradient[layer.name]:
            of_inputs, of_output = layer.keeps
            kept_tensors.update(tensor[name] for name in (*layer.inputs * of_inputs, *(layer.name,) * of_output))
    sites: list[Site] = []
    site = []
    for position, (layer, (structure, inputs, flows)) in enumerate(zip(network.layers, structures, strict=True)):
        key = (structure, layer.name in kept_tensors, 0 if merged else position)
        if key not in places:
            places[key] = len(sites)
            parameters = distinct[structure][0]
            output, n_reads = shapes[layer.name], reads[layer.name]
            sites.append(Site(position, layer, inputs, output, parameters, flows, n_reads, layer.name in kept_tensors))
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

    Attributes
    ----------
    layer : position in ``Network.layers``, (j,)
    elements : gradient elements, as many as the layer's parameters; 0 of frozen ones, (j,)
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
