"""Why a candidate is refused."""

from __future__ import annotations

from planner.errors import Refusal
from planner.search.plan_limits import LIMIT_REASONS

__all__ = [
    "ABOVE_WINDOW", "ASYNC_ACCUMULATION", "BELOW_WINDOW", "LARGE_SUB_BATCH", "LAWFUL", "OF_LIMIT", "OUT_OF_MEMORY",
    "REASONS", "UNEVEN_DEGREES",
]  # fmt: skip

REASONS = (
    None,
    Refusal("accumulation", "accumulation in an asynchronous plan", "accumulation"),
    Refusal("below_window", "mini-batch below the window", "mini-batch"),
    Refusal("above_window", "mini-batch above the window", "mini-batch"),
    Refusal("memory", "sub-batch larger than fits in memory", "sub-batch"),
    Refusal("above_window", "sub-batch above the window", "sub-batch"),
    Refusal("degrees", "GPUs not a multiple of the degrees of parallelism", "the number of GPUs"),
    *LIMIT_REASONS.values(),
)
"""Why a candidate is refused, by its position in an array of reasons; None keeps it.

A sub-batch above the window is refused in asynchronous plans whatever their mean: an update holds whole sub-batches, so
that every one that is not empty exceeds the window."""

LAWFUL, ASYNC_ACCUMULATION, BELOW_WINDOW, ABOVE_WINDOW, OUT_OF_MEMORY, LARGE_SUB_BATCH, UNEVEN_DEGREES = range(7)
OF_LIMIT = {name: at for at, name in enumerate(LIMIT_REASONS, start=7)}
"""Limit -> position in REASONS of what exceeds it."""
