"""Predictions with every field: terms, distributions, memory, intervals and warnings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration, Configurations
from planner.domain.prediction import MiniBatch, PlanWarning, Prediction, Quantity, Staleness, Term
from planner.domain.split import MEMORY_KINDS
from planner.errors import CoverageError, Refusal
from planner.numbers import constant
from planner.sources.overheads import Overheads
from planner.sources.sources import Source, Sources
from planner.steps.asynchronous import Asynchrony
from planner.steps.intervals import Gradient, kind_of, quantity, reciprocal, score_of
from planner.steps.laid_stages import StageLayout
from planner.steps.price import Pricer, asynchrony_of
from planner.steps.stages import kernel_shares, stages_of
from planner.steps.terms import Case, gradient_of, terms_of, update_gradient
from planner.steps.utilization import utilization
from planner.steps.warnings import StepWarnings, empty_updates, own_layers, window_missed
from planner.units import BOUNDS

__all__ = ["Description", "Rest", "Told", "described", "descriptions", "synchronous_updates"]

Window = Callable[[str], tuple[float, float]]
CASES_AT_ONCE = 64
"""Sub-batches looked at in detail at once; bounds memory at some 50 MB."""


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


def descriptions(pricer: Pricer, configurations: Configurations, window: Window | None) -> list[Description]:
    """Return the predictions of configurations of one precision and mode, whose cases are tabled."""
    prices = pricer.price(configurations)
    warnings = StepWarnings(pricer.sources, pricer.compute.precision.name, pricer.mode)
    by_row: dict[int, Description] = {}
    sub_batches, which = np.unique(configurations.sub_batch, return_inverse=True)
    for first in range(0, sub_batches.size, CASES_AT_ONCE):
        cases = sub_batches[first : first + CASES_AT_ONCE]
        stages, memory = stages_of(pricer, cases), _memory(pricer, cases, pricer.mode)
        for i in np.flatnonzero((which >= first) & (which < first + CASES_AT_ONCE)).tolist():
            place = int(which[i]) - first
            case = Case(pricer, configurations.one(i), stages[place], prices, i)
            by_row[i] = described(_told(case, configurations, memory[place], window, warnings))
    return [by_row[i] for i in range(configurations.size)]


@dataclass(frozen=True)
class Told:
    """What is told of a plan by whatever prices it, from which its description follows.

    Attributes
    ----------
    sources : Sources
    overheads : Overheads
    one : Configuration
    period_s : float
        Of the thread that sets the throughput, in later epochs [s].
    gradient : Gradient
    terms, in_use : tuple of Term, of Source
        The terms of all threads, and what serves them.
    thread : str
        That which sets the throughput.
    warnings : StepWarnings
    rest : callable that returns Rest
        What no other plan is compared by.
    is_unseen : bool
        Messages go over links that no run showed.
    has_kinds : bool
        Whether kinds of predictions are told apart.
    rank_order : tuple of str
        How its ranks are numbered, where it is not as all are.
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
    has_kinds: bool = True
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


def described(told: Told) -> Description:
    """Return the description of a plan."""
    sources, one = told.sources, told.one
    deviation = told.gradient.spread()
    kind = kind_of(one, told.terms, sources.evidence(one.precision)) if told.has_kinds else ""
    score = score_of(kind, _score_calibrations(sources, told.overheads, is_unseen=told.is_unseen))
    iteration = quantity(told.period_s, deviation, score)
    _check_bounds(iteration.value, "time", "a step", "s")

    def finish() -> Prediction:
        (first_s, first_gradient), memory, shares, updates, layout, first_layers = told.rest()
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


def _told(
    case: Case,
    configurations: Configurations,
    memory: Mapping[str, float],
    window: Window | None,
    warnings: StepWarnings,
) -> Told:
    pricer, one, prices, row = case.pricer, case.one, case.priced, case.row
    gradient = gradient_of(case, prices.iteration)
    threads = [terms_of(case, thread) for thread in prices.threads.values()]
    terms, in_use = (tuple(chain.from_iterable(part)) for part in zip(*threads, strict=True))
    period_s, first_s = (float(each.period_s[row]) for each in (prices.iteration, prices.first_epoch))

    def rest() -> Rest:
        first_gradient = gradient
        if first_s != period_s:
            first_gradient = gradient_of(replace(case, in_first_epoch=True), prices.first_epoch)
        is_sync = pricer.mode == "sync"
        updates = synchronous_updates(one, window) if is_sync else _updates(case, configurations, gradient, window)
        return Rest((first_s, first_gradient), memory, kernel_shares(case.stages, one.accumulation_steps), updates)

    return Told(
        sources=pricer.sources,
        overheads=pricer.compute.overheads,
        one=one,
        period_s=period_s,
        gradient=gradient,
        terms=terms,
        in_use=in_use,
        thread=prices.iteration.schedule.thread,
        warnings=warnings,
        rest=rest,
        is_unseen=one.gpus > 1 and pricer.messages.source.origin == "specified",
    )


def _updates(case: Case, configurations: Configurations, gradient: Gradient, window: Window | None) -> Updates:
    """Return what lies behind an update of an asynchronous plan."""
    statistics = asynchrony_of(configurations, case.priced, slice(case.row, case.row + 1))
    _check_bounds(float(statistics.update_s[0]), "time", "an update", "s")
    _check_bounds(float(statistics.mini_batch_mean[0]), "count", "a mini-batch", "samples")
    mini_batch = _mini_batch(statistics, window)
    staleness = Staleness(
        float(statistics.staleness_mean[0]), float(statistics.staleness_std[0]), statistics.staleness_pmf(0)
    )
    notes = (
        *empty_updates(float(statistics.empty_probability[0]), mini_batch.mean),
        *(() if window is None else window_missed(mini_batch, window("async"))),
    )
    update = quantity(float(statistics.update_s[0]), update_gradient(case, gradient).spread())
    return Updates(update, mini_batch, staleness, notes)


def _check_bounds(value: float, dimension: str, what: str, unit: str) -> None:
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


def _mini_batch(statistics: Asynchrony, window: Window | None) -> MiniBatch:
    return MiniBatch(
        float(statistics.mini_batch_mean[0]),
        float(statistics.mini_batch_std[0]),
        statistics.mini_batch_quantile(0, 0.05),
        statistics.mini_batch_quantile(0, 0.95),
        None if window is None else float(statistics.window_probability(*window("async"))[0]),
    )


def _times_steps(period: Quantity, steps: float | None) -> Quantity | None:
    if steps is None:
        return None
    low, high = (None if end is None else end * steps for end in (period.low, period.high))
    return replace(period, value=period.value * steps, low=low, high=high)


def _memory(pricer: Pricer, sub_batch: IntArray, mode: str) -> list[dict[str, float]]:
    """Return bytes by kind, and in all, of each sub-batch."""
    sizes = pricer.compute.memory(sub_batch, mode)
    columns = {name: getattr(sizes, name).tolist() for name in (*MEMORY_KINDS, "total")}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _bottleneck(terms: tuple[Term, ...], thread: str) -> str:
    """Return the term with the largest share of the thread that sets the throughput; the first of equals."""
    return max((term for term in terms if term.thread == thread), key=lambda term: term.share).name
