"""Stages of plans whose layers are not dealt out evenly, or which compute different things again.

Every stage of every plan is a case of its own, with its layers and its own kind of recompute, so that passes and state
are priced by the same formulas as those of stages that are alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import AXES
from planner.domain.configuration import Configurations
from planner.domain.prediction import LayersOfStage
from planner.domain.split import RECOMPUTES, SplitMemoryBytes
from planner.steps.split_costs import StepCosts
from planner.steps.split_stages import OfStages, StageCases
from planner.workload.units import StageLayers, Units

__all__ = ["LaidStages", "StageLayout", "laid_out", "layout_memory", "units_ahead"]


@dataclass(frozen=True, slots=True)
class StageLayout:
    """What f stages of a plan hold; usually its p stages, in order.

    Attributes
    ----------
    stage : ndarray of int, shape (f,)
        From 0.
    layers : StageLayers, each of shape (f,)
    recompute : ndarray of int, shape (f,)
        Of the layers that are computed again; no kind that is chosen by stage.
    """

    stage: IntArray
    layers: StageLayers
    recompute: IntArray

    def take(self, at: IntArray) -> StageLayout:
        """Return some of the stages."""
        return StageLayout(self.stage[at], StageLayers(*(one[at] for one in self.layers)), self.recompute[at])

    @property
    def shown(self) -> tuple[LayersOfStage, ...]:
        """What each stage holds, as predictions say it."""
        first, end, again = self.layers
        computed = again * (self.recompute != RECOMPUTES.index("none"))
        each = zip((end - first).tolist(), computed.tolist(), self.recompute.tolist(), strict=True)
        return tuple(LayersOfStage(layers, some, RECOMPUTES[code * (some > 0)]) for layers, some, code in each)

    def rows(self, plans: Configurations) -> Configurations:
        """Return a row for each stage; ``plans``: one, of shape (1,)."""
        return plans.take(np.zeros(self.stage.size, dtype=np.int64)).but(recompute=self.recompute)


def laid_out(layouts: list[StageLayout]) -> OfStages:
    """Return what makes the stages of plans that have these layouts, one each."""
    return partial(LaidStages, layouts=layouts)


def layout_memory(costs: StepCosts, plan: Configurations, layout: StageLayout) -> SplitMemoryBytes:
    """Return the memory of a rank of each stage; ``plan`` of shape (1,)."""
    return costs.ledger.of_stages(layout.rows(plan), layout.stage, layout.layers)


class LaidStages(StageCases):
    """The stages of n plans, each a case of its own; those of plans with one layout that differ in nothing once."""

    def __init__(
        self,
        costs: StepCosts,
        plans: Configurations,
        rank: IntArray,
        but: tuple[str, ...],
        *more: tuple[IntArray, int],
        layouts: list[StageLayout],
    ) -> None:
        number = {id(one): at for at, one in enumerate(layouts)}
        alike = np.array([number[id(one)] for one in layouts], dtype=np.int64), len(layouts)
        names = [one.name for one in AXES if one.name not in but]
        first, self._which = plans.distinct((*names, "last_stage"), *more, alike)
        layouts, plans, rank = [layouts[at] for at in first.tolist()], plans.take(first).rows, rank[first]
        sizes = np.array([one.stage.size for one in layouts], dtype=np.int64)
        plan = np.repeat(np.arange(sizes.size), sizes)
        self._start = np.cumsum(sizes) - sizes
        self.case, self._sizes = self._start[self._which], sizes
        recompute = np.concatenate([one.recompute for one in layouts])
        self.plans, self.rank = plans.take(plan).but(recompute=recompute), rank[plan]
        self.units = costs.compute.ranks[0].units
        self._placement, self._placed = costs.placement(self.plans), {}
        self.of = np.arange(plan.size)
        self.stage = np.concatenate([one.stage for one in layouts])
        each = zip(*(one.layers for one in layouts), strict=True)
        first, end, again = (np.concatenate(column) for column in each)
        ahead = units_ahead(self.units)
        self._blocks: FloatArray = ahead[end] - ahead[first]
        self._again: FloatArray = ahead[first + again] - ahead[first]
        self.counts = self._blocks.copy()
        if self.units.has_ends:
            self.counts[:, self.units.sequence[0]] += self.stage == 0
            self.counts[:, self.units.sequence[-1]] += self.is_last

    @property
    def blocks(self) -> FloatArray:
        """How many of each distinct unit a stage holds, without the ends of the network, shape (f, U)."""
        return self._blocks

    @property
    def again(self) -> FloatArray:
        """How many of each distinct unit a stage computes again, shape (f, U)."""
        return self._again

    def at(self, rows: IntArray) -> IntArray:
        """Return where every stage of some of the plans stands, all of p stages, shape (p, rows)."""
        stages = np.arange(self._sizes[self._which[rows[0]]])
        return np.asarray(self.case[rows] + stages[:, None])

    @property
    def run_number(self) -> IntArray:
        """How many stages each plan has, shape (n,): each is a run of its own."""
        return self._sizes[self._which]

    def runs(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return where every stage stands, as of :meth:`at`."""
        at = self.at(rows)
        return at, np.ones((len(at), 1), dtype=np.int64)

    def most(self, of_stages: FloatArray) -> FloatArray:
        """Return the largest of the stages of the plan that each is of, shape (f,)."""
        return np.asarray(np.repeat(np.maximum.reduceat(of_stages, self._start), self._sizes))


def units_ahead(units: Units) -> FloatArray:
    """Return how many of each distinct unit stand before each one that is dealt out to stages, shape (L + 1, U)."""
    dealt = units.dealt
    is_unit = np.zeros((dealt.size + 1, units.distinct))
    is_unit[np.arange(1, dealt.size + 1), dealt] = 1.0
    return np.cumsum(is_unit, axis=0)
