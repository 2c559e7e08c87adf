"""Distinct stages of distinct plans, one after the other: what plans share is worked out once, whatever their stages.

Plans differ in more than what a pass over a stage, or its state, depends on; and most stages of a pipeline are equal.
Tables have one entry for each distinct stage of each distinct plan, on one axis of length f, so that plans with any
numbers of stages are one call; plans gather from them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from planner.domain.axes import AXES
from planner.domain.configuration import Configurations
from planner.domain.messages import Groups
from planner.steps.compute import ComputeCases
from planner.steps.split_costs import StepCosts
from planner.workload.units import Units, stage_units

__all__ = ["OfStages", "StageCases"]


class StageCases:
    """The distinct stages of n plans, f in all, of c distinct plans.

    Parameters
    ----------
    costs : StepCosts
    plans : Configurations, fields of shape (n,)
    rank : ndarray of int, shape (n,)
        The rank of each in ``costs.compute``.
    but : tuple of str
        Fields of plans that make no difference; of ``plans`` below they are those of any plan of the case.
    more : tuples of ndarray of int, shape (n,), and int
        Numbers of plans that make one, and what they stay below.

    Attributes
    ----------
    case : ndarray of int, shape (n,)
        Of each plan.
    plans : Configurations, fields of shape (c,)
    rank : ndarray of int, shape (c,)
    of : ndarray of int, shape (f,)
        The case that a stage is of; its stages follow each other.
    stage : ndarray of int, shape (f,)
        From 0; of equal ones the first.
    counts : ndarray of float, shape (f, U)
        How many of each distinct unit a stage holds.
    """

    def __init__(
        self,
        costs: StepCosts,
        plans: Configurations,
        rank: IntArray,
        but: tuple[str, ...],
        *more: tuple[IntArray, int],
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
        """How many of each distinct unit a stage computes again, where plans do, shape (f, U)."""
        return self.blocks

    @property
    def is_last(self) -> BoolArray:
        """Whether a stage has the last layers of its pipeline, shape (f,)."""
        return np.asarray(self.stage == self.plans.last_stage[self.of])

    @property
    def blocks(self) -> FloatArray:
        """How many of each distinct unit a stage holds, without the ends of the network, shape (f, U)."""
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
