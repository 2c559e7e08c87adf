"""Measured steps of a calibration: whole steps of plans that were timed, over what is predicted of them without.

They are used in :mod:`planner.sources.measured_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.domain.calibration import Calibration, MeasuredStep
from planner.domain.configuration import Configuration, Configurations
from planner.domain.request import Problem
from planner.sources.plan_points import PLAN_POINTS
from planner.steps.predict import Evaluator

__all__ = ["measured_steps", "with_measured_steps", "without_measured_plans"]


def without_measured_plans(calibration: Calibration) -> Calibration:
    """Return a calibration without anything that runs of plans say: neither whole steps nor passes."""
    entries = tuple(entry for entry in calibration.entries if entry.library != PLAN_POINTS)
    if len(entries) == len(calibration.entries) and not calibration.measured_steps:
        return calibration
    return replace(calibration, entries=entries, measured_steps=())


def measured_steps(problem: Problem, times_s: Mapping[Configuration, Sequence[float]]) -> tuple[MeasuredStep, ...]:
    """Return what timed steps of plans take over their predictions.

    Parameters
    ----------
    problem : Problem
    times_s : mapping of Configuration to sequence of float
        Measured steps of each plan, which can be priced [s].

    Raises
    ------
    CoverageError
        Nothing prices a plan.
    """
    bare = replace(problem, calibrations=tuple(map(without_measured_plans, problem.calibrations)))
    predicted_s = Evaluator(bare).evaluate(Configurations.of(list(times_s))).iteration_s
    of = (problem.network.name, problem.cluster.name, problem.settings.framework.label)
    return tuple(
        MeasuredStep(*of, plan, math.exp(float(np.mean(np.log(times)))) / seconds, len(times))
        for (plan, times), seconds in zip(times_s.items(), predicted_s.tolist(), strict=True)
    )


def with_measured_steps(base: Calibration, steps: Iterable[MeasuredStep]) -> Calibration:
    """Return a calibration with measured steps, new ones in place of old ones of the same plan; it has seen them."""
    new = tuple(steps)
    by_key = {one.key: one for one in (*base.measured_steps, *new)}
    seen = tuple(dict.fromkeys((*base.seen, *(one.network for one in new))))
    return replace(base, measured_steps=tuple(by_key.values()), seen=seen)
