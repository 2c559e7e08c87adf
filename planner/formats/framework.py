"""Framework files (TOML).

History, newest first
---------------------
1 : first version.
"""

from __future__ import annotations

from pathlib import Path

from planner.domain.framework import GRADIENT_TYPES, STRATEGIES, Framework, Strategy
from planner.formats.fields import Field, ListOf, MapOf, Table
from planner.formats.kinds import Kind
from planner.formats.values import Flag, Number, Text

__all__ = ["FRAMEWORK", "read_framework"]

_STRATEGY = Table(
    (
        Field("prefetch", Flag(), "whether input is loaded during the step before", default=True),
        Field("overlap", Flag(), "whether gradients are sent as they become ready, not after them all", default=True),
        Field("first_bucket_MiB", Number("MiB"), "gradients sent first; 0: by layer", 0.0, "first_bucket_bytes"),
        Field("bucket_MiB", Number("MiB"), "gradients sent together later; 0: by layer", 0.0, "bucket_bytes"),
    ),
    Strategy,
    "what overlaps in a synchronous step",
)
FRAMEWORK = Kind(
    "framework",
    1,
    "toml",
    Table(
        (
            Field("name", Text(), "name to refer to it, in lower case; its overheads are looked up by it"),
            Field("aliases", ListOf(Text()), "other names, in lower case", ()),
            Field("input_gradient", Flag(), "whether the gradient of the network's input is computed", default=False),
            Field("gradient_type", Text(GRADIENT_TYPES), "what gradients are held and sent in", "precision"),
            Field("strategies", MapOf(_STRATEGY, choices=tuple(STRATEGIES)), "those it follows in its own way", {}),
            Field("source", Text(), "where this comes from", ""),
        ),
        Framework,
    ),
)


def read_framework(path: Path | str) -> Framework:
    """Return the framework of a file."""
    return FRAMEWORK.read(path)
