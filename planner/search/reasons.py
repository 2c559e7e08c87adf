"""Why a candidate is refused, and what it is limited in: an epoch, GPU-hours, cost, nodes, staleness, the window."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.objective import LIMITS
from planner.errors import ParameterError, Refusal
from planner.search.evaluator import PricedPlans
from planner.search.ranking import Order
from planner.steps.asynchronous import Asynchrony

__all__ = [
    "ABOVE_WINDOW", "ASYNC_ACCUMULATION", "BELOW_WINDOW", "LARGE_SUB_BATCH", "LAWFUL", "LIMIT_REASONS", "OF_LIMIT",
    "OUT_OF_MEMORY", "REASONS", "UNEVEN_DEGREES", "check_limits", "excess", "keeps", "limit_text", "limited",
]  # fmt: skip

LIMIT_REASONS = {
    name: Refusal("limit", f"{one.words} {one.side} --limit {name}", one.words) for name, one in LIMITS.items()
}
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

SMALLEST_SHARE = 1e-9

LAWFUL, ASYNC_ACCUMULATION, BELOW_WINDOW, ABOVE_WINDOW, OUT_OF_MEMORY, LARGE_SUB_BATCH, UNEVEN_DEGREES = range(7)
OF_LIMIT = {name: at for at, name in enumerate(LIMIT_REASONS, start=7)}
"""Limit -> position in REASONS of what exceeds it."""


def limited(name: str, plans: PricedPlans, order: Order) -> FloatArray:
    """Return what a limit is of, (n,): s, hours, USD, or a number."""
    return _QUANTITIES[name](plans, order)


def keeps(name: str, plans: PricedPlans, order: Order, limit: float) -> BoolArray:
    """Return which plans keep to a limit, (n,); what is not known does not."""
    values = limited(name, plans, order)
    return values >= limit if LIMITS[name].is_least else values <= limit


def excess(name: str, values: FloatArray, limit: float) -> FloatArray:
    """Return how far values are beyond a limit, as a factor above 1; of a limit of nothing the values themselves."""
    if LIMITS[name].is_least:
        return limit / np.maximum(values, SMALLEST_SHARE)
    return values / (limit or 1.0)


def check_limits(limits: Mapping[str, float], order: Order) -> None:
    """Raise ParameterError where what is limited is not known: an epoch without a data set, a cost without a price."""
    for name in limits:
        if LIMITS[name].of_epoch and not order.has_dataset:
            rule = "nodes, staleness or window without a data set"
            raise ParameterError("--limit", rule, name, "name one with --dataset")
        if name == "cost" and order.usd_per_gpu_hour is None:
            remedy = "give --cluster a file with [price] usd_per_gpu_hour"
            raise ParameterError("--limit", "of other things than cost on a cluster without a price", name, remedy)


def limit_text(name: str, value: float) -> str:
    """Return a limit as it may be typed, four digits, rounded to what keeps it: ``3601s``, ``512``."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    scale = 10.0 ** (3 - math.floor(math.log10(value)))
    least = LIMITS[name].is_least
    rounded = (math.floor(value * scale * (1 + 1e-12)) if least else math.ceil(value * scale * (1 - 1e-12))) / scale
    return f"{rounded:.12g}" + ("s" if LIMITS[name].unit == "s" else "")


def _gpu_hours(plans: PricedPlans, _: Order) -> FloatArray:
    return plans.predictions.epoch_s * plans.configurations.gpus / 3600.0


def _inside(plans: PricedPlans, order: Order) -> FloatArray:
    """Return the share of updates inside the window, (n,); of a synchronous plan all: its mini-batch is one number."""
    of_async, inside = np.flatnonzero(plans.configurations.is_async), np.ones(plans.size)
    if of_async.size:
        some, predicted = plans.configurations.take(of_async), plans.predictions
        periods = (getattr(predicted, name)[of_async] for name in ("iteration_s", "update_s"))
        inside[of_async] = Asynchrony(some.gpus, some.sub_batch, *periods).window_probability(*order.window)
    return inside


_QUANTITIES: Mapping[str, Callable[[PricedPlans, Order], FloatArray]] = {
    "epoch": lambda plans, _: plans.predictions.epoch_s,
    "gpu-hours": _gpu_hours,
    "cost": lambda plans, order: _gpu_hours(plans, order) * (order.usd_per_gpu_hour or 0.0),
    "nodes": lambda plans, _: plans.configurations.nodes.astype(float),
    "staleness": lambda plans, _: plans.predictions.staleness_mean,
    "window": _inside,
}
