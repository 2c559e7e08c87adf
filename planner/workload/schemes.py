"""Schemes of single layers: how the m ranks of a group share each layer of a network.

=========  ===================  =================  =================================  ================================
scheme     input wanted         output left        a rank computes                    parameters of a rank
=========  ===================  =================  =================================  ================================
samples    samples              samples            an m-th of the samples             all, summed over all ranks
filters    whole                channels           an m-th of the channels out        an m-th, summed between groups
inputs     channels             sums of parts      with an m-th of the channels in    an m-th, summed between groups
channels   channels             channels           an m-th of the channels            an m-th, summed between groups
space      rows                 rows               an m-th of the rows, with a halo   all, summed over all ranks
whole      whole                whole              all, as every rank of the group    all, equal on all, between groups
rounds     samples              channels           as filters, a round for the        an m-th, summed between groups
                                                   samples of each rank in turn
=========  ===================  =================  =================================  ================================

Parts are rounded up. Between layers that want other parts than what is left a tensor goes through a collective, forward
and, transposed, backward: what reads a gathered tensor by ``filters`` has partial sums of its gradient. Data parallel
inside of the group is ``samples`` of every layer. Krizhevsky's "one weird trick" (2014, arXiv:1404.5997) is ``samples``
of convolutions and, of fully connected layers, ``filters`` (scheme a, all samples at once) or ``rounds`` (scheme c, the
samples of one rank while the next are sent; scheme b sends no faster). ``filters`` before ``inputs`` are Megatron-LM's
columns and rows. Samples are those of a group.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import Shape, Site
from planner.domain.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from planner.domain.network import INPUT, parameters_of
from planner.domain.split import SCHEMES
from planner.workload.program import Program
from planner.workload.units import Units

__all__ = [
    "CHANNELS", "FILTERS", "INPUTS", "OPERATIONS", "ROUNDS", "SAMPLES", "SPACE", "SUMMED_BY_ALL", "WHOLE", "Edges",
    "edges_of", "halo_elements", "kept_parts", "lawful_schemes", "moved", "named", "operations", "part_of",
    "rows_of_halo", "scheme_program", "sent_bytes", "units_by_layer",
]  # fmt: skip

SAMPLES, FILTERS, INPUTS, CHANNELS, SPACE, WHOLE, ROUNDS = range(len(SCHEMES))
SUMMED_BY_ALL = (SAMPLES, SPACE)
"""Schemes of which all ranks have the same parameters and sum their gradients."""
_PARTIAL = -1
"""Of an output: every rank has a part of each sum."""
_WANTED = (SAMPLES, WHOLE, CHANNELS, CHANNELS, SPACE, WHOLE, SAMPLES)
_LEFT = (SAMPLES, CHANNELS, _PARTIAL, CHANNELS, SPACE, WHOLE, CHANNELS)
OPERATIONS = (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, ALL_REDUCE)
"""That move a tensor between layers."""


def moved(made: int, read: int) -> tuple[str, str]:
    """Return the operations on a tensor that a layer of one scheme makes for one of another: forward, and backward.

    Empty: none.

    >>> moved(SAMPLES, FILTERS), moved(FILTERS, INPUTS), moved(INPUTS, SAMPLES)
    (('all_gather', 'reduce_scatter'), ('', ''), ('reduce_scatter', 'all_gather'))
    """
    left, wanted = _LEFT[made], _WANTED[read]
    sums = ALL_REDUCE if read == FILTERS else ""
    if left == _PARTIAL:
        return (ALL_REDUCE, sums) if wanted == WHOLE else (REDUCE_SCATTER, ALL_GATHER)
    if left == WHOLE:
        return ("", sums) if wanted == WHOLE else ("", ALL_GATHER)
    if wanted == WHOLE:
        return ALL_GATHER, REDUCE_SCATTER if sums else ""
    return ("", "") if left == wanted else (ALL_TO_ALL, ALL_TO_ALL)


def operations(direction: int) -> FloatArray:
    """Return which operation moves a tensor between two schemes, forward (0) or backward (1).

    1 of it, shape (len(OPERATIONS), S, S).
    """
    which = np.zeros((len(OPERATIONS), len(SCHEMES), len(SCHEMES)))
    for made in range(len(SCHEMES)):
        for read in range(len(SCHEMES)):
            if name := moved(made, read)[direction]:
                which[OPERATIONS.index(name), made, read] = 1.0
    return which


class Edges(NamedTuple):
    """Tensors between layers, of which E are read: by whom each is made and read, and its elements per sample, (E,).

    ``has_gradient``: whether one is passed back.
    """

    made: IntArray
    read: IntArray
    elements: FloatArray
    has_gradient: BoolArray


def edges_of(of: Program) -> Edges:
    """Return the tensors between the layers of a program whose layers are not merged; the input is there as wanted."""
    at = {layer.name: place for place, layer in enumerate(of.network.layers)}
    rows = [
        (at[source], reader, of.sites[at[source]].output_elements, flows)
        for reader, layer in enumerate(of.network.layers)
        for source, flows in zip(layer.inputs, of.sites[reader].input_gradients, strict=True)
        if source != INPUT
    ]
    made, read, elements, flows = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Edges(
        np.array(made, dtype=np.int64),
        np.array(read, dtype=np.int64),
        np.array(elements, dtype=np.float64),
        np.array(flows, dtype=np.bool_),
    )


def _axis(shape: Shape) -> int:
    """Return the axis of channels, or features."""
    return 0 if len(shape) == 3 else -1


def _divided(shape: Shape, axis: int, ranks: int) -> Shape:
    sides = list(shape)
    sides[axis] = -(-sides[axis] // ranks)
    return tuple(sides)


def rows_of_halo(site: Site) -> int:
    """Return the rows of an image that a part of them needs of each neighbour."""
    window = LAYER_KINDS[site.layer.kind].window
    return site.layer.pair(window)[0] // 2 if window else 0


def halo_elements(site: Site) -> tuple[int, int]:
    """Return the elements of a sample that a part of the rows is sent forward, and of gradients backward."""
    rows, shape, made = 2 * rows_of_halo(site), site.inputs[0], site.output
    if not rows or len(shape) != 3:
        return 0, 0
    return rows * shape[0] * shape[2], rows * made[0] * made[2] * any(site.input_gradients)


def lawful_schemes(site: Site, ranks: int) -> tuple[int, ...]:
    """Return the schemes that a layer has on so many ranks."""
    return tuple(scheme for scheme in range(len(SCHEMES)) if part_of(site, scheme, ranks) is not None)


def part_of(site: Site, scheme: int, ranks: int) -> Site | None:
    """Return what one rank computes of a layer, with an m-th of the samples where that is the scheme; None: it cannot.

    A part has at least one channel, or row, on every rank, and as many rows as the halo of its neighbour.
    """
    kind, layer = LAYER_KINDS[site.layer.kind], site.layer
    if scheme in (SAMPLES, WHOLE):
        return site
    if scheme == SPACE:
        return _rows_of(site, ranks) if "space" in kind.divides else None
    has_channels = min(shape[_axis(shape)] for shape in site.inputs) >= ranks
    is_product = bool(kind.outputs) and layer.attributes.get("groups", 1) == 1
    of_outputs = is_product and layer.integer(kind.outputs) >= ranks
    lawful = {FILTERS: of_outputs, ROUNDS: of_outputs, INPUTS: is_product and has_channels}
    if not lawful.get(scheme, has_channels and "channels" in kind.divides):
        return None
    inputs = site.inputs
    if scheme in (FILTERS, ROUNDS):
        outputs = -(-layer.integer(kind.outputs) // ranks)
        layer = replace(layer, attributes={**layer.attributes, kind.outputs: outputs})
    else:
        inputs = tuple(_divided(shape, _axis(shape), ranks) for shape in inputs)
    parameters = parameters_of(layer, inputs[0])
    return replace(site, layer=layer, inputs=inputs, output=kind.output(layer, inputs), parameters=parameters)


def _rows_of(site: Site, ranks: int) -> Site | None:
    """Return a part of the rows of images; None: of other tensors, or parts smaller than a halo."""
    is_image = all(len(shape) == 3 for shape in (*site.inputs, site.output))
    if not is_image or min(site.output[1], *(shape[1] for shape in site.inputs)) < ranks:
        return None
    halo, rows = rows_of_halo(site), -(-site.output[1] // ranks)
    if halo > -(-site.inputs[0][1] // ranks):
        return None
    inputs = tuple(_divided(shape, 1, ranks) for shape in site.inputs)
    window, layer = LAYER_KINDS[site.layer.kind].window, site.layer
    if window:  # rows of which a window makes so many, with what it adds around
        (side, _), (step, _), (border, _) = (layer.pair(name) for name in (window, "stride", "padding"))
        inputs = tuple((shape[0], max((rows - 1) * step + side - 2 * border, 1), shape[2]) for shape in inputs)
    return replace(site, inputs=inputs, output=(site.output[0], rows, site.output[2]))


def scheme_program(of: Program, schemes: tuple[int, ...], ranks: int) -> Program:
    """Return the program of one rank; ``of``: the network's, whose layers are not merged.

    A layer that does not have its scheme stands as a whole: nothing may read its times.
    """
    other = copy(of)
    other.sites = tuple(part_of(site, scheme, ranks) or site for site, scheme in zip(of.sites, schemes, strict=True))
    other.__dict__.pop("parameters", None)
    return other


def kept_parts(of: Program, edges: Edges, schemes: tuple[int, ...], ranks: int) -> tuple[FloatArray, FloatArray, float]:
    """Return the part of each layer's output that a rank has for long, and elements of inputs that it keeps besides.

    Of a sample, shape (L,) each; and the part of the network's input that it reads. ``of``: the program of the rank,
    which has parts of channels and rows already. A layer that keeps an input which was moved to it keeps a copy.
    """
    by_rank = np.isin(schemes, (SAMPLES, INPUTS))
    besides = np.zeros(len(schemes))
    for made, read in zip(edges.made.tolist(), edges.read.tolist(), strict=True):
        site = of.sites[read]
        is_moved = moved(schemes[made], schemes[read])[0] or schemes[read] == ROUNDS
        if is_moved and site.layer.keeps[0]:
            at = site.layer.inputs.index(of.network.layers[made].name)
            besides[read] += prod(site.inputs[at]) / (ranks if schemes[read] == SAMPLES else 1)
    first = {schemes[at] for at, layer in enumerate(of.network.layers) if INPUT in layer.inputs}
    return np.where(by_rank, 1.0 / ranks, 1.0), besides, 1.0 / ranks if first == {SAMPLES} else 1.0


def units_by_layer(of: Program) -> Units:
    """Return every layer as a unit; a segment is with the layer that it starts with, the head with the first."""
    number = len(of.network.layers)
    segments = np.zeros((number, of.repeats.size))
    for slot, segment in zip([0, *of.slot.tolist()], of.segment.tolist(), strict=True):
        segments[slot, segment] += 1.0
    parameters, trained = np.array([(site.parameters, site.trained) for site in of.sites], dtype=np.float64).T
    is_attention, ones, nothing = np.zeros(number, dtype=np.bool_), np.ones(number), np.zeros(number)
    return Units(
        np.arange(number), segments, np.eye(number), ones, (trained > 0).astype(np.float64), parameters, nothing,
        trained, nothing, ones, is_attention, is_attention, np.arange(number), has_ends=False,
    )  # fmt: skip


def sent_bytes(of: Any, edges: Edges, counts: tuple[int, int], sizes: tuple[float, float]) -> float:
    """Return the bytes that one rank sends in a step: between layers, halos, and gradients around rings.

    Parameters
    ----------
    of : with ``program`` of a rank, its ``schemes``, and ``group``, how many ranks share the network
    counts : samples of a group, and how many groups there are
    sizes : bytes of an element of an activation, and of a gradient as it is sent
    """
    (samples, groups), (itemsize, gradient_bytes), m = counts, sizes, of.group
    share, total = (m - 1) / m, 0.0
    factors = {"": 0.0, ALL_REDUCE: 2 * share, ALL_TO_ALL: share / m, ALL_GATHER: share, REDUCE_SCATTER: share}
    for made, read, elements, flows in zip(*(one.tolist() for one in edges), strict=True):
        ahead, back = moved(of.schemes[made], of.schemes[read])
        total += samples * itemsize * elements * (factors[ahead] + factors[back] * flows)
    for site, scheme in zip(of.program.sites, of.schemes, strict=True):
        ranks = groups * (m if scheme in SUMMED_BY_ALL else 1)
        total += 2 * (ranks - 1) / ranks * gradient_bytes * site.trained
        if scheme == ROUNDS:
            total += 2 * share * samples * itemsize * site.input_elements
        if scheme == SPACE:
            total += samples * itemsize * sum(halo_elements(site))
    return total


def named(schemes: tuple[int, ...], of: Program) -> Iterator[tuple[str, str]]:
    """Yield the name of every layer with parameters, and its scheme."""
    for at in of.slot.tolist():
        yield of.network.layers[at].name, SCHEMES[schemes[at]]
