"""The steps that ``suggest`` and ``predict`` share: gather values, resolve them, write answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner import catalog
from planner.cli.options import OPTIONS
from planner.cli.streams import note
from planner.cli.values import from_options, from_settings, in_full, settings_named
from planner.domain.axes import AXES
from planner.domain.request import DEFAULT, Sourced
from planner.errors import NOTHING, ParameterError
from planner.sessions.inputs import (
    DEFAULT_REQUEST,
    LOCAL,
    SETTINGS_FILE,
    Case,
    Machine,
    Values,
    cases,
    check_nodes,
    idle_fusions,
    listed,
    machine_of,
    merge,
    own_calibration,
    said,
)

__all__ = ["PRINTING_OPTIONS", "SEARCHING_OPTIONS", "gather", "ordered", "resolve", "say_unused_frameworks"]


PRINTING_OPTIONS = {"json", "brief", "verbose"}
"""Options that only say how to print."""
SEARCHING_OPTIONS = {"search", "switches", "time_limit", "trials", "study", "storage"}
"""Options that only say how to search: the answer says it as its method."""


def gather(command: str, arguments: Mapping[str, Any]) -> Values:
    """Return the values of the command line over those of ``planner.toml``, completed by the default request."""
    options = from_options(arguments)
    path, settings = _settings() or (None, {})
    of_file = from_settings(settings, SETTINGS_FILE, command)
    values = merge(options, of_file)
    with settings_named(values):
        values, hint = _with_base(in_full(values), command)
    if used := sorted(key for key in of_file if key not in options):
        note(f"{', '.join(used)}: from {path}")
    if hint:
        note(hint)
    say_unused_frameworks()
    return values


def say_unused_frameworks() -> None:
    """Say which of the user's own frameworks are not found under a name, as a bundled one has it."""
    for sentence in catalog.unused_own_names():
        note(sentence)


def _with_base(values: Values, command: str) -> tuple[Values, str]:
    """Return the values completed by the default request where it applies, and a note for the user or ''.

    Raises
    ------
    UnknownNameError : a name is not known; reported before anything that is missing
    ParameterError : ``network`` is missing beside a cluster or a calibration
    """
    _check_names(values)
    if "network" in values:
        return values, ""
    if "cluster" in values or "calibration" in values:
        beside = said(values, "cluster" if "cluster" in values else "calibration")
        remedy = "name a network; 'planner show networks' lists them"
        raise ParameterError("--network", f"given beside {beside}", NOTHING, remedy)
    defaults = from_settings(catalog.default_request(), DEFAULT_REQUEST, command)
    own = own_calibration(note)
    hint = f"this machine has its own calibration {own.name!r}; --network NAME uses it" if own else ""
    return merge(values, defaults), hint


def _check_names(values: Values) -> None:
    for name in listed(values, "network"):
        catalog.find_network(name)
    finders = {
        "cluster": catalog.find_any_cluster,
        "dataset": catalog.find_dataset,
        "framework": catalog.find_framework,
    }
    for key, find in finders.items():
        if key in values and (key, values[key].value) != ("cluster", LOCAL):
            for one in listed(values, key):
                find(one)
    for name in listed(values, "calibration"):
        catalog.find_calibration(name)


def _settings() -> tuple[Path, Mapping[str, Any]] | None:
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # deleted while the shell stands in it: nothing can be found upward from there
        return None
    return catalog.read_settings(folder)


def resolve(values: Values) -> tuple[Machine, tuple[Case, ...]]:
    """Return what the networks run on, and a case for every network and scenario.

    Fusions that were asked for and have no use are noted, but for those that ``--switches`` goes through.
    """
    machine = machine_of(values, note)
    check_nodes(machine.cluster, values)
    found = cases(values, machine)
    for sentence in () if "switches" in values else idle_fusions(found):
        note(sentence)
    return machine, found


def ordered(values: Values) -> Values:
    """Return the values in the order in which the options are declared.

    Without those that only say how to print or search, and without how a network is split where
    nothing but defaults says that it is not.
    """
    unsplit = {a.option for a in AXES if a.splits and values.get(a.option) == Sourced((a.default,), DEFAULT)}
    left_out = PRINTING_OPTIONS | SEARCHING_OPTIONS | unsplit
    return {name: values[name] for name in OPTIONS if name in values and name not in left_out}
