"""A request to terminate, as a batch system sends it, ends the program as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["terminated_as_interrupted"]


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
