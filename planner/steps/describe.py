"""Predictions with every field, what measured steps change in them, and how sure it is which of two is faster.

MFU = model FLOP of a sample, three times its forward pass (what is left of that with frozen layers), times samples a
second, over the peak of all devices in the precision of training (Chowdhery et al. 2022, arXiv:2204.02311). HFU counts
what is computed again, too (Korthikanti et al. 2022, arXiv:2205.05198): of ``full`` blocks, of ``selective`` attention
that keeps its weights. Both count every pair of positions, also those that a causal mask hides, as these papers do;
what is padded or sent is not counted.

Measured steps multiply times by one factor, and narrow their doubt. Errors of two plans share coefficients, which
cancel in the ratio of their times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.axes import AXES
from planner.domain.calibration import ORIGINS
from planner.domain.configuration import Configuration, Configurations
from planner.domain.prediction import MiniBatch, PlanWarning, Prediction, Quantity, SharedLayers, Staleness, Term
from planner.domain.provenance import NORMAL_90
from planner.domain.split import RECOMPUTES
from planner.errors import CoverageError, Refusal
from planner.numbers import constant, constants
from planner.sources.overheads import MeasuredSteps, Overheads
from planner.sources.source import Source
from planner.sources.sources import Sources
from planner.steps.intervals import Gradient, kind_of, quantity, reciprocal, score_of, times
from planner.steps.stage_cases import StageLayout, units_ahead
from planner.steps.stages import Part
from planner.steps.warnings import StepWarnings, measured_warning, own_layers
from planner.units import BOUNDS
from planner.workload.program import block_starts, program
from planner.workload.units import units_of

Window = Callable[[str], tuple[float, float]]
"""Mode -> (least, largest) mini-batch [samples]."""


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
    own, of_all_gpus = sources.for_accelerator, sources.pooled
    # Scores of runs whose accelerator took part in a fit go last for pooled overheads, and for links that none showed.
    last = told.overheads.pooled or told.is_unseen
    score = score_of(kind, (*of_all_gpus, *own) if last else (*own, *of_all_gpus))
    iteration = quantity(told.period_s, deviation, score)
    check_bounds(iteration.value, "time", "a step", "s")

    def finish() -> Prediction:
        (first_s, first_gradient), memory, shares, updates, layout, first_layers, shared_layers = told.rest()
        first_deviation = deviation if first_gradient is told.gradient else first_gradient.spread()
        samples, dataset = one.samples_per_update, sources.problem.dataset
        steps = None if dataset is None else dataset.samples / samples
        speed = reciprocal(iteration, samples)
        mfu, hfu = utilization(sources, one, speed.value, layout)
        reach = math.exp(constant("memory.half_width"))  # by what memory of measured runs was missed
        needed, capacity = memory["total"], sources.accelerator.memory_bytes
        warnings = told.warnings.of(
            one,
            told.terms,
            told.in_use,
            (needed, updates.mini_batch.mean),
            interval_basis=iteration.interval_basis,
            rank_order=told.rank_order,
        )
        return Prediction(
            configuration=one,
            iteration_s=iteration,
            update_s=updates.update_s,
            epoch_s=None if steps is None else times(iteration, steps),
            first_epoch_s=None if steps is None else times(quantity(first_s, first_deviation, score), steps),
            samples_per_s=speed,
            mini_batch=updates.mini_batch,
            staleness=updates.staleness,
            memory_bytes={**memory, "low": needed / reach, "high": needed * reach, "capacity": capacity},
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


def utilization(
    sources: Sources, one: Configuration, samples_per_s: float, layout: StageLayout | None = None
) -> tuple[float | None, float | None]:
    """Return MFU and HFU, to six digits; None of networks without attention, and without a peak rate.

    ``layout``: what stages compute again, where they choose.
    """
    network, peak = sources.problem.network, sources.accelerator.peak_flop_per_s.get(one.precision)
    if not block_starts(network) or not peak:
        return None, None
    of = program(network)
    units = units_of(network, of)
    forward = 2.0 * np.array([site.forward_mac for site in of.sites], dtype=np.float64)[of.site]
    ahead = units_ahead(units)
    if layout is None:
        kinds, held = [one.recompute], ahead[-1:]
    else:
        (first, _, again), kinds = layout.layers, [RECOMPUTES[code] for code in layout.recompute.tolist()]
        held = ahead[first + again] - ahead[first]
    both = forward, forward * units.repeats_attention
    full, selective = (units.of_distinct(some) * (units.reached > 0) for some in both)
    repeated = {"full": full, "selective": selective}
    nothing = np.zeros(units.distinct)
    more = sum(float(blocks @ repeated.get(kind, nothing)) for kind, blocks in zip(kinds, held, strict=True))
    rate = samples_per_s / (peak * one.gpus)
    trained = sum(float(site.training_flop * count) for site, count in of.site_counts())
    model = trained if network.has_frozen else 3.0 * float(forward.sum())
    mfu, hfu = (float(f"{flop * rate:.6g}") for flop in (model, model + more))
    return mfu, hfu


OF_AXES, LEAST_OF_AXIS = constants("ties.deviation"), constant("ties.floor")
Deviation = Callable[[int, int], float | None]
"""Positions of two plans -> standard deviation of the logarithm of the ratio of their times; None: not known."""


def as_measured(one: Description, sources: Sources) -> Description:
    """Return a description with what measured steps say of its plan; without any, as it is.

    Every term takes its part of the factor, so that terms still add up to the step.
    """
    plan = one.configuration
    steps = _steps_of(sources, plan)
    if steps is None:
        return one
    factor = float(steps.factors(Configurations.of([plan]))[0])
    narrower, gradient = math.sqrt(steps.remaining(plan, plan)), Gradient()
    gradient.add_scaled(one.gradient, factor)
    iteration = _changed(one.iteration_s, factor, narrower)

    def finish() -> Prediction:
        before = one.prediction
        return replace(
            before,
            iteration_s=iteration,
            samples_per_s=_changed(before.samples_per_s, 1 / factor, narrower),
            epoch_s=before.epoch_s and _changed(before.epoch_s, factor, narrower),
            first_epoch_s=before.first_epoch_s and _changed(before.first_epoch_s, factor, narrower),
            terms=tuple(
                replace(term, seconds=factor * term.seconds, exposed_seconds=factor * term.exposed_seconds)
                for term in before.terms
            ),
            mfu=None if before.mfu is None else before.mfu / factor,
            hfu=None if before.hfu is None else before.hfu / factor,
            warnings=(*before.warnings, measured_warning(steps, sources.problem.network.name, plan)),
        )

    return Description(plan, iteration, gradient, finish)


def deviation_left(one: tuple[Sources, Description], other: tuple[Sources, Description]) -> float:
    """Return the share of the deviation of the ratio of two plans that measured steps leave; 1 without any.

    Runs in one precision, mode or framework say nothing of another.
    """
    plans = [description.configuration for _, description in (one, other)]
    each = [_steps_of(sources, plan) for (sources, _), plan in zip((one, other), plans, strict=True)]
    if one[0] is other[0] and (plans[0].precision, plans[0].mode) == (plans[1].precision, plans[1].mode):
        return 1.0 if each[0] is None else math.sqrt(each[0].remaining(*plans))
    left = [1.0 if steps is None else steps.remaining(plan, plan) for steps, plan in zip(each, plans, strict=True)]
    return math.sqrt(sum(left) / len(left))


def _steps_of(sources: Sources, plan: Configuration) -> MeasuredSteps | None:
    return sources.measured_steps(plan.precision) if plan.mode == "sync" else None


def _changed(period: Quantity, factor: float, narrower: float) -> Quantity:
    """Return a value times a factor, its interval narrower, by a share of the logarithms of its ends."""
    value = factor * period.value
    low, high = (None if end is None else value * (end / period.value) ** narrower for end in (period.low, period.high))
    deviation = None if period.deviation is None else period.deviation * narrower
    return replace(period, value=value, low=low, high=high, deviation=deviation)


def deviation_of_ratio(
    one: Description, other: Description, *, apart: tuple[str, ...] = (), axes: bool = True
) -> float | None:
    """Return the standard deviation of the logarithm of the time of ``one`` over that of ``other``; None: not known.

    That of :meth:`planner.steps.intervals.Gradient.relative_difference`, times what measured runs asked of the
    deviations of either plan: the conformal score over the 1.645 of a normal distribution, the larger of both.
    ``apart``: scopes of entries of which the plans share nothing. With ``axes`` that of the axes is added in which the
    plans differ, where the errors of what they share do not cancel.
    """
    first, second = one.iteration_s, other.iteration_s
    if not (first.value > 0 and second.value > 0):
        return None
    deviation = one.gradient.relative_difference(first.value, other.gradient, second.value, apart=apart)
    if deviation is None:
        return None
    scaled = deviation * max(_score(first), _score(second)) / NORMAL_90
    if not axes:
        return scaled
    doublings = doublings_of(one.configuration, other.configuration) | ({"framework": 1.0} if apart else {})
    return math.hypot(scaled, deviation_of_axes(doublings))


def doublings_of(one: Configuration, other: Configuration) -> dict[str, float]:
    """Return of every axis in which two plans differ the doublings from one number to the other; 1 of a named value."""
    values = {axis: (getattr(one, axis.name), getattr(other, axis.name)) for axis in AXES}
    return {
        axis.name: abs(math.log2(mine / its)) if axis.least and not axis.words else 1.0
        for axis, (mine, its) in values.items()
        if mine != its
    }


def deviation_of_axes(doublings: Mapping[str, float]) -> float:
    """Return the standard deviation of the logarithm of a ratio that axes add; see docs/ties.md."""
    each = (OF_AXES.get(name, OF_AXES["other"]) * math.sqrt(count) for name, count in doublings.items())
    return math.hypot(*(max(one, LEAST_OF_AXIS) for one in each))


def _score(period: Quantity) -> float:
    """Return how many standard deviations the ends of the 90 % interval of a period lie from it."""
    if period.high is None or not period.deviation:
        return NORMAL_90
    return math.log(period.high / period.value) / period.deviation
