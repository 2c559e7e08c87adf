"""The folder of ``planner calibrate --samples``: which files of it are read, and what is wrong with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from planner.errors import ParameterError

__all__ = ["sample_paths"]

MOST_FOLDERS = 3
"""Folders that are named where the one given holds no files itself."""
SUFFIX = ".csv"


def sample_paths(folder: Path) -> list[Path]:
    """Return the tables of a folder, sorted.

    Raises
    ------
    ParameterError
        No such folder, or none of its files is a CSV.
    """
    what, rule = "--samples", f"a folder with sample files (*{SUFFIX})"
    try:
        names = sorted(folder.iterdir())
    except FileNotFoundError:
        raise ParameterError(what, rule, str(folder), "there is no such folder") from None
    except NotADirectoryError:
        raise ParameterError(what, rule, str(folder), "that is a file: name the folder it stands in") from None
    except OSError as error:
        raise ParameterError(what, rule, str(folder), f"it cannot be read: {error.strerror}") from None
    paths = _tables(names)
    if not paths:
        content = "no such file is in it" if names else "it is empty"
        below = _folders_with_tables(names)
        remedy = f"give one of its folders: {below}" if below else "put the files of one device there"
        raise ParameterError(what, rule, str(folder), f"{content}; {remedy}")
    return paths


def _tables(names: Iterable[Path]) -> list[Path]:
    return [path for path in names if path.suffix.lower() == SUFFIX]


def _folders_with_tables(names: Sequence[Path]) -> str:
    """Return the first folders that hold such files, and how many more do; empty without any."""
    folders = []
    for path in names:
        with contextlib.suppress(OSError):
            folders += [str(path)] if path.is_dir() and _tables(path.iterdir()) else []
    more = f" and {len(folders) - MOST_FOLDERS} more" if folders[MOST_FOLDERS:] else ""
    return ", ".join(folders[:MOST_FOLDERS]) + more
