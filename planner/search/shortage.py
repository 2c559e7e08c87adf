"""What would make a network fit that fits in no way asked for: memory, other ways to split it, more nodes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.domain.configuration import Configuration, Configurations
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Loosening
from planner.search.explain import label
from planner.search.space import Limits, Space
from planner.search.split_space import HYBRID, SplitLimits, kinds_to_try
from planner.steps.split_price import plans_of
from planner.units import format_bytes
from planner.workload.least_memory import least_gpus, lowest_plans
from planner.workload.memory_rules import MemoryRules
from planner.workload.what_fits import Change, what_fits

__all__ = ["shortages"]

_OPTIONS = {
    "sequence parallelism": ("--sequence-parallel", "on"),
    "selective recompute": ("--recompute", "selective"),
    "full recompute": ("--recompute", "full"),
    "smaller sub-batch": ("--sub-batch", ""),
    "tensor degree in a node": ("--tensor", ""),
    "tensor degree beyond a node": ("--tensor", ""),
    "pipeline degree": ("--pipeline", ""),
    "context degree": ("--context", ""),
    "sharding 1": ("--sharding", "1"),
    "sharding 2": ("--sharding", "2"),
    "sharding 3": ("--sharding", "3"),
    "8-bit optimizer": ("--optimizer", "adam-8bit"),
    "optimizer on the host": ("--offload", "optimizer"),
    "activations on the host": ("--offload", "activations"),
    "more nodes": ("--nodes", ""),
}
"""Change -> the option that asks for it, and its value where that is a word."""


def shortages(request: SpaceRequest, limits: Limits, space: Space) -> tuple[Loosening, ...]:
    """Return what to change where every candidate that splits a network needs too much memory; none where some fit.

    Of the leanest candidate: the memory that it needs, in which stage, its largest parts and what is missing; then the
    single changes after which it fits (:mod:`planner.workload.what_fits`), and the fewest nodes on which some plan
    with the least memory does.
    """
    of = limits.split
    leanest = None if of is None else _leanest(of, space)
    if of is None or leanest is None:
        return ()
    one, rules = leanest, of.rules(leanest.precision)
    return (*_memory(of, one, rules, limits), *_nodes(of, request, rules, limits))


def _leanest(of: SplitLimits, space: Space) -> Configuration | None:
    """Return the candidate that needs least; None where one fits or none is split."""
    best: tuple[float, Configuration] | None = None
    for chunk in space.chunks():
        rows = chunk.rows
        rows = rows.take(np.broadcast_to(rows.is_split, rows.shape))
        if rows.size == 0:
            continue
        need = of.needed_bytes(rows)
        at = int(np.argmin(need))
        if best is None or need[at] < best[0]:
            best = float(need[at]), rows.one(at)
    return None if best is None or best[0] <= of.capacity_bytes else best[1]


def _memory(of: SplitLimits, one: Configuration, rules: MemoryRules, limits: Limits) -> Iterator[Loosening]:
    transformer = of.network.transformer
    if transformer is None:
        return
    plan = plans_of(Configurations.of([one])).row(0)
    short = what_fits(transformer, plan, rules, of.capacity_bytes, framework=of.framework, most_nodes=limits.nodes)
    need = of.capacity_bytes + short.missing_bytes
    largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in short.largest)
    where = f" on stage {short.stage}" if one.pipeline_parallel > 1 else ""
    gib = np.ceil(need / 2**30 * 1000) / 1000
    message = (
        f"memory {gib:g}GiB: the leanest plan, {label(one)}, needs {format_bytes(need)} on a GPU{where} ({largest}), "
        f"{format_bytes(short.missing_bytes)} more than there is"
    )
    yield Loosening((("memory", f"{gib:g}GiB"),), message)
    for change in (one for one in short.changes if one.fits):
        values = _given(change, of)
        words = " ".join(values[0])
        message = f"{words}: {change.name} saves {format_bytes(change.saved_bytes)} of it, after which it fits"
        yield Loosening(values, message)


def _given(change: Change, of: SplitLimits) -> tuple[tuple[str, str], ...]:
    """Return a change as an option and its value."""
    if change.name == "fused attention":
        return (("--network", f"{of.network.name} with attention=fused"),)
    if change.name == "fused loss":
        return (("loss", "fused, as the framework allows"),)
    option, value = _OPTIONS[change.name]
    return ((option, value or str(change.value)),)


def _nodes(of: SplitLimits, request: SpaceRequest, rules: MemoryRules, limits: Limits) -> Iterator[Loosening]:
    transformer = of.network.transformer
    if transformer is None or HYBRID not in kinds_to_try(request, of.network, of.framework):
        return
    plans = lowest_plans(transformer, limits.gpus_per_node, tensor_most=limits.gpus_per_node)
    fewest = least_gpus(transformer, plans, rules, of.capacity_bytes)
    if fewest is None:
        return
    nodes = -(-fewest // limits.gpus_per_node)
    if nodes > max(request["nodes"] or (limits.nodes,)):
        words = f"{nodes} nodes x {limits.gpus_per_node} GPUs are the fewest on which some lawful split fits"
        yield Loosening((("--nodes", str(nodes)),), f"--nodes {nodes}: {words}")
