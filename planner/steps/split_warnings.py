"""What a reader should know of a plan that splits a network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.domain.arrays import BoolArray
from planner.domain.configuration import Configuration
from planner.domain.prediction import PlanWarning
from planner.domain.ranks import TENSOR
from planner.domain.split import SplitPlans
from planner.sources.sources import Sources
from planner.workload.blocks import block_starts
from planner.workload.placement import Placement
from planner.workload.shards import expert_number

__all__ = ["split_warnings", "tensor_across_nodes"]

_BY_FORMULA = ("zero-bubble", "zero-bubble-h2", "zero-bubble-v", "no-flush")
"""Schedules."""


def split_warnings(sources: Sources, one: Configuration, *, crosses_nodes: bool) -> tuple[PlanWarning, ...]:
    """Return the warnings of how a plan is split, in a fixed order; ``crosses_nodes``: its tensor-parallel groups."""
    across = (_tensor_across_nodes(one),) if crosses_nodes else ()
    return (*across, *_stale_gradients(one), *_formula_only(sources, one))


def tensor_across_nodes(plans: SplitPlans, rank_order: tuple[str, ...]) -> BoolArray:
    """Tell which of n plans have tensor-parallel groups that do not stay inside a node, shape (n,)."""
    return np.asarray(Placement(plans, order=rank_order).axis(TENSOR).nodes > 1)


def _tensor_across_nodes(one: Configuration) -> PlanWarning:
    message = (
        f"Groups of {one.tensor_parallel} tensor-parallel ranks do not stay inside nodes of {one.gpus_per_node} "
        "GPUs: every layer sends over the links between nodes."
    )
    return PlanWarning("tensor_across_nodes", "tensor_parallel", message)


def _stale_gradients(one: Configuration) -> Iterator[PlanWarning]:
    if one.schedule == "no-flush" and one.pipeline_parallel > 1:
        stages = one.pipeline_parallel
        message = (
            f"Gradients of a no-flush schedule are stale: the first of {stages} stages computes them with weights of "
            f"{stages - 1} updates ago, of which it keeps {stages} versions, and each stage below with one fewer."
        )
        yield PlanWarning("stale_gradients", one.schedule, message)


def _formula_only(sources: Sources, one: Configuration) -> Iterator[PlanWarning]:
    """Yield the parts of a plan that no measured run has shown yet."""
    network = sources.problem.network
    parts = {
        "pipeline of a network not made of attention blocks": not block_starts(network),
        "context parallelism": one.context_parallel > 1,
        "balance of experts": expert_number(network) > 0,
        f"{one.schedule} schedule": one.schedule in _BY_FORMULA,
        f"offload of {one.offload}": one.offload != "none",
    }
    for part in (name for name, is_used in parts.items() if is_used):
        even = ", which is taken as even," if part.startswith("balance") else ""
        message = f"The {part}{even} is priced by formula only: no measured run shows what it takes."
        yield PlanWarning("formula_only", part, message)
