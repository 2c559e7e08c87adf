"""A sweep: of every number of nodes and sub-batch the best plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.domain.configuration import Configuration
from planner.domain.request import Sourced

__all__ = ["Sweep", "SweptPlan"]


@dataclass(frozen=True, slots=True)
class SweptPlan:
    """The best plan of one number of nodes and sub-batch; times in seconds, None without a data set.

    ``rank``: among the plans of the sweep, from 1.
    ``objective``: what is minimised, epoch time [s], its cost [USD] (without a data set of a sample) or a weighted sum.
    ``mini_batch``: samples behind an update; their mean when asynchronous.
    """

    rank: int
    configuration: Configuration
    objective: float
    iteration_s: float
    epoch_s: float | None
    samples_per_s: float
    mini_batch: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """The plans by nodes, then sub-batch, and how the space was searched.

    ``is_complete``: whether all plans were priced, and it was not ended before.
    """

    request: Mapping[str, Sourced[object]]
    plans: tuple[SweptPlan, ...]
    candidates: int
    evaluated: int
    is_complete: bool = True

    @property
    def best(self) -> SweptPlan:
        """The first of all."""
        return min(self.plans, key=lambda one: one.rank)

    @property
    def of_nodes(self) -> dict[int, SweptPlan]:
        """The best plan of each number of nodes."""
        least: dict[int, SweptPlan] = {}
        for one in sorted(self.plans, key=lambda one: one.rank):
            least.setdefault(one.configuration.nodes, one)
        return dict(sorted(least.items()))
