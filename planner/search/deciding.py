"""Which of the tied plans to run, so that a few measured steps decide between them."""

from __future__ import annotations

from collections.abc import Sequence

from planner.domain.suggestion import Plan

__all__ = ["deciding_plans"]

MOST_RUNS = 3
"""Plans that are worth a run: of three tried the best one is rarely much slower than the best of all."""


def deciding_plans(tied: Sequence[Plan], reported: Sequence[Plan], chosen: Plan) -> tuple[int, ...]:
    """Return the positions of the first tied plans of an answer, the chosen one among them; none where it is alone.

    Steps of asynchronous plans correct no prediction, so that such plans are left out.
    """
    plans = [plan for plan in tied if plan in reported and plan.prediction.configuration.mode == "sync"]
    first = plans[:MOST_RUNS]
    if chosen in plans[MOST_RUNS:]:
        first[-1] = chosen
    return tuple(plan.position for plan in first) if len(first) > 1 and chosen in first else ()
