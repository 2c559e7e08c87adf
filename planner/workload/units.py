"""What a pipeline does not divide.

Of a network with blocks that is what stands before them, each block, and what stands behind; of any other a layer with
parameters and those without behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray
from planner.domain.network import Network
from planner.workload.program import Program

__all__ = ["Units", "cut_units", "stage_units", "units_of"]


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a program, equal ones once: V units, U distinct.

    Attributes
    ----------
    sequence : ndarray of int, shape (V,)
        Which of the distinct ones each unit is; the first stands before the blocks, the last behind them.
    segments : ndarray of float, shape (U, D)
        How many of each distinct segment of the program one unit has.
    share : ndarray of float, shape (S, U)
        Of what all layers like a site of the program take, the part of those in one unit.
    layers, slots, parameters, experts : ndarray of float, shape (U,)
        Of one unit: layers, those with parameters, their parameters, and those of experts among them.
    starts : ndarray of int, shape (V,)
        Position of the first layer of every unit.
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
    is_attention: BoolArray
    repeats_attention: BoolArray
    starts: IntArray

    @property
    def distinct(self) -> int:
        """U."""
        return int(self.segments.shape[0])

    def by_unit(self, totals: FloatArray, site: IntArray) -> FloatArray:
        """Return what one unit takes of each distinct kind, (..., k) -> (..., U).

        ``totals``: of calls that all layers like a site make, sites of shape (k,).
        """
        result: FloatArray = totals @ self.share[site]
        return result


def units_of(network: Network, of: Program) -> Units:
    """Return the units of a network's program, or of a shard of it, whose layers stand at the same positions."""
    inner = np.array(network.blocks, dtype=np.int64) if network.blocks else of.slot[1:]
    unit_of_slot = np.searchsorted(inner, of.slot, side="right")
    unit_of_segment = np.concatenate([[0], unit_of_slot])
    unit_of_layer = np.searchsorted(inner, np.arange(of.site.size), side="right")
    number, depth = inner.size + 1, of.repeats.size
    rows = np.zeros((number, depth))
    np.add.at(rows, (unit_of_segment, of.segment), 1.0)
    keys = [row.tobytes() for row in rows]
    distinct = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    first = np.array([keys.index(key) for key in distinct])
    parameters = np.array([site.parameters for site in of.sites], dtype=np.float64)[of.site]
    of_experts = parameters * np.array([layer.kind == "experts" for layer in network.layers])
    columns = (np.ones(of.site.size), parameters > 0, parameters, of_experts)
    layers, slots, elements, experts = (
        np.bincount(unit_of_layer, column, minlength=number)[first] for column in columns
    )
    is_attention = np.array([layer.kind in ("attention", "cross_attention") for layer in network.layers])
    is_fused = np.array([bool(layer.attributes.get("fused", False)) for layer in network.layers])
    sequence = np.array([distinct[key] for key in keys])
    share = of.share @ rows[first].T
    starts = np.concatenate([[0], inner])
    repeats = is_attention & ~is_fused
    return Units(sequence, rows[first], share, layers, slots, elements, experts, is_attention, repeats, starts)


def stage_units(units: Units, stages: int, last: int = -1) -> FloatArray:
    """Return how many of each distinct unit every stage holds, shape (p, U).

    Blocks are dealt out evenly, the first stages hold one more where they do not divide; what stands before and behind
    them is on the first stage and on the one where layers end, ``last``.
    """
    blocks = units.sequence[1:-1]
    elements = np.full(stages, blocks.size // stages) + (np.arange(stages) < blocks.size % stages)
    counts = np.zeros((stages, units.distinct))
    np.add.at(counts, (np.repeat(np.arange(stages), elements), blocks), 1.0)
    counts[0, units.sequence[0]] += 1.0
    if units.sequence.size > 1:
        counts[last, units.sequence[-1]] += 1.0
    return counts


def cut_units(units: Units, cuts: IntArray) -> FloatArray:
    """Return how many of each distinct unit every stage holds, shape (p, U).

    ``cuts``: the unit that each stage starts with, and V behind the last, shape (p + 1,).
    """
    stages = cuts.size - 1
    counts = np.zeros((stages, units.distinct))
    np.add.at(counts, (np.repeat(np.arange(stages), np.diff(cuts)), units.sequence), 1.0)
    return counts
