"""The folders of this user's own calibrations and frameworks."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from planner.catalog.peeks import peek
from planner.errors import InputFileError

__all__ = [
    "own_calibration_file",
    "own_calibrations_folder",
    "own_files",
    "own_framework_files",
    "own_name",
]


def own_name(path: Path) -> str:
    """Return the name of an own calibration; of one that cannot be read, what stands behind the time stamp."""
    stem = path.stem.partition("-")[2] or path.stem
    try:
        return str(peek(path).get("name", stem))
    except InputFileError:
        return stem


def own_calibrations_folder() -> Path:
    """Return the folder of this user's own calibrations; it need not exist."""
    return _own_folder() / "calibrations"


def _own_folder() -> Path:
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "planner"


def own_calibration_file(name: str, time: datetime) -> Path:
    """Return the path of a new own calibration: time stamp, then name, so that file names sort by age."""
    return own_calibrations_folder() / f"{time:%Y%m%dT%H%M%S}-{name}.json"


def own_files() -> list[Path]:
    """Return the files of the folder, newest first."""
    return sorted(own_calibrations_folder().glob("*.json"), reverse=True)


def own_framework_files() -> dict[str, Path]:
    """Return the files of this user's own frameworks by name, sorted; each is called as its framework."""
    return {path.stem: path for path in sorted((_own_folder() / "frameworks").glob("*.toml"))}
