"""One process at a time writes a file: a lock beside it, which goes with the process that holds it, however it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from planner.errors import OutputError

__all__ = ["held_alone"]

SUFFIX = ".lock"


@contextmanager
def held_alone(what: str, path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is named as the file and ``.lock``; it is gone afterwards.

    The system gives it up with the process, so that what a killed one left is taken over. Systems without ``flock``
    lock nothing. A link in its place is refused: what is written to the lock would destroy where it leads.

    Parameters
    ----------
    what : str
        The file in words, behind which its path is named.
    path : Path

    Raises
    ------
    OutputError
        Another process holds it, or it cannot be made.
    """
    beside = path.with_name(f"{path.name}{SUFFIX}")
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(beside)
    except OSError as error:
        raise OutputError(f"the lock of {what} must be writable, got {beside}: {error.strerror}") from error
    if file is None:
        holder = _holder(beside)
        by = f"process {holder}" if holder else "another process"
        raise OutputError(
            f"{what} must be written by one process at a time, got {str(path)!r}, which {by} is writing: wait until it "
            "has ended, or name another file by --out"
        )
    try:
        try:
            file.write(f"{os.getpid()}\n")
            file.flush()
        except OSError as error:
            raise OutputError(f"the lock of {what} must be writable, got {beside}: {error.strerror}") from error
        yield
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
        with contextlib.suppress(OSError):  # a full disk fails here once more
            file.close()


def _locked(path: Path) -> IO[str] | None:
    """Return the lock file, locked; None where another process has locked it."""
    try:
        import fcntl  # noqa: PLC0415 - not on every system
    except ImportError:
        return _opened(path)
    while True:
        file = _opened(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        if _is_at(path, file):
            file.truncate(0)
            return file
        file.close()  # its holder has removed it meanwhile: what is there now is another


def _opened(path: Path) -> IO[str]:
    """Open a lock file to write at its end; OSError where it is no plain file, or has another name besides."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.fdopen(os.open(path, flags, 0o666), "a", encoding="ascii")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        file.close()
        raise OSError(errno.EINVAL, "it is no plain file of its own")
    return file


def _is_at(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> int:
    """Return the process that a lock file names; 0 where it names none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
