"""Tables that the commands of this folder read, as CSV, and write, as Markdown."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from planner.errors import InputFileError

__all__ = ["markdown_table", "read_table"]


def read_table(path: Path, remedy: str) -> list[dict[str, str]]:
    """Return the rows of a published table, or raise InputFileError with the remedy where it is missing."""
    if not path.is_file():
        raise InputFileError(str(path), f"table must be there, got nothing; {remedy}")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the lines of a table."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))
