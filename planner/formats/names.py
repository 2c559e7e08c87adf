"""Lists of bundled names as documents (JSON).

History, newest first
---------------------
1 : first version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.formats.fields import Field, ListOf, Table, without_none
from planner.formats.kinds import Kind
from planner.formats.values import Name

__all__ = ["LISTED_KINDS", "NAMES", "names_document"]

LISTED_KINDS = ("networks", "clusters", "calibrations", "datasets", "accelerators", "frameworks")
"""What is listed, and shown by name."""


NAMES = Kind(
    "names",
    1,
    "json",
    Table(
        (
            *(Field(what, ListOf(Name()), f"names of bundled {what}", None) for what in LISTED_KINDS),
            Field(
                "own", ListOf(Name()), "names of this user's own calibrations, newest first, or of own frameworks", None
            ),
        ),
        without_none,
        "the names of one kind of thing",
        split=lambda lists: dict.fromkeys((*LISTED_KINDS, "own")) | dict(lists),
    ),
)


def names_document(what: str, names: Sequence[str], own: Sequence[str] = ()) -> dict[str, Any]:
    """Return the document of the names of one of LISTED_KINDS, and of the user's ``own``, if any."""
    return NAMES.document({what: names, "own": list(own) or None})
