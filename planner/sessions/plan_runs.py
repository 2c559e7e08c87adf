"""``planner calibrate --plan``: measure what decides between the best plans of a suggestion, and refine with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner import catalog
from planner.domain.calibration import OF_PASSES, Calibration
from planner.domain.cluster import Cluster
from planner.domain.configuration import Configuration
from planner.domain.framework import PYTORCH, Framework
from planner.domain.request import Problem
from planner.domain.samples import FREE_CIRCUMSTANCES, Samples
from planner.domain.training import TimedStep
from planner.errors import CoverageError
from planner.fitting.measured_steps import measured_steps, with_measured_steps
from planner.formats.configuration import configuration_of
from planner.probes.bench import DISTURBED_RATIO
from planner.probes.calibrate import KEPT_MEMORY, Measurement
from planner.probes.gpu import Gpu, told_when_lost
from planner.probes.machine import describe_cpu
from planner.probes.plan_runs import PlanRun, WantedRun, enough_s
from planner.probes.precisions import check_torch, import_torch
from planner.probes.timing import keep_freed_memory
from planner.sessions.inputs import Say
from planner.sessions.measure import Session
from planner.sessions.suggested import Suggested, suggested_of
from planner.units import format_seconds

__all__ = ["Asking", "asking_of", "refined_here"]

MEASURING_SHARE = 0.9
"""Of the time that is left, for the runs; what follows takes next to none."""
BUDGET_STEP_S = 5
"""A budget that is named is a multiple [s]."""
WHEN_QUIET = "run it again when the machine is quiet"
MEASURED_ELSEWHERE = "time their steps where they run and give them as a runs file by --runs FILE.csv"


@dataclass(frozen=True, slots=True)
class Asking:
    """What a suggestion leaves to be measured.

    Attributes
    ----------
    problem : the network, priced as by the next suggestion that names the base
    runs : of its plans on one device, the best first, each sub-batch and precision once
    base : what the suggestion was made with of the accelerator, as one
    device : the accelerator, as PyTorch names it
    circumstances : mapping of str to str, of a run on it now, as far as the base says them of itself
    """

    problem: Problem
    runs: tuple[WantedRun, ...]
    base: Calibration
    device: str
    circumstances: Mapping[str, str]


def asking_of(path: str, names: Sequence[str], session: Session) -> Asking:
    """Return what the suggestion of ``--plan`` leaves to be measured on this machine.

    Parameters
    ----------
    path : of the suggestion
    names : names and files of calibrations, before those that are known

    Raises
    ------
    InputFileError : the file is no suggestion
    ParameterError : it has no plans, or a calibration that it was made with is not found
    CoverageError : its accelerator is not in this machine, its framework is not PyTorch, a plan divides layers between
        devices, or the calibration was made under other circumstances
    """
    suggested = suggested_of(path, names)
    gpu = _gpu(suggested.cluster, session)
    base = suggested.base()
    circumstances = _circumstances(base.environment, gpu)
    _check_circumstances(base, circumstances)
    plans = _plans_of_one_device(suggested, session.say)
    runs: dict[tuple[int, str], WantedRun] = {}
    for plan in plans:
        key = plan["configuration"]["sub_batch"], plan["configuration"]["precision"]
        runs.setdefault(key, WantedRun(*key, _passes_s(plan), plan["prediction"]["memory_bytes"]["total"]))
    settings = replace(suggested.settings, input="synthetic", framework=_framework(suggested.frameworks))
    machine = suggested.machine(base, session.say)
    problem = Problem(
        suggested.network, None, machine.cluster, machine.calibrations, machine.explicit, settings=settings
    )
    return Asking(problem, tuple(runs.values()), base, gpu.device if gpu else "cpu", circumstances)


def _plans_of_one_device(suggested: Suggested, say: Say) -> list[Mapping[str, Any]]:
    """Return the plans that one device can run: those that leave the network whole; say of how many it is not so."""
    split = [plan for plan in suggested.plans if configuration_of(plan["configuration"]).besides]
    if not split:
        return list(suggested.plans)
    rest = [plan for plan in suggested.plans if plan not in split]
    if not rest:
        words = ", ".join(configuration_of(split[0]["configuration"]).besides)
        raise CoverageError(f"--plan must be of plans that one device can run, got {words}; {MEASURED_ELSEWHERE}")
    count = f"{len(split)} of {len(suggested.plans)} plans split the network"
    say(f"{count}, which no run on one device tells of; {MEASURED_ELSEWHERE}")
    return rest


def _framework(labels: Sequence[str]) -> Framework:
    """Return the framework of a suggestion, which must be the one that runs are made with."""
    other = next((label for label in labels if Framework.labelled(label).variant != PYTORCH.name), None)
    if other is not None:
        raise CoverageError(
            f"--plan must be of framework {PYTORCH.name}, which runs are made with, got {other}; suggest "
            f"with --framework {PYTORCH.name}, or {MEASURED_ELSEWHERE}"
        )
    return catalog.find_framework(labels[0])


def _passes_s(plan: Mapping[str, Any]) -> float:
    """Return what a plan's passes forward and backward of one sub-batch are expected to take [s]."""
    passes = sum(term["seconds"] for term in plan["prediction"]["terms"] if term["name"] in ("forward", "backward"))
    return float(passes) / int(plan["configuration"]["accumulation_steps"])


def _gpu(cluster: Cluster, session: Session) -> Gpu | None:
    """Return the GPU of this machine that is the cluster's accelerator, or None where that is its CPU."""
    device = cluster.node.accelerator
    check_torch()
    if device.kind == "cpu" and describe_cpu()[0].name == device.name:
        return None
    gpus = session.present_gpus(catalog.known_accelerator) if device.kind == "gpu" else ()
    gpu = next((gpu for gpu in gpus if gpu.accelerator.name == device.name), None)
    if gpu:
        return gpu
    raise CoverageError(
        f"--plan must be of an accelerator of this machine, got {device.name} of cluster {cluster.name!r}; run it on a "
        f"node of that cluster, or {MEASURED_ELSEWHERE}"
    )


def _check_circumstances(base: Calibration, now: Mapping[str, str]) -> None:
    """Refuse a calibration of other circumstances than those of a run on this machine now."""
    for key in sorted(now.keys() & base.environment.keys() - FREE_CIRCUMSTANCES):
        if now[key] != base.environment[key]:
            raise CoverageError(
                f"circumstance {key} must be {base.environment[key]!r}, as in calibration {base.name}, got "
                f"{now[key]!r}; calibrate again under the circumstances of now"
            )


def _circumstances(of_base: Mapping[str, str], gpu: Gpu | None) -> dict[str, str]:
    """Return what is true of a run on a device now, as far as the base says it of itself."""
    circumstances = {**describe_cpu()[2], "framework": f"pytorch {import_torch().__version__}"}
    if gpu:
        circumstances |= gpu.circumstances
    if of_base.get("allocator") == KEPT_MEMORY:
        circumstances["allocator"] = KEPT_MEMORY if keep_freed_memory() else "as it is"
    return circumstances


def refined_here(
    asking: Asking, name: str, session: Session, *, budget_s: float, began_s: float
) -> tuple[Calibration, Measurement]:
    """Return the base calibration with the measured passes that short runs give, and these runs.

    Parameters
    ----------
    name : of the calibration
    budget_s : time for all [s]
    began_s : when the command began, on the session's clock

    Raises
    ------
    CoverageError : no run was made, for time, memory or a machine that was never quiet
    ParameterError : the device computes nothing any more
    """
    network, base, device = asking.problem.network, asking.base, asking.device
    used_s = session.clock_s() - began_s
    seconds = max(MEASURING_SHARE * (budget_s - used_s), 0.0)
    wanted = asking.runs
    results: tuple[PlanRun, ...] = (PlanRun(),) * len(wanted)
    if seconds:
        sentence = f"running {network.name} {len(wanted)} times for at most {format_seconds(seconds)}"
        quiet_s = _number(base.environment.get("reference_s", "")) if device == "cpu" else 0.0
        with session.bar("running", seconds, sentence) as show, told_when_lost(device, None):
            results = session.run_plans(network, wanted, seconds, device=device, quiet_s=quiet_s, progress=show)
    whole_s = used_s + 1 + max(enough_s(wanted, results), seconds) / MEASURING_SHARE
    enough = BUDGET_STEP_S * math.ceil(whole_s / BUDGET_STEP_S)
    runs = _runs(asking, results, f"--budget {enough}s", session.say)
    accelerator = asking.problem.cluster.node.accelerator
    circumstances = {key: value for key, value in base.environment.items() if key not in FREE_CIRCUMSTANCES}
    samples = Samples.from_rows([], {**circumstances, **asking.circumstances})
    passes = measured_steps(asking.problem, {plan: [one.time_s] for plan, one in runs.items()}, OF_PASSES)
    calibration = replace(with_measured_steps(base, passes), name=name)
    return calibration, Measurement(samples, tuple(runs.values()), accelerator, asking.problem.cluster.node)


def _runs(asking: Asking, results: Sequence[PlanRun], enough: str, say: Say) -> dict[Configuration, TimedStep]:
    """Return the runs that were made in quiet; say of which plans there are none, and why.

    ``enough``: the budget that suffices for all of them, as an option.
    """
    network = asking.problem.network.name
    names = [f"sub-batch {one.sub_batch} in {one.precision}" for one in asking.runs]
    outcomes = tuple(zip(names, results, strict=True))
    runs = {
        Configuration(1, 1, wanted.sub_batch, precision=wanted.precision): one.step
        for wanted, one in zip(asking.runs, results, strict=True)
        if one.step and not one.is_disturbed
    }
    missing = [name for name, one in outcomes if not one.step and not one.failed]
    failures = [f"{name}: {one.failed}" for name, one in outcomes if one.failed]
    slow = [f"{name}: {one.slower:.3g} times slower than in quiet" for name, one in outcomes if one.is_disturbed]
    if not runs:
        reasons = f" ({'; '.join((*failures, *slow))})" if failures or slow else ""
        rule = f"a run of {network} must be made in time, in memory and on a quiet machine, got none{reasons}"
        remedies = [f"{enough} suffices"] * bool(missing) + [WHEN_QUIET] * bool(slow)
        raise CoverageError(f"{rule}; {'; '.join(remedies) or 'make a suggestion of other plans'}")
    if missing:
        say(f"no run was made in time of {', '.join(missing)}; {enough} suffices for every plan")
    if failures:
        say(f"no run could be made of {'; '.join(failures)}")
    if slow:
        rule = f"runs of {network} on a machine more than {DISTURBED_RATIO} times slower than in quiet are left out"
        say(f"{rule}, got {'; '.join(slow)}; {WHEN_QUIET}")
    return runs


def _number(text: str) -> float:
    try:
        return float(text.partition(";")[0])
    except ValueError:
        return 0.0
