"""Predictions with every field: terms, distributions, memory, intervals and warnings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.calibration import Calibration
from planner.domain.configuration import Configuration, Configurations
from planner.domain.prediction import MiniBatch, PlanWarning, Prediction, Quantity, Staleness, Term
from planner.domain.split import MEMORY_KINDS
from planner.errors import CoverageError, Refusal
from planner.sources.overheads import Overheads
from planner.sources.sources import Sources
from planner.steps.asynchronous import Asynchrony
from planner.steps.intervals import Gradient, kind_of, quantity, reciprocal, score_of
from planner.steps.price import Pricer, asynchrony_of
from planner.steps.stages import kernel_shares, stages_of
from planner.steps.terms import Case, gradient_of, terms_of, update_gradient
from planner.steps.utilization import utilization
from planner.steps.warnings import StepWarnings, empty_updates, own_layers, window_missed
from planner.units import BOUNDS

__all__ = ["Description", "descriptions", "score_calibrations"]

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
            by_row[i] = _description(case, configurations, memory[place], window, warnings)
    return [by_row[i] for i in range(configurations.size)]


def _description(
    case: Case,
    configurations: Configurations,
    memory: Mapping[str, float],
    window: Window | None,
    warnings: StepWarnings,
) -> Description:
    pricer, one, prices, row = case.pricer, case.one, case.priced, case.row
    gradient = gradient_of(case, prices.iteration)
    deviation = gradient.spread()
    threads = [terms_of(case, thread) for thread in prices.threads.values()]
    terms, sources = (tuple(chain.from_iterable(part)) for part in zip(*threads, strict=True))
    kind = kind_of(one, terms, pricer.sources.evidence(one.precision))
    is_unseen = one.gpus > 1 and pricer.messages.source.origin == "specified"
    score = score_of(kind, score_calibrations(pricer.sources, pricer.compute.overheads, is_unseen=is_unseen))
    iteration = quantity(float(prices.iteration.period_s[row]), deviation, score)
    _check_bounds(iteration.value, "time", "a step", "s")

    def finish() -> Prediction:
        samples, steps = one.samples_per_update, _epoch_steps(pricer, one.samples_per_update)
        first_s, first_deviation = float(prices.first_epoch.period_s[row]), deviation
        if first_s != iteration.value:
            first_deviation = gradient_of(replace(case, in_first_epoch=True), prices.first_epoch).spread()
        update, mini_batch, staleness, notes = _updates(case, configurations, gradient, window)
        shares = kernel_shares(case.stages, one.accumulation_steps)
        memory_and_mini_batch = (float(prices.memory_bytes[row]), mini_batch.mean)
        speed = reciprocal(iteration, samples)
        mfu, hfu = utilization(pricer.sources, one, speed.value)
        return Prediction(
            configuration=one,
            iteration_s=iteration,
            update_s=update,
            epoch_s=_times_steps(iteration, steps),
            first_epoch_s=_times_steps(quantity(first_s, first_deviation, score), steps),
            samples_per_s=speed,
            mini_batch=mini_batch,
            staleness=staleness,
            memory_bytes=memory,
            terms=terms,
            bottleneck=_bottleneck(terms, prices.iteration.schedule.thread),
            warnings=(
                *warnings.of(one, terms, sources, memory_and_mini_batch, interval_basis=iteration.interval_basis),
                *own_layers(shares, pricer.sources.problem.network.name),
                *notes,
            ),
            kind=kind,
            kernel_shares=shares,
            doubt=deviation.shares if deviation else {},
            mfu=mfu,
            hfu=hfu,
        )

    return Description(one, iteration, gradient, finish)


def _updates(
    case: Case, configurations: Configurations, gradient: Gradient, window: Window | None
) -> tuple[Quantity | None, MiniBatch, Staleness, tuple[PlanWarning, ...]]:
    """Return the period of the update thread, what lies behind an update, and what to say of both."""
    if case.pricer.mode == "sync":
        samples = case.one.samples_per_update
        low, high = (0, samples) if window is None else window("sync")
        inside = None if window is None else float(low <= samples <= high)
        return None, MiniBatch(samples, 0.0, samples, samples, inside), Staleness(0.0, 0.0, {0: 1.0}), ()
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
    return update, mini_batch, staleness, notes


def _check_bounds(value: float, dimension: str, what: str, unit: str) -> None:
    """Refuse a figure that nobody believes: coefficients of a calibration may be of any size."""
    least, most = BOUNDS[dimension]
    if not least <= value <= most:
        rule, remedy = f"{what} must be from {least:g} to {most:g} {unit}", "; check the calibrations of the answer"
        raise CoverageError(Refusal("beyond_belief", rule, what, f"{value:.3g} {unit}", remedy))


def score_calibrations(sources: Sources, overheads: Overheads, *, is_unseen: bool) -> tuple[Calibration, ...]:
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


def _epoch_steps(pricer: Pricer, samples_per_step: int) -> float | None:
    dataset = pricer.sources.problem.dataset
    return None if dataset is None else dataset.samples / samples_per_step


def _times_steps(period: Quantity, steps: float | None) -> Quantity | None:
    if steps is None:
        return None
    low, high = (None if end is None else end * steps for end in (period.low, period.high))
    return replace(period, value=period.value * steps, low=low, high=high)


def _memory(pricer: Pricer, sub_batch: IntArray, mode: str) -> list[dict[str, float]]:
    """Return bytes by kind, in all and that there are, of each sub-batch."""
    sizes = pricer.compute.memory(sub_batch, mode)
    columns = {name: getattr(sizes, name).tolist() for name in (*MEMORY_KINDS, "total")}
    capacity = {"capacity": pricer.sources.accelerator.memory_bytes}
    return [dict(zip(columns, values, strict=True)) | capacity for values in zip(*columns.values(), strict=True)]


def _bottleneck(terms: tuple[Term, ...], thread: str) -> str:
    """Return the term with the largest share of the thread that sets the throughput; the first of equals."""
    return max((term for term in terms if term.thread == thread), key=lambda term: term.share).name
