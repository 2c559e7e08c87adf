"""Which measured runs a fit of ``validate --hold-out`` learns from: those of the files' folders, or of files named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.errors import InputFileError
from planner.formats.documents import STANDARD_INPUT, parse_text, read_text
from planner.formats.runs import read_runs
from planner.scoring.refit import Asked
from planner.sessions.runs import table_of
from planner.sessions.values import Say, Values

__all__ = ["SOURCES_FILE", "learned_from", "locked_sources", "unfitted_sources"]

SOURCES_FILE = "SOURCES.toml"
"""Beside files of runs: what is known of each of their sources, by name."""


def unfitted_sources(folder: Path) -> frozenset[str]:
    """Return the sources of a folder's runs that no fit learns from: those with ``fitted = false``, and locked ones."""
    described = _described(folder).items()
    return frozenset(name for name, one in described if one.get("fitted") is False) | locked_sources(folder)


def locked_sources(folder: Path) -> frozenset[str]:
    """Return the sources of a folder's runs of which sums alone are told: those with ``locked = true``."""
    return frozenset(name for name, one in _described(folder).items() if one.get("locked") is True)


def _described(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the tables of a folder's SOURCES_FILE by source; none where there is no such file."""
    path = folder / SOURCES_FILE
    if not path.is_file():
        return {}
    described: Mapping[str, Any] = parse_text(read_text(path), str(path), "toml")
    return {name: one for name, one in described.items() if isinstance(one, Mapping)}


def learned_from(
    paths: Sequence[str], asked: Mapping[str, Sequence[Asked]], named: Sequence[str], values: Values, say: Say
) -> list[Asked]:
    """Return the runs that fits learn from, by problem.

    Parameters
    ----------
    paths : sequence of str
        Files whose runs are predicted.
    asked : mapping of str to sequence of Asked
        Their runs by problem; of a file that is learned from these are returned, not others like them.
    named : sequence of str
        Files to learn from instead of all files of runs in the folders of ``paths``. Of a folder, sources with
        ``fitted = false`` are left out, and files that hold no runs; of files that are named, nothing is.

    Raises
    ------
    InputFileError
        A file that is named cannot be read.
    """
    known = {_place(path): some for path, some in asked.items()}
    found: list[Asked] = []
    for path in map(Path, named) if named else _files_beside(paths):
        left_out = frozenset() if named else unfitted_sources(path.parent)
        if _place(str(path)) in known:
            some = known[_place(str(path))]
        else:
            try:
                runs = read_runs(str(path))
            except InputFileError:
                if named:
                    raise
                continue
            some = [Asked(problem, each) for problem, each in table_of(runs, path.parent, values, say).problems]
        found += [one for one in some if one.runs[0].source not in left_out]
    return found


def _files_beside(paths: Sequence[str]) -> list[Path]:
    """Return the files themselves, and all others of their folders that may hold runs, each once."""
    given = [Path(path) for path in paths if path != STANDARD_INPUT]
    beside = (one for path in given for one in sorted(path.parent.glob("*.csv")))
    return list({_place(str(one)): one for one in (*given, *beside)}.values())


def _place(path: str) -> str:
    return path if path == STANDARD_INPUT else str(Path(path).resolve())
