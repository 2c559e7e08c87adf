"""Answers as one JSON document, as tables for people, or as the file of a plot.

A reader that closes the pipe early has what it wanted; the exit code still says what the whole answer was.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planner.cli.streams import beside, keep, silence
from planner.errors import OutputError
from planner.formats.documents import json_pieces
from planner.report.blocks import Block, Line, print_blocks
from planner.sessions.inputs import Values

__all__ = ["form_of", "plot_file", "write_document", "write_text", "write_view", "write_views"]


def write_document(document: Mapping[str, Any]) -> None:
    """Write one JSON document, unless documents are kept."""
    if keep(document):
        return
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


def plot_file(values: Values) -> Path | None:
    """Return where the plot goes, None where none is wanted; what cannot be drawn or written is refused."""
    if "plot" not in values:
        return None
    from planner.report.plots import PICTURE_FORMS, check_matplotlib  # noqa: PLC0415 - few answers have a plot

    path = Path(values["plot"].value)
    if form_of(path) not in PICTURE_FORMS:
        raise OutputError(f"--plot must be a file whose name ends in .png, .svg or .pdf, got {str(path)!r}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise OutputError(f"--plot must be a file in a folder that exists and can be written, got {str(path)!r}")
    if path.exists() and "force" not in values:
        raise OutputError(f"--plot must be a new file, got {str(path)!r}, which exists; use --force to replace it")
    check_matplotlib()
    return path


def form_of(path: Path) -> str:
    """Return the form of a picture, as the end of its file's name says."""
    return path.suffix[1:].lower()
