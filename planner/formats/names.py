"""Names: lists of bundled ones as documents (JSON), and those that users' files may have beside them.

A file may have the name of a bundled thing where it describes the same, as a copy that ``planner show --toml`` wrote
does. One that was edited is refused until it has a name of its own: an answer for it must not look like one for the
bundled thing.

History, newest first
---------------------
1 : first version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputFileError
from planner.formats.documents import place_of
from planner.formats.fields import Field, ListOf, Table, without_none
from planner.formats.kinds import Kind
from planner.formats.values import LONGEST_NAME, Name

__all__ = ["LISTED_KINDS", "NAMES", "check_own", "names_document"]

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


SUFFIX = "-mine"
BESIDE_FIELDS = ("name", "source", "sources", "notes", "date")
"""Fields of records that say what something is called and where it comes from."""


def check_own(own: Any, bundled: Any, what: str, path: Path | str, where: str = "name") -> None:
    """Refuse the record of a file that has the name of a bundled one and differs from it.

    Raises
    ------
    InputFileError
        With a name that is free, at the key ``where``.
    """
    if _described(own) != _described(bundled):
        rule = f"value must be a name of your own, as this {what} differs from the bundled one of that name"
        free = own.name[: LONGEST_NAME - len(SUFFIX)] + SUFFIX
        raise InputFileError(place_of(path), f"{rule}, got {own.name!r}; call it {free!r}, say", where)


def _described(record: Any) -> Any:
    """Return the fields of a record, and of records in it, without its name and where it comes from."""
    if not is_dataclass(record):
        return record
    return [_described(getattr(record, one.name)) for one in fields(record) if one.name not in BESIDE_FIELDS]
