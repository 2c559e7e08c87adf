"""A request to terminate, as a batch system sends it, ends the program as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interruption", "terminated_as_interrupted"]


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
