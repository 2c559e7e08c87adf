"""The suggestion of ``planner calibrate --plan``, and steps of its plans that were timed elsewhere, in runs files.

Every axis of a plan is a column of a runs file, so that degrees are decided as sub-batches are. Rows of other networks,
clusters and frameworks are left out, and said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from planner import catalog
from planner.domain.calibration import Calibration, Entry, MeasuredStep
from planner.domain.cluster import LOCAL, Cluster
from planner.domain.configuration import Configuration, Settings
from planner.domain.framework import variant_and_version
from planner.domain.network import Network
from planner.domain.request import Problem, Sourced
from planner.domain.runs import Run
from planner.errors import NOTHING, InputFileError, ParameterError, PlannerError, UnknownNameError
from planner.fitting.measured_steps import measured_steps, with_measured_steps
from planner.formats.configuration import configuration_of, subject_of
from planner.formats.runs import read_runs
from planner.formats.suggestion import SUGGESTION
from planner.scoring.evaluate import sort_runs
from planner.scoring.refit import measured_step_s
from planner.sessions.inputs import OPTION, Machine, Say, Values, machine_of, named_calibration
from planner.sessions.runs import framework_of

__all__ = ["Suggested", "refined_with_runs", "suggested_of"]


@dataclass(frozen=True, slots=True)
class Suggested:
    """A suggestion with plans."""

    plans: Sequence[Mapping[str, Any]]
    settings: Settings
    frameworks: tuple[str, ...]
    network: Network
    network_option: str
    cluster_option: str
    cluster: Cluster
    calibrations: tuple[Calibration, ...]
    dataset: str | None

    def base(self) -> Calibration:
        """Return the calibrations of the accelerator as one, the first of equal keys; empty without any."""
        device = self.cluster.node.accelerator
        own = [one for one in self.calibrations if one.accelerator == device.name]
        entries: dict[tuple[str, ...], Entry] = {}
        steps: dict[tuple[object, ...], MeasuredStep] = {}
        for one in own:
            for entry in one.entries:
                entries.setdefault((*entry.key, entry.mode), entry)
            for step in one.measured_steps:
                steps.setdefault(step.key, step)
        first = own[0] if own else Calibration(f"{device.name}-runs", device.name, ())
        return replace(first, entries=tuple(entries.values()), measured_steps=tuple(steps.values()))

    def machine(self, base: Calibration, say: Say) -> Machine:
        """Return what the next suggestion that names the base is priced with."""
        named: Values = {
            "network": Sourced((self.network_option,), OPTION),
            "cluster": Sourced(self.cluster_option, OPTION),
            "calibration": Sourced((base.name,), OPTION),
        }
        return machine_of(named, say, (base,))


def suggested_of(path: str, names: Sequence[str]) -> Suggested:
    """Return the suggestion of a file; calibrations of ``names``, or files, come before those that are known.

    InputFileError: the file is no suggestion.
    ParameterError: it has no plans, or a calibration that it was made with is not found.
    """
    document = SUGGESTION.read(path)
    configurations = [plan["configuration"] for plan in document["plans"]]
    if not configurations:
        raise ParameterError("--plan", "a suggestion with plans", path, "loosen its request first")
    request, subject = {key: one["value"] for key, one in document["request"].items()}, document["subject"]
    calibrations = _calibrations(request.get("calibration", ()), names)
    named_cluster, named_network = (request.get(key, subject[key]) for key in ("cluster", "network"))
    return Suggested(
        document["plans"],
        subject_of(subject, configurations).settings,
        tuple(dict.fromkeys(one["framework"] or subject["framework"] for one in configurations)),
        catalog.find_network(named_network),
        named_network,
        named_cluster,
        _cluster(named_cluster, calibrations),
        calibrations,
        request.get("dataset"),
    )


def _calibrations(names: Sequence[str], files: Sequence[str]) -> tuple[Calibration, ...]:
    """Return the calibrations of a suggestion: those that are given, by their names, else those that are known."""
    by_name = {text: one for name in files for one in (named_calibration(name),) for text in (name, one.name)}
    calibrations = []
    for name in names:
        one_known = by_name.get(name) or by_name.get(Path(name).stem)
        try:
            calibrations.append(one_known or named_calibration(name))
        except (UnknownNameError, InputFileError):
            if Path(name).exists():
                raise
            rule = f"given with the file of calibration {name!r}, which the suggestion was made with"
            raise ParameterError("--calibration", rule, ", ".join(files) or NOTHING) from None
    return tuple(calibrations)


def _cluster(name: str, calibrations: Sequence[Calibration]) -> Cluster:
    """Return the cluster of a suggestion; ``local`` is the node of the first calibration that records one."""
    if name != LOCAL:
        return catalog.find_cluster(name)
    node = next((one.node for one in calibrations if one.node is not None), None)
    if node is None:
        raise ParameterError("--plan", "made with a calibration that records its node", LOCAL)
    return Cluster(LOCAL, 1, node)


MOST_REASONS = 3
"""Rows left out whose reasons are said; more are counted."""


class _Row(NamedTuple):
    run: Run
    place: str


def refined_with_runs(plan: str, paths: Sequence[str], names: Sequence[str], name: str, say: Say) -> Calibration:
    """Return the calibration of a suggestion with the measured steps of runs files; ``names``: calibrations.

    InputFileError: a file cannot be read, or no run is of the suggestion's network, cluster and framework.
    ParameterError: the suggestion has no plans, or a calibration that it was made with is not found.
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
    steps.sort(key=lambda one: one.runs)  # of a plan that was run in several ways the most runs count
    return replace(with_measured_steps(base, steps), name=name)


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
        own, cluster = suggested.network.name, suggested.cluster.name
        # A name that standard input gave is in no catalog.
        network = own if run.network == own else catalog.find_network(run.network).name
        framework = catalog.find_framework(framework_of(run)).label
    except PlannerError as error:
        return str(error)
    if network != suggested.network.name:
        return f"its network is {network}"
    if run.cluster not in (cluster, suggested.cluster_option):
        return f"its cluster is {run.cluster}"
    if not {framework, variant_and_version(framework)[0]} & set(suggested.frameworks):
        return f"its framework is {framework}"
    return "" if run.mode == "sync" else "it is asynchronous"


def _problems(
    suggested: Suggested, base: Calibration, rows: Sequence[_Row], say: Say
) -> Iterator[tuple[Problem, list[_Row]]]:
    """Yield what the next suggestion prices such runs with, where the base is named, and the runs of each problem."""
    machine = suggested.machine(base, say)
    dataset = suggested.dataset or suggested.network.dataset
    by_case: dict[tuple[str, str, str, str, tuple[str, ...]], list[_Row]] = {}
    for row in rows:
        run = row.run
        optimizer = run.optimizer or suggested.network.optimizer
        case = framework_of(run), optimizer, run.strategy, run.input, run.rank_order
        by_case.setdefault(case, []).append(row)
    for (name, optimizer, strategy, source, order), of_case in by_case.items():
        framework = catalog.find_framework(name)
        settings = Settings(optimizer, strategy or framework.strategy, source, framework, order)
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


def _tell(suggested: Suggested, steps: Sequence[MeasuredStep], say: Say) -> None:
    first, *_ = suggested.frameworks
    plans = {
        (plan["configuration"]["framework"] or first, configuration_of(plan["configuration"]))
        for plan in suggested.plans
    }
    measured = {(one.framework, one.configuration) for one in steps}
    runs = sum(one.runs for one in steps)
    say(f"{runs} measured steps of {len(measured)} plans, of which the suggestion has {len(measured & plans)}")


def _because(left_out: Mapping[str, str]) -> str:
    reasons = [f"{place}: {why.rstrip('.')}" for place, why in left_out.items()]
    more = [f"{len(reasons) - MOST_REASONS} more"] * (len(reasons) > MOST_REASONS)
    return f" ({'; '.join((*reasons[:MOST_REASONS], *more))})" if reasons else ""
