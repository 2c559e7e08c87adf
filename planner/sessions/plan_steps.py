"""``planner calibrate --plan --runs``: steps that were timed elsewhere decide between the plans of a suggestion.

A runs file holds them, as ``planner validate`` reads: every axis of a plan is a column, so that degrees are decided as
sub-batches are. Rows of other networks, clusters and frameworks are left out, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from planner import catalog
from planner.domain.calibration import Calibration, MeasuredStep
from planner.domain.configuration import Configuration, Settings
from planner.domain.framework import variant_and_version
from planner.domain.request import Problem
from planner.domain.runs import Run
from planner.errors import InputFileError, PlannerError
from planner.fitting.measured_steps import measured_steps, with_measured_steps
from planner.formats.configuration import configuration_of
from planner.formats.runs import read_runs
from planner.scoring.evaluate import sort_runs
from planner.scoring.refit import measured_step_s
from planner.sessions.suggested import Suggested, suggested_of
from planner.sessions.values import Say

__all__ = ["refined_with_runs"]

MOST_REASONS = 3
"""Rows left out whose reasons are said; more are counted."""


class _Row(NamedTuple):
    """A run, and where it stands in which file."""

    run: Run
    place: str


class _Case(NamedTuple):
    """What runs of one problem share."""

    framework: str
    optimizer: str
    strategy: str
    input: str
    rank_order: tuple[str, ...]


def refined_with_runs(plan: str, paths: Sequence[str], names: Sequence[str], name: str, say: Say) -> Calibration:
    """Return the calibration of a suggestion with the measured steps of runs files.

    Parameters
    ----------
    plan : str
        File of the suggestion.
    paths : sequence of str
        Of runs files.
    names : sequence of str
        Names and files of calibrations, before those that are known.
    name : str
        Of the calibration.
    say : callable

    Raises
    ------
    InputFileError
        A file cannot be read, or no run is of the suggestion's network, cluster and framework.
    ParameterError
        The suggestion has no plans, or a calibration that it was made with is not found.
    """
    suggested = suggested_of(plan, names)
    base = suggested.base()
    rows, left_out = _rows(suggested, paths)
    steps: list[MeasuredStep] = []
    for problem, of_problem in _problems(suggested, base, rows, say):
        times_s, refused = _times(problem, of_problem)
        left_out |= refused
        steps += measured_steps(problem, times_s) if times_s else ()
    if not steps:
        subject = f"{suggested.network.name} on {suggested.cluster.name} in {' or '.join(suggested.frameworks)}"
        rule = f"file must hold a measured step of {subject}, as {plan} is of, got none"
        raise InputFileError(", ".join(paths), f"{rule}{_because(left_out)}")
    _tell(suggested, steps, say)
    if left_out:
        say(f"rows left out: {len(left_out)}{_because(left_out)}")
    return replace(with_measured_steps(base, _each_plan_once(steps)), name=name)


def _rows(suggested: Suggested, paths: Sequence[str]) -> tuple[list[_Row], dict[str, str]]:
    """Return the runs of the suggestion's network, cluster and frameworks, and why others are left out, by place."""
    rows: list[_Row] = []
    left_out: dict[str, str] = {}
    for path in paths:
        runs = read_runs(path)
        left_out |= {f"{path} line {one.line}": str(one.reason) for one in runs.refused}
        for run in runs.rows:
            place = f"{path} line {run.line}"
            why = _why_of_another(suggested, run)
            if why:
                left_out[place] = why
            else:
                rows.append(_Row(run, place))
    return rows, left_out


def _why_of_another(suggested: Suggested, run: Run) -> str:
    """Return why a run says nothing of the suggestion; empty: it is of the same problem."""
    try:
        own, cluster = (
            suggested.network.name,
            suggested.cluster.name,
        )  # a name that standard input gave is in no catalog
        network = own if run.network == own else catalog.find_network(run.network).name
        framework = catalog.find_framework(_framework(run)).label
    except PlannerError as error:
        return str(error)
    if network != suggested.network.name:
        return f"its network is {network}"
    if run.cluster not in (cluster, suggested.cluster_option):
        return f"its cluster is {run.cluster}"
    if not {framework, variant_and_version(framework)[0]} & set(suggested.frameworks):
        return f"its framework is {framework}"
    return "" if run.mode == "sync" else "it is asynchronous"


def _framework(run: Run) -> str:
    return run.framework + (f"@{run.framework_version}" if run.framework_version else "")


def _problems(
    suggested: Suggested, base: Calibration, rows: Sequence[_Row], say: Say
) -> Iterator[tuple[Problem, list[_Row]]]:
    """Yield what the next suggestion prices such runs with, where the base is named, and the runs of each problem."""
    machine = suggested.machine(base, say)
    dataset = suggested.dataset or suggested.network.dataset
    by_case: dict[_Case, list[_Row]] = {}
    for row in rows:
        run = row.run
        optimizer = run.optimizer or suggested.network.optimizer
        case = _Case(_framework(run), optimizer, run.strategy, run.input, run.rank_order)
        by_case.setdefault(case, []).append(row)
    for case, of_case in by_case.items():
        framework = catalog.find_framework(case.framework)
        settings = Settings(case.optimizer, case.strategy or framework.strategy, case.input, framework, case.rank_order)
        problem = Problem(
            suggested.network,
            catalog.find_dataset(dataset) if dataset else None,
            machine.cluster,
            machine.calibrations,
            machine.explicit,
            settings=settings,
        )
        yield problem, of_case


def _times(problem: Problem, rows: Sequence[_Row]) -> tuple[dict[Configuration, list[float]], dict[str, str]]:
    """Return the measured steps of each plan [s], and why rows have none, by place."""
    by_plan = sort_runs(problem, [row.run for row in rows])
    refused = {rows[at].place: str(reason) for at, reason in by_plan.refused.items()}
    times_s: dict[Configuration, list[float]] = {}
    for plan, positions in by_plan.plans.items():
        for at in positions:
            seconds = measured_step_s(rows[at].run, plan, problem.dataset)
            if seconds is None:
                refused[rows[at].place] = "it has no time of a step"
            else:
                times_s.setdefault(plan, []).append(seconds)
    return times_s, refused


def _each_plan_once(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Return the steps; of a plan that was run in several ways the one with the most runs."""
    return sorted(steps, key=lambda one: one.runs)


def _tell(suggested: Suggested, steps: Sequence[MeasuredStep], say: Say) -> None:
    """Say how many steps are of which plans."""
    first, *_ = suggested.frameworks
    plans = {
        (plan["configuration"]["framework"] or first, configuration_of(plan["configuration"]))
        for plan in suggested.plans
    }
    measured = {(one.framework, one.configuration) for one in steps}
    runs = sum(one.runs for one in steps)
    say(f"{runs} measured steps of {len(measured)} plans, of which the suggestion has {len(measured & plans)}")


def _because(left_out: Mapping[str, str]) -> str:
    """Return the first reasons, in brackets; nothing without any."""
    reasons = [f"{place}: {why.rstrip('.')}" for place, why in left_out.items()]
    more = [f"{len(reasons) - MOST_REASONS} more"] * (len(reasons) > MOST_REASONS)
    return f" ({'; '.join((*reasons[:MOST_REASONS], *more))})" if reasons else ""
