"""Gradients of the periods of one configuration, along the path that decides each.

See :mod:`planner.steps.intervals`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import Configuration
from planner.steps.epoch import InputPart
from planner.steps.intervals import Gradient
from planner.steps.messages import host_gradient
from planner.steps.price import AsyncTimes, Pricer, SyncTimes
from planner.steps.sources import Source
from planner.steps.stages import Stage

__all__ = ["gpu_gradient", "step_gradient", "update_gradient"]


def step_gradient(
    pricer: Pricer, one: Configuration, times: SyncTimes, stages: Mapping[str, Stage], *, first_epoch: bool = False
) -> Gradient:
    """Return the gradient of a synchronous iteration."""
    gradient, steps = Gradient(), one.accumulation_steps
    adds = pricer.sources.problem.settings.strategy == "no-overlap"
    load, iteration = (
        float((first if first_epoch else later)[0])
        for first, later in ((times.first_load_s, times.load_s), (times.first_iteration_s, times.iteration_s))
    )
    is_input_bound = not adds and load >= iteration
    if adds or is_input_bound:
        parts = pricer.input.parts(
            one.sub_batch * steps, one.gpus_per_node, one.nodes, first_epoch=first_epoch, alone=False
        )
        _add_load(gradient, parts, load)
    if is_input_bound:
        return gradient
    is_exposed = one.gpus > 1 and float(times.exposed_s[0]) > 0
    passes = {"forward": steps, "backward": 1, "accumulating": steps - 1, "update": 1}
    _add_host_to_device(gradient, pricer, one.sub_batch, steps)
    sent, first_slot = (pricer.messages.slot.size, -1)
    if is_exposed and not adds:
        sent, first_slot = _path(pricer, one)
    last_pass = "accumulating" if steps > 1 else "backward"
    for name, count in passes.items():
        weight = np.full(pricer.compute.slots.layer.size + 1, float(count))
        if name == last_pass:
            weight[: first_slot + 1] -= 1.0
        if one.gpus > 1:
            weight += count * pricer.compute.overheads.replica_wait
        _add_stage(gradient, stages[name], pricer.compute.program.gathered(weight))
    if is_exposed:
        slopes, seconds = pricer.messages.gradient(one.nodes, one.gpus_per_node, sent)
        factor = _multiplier(pricer, "all_reduce", one.nodes)
        gradient.add_vector(pricer.messages.source.entry, slopes * factor, seconds * factor)
    return gradient


def _path(pricer: Pricer, one: Configuration) -> tuple[int, int]:
    """Return how many messages, and before which segment backward, lie on the path that decides a step."""
    case = pricer.compute.cases.rows(np.array([one.sub_batch]))[0]
    ready = pricer.compute.table.ready_s[case, int(one.accumulation_steps > 1)]
    row = pricer.messages.cases.rows(np.array([one.nodes]), np.array([one.gpus_per_node]))[0]
    slot = pricer.messages.slot
    message = int(np.argmax(ready[slot] + pricer.messages.prefix_s[row]))
    return message + 1, int(slot[message])


def gpu_gradient(
    pricer: Pricer, one: Configuration, times: AsyncTimes, stages: Mapping[str, Stage], *, first_epoch: bool = False
) -> Gradient:
    """Return the gradient of the GPU thread's period."""
    gradient = Gradient()
    period = float((times.first_gpu_s if first_epoch else times.gpu_s)[0])
    rest = float(times.gpu_s[0] - times.load_s[0])
    ends = (np.array([n]) for n in (one.sub_batch, one.gpus_per_node, one.nodes))
    load = pricer.input.times(*ends, first_epoch=first_epoch)
    is_input_bound = float(load.node_s[0]) > rest + float(load.alone_s[0])
    parts = pricer.input.parts(
        one.sub_batch, one.gpus_per_node, one.nodes, first_epoch=first_epoch, alone=not is_input_bound
    )
    if is_input_bound:
        _add_load(gradient, parts, period)
        return gradient
    _add_load(gradient, parts, float(load.alone_s[0]))
    _add_host_to_device(gradient, pricer, one.sub_batch, 1)
    for name in ("forward", "backward"):
        _add_stage(gradient, stages[name], pricer.compute.program.repeats)
    _add_host(gradient, pricer, "update_gradient", 1.0)
    return gradient


def update_gradient(pricer: Pricer, one: Configuration, times: AsyncTimes, of_gpu: Gradient) -> Gradient:
    """Return the gradient of the update thread's period, given that of the GPU thread's.

    Where q < 1, T = C / (1 - s·N / T_GPU): deviations of C and s grow by T / C, and those of T_GPU enter with the
    opposite sign: the longer it is, the fewer gradients are summed.
    """
    gradient, update, gpu = Gradient(), float(times.update_s[0]), float(times.gpu_s[0])
    growth = 1.0
    if update < gpu:
        summing = float(times.sum_gradient_s[0]) - pricer.host_s("sum_gradient", 0.0)
        growth = update / (update - summing)
        gradient.add_scaled(of_gpu, -growth * summing / gpu)
    _add_host(gradient, pricer, "sum_gradient", growth, float(times.deposited[0]))
    _add_host(gradient, pricer, "update_weights", growth)
    if one.nodes > 1:
        slopes, seconds = host_gradient(pricer.sources, pricer.parameters, one.nodes)
        factor = growth * _multiplier(pricer, "all_reduce", one.nodes)
        gradient.add_vector(pricer.sources.host_all_reduce.entry, slopes * factor, seconds * factor)
    return gradient


def _multiplier(pricer: Pricer, term: str, nodes: int = 1) -> float:
    return float(pricer.sources.problem.scenario.factor(term, pricer.compute.precision.name, nodes))


def _add_stage(gradient: Gradient, stage: Stage, by_segment: FloatArray | IntArray) -> None:
    """Add a stage, weighted by distinct segment."""
    for part in stage.parts:
        seconds = by_segment @ part.seconds
        if np.any(seconds):
            gradient.add_vector(part.entry, by_segment @ part.slopes, seconds)


def _add_host(gradient: Gradient, pricer: Pricer, kind: str, weight: float, buffers: float = 1.0) -> None:
    work = {"parameters": float(pricer.parameters), "buffers": buffers}
    gradient.add(pricer.sources.host(kind).entry, work, weight * _multiplier(pricer, kind))


def _add_load(gradient: Gradient, parts: Sequence[InputPart], seconds: float) -> None:
    """Add loading of samples, which takes ``seconds`` in all; 0 where there is none."""
    whole = sum(part.seconds for part in parts)
    if seconds == 0 or whole == 0:
        return
    scale = seconds / whole
    for part in parts:
        gradient.add_vector(part.source.entry, part.slopes * scale, part.seconds * scale)


def _add_host_to_device(gradient: Gradient, pricer: Pricer, sub_batch: int, steps: int) -> None:
    source: Source | None = pricer.sources.host_to_device
    if source is not None:
        work = {"bytes": pricer.compute.input_bytes * sub_batch}
        gradient.add(source.entry, work, steps * _multiplier(pricer, "host_to_device"))
