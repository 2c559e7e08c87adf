"""The stages of compute cases in detail: what serves them, extrapolated or not, and what an interval needs of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.costs.features import Work
from planner.costs.measured_calls import WHEREABOUTS, whereabouts
from planner.costs.terms import evaluate, extrapolates, features_of
from planner.domain.arrays import FloatArray, IntArray, distinct_values
from planner.domain.calibration import Entry
from planner.domain.kernels import MATRIX_KINDS, KernelCalls
from planner.domain.prediction import LOOKUPS
from planner.domain.provenance import EXACT, SCALING_CURVE
from planner.sources.overheads import Overheads
from planner.sources.source import Source
from planner.steps.compute import PASSES, RankCompute, call_work, term_of
from planner.steps.host_and_gpu import STAGES, TOGETHER, beside_s, composed_s, composed_slopes
from planner.steps.intervals import derivatives, doubt_factor, stated_deviation
from planner.steps.step_costs import StepCosts, units_s
from planner.workload.program import Program

EXTRAPOLATED_SHARE = 0.05
"""A stage counts as extrapolated when calls outside their fit take more than this share of its GPU time."""
CURVE_LOOKUPS = WHEREABOUTS[1:]
"""Of measured calls at other sub-batches than theirs."""


class Part(NamedTuple):
    """What one entry takes of a stage, by distinct segment of the backward pass.

    Attributes
    ----------
    slopes : ndarray of float, shape (D, p)
        Derivatives of the stage's time by the entry's coefficients; p = 0 where the entry's deviation is stated.
    seconds : ndarray of float, shape (D,) or (D, q)
        That the entry's deviation counts for: more than it takes where calls lie beyond what was timed. A framework's
        overheads have q = 3: products, other kernels and host time are unsure for reasons of their own.
    """

    entry: Entry
    slopes: FloatArray
    seconds: FloatArray


class Stage(NamedTuple):
    """A stage of one sub-batch.

    Attributes
    ----------
    name : one of STAGES
    sources : those that take time, the framework's overheads last
    kernels_s : what its kernels take by themselves [s]
    lookups_s : the same by how it is found, one of LOOKUPS each [s]
    seconds : what it takes, kernels and host together [s]
    """

    name: str
    sources: tuple[Source, ...]
    extrapolated: bool
    parts: tuple[Part, ...]
    kernels_s: float = 0.0
    lookups_s: tuple[float, ...] = (0.0,) * len(LOOKUPS)
    seconds: float = 0.0


@dataclass(frozen=True)
class TimedCalls:
    """Calls of s cases, what serves them, and their work; what stages share is worked out once."""

    calls: KernelCalls
    source: Source
    work: Work
    program: Program
    cases: int

    def take(self, rows: IntArray) -> TimedCalls:
        """Return some of the cases."""
        if rows.size == self.cases:
            return self
        some = replace(self, cases=rows.size)
        for name in ("times_s", "by_segment", "slopes", "unsure_s", "outside_s", "lookups_s"):
            some.__dict__[name] = getattr(self, name)[rows]
        return some

    @cached_property
    def features(self) -> FloatArray:
        """Φ of the calls, as of :func:`planner.costs.terms.features_of`."""
        return features_of(self.source.entry, self.work)

    @cached_property
    def times_s(self) -> FloatArray:
        """Times [s], shape (s, k)."""
        times = evaluate(self.source.entry, self.work, self.features)
        return np.broadcast_to(times, (self.cases, self.calls.layer.size)) * self.calls.count

    @cached_property
    def by_segment(self) -> FloatArray:
        """Times of distinct segments [s], shape (s, D)."""
        return self.program.by_segment(self.times_s, self.calls.layer)

    @cached_property
    def slopes(self) -> FloatArray:
        """Derivatives of these by the entry's coefficients, shape (s, D, p); p = 0 where the deviation is stated."""
        entry, shape = self.source.entry, self.times_s.shape
        if stated_deviation(entry) is not None:
            return np.zeros((shape[0], self.program.repeats.size, 0))
        rows = derivatives(entry, self.work, self.features) * self.calls.count[..., None]
        return self.program.by_segment(np.broadcast_to(rows, (*shape, rows.shape[-1])), self.calls.layer)

    @cached_property
    def unsure_s(self) -> FloatArray:
        """Seconds that the entry's deviation counts for, shape (s, D)."""
        factor = doubt_factor(self.source.entry, self.work, self.features)
        return self.program.by_segment(self.times_s * factor, self.calls.layer)

    @cached_property
    def outside_s(self) -> FloatArray:
        """Seconds of calls that lie outside the fit, shape (s,)."""
        entry = self.source.entry
        is_outside = extrapolates(entry, self.work, self.features) if entry.ranges else np.zeros(())
        seconds: FloatArray = (self.times_s * is_outside).sum(axis=1)
        return seconds

    @cached_property
    def lookups_s(self) -> FloatArray:
        """Times by how calls are found, shape (s, len(LOOKUPS)); specified stays so when scaled."""
        places = list(LOOKUPS)
        place: IntArray | int
        if self.source.origin == "specified":
            place = places.index("specification")
        elif self.source.provenance.device:
            place = places.index("sibling")
        elif self.calls.looked_up:
            here = whereabouts(self.work, self.source.entry.settings)
            place = np.array([places.index(name) for name in WHEREABOUTS])[here]
        else:
            place = places.index("regression")
        return np.stack([(self.times_s * (place == at)).sum(axis=1) for at in range(len(places))], axis=1)

    def sources_of(self, case: int) -> Iterator[Source]:
        """Yield what serves the calls of a sub-batch: measured ones, at another than theirs, their scaling curves."""
        source, seconds = self.source, self.lookups_s[case]
        on_curve_s = sum(seconds[at] for at, name in enumerate(LOOKUPS) if name in CURVE_LOOKUPS)
        if source.provenance.kind != EXACT or on_curve_s < seconds.sum():
            yield source
        if source.provenance.kind == EXACT and on_curve_s > 0:
            yield replace(source, provenance=replace(source.provenance, kind=SCALING_CURVE))


def kernel_shares(stages: Mapping[str, Stage], accumulation_steps: int) -> dict[str, float]:
    """Return the shares of the kernel time of a step by how it is found, one of LOOKUPS each."""
    times = {"forward": accumulation_steps, "backward": 1, "accumulating": accumulation_steps - 1, "update": 1}
    whole = sum(stages[name].kernels_s * count for name, count in times.items())
    return {
        lookup: sum(stages[name].lookups_s[at] * count for name, count in times.items()) / whole if whole > 0 else 0.0
        for at, lookup in enumerate(LOOKUPS)
    }


class Composed(NamedTuple):
    """What a stage of s cases composes with.

    Attributes
    ----------
    held : ndarray of float, shape (D,); how many segments of each kind are in it
    gpu_s, host_s, own_host_s : ndarray of float, shape (s,)
        Kernels, scaled, and host time of all stages that compose with it [s], and its own host time.
    factor : by what a scenario multiplies it
    """

    held: FloatArray
    gpu_s: FloatArray
    host_s: FloatArray
    own_host_s: FloatArray
    factor: float


class Held(NamedTuple):
    """What a stage of a plan holds.

    ``rank``: in the table of compute; ``units``, ``again``: how many of each distinct unit it has, and may compute
    again as ``recompute`` says, shape (U,).
    """

    rank: int
    sub_batch: int
    units: FloatArray
    again: FloatArray
    recompute: str = "none"


def stages_of(costs: StepCosts, every: Sequence[Held]) -> list[dict[str, Stage]]:
    """Return the passes over each of some stages by name; those that differ in the sub-batch alone are one look."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, one in enumerate(every):
        alike.setdefault((one.rank, one.units.tobytes(), one.again.tobytes(), one.recompute), []).append(place)
    sub_batches = {
        rank: distinct_values(np.array([one.sub_batch for one in every if one.rank == rank]))
        for rank in {one.rank for one in every}
    }
    timed = {rank: timed_calls(costs.compute.ranks[rank], some) for rank, some in sub_batches.items()}
    unit_s, found = costs.of_rows(units_s), dict[int, dict[str, Stage]]()
    for places in alike.values():
        one = every[places[0]]
        asked = np.array([every[place].sub_batch for place in places])
        own = distinct_values(asked)
        which = np.searchsorted(own, asked)
        row = costs.compute.cases.rows(np.full(own.shape, one.rank), own)
        sums = [_of_units(each[row], one) for each in unit_s]
        gpu_s, host_s = (beside_s(each, TOGETHER[costs.mode]) for each in sums)
        at = np.searchsorted(sub_batches[one.rank], own)
        held: FloatArray = one.units @ costs.compute.ranks[one.rank].units.segments
        of_cases: list[dict[str, Stage]] = [{} for _ in own]
        for number, name in enumerate(STAGES):
            factor = float(costs.sources.problem.scenario.factor(term_of(name), costs.precision))
            of = Composed(held, gpu_s[:, number], host_s[:, number], sums[1][:, number], factor)
            stages = composed_stages(costs.overheads, name, [each.take(at) for each in timed[one.rank][name]], of)
            for case, stage in zip(of_cases, stages, strict=True):
                case[name] = stage
        found |= {place: of_cases[case] for place, case in zip(places, which.tolist(), strict=True)}
    return [found[place] for place in range(len(every))]


def _of_units(unit_s: FloatArray, one: Held) -> FloatArray:
    """Return what each of WITH_RECOMPUTE takes by itself [s], shape (s, 5), of times by pass and unit, (s, P, U)."""
    repeated = {"full": "forward", "selective": "attention"}.get(one.recompute)
    of_stages = [unit_s[:, PASSES.index(name)] @ one.units for name in STAGES]
    again = unit_s[:, PASSES.index(repeated)] @ one.again if repeated else np.zeros(len(unit_s))
    return np.stack([*of_stages, again], axis=-1)


def timed_calls(compute: RankCompute, sub_batch: IntArray) -> dict[str, list[TimedCalls]]:
    """Return the calls of sub-batches by stage; those that stages share are one."""
    by_stage = compute.calls_with_sources(sub_batch)
    groups: dict[int, TimedCalls] = {}
    for calls, source in (served for name in STAGES for served in by_stage[name]):
        if id(calls) not in groups:
            work = call_work(calls, compute.itemsize)
            groups[id(calls)] = TimedCalls(calls, source, work, compute.program, sub_batch.size)
    return {name: [groups[id(calls)] for calls, _ in by_stage[name]] for name in STAGES}


def composed_stages(overheads: Overheads, name: str, groups: list[TimedCalls], of: Composed) -> list[Stage]:
    """Return one stage of every case, of calls of a whole rank."""
    cases = of.gpu_s.size
    total, outside, lookups = np.zeros(cases), np.zeros(cases), np.zeros((cases, len(LOOKUPS)))
    sources: list[dict[tuple[int, str], Source]] = [{} for _ in range(cases)]
    for group in groups:
        total += group.times_s.sum(axis=1)
        lookups += group.lookups_s
        outside += group.outside_s
        for case in np.flatnonzero(group.times_s.any(axis=1)).tolist():
            sources[case] |= {(id(group.source), one.provenance.kind): one for one in group.sources_of(case)}
    if _adds(overheads, of):
        for of_case in sources:
            of_case[id(overheads.source), overheads.source.provenance.kind] = overheads.source
    seconds, parts = _parts(overheads, groups, of)
    extrapolated = outside > EXTRAPOLATED_SHARE * total
    return [
        Stage(
            name,
            tuple(sources[i].values()),
            bool(extrapolated[i]),
            parts[i],
            float(total[i]),
            tuple(lookups[i].tolist()),
            float(seconds[i]),
        )
        for i in range(cases)
    ]


def _adds(overheads: Overheads, of: Composed) -> bool:
    return bool(np.any(of.host_s > 0)) or not overheads.leaves_kernels


def _parts(overheads: Overheads, groups: list[TimedCalls], of: Composed) -> tuple[FloatArray, list[tuple[Part, ...]]]:
    """Return what a stage takes of every case, and its parts; the error of overheads is that of whole stages.

    Of assumed overheads it is that of the host time, and apart from it that of kernels whose own deviation is known:
    a stated one is of whole steps.
    """
    held, factor = of.held, of.factor
    gpu_s, measured_s, matrix_s = np.zeros((3, of.gpu_s.size, held.size))
    for group in groups:
        seconds = overheads.scale_of(group.calls.kind) * group.by_segment
        gpu_s += seconds
        if group.calls.kind in MATRIX_KINDS:
            matrix_s += seconds
        if stated_deviation(group.source.entry) is None:
            measured_s += seconds
    total, has_gpu = gpu_s @ held, of.gpu_s > 0
    whole = composed_s(of.gpu_s, of.host_s, overheads.exponent)
    of_host = np.divide(of.own_host_s, of.host_s, out=np.zeros_like(of.host_s), where=of.host_s > 0)
    whole = whole * np.where(has_gpu, total / np.where(has_gpu, of.gpu_s, 1.0), of_host)
    share, _ = composed_slopes(of.gpu_s, of.host_s, overheads.exponent)
    parts: dict[int, tuple[Entry, FloatArray, FloatArray]] = {}
    for group in groups:
        entry = group.source.entry
        slope = factor * overheads.scale_of(group.calls.kind) * share
        _, slopes, before = parts.get(id(entry), (entry, 0.0, 0.0))
        seconds = before + group.unsure_s * slope[:, None]
        parts[id(entry)] = (entry, slopes + group.slopes * slope[:, None, None], seconds)
    if _adds(overheads, of):
        entry = overheads.source.entry
        shares = np.where(total > 0, gpu_s.T, 1.0) / np.where(total > 0, total, held.sum())
        on_gpu = np.zeros((total.size, 2))
        if not overheads.leaves_kernels:
            products = share * (matrix_s @ held)
            on_gpu = np.stack([products, share * total - products], axis=1)
        overheads_s = np.column_stack([on_gpu, np.maximum(whole - share * total, 0.0)])
        seconds = factor * shares.T[:, :, None] * overheads_s[:, None, :]
        parts[id(entry)] = (entry, np.zeros((*seconds.shape[:2], len(entry.coefficients))), seconds)
    if overheads.scale_doubt is not None:
        seconds = factor * measured_s * share[:, None]
        parts[id(overheads.scale_doubt)] = (overheads.scale_doubt, np.zeros((*seconds.shape, 0)), seconds)
    of_cases = [
        tuple(Part(entry, slopes[case], seconds[case]) for entry, slopes, seconds in parts.values())
        for case in range(total.size)
    ]
    return factor * whole, of_cases
