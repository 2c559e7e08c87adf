"""How ranks of a group share each layer, which layers keep their activations, and least sums of such choices.

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

The least sum of costs of nodes and edges, each node in one of a few states: exact where few neighbours are open.

Nodes are eliminated one after the other, those with the fewest neighbours first: what a node and its edges cost at
least, in each state of its neighbours, is a cost between these. Chains and series-parallel graphs, such as residual and
inception networks, never have more than two neighbours; others take S to the power of as many as they have.

Where that is more than LARGEST, as in DenseNet, whose layers read all before them, a node's costs are put in groups of
few neighbours, and each group takes its own least (mini-buckets, Dechter and Rish 2003): what is found then is a good
assignment, not always the best.

Which units of a chain keep their activations, and which are made again: exact, for every memory at once.

Units that are not kept come in runs, each rebuilt from what crosses the cut before it when its backward pass comes: a
run holds what its units keep for that long. With Z the most that a run holds,

    bytes = Σ kept units (own + joined) + Σ runs crossing + Z,    time = Σ forward of all units in runs

but of the last of a run where it keeps nothing of what it makes,
own, joined and crossing as :mod:`planner.workload.rank_sizes` has them. For every Z of a grid the least time for each
number of bytes is found by dynamic programming, bytes to a 512th of what keeping all takes; the bytes of what is found
are exact. Cuts that more crosses than some cut on either side, as inside of a residual block, are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, Shape, Site
from planner.domain.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from planner.domain.network import parameters_of
from planner.domain.split import SCHEMES
from planner.workload.program import Program
from planner.workload.units import Units

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


LARGEST, WIDEST = 1 << 15, 4
"""States of neighbours together, up to which a node's costs are taken as one; nodes of a group beyond."""
_Factor = tuple[tuple[int, ...], FloatArray]


def least_assignment(
    nodes: Sequence[FloatArray], edges: Sequence[tuple[int, int]], costs: Sequence[FloatArray]
) -> IntArray:
    """Return the state of every node, shape (c, L), of c cases.

    Parameters
    ----------
    nodes : of L nodes, ndarray of float, shape (c, S_l) each; inf: a state that it does not have
    edges : pairs of nodes
    costs : of each edge, shape (c, S_a, S_b)
    """
    factors: list[_Factor] = [((at,), one) for at, one in enumerate(nodes)]
    factors += list(zip(edges, costs, strict=True))
    near: list[set[int]] = [set() for _ in nodes]
    for a, b in edges:
        near[a].add(b)
        near[b].add(a)
    of_node: list[list[_Factor]] = [[] for _ in nodes]
    for factor in factors:
        for at in factor[0]:
            of_node[at].append(factor)
    left, order = set(range(len(nodes))), list[tuple[int, list[_Factor]]]()
    while left:
        node = min(left, key=lambda one: (len(near[one]), one))
        left.remove(node)
        order.append((node, of_node[node]))
        gone = {id(one) for one in of_node[node]}
        for at in near[node]:
            of_node[at] = [one for one in of_node[at] if id(one) not in gone]
        for some in _groups(node, of_node[node], nodes):
            others = tuple(sorted({at for of, _ in some for at in of} - {node}))
            rest: _Factor = (others, _sum((*others, node), some).min(axis=-1))
            for at in others:
                of_node[at].append(rest)
        for at in near[node]:
            near[at] = {other for of, _ in of_node[at] for other in of} - {at}
    found = np.zeros((nodes[0].shape[0] if nodes else 0, len(nodes)), dtype=np.int64)
    for node, some in reversed(order):
        found[:, node] = np.argmin(sum(_at(node, one, found) for one in some), axis=-1)
    return found


def _groups(node: int, factors: list[_Factor], nodes: Sequence[FloatArray]) -> list[list[_Factor]]:
    """Return the costs of a node together, or in groups of few neighbours where that would take too much."""
    if prod(nodes[at].shape[1] for at in {at for of, _ in factors for at in of}) <= LARGEST:
        return [factors]
    groups: list[tuple[set[int], list[_Factor]]] = []
    for factor in sorted(factors, key=lambda one: -len(one[0])):
        scope = {*factor[0]} | {node}
        held = next((some for some in groups if len(some[0] | scope) <= max(WIDEST, len(scope))), None)
        if held is None:
            groups.append((scope, [factor]))
        else:
            held[0].update(scope)
            held[1].append(factor)
    return [some for _, some in groups]


def _at(node: int, factor: _Factor, found: IntArray) -> FloatArray:
    """Return what a factor costs in each state of a node, the others in those found, shape (c, S)."""
    of, costs = factor
    last = np.moveaxis(costs, 1 + of.index(node), -1)
    cost: FloatArray = last[(np.arange(found.shape[0]), *(found[:, at] for at in of if at != node))]
    return cost


def _sum(axes: tuple[int, ...], factors: Sequence[_Factor]) -> FloatArray:
    """Return the sum of factors over the states of nodes, shape (c, S, ...), in this order."""
    total: FloatArray = np.zeros(())
    for of, one in factors:
        order = sorted(range(len(of)), key=lambda place: axes.index(of[place]))
        there = [of[place] for place in order]
        shape = [one.shape[0], *(one.shape[1 + of.index(axis)] if axis in there else 1 for axis in axes)]
        total = total + one.transpose(0, *(1 + place for place in order)).reshape(shape)
    return total


BINS = 512
NEAR = 1
"""Cuts on either side that one is compared with."""
RUNS = 12
"""Sizes of the largest run that are tried."""


class Segments(NamedTuple):
    """Ways to keep less, k of them: the more bytes, the less time.

    Attributes
    ----------
    kept_bytes : ndarray of float, shape (k,), rising
    again_s : ndarray of float, shape (k,), falling; 0 of the last, which keeps all
    again : ndarray of bool, shape (k, V), the units that are made again
    """

    kept_bytes: FloatArray
    again_s: FloatArray
    again: BoolArray

    def fitting(self, room_bytes: FloatArray) -> IntArray:
        """Return the way that takes least time in so much room, of its shape; the leanest where none fits."""
        return np.maximum(np.searchsorted(self.kept_bytes, room_bytes, side="right") - 1, 0)


def segments_of(
    own: FloatArray, joined: FloatArray, crossing: FloatArray, forward_s: FloatArray, runs: int = RUNS
) -> Segments:
    """Return the ways of a chain of V units that no other is better than in bytes and time.

    Parameters
    ----------
    own, joined, forward_s : ndarray of float, shape (V,)
        Bytes that a unit keeps of what it makes, and of what the unit before makes; its forward pass [s].
    crossing : ndarray of float, shape (V,); bytes that cross the cut before each unit
    runs : sizes of the largest run that are tried
    """
    cuts = _cuts(crossing)
    if cuts.size < own.size:
        unit = np.repeat(np.arange(cuts.size), np.diff([*cuts.tolist(), own.size]))
        inner = np.where(np.isin(np.arange(own.size), cuts), 0.0, joined)
        blocks, times = (np.add.reduceat(one, cuts) for one in (own + inner, forward_s))
        of_blocks = segments_of(blocks, joined[cuts], crossing[cuts], times, runs)
        return of_blocks._replace(again=of_blocks.again[:, unit])
    number = own.size
    whole = float(crossing[0] + own.sum() + joined[1:].sum())
    step = whole / BINS if whole else 1.0
    alone = np.concatenate([[crossing[0]], joined[1:]]) + own
    ahead = np.concatenate([[0.0], np.cumsum(own)]), np.concatenate([[0.0], np.cumsum(joined)])
    time_ahead = np.concatenate([[0.0], np.cumsum(forward_s)])
    run_s = time_ahead[None, 1:] - time_ahead[:-1, None] - np.where(own > 0, 0.0, forward_s)
    run_bytes = ahead[0][None, 1:] - ahead[0][:-1, None] + ahead[1][None, 1:] - ahead[1][1:, None]
    sizes = np.unique(run_bytes[np.triu_indices(number)])
    if sizes.size > runs:
        sizes = sizes[np.unique(np.linspace(0, sizes.size - 1, runs).astype(np.int64))]
    found: list[tuple[float, float, BoolArray]] = [(whole, 0.0, np.zeros(number, dtype=np.bool_))]
    for most in sizes.tolist():
        found += _with_runs((alone, crossing, run_bytes), run_s, most, step)
    found.sort(key=lambda one: (one[0], one[1]))
    best: list[tuple[float, float, BoolArray]] = []
    for one in found:
        if one[0] <= whole and (not best or one[1] < best[-1][1]):
            best.append(one)
    return Segments(*(np.array(column) for column in zip(*best, strict=True)))


def _cuts(crossing: FloatArray) -> IntArray:
    """Return the units that a run may start with: before which no more crosses than near on one side."""
    kept = [0]
    for at in range(1, crossing.size):
        ahead, behind = crossing[max(at - NEAR, 0) : at], crossing[at + 1 : at + 1 + NEAR]
        if not (behind.size and ahead.min() < crossing[at] and behind.min() < crossing[at]):
            kept.append(at)
    return np.array(kept, dtype=np.int64)


def _with_runs(
    sizes: tuple[FloatArray, FloatArray, FloatArray], run_s: FloatArray, most: float, step: float
) -> list[tuple[float, float, BoolArray]]:
    """Return ways whose runs hold at most so many bytes: of each number of kept bytes the one with the least time."""
    alone, crossing, run_bytes = sizes
    number = alone.size
    room = BINS - int(np.ceil(most / step))
    if room < 0:
        return []
    least = np.full((number + 1, room + 1), np.inf)
    start = np.zeros((number + 1, room + 1), dtype=np.int64)  # of the run that ends there, or -1: a kept unit
    least[0, 0] = 0.0

    def reach(ends: slice, kept: float, times: FloatArray, mark: int, better: np.ufunc = np.less) -> None:
        if (shift := round(kept / step)) <= room:
            times = times[:, : room + 1 - shift]
            is_better = better(times, least[ends, shift:])
            np.copyto(least[ends, shift:], times, where=is_better)
            np.copyto(start[ends, shift:], mark, where=is_better)

    for begin in range(number):
        stop = begin + int(np.count_nonzero(run_bytes[begin, begin:] <= most))
        reach(slice(begin + 1, begin + 2), float(alone[begin]), least[begin][None], -1, np.less_equal)
        reach(slice(begin + 1, stop + 1), float(crossing[begin]), least[begin] + run_s[begin, begin:stop, None], begin)
    ways, before, lists, starts = [], np.inf, (alone.tolist(), crossing.tolist(), run_bytes.tolist()), start.tolist()
    for kept in np.flatnonzero(np.isfinite(least[number])).tolist():
        if least[number, kept] < before:
            before = float(least[number, kept])
            size, again = _way(lists, starts, kept, step)
            ways.append((size, before, again))
    return ways


def _way(
    sizes: tuple[list[float], list[float], list[list[float]]], start: list[list[int]], kept: int, step: float
) -> tuple[float, BoolArray]:
    """Return the bytes of a way and its units that are made again, followed back from its end."""
    alone, crossing, run_bytes = sizes
    again, total, largest, end = np.zeros(len(alone), dtype=np.bool_), 0.0, 0.0, len(alone)
    while end:
        begin = start[end][kept]
        size = alone[end - 1] if begin < 0 else crossing[begin]
        if begin < 0:
            begin = end - 1
        else:
            again[begin:end] = True
            largest = max(largest, run_bytes[begin][end - 1])
        total += size
        kept, end = kept - round(size / step), begin
    return total + largest, again
