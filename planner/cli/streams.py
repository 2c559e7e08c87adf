"""Standard output holds results alone, sentences beside them go to standard error; SIGTERM ends the program as Ctrl-C.

A result is one JSON document, tables for people, or the file of a plot. A stream that its caller closed swallows what
is written to it: the answer is the exit code.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from planner.errors import OutputError, printable

if TYPE_CHECKING:
    from planner.report.blocks import Block
    from planner.sessions.inputs import Values


def open_streams() -> None:
    """Let both streams exist, and carry UTF-8 whatever the locale: the same inputs give the same bytes."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before the program began
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def silence(stream: TextIO) -> None:
    """Let nothing more be written to a stream that takes nothing: flushing it at exit would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


answered = threading.Event()
"""Whether a document was written, or kept, since the program began."""
_NOTED: ContextVar[set[str] | None] = ContextVar("noted", default=None)
_KEPT: ContextVar[list[Mapping[str, Any]] | None] = ContextVar("kept", default=None)


@contextmanager
def kept_documents(noted: set[str]) -> Iterator[list[Mapping[str, Any]]]:
    """Give a list that takes the documents of commands in place of standard output.

    A sentence beside them that is in ``noted`` is not written again.
    """
    documents: list[Mapping[str, Any]] = []
    tokens = _KEPT.set(documents), _NOTED.set(noted)
    try:
        yield documents
    finally:
        _KEPT.reset(tokens[0])
        _NOTED.reset(tokens[1])


def note(text: str) -> None:
    """Write a sentence that is not the result, on one line: names in it must not give orders to a terminal."""
    noted = _NOTED.get()
    if noted is not None:
        if text in noted:
            return
        noted.add(text)
    beside(lambda: sys.stderr.write(f"planner: {printable(text)}\n"))


def beside(write: Callable[[], object]) -> None:
    """Do what writes to standard error; where nobody can read it, that is no failure."""
    try:
        write()
        sys.stderr.flush()
    except OSError:
        silence(sys.stderr)


LINE_INTERVAL_S = 5.0


@contextmanager
def bar(label: str, total: float, sentence: str) -> Iterator[Callable[[float, str], None]]:
    """Give a function that shows how much of ``total`` is done, and its state in words."""
    if not sys.stderr.isatty():
        note(sentence)
        before = time.perf_counter()

        def show(_amount: float, state: str) -> None:
            nonlocal before
            if time.perf_counter() - before >= LINE_INTERVAL_S:  # seldom enough for a log
                before = time.perf_counter()
                note(state)

        yield show
        return
    from rich.console import Console  # noqa: PLC0415 - heavy, and only a terminal needs it
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 - as above
    from rich.progress import Progress as Bars  # noqa: PLC0415 - as above

    columns = (TextColumn(label), BarColumn(), TextColumn("{task.fields[state]}"))
    with Bars(*columns, console=Console(file=sys.stderr), transient=True) as bars:
        task = bars.add_task(label, total=total, state="starting")
        yield lambda amount, state: bars.update(task, completed=amount, state=state)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM: files stay whole, temporary ones go, what was measured is kept and said."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals in that one alone
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Give what says whether Ctrl-C or SIGTERM came; a second one raises KeyboardInterrupt at once.

    For work in steps that must not be torn: what is being written stays whole.
    """
    if threading.current_thread() is not threading.main_thread():  # Python handles signals in that one alone
        yield lambda: False
        return
    is_asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            signal.default_int_handler(number, frame)
        is_asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: is_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def write_document(document: Mapping[str, Any]) -> None:
    """Write one JSON document, unless documents are kept."""
    from planner.formats.documents import json_pieces  # noqa: PLC0415 - heavier than the command line

    answered.set()
    if (kept := _KEPT.get()) is not None:
        kept.append(document)
        return
    with _reader_may_leave():
        sys.stdout.writelines(json_pieces(document))


def write_text(text: str) -> None:
    """Write a document as it stands in a file."""
    with _reader_may_leave():
        sys.stdout.write(text)


def write_view(view: Iterable[Block]) -> None:
    """Write tables and lines for people: warnings to standard error, then the result."""
    from planner.report.blocks import Line, print_blocks  # noqa: PLC0415 - heavier than the command line

    blocks = list(view)
    asides = [block for block in blocks if isinstance(block, Line) and block.aside]
    with _reader_may_leave():
        if asides:
            sys.stdout.flush()
            beside(lambda: print_blocks(asides, sys.stderr))
        print_blocks([block for block in blocks if block not in asides], sys.stdout)


def write_views(views: Iterable[Iterable[Block]]) -> None:
    """Write several views with an empty line between them."""
    from planner.report.blocks import Line  # noqa: PLC0415 - heavier than the command line

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
