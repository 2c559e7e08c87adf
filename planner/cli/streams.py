"""Standard output holds results and nothing else; sentences beside them go to standard error.

A stream that its caller closed swallows what is written to it: the answer is the exit code.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from planner.errors import printable
from planner.report.blocks import console

__all__ = ["bar", "beside", "note", "open_streams", "silence"]


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


def note(text: str) -> None:
    """Write a sentence that is not the result, on one line: names in it must not give orders to a terminal."""
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
        yield _lines()
        return
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 - heavy, and only a terminal needs it
    from rich.progress import Progress as Bars  # noqa: PLC0415 - as above

    columns = (TextColumn(label), BarColumn(), TextColumn("{task.fields[state]}"))
    with Bars(*columns, console=console(sys.stderr), transient=True) as bars:
        task = bars.add_task(label, total=total, state="starting")
        yield lambda amount, state: bars.update(task, completed=amount, state=state)


def _lines() -> Callable[[float, str], None]:
    """Return what writes a line of the state, seldom enough for a log."""
    before = time.perf_counter()

    def show(_amount: float, state: str) -> None:
        nonlocal before
        if time.perf_counter() - before >= LINE_INTERVAL_S:
            before = time.perf_counter()
            note(state)

    return show
