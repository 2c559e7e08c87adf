"""Measured steps, and what is predicted of them as a function of the coefficients of whole steps.

On one GPU the kernels of a stage are linear in kernel_scale x matrix_scale and kernel_scale, its host time in
host_s_per_call, and an exponent composes the two; on several, with those kept, compute grows by replica_wait, and the
scales of links change what messages add to it. So kernels are priced a few times, however often a fit asks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from planner.costs.collectives import collective_s
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import END_TO_END, Calibration, Entry
from planner.domain.configuration import Configurations
from planner.domain.messages import GRADIENTS
from planner.domain.request import Problem
from planner.fitting.passes import Passes
from planner.sources.links import slower
from planner.sources.overheads import DATASHEET_LIBRARY, EXPONENTS, NEUTRAL_COEFFICIENTS, exponent_name
from planner.sources.sources import Sources
from planner.steps.compute import PASSES, started
from planner.steps.host_and_gpu import STAGES, TOGETHER, CallCounts
from planner.steps.one_stage import OneStage, SlotExchange
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer
from planner.steps.synchronous import backward_end_s, communication_prefix_s, exposed_s

__all__ = [
    "ESTIMATOR",
    "HALF_PRECISIONS",
    "AloneSteps",
    "JointSteps",
    "Observed",
    "calibrations_of",
    "is_fitted",
    "overheads_entry",
    "properties_of",
    "without_end_to_end",
]

ESTIMATOR = END_TO_END
HALF_PRECISIONS = frozenset({"fp16", "bf16"})
"""Precisions that share their effects."""


def is_fitted(problem: Problem) -> bool:
    """Tell whether end-to-end coefficients are of use to a problem.

    Not on CPUs, of which GPUs say nothing, nor where kernels were reconstructed from whole steps: these hold what a
    framework adds.
    """
    has_reconstruction = any(one.origin == "reconstructed" for one in Sources(problem).for_accelerator)
    return problem.cluster.node.accelerator.kind == "gpu" and not has_reconstruction


def properties_of(problem: Problem, precision: str) -> dict[str, str]:
    """Return the properties of runs of a problem in a precision that effects belong to.

    ``framework``: with its switches, ``program`` without them, as what they change is counted; ``version``: of the
    framework and the libraries under it, where it is known; ``inside``, ``between``: kinds of the links.
    """
    framework, cluster = problem.settings.framework, problem.cluster
    is_specified = Sources(problem).is_specified(precision)
    links = {"inside": cluster.intra_node, "between": cluster.inter_node}
    version = {"version": framework.version} if framework.version else {}
    return (
        version
        | {name: link.kind for name, link in links.items() if link is not None}
        | {
            "framework": framework.variant,
            "program": framework.name,
            "accelerator": cluster.node.accelerator.name,
            "chip": cluster.node.accelerator.chip,
            "cluster": cluster.name,
            "precision": "half" if precision in HALF_PRECISIONS else precision,
            "kernels": DATASHEET_LIBRARY if is_specified else "measured",
        }
    )


def without_end_to_end(calibrations: Sequence[Calibration]) -> tuple[Calibration, ...]:
    """Return calibrations without the entries that were fitted to runs; those that held nothing else are left out."""
    rest = []
    for one in calibrations:
        entries = tuple(entry for entry in one.entries if entry.estimator != ESTIMATOR)
        if len(entries) == len(one.entries):
            rest.append(one)
        elif entries:
            rest.append(replace(one, entries=entries))
    return tuple(rest)


def overheads_entry(framework: str, precision: str, kernels: str, coefficients: Mapping[str, float]) -> Entry:
    """Return the entry of synchronous runs of a framework in a precision, on measured or specified kernels."""
    library = DATASHEET_LIBRARY if kernels == DATASHEET_LIBRARY else ""
    return Entry(
        "overheads", framework, "", precision, library, "overheads", {}, coefficients, estimator=ESTIMATOR,
        origin="published", mode="sync",
    )  # fmt: skip


def calibrations_of(
    problem: Problem, overheads: Sequence[Entry], link_scales: Sequence[float]
) -> tuple[Calibration, ...]:
    """Return calibrations with overheads, and with slower links where those of the cluster are specified."""
    cluster = problem.cluster
    calibrations = [Calibration(ESTIMATOR, cluster.node.accelerator.name, tuple(overheads), origin="published")]
    is_linked = cluster.intra_node is not None or cluster.inter_node is not None
    sources = Sources(problem)
    if is_linked and sources.is_all_reduce_unfitted:
        entry = replace(
            slower(sources.unfitted_all_reduce, *link_scales),
            estimator=ESTIMATOR,
            origin="published",
            source=f"runs on {cluster.name}",
            notes="",
        )
        calibrations.append(Calibration(f"{ESTIMATOR} links", "", (entry,), cluster=cluster.name, origin="published"))
    return tuple(calibrations)


@dataclass(frozen=True, eq=False)
class Observed:
    """Measured steps of one problem in one precision, n of them.

    Attributes
    ----------
    problem : Problem
        Without calibrations of overheads that were fitted to runs.
    configurations : Configurations
        Synchronous, of one precision.
    measured_s : ndarray of float, shape (n,)
        One update each.
    evaluator : Evaluator
        Prices the problem as it stands; its kernel times are used again under every coefficient.
    """

    problem: Problem
    configurations: Configurations
    measured_s: FloatArray
    evaluator: Evaluator

    @classmethod
    def of(cls, problem: Problem, configurations: Configurations, measured_s: FloatArray) -> Self:
        """Return the rows whose predicted and measured times have logarithms."""
        evaluator = Evaluator(problem)
        predicted_s = evaluator.evaluate(configurations).iteration_s
        rows = np.flatnonzero(np.isfinite(predicted_s) & (predicted_s > 0) & np.isfinite(measured_s) & (measured_s > 0))
        return cls(problem, configurations.take(rows), measured_s[rows], evaluator)

    @cached_property
    def precision(self) -> str:
        """The precision of all rows."""
        (name,) = self.configurations.precisions
        return name

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """Property -> value, of those that effects belong to."""
        return properties_of(self.problem, self.precision)

    @cached_property
    def alone(self) -> Observed | None:
        """The rows on one GPU; None where there are none."""
        return self._part(self.configurations.gpus == 1)

    @cached_property
    def joint(self) -> Observed | None:
        """The rows on several GPUs; None where there are none."""
        return self._part(self.configurations.gpus > 1)

    @cached_property
    def alone_steps(self) -> AloneSteps:
        """The rows as functions of coefficients; all of them are on one GPU."""
        return AloneSteps(self)

    def _part(self, mask: BoolArray) -> Observed | None:
        rows = np.flatnonzero(mask)
        if not rows.size:
            return None
        return Observed(self.problem, self.configurations.take(rows), self.measured_s[rows], self.evaluator)

    def priced(self, coefficients: Mapping[str, float]) -> OneStage:
        """Return the steps of the rows under overheads, with links as they are."""
        entry = overheads_entry(
            self.problem.settings.framework.label, self.precision, self.properties["kernels"], coefficients
        )
        own = calibrations_of(self.problem, [entry], (1.0, 1.0))
        problem = replace(self.problem, calibrations=(*own, *self.problem.calibrations))
        pricer = Evaluator(problem, like=self.evaluator).pricer_of(self.configurations)
        assert isinstance(pricer, Pricer)  # noqa: S101 - rows are synchronous
        return pricer.one_stage(self.configurations)


@dataclass(frozen=True)
class _Input:
    """Loading of n steps: ``load_s``, shape (n,), beside the step before where ``prefetches``, shape (n,)."""

    load_s: FloatArray
    prefetches: BoolArray

    def period_s(self, step_s: FloatArray) -> FloatArray:
        """Return the periods of steps that take so long without their input [s], shape (n,)."""
        return np.where(self.prefetches, np.maximum(step_s, self.load_s), step_s + self.load_s)

    def is_paced(self, step_s: FloatArray) -> BoolArray:
        """Tell which periods grow with the step, shape (n,)."""
        return ~self.prefetches | (step_s >= self.load_s)


class AloneSteps:
    """Steps on one GPU by (k, m, h) of :class:`planner.fitting.passes.Passes`; of several, what one of them computes.

    Attributes
    ----------
    stages : Passes
        Those of STAGES; the exponent is at first that of the network's family.
    runs : ndarray of float, shape (n, 4)
        How often a step holds each.
    copies_s : ndarray of float, shape (n,)
        Of samples to the device.
    """

    def __init__(self, observed: Observed) -> None:
        exponent = EXPONENTS[exponent_name(observed.problem.network)]
        step = observed.priced(NEUTRAL_COEFFICIENTS)
        costs, cases, m = step.costs, step.passes.cases, observed.configurations.accumulation_steps
        units, table = costs.compute.ranks[0].units, costs.compute.cases.columns
        number = np.bincount(units.sequence, minlength=units.distinct).astype(np.float64)
        row, passes = cases.compute_rows(costs.compute)[cases.case], [PASSES.index(name) for name in STAGES]

        def totals(column: FloatArray) -> FloatArray:
            return np.asarray(column[row][:, passes] @ number)

        counts = CallCounts(totals(table.calls), totals(table.measured_calls), totals(table.launches))
        calls, launches_s = (
            np.broadcast_to(each, (row.size, len(STAGES))) for each in started(costs.sources, costs.overheads, counts)
        )
        beside = TOGETHER["sync"][: len(STAGES), : len(STAGES)]
        self.stages = Passes(totals(table.matrix_s), totals(table.traffic_s), calls, exponent, launches_s, beside)
        self.runs = np.column_stack([np.ones(m.size) * m, np.ones(m.size), m - 1, np.ones(m.size)])
        self.copies_s = m * step.passes.copy_s[cases.case]
        self.input = _input_of(step)

    def at_exponent(self, exponent: float) -> AloneSteps:
        """Return the same steps under another exponent."""
        other = copy(self)
        other.stages = replace(self.stages, exponent=exponent)
        return other

    @staticmethod
    def stacked(parts: Sequence[AloneSteps]) -> AloneSteps:
        """Return the steps of several, one after another."""
        steps = copy(parts[0])
        steps.stages = Passes.stacked([one.stages for one in parts])
        steps.runs = np.concatenate([one.runs for one in parts])
        steps.copies_s = np.concatenate([one.copies_s for one in parts])
        steps.input = _Input(
            np.concatenate([one.input.load_s for one in parts]), np.concatenate([one.input.prefetches for one in parts])
        )
        return steps

    def times_s(self, values: FloatArray) -> FloatArray:
        """Return step times [s], shape (n,), where (k, m, h) are ``values``, shape (3,), or (n, 3) step by step."""
        return self.input.period_s(self._step_s(values))

    def slopes(self, values: FloatArray, _width: float = 0.0) -> FloatArray:
        """Return the derivatives of :meth:`times_s` by ``values``, shape (n, 3): exact, of no width."""
        weight = self.runs * self.input.is_paced(self._step_s(values))[:, None]
        return np.asarray((weight[:, :, None] * self.stages.slopes(values)).sum(axis=1))

    def _step_s(self, values: FloatArray) -> FloatArray:
        return np.asarray(self.copies_s + (self.runs * self.stages.times_s(values)).sum(axis=1))


class JointSteps:
    """Steps on several GPUs by replica_wait and the scales of the links, with compute as the other coefficients say.

    Attributes
    ----------
    computed_s, quiet_s : ndarray of float, shape (n,)
        What a step computes, and what it takes but for messages, waits and input [s].
    """

    def __init__(self, observed: Observed, coefficients: Mapping[str, float]) -> None:
        step = observed.priced({**coefficients, "replica_wait": 0.0})
        self._costs, self._ready, configurations = step.costs, step.ready, observed.configurations
        self.computed_s, self.quiet_s = step.computed_s, step.period_s - step.exchange_s[1]
        self.input, self._exchange = _input_of(step), SlotExchange(step.state, 0)
        case = np.searchsorted(self._exchange.rows, step.state.cases.case)
        last = 2 * step.passes.cases.case + (configurations.accumulation_steps > 1)
        pairs = last * self._exchange.rows.size + case
        distinct, self.pair = np.unique(pairs, return_inverse=True)
        self.last, self.case = distinct // self._exchange.rows.size, distinct % self._exchange.rows.size
        self._groups = step.state.cases.groups(GRADIENTS).rows(self._exchange.rows)
        self._bytes, self._counts = self._exchange.bytes_of(self._exchange.slot), dict[str, FloatArray]()
        self.is_specified = self._costs.gradient_source.entry.estimator == ESTIMATOR
        is_link_busy = [bool(np.any(count > 1)) for count in (configurations.gpus_per_node, configurations.nodes)]
        self.live = [at for at, is_used in enumerate(is_link_busy) if is_used and self.is_specified]
        self._kept: dict[tuple[float, ...], FloatArray] = {}

    def times_s(self, values: FloatArray) -> FloatArray:
        """Return step times [s], shape (n,), where ``values`` are replica_wait and the scales inside and between."""
        return self.input.period_s(self._step_s(values))

    def slopes(self, values: FloatArray, width: float) -> FloatArray:
        """Return the derivatives of :meth:`times_s` by ``values``, shape (n, 3).

        Those by scales are differences between scales that are e^width larger and smaller: messages that hide behind
        the backward pass, or are paced by another link, have no derivative, though not far away they have.
        """
        _, *scales = values.tolist()
        slopes = np.zeros((self.pair.size, 3))
        slopes[:, 0] = self.computed_s
        for at in self.live:
            smaller, larger = (
                self._exposed_s([scale * math.exp(sign * width * (at == place)) for place, scale in enumerate(scales)])
                for sign in (-1, 1)
            )
            slopes[:, 1 + at] = (larger - smaller) / (2 * width * scales[at])
        slopes *= self.input.is_paced(self._step_s(values))[:, None]
        return slopes

    def _step_s(self, values: FloatArray) -> FloatArray:
        wait, *scales = values.tolist()
        return np.asarray(self.quiet_s + wait * self.computed_s + self.exposed_s(scales))

    def exposed_s(self, scales: Sequence[float]) -> FloatArray:
        """Return what messages add to a step [s], shape (n,)."""
        key = tuple(scales)
        if key not in self._kept:
            self._kept = {key: self._exposed_s(key)}
        return self._kept[key]

    def _exposed_s(self, scales: Sequence[float]) -> FloatArray:
        exchange, (ready, backward), entry = self._exchange, self._ready, self._costs.gradient_source.entry
        if not self._bytes.size:
            return np.zeros(self.pair.size)
        if self.is_specified:
            entry = slower(entry, *scales)
        if self._costs.strategy.is_timed:
            if self.is_specified:
                exchange = exchange.by_entry(entry)
            return exchange.fused_s(ready, backward, self.last, self.case)[0][self.pair]
        sent_s = exchange.message_s
        if self.is_specified:
            operation = self._costs.gradient_operation
            sent_s = collective_s(entry, operation, self._bytes, self._groups, self._counts)
            sent_s = self._costs.sources.multiplied("all_reduce", sent_s, nodes=self._groups.nodes[:, None])
        if not self._costs.strategy.overlap:
            return np.asarray(sent_s.sum(axis=1)[self.case][self.pair])
        end_s = backward_end_s(ready[:, exchange.slot], communication_prefix_s(sent_s), self.last, self.case)
        return exposed_s(end_s, backward[self.last])[self.pair]


def _input_of(step: OneStage) -> _Input:
    """Return how loading the samples of steps takes part in them."""
    costs, number = step.costs, step.plans.size
    loads = costs.loads(step.plans) if isinstance(costs, Pricer) else []
    load_s = np.broadcast_to(loads[-1] if loads else 0.0, number)
    return _Input(load_s, np.full(number, costs.strategy.prefetch))
