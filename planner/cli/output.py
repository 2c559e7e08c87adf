"""Answers as one JSON document, or as tables for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from planner.cli.streams import write
from planner.formats.documents import dump_json
from planner.report.blocks import Block, Line
from planner.report.printing import print_blocks

__all__ = ["write_document", "write_view", "write_views"]


def write_document(document: Mapping[str, Any]) -> None:
    """Write one JSON document."""
    write(dump_json(document))


def write_view(view: Iterable[Block]) -> None:
    """Write tables and lines for people."""
    print_blocks(view, sys.stdout)


def write_views(views: Iterable[Iterable[Block]]) -> None:
    """Write several views with an empty line between them."""
    for at, view in enumerate(views):
        write_view(view if at == 0 else (Line(""), *view))
