"""Measured steps of a calibration: plans that were timed, over what is predicted of them without.

They are used in :mod:`planner.sources.measured_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.domain.calibration import OF_PASSES, OF_STEP, Calibration, MeasuredStep
from planner.domain.configuration import Configuration, Configurations
from planner.domain.request import Problem
from planner.steps.predict import Evaluator

__all__ = ["measured_steps", "with_measured_steps", "without_measured_plans"]


def without_measured_plans(calibration: Calibration) -> Calibration:
    """Return a calibration without anything that runs of plans say: neither whole steps nor passes."""
    return replace(calibration, measured_steps=()) if calibration.measured_steps else calibration


def measured_steps(
    problem: Problem, times_s: Mapping[Configuration, Sequence[float]], of: str = OF_STEP
) -> tuple[MeasuredStep, ...]:
    """Return what timed plans take over their predictions.

    Parameters
    ----------
    problem : Problem
    times_s : mapping of Configuration to sequence of float
        Measured times of each plan, which can be priced [s].
    of : OF_STEP or OF_PASSES
        What was timed; of passes plans are of one micro-batch on one device.

    Raises
    ------
    CoverageError
        Nothing prices a plan.
    """
    bare = replace(problem, calibrations=tuple(map(without_measured_plans, problem.calibrations)))
    evaluator, plans = Evaluator(bare), Configurations.of(list(times_s))
    if of == OF_PASSES:
        terms = [one.terms for one in evaluator.describe(plans)]
        predicted_s = [sum(term.seconds for term in some if term.name in ("forward", "backward")) for some in terms]
    else:
        predicted_s = evaluator.evaluate(plans).iteration_s.tolist()
    cluster, framework = "" if of == OF_PASSES else problem.cluster.name, problem.settings.framework.label
    return tuple(
        MeasuredStep(
            problem.network.name, cluster, framework, plan, math.exp(float(np.mean(np.log(times)))) / seconds,
            len(times), of,
        )
        for (plan, times), seconds in zip(times_s.items(), predicted_s, strict=True)
    )  # fmt: skip


def with_measured_steps(base: Calibration, steps: Iterable[MeasuredStep]) -> Calibration:
    """Return a calibration with measured steps, new ones in place of old ones of the same plan; it has seen them."""
    new = tuple(steps)
    by_key = {one.key: one for one in (*base.measured_steps, *new)}
    seen = tuple(dict.fromkeys((*base.seen, *(one.network for one in new))))
    return replace(base, measured_steps=tuple(by_key.values()), seen=seen)
