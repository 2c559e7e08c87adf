"""Timed training steps: what a framework really took, to compare with the sum of its kernels."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.arrays import check_count, check_not_negative, check_positive
from planner.domain.network import Network
from planner.domain.precision import precision_named

__all__ = ["STEP", "TimedStep", "Verified", "VerifiedTerm"]

STEP = "step"
"""Kind of rows of samples files that hold one: ``call`` is the network's name."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """The time of one gradient computation, forward and backward without an update: median and spread.

    ``precision``: that it computes in, of 16 bits as mixed precision.
    """

    network: Network
    sub_batch: int
    time_s: float
    spread_s: float = 0.0
    precision: str = "fp32"

    def __post_init__(self) -> None:
        check_count("sub_batch", self.sub_batch)
        check_positive("time", self.time_s, "s")
        check_not_negative("spread", self.spread_s, "s")
        precision_named(self.precision)


@dataclass(frozen=True, slots=True)
class VerifiedTerm:
    """A term of a step as it was predicted and measured, with the spread of its repeats [s]."""

    name: str
    predicted_s: float
    measured_s: float
    spread_s: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s


@dataclass(frozen=True, slots=True)
class Verified:
    """Real steps of a plan's per-GPU part beside their prediction, on one device.

    Attributes
    ----------
    position : of the plan in its document
    ran : what was run, in words
    device : what it ran on
    calibrations : names of those that predict it
    terms : of one micro-batch and an update, and ``step``, their sum
    not_run : of the plan's step, in words
    slower : than the quiet machine, so many times
    """

    position: int
    ran: str
    network: str
    device: str
    sub_batch: int
    precision: str
    calibrations: tuple[str, ...]
    terms: tuple[VerifiedTerm, ...]
    not_run: tuple[str, ...]
    repeats: int
    slower: float
