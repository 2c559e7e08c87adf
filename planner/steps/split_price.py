"""Prices of split plans: what plans share once, then the distinct steps, those of like pipelines together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from planner.domain.configuration import SHARD_AXES, Configurations
from planner.domain.messages import GRADIENTS
from planner.domain.split import OFFLOADS, SplitMemoryBytes
from planner.sources.sources import Sources
from planner.steps.best_order import best_orders
from planner.steps.epoch import Input
from planner.steps.laid_stages import StageLayout, laid_out, layout_memory
from planner.steps.split_costs import SplitCosts
from planner.steps.split_offload import offload_s
from planner.steps.split_part import SPLIT_TERMS, SplitPart
from planner.steps.split_passes import Passes
from planner.steps.split_stages import OfStages, StageCases
from planner.steps.split_state import State
from planner.steps.stage_layouts import StageLayouts
from planner.workload.memory import fullest_stage

__all__ = ["SplitPriced", "SplitPricer"]

_OF_STEP = ("pipeline_parallel", "schedule", "accumulation_steps", "virtual_stages")
"""What a step depends on besides its passes and its state."""


@dataclass(frozen=True, slots=True)
class SplitPriced:
    """n plans.

    Attributes
    ----------
    period_s : ndarray of float, shape (n,)
    seconds, exposed_s : term -> ndarray of float, shape (n,)
        What a term takes, and what it adds to the step; ``exposed_s`` adds up to ``period_s``.
    memory : SplitMemoryBytes
    slowest : ndarray of int, shape (n,)
        The stage with the most work.
    """

    period_s: FloatArray
    seconds: Mapping[str, FloatArray]
    exposed_s: Mapping[str, FloatArray]
    memory: SplitMemoryBytes
    slowest: IntArray

    @staticmethod
    def joined(parts: Sequence[SplitPriced], at: IntArray) -> SplitPriced:
        """Return the plans of parts, one after the other, at positions."""

        def terms(of: str) -> dict[str, FloatArray]:
            names = getattr(parts[0], of)
            return {name: np.concatenate([getattr(one, of)[name] for one in parts])[at] for name in names}

        names = [one.name for one in fields(SplitMemoryBytes)]
        memory = {name: np.concatenate([getattr(one.memory, name) for one in parts])[at] for name in names}
        period, slowest = (
            np.concatenate([getattr(one, name) for one in parts])[at] for name in ("period_s", "slowest")
        )
        return SplitPriced(period, terms("seconds"), terms("exposed_s"), SplitMemoryBytes(**memory), slowest)


class SplitPricer(SplitCosts):
    """Prices split plans of one precision; what a rank takes of a micro-batch stays for later calls.

    ``like``: of a problem that differs in overheads and collectives alone; what its ranks take is used again.

    Attributes
    ----------
    stage_layouts : StageLayouts
    input : Input
    part : kind of SplitPart
    """

    part: ClassVar[type[SplitPart]] = SplitPart

    def __init__(self, sources: Sources, precision: str, like: SplitPricer | None = None) -> None:
        super().__init__(sources, precision, like.compute if like else None)
        self.stage_layouts = StageLayouts(self, sources.accelerator.memory_bytes)
        self.input = Input(sources)
        self._in_orders: dict[tuple[str, ...], Self] = {}

    def is_laid_out(self, plans: Configurations) -> BoolArray:
        """Tell which plans have stages that :meth:`layouts` lays out."""
        return plans.is_laid_out

    def first_layers(self, layout: StageLayout) -> tuple[str, ...]:  # noqa: ARG002 - blocks have no names
        """Return the names of the layers that stages start with, where they are cut between layers."""
        return ()

    def memory(self, plans: Configurations) -> SplitMemoryBytes:
        """Return the memory of each plan's fullest rank."""
        laid = plans.is_laid_out
        if not laid.any():
            return self.ledger.fullest(plans)
        memory = self.ledger.fullest(plans.but(stages=0, recompute=np.where(laid, 0, plans.recompute)))
        where = np.flatnonzero(laid)
        of_laid = [
            layout_memory(self, plans.take(np.array([row])), layout)
            for row, layout in zip(where.tolist(), self.layouts(plans.take(where)), strict=True)
        ]
        columns = {one.name: np.array(getattr(memory, one.name)) for one in fields(SplitMemoryBytes)}
        for row, each in zip(where.tolist(), of_laid, strict=True):
            worst = fullest_stage(each)
            for name, column in columns.items():
                column[row] = getattr(worst, name)
        return SplitMemoryBytes(**columns)

    def layouts(self, plans: Configurations) -> list[StageLayout]:
        """Return what the stages of each plan hold and compute again, of plans that leave that to what fits."""
        return self.stage_layouts.of(plans, self.ranks(plans))

    def ranks(self, plans: Configurations) -> IntArray:
        """Return the rank of each plan in ``compute``, shape (n,)."""
        first, which = plans.distinct(SHARD_AXES)
        some = plans.take(first)
        degrees = zip(*(getattr(some, name).tolist() for name in SHARD_AXES), strict=True)
        return np.array([self.compute.rank_of(*each) for each in degrees], dtype=np.int64)[which]

    def in_order(self, rank_order: tuple[str, ...]) -> Self:
        """Return a pricer that differs in how ranks are numbered alone, and shares what a rank takes by itself."""
        if rank_order not in self._in_orders:
            other = copy(self)
            other.rank_order, other.chooses_order = rank_order, False
            other.ledger = self.ledger.with_rules(rank_order=rank_order)
            other.stage_layouts = StageLayouts(other, self.sources.accelerator.memory_bytes)
            self._in_orders[rank_order] = other
        return self._in_orders[rank_order]

    def best_orders(self, configurations: Configurations) -> list[tuple[str, ...]]:
        """Return the order of ranks that is fastest for each plan, of those that fit where any do."""

        def price(order: tuple[str, ...], rows: IntArray) -> tuple[FloatArray, BoolArray]:
            priced = self.in_order(order).price(configurations.take(rows))
            return priced.period_s, priced.memory.total <= self.sources.accelerator.memory_bytes

        return best_orders(configurations, self.rank_order, price)

    def price(self, configurations: Configurations) -> SplitPriced:
        """Price configurations, rows of shape (n,), with their ranks as all are numbered or as is best for each."""
        if not self.chooses_order:
            return self._priced(configurations)
        orders = self.best_orders(configurations)
        parts, places = [], []
        for order in dict.fromkeys(orders):
            rows = np.array([at for at, one in enumerate(orders) if one == order])
            parts.append(self.in_order(order).price(configurations.take(rows)))
            places.append(rows)
        return SplitPriced.joined(parts, np.argsort(np.concatenate(places)))

    def _priced(self, configurations: Configurations) -> SplitPriced:
        """Price configurations whose ranks are numbered alike.

        Passes of a micro-batch, and what a step does once, are priced for each distinct stage; then the distinct steps
        that they make.
        """
        plans = configurations
        laid = np.flatnonzero(self.is_laid_out(plans))
        if not laid.size:
            terms, slowest = self._terms(plans, StageCases)
        elif laid.size == configurations.size:
            terms, slowest = self._terms(plans, laid_out(self.layouts(plans)))
        else:
            rows = np.flatnonzero(~self.is_laid_out(plans))
            parts = [self._priced(configurations.take(some)) for some in (rows, laid)]
            return SplitPriced.joined(parts, np.argsort(np.concatenate([rows, laid])))
        memory = self.memory(plans)
        self._offload(plans, memory, terms)
        terms["load_input"][:] = self._load(plans, np.sum([exposed for _, exposed in terms.values()], axis=0))
        seconds = {name: both[0] for name, both in terms.items()}
        exposed = {name: both[1] for name, both in terms.items()}
        period = np.sum(list(exposed.values()), axis=0)
        return SplitPriced(period, seconds, exposed, memory, slowest)

    def totals(self, configurations: Configurations) -> tuple[FloatArray, FloatArray]:
        """Return the step [s] and the memory of the fullest rank [bytes] of configurations alone, (n,) each.

        What :meth:`price` says term by term, up to rounding: parts of a step that a sum over terms would cancel are not
        worked out.
        """
        plans = configurations
        is_plain = plans.of_bases(lambda some: ~self.is_laid_out(some) & (some.offload == 0))
        if self.chooses_order or not is_plain.any():
            return self._in_full(configurations)
        if is_plain.all():
            periods = self._periods(plans)
            return periods + self._load(plans, periods)[1], self.ledger.totals(plans)
        totals = np.zeros((2, configurations.size))
        for some, of_some in ((is_plain, self.totals), (~is_plain, self._in_full)):
            totals[:, some] = of_some(configurations.take(some))
        return totals[0], totals[1]

    def _in_full(self, configurations: Configurations) -> tuple[FloatArray, FloatArray]:
        priced = self.price(configurations)
        return priced.period_s, priced.memory.total

    def _periods(self, plans: Configurations) -> FloatArray:
        """Return the step of each plan [s], shape (n,), of none that offloads."""
        parts, which = self._parts(plans, StageCases)
        periods = np.zeros(which.max(initial=-1) + 1)
        for where, part in parts:
            periods[where] = part.period_s
        return np.asarray(periods[which])

    def _terms(self, plans: Configurations, stages: OfStages) -> tuple[dict[str, FloatArray], IntArray]:
        """Return what each term takes and adds, (2, n) each, but what offloading does, and the slowest stage, (n,)."""
        parts, which = self._parts(plans, stages)
        size = which.max(initial=-1) + 1
        terms = {name: np.zeros((2, size)) for name in SPLIT_TERMS}
        slowest = np.zeros(size, dtype=np.int64)
        for where, part in parts:
            slowest[where] = part.slowest
            for name, both in part.terms().items():
                terms[name][:, where] = both
        return {name: both[:, which] for name, both in terms.items()}, slowest[which]

    def _parts(self, plans: Configurations, stages: OfStages) -> tuple[Iterator[tuple[IntArray, SplitPart]], IntArray]:
        """Return the distinct steps of plans in parts, and the step of each plan, shape (n,)."""
        rank = self.ranks(plans)
        of = passes, state = Passes(self, plans, rank, stages), State(self, plans, rank, stages)
        cases = (passes.case, passes.number), (state.cases.case, state.cases.rank.size)
        rows, which = plans.distinct(_OF_STEP, *cases)
        alike = distinct_rows(*SplitPart.alike(plans.take(rows), passes.cases.run_number[rows]))[1]
        wheres = (np.flatnonzero(alike == at) for at in range(int(alike.max(initial=-1)) + 1))
        return ((where, self.part(self, plans, of, rows[where])) for where in wheres), which

    def _load(self, plans: Configurations, step_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what loading samples takes and adds; the ranks of the first stage load, one of each copy."""
        if self.sources.storage is None:
            return np.zeros_like(step_s), np.zeros_like(step_s)
        copies, samples = self.placement(plans).groups(GRADIENTS), plans.sub_batch * plans.accumulation_steps
        in_node = np.ceil(copies.ranks_per_node).astype(np.int64)
        load = self.input.times(samples, in_node, copies.nodes, first_epoch=False).node_s
        return load, np.maximum(load - step_s, 0.0) if self.strategy.prefetch else load

    def _offload(self, plans: Configurations, memory: SplitMemoryBytes, terms: dict[str, FloatArray]) -> None:
        """Put what offloading takes into the terms; what the host updates, the device does not."""
        if not plans.offload.any():
            return
        m = plans.accumulation_steps
        passes = terms["forward"][1] / m, (terms["backward"][1] + terms["recompute"][1]) / m
        terms["offload"][:] = offload_s(self.sources, plans, memory, memory.to_device / self.parameter.weight, passes)
        terms["update"][:, plans.offload == OFFLOADS.index("optimizer")] = 0.0
