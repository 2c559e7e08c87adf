"""The stages of one compute case in detail: which calls, served by what, extrapolated or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.costs.terms import extrapolates
from planner.domain.kernels import KernelCalls
from planner.steps.compute import STAGES, call_times_s, call_work, composed_s, stage_of
from planner.steps.price import Pricer
from planner.steps.sources import Source

__all__ = ["EXTRAPOLATED_SHARE", "Stage", "stages_of"]

EXTRAPOLATED_SHARE = 0.05
"""A stage counts as extrapolated when calls outside their fit take more than this share of its GPU time."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Forward, backward or update of one sub-batch.

    Attributes
    ----------
    name : str
    calls : tuple of (KernelCalls, Source)
    sources : tuple of Source
        Those that take time, the framework's overheads last.
    extrapolated : bool
    host_s : float
        Of the framework.
    slope : float
        Derivative of the stage's time by its GPU time.
    """

    name: str
    calls: tuple[tuple[KernelCalls, Source], ...]
    sources: tuple[Source, ...]
    extrapolated: bool
    host_s: float
    slope: float


def stages_of(pricer: Pricer, sub_batch: int) -> dict[str, Stage]:
    """Return the stages of a sub-batch by name."""
    compute = pricer.compute
    by_stage: dict[str, list[tuple[KernelCalls, Source]]] = {stage: [] for stage in STAGES}
    for calls in compute.case(sub_batch):
        by_stage[stage_of(calls.direction)].append((calls, compute.source(calls)))
    return {stage: _stage(pricer, stage, tuple(pairs)) for stage, pairs in by_stage.items()}


def _stage(pricer: Pricer, name: str, pairs: tuple[tuple[KernelCalls, Source], ...]) -> Stage:
    compute, overheads = pricer.compute, pricer.sources.overheads
    used: dict[int, Source] = {}
    total = outside = 0.0
    for calls, source in pairs:
        times = call_times_s(source.entry, calls, compute.itemsize)[0]
        if times.any():
            used[id(source)] = source
        total += float(times.sum())
        is_outside = np.atleast_2d(extrapolates(source.entry, call_work(calls, compute.itemsize)))[0]
        outside += float(times @ np.broadcast_to(is_outside, times.shape))
    host = compute.host_s(name, sum(compute.hosted_calls(calls) for calls, _ in pairs))
    if host > 0 or overheads.kernel_scale != 1:
        used[id(overheads.source)] = overheads.source
    whole = float(composed_s(np.array([total]), host, overheads)[0])
    slope = 0.0
    if total > 0:
        scale, p = overheads.kernel_scale, overheads.exponent
        slope = scale * (scale * total / whole) ** (p - 1)
    return Stage(name, pairs, tuple(used.values()), outside > EXTRAPOLATED_SHARE * total, host, slope)
