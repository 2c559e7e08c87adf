"""Timed training steps: what a framework really took, to compare with the sum of its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from planner.domain.arrays import check_count, check_not_negative, check_positive
from planner.domain.keys import Key
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

    name: Annotated[str, Key("forward, backward, update, or step, their sum")]
    predicted_s: Annotated[float, Key("for the device that ran")]
    measured_s: Annotated[float, Key("median of the repeats")]
    spread_s: Annotated[float, Key("scaled median absolute deviation of the repeats")]

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s


@dataclass(frozen=True, slots=True)
class Verified:
    """Real steps of a plan's per-GPU part beside their prediction, on one device."""

    position: Annotated[int, Key("of the plan in its document")]
    ran: Annotated[str, Key("which part of the network ran, in words")]
    network: Annotated[str, Key("of the plan")]
    device: Annotated[str, Key("what it ran on, and is predicted for")]
    sub_batch: Annotated[int, Key("samples of a pass")]
    precision: Annotated[str, Key("that it computes in")]
    calibrations: Annotated[tuple[str, ...], Key("that predict it", absent=())]
    terms: Annotated[tuple[VerifiedTerm, ...], Key("of one pass and an update", size=(1, None))]
    not_run: Annotated[tuple[str, ...], Key("what of the plan's step did not run, in words", absent=())]
    repeats: Annotated[int, Key("steps that were timed")]
    slower: Annotated[float, Key("times slower than in quiet the machine was")]
