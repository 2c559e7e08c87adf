"""The terms of one configuration: every task of a schedule with what serves it, and the gradients of periods.

A gradient is one with respect to the coefficients of all entries, along the path that decides the period
(:mod:`planner.steps.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.costs.terms import Work, evaluate
from planner.domain.arrays import FloatArray
from planner.domain.calibration import ORIGINS
from planner.domain.configuration import Configuration
from planner.domain.prediction import Term
from planner.domain.schedule import Task
from planner.sources.sources import Source
from planner.steps.intervals import Gradient, derivatives
from planner.steps.messages import host_gradient
from planner.steps.price import Pricer, Prices, deposited_gradients
from planner.steps.schedule import TimedSchedule
from planner.steps.stages import Part, Stage

__all__ = ["Case", "add_parts", "gradient_of", "term_of_sources", "terms_of", "update_gradient"]


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration, at a row of prices, and the stages of its sub-batch."""

    pricer: Pricer
    one: Configuration
    stages: Mapping[str, Stage]
    priced: Prices
    row: int
    in_first_epoch: bool = False

    def multiplier(self, term: str, nodes: int = 1) -> float:
        """Return by what the scenario multiplies a term."""
        scenario = self.pricer.sources.problem.scenario
        return float(scenario.factor(term, self.pricer.compute.precision.name, nodes))

    def message_path(self) -> tuple[FloatArray, int]:
        """Return the bytes of messages on the longest path, and how many segments before their gradients are off it."""
        messages, one = self.pricer.messages, self.one
        if not self.pricer.strategy.overlap:
            return messages.buffer_bytes, 0
        case = self.pricer.compute.cases.rows(np.array([one.sub_batch]))[0]
        ready = self.pricer.compute.table.ready_s[case, int(one.accumulation_steps > 1)]
        row = messages.cases.rows(np.array([one.nodes]), np.array([one.gpus_per_node]))[0]
        slot, sent_s = messages.slot, messages.prefix_s[row]
        if self.pricer.strategy.is_timed:
            slot = self.pricer.fusion(ready[None], one.nodes, one.gpus_per_node).slots(0)
            together = messages.together_s(one.nodes, one.gpus_per_node)
            sent_s = np.cumsum(together[slot, np.append(slot[1:], ready.size) - 1])
        last = int(np.argmax(ready[slot] + sent_s))
        return messages.bytes_of(slot)[: last + 1], int(slot[last]) + 1


@dataclass(frozen=True, slots=True)
class _Service:
    """What serves a task, whether that extrapolates, and one run of it by entry."""

    sources: tuple[Source, ...] = ()
    extrapolated: bool = False
    parts: Callable[[], Iterable[Part]] = tuple


def _part(source: Source, slopes: FloatArray, seconds: float, factor: float) -> Part:
    return Part(source.entry, factor * slopes[None], np.array([factor * seconds]))


def _input(case: Case, seconds: float, *, alone: bool) -> _Service:
    one, loads = case.one, case.pricer.input

    def parts() -> list[Part]:
        samples, first = one.sub_batch * one.accumulation_steps, case.in_first_epoch
        input_parts = loads.parts(samples, one.gpus_per_node, one.nodes, first_epoch=first, alone=alone)
        whole = sum(part.seconds for part in input_parts)
        return [_part(part.source, part.slopes, part.seconds, seconds / whole) for part in input_parts if whole]

    return _Service(loads.used, loads.extrapolates, parts)


def _call(case: Case, source: Source | None, term: str, work: Work) -> _Service:
    """Return what serves a term that is one call of an entry."""
    if source is None:
        return _Service()
    entry, factor = source.entry, case.multiplier(term)
    one = (source, derivatives(entry, work), float(evaluate(entry, work)))
    return _Service((source,), parts=lambda: [_part(*one, factor)])


def _host(case: Case, kind: str, buffers: float = 1.0) -> _Service:
    work = {"parameters": float(case.pricer.parameters), "buffers": buffers}
    return _call(case, case.pricer.sources.host(kind), kind, work)


def _sum(case: Case, _: float) -> _Service:
    gpu, update = (case.priced.threads[name].period_s[case.row] for name in ("gpu", "update"))
    return _host(case, "sum_gradient", float(deposited_gradients(update, gpu, case.one.gpus_per_node)))


def _messages(case: Case, _: float) -> _Service:
    messages, groups = case.pricer.messages, (case.one.nodes, case.one.gpus_per_node)

    def parts() -> list[Part]:
        slopes_and_sum = messages.gradient(*groups, case.message_path()[0])
        return [_part(messages.source, *slopes_and_sum, case.multiplier("all_reduce", case.one.nodes))]

    return _Service((messages.source,), messages.extrapolates(*groups), parts)


def _host_messages(case: Case, _: float) -> _Service:
    pricer, nodes = case.pricer, case.one.nodes
    source, factor = pricer.sources.host_all_reduce, case.multiplier("all_reduce", nodes)
    return _Service(
        (source,), parts=lambda: [_part(source, *host_gradient(pricer.sources, pricer.parameters, nodes), factor)]
    )


def _copy(case: Case, _: float) -> _Service:
    work = {"bytes": case.pricer.compute.input_bytes * case.one.sub_batch}
    return _call(case, case.pricer.sources.host_to_device, "host_to_device", work)


_SERVERS: Mapping[str, Callable[[Case, float], _Service]] = {
    "load_input": lambda case, seconds: _input(case, seconds, alone=case.one.mode == "async"),
    "load_node_input": lambda case, seconds: _input(case, seconds, alone=False),
    "host_to_device": _copy,
    "all_reduce": _messages,
    "replica_wait": lambda case, _: _Service((case.pricer.compute.overheads.source,)),
    "update_gradient": lambda case, _: _host(case, "update_gradient"),
    "sum_gradient": _sum,
    "host_all_reduce": _host_messages,
    "update_weights": lambda case, _: _host(case, "update_weights"),
}
"""Task -> what serves it in a configuration, where it takes so many seconds; stages serve those of their names."""


def _service(case: Case, task: Task, seconds: float) -> _Service:
    if task.name in case.stages:
        stage = case.stages[task.name]
        return _Service(stage.sources, stage.extrapolated, lambda: stage.parts)
    return _SERVERS[task.name](case, seconds) if seconds > 0 else _Service()


def terms_of(case: Case, thread: TimedSchedule) -> tuple[list[Term], list[Source]]:
    """Return the terms of a thread, and everything that serves them."""
    passes = np.array([case.one.accumulation_steps])
    rows: dict[str, tuple[float, float, dict[int, Source], bool]] = {}
    for task in thread.schedule.tasks:
        exposed_s = float(thread.exposed_s[task.name][case.row])
        seconds = exposed_s if task.is_paced else float(thread.seconds[task.name][case.row])
        if not task.count.of(passes).any() or (task.share_of and not seconds):
            continue
        service, term = _service(case, task, seconds), task.term or task.name
        seconds_before, exposed_before, sources, outside = rows.get(term, (0.0, 0.0, {}, False))
        sources |= {id(source): source for source in service.sources}
        rows[term] = (seconds_before + seconds, exposed_before + exposed_s, sources, outside or service.extrapolated)
    period = sum(exposed_s for _, exposed_s, *_ in rows.values())
    terms = [
        term_of_sources(
            name,
            thread.schedule.thread,
            (seconds, exposed_s, exposed_s / period if period > 0 else 0.0),
            sources.values(),
            extrapolated=outside,
        )
        for name, (seconds, exposed_s, sources, outside) in rows.items()
    ]
    return terms, [source for _, _, sources, _ in rows.values() for source in sources.values()]


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


def gradient_of(case: Case, thread: TimedSchedule) -> Gradient:
    """Return the gradient of a thread's period."""
    gradient, passes = Gradient(), np.array([case.one.accumulation_steps])
    overlaps: dict[str, tuple[int, float]] = {}  # stage -> segments that messages outlast instead, and by which slope
    slopes = {name: float(slope[case.row]) for name, slope in thread.slopes.items()}
    for task in thread.schedule.tasks:
        if task.each_after and slopes[task.name]:
            tasks = {one.name: one for one in thread.schedule.tasks}
            last = [name for name in task.each_after if tasks[name].count.of(passes).any()][-1]
            overlaps[last] = case.message_path()[1], slopes[task.name]
    for task in thread.schedule.tasks:
        seconds, slope = float(thread.seconds[task.name][case.row]), slopes[task.name]
        if not slope or not seconds or task.share_of:
            continue
        weight = np.full(1, slope * task.count.of(passes)[0])
        if task.name in case.stages:
            compute, (segments, less) = case.pricer.compute, overlaps.get(task.name, (0, 0.0))
            by_segment = np.repeat(weight, compute.slots.layer.size + 1)
            by_segment[:segments] -= less
            weight = compute.program.gather(by_segment)
        add_parts(gradient, _service(case, task, seconds).parts(), weight)
    return gradient


def add_parts(gradient: Gradient, parts: Iterable[Part], weight: FloatArray) -> None:
    """Add parts to a gradient, so many times each distinct segment, shape (D,)."""
    for part in parts:
        if np.any(seconds := weight @ part.seconds):
            gradient.add_vector(part.entry, weight @ part.slopes, seconds)


def update_gradient(case: Case, of_gpu: Gradient) -> Gradient:
    """Return the gradient of the update thread's period, given that of the GPU thread's.

    Where q < 1, T = C / (1 - s·N / T_GPU): deviations of C and s grow by T / C, and those of T_GPU enter with the
    opposite sign: the longer it is, the fewer gradients are summed.
    """
    thread, gradient, growth = case.priced.threads["update"], Gradient(), 1.0
    update, gpu = (float(case.priced.threads[name].period_s[case.row]) for name in ("update", "gpu"))
    if update < gpu:
        summing = float(thread.seconds["sum_gradient"][case.row]) - case.pricer.host_s("sum_gradient", 0.0)
        growth = update / (update - summing)
        gradient.add_scaled(of_gpu, -growth * summing / gpu)
    gradient.add_scaled(gradient_of(case, thread), growth)
    return gradient
