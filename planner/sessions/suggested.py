"""The suggestion that ``planner calibrate --plan`` is given: its plans, and what they were predicted with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner import catalog
from planner.domain.calibration import Calibration, Entry, MeasuredStep
from planner.domain.cluster import LOCAL, Cluster
from planner.domain.configuration import Settings
from planner.domain.network import Network
from planner.domain.request import Sourced
from planner.errors import NOTHING, InputFileError, ParameterError, UnknownNameError
from planner.formats.configuration import subject_of
from planner.formats.suggestion import SUGGESTION
from planner.sessions.inputs import Machine, machine_of, named_calibration
from planner.sessions.values import OPTION, Say, Values

__all__ = ["Suggested", "suggested_of"]


@dataclass(frozen=True, slots=True)
class Suggested:
    """A suggestion with plans.

    Attributes
    ----------
    plans : sequence of mapping
        As the document has them, the best first.
    settings : Settings
        Of the first plan; its framework by name alone.
    frameworks : tuple of str
        Labels of those that plans are of.
    network : Network
    network_option, cluster_option : str
        What the request named them by.
    cluster : Cluster
    calibrations : tuple of Calibration
        That it was made with, in order.
    dataset : str or None
        What the request named it by.
    """

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
    """Return the suggestion of a file.

    Parameters
    ----------
    path : str
    names : sequence of str
        Names and files of calibrations, before those that are known.

    Raises
    ------
    InputFileError
        The file is no suggestion.
    ParameterError
        It has no plans, or a calibration that it was made with is not found.
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
