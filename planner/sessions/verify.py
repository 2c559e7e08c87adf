"""``planner verify``: real steps of the part of a plan that one GPU has, here, beside their prediction for this device.

What one device can run of a plan is its sub-batch in its precision, through the whole network or, of a transformer,
through what one tensor-parallel rank has of it. It runs in PyTorch, whatever program the plan is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner import catalog
from planner.domain.axes import ALL
from planner.domain.cluster import LOCAL, Cluster
from planner.domain.configuration import Configuration, Configurations, Settings
from planner.domain.framework import PYTORCH
from planner.domain.job import PlanToStart
from planner.domain.kernels import UPDATE
from planner.domain.network import Network
from planner.domain.prediction import Prediction
from planner.domain.request import Problem, Sourced
from planner.domain.training import Verified, VerifiedTerm
from planner.errors import CoverageError, ParameterError
from planner.probes.gpu import describe_gpu
from planner.probes.layer_points import OPTIMIZERS
from planner.probes.machine import available_bytes, describe_cpu
from planner.probes.plan_runs import PlanRun, WantedRun
from planner.sessions.inputs import OPTION, Values, machine_of, merge
from planner.sessions.measure import Session
from planner.sessions.plan_runs import Asking, check_circumstances, circumstances_of, merged
from planner.steps.predict import Evaluator
from planner.units import format_bytes
from planner.workload.fusion import with_attention
from planner.workload.shards import has_tensor_shards, tensor_shard, trained_as

__all__ = ["asking_for", "compared"]

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
    problem = Problem(network, None, machine.cluster, machine.calibrations, machine.only_named, settings)
    one = plan.configuration
    (predicted,) = Evaluator(problem).describe(
        Configurations.of([Configuration(1, 1, one.sub_batch, precision=one.precision)])
    )
    _check_memory(predicted, problem, one)
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


def _check_memory(predicted: Prediction, problem: Problem, one: Configuration) -> None:
    device = problem.cluster.node.accelerator
    needed, free = predicted.memory_bytes["total"], device.memory_bytes
    if device.kind == "cpu":
        free = min(free, available_bytes())
    if needed > free:
        rule = f"a step of {problem.network.name} must fit the {format_bytes(free)} that {device.name} has free"
        got = f"{format_bytes(needed)} for {one.sub_batch} samples"
        raise CoverageError(f"{rule}, got {got}; take a plan of a smaller sub-batch by --position")


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
    one = plan.configuration
    return Verified(
        plan.position,
        _what_ran(plan, asking.problem.network),
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


def _what_ran(plan: PlanToStart, network: Network) -> str:
    ranks, stages = _ranks(plan, network), plan.configuration.pipeline_parallel
    what = f"the part of one of {ranks} tensor-parallel ranks" if ranks > 1 else "the whole network"
    return what + (f", with the layers of all {stages} stages of the plan" if stages > 1 else "")


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
