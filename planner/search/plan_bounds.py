"""The least that the objective of plans can be, plan by plan: what need not be priced, and how good a search was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.domain.arrays import FloatArray, distinct_values
from planner.domain.configuration import Configurations, splits
from planner.search.evaluator import Evaluator
from planner.search.feasibility import Rules
from planner.search.parts import parts_of
from planner.search.ranking import SLACK, Order
from planner.search.space import Space

__all__ = ["OpenBounds", "least_values"]

MOST_BOUNDED = 2**18
"""Candidates of which each has its bound; of more those of parts of the space are used."""


def least_values(plans: Configurations, evaluator: Evaluator, order: Order) -> FloatArray:
    """Return a lower bound of the objective of each plan, shape (n,); 0 where none is known."""
    seconds = np.zeros(plans.size)
    kind = np.where(plans.is_async, -1, plans.precision * 2 + plans.of_bases(splits))
    for value in distinct_values(kind[kind >= 0]).tolist():
        rows = np.flatnonzero(kind == value)
        seconds[rows] = evaluator.least_epoch_s(plans.take(rows), split=bool(value % 2), closely=True)
    return order.value_of(seconds, plans.gpus)


@dataclass(frozen=True)
class OpenBounds:
    """What plans of a space that were not tried can reach."""

    space: Space
    evaluator: Evaluator
    order: Order
    rules: Rules

    def least(self, tried: FloatArray) -> float:
        """Return what plans beside those tried take at least, inf where there are none; 0: not known.

        ``tried``: bounds of those that fit in memory, which may differ by rounding.
        """
        number = tried.size if self._is_by_plan else 0
        missing = np.flatnonzero(np.sort(tried)[:number] > self._every[:number] * (1 + SLACK))
        first = int(missing[0]) if missing.size else number
        return float(self._every[first]) if first < self._every.size else np.inf

    @property
    def _is_by_plan(self) -> bool:
        return self.space.inside <= MOST_BOUNDED

    @cached_property
    def _every(self) -> FloatArray:
        """Bounds of all plans that fit in memory, ascending; of more than MOST_BOUNDED those of parts of the space."""
        return np.sort(np.concatenate([np.zeros(0), *self._bounds()]))

    def _bounds(self) -> Iterator[FloatArray]:
        if self._is_by_plan:
            for chunk in self.space.chunks():
                yield least_values(chunk.where(self.rules.fits(chunk)).rows, self.evaluator, self.order)
        else:
            for part in parts_of(self.space, self.evaluator):
                yield self.order.value_of(part.least_s, part.gpus)
