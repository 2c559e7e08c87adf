"""The folder of this user's own calibrations, what a file tells before it is built, and bundled ones built once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from planner.domain.calibration import Calibration
from planner.errors import InputFileError
from planner.formats.calibration import CALIBRATION
from planner.formats.documents import parse_text, read_text

__all__ = ["own_calibration_file", "own_calibrations_folder", "own_files", "own_name", "peek", "read_bundled"]


def peek(path: Path) -> Mapping[str, Any]:
    """Return the keys of a calibration unchecked: enough to see whether it is worth building."""
    return _parsed(path, path.stat().st_mtime_ns) if path.is_file() else parse_text(read_text(path), str(path), "json")


@cache
def _parsed(path: Path, _written_ns: int) -> Mapping[str, Any]:
    """Return the keys of a file as it was written at a time: asked for more than once in an answer."""
    return parse_text(read_text(path), str(path), "json")


@cache
def read_bundled(path: Path) -> Calibration:
    """Return the calibration of a bundled file, which nobody writes while the program runs."""
    return CALIBRATION.build(peek(path), str(path))


def own_name(path: Path) -> str:
    """Return the name of an own calibration; of one that cannot be read, what stands behind the time stamp."""
    stem = path.stem.partition("-")[2] or path.stem
    try:
        return str(peek(path).get("name", stem))
    except InputFileError:
        return stem


def own_calibrations_folder() -> Path:
    """Return the folder of this user's own calibrations; it need not exist."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "planner" / "calibrations"


def own_calibration_file(name: str, made: datetime) -> Path:
    """Return the path of a new own calibration: time stamp, then name, so that file names sort by age."""
    return own_calibrations_folder() / f"{made:%Y%m%dT%H%M%S}-{name}.json"


def own_files() -> list[Path]:
    """Return the files of the folder, newest first."""
    return sorted(own_calibrations_folder().glob("*.json"), reverse=True)
