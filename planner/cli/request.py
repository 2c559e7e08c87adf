"""The steps that ``suggest`` and ``predict`` share: gather values, resolve them, write answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner import catalog
from planner.cli.inputs import Case, Machine, cases, check_nodes, machine_of, with_base
from planner.cli.options import OPTIONS
from planner.cli.streams import note
from planner.cli.values import SETTINGS_FILE, Values, from_options, from_settings, merge, settings_named

__all__ = ["gather", "ordered", "resolve"]


PRINTING = ("json", "brief", "verbose")
"""Options that only say how to print."""


def gather(command: str, arguments: Mapping[str, Any]) -> Values:
    """Return the values of the command line over those of ``planner.toml``, completed by the default request."""
    given = from_options(arguments)
    settings = _settings()
    stored = from_settings(settings, SETTINGS_FILE, command) if settings else {}
    merged = merge(given, stored)
    with settings_named(merged):
        values, hint = with_base(merged, command)
    if hint:
        note(hint)
    return values


def _settings() -> Mapping[str, Any] | None:
    try:
        folder = Path.cwd()
    except FileNotFoundError:  # deleted while the shell stands in it: nothing can be found upward from there
        return None
    return catalog.read_settings(folder)


def resolve(values: Values) -> tuple[Machine, tuple[Case, ...]]:
    """Return what the networks run on, and a case for every network and scenario."""
    machine = machine_of(values)
    check_nodes(machine.cluster, values)
    return machine, cases(values, machine)


def ordered(values: Values) -> Values:
    """Return the values in the order in which the options are declared, without those that only say how to print."""
    return {name: values[name] for name in OPTIONS if name in values and name not in PRINTING}
