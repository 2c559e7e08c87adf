"""Distinct stages of distinct plans, one after the other: what plans share is worked out once, whatever their stages.

Plans differ in more than what a pass over a stage, or its state, depends on; and most stages of a pipeline are equal.
Tables have one entry for each distinct stage of each distinct plan, on one axis of length f, so that plans with any
numbers of stages are one call; plans gather from them.

Stages of plans whose layers are not dealt out evenly, or which compute different things again.

Every stage of every plan is a case of its own, with its layers and its own kind of recompute, so that passes and state
are priced by the same formulas as those of stages that are alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from planner.domain.axes import AXES
from planner.domain.configuration import Configurations
from planner.domain.messages import Groups
from planner.domain.prediction import LayersOfStage
from planner.domain.split import RECOMPUTES, SplitMemoryBytes, StageLayers
from planner.steps.compute import ComputeCases
from planner.steps.step_costs import StepCosts
from planner.workload.units import Units, stage_units


class StageCases:
    """The distinct stages of n plans, f in all, of c distinct plans.

    Parameters
    ----------
    plans : Configurations, fields of shape (n,)
    rank : ndarray of int, shape (n,); the rank of each in ``costs.compute``
    but : fields of plans that make no difference; of ``plans`` below they are those of any plan of the case
    more : tuples of ndarray of int, shape (n,), and int; numbers of plans that make one, and what they stay below

    Attributes
    ----------
    case : ndarray of int, shape (n,); of each plan
    plans : Configurations, fields of shape (c,)
    rank : ndarray of int, shape (c,)
    of : ndarray of int, shape (f,); the case that a stage is of; its stages follow each other
    stage : ndarray of int, shape (f,); from 0; of equal ones the first
    counts : ndarray of float, shape (f, U); how many of each distinct unit a stage holds
    """

    def __init__(
        self, costs: StepCosts, plans: Configurations, rank: IntArray, but: tuple[str, ...], *more: tuple[IntArray, int]
    ) -> None:
        names = [one.name for one in AXES if one.name not in but]
        first, self.case = plans.distinct((*names, "last_stage"), *more)
        self.plans, self.rank = plans.take(first).rows, plans.at(rank, first)
        self.units: Units = costs.compute.ranks[0].units
        self._placement, self._placed = costs.placement(self.plans), dict[str, Groups]()
        ends = self.plans.pipeline_parallel, self.plans.last_stage
        alike, self._pipeline = distinct_rows(*ends)
        of_firsts = [
            stage_units(self.units, stages, last, costs.ledger.rules.deals)
            for stages, last in zip(*(one[alike].tolist() for one in ends), strict=True)
        ]
        self._numbers = [_numbers(one) for one in of_firsts]
        firsts = [np.unique(one, return_index=True)[1] for one in self._numbers]
        sizes = np.array([one.size for one in firsts], dtype=np.int64)
        self._run_number, self._lengths = sizes, _padded([np.bincount(one) for one in self._numbers])
        each = sizes[self._pipeline]
        self._start = np.cumsum(each) - each
        self.of = np.repeat(np.arange(first.size), each)
        place = (np.cumsum(sizes) - sizes)[self._pipeline[self.of]] + np.arange(self.of.size) - self._start[self.of]
        self.stage = np.concatenate([*firsts, np.zeros(0, dtype=np.int64)])[place]
        empty = np.zeros((0, self.units.distinct))
        self.counts = np.concatenate([empty, *(one[at] for one, at in zip(of_firsts, firsts, strict=True))])[place]

    @property
    def again(self) -> FloatArray:
        """How many of each distinct unit a stage computes again, where plans do: those with a backward pass, (f, U)."""
        return self.blocks * (self.units.reached > 0)

    @property
    def is_last(self) -> BoolArray:
        """Whether a stage has the last layers of its pipeline, shape (f,)."""
        return np.asarray(self.stage == self.plans.last_stage[self.of])

    @property
    def blocks(self) -> FloatArray:
        """How many of each distinct unit a stage holds, without the ends of the network, shape (f, U)."""
        if not self.units.has_ends:
            return self.counts
        is_end = np.zeros(self.units.distinct, dtype=bool)
        is_end[self.units.sequence[[0, -1]]] = True
        return np.where(is_end, 0.0, self.counts)

    def in_parts(self, of_units: FloatArray) -> FloatArray:
        """Return the sums over units before the blocks, of blocks and behind them, (f, U) to (3, f)."""
        first, last = self.units.sequence[[0, -1]].tolist()
        ends = of_units[:, first], of_units[:, last] if last != first else np.zeros(self.of.size)
        return np.stack([ends[0], of_units.sum(axis=1) - ends[0] - ends[1], ends[1]])

    def at(self, rows: IntArray) -> IntArray:
        """Return where every stage of some of the plans stands, all of p stages and one schedule, shape (p, rows)."""
        case = self.case[rows]
        number = self._numbers[int(self._pipeline[case[0]])]
        return np.asarray(self._start[case] + number[:, None])

    @property
    def run_number(self) -> IntArray:
        """How many runs of equal stages each plan has, shape (n,)."""
        return self._run_number[self._pipeline[self.case]]

    def runs(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return where the distinct stages of plans of as many runs stand, and how many each is, (r, rows) each."""
        case = self.case[rows]
        pipeline = self._pipeline[case]
        runs = np.arange(self._run_number[pipeline[0]])[:, None]
        return np.asarray(self._start[case] + runs), self._lengths[runs, pipeline]

    def groups(self, name: str) -> Groups:
        """Return where the groups of a name lie, of each case."""
        if name not in self._placed:
            self._placed[name] = self._placement.groups(name)
        return self._placed[name]

    def most(self, of_stages: FloatArray) -> FloatArray:
        """Return the largest of each case's stages: shape (f,) to (c,)."""
        return np.maximum.reduceat(of_stages, self._start) if self.of.size else np.zeros(0)

    def compute_rows(self, compute: ComputeCases) -> IntArray:
        """Return the row of each case in the table of compute, made where it is new, shape (c,)."""
        compute.cases.ensure(self.rank, self.plans.sub_batch)
        return compute.cases.rows(self.rank, self.plans.sub_batch)


def _numbers(rows: FloatArray) -> IntArray:
    """Return the number of each stage, (p, U) to (p,): those in a row that hold the same have one, but for the ends."""
    differs = np.any(np.diff(rows, axis=0) != 0, axis=1)
    differs[:1] = differs[-1:] = True
    return np.concatenate([[0], np.cumsum(differs)])


def _padded(lengths: list[IntArray]) -> IntArray:
    """Return arrays of several lengths as columns, 0 behind their ends."""
    columns = np.zeros((max((one.size for one in lengths), default=0), len(lengths)), dtype=np.int64)
    for at, one in enumerate(lengths):
        columns[: one.size, at] = one
    return columns


OfStages = Callable[..., StageCases]
"""What makes the stages of plans of their costs, the plans, the rank of each, and what makes a difference or none."""


@dataclass(frozen=True, slots=True)
class StageLayout:
    """What f stages of a plan hold; usually its p stages, in order.

    Attributes
    ----------
    stage : ndarray of int, shape (f,); from 0
    layers : StageLayers, each of shape (f,)
    recompute : ndarray of int, shape (f,); of the layers that are computed again; no kind that is chosen by stage
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
        self._again: FloatArray = (ahead[first + again] - ahead[first]) * (self.units.reached > 0)
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
