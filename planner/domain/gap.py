"""Kernels of a network that a calibration knows badly, or not at all: what to measure next."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import ParameterError

__all__ = ["REASONS", "Gap"]

REASONS = ("missing", "outside", "poor", "worst known")
"""Taken from the specification; outside the ranges of the fit; of a large held-out error; or only the largest left."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Kernels of one kind, direction and precision in one network.

    Attributes
    ----------
    kind, direction, precision : an empty direction stands for all
    share : of the kernel time of a training step
    error : expected relative error of these kernels
    detail : the feature farthest outside the fit, or empty
    """

    network: str
    kind: str
    direction: str
    precision: str
    reason: str
    share: float
    error: float
    detail: str = ""

    def __post_init__(self) -> None:
        if self.reason not in REASONS:
            raise ParameterError("reason", "one of " + ", ".join(REASONS), self.reason)

    @property
    def weight(self) -> float:
        """What it can add to the relative error of the step."""
        return self.share * self.error
