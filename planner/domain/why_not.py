"""Answers beside the plan: of every number of nodes and sub-batch the best plan, and why certain plans are not it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.domain.arrays import frozen_map
from planner.domain.configuration import Configuration
from planner.domain.framework import Framework
from planner.domain.request import Sourced
from planner.domain.suggestion import Loosening, Refused

__all__ = ["RankedPlan", "Sweep", "SweptPlan", "WhyNot"]


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A plan and what is minimised: as :class:`planner.domain.why_not.SweptPlan`.

    ``framework``: one of several that were asked for; None: no other was.
    """

    configuration: Configuration
    objective: float
    framework: Framework | None = None


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer about plans with certain values.

    Attributes
    ----------
    request : mapping of request key to Sourced
    values : mapping of option to str, as they were written
    first : the best plan of the request; None: nothing satisfies it
    best : the best plan with the values; None: nothing with them satisfies the request
    rank : of ``best`` among all plans that satisfy the request, each precision by itself, from 1
    evaluated : plans that satisfy the request
    outside : values that the request does not try, a sentence each; ``best`` is then of a request that does
    candidates : of the space with the values
    refused : of those candidates
    loosen : what else to change where nothing with the values satisfies the request
    framework : of the plans with the values, one of several; ``first`` and ``rank`` are of the plans of all. Empty: no
        other was asked for
    """

    request: Mapping[str, Sourced[object]]
    values: Mapping[str, str]
    first: RankedPlan | None
    best: RankedPlan | None
    rank: int | None
    evaluated: int
    outside: tuple[str, ...] = ()
    candidates: int = 0
    refused: tuple[Refused, ...] = ()
    loosen: tuple[Loosening, ...] = ()
    framework: str = ""

    @property
    def status(self) -> str:
        """``ranked``; ``outside``: the request tries no such plan; ``refused``: a constraint is in the way."""
        return "ranked" if self.rank else "outside" if self.outside else "refused"

    def __post_init__(self) -> None:
        for name in ("request", "values"):
            object.__setattr__(self, name, frozen_map(getattr(self, name)))


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
