"""Prices of split plans, those of one number of stages, tensor degree and schedule together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_rows
from planner.domain.configuration import Configurations
from planner.domain.split import OFFLOADS, SplitMemoryBytes, SplitPlans, schedule_run
from planner.sources.sources import Sources
from planner.steps.split_compute import SplitCompute
from planner.steps.split_offload import offload_s
from planner.steps.split_part import SPLIT_TERMS, SplitCosts, SplitPart
from planner.workload.split_memory import split_memory

__all__ = ["SplitPriced", "SplitPricer", "plans_of"]

_OF_RANK = ("tensor_parallel", "sequence_parallel", "context_parallel", "expert_parallel")
_ALIKE = ("pipeline_parallel", "schedule")
"""What plans that are priced together have in common."""


@dataclass(frozen=True, slots=True)
class SplitPriced:
    """n plans.

    Attributes
    ----------
    period_s : ndarray of float, shape (n,)
    seconds, exposed_s : term -> ndarray of float, shape (n,)
        What a term takes, and what it adds to the step; ``exposed_s`` adds up to ``period_s``.
    memory : SplitMemoryBytes
    """

    period_s: FloatArray
    seconds: Mapping[str, FloatArray]
    exposed_s: Mapping[str, FloatArray]
    memory: SplitMemoryBytes


def plans_of(chosen: Configurations) -> SplitPlans:
    """Return configurations as split plans, each field of shape (n,); 1f1b with virtual stages is interleaved."""
    shape = chosen.shape
    names = [one.name for one in fields(SplitPlans)]
    columns = {name: np.broadcast_to(getattr(chosen, name), shape) for name in names}
    columns["schedule"] = schedule_run(columns["schedule"], columns["virtual_stages"])
    return SplitPlans(**columns)


class SplitPricer(SplitCosts):
    """Prices split plans of one precision; what a rank takes of a micro-batch stays for later calls.

    ``like``: of a problem that differs in overheads and collectives alone; what its ranks take is used again.
    """

    def __init__(self, sources: Sources, precision: str, like: SplitPricer | None = None) -> None:
        super().__init__(sources, precision)
        self.compute: SplitCompute = like.compute if like else SplitCompute(sources, precision)

    def memory(self, plans: SplitPlans) -> SplitMemoryBytes:
        """Return the memory of each plan's fullest rank."""
        return split_memory(self.of, plans, self.memory_rules)

    def part(self, plans: SplitPlans) -> SplitPart:
        """Return plans of one number of stages and schedule."""
        first, which = distinct_rows(*(getattr(plans, name) for name in _OF_RANK))
        ranks = [self.compute.rank_of(*(int(getattr(plans, name)[row]) for name in _OF_RANK)) for row in first.tolist()]
        return SplitPart(self, plans, self.compute, np.array(ranks)[which])

    def price(self, chosen: Configurations) -> SplitPriced:
        """Price configurations, rows of shape (n,)."""
        plans = plans_of(chosen)
        terms = {name: np.zeros((2, chosen.size)) for name in SPLIT_TERMS}
        first, which = distinct_rows(*(getattr(plans, name) for name in _ALIKE))
        for at in range(first.size):
            rows = np.flatnonzero(which == at)
            for name, both in self.part(_rows(plans, rows)).terms().items():
                terms[name][:, rows] = both
        memory = self.memory(plans)
        self._offload(plans, memory, terms)
        seconds = {name: both[0] for name, both in terms.items()}
        exposed = {name: both[1] for name, both in terms.items()}
        period = np.sum(list(exposed.values()), axis=0)
        return SplitPriced(period, seconds, exposed, memory)

    def _offload(self, plans: SplitPlans, memory: SplitMemoryBytes, terms: dict[str, FloatArray]) -> None:
        """Put what offloading takes into the terms; what the host updates, the device does not."""
        if not plans.offload.any():
            return
        m = plans.accumulation_steps
        passes = terms["forward"][1] / m, (terms["backward"][1] + terms["recompute"][1]) / m
        terms["offload"][:] = offload_s(self.sources, plans, memory, memory.to_device / self.parameter.weight, passes)
        terms["update"][:, plans.offload == OFFLOADS.index("optimizer")] = 0.0


def _rows(plans: SplitPlans, rows: IntArray) -> SplitPlans:
    return SplitPlans(**{one.name: getattr(plans, one.name)[rows] for one in fields(SplitPlans)})
