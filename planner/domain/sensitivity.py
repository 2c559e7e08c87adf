"""What a change of one input does to the best plan."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.configuration import Configuration
from planner.domain.framework import Framework

__all__ = ["INPUTS", "Sensitivity"]

INPUTS = ("inter-node bandwidth", "intra-node bandwidth", "kernel times", "host time of a call", "memory of a device")
"""What is changed, each alone."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The best plan where one input is another.

    Attributes
    ----------
    factor : by which it is multiplied
    is_other : whether the best plan then is another one than plan 1
    best : it; None: no plan satisfies the request then
    framework : its own, where several were asked for
    position : of the same plan in the answer; None: it is not reported there
    behind : how much more of the objective the plan to take has then than the best one, relative to it; None: it does
        not satisfy the request then
    """

    input: str
    factor: float
    is_other: bool
    best: Configuration | None
    framework: Framework | None
    position: int | None
    behind: float | None
