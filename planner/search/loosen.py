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
from planner.search.evaluator import Evaluator, Priced
from planner.search.exhaustive import Outcome, search
from planner.search.explain import label
from planner.search.ranking import Order
from planner.search.space import Limits
from planner.units import format_duration, format_number

__all__ = ["Loosener", "tolerance_that_suffices"]

MORE_MEMORY = 4
"""Sub-batches are tried up to this multiple of the largest that fits, to say how much memory would help."""


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
        tried = (self._tolerance(outcome), together, *alone.values(), self._memory())
        found = sorted((one for one in tried if one is not None), key=lambda one: one.change)
        return tuple(one.loosening for one in found)

    def _tolerance(self, outcome: Outcome) -> _Way | None:
        near = outcome.nearest
        if near is None:
            return None
        reaches = self.order.reaches(near.configurations, near.predictions.mini_batch_mean)
        off = reaches / self.request.target_batch
        first = int(np.argmin(off))
        value = tolerance_that_suffices(float(off[first]))
        asked = self.request.tolerance(near.configurations.one(first).mode)
        change = float(off[first]) - asked
        nearest = in_all_precisions(self.order, self.evaluator, near.take(np.array([first]))).priced
        return _Way(change, self._sentence([("--tolerance", value)], f"{100 * asked:.6g}%", nearest))

    def _values(self, axis: Axis) -> _Way | None:
        """Try all values of an axis; of those that help, report the nearest to what was asked."""
        asked, every = self.request[axis.name], None
        if axis.of_cluster == "all":
            most: int = getattr(self.limits, axis.name)
            asked, every = asked or (most,), tuple(range(1, most + 1))
        if asked is None:
            return None

        def change(priced: Priced) -> FloatArray:
            return _change(getattr(priced.configurations, axis.name), asked)

        found = self._first(self.request.changed(**{axis.name: every}), self.limits, None if axis.words else change)
        if found is None:
            return None
        value = str(getattr(found.configurations.one(0), axis.name))
        sentence = self._sentence([("--" + axis.option.replace("_", "-"), value)], _listed(asked), found)
        return _Way(math.inf if axis.words else float(change(found)[0]), sentence)

    def _fewer_gpus(self) -> _Way | None:
        """Try fewer nodes of fewer GPUs; of those that help, report the most GPUs, on the fewest nodes."""
        nodes, gpus = self.request["nodes"], self.request["gpus_per_node"] or (self.limits.gpus_per_node,)
        if nodes is None:
            return None
        fewer = self.request.changed(
            nodes=tuple(range(1, max(nodes) + 1)), gpus_per_node=tuple(range(1, max(gpus) + 1))
        )
        found = self._first(
            fewer, self.limits, lambda p: p.configurations.nodes - p.configurations.gpus * (self.limits.nodes + 1.0)
        )
        if found is None:
            return None
        plan = found.configurations.one(0)
        now = f"{_listed(nodes)} x {_listed(gpus)}"
        change = _change(found.configurations.nodes, nodes) + _change(found.configurations.gpus_per_node, gpus)
        changes = [("--nodes", str(plan.nodes)), ("--gpus-per-node", str(plan.gpus_per_node))]
        return _Way(float(change[0]), self._sentence(changes, now, found))

    def _memory(self) -> _Way | None:
        asked = max(self.request["sub_batch"] or (1,))
        largest = {key: max(asked, MORE_MEMORY * max(fits, 1)) for key, fits in self.limits.largest_sub_batch.items()}
        found = self._first(
            self.request, replace(self.limits, largest_sub_batch=largest), lambda p: p.predictions.memory_bytes
        )
        if found is None:
            return None
        needed, held = float(found.predictions.memory_bytes[0]), self.limits.memory_bytes
        gib = math.ceil(needed / 2**30 * 1000) / 1000
        sentence = self._sentence([("memory", f"{gib:g}GiB")], "less on each device", found)
        return _Way(math.inf if held is None else needed / held - 1, sentence)

    def _first(
        self, request: SpaceRequest, limits: Limits, leading: Callable[[Priced], FloatArray] | None
    ) -> Priced | None:
        try:
            found = search(request, limits, self.evaluator, replace(self.order, leading=leading), keep=1).best
        except UsageError:  # the wider space is too large to enumerate: nothing can be said about it
            return None
        return None if found is None else in_all_precisions(self.order, self.evaluator, found).priced

    def _sentence(self, changes: list[tuple[str, str]], now: str, plan: Priced) -> Loosening:
        epoch = float(plan.predictions.epoch_s[0])
        speed = (
            f"an epoch of {format_duration(epoch)}"
            if self.order.has_dataset
            else f"{format_number(float(plan.predictions.samples_per_s[0]), 3)} samples/s"
        )
        reached = f"mini-batch {float(plan.predictions.mini_batch_mean[0]):.6g} in {speed}"
        allowed = label(plan.configurations.one(0), self.order.device)
        found = Loosening(tuple(changes), "")
        return replace(found, message=f"{found.given} (now {now}) allows {allowed}: {reached}")


def _change(values: IntArray, asked: tuple[int, ...]) -> FloatArray:
    """Return by how much each value, shape (n,), differs from the nearest that was asked for, shape (n,)."""
    ratio = values[:, None] / np.array(asked)
    least: FloatArray = np.maximum(ratio, 1 / ratio).min(axis=1) - 1
    return least


def _listed(values: tuple[Any, ...]) -> str:
    is_short = len(values) <= 4 or isinstance(values[0], str)
    return ",".join(map(str, values)) if is_short else f"{min(values)} to {max(values)}"


def tolerance_that_suffices(off: float) -> str:
    """Return a relative distance as a percentage of four digits, rounded up: ``3.124%``."""
    percent = 100 * off
    scale = 10.0 ** (3 - math.floor(math.log10(percent)))
    return f"{math.ceil(percent * scale * (1 - 1e-12)) / scale:.12g}%"
