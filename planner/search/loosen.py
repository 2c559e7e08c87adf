"""What to loosen when nothing fits: each constraint alone, and how far it must give way.

The smallest change stands first. A change is relative: of a count, and of memory, by how much the larger of what is
asked and what suffices exceeds the smaller (8 -> 4 and 4 -> 8 are both 1); of several counts the sum; of the tolerance,
how much wider it gets (0.1 -> 0.25 is 0.15). What has no such measure, as a precision, goes last.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.axes import AXES, Axis
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Loosening
from planner.errors import UsageError
from planner.search.choice import in_all_precisions
from planner.search.evaluator import Evaluator, PricedPlans
from planner.search.exhaustive import Outcome
from planner.search.explain import label
from planner.search.plan_limits import limit_text, limited
from planner.search.ranking import Order
from planner.search.search import search
from planner.search.shortage import shortages
from planner.search.space import Limits, space_of
from planner.units import format_duration, format_number

__all__ = ["Loosener", "loosenings", "tolerance_that_suffices"]

LARGEST_MEMORY_MULTIPLE = 4
"""Sub-batches are tried up to this multiple of the largest that fits, to say how much memory would help."""


def loosenings(
    request: SpaceRequest, limits: Limits, evaluator: Evaluator, order: Order, outcome: Outcome
) -> tuple[Loosening, ...]:
    """Return what to loosen where nothing satisfies a request; of memory what splitting the network needs, if any."""
    ways = Loosener(request, limits, evaluator, order).loosenings(outcome)
    lacking = shortages(request, limits, space_of(request, limits))
    return (*(one for one in ways if one.option != "memory"), *lacking) if lacking else ways


class _Way(NamedTuple):
    """A constraint to loosen, and by how much; see the module."""

    change: float
    loosening: Loosening


@dataclass(frozen=True, slots=True)
class Loosener:
    """Tries each constraint of a request that nothing satisfies."""

    request: SpaceRequest
    limits: Limits
    evaluator: Evaluator
    order: Order

    def loosenings(self, outcome: Outcome) -> tuple[Loosening, ...]:
        """Return the constraints whose loosening helps, the smallest change first.

        Each alone; nodes and GPUs per node together where neither alone helps.
        """
        alone = {axis.name: self._values(axis) for axis in AXES if axis.is_loosened}
        together = None if alone["nodes"] or alone["gpus_per_node"] else self._fewer_gpus()
        ways = (
            self._tolerance(outcome),
            together,
            *alone.values(),
            *map(self._limit, self.request.most),
            self._memory(),
        )
        ordered_ways = sorted((one for one in ways if one is not None), key=lambda one: one.change)
        return tuple(one.loosening for one in ordered_ways)

    def _tolerance(self, outcome: Outcome) -> _Way | None:
        near = outcome.nearest
        if near is None:
            return None
        reaches = self.order.reaches(near.configurations, near.predictions.mini_batch_mean)
        off = reaches / self.request.target_batch
        first = int(np.argmin(off))
        value = tolerance_that_suffices(float(off[first]))
        tolerance = self.request.tolerance(near.configurations.one(first).mode)
        change = float(off[first]) - tolerance
        nearest = in_all_precisions(self.order, self.evaluator, near.take(np.array([first]))).priced
        return _Way(change, self._sentence([("--tolerance", value)], f"{100 * tolerance:.6g}%", nearest))

    def _values(self, axis: Axis) -> _Way | None:
        """Try all values of an axis; of those that help, report the nearest to what was asked."""
        request_values, every = self.request[axis.name], None
        if axis.of_cluster == "all":
            most: int = getattr(self.limits, axis.name)
            request_values, every = request_values or (most,), tuple(range(1, most + 1))
        if request_values is None:
            return None

        def change(plans: PricedPlans) -> FloatArray:
            return _change(getattr(plans.configurations, axis.name), request_values)

        plan = self._first(self.request.changed(**{axis.name: every}), self.limits, None if axis.words else change)
        if plan is None:
            return None
        value = str(getattr(plan.configurations.one(0), axis.name))
        sentence = self._sentence([("--" + axis.option.replace("_", "-"), value)], _listing(request_values), plan)
        return _Way(math.inf if axis.words else float(change(plan)[0]), sentence)

    def _limit(self, name: str) -> _Way | None:
        """Take a limit away; of the plans that are lawful then, report that which exceeds it least."""
        most = self.request.most[name]
        others = {one: value for one, value in self.request.most.items() if one != name}
        request = self.request.changed(most=others)
        plan = self._first(request, self.limits, lambda plans: limited(name, plans, self.order))
        if plan is None:
            return None
        needed = float(limited(name, plan, self.order)[0])
        texts = (f"{one}={limit_text(one, value)}" for one, value in {**self.request.most, name: needed}.items())
        changes = [("--limit", ",".join(texts))]
        return _Way(needed / most - 1, self._sentence(changes, limit_text(name, most), plan))

    def _fewer_gpus(self) -> _Way | None:
        """Try fewer nodes of fewer GPUs; of those that help, report the most GPUs, on the fewest nodes."""
        nodes, gpus = self.request["nodes"], self.request["gpus_per_node"] or (self.limits.gpus_per_node,)
        if nodes is None:
            return None
        fewer = self.request.changed(
            nodes=tuple(range(1, max(nodes) + 1)), gpus_per_node=tuple(range(1, max(gpus) + 1))
        )
        best = self._first(
            fewer, self.limits, lambda p: p.configurations.nodes - p.configurations.gpus * (self.limits.nodes + 1.0)
        )
        if best is None:
            return None
        configuration = best.configurations.one(0)
        now = f"{_listing(nodes)} x {_listing(gpus)}"
        change = _change(best.configurations.nodes, nodes) + _change(best.configurations.gpus_per_node, gpus)
        changes = [("--nodes", str(configuration.nodes)), ("--gpus-per-node", str(configuration.gpus_per_node))]
        return _Way(float(change[0]), self._sentence(changes, now, best))

    def _memory(self) -> _Way | None:
        largest_asked = max(self.request["sub_batch"] or (1,))
        largest = {
            key: max(largest_asked, LARGEST_MEMORY_MULTIPLE * max(fits, 1))
            for key, fits in self.limits.largest_sub_batch.items()
        }
        plan = self._first(
            self.request, replace(self.limits, largest_sub_batch=largest), lambda p: p.predictions.memory_bytes
        )
        if plan is None:
            return None
        needed_bytes, capacity_bytes = float(plan.predictions.memory_bytes[0]), self.limits.memory_bytes
        gib = math.ceil(needed_bytes / 2**30 * 1000) / 1000
        sentence = self._sentence([("memory", f"{gib:g}GiB")], "less on each device", plan)
        return _Way(math.inf if capacity_bytes is None else needed_bytes / capacity_bytes - 1, sentence)

    def _first(
        self, request: SpaceRequest, limits: Limits, leading: Callable[[PricedPlans], FloatArray] | None
    ) -> PricedPlans | None:
        try:
            best = search(request, limits, self.evaluator, replace(self.order, leading=leading), keep=1).best
        except UsageError:  # the wider space is too large to enumerate: nothing can be said about it
            return None
        return None if best is None else in_all_precisions(self.order, self.evaluator, best).priced

    def _sentence(self, changes: list[tuple[str, str]], now: str, plan: PricedPlans) -> Loosening:
        epoch = float(plan.predictions.epoch_s[0])
        speed = (
            f"an epoch of {format_duration(epoch)}"
            if self.order.has_dataset
            else f"{format_number(float(plan.predictions.samples_per_s[0]), 3)} samples/s"
        )
        result = f"mini-batch {float(plan.predictions.mini_batch_mean[0]):.6g} in {speed}"
        plan_words = label(plan.configurations.one(0), self.order.device)
        loosening = Loosening(tuple(changes), "")
        return replace(loosening, message=f"{loosening.given} (now {now}) allows {plan_words}: {result}")


def _change(values: IntArray, request_values: tuple[int, ...]) -> FloatArray:
    """Return by how much each value, shape (n,), differs from the nearest that was asked for, shape (n,)."""
    ratio = np.maximum(values[:, None], 1) / np.maximum(np.array(request_values), 1)
    least: FloatArray = np.maximum(ratio, 1 / ratio).min(axis=1) - 1
    return least


def _listing(values: tuple[Any, ...]) -> str:
    is_short = len(values) <= 4 or isinstance(values[0], str)
    return ",".join(map(str, values)) if is_short else f"{min(values)} to {max(values)}"


def tolerance_that_suffices(off: float) -> str:
    """Return a relative distance as a percentage of four digits, rounded up: ``3.124%``."""
    percent = 100 * off
    scale = 10.0 ** (3 - math.floor(math.log10(percent)))
    return f"{math.ceil(percent * scale * (1 - 1e-12)) / scale:.12g}%"
