"""``planner calibrate --plan``: measure what decides between the best plans of a suggestion, and refine with it.

Steps of its plans that were timed elsewhere stand in runs files. ``planner verify``: real steps of the part of a plan
that one GPU has, here, beside their prediction for this device: its sub-batch in its precision, through the whole
network or, of a transformer, through what one tensor-parallel rank has of it. It runs in PyTorch, whatever program the
plan is for.

Every axis of a plan is a column of a runs file, so that degrees are decided as sub-batches are. Rows of other networks,
clusters and frameworks are left out, and said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from planner import catalog
from planner.domain.axes import ALL
from planner.domain.calibration import OF_PASSES, Calibration, Entry, MeasuredStep
from planner.domain.cluster import LOCAL, Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import PYTORCH, Framework, variant_and_version
from planner.domain.job import PlanToStart
from planner.domain.kernels import UPDATE
from planner.domain.network import Network
from planner.domain.prediction import Prediction
from planner.domain.request import Problem, Sourced, Subject
from planner.domain.runs import Run
from planner.domain.samples import FREE_CIRCUMSTANCES, Samples, TimedStep, Verified, VerifiedTerm, number_in
from planner.domain.suggestion import Plan
from planner.errors import NOTHING, CoverageError, InputFileError, ParameterError, PlannerError, UnknownNameError
from planner.fitting.step_fit import measured_steps, with_measured_steps
from planner.formats.documents import parse_text, place_of, read_text
from planner.formats.runs import read_runs
from planner.formats.suggestion import SUGGESTION, built, suggestion_of
from planner.probes.bench import DISTURBED_RATIO
from planner.probes.calibrate import KEPT_MEMORY, Measurement
from planner.probes.gpu import Gpu, describe_gpu
from planner.probes.layer_points import OPTIMIZERS
from planner.probes.machine import available_bytes, describe_cpu
from planner.probes.precisions import check_torch, import_torch
from planner.probes.run import told_when_lost
from planner.probes.steps import PlanRun, WantedRun, enough_s
from planner.probes.timing import keep_freed_memory
from planner.scoring.evaluate import sort_runs
from planner.scoring.refit import measured_step_s
from planner.sessions.inputs import OPTION, Machine, Say, Values, machine_of, merge, named_calibration, seen_cluster
from planner.sessions.measure import Session
from planner.sessions.runs import files_of_runs, framework_of, runs_of_log
from planner.steps.predict import Evaluator
from planner.units import format_bytes, format_seconds
from planner.workload.fusion import with_attention
from planner.workload.shards import has_tensor_shards, tensor_shard, trained_as


@dataclass(frozen=True, slots=True)
class Suggested:
    """A suggestion with plans, and what it names."""

    subject: Subject
    plans: tuple[Plan, ...]
    network: Network
    cluster: Cluster
    calibrations: tuple[Calibration, ...]
    dataset: str | None

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Labels of those that its plans are in."""
        return tuple(dict.fromkeys(one.subject(self.subject).settings.framework.label for one in self.plans))

    @property
    def base(self) -> Calibration:
        """Its calibrations of the accelerator, as one."""
        return merged(self.calibrations, self.cluster.node.accelerator.name)

    def machine(self, say: Say) -> Machine:
        """Return what the next suggestion that names the base is priced with."""
        named: Values = {
            "network": Sourced((self.subject.network_option or self.subject.network,), OPTION),
            "cluster": Sourced(self.subject.cluster_option or self.subject.cluster, OPTION),
            "calibration": Sourced((self.base.name,), OPTION),
        }
        return machine_of(named, say, (self.base,))


def merged(calibrations: Sequence[Calibration], device: str) -> Calibration:
    """Return the calibrations of an accelerator as one, the first of equal keys; empty without any."""
    own = [one for one in calibrations if one.accelerator == device]
    entries: dict[tuple[str, ...], Entry] = {}
    steps: dict[tuple[object, ...], MeasuredStep] = {}
    for one in own:
        for entry in one.entries:
            entries.setdefault((*entry.key, entry.mode), entry)
        for step in one.measured_steps:
            steps.setdefault(step.key, step)
    first = own[0] if own else Calibration(f"{device}-runs", device, ())
    return replace(first, entries=tuple(entries.values()), measured_steps=tuple(steps.values()))


def suggested_of(path: str, names: Sequence[str]) -> Suggested:
    """Return the suggestion of a file; calibrations of ``names``, or files, come before those that are known.

    InputFileError: the file is no suggestion.
    ParameterError: it has no plans, or a calibration that it was made with is not found.
    """
    name = place_of(path)
    subject, one = built(SUGGESTION, parse_text(read_text(path), name, "json"), name, suggestion_of)
    if not one.plans:
        raise ParameterError("--plan", "a suggestion with plans", path, "loosen its request first")
    if subject.settings.trainable != ALL:
        raise ParameterError("--plan", "a suggestion that trains all of a network, as steps are run", path)
    request: dict[str, Any] = {key: value.value for key, value in one.request.items()}
    by_name = {text: known for own in names for known in (named_calibration(own),) for text in (own, known.name)}
    calibrations: tuple[Calibration, ...] = ()
    for of_plan in request.get("calibration", ()):  # those that are given, by their names, else those that are known
        try:
            known = by_name.get(of_plan) or by_name.get(Path(of_plan).stem) or named_calibration(of_plan)
        except (UnknownNameError, InputFileError):
            if Path(of_plan).exists():
                raise
            rule = f"given with the file of calibration {of_plan!r}, which the suggestion was made with"
            raise ParameterError("--calibration", rule, ", ".join(names) or NOTHING) from None
        calibrations += (known,)
    network, name = catalog.find_network(subject.network_option or subject.network), subject.cluster
    if (subject.cluster_option or name) == LOCAL:  # the node of the first calibration that records one
        cluster = seen_cluster(calibrations)
        if cluster is None:
            raise ParameterError("--plan", "made with a calibration that records its node", LOCAL)
    else:
        cluster = catalog.find_cluster(subject.cluster_option or name)
    return Suggested(subject, one.plans, network, cluster, calibrations, request.get("dataset"))


MOST_REASONS = 3
"""Rows left out whose reasons are said; more are counted."""


class _Row(NamedTuple):
    run: Run
    place: str


def refined_with_runs(
    plan: tuple[str, int | None], paths: Sequence[str], names: Sequence[str], name: str, say: Say
) -> Calibration:
    """Return the calibration of a suggestion with the measured steps of runs files; ``names``: calibrations.

    ``plan``: the suggestion, and the position of its plan that logs are of; None: that of the one to take.

    InputFileError: a file cannot be read, or no run is of the suggestion's network, cluster and framework.
    ParameterError: the suggestion has no plans, or a calibration that it was made with is not found.
    """
    suggested = suggested_of(plan[0], names)
    rows, left_out = _rows(plan, suggested, paths, say)
    steps: list[MeasuredStep] = []
    for problem, of_problem in _problems(suggested, rows, say):
        by_plan = sort_runs(problem, [row.run for row in of_problem])
        left_out |= {of_problem[at].place: str(reason) for at, reason in by_plan.refused.items()}
        times_s: dict[Configuration, list[float]] = {}
        for plan_of, positions in by_plan.plans.items():
            for at in positions:
                seconds = measured_step_s(of_problem[at].run, plan_of, problem.dataset)
                if seconds is None:
                    left_out[of_problem[at].place] = "it has no time of a step"
                else:
                    times_s.setdefault(plan_of, []).append(seconds)
        steps += measured_steps(problem, times_s) if times_s else ()
    if not steps:
        subject = f"{suggested.network.name} on {suggested.cluster.name} in {' or '.join(suggested.frameworks)}"
        rule = f"file must hold a measured step of {subject}, as {plan[0]} is of, got none"
        raise InputFileError(", ".join(paths), f"{rule}{_because(left_out)}")
    own = {
        (one.subject(suggested.subject).settings.framework.label, one.prediction.configuration)
        for one in suggested.plans
    }
    plans, runs = {(one.framework, one.configuration) for one in steps}, sum(one.runs for one in steps)
    steps_of, of = f"measured step{'s' * (runs != 1)} of", f"plan{'s' * (len(plans) != 1)}"
    say(f"{runs} {steps_of} {len(plans)} {of}, of which the suggestion has {len(plans & own)}")
    if left_out:
        say(f"rows left out: {len(left_out)}{_because(left_out)}")
    steps.sort(key=lambda one: one.runs)  # of a plan that was run in several ways the most runs count
    return replace(with_measured_steps(suggested.base, steps), name=name)


def _rows(
    plan: tuple[str, int | None], suggested: Suggested, paths: Sequence[str], say: Say
) -> tuple[list[_Row], dict[str, str]]:
    """Return the runs of the suggestion's network, cluster and frameworks, and why others are left out, by place."""
    rows: list[_Row] = []
    left_out: dict[str, str] = {}
    of_log = partial(runs_of_log, plan=plan[0], position=plan[1], say=say)
    for path in files_of_runs(paths):
        runs = read_runs(path, of_log)
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
    if run.cluster not in (cluster, suggested.subject.cluster_option):
        return f"its cluster is {run.cluster}"
    if not {framework, variant_and_version(framework)[0]} & set(suggested.frameworks):
        return f"its framework is {framework}"
    return "" if run.mode == "sync" else "it is asynchronous"


def _problems(suggested: Suggested, rows: Sequence[_Row], say: Say) -> Iterator[tuple[Problem, list[_Row]]]:
    """Yield what the next suggestion prices such runs with, where the base is named, and the runs of each problem."""
    machine = suggested.machine(say)
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
        found = catalog.find_dataset(dataset) if dataset else None
        yield machine.problem(suggested.network, found, settings), of_case


def _because(left_out: Mapping[str, str]) -> str:
    reasons = [f"{place}: {why.rstrip('.')}" for place, why in left_out.items()]
    more = [f"{len(reasons) - MOST_REASONS} more"] * (len(reasons) > MOST_REASONS)
    return f" ({'; '.join((*reasons[:MOST_REASONS], *more))})" if reasons else ""


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

    ``path``: of the suggestion; ``names``: names and files of calibrations, before those that are known.

    InputFileError: the file is no suggestion.
    ParameterError: it has no plans, or a calibration that it was made with is not found.
    CoverageError: its accelerator is not in this machine, its framework is not PyTorch, a plan divides layers between
    devices, or the calibration was made under other circumstances.
    """
    suggested = suggested_of(path, names)
    device = suggested.cluster.node.accelerator
    check_torch()
    gpu = None
    if device.kind != "cpu" or describe_cpu()[0].name != device.name:
        gpus = session.present_gpus(catalog.known_accelerator) if device.kind == "gpu" else ()
        gpu = next((one for one in gpus if one.accelerator.name == device.name), None)
        if gpu is None:
            raise CoverageError(
                f"--plan must be of an accelerator of this machine, got {device.name} of cluster "
                f"{suggested.cluster.name!r}; run it on a node of that cluster, or {MEASURED_ELSEWHERE}"
            )
    base = suggested.base
    circumstances = circumstances_of(base.environment, gpu)
    check_circumstances(base, circumstances)
    plans = [one.prediction for one in suggested.plans]
    whole = [one for one in plans if not one.configuration.besides]  # what one device can run
    if not whole:
        words = ", ".join(plans[0].configuration.besides)
        raise CoverageError(f"--plan must be of plans that one device can run, got {words}; {MEASURED_ELSEWHERE}")
    if len(whole) < len(plans):
        count = f"{len(plans) - len(whole)} of {len(plans)} plans split the network"
        session.say(f"{count}, which no run on one device tells of; {MEASURED_ELSEWHERE}")
    runs: dict[tuple[int, str], WantedRun] = {}
    for one in whole:
        plan = one.configuration
        passes_s = sum(term.seconds for term in one.terms if term.name in ("forward", "backward"))
        of = passes_s / plan.accumulation_steps, one.memory_bytes["total"]
        runs.setdefault((plan.sub_batch, plan.precision), WantedRun(plan.sub_batch, plan.precision, *of))
    other = next((one for one in suggested.frameworks if Framework.labelled(one).variant != PYTORCH.name), None)
    if other is not None:
        raise CoverageError(
            f"--plan must be of framework {PYTORCH.name}, which runs are made with, got {other}; suggest "
            f"with --framework {PYTORCH.name}, or {MEASURED_ELSEWHERE}"
        )
    framework = catalog.find_framework(suggested.frameworks[0])
    settings = replace(suggested.subject.settings, input="synthetic", framework=framework)
    problem = suggested.machine(session.say).problem(suggested.network, None, settings)
    return Asking(problem, tuple(runs.values()), base, gpu.device if gpu else "cpu", circumstances)


def check_circumstances(base: Calibration, now: Mapping[str, str]) -> None:
    """Refuse a calibration of other circumstances than those of a run on this machine now."""
    for key in sorted(now.keys() & base.environment.keys() - FREE_CIRCUMSTANCES):
        if now[key] != base.environment[key]:
            raise CoverageError(
                f"circumstance {key} must be {base.environment[key]!r}, as in calibration {base.name}, got "
                f"{now[key]!r}; calibrate again under the circumstances of now"
            )


def circumstances_of(of_base: Mapping[str, str], gpu: Gpu | None) -> dict[str, str]:
    """Return what is true of a run on a device now, as far as the base says it of itself."""
    circumstances = {**describe_cpu()[2], "framework": f"pytorch {import_torch().__version__}"}
    if gpu:
        circumstances |= gpu.circumstances
    if of_base.get("allocator") == KEPT_MEMORY:
        circumstances["allocator"] = KEPT_MEMORY if keep_freed_memory() else "as it is"
    return circumstances


def timed_here(asking: Asking, session: Session, *, budget_s: float, began_s: float) -> tuple[tuple[PlanRun, ...], str]:
    """Return what came of the short runs that are asked for, and the budget that suffices for all, as an option.

    ``budget_s``: time for all [s]; ``began_s``: when the command began, on the session's clock.

    ParameterError: the device computes nothing any more.
    """
    network, base, device = asking.problem.network, asking.base, asking.device
    used_s = session.clock_s() - began_s
    seconds = max(MEASURING_SHARE * (budget_s - used_s), 0.0)
    wanted = asking.runs
    results: tuple[PlanRun, ...] = (PlanRun(),) * len(wanted)
    if seconds:
        times = f"{len(wanted)} times" if len(wanted) > 1 else "once"
        sentence = f"running {network.name} {times} for at most {format_seconds(seconds)}"
        quiet_s = number_in(base.environment.get("reference_s", "").partition(";")[0]) if device == "cpu" else 0.0
        with session.bar("running", seconds, sentence) as show, told_when_lost(device, None):
            results = session.run_plans(network, wanted, seconds, device=device, quiet_s=quiet_s, progress=show)
    whole_s = used_s + 1 + max(enough_s(wanted, results), seconds) / MEASURING_SHARE
    enough = BUDGET_STEP_S * math.ceil(whole_s / BUDGET_STEP_S)
    return results, f"--budget {enough}s"


def refined_here(asking: Asking, name: str, runs: Mapping[Configuration, TimedStep]) -> tuple[Calibration, Measurement]:
    """Return the base calibration, of a name, with the measured passes that runs give, and these runs."""
    base, accelerator = asking.base, asking.problem.cluster.node.accelerator
    circumstances = {key: value for key, value in base.environment.items() if key not in FREE_CIRCUMSTANCES}
    samples = Samples.from_rows([], {**circumstances, **asking.circumstances})
    passes = measured_steps(asking.problem, {plan: [one.time_s] for plan, one in runs.items()}, OF_PASSES)
    calibration = replace(with_measured_steps(base, passes), name=name)
    return calibration, Measurement(samples, tuple(runs.values()), accelerator, asking.problem.cluster.node)


def kept_runs(asking: Asking, results: Sequence[PlanRun], enough: str, say: Say) -> dict[Configuration, TimedStep]:
    """Return the runs that were made in quiet; say of which plans there are none, and why.

    ``enough``: the budget that suffices for all of them, as an option.

    CoverageError: no run was made, for time, memory or a machine that was never quiet.
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


HERE = "this node"
"""In place of a cluster's name: one node of the device that runs."""
TERMS = ("forward", "backward", UPDATE)


def asking_for(plan: PlanToStart, values: Values, session: Session, *, is_kept: bool) -> tuple[Asking, Prediction]:
    """Return the run of a plan's part that is to be made here, and what is predicted of it.

    ``values``: the device and calibrations, where they are given; ``is_kept``: whether a calibration is made of it,
    which asks for the circumstances of the one before.

    CoverageError: nothing predicts it on this device, or the memory does not hold it. MissingPackageError: PyTorch.
    """
    device = str(values["device"].value) if "device" in values else session.default_device(session.say)
    gpu = None if device == "cpu" else describe_gpu(device, catalog.known_accelerator)
    node = gpu.node if gpu else describe_cpu()[1]
    framework = catalog.find_framework(PYTORCH.name)
    option = plan.subject.network_option or plan.subject.network
    trainable = plan.subject.settings.trainable
    whole = trained_as(catalog.find_network(option), trainable)
    network = with_attention(tensor_shard(whole, _ranks(plan, whole)), plan.subject.settings.framework.fuses)
    if is_kept and (trainable != ALL or network.name != whole.name):
        rule = "left out for a tensor-parallel plan, or one that trains a part, as such steps correct no other plan"
        raise ParameterError("--out", rule, values["out"].value)
    here: Values = {"network": Sourced((option,), OPTION), "cluster": Sourced(HERE, OPTION)}
    machine = machine_of(merge(here, values), session.say, found=Cluster(LOCAL, 1, node))
    optimizer = plan.subject.settings.optimizer
    settings = replace(Settings(optimizer, framework.strategy, "synthetic", framework), trainable=trainable)
    problem = machine.problem(network, None, settings)
    one = plan.configuration
    part = Configurations.of([Configuration(1, 1, one.sub_batch, precision=one.precision)])
    try:
        (predicted,) = Evaluator(problem).describe(part)
    except CoverageError as error:  # verify takes the precision of its plan
        instead = "verify another plan by --position, or one of planner predict --precision"
        rest = error.refusal.rest.replace("ask for --precision", instead)
        raise CoverageError(replace(error.refusal, rest=rest)) from None
    device_of = node.accelerator
    needed, free = predicted.memory_bytes["total"], device_of.memory_bytes
    if device_of.kind == "cpu":
        free = min(free, available_bytes())
    if needed > free:
        rule = f"a step of {problem.network.name} must fit the {format_bytes(free)} that {device_of.name} has free"
        got = f"{format_bytes(needed)} for {one.sub_batch} samples"
        raise CoverageError(f"{rule}, got {got}; take a plan of a smaller sub-batch by --position")
    base = merged(machine.calibrations, node.accelerator.name)
    circumstances = circumstances_of(base.environment, gpu)
    try:
        check_circumstances(base, circumstances)
    except CoverageError as error:
        if is_kept:
            raise
        session.say(str(error))
    expected_s = sum(term.seconds for term in predicted.terms if term.name in TERMS)
    timed = optimizer if optimizer in OPTIMIZERS else ""
    wanted = WantedRun(one.sub_batch, one.precision, expected_s, predicted.memory_bytes["total"], timed)
    return Asking(problem, (wanted,), base, gpu.device if gpu else "cpu", circumstances), predicted


def _ranks(plan: PlanToStart, network: Network) -> int:
    """Return of how many tensor-parallel ranks one runs: those of the plan where shards of the network are defined."""
    return plan.configuration.tensor_parallel if has_tensor_shards(network) else 1


def compared(plan: PlanToStart, asking: Asking, predicted: Prediction, run: PlanRun) -> Verified:
    """Return a run beside its prediction; it was made."""
    seconds = {term.name: term.seconds for term in predicted.terms}
    terms = [
        VerifiedTerm(name, seconds[name], part.time_s, part.spread_s)
        for name, part in run.parts.items()
        if seconds.get(name)
    ]
    whole = sum(one.predicted_s for one in terms), sum(one.measured_s for one in terms)
    spread_s = sum(one.spread_s**2 for one in terms) ** 0.5
    used = dict.fromkeys(name for term in predicted.terms if term.name in TERMS for name in term.calibrations)
    one, ranks = plan.configuration, _ranks(plan, asking.problem.network)
    what = f"the part of one of {ranks} tensor-parallel ranks" if ranks > 1 else "the whole network"
    stages = one.pipeline_parallel
    what += f", with the layers of all {stages} stages of the plan" if stages > 1 else ""
    return Verified(
        plan.position,
        what,
        plan.subject.network,
        asking.problem.cluster.node.accelerator.name,
        one.sub_batch,
        one.precision,
        tuple(used),
        (*terms, VerifiedTerm("step", *whole, spread_s)),
        tuple(_not_run(plan, asking, [term.name for term in terms])),
        next(iter(run.parts.values())).repeats,
        run.slower,
    )


def _not_run(plan: PlanToStart, asking: Asking, timed: list[str]) -> Iterator[str]:
    """Yield what of a plan's step did not run here, in words."""
    one, subject = plan.configuration, plan.subject
    if one.gpus > 1:
        yield f"messages between the {one.gpus} {subject.device}s of the plan"
    if one.accumulation_steps > 1:
        yield f"{one.accumulation_steps - 1} further micro-batch{'es' * (one.accumulation_steps > 2)} of a step"
    rest = replace(one, tensor_parallel=1) if _ranks(plan, asking.problem.network) > 1 else one
    if rest.besides:
        yield f"what the plan has besides: {', '.join(rest.besides)}"
    if UPDATE not in timed and subject.settings.optimizer != "none":
        yield f"updates of {subject.settings.optimizer}"
    framework = subject.settings.framework
    if framework.label != PYTORCH.name:
        but = " but for fused attention" if "attention" in framework.fuses else ""
        yield f"kernels and switches of {framework.label}{but}: this is plain PyTorch"
    if subject.settings.input == "storage":
        yield "reading of samples and their copy to the device"
