"""Measured plan points of a calibration: times of training runs over their predictions, shrunk towards 1.

What is stored of a point is what its own runs say of it; what points of a network say together is worked out where
they are used, in :mod:`planner.sources.plan_points`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.calibration import Calibration, Entry
from planner.domain.configuration import Configurations
from planner.domain.request import Problem
from planner.domain.training import TimedStep
from planner.fitting.measured_steps import without_measured_plans
from planner.sources.plan_points import PLAN_POINTS, PlanPoint, as_setting, points_of_entry, weight_of_runs
from planner.sources.sources import Sources
from planner.steps.passes import Passes
from planner.steps.step_costs import StepCosts

__all__ = ["PlanPointRun", "with_plan_points"]


@dataclass(frozen=True, slots=True)
class PlanPointRun:
    """A measured run of a plan point: tensor-parallel degree, precision, and the time of its gradient computation."""

    tensor: int
    precision: str
    step: TimedStep


def with_plan_points(base: Calibration, problem: Problem, runs: Sequence[PlanPointRun]) -> Calibration:
    """Return a calibration with the plan points that runs of one network give, beside those that it has of others.

    Parameters
    ----------
    base : Calibration
    problem : Problem
        Of the network; the base is one of its calibrations.
    runs : sequence of PlanPointRun
        Of that network, without an update of weights; of one precision or several.

    Raises
    ------
    CoverageError
        Nothing prices the network.
    """
    entries = list(base.entries)
    for precision in dict.fromkeys(run.precision for run in runs):
        points = _points(problem, [run for run in runs if run.precision == precision])
        old = next((entry for entry in entries if _holds_points(entry, problem, precision)), None)
        new = _entry(old, problem, precision, points)
        entries = [new if entry is old else entry for entry in entries] if old else [*entries, new]
    return replace(base, entries=tuple(entries))


def _holds_points(entry: Entry, problem: Problem, precision: str) -> bool:
    key = ("overheads", problem.settings.framework.label, "", precision, PLAN_POINTS)
    return entry.key == key


def _points(problem: Problem, runs: Sequence[PlanPointRun]) -> tuple[PlanPoint, ...]:
    """Plan points of runs in one precision: measured over predicted without runs."""
    bare = replace(problem, calibrations=tuple(map(without_measured_plans, problem.calibrations)))
    costs = StepCosts(Sources(bare), runs[0].precision)
    plans = Configurations.having(sub_batch=np.array([run.step.sub_batch for run in runs]))
    passes = Passes(costs, plans, costs.ranks(plans))
    predicted_s = (passes.forward_s + passes.backward.first_s)[passes.cases.case]
    ratios: dict[tuple[int, int], list[float]] = {}
    for run, seconds in zip(runs, predicted_s.tolist(), strict=True):
        ratios.setdefault((run.tensor, run.step.sub_batch), []).append(math.log(run.step.time_s / seconds))
    return tuple(
        PlanPoint(*key, math.exp(sum(logs) / len(logs) * weight_of_runs(len(logs))), len(logs))
        for key, logs in sorted(ratios.items())
    )


def _entry(old: Entry | None, problem: Problem, precision: str, points: Sequence[PlanPoint]) -> Entry:
    """Return the entry of a framework and precision with the points of a network, new ones in place of old ones."""
    network, framework = problem.network.name, problem.settings.framework.label
    by_case = {(one.tensor, one.sub_batch): one for one in (points_of_entry(old, network) if old else ())}
    by_case |= {(one.tensor, one.sub_batch): one for one in points}
    settings = {**(old.settings if old else {}), network: as_setting(by_case[key] for key in sorted(by_case))}
    entry = Entry(
        "overheads", framework, "", precision, PLAN_POINTS, "overheads", settings, {},
        estimator="shrunken means", source=f"training runs of {', '.join(sorted(settings))}",
        notes="measured over predicted time of forward and backward passes, drawn towards 1",
    )  # fmt: skip
    return replace(entry, samples=sum(one.runs for name in settings for one in points_of_entry(entry, name)))
