"""What a pipeline does not divide.

Of a network with blocks that is what stands before them, each block, and what stands behind; of any other a layer with
parameters and those without behind it, but of very deep ones several.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network
from planner.domain.split import even_layers, stage_places
from planner.workload.program import Program, block_starts, crossing, program
from planner.workload.shards import second_products

MOST_UNITS = 4096
"""Where a network has more layers with parameters, the fewest tensors cross between units: exact cuts compare all pairs
of them, 100 MB each number of a pair."""


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a program, equal ones once: V units, U distinct.

    Attributes
    ----------
    sequence : which of the distinct ones each unit is; the first stands before the blocks, the last behind them, (V,)
    segments : how many of each distinct segment of the program one unit has, (U, D)
    share : of what all layers like a site of the program take, the part of those in one unit, (S, U)
    layers, slots, parameters, experts, trained, trained_experts, reached : ndarray of float, shape (U,)
        Of one unit: layers, those that are trained, all parameters and those of experts, those that are trained, and
        layers that a backward pass goes through: without frozen ones as many as there are.
    starts : position of the first layer of every unit, (V,)
    has_ends : whether the first and the last stand before and behind blocks; else a pipeline deals them out as others
    is_attention, repeats_attention : ndarray of bool, shape (L,)
        Whether a layer is attention; and whether it keeps its weights, which selective recompute computes again.
    """

    sequence: IntArray
    segments: FloatArray
    share: FloatArray
    layers: FloatArray
    slots: FloatArray
    parameters: FloatArray
    experts: FloatArray
    trained: FloatArray
    trained_experts: FloatArray
    reached: FloatArray
    is_attention: BoolArray
    repeats_attention: BoolArray
    starts: IntArray
    has_ends: bool = True

    @property
    def distinct(self) -> int:
        """U."""
        return int(self.segments.shape[0])

    @property
    def dealt(self) -> IntArray:
        """Which of the distinct ones each unit is that is dealt out to stages."""
        return self.sequence[1:-1] if self.has_ends else self.sequence

    def of_distinct(self, of_layers: FloatArray) -> FloatArray:
        """Return the sum over the layers of one unit of each distinct kind, (L,) -> (U,)."""
        first = np.unique(self.sequence, return_index=True)[1]
        return np.add.reduceat(of_layers, self.starts)[first]


def units_of(network: Network, of: Program) -> Units:
    """Return the units of a network's program, or of a shard of it, whose layers stand at the same positions."""
    inner = np.array(block_starts(network), dtype=np.int64)  # the first layer of every unit but the first
    if not inner.size:
        inner = of.slot[1:]
        if inner.size >= MOST_UNITS:
            tensors = crossing(network, dict.fromkeys((INPUT, *(layer.name for layer in network.layers)), 1))
            inner = inner[tensors[inner] == tensors[inner].min()]
        inner = inner[:: -(-(inner.size + 1) // MOST_UNITS)]
    unit_of_slot = np.searchsorted(inner, of.slot, side="right")
    unit_of_segment = np.concatenate([[0], unit_of_slot])
    unit_of_layer = np.searchsorted(inner, np.arange(of.site.size), side="right")
    number, depth = inner.size + 1, of.repeats.size
    rows = np.zeros((number, depth))
    np.add.at(rows, (unit_of_segment, of.segment), 1.0)
    keys = [row.tobytes() for row in rows]
    distinct = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    first = np.array([keys.index(key) for key in distinct])
    parameters, trained, has_gradient = np.array(
        [(site.parameters, site.trained, site.has_gradient) for site in of.sites], dtype=np.float64
    )[of.site].T
    is_experts = np.array([layer.kind == "experts" for layer in network.layers])
    reached = has_gradient if (trained < parameters).any() else np.ones(of.site.size)
    columns = (
        np.ones(of.site.size), trained > 0, parameters, parameters * is_experts, trained, trained * is_experts, reached,
    )  # fmt: skip
    layers, slots, elements, experts, trained, trained_experts, reached = (
        np.bincount(unit_of_layer, column, minlength=number)[first] for column in columns
    )
    is_attention = np.array([layer.kind in ("attention", "cross_attention") for layer in network.layers])
    is_fused = np.array([bool(layer.attributes.get("fused", False)) for layer in network.layers])
    sequence = np.array([distinct[key] for key in keys])
    share = of.share @ rows[first].T
    starts = np.concatenate([[0], inner])
    repeats = is_attention & ~is_fused
    has_ends = bool(block_starts(network))
    return Units(
        sequence, rows[first], share, layers, slots, elements, experts, trained, trained_experts, reached,
        is_attention, repeats, starts, has_ends,
    )  # fmt: skip


def repeats(network: Network, units: Units, selective: str, *, is_product: bool) -> FloatArray:
    """Return the share of each layer's forward pass that selective recompute makes again, shape (L,).

    ``selective``: one of :data:`planner.domain.framework.REPEATED`; ``is_product``: of its products, else of the rest.
    What is not made again stays in memory, what is does not: time and memory read this alone.
    """
    if selective == "attention":
        return units.repeats_attention.astype(np.float64)
    return second_products(network) if is_product else np.where(units.is_attention, 0.0, 1.0)


def few_blocks(network: Network) -> tuple[Network, IntArray]:
    """Return a network with two of each run of equal blocks, and which of its units each unit of the whole is, (V,).

    What a unit keeps depends on itself, the one before and what reads its output: the second of a run stands for the
    rest of it.
    """
    units = units_of(network, program(network))
    number = units.sequence.size
    if not block_starts(network):
        return network, np.arange(number)
    starts = [*units.starts.tolist(), len(network.layers)]
    kept, place = list[int](), np.zeros(number, dtype=np.int64)
    names, layers = dict[str, str](), list[Layer]()
    for at, kind in enumerate(units.sequence.tolist()):
        is_like = len(kept) > 1 and all(units.sequence[one] == kind for one in kept[-2:]) and kept[-2] > 0
        if not is_like:
            kept.append(at)
        place[at] = len(kept) - 1
        mine, stands = (network.layers[starts[one] : starts[one + 1]] for one in (at, kept[-1]))
        names |= {layer.name: other.name for layer, other in zip(mine, stands, strict=True)}
        if not is_like:
            layers += [replace(one, inputs=tuple(names.get(name, name) for name in one.inputs)) for one in mine]
    return replace(network, layers=tuple(layers)), place


def stage_of(block: int, number: int, pipeline: IntArray, deals: str, last: IntArray) -> IntArray:
    """Return the stage that holds a block, from 0, as of :func:`even_layers`."""
    total, at_first, at_last = stage_places(number, pipeline, deals)
    each, more = np.divmod(total, pipeline)
    place, long = block + at_first + at_last * (last < pipeline - 1), (each + 1) * more
    return np.asarray(np.where(place < long, place // (each + 1), more + (place - long) // np.maximum(each, 1)))


def stage_units(units: Units, stages: int, last: int = -1, deals: str = "blocks") -> FloatArray:
    """Return how many of each distinct unit every stage holds, shape (p, U).

    Blocks are dealt out evenly, see :func:`even_layers`; what stands before and behind them is on the first stage and
    on the one where layers end, ``last``.
    """
    blocks = units.sequence[1:-1]
    elements = even_layers(blocks.size, np.array(stages), np.arange(stages), deals, np.array(last % stages)).again
    counts = np.zeros((stages, units.distinct))
    np.add.at(counts, (np.repeat(np.arange(stages), elements), blocks), 1.0)
    counts[0, units.sequence[0]] += 1.0
    if units.sequence.size > 1:
        counts[last, units.sequence[-1]] += 1.0
    return counts
