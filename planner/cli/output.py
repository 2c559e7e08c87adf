"""Answers as one JSON document, or as tables for people.

A reader that closes the pipe early has what it wanted; the exit code still says what the whole answer was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from planner.cli.streams import beside, silence
from planner.formats.documents import json_pieces
from planner.report.blocks import Block, Line, print_blocks

__all__ = ["write_document", "write_text", "write_view", "write_views"]


def write_document(document: Mapping[str, Any]) -> None:
    """Write one JSON document."""
    with _reader_may_leave():
        sys.stdout.writelines(json_pieces(document))


def write_text(text: str) -> None:
    """Write a document as it stands in a file."""
    with _reader_may_leave():
        sys.stdout.write(text)


def write_view(view: Iterable[Block]) -> None:
    """Write tables and lines for people: warnings to standard error, then the result."""
    blocks = list(view)
    asides = [block for block in blocks if isinstance(block, Line) and block.aside]
    with _reader_may_leave():
        if asides:
            sys.stdout.flush()
            beside(lambda: print_blocks(asides, sys.stderr))
        print_blocks([block for block in blocks if block not in asides], sys.stdout)


def write_views(views: Iterable[Iterable[Block]]) -> None:
    """Write several views with an empty line between them."""
    for at, view in enumerate(views):
        write_view(view if at == 0 else (Line(""), *view))


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        silence(sys.stdout)
