"""Requests and planner.toml (TOML): option names, in Python spelling, with their values.

Whether a value suits its option is the command line's business: it parses what stands here as if it had been typed.

History, newest first
---------------------
settings 1, request 1 : first versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.domain.axes import AXES
from planner.formats.fields import Field, ListOf, OneOf, Table, without_none
from planner.formats.kinds import Kind
from planner.formats.values import LARGEST_WHOLE, Flag, Number, Text, Whole

__all__ = ["OPTION_KEYS", "REQUEST", "SETTINGS", "read_request", "read_settings"]

OPTION_KEYS = (
    "network", "dataset", "cluster", "calibration", "framework", *(axis.option for axis in AXES),
    "rank_order", "optimizer", "strategy", "input", "scenario", "task", "tolerance",
    "parallelism", "objective", "limit", "top", "seed", "allow_specified",
)  # fmt: skip
SWITCHES = ("allow_specified",)
"""Keys that are true or false."""
_SCALAR = (Whole(least=0, most=LARGEST_WHOLE), Number(), Text())
_VALUE = OneOf(
    (*_SCALAR, ListOf(OneOf(_SCALAR), least=1)),
    "value",
    f"text that is not empty, {Number().words}, or a list of these",
)


def _lists_and_values(**values: Any) -> Mapping[str, Any]:
    given = without_none(**values)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}


def _table(names: tuple[str, ...]) -> Table[Mapping[str, Any]]:
    def complete(values: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict.fromkeys(names) | dict(values)

    keys = tuple(
        Field(name, Flag() if name in SWITCHES else _VALUE, f"value of --{name.replace('_', '-')}", None)
        for name in names
    )
    return Table(keys, _lists_and_values, "values of options", split=complete)


REQUEST = Kind("request", 1, "toml", _table(("target_batch", *OPTION_KEYS)))
SETTINGS = Kind("settings", 1, "toml", _table(OPTION_KEYS))


def read_request(path: Path | str) -> Mapping[str, Any]:
    """Return the values of a request file by option name: text, numbers, or lists of them."""
    return REQUEST.read(path)


def read_settings(path: Path | str) -> Mapping[str, Any]:
    """Return the values of a ``planner.toml`` by option name: text, numbers, or lists of them."""
    return SETTINGS.read(path)
