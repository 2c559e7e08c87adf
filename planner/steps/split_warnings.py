"""What a reader should know of a plan that splits a network."""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.configuration import Configuration
from planner.domain.prediction import PlanWarning
from planner.sources.sources import Sources

__all__ = ["split_warnings"]


def split_warnings(sources: Sources, one: Configuration) -> tuple[PlanWarning, ...]:
    """Return the warnings of how a plan is split, in a fixed order."""
    return (*_tensor_across_nodes(sources, one), *_formula_only(sources, one))


def _tensor_across_nodes(sources: Sources, one: Configuration) -> Iterator[PlanWarning]:
    gpus = sources.cluster.node.gpus
    if one.tensor_parallel > gpus or gpus % one.tensor_parallel:
        message = (
            f"Groups of {one.tensor_parallel} tensor-parallel ranks do not stay inside nodes of {gpus} GPUs: every "
            "layer sends over the links between nodes."
        )
        yield PlanWarning("tensor_across_nodes", "tensor_parallel", message)


def _formula_only(sources: Sources, one: Configuration) -> Iterator[PlanWarning]:
    """Yield the parts of a plan that no measured run has shown yet."""
    of = sources.problem.network.transformer
    parts = {
        "pipeline of a network that is no transformer": of is None,
        "context parallelism": one.context_parallel > 1,
        "balance of experts": of is not None and of.experts > 0,
        "zero-bubble schedule": one.schedule == "zero-bubble",
        f"offload of {one.offload}": one.offload != "none",
    }
    for part in (name for name, is_used in parts.items() if is_used):
        even = ", which is taken as even," if part.startswith("balance") else ""
        message = f"The {part}{even} is priced by formula only: no measured run shows what it takes."
        yield PlanWarning("formula_only", part, message)
