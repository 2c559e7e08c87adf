"""Predictions with every field: terms, distributions, memory, intervals and warnings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.calibration import ORIGINS, Calibration
from planner.domain.configuration import Configuration, Configurations
from planner.domain.kernels import MemoryBytes
from planner.domain.prediction import MiniBatch, Prediction, Quantity, Staleness, Term
from planner.domain.provenance import Provenance
from planner.steps.asynchronous import Asynchrony
from planner.steps.gradients import gpu_gradient, step_gradient, update_gradient
from planner.steps.intervals import Gradient, kind_of, quantity, reciprocal, score_of
from planner.steps.price import AsyncTimes, Pricer, SyncTimes, asynchrony_of, row_of
from planner.steps.sources import Source
from planner.steps.stages import Stage, kernel_shares, stages_of
from planner.steps.warnings import empty_updates, own_layers, warnings_of, window_missed

__all__ = ["Described", "described"]

Window = Callable[[str], tuple[float, float]]
Row = tuple[str, float, float, "Origin"]
"""A term's name, seconds, exposed seconds and origin."""
CASES = 64
"""Sub-batches looked at in detail at once; bounds memory at some 50 MB."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What serves a term, and whether that extrapolates."""

    sources: tuple[Source, ...]
    extrapolated: bool = False

    @property
    def text(self) -> str:
        """Origins in the order of ORIGINS, joined by plus signs; ``none`` for a term that takes no time."""
        found = {source.origin for source in self.sources}
        return "+".join(origin for origin in ORIGINS if origin in found) or "none"

    @property
    def calibrations(self) -> str:
        """Names of the calibrations."""
        return ", ".join(dict.fromkeys(one.name for one in self.provenance if one.name))

    @property
    def provenance(self) -> tuple[Provenance, ...]:
        """Where what serves it comes from, each once."""
        return tuple(dict.fromkeys(source.provenance for source in self.sources))


@dataclass(frozen=True, slots=True)
class _Case:
    """One configuration with what it shares with others of its sub-batch."""

    pricer: Pricer
    one: Configuration
    stages: Mapping[str, Stage]
    memory_bytes: Mapping[str, float]
    window: Window | None

    @property
    def kernel_shares(self) -> dict[str, float]:
        """Shares of the kernel time by how it is found."""
        return kernel_shares(self.stages, self.one.accumulation_steps)


@dataclass(frozen=True, slots=True)
class Described:
    """A prediction, and the gradient of its ``iteration_s``."""

    prediction: Prediction
    gradient: Gradient


def described(pricer: Pricer, chosen: Configurations, window: Window | None) -> list[Described]:
    """Return the predictions of configurations of one precision and mode, whose cases are tabled."""
    mode = chosen.one(0).mode
    times = pricer.asynchronous(chosen) if mode == "async" else pricer.synchronous(chosen)
    found: dict[int, Described] = {}
    sub_batches, which = np.unique(chosen.sub_batch, return_inverse=True)
    for first in range(0, sub_batches.size, CASES):
        cases = sub_batches[first : first + CASES]
        stages, memory = stages_of(pricer, cases), _memory(pricer, cases, mode)
        for i in np.flatnonzero((which >= first) & (which < first + CASES)).tolist():
            place = int(which[i]) - first
            case = _Case(pricer, chosen.one(i), stages[place], memory[place], window)
            row = row_of(times, i)
            if isinstance(row, SyncTimes):
                found[i] = _synchronous(case, row)
            else:
                found[i] = _asynchronous(case, row, asynchrony_of(chosen.take(slice(i, i + 1)), row))
    return [found[i] for i in range(chosen.size)]


def _synchronous(case: _Case, times: SyncTimes) -> Described:
    pricer, one = case.pricer, case.one
    mini_batch = one.samples_per_update
    gradient = step_gradient(pricer, one, times, case.stages)
    spread = gradient.spread()
    doubt = spread.shares if spread else {}
    terms, used = _threads({"step": _step_rows(case, times)})
    kind = kind_of(one, terms, on_specified=pricer.sources.is_specified(one.precision))
    score = score_of(kind, _scored(pricer, one))
    iteration = quantity(float(times.iteration_s[0]), spread, score)
    steps = _epoch_steps(pricer, mini_batch)
    inside = None if case.window is None else float(case.window("sync")[0] <= mini_batch <= case.window("sync")[1])
    first_iteration = float(times.first_iteration_s[0])
    if first_iteration != iteration.value:
        spread = step_gradient(pricer, one, times, case.stages, first_epoch=True).spread()
    prediction = Prediction(
        configuration=one,
        iteration_s=iteration,
        update_s=None,
        epoch_s=_scaled(iteration, steps),
        first_epoch_s=_scaled(quantity(first_iteration, spread, score), steps),
        samples_per_s=reciprocal(iteration, mini_batch),
        mini_batch=MiniBatch(mini_batch, 0.0, mini_batch, mini_batch, inside),
        staleness=Staleness(0.0, 0.0, {0: 1.0}),
        memory_bytes=case.memory_bytes,
        terms=terms,
        bottleneck=_bottleneck(terms, "step"),
        warnings=(
            *warnings_of(
                pricer.sources,
                one,
                terms,
                used,
                (float(times.memory_bytes[0]), mini_batch),
                interval_basis=iteration.interval_basis,
            ),
            *own_layers(case.kernel_shares, pricer.sources.problem.network.name),
        ),
        kind=kind,
        kernel_shares=case.kernel_shares,
        doubt=doubt,
    )
    return Described(prediction, gradient)


def _scored(pricer: Pricer, one: Configuration) -> tuple[Calibration, ...]:
    """Return the calibrations whose conformal scores hold, in order.

    Scores of an accelerator are those of runs whose accelerator and cluster took part in the fit. Where overheads are
    pooled, or messages go over links that no run showed, those come first that were found without.
    """
    own, pooled = pricer.sources.for_accelerator, pricer.sources.pooled
    unseen_links = one.gpus > 1 and pricer.messages.source.origin == "specified"
    return (*pooled, *own) if pricer.compute.overheads.pooled or unseen_links else (*own, *pooled)


def _asynchronous(case: _Case, times: AsyncTimes, statistics: Asynchrony) -> Described:
    pricer, one = case.pricer, case.one
    gradient = gpu_gradient(pricer, one, times, case.stages)
    spread = gradient.spread()
    period = quantity(float(times.gpu_s[0]), spread)
    terms, used = _threads({"gpu": _gpu_rows(case, times), "update": _update_rows(case, times)})
    samples = one.gpus * one.sub_batch
    steps = _epoch_steps(pricer, samples)
    first_gpu = float(times.first_gpu_s[0])
    is_alike = first_gpu == period.value
    first = gradient if is_alike else gpu_gradient(pricer, one, times, case.stages, first_epoch=True)
    mini_batch = _mini_batch(statistics, case.window)
    prediction = Prediction(
        configuration=one,
        iteration_s=period,
        update_s=quantity(float(times.update_s[0]), update_gradient(pricer, one, times, gradient).spread()),
        epoch_s=_scaled(period, steps),
        first_epoch_s=_scaled(quantity(first_gpu, first.spread()), steps),
        samples_per_s=reciprocal(period, samples),
        mini_batch=mini_batch,
        staleness=Staleness(
            float(statistics.staleness_mean[0]), float(statistics.staleness_std[0]), statistics.staleness_pmf(0)
        ),
        memory_bytes=case.memory_bytes,
        terms=terms,
        bottleneck=_bottleneck(terms, "gpu"),
        warnings=(
            *warnings_of(pricer.sources, one, terms, used, (float(times.memory_bytes[0]), mini_batch.mean)),
            *own_layers(case.kernel_shares, pricer.sources.problem.network.name),
            *empty_updates(float(statistics.empty_probability[0]), mini_batch.mean),
            *(() if case.window is None else window_missed(mini_batch, case.window("async"))),
        ),
        kernel_shares=case.kernel_shares,
        doubt=spread.shares if spread else {},
    )
    return Described(prediction, gradient)


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


def _scaled(period: Quantity, steps: float | None) -> Quantity | None:
    if steps is None:
        return None
    low, high = (None if end is None else end * steps for end in (period.low, period.high))
    return replace(period, value=period.value * steps, low=low, high=high)


def _memory(pricer: Pricer, sub_batch: IntArray, mode: str) -> list[dict[str, float]]:
    """Return bytes by kind, in all and that there are, of each sub-batch."""
    found = pricer.compute.memory(sub_batch, mode)
    columns = {f.name: getattr(found, f.name).tolist() for f in fields(MemoryBytes)} | {"total": found.total.tolist()}
    capacity = {"capacity": pricer.sources.accelerator.memory_bytes}
    return [dict(zip(columns, values, strict=True)) | capacity for values in zip(*columns.values(), strict=True)]


def _bottleneck(terms: tuple[Term, ...], thread: str) -> str:
    """Return the term with the largest share of the thread that sets the throughput; the first of equals."""
    return max((term for term in terms if term.thread == thread), key=lambda term: term.share).name


def _threads(rows_of: dict[str, list[Row]]) -> tuple[tuple[Term, ...], list[Source]]:
    """Return the terms of each thread, and everything that serves them."""
    terms: list[Term] = []
    used: list[Source] = []
    for thread, rows in rows_of.items():
        period = sum(exposed for _, _, exposed, _ in rows)
        for name, seconds, exposed, origin in rows:
            share = exposed / period if period > 0 else 0.0
            served = (origin.text, origin.calibrations, origin.extrapolated, origin.provenance)
            terms.append(Term(name, thread, seconds, exposed, share, *served))
            used.extend(origin.sources)
    return tuple(terms), used


def _row(name: str, seconds: float, exposed: float, source: Source | None) -> Row:
    return (name, seconds, exposed, Origin((source,) if source is not None and seconds > 0 else ()))


def _load_row(pricer: Pricer, seconds: float, exposed: float) -> Row:
    if seconds <= 0:
        return ("load_input", seconds, exposed, Origin(()))
    return ("load_input", seconds, exposed, Origin(pricer.input.used, pricer.input.extrapolates))


def _stage_row(stage: Stage, seconds: float, exposed: float) -> Row:
    return (stage.name, seconds, exposed, Origin(stage.sources, stage.extrapolated))


def _backward_row(case: _Case, seconds: float, exposed: float) -> Row:
    """Return the row of all backward passes; with accumulation the first differs from the others."""
    passes = ("backward", "accumulating") if case.one.accumulation_steps > 1 else ("backward",)
    sources = {id(source): source for name in passes for source in case.stages[name].sources}
    origin = Origin(tuple(sources.values()), any(case.stages[name].extrapolated for name in passes))
    return ("backward", seconds, exposed, origin)


def _step_rows(case: _Case, times: SyncTimes) -> list[Row]:
    """Return the terms of a synchronous step; the longer of prefetched input and work is exposed, the other hidden."""
    pricer, one, stages = case.pricer, case.one, case.stages
    sources = pricer.sources
    load, h2d, forward, backward, all_reduce, exposed, update, wait, iteration = (
        float(getattr(times, name)[0])
        for name in ("load_s", "host_to_device_s", "forward_s", "backward_s", "all_reduce_s", "exposed_s", "update_s",
                     "replica_wait_s", "iteration_s")
    )  # fmt: skip
    work = h2d + forward + backward + exposed + update + wait
    adds = sources.problem.settings.strategy == "no-overlap"
    shown_load, shown = (load, 1.0) if adds else (0.0, 1.0) if work >= load else (iteration, 0.0)
    reduce_source = pricer.messages.source if one.gpus > 1 else None
    rows = [
        _load_row(pricer, load, shown_load),
        _row("host_to_device", h2d, h2d * shown, sources.host_to_device),
        _stage_row(stages["forward"], forward, forward * shown),
        _backward_row(case, backward, backward * shown),
        _row("all_reduce", all_reduce, exposed * shown, reduce_source),
        _stage_row(stages["update"], update, update * shown),
    ]
    if reduce_source is not None:
        outside = pricer.messages.extrapolates(one.nodes, one.gpus_per_node)
        rows[4] = ("all_reduce", all_reduce, exposed * shown, Origin((reduce_source,), outside))
    if wait > 0:
        rows.append(_row("replica_wait", wait, wait * shown, pricer.compute.overheads.source))
    return rows


def _gpu_rows(case: _Case, times: AsyncTimes) -> list[Row]:
    sources, stages = case.pricer.sources, case.stages
    load, h2d, forward, backward, gradient = (
        float(getattr(times, name)[0])
        for name in ("load_s", "host_to_device_s", "forward_s", "backward_s", "update_gradient_s")
    )
    return [
        _load_row(case.pricer, load, load),
        _row("host_to_device", h2d, h2d, sources.host_to_device),
        _stage_row(stages["forward"], forward, forward),
        _stage_row(stages["backward"], backward, backward),
        _row("update_gradient", gradient, gradient, sources.host("update_gradient")),
    ]


def _update_rows(case: _Case, times: AsyncTimes) -> list[Row]:
    sources = case.pricer.sources
    summing, all_reduce, weights = (
        float(getattr(times, name)[0]) for name in ("sum_gradient_s", "all_reduce_s", "update_weights_s")
    )
    return [
        _row("sum_gradient", summing, summing, sources.host("sum_gradient")),
        _row("all_reduce", all_reduce, all_reduce, sources.host_all_reduce if case.one.nodes > 1 else None),
        _row("update_weights", weights, weights, sources.host("update_weights")),
    ]
