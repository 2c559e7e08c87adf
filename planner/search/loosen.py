"""What to loosen when nothing fits: each constraint alone, and how far it must give way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.request import SpaceRequest
from planner.domain.suggestion import Loosening
from planner.errors import UsageError
from planner.search.evaluator import Evaluator, Priced
from planner.search.exhaustive import Outcome, search
from planner.search.explain import label
from planner.search.ranking import Order
from planner.search.space import Limits
from planner.units import format_duration

__all__ = ["Loosener", "tolerance_that_suffices"]

MORE_MEMORY = 4
"""Sub-batches are tried up to this multiple of the largest that fits, to say how much memory would help."""


@dataclass(frozen=True, slots=True)
class Loosener:
    """Tries each constraint of a request that nothing satisfies."""

    request: SpaceRequest
    limits: Limits
    evaluator: Evaluator
    order: Order

    def loosenings(self, outcome: Outcome) -> tuple[Loosening, ...]:
        """Return the constraints whose loosening helps: the tolerance first, then values, then memory.

        Each alone; nodes and GPUs per node together where neither alone helps.
        """
        request, most = self.request, self.limits.gpus_per_node
        gpus, all_gpus = request.gpus_per_node or (most,), tuple(range(1, most + 1))
        counts = [
            self._values("--nodes", request.nodes, replace(request, nodes=None), _nodes),
            self._values("--gpus-per-node", gpus, replace(request, gpus_per_node=all_gpus), _gpus_per_node),
        ]
        tried = (
            self._tolerance(outcome),
            *(counts if any(counts) else [self._fewer_gpus(gpus)]),
            self._values("--sub-batch", request.sub_batch, replace(request, sub_batch=None), _sub_batch),
            self._values("--accumulation", request.accumulation, replace(request, accumulation=None), _accumulation),
            self._precision(),
            self._memory(),
        )
        return tuple(found for found in tried if found is not None)

    def _tolerance(self, outcome: Outcome) -> Loosening | None:
        near = outcome.nearest
        if near is None:
            return None
        reaches = self.order.reaches(near.configurations, near.predictions.mini_batch_mean)
        off = reaches / self.request.target_batch
        first = int(np.argmin(off))
        value = tolerance_that_suffices(float(off[first]))
        mode = near.configurations.one(first).mode
        now = f"{100 * self.request.tolerance(mode):.6g}%"
        return self._sentence("--tolerance", value, now, near.take(np.array([first])))

    def _values(
        self, option: str, asked: tuple[int, ...] | None, relaxed: SpaceRequest, column: Callable[[Priced], IntArray]
    ) -> Loosening | None:
        """Try all values of an option; of those that help, report the nearest to what was asked."""
        if asked is None:
            return None
        now = np.array(asked)

        def change(priced: Priced) -> FloatArray:
            least: FloatArray = np.abs(column(priced)[:, None] - now).min(axis=1).astype(np.float64)
            return least

        found = self._first(relaxed, self.limits, change)
        if found is None:
            return None
        return self._sentence(option, str(int(column(found)[0])), _listed(asked), found)

    def _fewer_gpus(self, gpus: tuple[int, ...]) -> Loosening | None:
        """Try fewer nodes of fewer GPUs; of those that help, report the most GPUs, on the fewest nodes."""
        nodes = self.request.nodes
        if nodes is None:
            return None
        fewer = replace(
            self.request, nodes=tuple(range(1, max(nodes) + 1)), gpus_per_node=tuple(range(1, max(gpus) + 1))
        )
        found = self._first(
            fewer, self.limits, lambda p: p.configurations.nodes - p.configurations.gpus * (self.limits.nodes + 1.0)
        )
        if found is None:
            return None
        plan = found.configurations.one(0)
        now = f"{_listed(nodes)} x {_listed(gpus)}"
        return self._sentence("--nodes --gpus-per-node", f"{plan.nodes} {plan.gpus_per_node}", now, found)

    def _precision(self) -> Loosening | None:
        if self.request.precisions is None:
            return None
        found = self._first(replace(self.request, precisions=None), self.limits, None)
        if found is None:
            return None
        name = found.configurations.one(0).precision
        return self._sentence("--precision", name, ",".join(self.request.precisions), found)

    def _memory(self) -> Loosening | None:
        asked = max(self.request.sub_batch or (1,))
        largest = {key: max(asked, MORE_MEMORY * max(fits, 1)) for key, fits in self.limits.largest_sub_batch.items()}
        found = self._first(
            self.request, replace(self.limits, largest_sub_batch=largest), lambda p: p.predictions.memory_bytes
        )
        if found is None:
            return None
        gib = math.ceil(float(found.predictions.memory_bytes[0]) / 2**30 * 1000) / 1000
        return self._sentence("memory", f"{gib:g}GiB", "less on each device", found)

    def _first(
        self, request: SpaceRequest, limits: Limits, leading: Callable[[Priced], FloatArray] | None
    ) -> Priced | None:
        try:
            return search(request, limits, self.evaluator, replace(self.order, leading=leading), keep=1).best
        except UsageError:  # the wider space is too large to enumerate: nothing can be said about it
            return None

    def _sentence(self, option: str, value: str, now: str, plan: Priced) -> Loosening:
        epoch = float(plan.predictions.epoch_s[0])
        speed = (
            f"an epoch of {format_duration(epoch, 3)}"
            if self.order.has_dataset
            else f"{float(plan.predictions.samples_per_s[0]):.4g} samples/s"
        )
        reached = f"mini-batch {float(plan.predictions.mini_batch_mean[0]):.6g} in {speed}"
        pairs = zip(option.split(), value.split(), strict=True)
        options = " ".join(word for pair in pairs for word in pair)
        message = f"{options} (now {now}) allows {label(plan.configurations.one(0), self.order.device)}: {reached}"
        return Loosening(option, value, message)


def _listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values)) if len(values) <= 4 else f"{min(values)} to {max(values)}"


def _nodes(plan: Priced) -> IntArray:
    return plan.configurations.nodes


def _gpus_per_node(plan: Priced) -> IntArray:
    return plan.configurations.gpus_per_node


def _sub_batch(plan: Priced) -> IntArray:
    return plan.configurations.sub_batch


def _accumulation(plan: Priced) -> IntArray:
    return plan.configurations.accumulation_steps


def tolerance_that_suffices(off: float) -> str:
    """Return a relative distance as a percentage of four digits, rounded up: ``3.124%``."""
    percent = 100 * off
    scale = 10.0 ** (3 - math.floor(math.log10(percent)))
    return f"{math.ceil(percent * scale * (1 - 1e-12)) / scale:.12g}%"
