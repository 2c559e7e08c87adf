"""What plans lack that need too much memory: how much, where, and the single changes after which they fit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.domain.configuration import Configuration, Configurations
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Loosening
from planner.search.bases import HYBRID, SplitLimits, kinds_to_try
from planner.search.explain import label
from planner.search.space import Limits, Space
from planner.units import format_bytes
from planner.workload.memory import Memory
from planner.workload.program import block_starts
from planner.workload.what_fits import Change, least_gpus, lowest_plans, what_fits

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
    ledger = of.ledger(leanest.precision)
    return (*_memory(of, leanest, ledger, limits), *_nodes(of, request, ledger, limits))


def _leanest(of: SplitLimits, space: Space) -> Configuration | None:
    """Return the candidate that needs least; None where one fits or none is split."""
    best: tuple[float, Configuration] | None = None
    split = (some for some in space.open_blocks() if not some[0].bases.counts_outside)
    for rows in (rows for plans, kinds in split for rows in plans.candidates(kinds)):
        need = of.needed_bytes(rows)
        at = int(np.argmin(need))
        if best is None or need[at] < best[0]:
            best = float(need[at]), rows.one(at)
    return None if best is None or best[0] <= of.capacity_bytes else best[1]


def _memory(of: SplitLimits, one: Configuration, ledger: Memory, limits: Limits) -> Iterator[Loosening]:
    if not block_starts(of.network):
        return
    short = what_fits(
        ledger, Configurations.of([one]), of.capacity_bytes, framework=of.framework, most_nodes=limits.nodes
    )
    need = of.capacity_bytes + short.missing_bytes
    largest = ", ".join(f"{name} {format_bytes(size)}" for name, size in short.largest)
    where = f" on stage {short.stage}" if one.pipeline_parallel > 1 else ""
    gib = np.ceil(need / 2**30 * 1000) / 1000
    message = (
        f"memory {gib:g}GiB: the leanest plan, {label(one)}, needs {format_bytes(need)} on a GPU{where} ({largest}), "
        f"{format_bytes(short.missing_bytes)} more than it has"
    )
    yield Loosening((("memory", f"{gib:g}GiB"),), message)
    for change in (one for one in short.changes if one.fits):
        values = _given(change, of)
        if values[0][0] == "--offload" and not of.has_host:
            continue
        words = " ".join(values[0])
        message = f"{words}: {change.name} saves {format_bytes(change.saved_bytes)}, which is enough"
        yield Loosening(values, message)


def _given(change: Change, of: SplitLimits) -> tuple[tuple[str, str], ...]:
    """Return a change as an option and its value."""
    if change.name == "fused attention":
        return (("--network", f"{of.network.name} with attention=fused"),)
    if change.name == "fused loss":
        return (("loss", "fused, as the framework allows"),)
    option, value = _OPTIONS[change.name]
    return ((option, value or str(change.value)),)


def _nodes(of: SplitLimits, request: SpaceRequest, ledger: Memory, limits: Limits) -> Iterator[Loosening]:
    if not block_starts(of.network) or HYBRID not in kinds_to_try(request, of.network, of.framework):
        return
    plans = lowest_plans(of.network, limits.gpus_per_node, tensor_most=limits.gpus_per_node)
    fewest = least_gpus(ledger, plans, of.capacity_bytes, limits.gpus_per_node)
    if fewest is None:
        return
    nodes = -(-fewest // limits.gpus_per_node)
    if nodes > max(request["nodes"] or (limits.nodes,)):
        words = f"{nodes} nodes x {limits.gpus_per_node} GPUs are the fewest that hold the network with any split"
        yield Loosening((("--nodes", str(nodes)),), f"--nodes {nodes}: {words}")
