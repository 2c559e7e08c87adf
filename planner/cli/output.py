"""Answers as one JSON document, or as tables for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, RenderableType

from planner.cli.streams import write
from planner.formats.documents import dump_json

__all__ = ["console", "write_document", "write_view"]


def write_document(document: Mapping[str, Any]) -> None:
    """Write one JSON document."""
    write(dump_json(document))


def console(*, errors: bool = False) -> Console:
    """Return a console on standard output (or error): colour on a terminal unless NO_COLOR is set, else 80 columns."""
    stream = sys.stderr if errors else sys.stdout
    return Console(file=stream, force_terminal=stream.isatty(), highlight=False, emoji=False, markup=False)


def write_view(view: Iterable[RenderableType]) -> None:
    """Write tables and lines for people."""
    out = console()
    for part in view:
        out.print(part)
