"""What plans leave open, chosen exactly: the order of ranks, the layers of stages, and what stages compute again.

Of all orders that differ in which groups share nodes, the fastest is taken. Ranks are numbered along one axis after the
other, so that an order says which groups lie inside nodes and which go across: of tensor, context, data and pipeline
ranks, and of experts, whose grid has the same order (:mod:`planner.workload.placement`). An axis of one rank may stand
anywhere. The grid of experts must give every stage of a pipeline the ranks that it has otherwise, as ranks hold experts
of their own layers alone.

A stage computes again the least that lets it fit its device: nothing, attention weights, or its first layers, as few as
do; of those that fit, what takes least time (MODEL 10.2, 13.7). Given the cut, stages are independent. The cut of best
stages makes the slowest stage, with what it computes again, as fast as it can be; of cuts that do, that whose fullest
stage needs least memory is taken. Where no cut fits, the fullest stage needs the least that it can.

The chunks of a stage, virtual stages, hold as many layers each. Which layers these are is left open, as where stages
are even: those of a stage count as neighbours.

The time of a stage is that of both passes of a micro-batch, in the mean of a step, with messages and gathers; it does
not depend on which stage it is, but for the ends of the network. Its memory does, by micro-batches that are alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, permutations
from math import prod
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from planner.domain.axes import AXES, DATA, EXPERT, PIPELINE, RANK_ORDER, TENSOR
from planner.domain.configuration import RANK_AXES, Configurations
from planner.domain.split import BEST_STAGES, PER_STAGE, RECOMPUTES, WEIGHTS_SHARDED, StageLayers, even_layers
from planner.steps.passes import Passes
from planner.steps.stage_cases import StageLayout, laid_out, layout_memory, units_ahead
from planner.steps.state import State
from planner.steps.step_costs import StepCosts
from planner.workload.program import best_cuts

Order = tuple[str, ...]
_SLACK = 1e-9
"""Relative: an order must be faster by more to be taken before those in front of it."""


def orders_of(plan: Configurations, first: Order) -> list[Order]:
    """Return the lawful orders of a plan that differ, the framework's own first; ``plan``: fields of shape (1,)."""
    whole = {name: int(getattr(plan, RANK_AXES[name])[0]) for name in RANK_ORDER}
    x, p, copies = whole.pop(EXPERT), whole[PIPELINE], int(plan.weight_copies[0])
    experts = {TENSOR: whole[TENSOR], EXPERT: x, DATA: max(copies // x, 1), PIPELINE: p} if x > 1 else {}
    several = [name for name in RANK_ORDER if max(whole.get(name, 1), experts.get(name, 1)) > 1]
    alone = tuple(name for name in RANK_ORDER if name not in several)

    def keeps_stages(order: Order) -> bool:
        inside = order[: order.index(PIPELINE)]
        strides = (prod(grid.get(name, 1) for name in inside) for grid in (whole, experts or whole))
        return p == 1 or len(set(strides)) == 1

    own = tuple(name for name in first if name in several)
    others = (some for some in permutations(several) if some != own and keeps_stages((*some, *alone)))
    return [(*some, *alone) for some in (own, *others)]


def best_orders(
    plans: Configurations, first: Order, price: Callable[[Order, IntArray], tuple[FloatArray, BoolArray]]
) -> list[Order]:
    """Return the fastest order of each of n plans, of those with which it fits if there are any.

    ``plans``: Configurations, fields of shape (n,); ``first``: the framework's own, which is taken unless another is
    faster; ``price``: (order, rows) -> steps [s] of these plans, and whether they fit.
    """
    alike, which = distinct_rows(*(getattr(plans, name) for name in RANK_AXES.values()))
    choices = [orders_of(plans.take(np.array([row])), first) for row in alike.tolist()]
    place = {order: at for at, order in enumerate(dict.fromkeys(order for some in choices for order in some))}
    number = which.size
    best, best_place = np.full(number, -1), np.full(number, len(place))
    period, fits = np.full(number, np.inf), np.zeros(number, dtype=np.bool_)
    for order, at in place.items():
        rows = np.flatnonzero(np.array([order in some for some in choices])[which])
        own_place = np.array([some.index(order) if order in some else -1 for some in choices])[which[rows]]
        own_s, own_fits = price(order, rows)
        before_s = period[rows]
        faster = own_s < before_s * (1 - _SLACK)
        equal = (own_s <= before_s * (1 + _SLACK)) & (own_place < best_place[rows])
        better = (own_fits & ~fits[rows]) | ((own_fits == fits[rows]) & (faster | equal))
        taken = rows[better]
        best[taken], best_place[taken] = at, own_place[better]
        period[taken], fits[taken] = own_s[better], own_fits[better]
    names = list(place)
    return [names[at] for at in best.tolist()]


_Key = tuple[int, ...]
"""A plan: its fields."""
_NONE, _SELECTIVE, _FULL = map(RECOMPUTES.index, ("none", "selective", "full"))


class StageLayouts:
    """Layouts of plans of one network; those that were asked for stay."""

    def __init__(self, costs: StepCosts, capacity_bytes: float) -> None:
        self._costs, self._capacity = costs, capacity_bytes
        self._layouts: dict[_Key, StageLayout] = {}

    def of(self, plans: Configurations, rank: IntArray) -> list[StageLayout]:
        """Return the layout of each of n plans; ``rank``: of each in the table of compute."""
        layouts = []
        for at, key in enumerate(_keys(plans)):
            if key not in self._layouts:
                row = np.array([at])
                self._layouts[key] = _OfPlan(self._costs, plans.take(row), rank[row], self._capacity).layout()
            layouts.append(self._layouts[key])
        return layouts


def _keys(plans: Configurations) -> Iterator[_Key]:
    return zip(*(getattr(plans, one.name).tolist() for one in AXES), strict=True)


class _Ways(NamedTuple):
    """What each of k stages would do: the row of what it computes again, its time, inf where none fits, and memory."""

    row: IntArray
    time_s: FloatArray
    memory_bytes: FloatArray


class _OfPlan:
    """The stages that one plan can have; ``plan`` and ``rank`` of shape (1,)."""

    def __init__(self, costs: StepCosts, plan: Configurations, rank: IntArray, capacity_bytes: float) -> None:
        self._costs, self._plan, self._rank, self._capacity = costs, plan, rank, capacity_bytes
        self._stages, self._chunks = int(plan.pipeline_parallel[0]), int(plan.virtual_stages[0])
        self._ahead = units_ahead(costs.compute.ranks[0].units)
        self._is_free = bool(plan.recompute[0] == PER_STAGE)

    def layout(self) -> StageLayout:
        """Return what the stages hold, and compute again."""
        stage, number, pipeline = np.arange(self._stages), len(self._ahead) - 1, self._plan.pipeline_parallel
        is_best = self._stages > 1 and self._plan.stages[0] == BEST_STAGES
        deals, chunks = ("blocks", self._chunks) if is_best else (self._costs.ledger.rules.deals, 1)
        first, end, _ = even_layers(number // chunks, pipeline, stage, deals, self._plan.last_stage)
        first, end = first * chunks, end * chunks
        rows, of_stage = self._options(stage, first, end)
        even = self._ways(rows, self._time_s(rows), of_stage)
        if not is_best:
            return rows.take(even.row)
        return self._best(float(even.time_s.max()))

    def _best(self, limit_s: float) -> StageLayout:
        """Return the layout of best stages; ``limit_s``: what the slowest of even stages takes, inf where none fit."""
        p, place, first, end = self._stages, *self._cuts()
        alike, which = self._distinct(place, first, end)
        distinct = place[alike], first[alike], end[alike]
        fast = np.flatnonzero(self._time_s(self._least(*distinct)) <= limit_s)  # others are in no better cut
        options, of_fast = self._options(*(one[fast] for one in distinct))
        time_s, owner = self._time_s(options), fast[of_fast]
        # Of every stage what it can be: the first, one between, or the last; memory differs between stages.
        here = [np.flatnonzero(options.stage == self._place(stage)) for stage in range(p)]
        row, stage = np.concatenate(here), np.repeat(np.arange(p), [one.size for one in here])
        rows = StageLayout(stage, options.take(row).layers, options.recompute[row])
        ways = self._ways(rows, time_s[row], stage * alike.size + owner[row])
        of_way = (stage * alike.size + owner[row])[ways.row]
        number = np.full(p * alike.size, -1)
        number[of_way] = np.arange(of_way.size)
        ends = len(self._ahead)
        way = np.full((p, ends, ends), -1)
        for at in range(p):
            mine = np.flatnonzero(place == self._place(at))
            way[at, first[mine], end[mine]] = number[at * alike.size + which[mine]]
        time, memory = (np.append(one, np.inf)[way] for one in (ways.time_s, ways.memory_bytes))
        cuts = best_cuts(time, memory, np.zeros(ends))
        if cuts is None:
            cuts = best_cuts(memory, memory, np.zeros(ends))
        if cuts is None:
            raise AssertionError("every stage has at least one layer and a way to hold it")
        taken = ways.row[way[np.arange(p), cuts[:-1], cuts[1:]]]
        return StageLayout(
            np.arange(p), StageLayers(cuts[:-1], cuts[1:], rows.layers.again[taken]), rows.recompute[taken]
        )

    def _cuts(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return every first layer and end of the first stage, of one between, and of the last; a layer a chunk."""
        p, v, number = self._stages, self._chunks, len(self._ahead) - 1
        most = number - (p - 1) * v
        inner_first, inner_end = v * np.array(np.triu_indices(number // v, 1))
        inner = (inner_first > 0) & (inner_end - inner_first <= most) & (p > 2)
        lengths = np.arange(v, most + 1, v)
        first = np.concatenate([np.zeros_like(lengths), inner_first[inner], number - lengths])
        end = np.concatenate([lengths, inner_end[inner], np.full_like(lengths, number)])
        sizes = lengths.size, int(inner.sum()), lengths.size
        return np.repeat([self._place(0), self._place(1), self._place(p - 1)], sizes), first, end

    def _place(self, stage: int) -> int:
        """Return the stage that stands for all that can hold the same: the first, one between, or the last."""
        return min(stage, 1) if stage < self._stages - 1 else stage

    def _distinct(self, place: IntArray, first: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
        """Return one of each kind of stages that hold the same layers in the same order, and the kind of each."""
        changes = np.flatnonzero(np.diff(np.diff(self._ahead, axis=0), axis=0).any(axis=1)) + 1
        runs = [0, *changes.tolist(), len(self._ahead) - 1]
        held = [np.maximum(np.minimum(end, stop) - np.maximum(first, start), 0) for start, stop in pairwise(runs)]
        return distinct_rows(place, *held)

    def _least(self, stage: IntArray, first: IntArray, end: IntArray) -> StageLayout:
        """Return what stages take at least: nothing is computed again where that is free."""
        again = np.zeros_like(first) if self._is_free else end - first
        kind = _NONE if self._is_free else int(self._plan.recompute[0])
        return StageLayout(stage, StageLayers(first, end, again), np.full(first.size, kind))

    def _options(self, stage: IntArray, first: IntArray, end: IntArray) -> tuple[StageLayout, IntArray]:
        """Return what each stage could compute again, least first, and the stage that each of these is of."""
        if not self._is_free:
            return self._least(stage, first, end), np.arange(first.size)
        held = end - first
        of = np.repeat(np.arange(first.size), held + 2)
        place = np.arange(of.size) - np.repeat(np.cumsum(held + 2) - held - 2, held + 2)
        again = np.where(place == 1, held[of], np.maximum(place - 1, 0))
        kind = np.select([place == 0, place == 1], [_NONE, _SELECTIVE], _FULL)
        return StageLayout(stage[of], StageLayers(first[of], end[of], again), kind), of

    def _time_s(self, rows: StageLayout) -> FloatArray:
        """Return both passes of a micro-batch over each stage [s], in the mean of a step."""
        stages, at = laid_out([rows]), np.arange(rows.stage.size)
        both = Passes(self._costs, self._plan, self._rank, stages).alone_s(
            at, self._plan.accumulation_steps.astype(np.float64)
        )
        if self._plan.sharding[0] == WEIGHTS_SHARDED:
            both = State(self._costs, self._plan, self._rank, stages).gathered_s(at, *both)
        return both[0] + both[1]

    def _ways(self, rows: StageLayout, time_s: FloatArray, of: IntArray) -> _Ways:
        """Return the best row of each stage, in the order of ``of``: the stage that a row is of."""
        memory = layout_memory(self._costs, self._plan, rows).total
        fits = memory <= self._capacity
        order = np.lexsort((np.where(fits, memory, time_s), np.where(fits, time_s, memory), ~fits, of))
        best = order[np.unique(of[order], return_index=True)[1]]
        return _Ways(best, np.where(fits[best], time_s[best], np.inf), memory[best])
