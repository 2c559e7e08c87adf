"""Predictions of split plans with every field: terms, memory, intervals and warnings.

The gradient of a step is that of the slowest stage's passes, and of its share of waiting for other stages, which are as
unsure as it is; messages are as unsure as what serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_values
from planner.domain.configuration import Configuration, Configurations
from planner.domain.kernels import MATRIX_KINDS
from planner.domain.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, SEND_RECEIVE
from planner.domain.prediction import LOOKUPS, LayersOfStage, MiniBatch, Prediction, Quantity, Staleness, Term
from planner.domain.split import MEMORY_KINDS, RECOMPUTES, SplitPlans
from planner.sources.overheads import Overheads
from planner.sources.source import Source
from planner.steps.compute import call_work
from planner.steps.describe import Description, score_calibrations
from planner.steps.epoch import Input
from planner.steps.host_and_gpu import composed_s, composed_slopes
from planner.steps.intervals import Gradient, kind_of, quantity, reciprocal, score_of
from planner.steps.laid_stages import StageLayout, laid_out
from planner.steps.layer_pipeline import LayerPart, LayerPricer
from planner.steps.split_compute import PASSES, RankCompute
from planner.steps.split_offload import offload_source
from planner.steps.split_part import SPLIT_TERMS
from planner.steps.split_price import SplitPriced, SplitPricer, plans_of
from planner.steps.split_warnings import split_warnings, tensor_across_nodes
from planner.steps.stages import EXTRAPOLATED_SHARE, TimedCalls
from planner.steps.terms import term_of
from planner.steps.utilization import utilization
from planner.steps.warnings import StepWarnings
from planner.workload.blocks import block_starts
from planner.workload.in_flight import weight_versions
from planner.workload.units import stage_units

__all__ = ["split_descriptions"]

Window = Callable[[str], tuple[float, float]]
ROUNDING = 1e-12
"""Share of a step that differences of sums leave: no term."""
_PASS_OF = {"forward": "forward", "backward": "backward", "recompute": "forward", "update": "update"}
"""Term -> pass whose kernels it runs."""
_DESCRIBED = ("forward", "backward", "accumulating", "update")
"""Passes whose host time stands in intervals."""
_OPERATION_OF = {
    "tensor_messages": ALL_REDUCE,
    "context_messages": SEND_RECEIVE,
    "expert_messages": ALL_TO_ALL,
    "sharded_weights": ALL_GATHER,
    "stage_messages": SEND_RECEIVE,
    "all_reduce": ALL_REDUCE,
    "embedding_all_reduce": ALL_REDUCE,
    "updated_weights": ALL_GATHER,
}
"""Term -> operation whose entry serves it."""


def split_descriptions(pricer: SplitPricer, configurations: Configurations, window: Window | None) -> list[Description]:
    """Return the predictions of split plans of one precision, rows of shape (n,)."""
    if pricer.chooses_order:
        return list(_in_best_orders(pricer, configurations, window))
    priced, plans = pricer.price(configurations), plans_of(configurations)
    if isinstance(pricer, LayerPricer):
        every = _layers_shown(pricer, plans, priced.slowest)
    else:
        every = _units_shown(pricer, plans, priced.slowest)
    crosses_nodes = tensor_across_nodes(plans, pricer.rank_order).tolist()
    shared = _SharedByPlans(pricer)
    return [
        _Case(shared, of, configurations.one(i), priced, i).description(window, crosses_nodes=crosses_nodes[i])
        for i, of in enumerate(every)
    ]


def _in_best_orders(pricer: SplitPricer, some: Configurations, window: Window | None) -> Iterator[Description]:
    """Yield the predictions of plans, each with its ranks in the order that is best for it."""
    for at, order in enumerate(pricer.best_orders(some)):
        (one,) = split_descriptions(pricer.in_order(order), some.take(np.array([at])), window)
        yield replace(one, finish=partial(_in_order, one, order))


def _in_order(one: Description, rank_order: tuple[str, ...]) -> Prediction:
    return replace(one.prediction, rank_order=rank_order)


class _Shown(NamedTuple):
    """The slowest stage of a plan: its passes, how many of each distinct unit it holds (U,), and the host's time [s].

    ``first_layers``: those that stages of layers start with; ``layout``: what stages hold, where it is chosen.
    """

    passes: _Passes
    units: FloatArray
    host_s: Mapping[str, float]
    first_layers: tuple[str, ...] = ()
    layout: StageLayout | None = None

    @property
    def stage_layers(self) -> tuple[LayersOfStage, ...]:
        """What each stage holds, where it is chosen."""
        if self.layout is None:
            return ()
        (first, end, again), kinds = self.layout.layers, self.layout.recompute
        each = zip((end - first).tolist(), again.tolist(), kinds.tolist(), strict=True)
        of_code = [(layers, some * (code != RECOMPUTES.index("none")), code) for layers, some, code in each]
        return tuple(LayersOfStage(layers, some, RECOMPUTES[code * (some > 0)]) for layers, some, code in of_code)


def _units_shown(pricer: SplitPricer, plans: SplitPlans, slowest: IntArray) -> Iterator[_Shown]:
    cases, rank = pricer.compute.cases, pricer.ranks(plans)
    host_s = cases.columns.host_s(pricer.overheads)[cases.rows(rank, plans.sub_batch)]
    keys = list(zip(rank.tolist(), plans.sub_batch.tolist(), strict=True))
    passes = {key: _Passes(pricer.compute.ranks[key[0]], key[1]) for key in dict.fromkeys(keys)}
    laid = np.flatnonzero(plans.is_laid_out)
    layouts = dict(zip(laid.tolist(), pricer.layouts(plans.take(laid)), strict=True))
    cuts = list(zip(plans.pipeline_parallel.tolist(), plans.last_stage.tolist(), strict=True))
    even: dict[tuple[int, int], FloatArray] = {}
    for row, (key, host, stage) in enumerate(zip(keys, host_s, slowest.tolist(), strict=True)):
        layout = layouts.get(row)
        if layout is not None:
            plan = plans.take(np.array([row]))
            units = laid_out([layout])(pricer, plan, pricer.ranks(plan), ()).counts[stage]
        else:
            if cuts[row] not in even:
                even[cuts[row]] = stage_units(pricer.compute.ranks[0].units, *cuts[row])
            units = even[cuts[row]][stage]
        host_of = dict(zip(PASSES, (host @ units).tolist(), strict=True))
        yield _Shown(passes[key], units, host_of, layout=layout)


def _layers_shown(pricer: LayerPricer, plans: SplitPlans, slowest: IntArray) -> Iterator[_Shown]:
    passes: dict[int, _Passes] = {}
    for at, (sub_batch, stage) in enumerate(zip(plans.sub_batch.tolist(), slowest.tolist(), strict=True)):
        part = LayerPart(pricer, plans.take(np.array([at])))
        if sub_batch not in passes:
            passes[sub_batch] = _Passes(part.rank, sub_batch)
        host_s = {name: float(part.host_s(name)[stage]) for name in _DESCRIBED}
        yield _Shown(passes[sub_batch], part.counts[stage], host_s, part.first_layers)


class _Passes:
    """The calls of one rank and sub-batch, timed once for all plans that make them."""

    def __init__(self, rank: RankCompute, sub_batch: int) -> None:
        self.rank = rank
        self._calls = rank.calls_with_sources(np.array([sub_batch]))
        self._timed: dict[int, TimedCalls] = {}
        self._served: dict[str, tuple[list[Source], bool]] = {}
        self._lookups_s: dict[str, FloatArray] = {}
        self._gradients: dict[tuple[str, bytes, float], tuple[Gradient, float]] = {}

    def timed(self, name: str) -> Iterator[TimedCalls]:
        """Yield the calls of a pass, timed."""
        for calls, source in self._calls[name]:
            if id(calls) not in self._timed:
                work = call_work(calls, self.rank.itemsize)
                self._timed[id(calls)] = TimedCalls(calls, source, work, self.rank.program, 1)
            yield self._timed[id(calls)]

    def served(self, name: str) -> tuple[list[Source], bool]:
        """Return what serves a pass, and whether kernels outside their fit take more than a small share of it."""
        if name not in self._served:
            groups = list(self.timed(name))
            total = sum(float(group.times_s.sum()) for group in groups)
            outside = sum(float(group.outside_s[0]) for group in groups)
            sources = {id(group.source): group.source for group in groups if group.times_s.any()}
            self._served[name] = list(sources.values()), outside > EXTRAPOLATED_SHARE * total
        return self._served[name]

    def lookups_s(self, name: str) -> FloatArray:
        """Return the kernel time of a pass by how it is found, shape (len(LOOKUPS),)."""
        if name not in self._lookups_s:
            self._lookups_s[name] = sum((one.lookups_s[0] for one in self.timed(name)), np.zeros(len(LOOKUPS)))
        return self._lookups_s[name]

    def gradient(self, name: str, shown: _Shown, overheads: Overheads) -> tuple[Gradient, float]:
        """Return the gradient of a pass over the slowest stage, and what it takes [s].

        See planner.steps.stages for the parts of overheads.
        """
        key = name, shown.units.tobytes(), shown.host_s[name]
        if key not in self._gradients:
            self._gradients[key] = self._gradient(name, shown, overheads)
        return self._gradients[key]

    def _gradient(self, name: str, shown: _Shown, overheads: Overheads) -> tuple[Gradient, float]:
        gradient, host_s, groups = Gradient(), shown.host_s[name], list(self.timed(name))
        segments: FloatArray = shown.units @ self.rank.units.segments  # of each distinct one, (D,)
        scaled = [overheads.scale_of(group.calls.kind) * float(group.by_segment[0] @ segments) for group in groups]
        total = np.array(sum(scaled))
        whole = float(composed_s(total, host_s, overheads.exponent))
        share = float(composed_slopes(total, host_s, overheads.exponent)[0])
        for group in groups:
            slope = overheads.scale_of(group.calls.kind) * share
            unsure_s = slope * float(segments @ group.unsure_s[0])
            gradient.add_vector(group.source.entry, slope * (segments @ group.slopes[0]), unsure_s)
        if host_s > 0 or overheads.scales:
            matrix = sum(one for one, group in zip(scaled, groups, strict=True) if group.calls.kind in MATRIX_KINDS)
            entry, on_gpu = overheads.source.entry, share * float(total)
            products = share * matrix if overheads.matched != "assumed" else 0.0
            others = on_gpu - products if overheads.matched != "assumed" else 0.0
            covered = np.array([products, others, max(whole - on_gpu, 0.0)])
            gradient.add_vector(entry, np.zeros(len(entry.coefficients)), covered)
        if overheads.scale_doubt is not None:
            gradient.add_vector(overheads.scale_doubt, np.zeros(0), share * float(total))
        return gradient, whole


class _SharedByPlans:
    """What plans of one precision have in common: what serves terms that are no passes, and warnings of that."""

    def __init__(self, pricer: SplitPricer) -> None:
        self.pricer = pricer
        self.warnings = StepWarnings(pricer.sources, pricer.precision, "sync")
        self._served: dict[str, tuple[list[Source], bool]] = {}

    def served(self, term: str) -> tuple[list[Source], bool] | None:
        """Return what serves a term, and whether that extrapolates; None: passes."""
        if term not in self._served and (sources := self._sources_of(term)) is not None:
            self._served[term] = sources, term == "load_input" and Input(self.pricer.sources).extrapolates
        return self._served.get(term)

    def _sources_of(self, term: str) -> list[Source] | None:
        sources = self.pricer.sources
        if term in _OPERATION_OF:
            return [sources.device_collective(_OPERATION_OF[term])]
        if term == "offload":
            return [offload_source(sources)]
        if term == "host_to_device":
            return [] if sources.host_to_device is None else [sources.host_to_device]
        if term == "load_input":
            return list(Input(sources).used)
        return [self.pricer.overheads.source] if term in ("host", "replica_wait") else None


class _Case:
    """One plan."""

    def __init__(
        self, shared: _SharedByPlans, shown: _Shown, one: Configuration, priced: SplitPriced, row: int
    ) -> None:
        self.shared, self.pricer, self.one, self.shown, self.passes = shared, shared.pricer, one, shown, shown.passes
        self.seconds = {name: float(priced.seconds[name][row]) for name in SPLIT_TERMS}
        self.exposed = {name: float(priced.exposed_s[name][row]) for name in SPLIT_TERMS}
        self.period_s = float(priced.period_s[row])
        self.memory = {name: float(getattr(priced.memory, name)[row]) for name in (*MEMORY_KINDS, "total")}

    def description(self, window: Window | None, *, crosses_nodes: bool) -> Description:
        """Return the description; ``crosses_nodes``: its tensor-parallel groups do not stay inside nodes."""
        pricer, one = self.pricer, self.one
        gradient = self._gradient()
        deviation = gradient.spread()
        terms, sources = self._terms()
        kind = self._kind(terms)
        score = score_of(kind, score_calibrations(pricer.sources, pricer.overheads, is_unseen=one.gpus > 1))
        iteration = quantity(self.period_s, deviation, score)

        def finish() -> Prediction:
            samples = one.samples_per_update
            dataset = pricer.sources.problem.dataset
            epoch = None if dataset is None else _times(iteration, dataset.samples / samples)
            low, high = (0, samples) if window is None else window("sync")
            speed = reciprocal(iteration, samples)
            mfu, hfu = utilization(pricer.sources, one, speed.value, self.shown.layout)
            of, basis = (self.memory["total"], samples), iteration.interval_basis
            return Prediction(
                configuration=one,
                iteration_s=iteration,
                update_s=None,
                epoch_s=epoch,
                first_epoch_s=epoch,
                samples_per_s=speed,
                mini_batch=MiniBatch(
                    samples, 0.0, samples, samples, None if window is None else float(low <= samples <= high)
                ),
                staleness=self._staleness(),
                memory_bytes=self.memory | {"capacity": pricer.sources.accelerator.memory_bytes},
                terms=terms,
                bottleneck=max(terms, key=lambda term: term.share).name,
                warnings=(
                    *self.shared.warnings.of(one, terms, sources, of, interval_basis=basis),
                    *split_warnings(pricer.sources, one, crosses_nodes=crosses_nodes),
                ),
                kernel_shares=self._shares(),
                kind=kind,
                stages=self.shown.first_layers,
                stage_layers=self.shown.stage_layers,
                doubt=deviation.shares if deviation else {},
                mfu=mfu,
                hfu=hfu,
            )

        return Description(one, iteration, gradient, finish)

    def _kind(self, terms: tuple[Term, ...]) -> str:
        """Return the kind of the prediction; of networks split by blocks none are told apart."""
        sources = self.pricer.sources
        if block_starts(sources.problem.network):
            return ""
        return kind_of(self.one, terms, sources.evidence(self.one.precision))

    def _staleness(self) -> Staleness:
        """Return that of the stages, each as likely as another."""
        if self.one.schedule != "no-flush":
            return Staleness(0.0, 0.0, {0: 1.0})
        late = weight_versions(np.arange(self.one.pipeline_parallel), plans_of(Configurations.of([self.one]))) - 1
        pmf = {int(value): float(np.mean(late == value)) for value in distinct_values(late).tolist()}
        return Staleness(float(late.mean()), float(late.std()), pmf)

    def _gradient(self) -> Gradient:
        gradient, m = Gradient(), self.one.accumulation_steps
        own = sum(self.exposed[name] for name in ("forward", "backward", "recompute", "host"))
        waits = 1.0 + (self.exposed["bubble"] + self.exposed["replica_wait"]) / own if own > 0 else 1.0
        again = self.exposed["recompute"] / self.exposed["forward"] if self.exposed["forward"] > 0 else 0.0
        self._add_pass(gradient, "forward", waits * m * (1 + again))
        self._add_pass(gradient, "backward", waits)
        if m > 1:
            self._add_pass(gradient, "accumulating", waits * (m - 1))
        self._add_pass(gradient, "update", 1.0)
        for name in (*_OPERATION_OF, "offload", "host_to_device", "load_input"):
            sources = self._served(name)[0] if self.exposed[name] > 0 else []
            for source in sources:
                zeros = np.zeros(len(source.entry.coefficients))
                gradient.add_vector(source.entry, zeros, self.exposed[name] / len(sources))
        return gradient

    def _add_pass(self, gradient: Gradient, name: str, count: float) -> None:
        """Add so many passes over the slowest stage; of the update, as many as it takes of the step."""
        of_one, whole_s = self.passes.gradient(name, self.shown, self.pricer.overheads)
        shared = self.exposed["update"] / whole_s if name == "update" and whole_s > 0 else 1.0
        gradient.add_scaled(of_one, count * shared)

    def _terms(self) -> tuple[tuple[Term, ...], list[Source]]:
        terms, every_source = [], []
        for name in SPLIT_TERMS:
            if max(self.seconds[name], abs(self.exposed[name])) <= ROUNDING * self.period_s:
                continue
            sources, outside = self._served(name)
            every_source += sources
            seconds = self.seconds[name], self.exposed[name], self.exposed[name] / self.period_s
            terms.append(term_of(name, "step", seconds, sources, extrapolated=outside))
        return tuple(terms), every_source

    def _served(self, term: str) -> tuple[list[Source], bool]:
        """Return what serves a term, and whether kernels outside their fit take more than a small share of it."""
        return self.shared.served(term) or self.passes.served(_PASS_OF.get(term, "forward"))

    def _shares(self) -> dict[str, float]:
        """Return the shares of kernel time by how it is seconds."""
        counts = {"forward": self.one.accumulation_steps, "backward": self.one.accumulation_steps, "update": 1}
        seconds = sum((count * self.passes.lookups_s(name) for name, count in counts.items()), np.zeros(len(LOOKUPS)))
        whole = float(seconds.sum())
        return dict(zip(LOOKUPS, (seconds / whole if whole > 0 else seconds).tolist(), strict=True))


def _times(period: Quantity, steps: float) -> Quantity:
    low, high = (None if end is None else end * steps for end in (period.low, period.high))
    return Quantity(period.value * steps, low, high, period.interval_basis, period.deviation)
