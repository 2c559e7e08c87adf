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
from functools import cached_property, reduce
from typing import Self

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import END_TO_END, Calibration, Entry
from planner.domain.configuration import Configurations
from planner.domain.request import Problem
from planner.fitting.passes import Passes
from planner.sources.links import slower
from planner.sources.overheads import DATASHEET_LIBRARY, EXPONENTS, NEUTRAL_COEFFICIENTS, exponent_name
from planner.sources.sources import Sources
from planner.steps.compute import started
from planner.steps.host_and_gpu import TOGETHER
from planner.steps.predict import Evaluator
from planner.steps.price import Pricer
from planner.steps.schedule import STAGE_RUNS, TimedSchedule
from planner.steps.synchronous import communication_prefix_s

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

    def priced(self, coefficients: Mapping[str, float]) -> tuple[Pricer, TimedSchedule]:
        """Return what prices the rows under overheads, with links as they are, and their steps."""
        entry = overheads_entry(
            self.problem.settings.framework.label, self.precision, self.properties["kernels"], coefficients
        )
        own = calibrations_of(self.problem, [entry], (1.0, 1.0))
        problem = replace(self.problem, calibrations=(*own, *self.problem.calibrations))
        evaluator = Evaluator(problem, like=self.evaluator)
        evaluator.evaluate(self.configurations)
        pricer = evaluator.pricers[self.precision, "sync"]
        return pricer, pricer.price(self.configurations).iteration


class AloneSteps:
    """Steps on one GPU by (k, m, h) of :class:`planner.fitting.passes.Passes`; of several, what one of them computes.

    Attributes
    ----------
    stages : Passes
        Those of STAGES; the exponent is at first that of the network's family.
    runs : ndarray of float, shape (n, 4)
        How often a step holds each.
    """

    def __init__(self, observed: Observed) -> None:
        exponent = EXPONENTS[exponent_name(observed.problem.network)]
        pricer, step = observed.priced(NEUTRAL_COEFFICIENTS)
        compute, sub_batch = pricer.compute, observed.configurations.sub_batch
        kernels = compute.kernels_alone(sub_batch)
        matrix_s, traffic_s = (
            np.column_stack([compute.program.total(getattr(one, name)) for one in kernels])
            for name in ("matrix_s", "traffic_s")
        )
        calls, launches_s = np.broadcast_to(
            np.array([started(compute.sources, compute.overheads, one.counts) for one in kernels]).T[:, None, :],
            (2, *matrix_s.shape),
        )
        self.stages = Passes(matrix_s, traffic_s, calls, exponent, launches_s, TOGETHER["sync"])
        self.runs = np.column_stack([of.of(observed.configurations.accumulation_steps) for of in STAGE_RUNS.values()])
        nothing = np.zeros(len(calls))
        self.step = step.changed({"all_reduce": nothing}, {"all_reduce": nothing})

    def at_exponent(self, exponent: float) -> AloneSteps:
        """Return the same steps under another exponent."""
        other = copy(self)
        other.stages = replace(self.stages, exponent=exponent)
        return other

    @staticmethod
    def stacked(parts: Sequence[AloneSteps]) -> AloneSteps:
        """Return the steps of several, one after another; all have the same schedule."""
        steps = copy(parts[0])
        steps.stages = Passes.stacked([one.stages for one in parts])
        steps.runs = np.concatenate([one.runs for one in parts])
        steps.step = TimedSchedule.stacked([one.step for one in parts])
        return steps

    def times_s(self, values: FloatArray) -> FloatArray:
        """Return step times [s], shape (n,), where (k, m, h) are ``values``, shape (3,), or (n, 3) step by step."""
        return self._timed(values).period_s

    def slopes(self, values: FloatArray, _width: float = 0.0) -> FloatArray:
        """Return the derivatives of :meth:`times_s` by ``values``, shape (n, 3): exact, of no width."""
        by_stage = self._timed(values).slopes
        weight = self.runs * np.column_stack([by_stage[stage] for stage in STAGE_RUNS])
        return np.asarray((weight[:, :, None] * self.stages.slopes(values)).sum(axis=1))

    def _timed(self, values: FloatArray) -> TimedSchedule:
        stage_s = self.runs * self.stages.times_s(values)
        return self.step.changed(dict(zip(STAGE_RUNS, stage_s.T, strict=True)))


class JointSteps:
    """Steps on several GPUs by replica_wait and the scales of the links, with compute as the other coefficients say."""

    def __init__(self, observed: Observed, coefficients: Mapping[str, float]) -> None:
        self.pricer, self.step = observed.priced({**coefficients, "replica_wait": 0.0})
        pricer = self.pricer
        configurations = observed.configurations
        groups = np.column_stack([configurations.nodes, configurations.gpus_per_node])
        self.places, group = np.unique(groups, axis=0, return_inverse=True)
        row = pricer.compute.cases.rows(configurations.sub_batch)
        pairs = (2 * row + (configurations.accumulation_steps > 1)) * len(self.places) + group.ravel()
        distinct, self.pair = np.unique(pairs, return_inverse=True)
        self.last_pass, self.group = distinct // len(self.places), distinct % len(self.places)
        self.is_specified = pricer.messages.source.entry.estimator == ESTIMATOR
        is_link_busy = [bool(np.any(count > 1)) for count in (configurations.gpus_per_node, configurations.nodes)]
        self.live = [at for at, is_used in enumerate(is_link_busy) if is_used and self.is_specified]
        self._kept: dict[tuple[float, ...], FloatArray] = {}

    def times_s(self, values: FloatArray) -> FloatArray:
        """Return step times [s], shape (n,), where ``values`` are replica_wait and the scales inside and between."""
        return self._timed(values).period_s

    def slopes(self, values: FloatArray, width: float) -> FloatArray:
        """Return the derivatives of :meth:`times_s` by ``values``, shape (n, 3).

        Those by scales are differences between scales that are e^width larger and smaller: messages that hide behind
        the backward pass, or are paced by another link, have no derivative, though not far away they have.
        """
        _, *scales = values.tolist()
        step = self._timed(values)
        slopes = np.zeros((self.pair.size, 3))
        slopes[:, 0] = reduce(np.add, [step.seconds[stage] for stage in STAGE_RUNS])
        for at in self.live:
            smaller, larger = (
                self._exposed_s([scale * math.exp(sign * width * (at == place)) for place, scale in enumerate(scales)])
                for sign in (-1, 1)
            )
            slopes[:, 1 + at] = (larger - smaller) / (2 * width * scales[at])
        slopes *= step.on_path["replica_wait"][:, None]
        return slopes

    def _timed(self, values: FloatArray) -> TimedSchedule:
        wait, *scales = values.tolist()
        messages = {"all_reduce": self.exposed_s(scales)}
        return self.step.changed(messages | {"replica_wait": np.full(self.pair.size, wait)}, messages)

    def exposed_s(self, scales: Sequence[float]) -> FloatArray:
        """Return what messages add to a step [s], shape (n,); see :class:`planner.steps.price.Pricer`."""
        key = tuple(scales)
        if key not in self._kept:
            self._kept = {key: self._exposed_s(key)}
        return self._kept[key]

    def _exposed_s(self, scales: Sequence[float]) -> FloatArray:
        messages = self.pricer.messages
        entry = slower(messages.source.entry, *scales) if self.is_specified else None
        nodes, gpus_per_node = self.places.T
        sent_s = messages.message_s(nodes, gpus_per_node, entry)
        if not self.pricer.strategy.overlap:
            return np.asarray(sent_s.sum(axis=1)[self.group][self.pair])
        if self.pricer.strategy.is_timed:
            return self.pricer.fused_s(self.last_pass, self.group, self.places, entry)[0][self.pair]
        return self.pricer.outlasting_s(communication_prefix_s(sent_s), self.last_pass, self.group)[self.pair]
