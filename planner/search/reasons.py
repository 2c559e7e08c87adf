"""Why a candidate is refused, and what a plan may take at most: an epoch, GPU-hours, cost, nodes, staleness."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from planner.domain.arrays import FloatArray
from planner.domain.limits import LIMITS
from planner.errors import ParameterError, Refusal
from planner.search.evaluator import PricedPlans
from planner.search.ranking import Order

__all__ = [
    "ABOVE_WINDOW", "ASYNC_ACCUMULATION", "BELOW_WINDOW", "LARGE_SUB_BATCH", "LAWFUL", "LIMIT_REASONS", "OF_LIMIT",
    "OUT_OF_MEMORY", "REASONS", "UNEVEN_DEGREES", "check_limits", "limit_text", "limited",
]  # fmt: skip

LIMIT_REASONS = {name: Refusal("limit", f"{one.words} above --limit {name}", one.words) for name, one in LIMITS.items()}
"""Limit -> why a plan is refused that exceeds it."""
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


def limited(name: str, plans: PricedPlans, order: Order) -> FloatArray:
    """Return what a limit is of, (n,): s, hours, USD, or a number."""
    return _QUANTITIES[name](plans, order)


def check_limits(limits: Mapping[str, float], order: Order) -> None:
    """Raise ParameterError where what is limited is not known: an epoch without a data set, a cost without a price."""
    for name in limits:
        if LIMITS[name].of_epoch and not order.has_dataset:
            raise ParameterError("--limit", "nodes or staleness without a data set", name, "name one with --dataset")
        if name == "cost" and order.usd_per_gpu_hour is None:
            remedy = "give --cluster a file with [price] usd_per_gpu_hour"
            raise ParameterError("--limit", "of other things than cost on a cluster without a price", name, remedy)


def limit_text(name: str, value: float) -> str:
    """Return a limit as it may be typed, four digits, rounded up: ``3601s``, ``512``."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    scale = 10.0 ** (3 - math.floor(math.log10(value)))
    rounded = math.ceil(value * scale * (1 - 1e-12)) / scale
    return f"{rounded:.12g}" + ("s" if LIMITS[name].unit == "s" else "")


def _gpu_hours(plans: PricedPlans, _: Order) -> FloatArray:
    return plans.predictions.epoch_s * plans.configurations.gpus / 3600.0


_QUANTITIES: Mapping[str, Callable[[PricedPlans, Order], FloatArray]] = {
    "epoch": lambda plans, _: plans.predictions.epoch_s,
    "gpu-hours": _gpu_hours,
    "cost": lambda plans, order: _gpu_hours(plans, order) * (order.usd_per_gpu_hour or 0.0),
    "nodes": lambda plans, _: plans.configurations.nodes.astype(float),
    "staleness": lambda plans, _: plans.predictions.staleness_mean,
}
