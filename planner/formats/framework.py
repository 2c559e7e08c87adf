"""Framework files (TOML).

History, newest first
---------------------
1 : first version.
"""

from __future__ import annotations

from pathlib import Path

from planner.domain.framework import Framework
from planner.formats.fields import Field, ListOf, Table
from planner.formats.kinds import Kind
from planner.formats.values import Flag, Text

__all__ = ["FRAMEWORK", "read_framework"]

FRAMEWORK = Kind(
    "framework",
    1,
    "toml",
    Table(
        (
            Field("name", Text(), "name to refer to it, in lower case; its overheads are looked up by it"),
            Field("aliases", ListOf(Text()), "other names, in lower case", ()),
            Field("input_gradient", Flag(), "whether the gradient of the network's input is computed", default=False),
            Field("source", Text(), "where this comes from", ""),
        ),
        Framework,
    ),
)


def read_framework(path: Path | str) -> Framework:
    """Return the framework of a file."""
    return FRAMEWORK.read(path)
