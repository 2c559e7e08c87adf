"""The order of ranks: along which axis those of neighbouring numbers differ.

Nothing here imports NumPy, because ``planner --help`` lists the names.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import ParameterError, nearest_name

__all__ = ["BEST_ORDER", "CONTEXT", "DATA", "EXPERT", "PIPELINE", "RANK_ORDER", "TENSOR", "check_rank_order"]

TENSOR, CONTEXT, EXPERT, DATA, PIPELINE = "tensor", "context", "expert", "data", "pipeline"
RANK_ORDER = (TENSOR, CONTEXT, EXPERT, DATA, PIPELINE)
"""Along which axis neighbouring ranks differ, innermost first: Megatron-LM's tp-cp-ep-dp-pp."""
BEST_ORDER = ("best",)
"""In place of an order: that which is fastest for a plan."""


def check_rank_order(what: str, order: Sequence[str]) -> None:
    """Raise ParameterError unless an order names every axis once; it offers the order nearest to what was meant.

    >>> check_rank_order("order", ("pipeline", "tensor"))
    Traceback (most recent call last):
    ...
    planner.errors.ParameterError: order must be tensor, context, expert, data, pipeline in some order, each once, \
got 'pipeline,tensor'; write pipeline,tensor,context,expert,data
    """
    if sorted(order) == sorted(RANK_ORDER):
        return
    meant = dict.fromkeys(filter(None, (nearest_name(one, RANK_ORDER) for one in order[: len(RANK_ORDER)])))
    near = ",".join(dict.fromkeys((*meant, *RANK_ORDER)))
    rule = f"{', '.join(RANK_ORDER)} in some order, each once"
    raise ParameterError(what, rule, ",".join(order), f"write {near}")
