"""A scenario: what-if multipliers on terms and replaced link values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.domain.arrays import frozen_map

__all__ = ["NO_SCENARIO", "Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One alternative, as the user wrote it and as it acts.

    Attributes
    ----------
    text : str
        Empty: things as they are.
    multipliers : mapping of term name to factor
        Applied to the seconds of a term, in every thread that has it.
    link_values : mapping of (link, field) to SI value
        Such as ``("inter_node", "bytes_per_s"): 12.5e9``.
    sub_batch_factor : int
        Applied to the largest sub-batch of fp32 plans.
    """

    text: str = ""
    multipliers: Mapping[str, float] = field(default_factory=dict)
    link_values: Mapping[tuple[str, str], float] = field(default_factory=dict)
    sub_batch_factor: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "multipliers", frozen_map(self.multipliers))
        object.__setattr__(self, "link_values", frozen_map(self.link_values))


NO_SCENARIO = Scenario()
