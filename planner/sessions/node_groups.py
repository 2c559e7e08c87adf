"""From option values to problems on a cluster of several node groups: one problem a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from planner import catalog
from planner.domain.calibration import ANY_ACCELERATOR
from planner.domain.node_groups import MixedCluster
from planner.domain.request import Subject
from planner.errors import CoverageError, ParameterError, Refusal
from planner.sessions.inputs import LOCAL, Case, Machine, cases, machine_of, named_calibration
from planner.sessions.values import Say, Values, listed, merge

__all__ = ["mixed_cluster", "questions", "subject_of_all"]

Question = Mapping[str, Case]
"""Group -> one network under one scenario on its nodes."""


def mixed_cluster(values: Values) -> MixedCluster | None:
    """Return the cluster that the values name where it has several node groups, else None."""
    if "cluster" not in values or values["cluster"].value == LOCAL:
        return None
    cluster = catalog.find_any_cluster(values["cluster"].value)
    return cluster if isinstance(cluster, MixedCluster) else None


def questions(values: Values, mixed: MixedCluster, say: Say) -> tuple[Question, ...]:
    """Return every network under every scenario, each on the nodes of every group.

    Raises
    ------
    ParameterError
        What plans across groups do not have: several frameworks, or a scenario with another device.
    CoverageError
        A named calibration is of no group's device.
    """
    frameworks = listed(values, "framework")
    if len(frameworks) > 1:
        rule = f"one framework on cluster {mixed.name!r} of several node groups"
        raise ParameterError("--framework", rule, ",".join(frameworks), "ask for each by itself")
    machines = _machines(values, mixed, say)
    each = {name: cases(values, machine) for name, machine in machines.items()}
    found = tuple(dict(zip(each, of_all, strict=True)) for of_all in zip(*each.values(), strict=True))
    for question in found:
        scenario = next(iter(question.values())).problem.scenario
        if scenario.accelerator is not None:
            rule = f"without another GPU on cluster {mixed.name!r} of several node groups"
            raise ParameterError("--scenario", rule, scenario.text, "write it into a group of the cluster's file")
    return found


def _machines(values: Values, mixed: MixedCluster, say: Say) -> dict[str, Machine]:
    """Return what each group's plans run on: its nodes, and the calibrations of its device."""
    devices = {one.name: one.cluster.node.accelerator.name for one in mixed.groups}
    named = {name: named_calibration(name).accelerator for name in listed(values, "calibration")}
    foreign = [f"{name} of {device}" for name, device in named.items() if device not in _served(devices.values())]
    if foreign:
        rule = f"--calibration must be of {' or '.join(devices.values())}, the devices of cluster {mixed.name!r}"
        raise CoverageError(Refusal("other_device", rule, "--calibration", ", ".join(foreign)))
    machines = {}
    for group in mixed.groups:
        own = tuple(name for name, device in named.items() if device in _served([devices[group.name]]))
        rest = {key: one for key, one in values.items() if key != "calibration"}
        of_group = merge({"calibration": replace(values["calibration"], value=own)} if own else {}, rest)
        machines[group.name] = machine_of(of_group, say, found=group.cluster)
    return machines


def _served(devices: Iterable[str]) -> tuple[str, ...]:
    """Return the accelerators that calibrations of some devices name."""
    return (*devices, ANY_ACCELERATOR)


def subject_of_all(question: Question, mixed: MixedCluster) -> Subject:
    """Return what an answer is about: the network on the whole cluster."""
    return replace(next(iter(question.values())).subject, cluster=mixed.name)
