"""How far long work is: a bar on a terminal; elsewhere a sentence before it, and a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from planner.cli.streams import note
from planner.report.printing import console

__all__ = ["bar"]

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
