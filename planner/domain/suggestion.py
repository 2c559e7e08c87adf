"""A suggestion: ranked plans, what was searched, and what to loosen when nothing fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.domain.arrays import frozen_map
from planner.domain.prediction import PlanWarning, Prediction
from planner.domain.request import Sourced

__all__ = ["Loosening", "Plan", "SearchReport", "Suggestion"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A ranked plan and the sentence that says why it stands there."""

    position: int
    prediction: Prediction
    why: str


@dataclass(frozen=True, slots=True)
class SearchReport:
    """How the space was searched; ``certified``: no better plan exists in it.

    Of the ``candidates`` those that satisfy the request were ranked, ``evaluated`` in number; all others were refused,
    and ``refused`` counts them by reason.
    """

    method: str
    certified: bool
    candidates: int
    evaluated: int
    refused: Mapping[str, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "refused", frozen_map(self.refused))


@dataclass(frozen=True, slots=True)
class Loosening:
    """A constraint to loosen so that something fits: the option, the value that suffices, and what is reached then.

    Two that must give way together stand in one, options and values separated by a space.
    """

    option: str
    value: str
    message: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The answer to one request under one scenario; ``status`` is ``found`` or ``none_feasible``."""

    request: Mapping[str, Sourced[object]]
    status: str
    plans: tuple[Plan, ...]
    pareto: tuple[Plan, ...]
    search: SearchReport
    nearest: tuple[Plan, ...] = ()
    loosen: tuple[Loosening, ...] = ()
    warnings: tuple[PlanWarning, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        object.__setattr__(self, "request", frozen_map(self.request))
