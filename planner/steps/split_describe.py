"""Predictions of split plans: what is told of their slowest stage, messages and waits.

The gradient of a step is that of the slowest stage's passes, and of its share of waiting for other stages, which are as
unsure as it is; messages are as unsure as what serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_values
from planner.domain.configuration import Configuration, Configurations
from planner.domain.messages import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, SEND_RECEIVE
from planner.domain.prediction import Staleness, Term
from planner.domain.split import MEMORY_KINDS, RECOMPUTES
from planner.sources.source import Source
from planner.steps.compute import term_of
from planner.steps.describe import Description, Rest, Told, described, synchronous_updates
from planner.steps.epoch import Input
from planner.steps.host_and_gpu import BESIDE, STAGES, beside_s
from planner.steps.intervals import Gradient
from planner.steps.laid_stages import StageLayout, laid_out
from planner.steps.split_compute import PASSES
from planner.steps.split_offload import offload_source
from planner.steps.split_part import SPLIT_TERMS
from planner.steps.split_price import SplitPriced, SplitPricer
from planner.steps.split_stages import StageCases
from planner.steps.stages import Composed, Stage, TimedCalls, composed_stages, kernel_shares, timed_calls
from planner.steps.terms import add_parts, term_of_sources
from planner.steps.warnings import StepWarnings
from planner.workload.blocks import block_starts
from planner.workload.in_flight import weight_versions

__all__ = ["split_descriptions"]

Window = Callable[[str], tuple[float, float]]
ROUNDING = 1e-12
"""Share of a step that differences of sums leave: no term."""
_PASS_OF = {"forward": "forward", "backward": "backward", "recompute": "forward", "update": "update"}
"""Term -> pass whose kernels it runs."""
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


def split_descriptions(
    pricer: SplitPricer, configurations: Configurations, window: Window | None, rank_order: tuple[str, ...] = ()
) -> list[Description]:
    """Return the descriptions of split plans of one precision, rows of shape (n,); ``rank_order``: of Told."""
    if pricer.chooses_order:
        return [
            split_descriptions(pricer.in_order(order), configurations.take(np.array([at])), window, order)[0]
            for at, order in enumerate(pricer.best_orders(configurations))
        ]
    priced, plans, shared = pricer.price(configurations), configurations, _SharedByPlans(pricer)
    shown = _shown(pricer, plans, priced.slowest)
    cases = (_Case(shared, of, configurations.one(i), priced, i) for i, of in enumerate(shown))
    return [described(case.told(window, rank_order)) for case in cases]


class _Shown(NamedTuple):
    """The slowest stage of a plan: its stages of passes by name, and the gradient of each.

    ``first_layers``: those that stages of layers start with; ``layout``: what stages hold, where it is chosen.
    """

    stages: Mapping[str, Stage]
    gradients: Mapping[str, Gradient]
    first_layers: tuple[str, ...] = ()
    layout: StageLayout | None = None


def _shown(pricer: SplitPricer, plans: Configurations, slowest: IntArray) -> Iterator[_Shown]:
    ranks, of_ranks = pricer.ranks(plans), _Ranks(pricer)
    laid = np.flatnonzero(pricer.is_laid_out(plans))
    layouts = dict(zip(laid.tolist(), pricer.layouts(plans.take(laid)), strict=True))
    cuts = list(zip(plans.pipeline_parallel.tolist(), plans.last_stage.tolist(), strict=True))
    even: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}
    for row, stage in enumerate(slowest.tolist()):
        layout, at = layouts.get(row), np.array([row])
        if layout is not None:
            counts, again = _held(laid_out([layout])(pricer, plans.take(at), ranks[at], ()))
            recompute = int(layout.recompute[stage])
        else:
            if cuts[row] not in even:
                even[cuts[row]] = _held(StageCases(pricer, plans.take(at), ranks[at], ()))
            (counts, again), recompute = even[cuts[row]], int(plans.recompute[row])
        key = int(ranks[row]), int(plans.sub_batch[row])
        names = pricer.first_layers(layout) if layout else ()
        both = of_ranks.stages(key, counts[stage], again[stage], RECOMPUTES[recompute])
        yield _Shown(*both, names, None if names else layout)


def _held(cases: StageCases) -> tuple[FloatArray, FloatArray]:
    """Return how many of each distinct unit every stage of a plan holds, and may compute again, shape (p, U)."""
    at = cases.at(np.zeros(1, dtype=np.int64))[:, 0]
    return cases.counts[at], cases.again[at]


class _Ranks:
    """The stages that plans show, of one pricer; those of equal ranks, sub-batches and units are one."""

    def __init__(self, pricer: SplitPricer) -> None:
        self.pricer, self._unit_s = pricer, pricer.unit_s()
        self._timed: dict[tuple[int, int], Mapping[str, list[TimedCalls]]] = {}
        self._stages: dict[tuple[object, ...], tuple[Mapping[str, Stage], Mapping[str, Gradient]]] = {}

    def stages(
        self, key: tuple[int, int], units: FloatArray, again: FloatArray, recompute: str
    ) -> tuple[Mapping[str, Stage], Mapping[str, Gradient]]:
        """Return the stages of passes, by name, over so many of each distinct unit, and the gradient of each.

        ``key``: rank and sub-batch; ``again``: units that are computed again, as ``recompute`` says.
        """
        whole = *key, units.tobytes(), again.tobytes(), recompute
        if whole not in self._stages:
            rank = self.pricer.compute.ranks[key[0]]
            if key not in self._timed:
                self._timed[key] = timed_calls(rank, np.array(key[1:]))
            held: FloatArray = units @ rank.units.segments
            sums = [self._of_stages(one, key, units, again, recompute) for one in self._unit_s]
            gpu_s, host_s = (beside_s(one, BESIDE) for one in sums)
            scenario, stages, gradients = self.pricer.sources.problem.scenario, {}, {}
            for at, name in enumerate(STAGES):
                factor = float(scenario.factor(term_of(name), self.pricer.precision))
                of = Composed(held, gpu_s[[at]], host_s[[at]], float(sums[1][at]), factor)
                (stages[name],) = composed_stages(self.pricer.overheads, name, self._timed[key][name], of)
                gradients[name] = Gradient()
                add_parts(gradients[name], stages[name].parts, held)
            self._stages[whole] = stages, gradients
        return self._stages[whole]

    def _of_stages(
        self, unit_s: FloatArray, key: tuple[int, int], units: FloatArray, again: FloatArray, recompute: str
    ) -> FloatArray:
        """Return what each of WITH_RECOMPUTE takes by itself [s], shape (5,)."""
        (row,) = self.pricer.compute.cases.rows(*(np.array([one]) for one in key))
        of_units, repeated = unit_s[row], {"full": "forward", "selective": "attention"}.get(recompute)
        of_stages = [of_units[PASSES.index(name)] @ units for name in STAGES]
        of_stages.append(of_units[PASSES.index(repeated)] @ again if repeated else 0.0)
        return np.array(of_stages)


class _SharedByPlans:
    """What plans of one precision have in common: what serves terms that are no passes, and warnings of that."""

    def __init__(self, pricer: SplitPricer) -> None:
        self.pricer = pricer
        self.warnings = StepWarnings(pricer.sources, pricer.precision, "sync")
        self._served: dict[str, tuple[Sequence[Source], bool]] = {}

    def served(self, term: str) -> tuple[Sequence[Source], bool]:
        """Return what serves a term that is no pass, and whether that extrapolates."""
        if term not in self._served:
            is_outside = term == "load_input" and Input(self.pricer.sources).extrapolates
            self._served[term] = self._sources_of(term), is_outside
        return self._served[term]

    def _sources_of(self, term: str) -> Sequence[Source]:
        sources = self.pricer.sources
        if term in _OPERATION_OF:
            return [sources.device_collective(_OPERATION_OF[term])]
        if term == "offload":
            return [offload_source(sources)]
        if term == "host_to_device":
            return [] if sources.host_to_device is None else [sources.host_to_device]
        return Input(sources).used if term == "load_input" else [self.pricer.overheads.source]


class _Case:
    """One plan."""

    def __init__(
        self, shared: _SharedByPlans, shown: _Shown, one: Configuration, priced: SplitPriced, row: int
    ) -> None:
        self.shared, self.pricer, self.one, self.shown = shared, shared.pricer, one, shown
        self.seconds = {name: float(priced.seconds[name][row]) for name in SPLIT_TERMS}
        self.exposed = {name: float(priced.exposed_s[name][row]) for name in SPLIT_TERMS}
        self.period_s = float(priced.period_s[row])
        self.memory = {name: float(getattr(priced.memory, name)[row]) for name in (*MEMORY_KINDS, "total")}

    def told(self, window: Window | None, rank_order: tuple[str, ...]) -> Told:
        """Return what is told of the plan; of networks split by blocks no kinds are told apart."""
        one, sources, gradient, shown = self.one, self.pricer.sources, self._gradient(), self.shown
        terms, in_use = self._terms()

        def rest() -> Rest:
            updates = synchronous_updates(one, window, self._staleness())
            shares = kernel_shares(shown.stages, one.accumulation_steps)
            return Rest((self.period_s, gradient), self.memory, shares, updates, shown.layout, shown.first_layers)

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
            is_unseen=one.gpus > 1,
            has_kinds=not block_starts(sources.problem.network),
            rank_order=rank_order,
        )

    def _staleness(self) -> Staleness | None:
        """Return that of the stages, each as likely as another; None: none."""
        if self.one.schedule != "no-flush":
            return None
        late = weight_versions(np.arange(self.one.pipeline_parallel), Configurations.of([self.one])) - 1
        pmf = {int(value): float(np.mean(late == value)) for value in distinct_values(late).tolist()}
        return Staleness(float(late.mean()), float(late.std()), pmf)

    def _gradient(self) -> Gradient:
        gradient, m, update = Gradient(), self.one.accumulation_steps, self.shown.stages["update"].seconds
        own = sum(self.exposed[name] for name in ("forward", "backward", "recompute"))
        waits = 1.0 + (self.exposed["bubble"] + self.exposed["replica_wait"]) / own if own > 0 else 1.0
        again = self.exposed["recompute"] / self.exposed["forward"] if self.exposed["forward"] > 0 else 0.0
        counts = {
            "forward": waits * m * (1 + again),
            "backward": waits,
            "accumulating": waits * (m - 1),
            "update": self.exposed["update"] / update if update > 0 else 1.0,
        }
        for name, count in counts.items():
            if count:
                gradient.add_scaled(self.shown.gradients[name], count)
        for name in (*_OPERATION_OF, "offload", "host_to_device", "load_input"):
            sources = self.shared.served(name)[0] if self.exposed[name] > 0 else ()
            for source in sources:
                zeros = np.zeros(len(source.entry.coefficients))
                gradient.add_vector(source.entry, zeros, self.exposed[name] / len(sources))
        return gradient

    def _terms(self) -> tuple[tuple[Term, ...], tuple[Source, ...]]:
        terms, every_source = [], list[Source]()
        for name in SPLIT_TERMS:
            if max(self.seconds[name], abs(self.exposed[name])) <= ROUNDING * self.period_s:
                continue
            sources, outside = self._served(name)
            every_source += sources
            seconds = self.seconds[name], self.exposed[name], self.exposed[name] / self.period_s
            terms.append(term_of_sources(name, "step", seconds, sources, extrapolated=outside))
        return tuple(terms), tuple(every_source)

    def _served(self, term: str) -> tuple[Sequence[Source], bool]:
        """Return what serves a term, and whether kernels outside their fit take more than a small share of it."""
        if term not in _PASS_OF:
            return self.shared.served(term)
        stage = self.shown.stages[_PASS_OF[term]]
        return stage.sources, stage.extrapolated
