"""Prices of synchronous plans: what plans share once, then the distinct steps, those of like pipelines together.

A plan without a pipeline is one stage (:mod:`planner.steps.step_part`). Its input is loaded beside the step before, or
ahead of the step where the framework does not prefetch.

What lies in host memory: copies over the host link, and an update that the host's processors make.

Of an optimizer on the host, gradients go down and weights come up at the same time, once a step, and the host updates
the parameters of all ranks of a node (Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840). Activations that find no room
go down beside the forward pass that makes them and come up beside the backward pass that reads them: only what takes
longer than the pass adds to the step (Rhu et al. 2016, vDNN, arXiv:1602.08124). Paged, they move both ways as kernels
fault, in groups of pages, each with its fault, and nothing runs beside (Awan et al. 2018, OC-DNN). By formula only: no
measured run shows any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np

from planner.costs.terms import evaluate
from planner.domain.arrays import BoolArray, FloatArray, IntArray, distinct_rows, distinct_values
from planner.domain.configuration import RANK_AXES, Configurations
from planner.domain.messages import GRADIENTS
from planner.domain.prediction import SharedLayers
from planner.domain.split import OFFLOADS, SplitMemoryBytes
from planner.numbers import constants
from planner.sources.sources import Sources
from planner.steps.epoch import Input
from planner.steps.open_choices import StageLayouts, best_orders
from planner.steps.passes import Passes
from planner.steps.stage_cases import OfStages, StageCases, StageLayout, laid_out, layout_memory
from planner.steps.state import State
from planner.steps.step_costs import StepCosts
from planner.steps.step_part import STEP_TERMS, OneStage, SlotExchange, StepPart
from planner.workload.calls import UPDATE_BYTES
from planner.workload.memory import fullest_stage

_HOST_BYTES_PER_S = 100e9
"""Assumed of a node's memory: half of what eight channels of DDR4-3200 carry, 204.8 GB/s."""
_OF_STEP = ("pipeline_parallel", "schedule", "accumulation_steps", "virtual_stages")
"""What a step depends on besides its passes and its state."""


@dataclass(frozen=True, slots=True)
class Priced:
    """n plans.

    Attributes
    ----------
    period_s, first_period_s : ndarray of float, shape (n,); in later epochs, and in the first
    seconds, exposed_s : term -> ndarray of float, shape (n,)
        What a term takes, and what it adds to the step. The second add up to ``period_s``, but where loading input
        beside the step takes longer: then what loading adds is all.
    slowest : ndarray of int, shape (n,); the stage with the most work
    """

    period_s: FloatArray
    first_period_s: FloatArray
    seconds: Mapping[str, FloatArray]
    exposed_s: Mapping[str, FloatArray]
    memory: SplitMemoryBytes
    slowest: IntArray

    @staticmethod
    def joined(parts: Sequence[Priced], at: IntArray) -> Priced:
        """Return the plans of parts, one after the other, at positions."""

        def terms(of: str) -> dict[str, FloatArray]:
            names = getattr(parts[0], of)
            return {name: np.concatenate([getattr(one, of)[name] for one in parts])[at] for name in names}

        memory = SplitMemoryBytes.joined([one.memory for one in parts], at)
        period, first, slowest = (
            np.concatenate([getattr(one, name) for one in parts])[at]
            for name in ("period_s", "first_period_s", "slowest")
        )
        return Priced(period, first, terms("seconds"), terms("exposed_s"), memory, slowest)


class Pricer(StepCosts):
    """Prices synchronous plans of one precision; what a rank takes of a micro-batch stays for later calls.

    ``like``: of a problem that differs in overheads and collectives alone; what its ranks take is used again.

    ``part``: kind of StepPart.
    """

    part: ClassVar[type[StepPart]] = StepPart
    slot_exchange = SlotExchange

    def __init__(self, sources: Sources, precision: str, like: StepCosts | None = None) -> None:
        super().__init__(sources, precision, like.compute if like else None)
        self.stage_layouts = StageLayouts(self, sources.accelerator.memory_bytes)
        self.input = Input(sources)
        self._in_orders: dict[tuple[str, ...], Self] = {}

    def apart(self, plans: Configurations) -> list[tuple[IntArray, Pricer]]:
        """Return rows of plans with the pricer of each."""
        return [(np.arange(plans.size), self)]

    def least_pass_s(self, plans: Configurations) -> FloatArray:
        """Return what the passes of one sub-batch over a mean stage take at least, shape (n,) [s]."""
        rows, stages = plans.rows, plans.pipeline_parallel
        copies = rows.data_parallel * stages
        whole = rows.but(pipeline_parallel=1, virtual_stages=1, schedule=0, stages=0, recompute=0, data_parallel=copies)
        passes = Passes(self, whole, self.ranks(whole))
        return np.asarray(passes.least_s(messages=False)[passes.cases.case] / stages)

    def is_laid_out(self, plans: Configurations) -> BoolArray:
        """Tell which plans have stages that :meth:`layouts` lays out."""
        return plans.is_laid_out

    def shared_layers(self, plans: Configurations) -> list[SharedLayers | None]:
        """Return how the devices of each plan share layers that are not those of blocks."""
        return [None] * plans.size

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

    def stage_memory(self, plan: Configurations) -> SplitMemoryBytes:
        """Return the memory of a rank of each stage; ``plan`` of shape (1,)."""
        if self.is_laid_out(plan)[0]:
            return layout_memory(self, plan, self.layouts(plan)[0])
        stage = np.arange(plan.pipeline_parallel[0])
        return self.ledger.of_stages(plan.take(0 * stage), stage) if stage.size > 1 else self.memory(plan)

    def layouts(self, plans: Configurations) -> list[StageLayout]:
        """Return what the stages of each plan hold and compute again, of plans that leave that to what fits."""
        return self.stage_layouts.of(plans, self.ranks(plans))

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

    def price(self, configurations: Configurations) -> Priced:
        """Price configurations, rows of shape (n,), with their ranks as all are numbered or as is best for each."""
        if not self.chooses_order:
            return self._priced(configurations)
        orders = self.best_orders(configurations)
        parts, places = [], []
        for order in dict.fromkeys(orders):
            rows = np.array([at for at, one in enumerate(orders) if one == order])
            parts.append(self.in_order(order).price(configurations.take(rows)))
            places.append(rows)
        return Priced.joined(parts, np.argsort(np.concatenate(places)))

    def _priced(self, plans: Configurations) -> Priced:
        """Price rows whose ranks are numbered alike: each distinct stage, then the distinct steps that they make."""
        kind = 2 * (plans.pipeline_parallel > 1) + self.is_laid_out(plans)
        if plans.size and np.any(kind != kind[0]):
            every = [np.flatnonzero(kind == value) for value in distinct_values(kind).tolist()]
            parts = [self._priced(plans.take(rows)) for rows in every]
            return Priced.joined(parts, np.argsort(np.concatenate(every)))
        terms, slowest = self._terms(plans, laid_out(self.layouts(plans)) if plans.size and kind[0] % 2 else StageCases)
        memory = self.memory(plans)
        self._offload(plans, memory, terms)
        step_s = sum((exposed for _, exposed in terms.values()), np.zeros(plans.size))  # in one order, however many
        loads = self.loads(plans) or [np.zeros(plans.size)]
        periods = [self._with_input(step_s, load) for load in loads]
        sets_pace = loads[-1] > step_s if self.strategy.prefetch else True
        terms["load_input"][:] = loads[-1], np.where(sets_pace, loads[-1], 0.0)
        seconds = {name: both[0] for name, both in terms.items()}
        exposed = {name: both[1] for name, both in terms.items()}
        return Priced(periods[-1], periods[0], seconds, exposed, memory, slowest)

    def totals(self, plans: Configurations) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the step in later epochs and in the first [s], and the memory of the fullest rank [bytes] of plans.

        What :meth:`price` says term by term, up to rounding: parts of a step that a sum over terms would cancel are not
        worked out. Of rows, shape (n,) each, or of a product without a pipeline, of its shape.
        """
        is_summed = plans.of_bases(lambda some: (~self.is_laid_out(some)) & (some.offload == 0))
        if plans.is_product and (self.chooses_order or not np.all(is_summed & (plans.pipeline_parallel == 1))):
            step_s, first_s, memory = self.totals(plans.rows)
            return step_s.reshape(plans.shape), first_s.reshape(plans.shape), memory.reshape(plans.shape)
        if not is_summed.any() or self.chooses_order:
            return self._in_full(plans)
        if not is_summed.all():
            totals = np.zeros((3, plans.size))
            for some, of_some in ((is_summed, self.totals), (~is_summed, self._in_full)):
                totals[:, some] = of_some(plans.take(some))
            return totals[0], totals[1], totals[2]
        step_s, loads = self._periods(plans), self.loads(plans)
        periods = [self._with_input(step_s, load) for load in loads] or [step_s]
        return periods[-1], periods[0], self.ledger.totals(plans)

    def _in_full(self, plans: Configurations) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return what :meth:`totals` does, from prices term by term."""
        priced = self.price(plans.rows)
        step_s, first_s, memory = (
            one.reshape(plans.shape) for one in (priced.period_s, priced.first_period_s, priced.memory.total)
        )
        return step_s, first_s, memory

    def _periods(self, plans: Configurations) -> FloatArray:
        """Return the step of each plan [s], of none that offloads; input is loaded besides."""
        is_one = plans.pipeline_parallel == 1
        if is_one.all():
            return self.one_stage(plans, StageCases).period_s
        periods = np.zeros(plans.size)
        if is_one.any():
            periods[is_one] = self.one_stage(plans.take(is_one), StageCases).period_s
        rows = np.flatnonzero(~is_one)
        parts, which = self._parts(plans.take(rows), StageCases)
        of_parts = np.zeros(which.max(initial=-1) + 1)
        for where, part in parts:
            of_parts[where] = part.period_s
        periods[rows] = of_parts[which]
        return periods

    def stages_of(self, plans: Configurations, stages: OfStages = StageCases) -> OfStages:  # noqa: ARG002 - of any
        """Return what makes the stages of plans without a pipeline."""
        return stages

    def one_stage(self, plans: Configurations, stages: OfStages = StageCases) -> OneStage:
        """Return the steps of plans without a pipeline, rows or a product."""
        rank = self.ranks(plans)
        return OneStage(self, plans, (Passes(self, plans, rank, stages), State(self, plans, rank, stages)))

    def _terms(self, plans: Configurations, stages: OfStages) -> tuple[dict[str, FloatArray], IntArray]:
        """Return what each term takes and adds, (2, n) each, but what offloading does, and the slowest stage, (n,)."""
        if np.all(plans.pipeline_parallel == 1):
            one, terms = self.one_stage(plans, stages), {name: np.zeros((2, plans.size)) for name in STEP_TERMS}
            for name, both in one.terms().items():
                terms[name][:] = both
            return terms, one.slowest
        parts, which = self._parts(plans, stages)
        size = which.max(initial=-1) + 1
        terms = {name: np.zeros((2, size)) for name in STEP_TERMS}
        slowest = np.zeros(size, dtype=np.int64)
        for where, part in parts:
            slowest[where] = part.slowest
            for name, both in part.terms().items():
                terms[name][:, where] = both
        return {name: both[:, which] for name, both in terms.items()}, slowest[which]

    def _parts(self, plans: Configurations, stages: OfStages) -> tuple[Iterator[tuple[IntArray, StepPart]], IntArray]:
        """Return the distinct steps of plans in parts, and the step of each plan, shape (n,)."""
        rank = self.ranks(plans)
        of = passes, state = Passes(self, plans, rank, stages), State(self, plans, rank, stages)
        cases = (passes.case, passes.number), (state.cases.case, state.cases.rank.size)
        rows, which = plans.distinct(_OF_STEP, *cases)
        alike = distinct_rows(*StepPart.alike(plans.take(rows), passes.cases.run_number[rows]))[1]
        wheres = (np.flatnonzero(alike == at) for at in range(int(alike.max(initial=-1)) + 1))
        return ((where, self.part(self, plans, of, rows[where])) for where in wheres), which

    def loads(self, plans: Configurations) -> list[FloatArray]:
        """Return what loading the samples of a step takes [s], in the first epoch and where they differ in later ones.

        The ranks of the first stage load, one of each copy of the network.
        """
        if self.sources.storage is None:
            return []
        samples = plans.sub_batch * plans.accumulation_steps
        first, which = plans.distinct((*RANK_AXES.values(), "nodes", "gpus_per_node"))
        copies = self.placement(plans.take(first).rows).groups(GRADIENTS)
        in_node = np.ceil(copies.ranks_per_node).astype(np.int64)[which]
        epochs = (True, False) if self.input.is_cached else (True,)
        return [self.input.times(samples, in_node, copies.nodes[which], first_epoch=one).node_s for one in epochs]

    def _with_input(self, step_s: FloatArray, load_s: FloatArray) -> FloatArray:
        """Return the step with its input, which is loaded beside the step before, or ahead of it."""
        return np.asarray(np.maximum(step_s, load_s) if self.strategy.prefetch else step_s + load_s)

    def _offload(self, plans: Configurations, memory: SplitMemoryBytes, terms: dict[str, FloatArray]) -> None:
        """Put what offloading takes into the terms, from the bytes that move; CoverageError: no link is described."""
        if not plans.offload.any():
            return
        moved, sources = (memory.to_host, memory.to_device), self.sources
        down, up = (np.where(size > 0, evaluate(sources.offload.entry, {"bytes": size}), 0.0) for size in moved)
        passes_s = terms["forward"][1], terms["backward"][1] + terms["recompute"][1]
        late = sum(np.maximum(copied - of_pass, 0.0) for copied, of_pass in zip((down, up), passes_s, strict=True))
        updated = memory.to_device / self.parameter.weight * np.minimum(plans.gpus_per_node, plans.gpus)
        updating = updated * UPDATE_BYTES[sources.problem.settings.optimizer] / _HOST_BYTES_PER_S
        fault = constants("offload.page_faults")
        by_kind = {
            "optimizer": np.maximum(down, up) + updating,
            "activations": late,
            "paged-activations": down + up + sum(moved) * fault["fault_s"] / fault["group_bytes"],
        }
        for kind, seconds in by_kind.items():
            terms["offload"][:] = np.where(plans.offload == OFFLOADS.index(kind), seconds, terms["offload"])
        terms["update"][:, plans.offload == OFFLOADS.index("optimizer")] = 0.0
