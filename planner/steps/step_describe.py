"""Predictions of synchronous plans: what is told of their slowest stage, messages and waits.

The gradient of a step is one with respect to the coefficients of all entries, along the path that decides it: the
slowest stage's passes, and its share of waiting for other stages, which are as unsure as it is; of a plan without a
pipeline the backward pass up to the message that decides, and the messages from there on. Where loading input takes
longer than the step it alone decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray, distinct_values
from planner.domain.configuration import Configuration, Configurations
from planner.domain.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, GRADIENTS, SEND_RECEIVE, Groups
from planner.domain.prediction import SharedLayers, Staleness, Term
from planner.domain.split import MEMORY_KINDS, RECOMPUTES
from planner.sources.source import Source
from planner.steps.describe import (
    Description,
    Rest,
    Told,
    Window,
    add_parts,
    described,
    synchronous_updates,
    term_of_sources,
)
from planner.steps.intervals import Gradient, derivatives
from planner.steps.price import Priced, Pricer
from planner.steps.stage_cases import StageCases, StageLayout, laid_out
from planner.steps.stages import Held, Stage, kernel_shares, stages_of
from planner.steps.step_costs import all_reduce_gradient
from planner.steps.step_part import STEP_TERMS, MessagePath
from planner.steps.warnings import StepWarnings
from planner.workload.memory_rules import weight_versions
from planner.workload.split_messages import EXCHANGED

ROUNDING = 1e-12
"""Share of a step that differences of sums leave: no term."""
CASES_AT_ONCE = 64
"""Ranks and sub-batches looked at in detail at once; bounds memory at some 50 MB."""
_PASS_OF = {"forward": "forward", "backward": "backward", "recompute": "forward", "update": "update"}
"""Term -> pass whose kernels it runs."""
_ALWAYS = ("load_input", "host_to_device", "forward", "backward", "all_reduce", "update")
"""Terms that are said even where they take no time."""
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


def step_descriptions(
    pricer: Pricer, plans: Configurations, window: Window | None, rank_order: tuple[str, ...] = ()
) -> list[Description]:
    """Return the descriptions of synchronous plans of one precision; ``rank_order``: of Told."""
    if pricer.chooses_order:
        return [
            step_descriptions(pricer.in_order(order), plans.take(np.array([at])), window, order)[0]
            for at, order in enumerate(pricer.best_orders(plans))
        ]
    parts, by_row = pricer.apart(plans), dict[int, Description]()
    if any(part is not pricer for _, part in parts):
        for rows, part in parts:
            some = _described(part, plans.take(rows), window, rank_order)
            by_row |= dict(zip(rows.tolist(), some, strict=True))
        return [by_row[row] for row in range(plans.size)]
    return _described(pricer, plans, window, rank_order)


def _described(
    pricer: Pricer, plans: Configurations, window: Window | None, rank_order: tuple[str, ...]
) -> list[Description]:
    """Return the descriptions of plans that one pricer prices."""
    shared, by_row = _SharedByPlans(pricer), dict[int, Description]()
    first, case = plans.distinct(("sub_batch",), (pricer.ranks(plans), len(pricer.compute.ranks)))
    for start in range(0, first.size, CASES_AT_ONCE):
        rows = np.flatnonzero((case >= start) & (case < start + CASES_AT_ONCE))
        some = plans.take(rows)
        priced = pricer.price(some)
        each = zip(rows.tolist(), _shown(pricer, some, priced), strict=True)
        for at, (row, shown) in enumerate(each):
            one = _Case(shared, shown, some.one(at), priced, at)
            by_row[row] = described(one.told(window, rank_order))
    return [by_row[row] for row in range(plans.size)]


class _Shown(NamedTuple):
    """The slowest stage of a plan: its passes by name, over so many of each distinct segment of ``rank``, (D,).

    ``path``: of gradients' messages, where the network is one stage; ``first_layers``: those that stages of layers
    start with; ``layout``: what stages hold, where it is chosen.
    """

    rank: int
    stages: Mapping[str, Stage]
    held: FloatArray
    path: MessagePath | None = None
    first_layers: tuple[str, ...] = ()
    layout: StageLayout | None = None
    shared_layers: SharedLayers | None = None


def _shown(pricer: Pricer, plans: Configurations, priced: Priced) -> Iterator[_Shown]:
    ranks, compute = pricer.ranks(plans), pricer.compute
    laid = np.flatnonzero(pricer.is_laid_out(plans))
    layouts = dict(zip(laid.tolist(), pricer.layouts(plans.take(laid)), strict=True))
    cuts = list(zip(plans.pipeline_parallel.tolist(), plans.last_stage.tolist(), strict=True))
    even: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}
    every = []
    for row, stage in enumerate(priced.slowest.tolist()):
        layout, at = layouts.get(row), np.array([row])
        if layout is not None:
            counts, again = _held(laid_out([layout])(pricer, plans.take(at), ranks[at], ()))
            recompute = int(layout.recompute[stage])
        else:
            made, key = pricer.stages_of(plans.take(at)), cuts[row]
            if made is not StageCases or key not in even:
                even[key] = _held(made(pricer, plans.take(at), ranks[at], ()))
            (counts, again), recompute = even[key], int(plans.recompute[row])
            if made is not StageCases:
                del even[key]
        every.append(
            Held(int(ranks[row]), int(plans.sub_batch[row]), counts[stage], again[stage], RECOMPUTES[recompute])
        )
    paths, shared = _paths(pricer, plans, priced), pricer.shared_layers(plans)
    for row, (one, stages) in enumerate(zip(every, stages_of(pricer, every), strict=True)):
        held = one.units @ compute.ranks[one.rank].units.segments
        layout = layouts.get(row)
        names = pricer.first_layers(layout) if layout else ()
        yield _Shown(one.rank, stages, held, paths.get(row), names, None if names else layout, shared[row])


def _held(cases: StageCases) -> tuple[FloatArray, FloatArray]:
    """Return how many of each distinct unit every stage of a plan holds, and may compute again, shape (p, U)."""
    at = cases.at(np.zeros(1, dtype=np.int64))[:, 0]
    return cases.counts[at], cases.again[at]


def _paths(pricer: Pricer, plans: Configurations, priced: Priced) -> dict[int, MessagePath]:
    """Return the path of the gradients' messages of each plan without a pipeline that sends any."""
    is_sent = (priced.seconds["all_reduce"] > 0) & (plans.pipeline_parallel == 1) & ~plans.is_laid_out
    rows = np.flatnonzero(is_sent)
    if not rows.size:
        return {}
    return dict(zip(rows.tolist(), pricer.one_stage(plans.take(rows)).paths(), strict=True))


class _SharedByPlans:
    """What plans of one precision have in common: what serves terms that are no passes, and warnings of that."""

    def __init__(self, pricer: Pricer) -> None:
        self.pricer = pricer
        self.warnings = StepWarnings(pricer.sources, pricer.precision, "sync")
        self._served: dict[str, tuple[Sequence[Source], bool]] = {}
        self._sent: dict[tuple[object, ...], tuple[FloatArray, float]] = {}

    def served(self, term: str) -> tuple[Sequence[Source], bool]:
        """Return what serves a term that is no pass, and whether that extrapolates."""
        if term not in self._served:
            is_outside = term == "load_input" and self.pricer.input.extrapolates
            self._served[term] = self._sources_of(term), is_outside
        return self._served[term]

    def _sources_of(self, term: str) -> Sequence[Source]:
        sources = self.pricer.sources
        if term == "all_reduce":
            return [self.pricer.gradient_source]
        if term == "context_messages" and self.pricer.message_rules.context_way == EXCHANGED:
            return [sources.device_collective(ALL_TO_ALL)]
        if term in _OPERATION_OF:
            return [sources.device_collective(_OPERATION_OF[term])]
        if term == "offload":
            return [sources.offload]
        if term == "host_to_device":
            return [] if sources.host_to_device is None else [sources.host_to_device]
        return self.pricer.input.used if term == "load_input" else [self.pricer.overheads.source]

    def messages(self, groups: Groups, buffer_bytes: FloatArray) -> tuple[FloatArray, float]:
        """Return the derivatives of messages of gradients by the coefficients of what serves them, and their sum."""
        places = groups.nodes, groups.ranks_per_node, groups.streams_per_nic
        key = (*(float(one[0]) for one in places), buffer_bytes.tobytes())
        if key not in self._sent:  # plans that differ in sub-batch alone share it
            entry, operation = self.pricer.gradient_source.entry, self.pricer.gradient_operation
            self._sent[key] = all_reduce_gradient(entry, buffer_bytes, groups, operation)
        return self._sent[key]


class _Case:
    """One plan."""

    def __init__(self, shared: _SharedByPlans, shown: _Shown, one: Configuration, priced: Priced, row: int) -> None:
        self.shared, self.pricer, self.one, self.shown = shared, shared.pricer, one, shown
        self.seconds = {name: float(priced.seconds[name][row]) for name in STEP_TERMS}
        self.exposed = {name: float(priced.exposed_s[name][row]) for name in STEP_TERMS}
        self.period_s, self.first_s = float(priced.period_s[row]), float(priced.first_period_s[row])
        self.step_s = sum(self.exposed.values()) - self.exposed["load_input"]
        self.memory = {name: float(getattr(priced.memory, name)[row]) for name in (*MEMORY_KINDS, "total")}

    def told(self, window: Window | None, rank_order: tuple[str, ...]) -> Told:
        """Return what is told of the plan."""
        one, sources, shown = self.one, self.pricer.sources, self.shown
        gradient = self._with_input(self.period_s, first_epoch=False)
        terms, in_use = self._terms()

        def rest() -> Rest:
            updates = synchronous_updates(one, window, self._staleness())
            shares = kernel_shares(shown.stages, one.accumulation_steps)
            first = gradient if self.first_s == self.period_s else self._with_input(self.first_s, first_epoch=True)
            held = shown.layout, shown.first_layers, shown.shared_layers
            return Rest((self.first_s, first), self.memory, shares, updates, *held)

        return Told(
            sources=sources,
            overheads=self.pricer.overheads,
            one=one,
            period_s=self.period_s,
            gradient=gradient,
            terms=terms,
            in_use=in_use,
            thread="step",
            warnings=self.shared.warnings,
            rest=rest,
            is_unseen=one.gpus > 1 and (not one.is_replicated or self.pricer.gradient_source.origin == "specified"),
            rank_order=rank_order,
        )

    def _staleness(self) -> Staleness | None:
        """Return that of the stages, each as likely as another; None: none."""
        if self.one.schedule != "no-flush":
            return None
        late = weight_versions(np.arange(self.one.pipeline_parallel), Configurations.of([self.one])) - 1
        pmf = {int(value): float(np.mean(late == value)) for value in distinct_values(late).tolist()}
        return Staleness(float(late.mean()), float(late.std()), pmf)

    def _with_input(self, period_s: float, *, first_epoch: bool) -> Gradient:
        """Return the gradient of a period: of loading alone where that sets it, of the step, or of both in turn."""
        prefetches = self.pricer.strategy.prefetch
        is_waiting = prefetches and (first_epoch or self.exposed["load_input"] > 0)
        gradient = Gradient() if is_waiting else self._gradient()
        waits_s = period_s if is_waiting else 0.0 if prefetches else period_s - self.step_s
        if waits_s > ROUNDING * period_s:
            self._add_input(gradient, waits_s, first_epoch=first_epoch)
        return gradient

    def _add_input(self, gradient: Gradient, seconds: float, *, first_epoch: bool) -> None:
        one, loads = self.one, self.pricer.input
        copies = self.pricer.placement(Configurations.of([one])).groups(GRADIENTS)
        in_node = int(np.ceil(copies.ranks_per_node[0]))
        samples = one.sub_batch * one.accumulation_steps
        nodes = int(copies.nodes[0])
        loads.add_to(gradient, seconds, samples, in_node, nodes, first_epoch=first_epoch, alone=False)

    def _gradient(self) -> Gradient:
        """Return the gradient of the step without its input."""
        gradient, m, update = Gradient(), self.one.accumulation_steps, self.shown.stages["update"].seconds
        own = sum(self.exposed[name] for name in ("forward", "backward", "recompute"))
        waited = self.exposed["bubble"] / own if own > 0 else 0.0
        base = own + self.exposed["update"]
        share = self.exposed["replica_wait"] / base if base > 0 else 0.0
        waits = 1.0 + waited + share
        again = self.exposed["recompute"] / self.exposed["forward"] if self.exposed["forward"] > 0 else 0.0
        counts = {
            "forward": waits * m * (1 + again),
            "backward": waits,
            "accumulating": waits * (m - 1),
            "update": (1 + share) * (self.exposed["update"] / update if update > 0 else 1.0),
        }
        path, (last, ahead) = self.shown.path, ("", self.shown.held)
        if path is not None and path.is_exposed:  # the last backward pass hides what its gradients wait for
            last = "accumulating" if m > 1 else "backward"
            ahead = self.pricer.compute.ranks[self.shown.rank].program.gather(path.hidden)
        for name, count in counts.items():
            if count:
                add_parts(gradient, self.shown.stages[name].parts, count * self.shown.held - (name == last) * ahead)
        for name in (*_OPERATION_OF, "offload"):
            if self.exposed[name] > 0:
                self._add_served(gradient, name)
        self._add_copy(gradient)
        return gradient

    def _add_served(self, gradient: Gradient, term: str) -> None:
        """Add what messages, or copies to the host, add to the step: as unsure as what serves them."""
        path = self.shown.path if term == "all_reduce" else None
        if path is not None and path.is_simple:
            scenario, overlaps = self.pricer.sources.problem.scenario, self.pricer.strategy.overlap
            factor = float(scenario.factor("all_reduce", self.pricer.precision, self.one.nodes))
            beside = 1 - 1 / self.pricer.slowdown if overlaps else 0.0
            parts = (beside, path.every_bytes), ((1 - beside) * path.is_exposed, path.buffer_bytes)
            for share, buffers in parts:
                if share:
                    slopes, seconds = self.shared.messages(path.groups, buffers)
                    gradient.add_vector(
                        self.pricer.gradient_source.entry, factor * share * slopes, factor * share * seconds
                    )
            return
        sources = self.shared.served(term)[0]
        for source in sources:
            gradient.add_vector(
                source.entry, np.zeros(len(source.entry.coefficients)), self.exposed[term] / len(sources)
            )

    def _add_copy(self, gradient: Gradient) -> None:
        source, count = self.pricer.sources.host_to_device, self.one.accumulation_steps
        if source is None or not self.exposed["host_to_device"]:
            return
        work = {"bytes": self.pricer.compute.ranks[0].input_bytes * self.one.sub_batch}
        factor = count * float(self.pricer.sources.problem.scenario.factor("host_to_device", self.pricer.precision, 1))
        seconds = factor * float(evaluate(source.entry, work))
        gradient.add_vector(source.entry, factor * derivatives(source.entry, work), seconds)

    def _terms(self) -> tuple[tuple[Term, ...], tuple[Source, ...]]:
        terms, every_source = [], list[Source]()
        is_waiting = self.pricer.strategy.prefetch and self.exposed["load_input"] > 0
        for name in STEP_TERMS:
            exposed = 0.0 if is_waiting and name != "load_input" else self.exposed[name]
            is_there = max(self.seconds[name], abs(self.exposed[name])) > ROUNDING * self.period_s
            if not is_there and name not in _ALWAYS:
                continue
            sources, outside = self._served(name) if is_there else ((), False)
            every_source += sources
            seconds = self.seconds[name], exposed, exposed / self.period_s
            terms.append(term_of_sources(name, "step", seconds, sources, extrapolated=outside))
        return tuple(terms), tuple(every_source)

    def _served(self, term: str) -> tuple[Sequence[Source], bool]:
        """Return what serves a term, and whether kernels outside their fit take more than a small share of it."""
        if term not in _PASS_OF:
            sources, outside = self.shared.served(term)
            path = self.shown.path if term == "all_reduce" else None
            return sources, outside or (path is not None and path.extrapolates(self.pricer.gradient_source.entry))
        names = (_PASS_OF[term], *(("accumulating",) if term == "backward" and self.one.accumulation_steps > 1 else ()))
        stages = [self.shown.stages[name] for name in names]
        return [one for stage in stages for one in stage.sources], any(stage.extrapolated for stage in stages)
