"""Predictions with every field: terms, distributions, memory, intervals and warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.calibration import ORIGINS, Calibration
from planner.domain.configuration import Configuration
from planner.domain.prediction import MiniBatch, PlanWarning, Prediction, Quantity, SharedLayers, Staleness, Term
from planner.errors import CoverageError, Refusal
from planner.numbers import constant
from planner.sources.overheads import Overheads
from planner.sources.sources import Source, Sources
from planner.steps.intervals import Gradient, kind_of, quantity, reciprocal, score_of
from planner.steps.stage_cases import StageLayout
from planner.steps.stages import Part
from planner.steps.utilization import utilization
from planner.steps.warnings import StepWarnings, own_layers
from planner.units import BOUNDS

__all__ = [
    "Description", "Rest", "Told", "Updates", "add_parts", "check_bounds", "described", "synchronous_updates",
    "term_of_sources",
]  # fmt: skip

Window = Callable[[str], tuple[float, float]]


@dataclass(frozen=True)
class Description:
    """What tells plans apart: the time of a step and its gradient; ``finish`` returns the whole prediction."""

    configuration: Configuration
    iteration_s: Quantity
    gradient: Gradient
    finish: Callable[[], Prediction]

    @cached_property
    def prediction(self) -> Prediction:
        """The prediction with every field, worked out when it is first read."""
        return self.finish()


@dataclass(frozen=True)
class Told:
    """What is told of a plan by whatever prices it, from which its description follows.

    Attributes
    ----------
    period_s : of the thread that sets the throughput, in later epochs [s]
    terms, in_use : tuple of Term, of Source; the terms of all threads, and what serves them
    thread : that which sets the throughput
    rest : callable that returns Rest; what no other plan is compared by
    is_unseen : messages go over links that no run showed
    rank_order : how its ranks are numbered, where it is not as all are
    """

    sources: Sources
    overheads: Overheads
    one: Configuration
    period_s: float
    gradient: Gradient
    terms: tuple[Term, ...]
    in_use: tuple[Source, ...]
    thread: str
    warnings: StepWarnings
    rest: Callable[[], Rest]
    is_unseen: bool
    rank_order: tuple[str, ...] = ()


class Updates(NamedTuple):
    """The period of an update thread, what lies behind an update, and what to say of both."""

    update_s: Quantity | None
    mini_batch: MiniBatch
    staleness: Staleness
    warnings: tuple[PlanWarning, ...] = ()


class Rest(NamedTuple):
    """What a prediction says besides.

    ``first_epoch``: its period [s] and gradient; ``memory``: kind -> bytes, with ``total``; ``shares``: of kernel time,
    by LOOKUPS; ``layout``: what stages hold, where it is chosen; ``first_layers``: those that stages of layers start
    with.
    """

    first_epoch: tuple[float, Gradient]
    memory: Mapping[str, float]
    shares: Mapping[str, float]
    updates: Updates
    layout: StageLayout | None = None
    first_layers: tuple[str, ...] = ()
    shared_layers: SharedLayers | None = None


def described(told: Told) -> Description:
    """Return the description of a plan."""
    sources, one = told.sources, told.one
    deviation = told.gradient.spread()
    kind = kind_of(one, told.terms, sources.evidence(one.precision))
    score = score_of(kind, _score_calibrations(sources, told.overheads, is_unseen=told.is_unseen))
    iteration = quantity(told.period_s, deviation, score)
    check_bounds(iteration.value, "time", "a step", "s")

    def finish() -> Prediction:
        (first_s, first_gradient), memory, shares, updates, layout, first_layers, shared_layers = told.rest()
        first_deviation = deviation if first_gradient is told.gradient else first_gradient.spread()
        samples, dataset = one.samples_per_update, sources.problem.dataset
        steps = None if dataset is None else dataset.samples / samples
        speed = reciprocal(iteration, samples)
        mfu, hfu = utilization(sources, one, speed.value, layout)
        warnings = told.warnings.of(
            one,
            told.terms,
            told.in_use,
            (memory["total"], updates.mini_batch.mean),
            interval_basis=iteration.interval_basis,
            rank_order=told.rank_order,
        )
        return Prediction(
            configuration=one,
            iteration_s=iteration,
            update_s=updates.update_s,
            epoch_s=_times_steps(iteration, steps),
            first_epoch_s=_times_steps(quantity(first_s, first_deviation, score), steps),
            samples_per_s=speed,
            mini_batch=updates.mini_batch,
            staleness=updates.staleness,
            memory_bytes={**memory, **_ends(memory["total"]), "capacity": sources.accelerator.memory_bytes},
            terms=told.terms,
            bottleneck=_bottleneck(told.terms, told.thread),
            warnings=(*warnings, *own_layers(shares, sources.problem.network.name), *updates.warnings),
            kind=kind,
            kernel_shares=shares,
            rank_order=told.rank_order,
            stages=first_layers,
            shared_layers=shared_layers,
            stage_layers=layout.shown if layout else (),
            doubt=deviation.shares if deviation else {},
            mfu=mfu,
            hfu=hfu,
        )

    return Description(one, iteration, told.gradient, finish)


def _ends(needed_bytes: float) -> dict[str, float]:
    """Return the ends of the interval of memory, by what memory of measured runs was missed by."""
    reach = math.exp(constant("memory.half_width"))
    return {"low": needed_bytes / reach, "high": needed_bytes * reach}


def synchronous_updates(one: Configuration, window: Window | None, staleness: Staleness | None = None) -> Updates:
    """Return what lies behind an update of a synchronous plan."""
    samples = one.samples_per_update
    low, high = (0, samples) if window is None else window("sync")
    inside = None if window is None else float(low <= samples <= high)
    mini_batch = MiniBatch(samples, 0.0, samples, samples, inside)
    return Updates(None, mini_batch, staleness or Staleness(0.0, 0.0, {0: 1.0}))


def check_bounds(value: float, dimension: str, what: str, unit: str) -> None:
    """Refuse a figure that nobody believes: coefficients of a calibration may be of any size."""
    least, most = BOUNDS[dimension]
    if not least <= value <= most:
        rule, remedy = f"{what} must be from {least:g} to {most:g} {unit}", "; check the calibrations of the answer"
        raise CoverageError(Refusal("beyond_belief", rule, what, f"{value:.3g} {unit}", remedy))


def _score_calibrations(sources: Sources, overheads: Overheads, *, is_unseen: bool) -> tuple[Calibration, ...]:
    """Return the calibrations whose conformal scores hold, in order.

    Scores of an accelerator are those of runs whose accelerator and cluster took part in the fit. Where overheads are
    pooled, or messages go over links that no run showed (``is_unseen``), those come first that were found without.
    """
    own, of_all_gpus = sources.for_accelerator, sources.pooled
    return (*of_all_gpus, *own) if overheads.pooled or is_unseen else (*own, *of_all_gpus)


def _times_steps(period: Quantity, steps: float | None) -> Quantity | None:
    if steps is None:
        return None
    low, high = (None if end is None else end * steps for end in (period.low, period.high))
    return replace(period, value=period.value * steps, low=low, high=high)


def _bottleneck(terms: tuple[Term, ...], thread: str) -> str:
    """Return the term with the largest share of the thread that sets the throughput; the first of equals."""
    return max((term for term in terms if term.thread == thread), key=lambda term: term.share).name


def term_of_sources(
    name: str, thread: str, seconds: tuple[float, float, float], sources: Iterable[Source], *, extrapolated: bool
) -> Term:
    """Return a term of a thread: seconds, exposed ones, and their share of its period; and where it comes from."""
    distinct = tuple({id(source): source for source in sources}.values())
    origins = {source.origin for source in distinct}
    provenance = tuple(dict.fromkeys(source.provenance for source in distinct))
    names = tuple(dict.fromkeys(one.name for one in provenance if one.name))
    in_order = tuple(one for one in ORIGINS if one in origins) or ("none",)
    return Term(name, thread, *seconds, in_order, names, extrapolated, provenance)


def add_parts(gradient: Gradient, parts: Iterable[Part], weight: FloatArray) -> None:
    """Add parts to a gradient, so many times each distinct segment, shape (D,)."""
    for part in parts:
        if np.any(seconds := weight @ part.seconds):
            gradient.add_vector(part.entry, weight @ part.slopes, seconds)
