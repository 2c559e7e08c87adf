"""What a run of the measuring loop is for: what is measured next, when that is enough, what is kept to fit it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from planner.probes.points import Point

__all__ = ["Chooser", "Goal", "nothing_kept"]


class Chooser(Protocol):
    """What decides which points are measured next; the same timings give the same choice."""

    def start(self) -> Sequence[str]:
        """Return the names of the points that are measured before any is chosen."""

    def learn(self, timed: Mapping[str, float]) -> float:
        """Take in the times of points by name [s]; return the expected relative error of wanted predictions."""

    def choose(self, left: Collection[str], seconds: float, most_s: float) -> Sequence[str]:
        """Return names among those left, in order, that take about so long to measure; none where nothing helps.

        None that is expected to take longer than ``most_s`` is among them.
        """


def nothing_kept(_points: int) -> float:
    """Keep nothing of the budget for a fit."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Goal:
    """What a run is for.

    Attributes
    ----------
    chooser : points -> Chooser
    later : tuple of Point
        Measured once all others had their passes, or as soon as they are through where an error is aimed at.
    target_error : float or None
        Expected error at which the run stops; None: it goes on until its time is up.
    kept_s : callable
        Number of points with a timing -> what is kept of the budget to fit them [s]. Asked once the points that the
        chooser starts with are measured: where time does not suffice for these, nothing is kept.
    """

    chooser: Callable[[Sequence[Point]], Chooser]
    later: tuple[Point, ...] = ()
    target_error: float | None = None
    kept_s: Callable[[int], float] = nothing_kept
