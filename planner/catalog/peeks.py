"""What the file of a calibration tells before it is built, and bundled ones built once, whole or in part.

Also the folders of this user's own calibrations and frameworks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from planner.catalog.bundled_index import BundledCalibration, BundledIndex, EntryPlace, made_index
from planner.domain.calibration import Calibration
from planner.errors import InputFileError, OutputError
from planner.formats.calibration import build_calibration
from planner.formats.documents import parse_text, read_text, write_file

__all__ = [
    "bundled_index", "own_calibration_file", "own_calibrations_folder", "own_files", "own_framework_files",
    "own_name", "peek", "read_bundled", "read_part",
]  # fmt: skip


def peek(path: Path) -> Mapping[str, Any]:
    """Return the keys of a calibration unchecked: enough to see whether it is worth building."""
    return _keys_of(path, path.stat().st_mtime_ns) if path.is_file() else parse_text(read_text(path), str(path), "json")


@cache
def _keys_of(path: Path, _written_ns: int) -> Mapping[str, Any]:
    """Return the keys of a file as it was written at a time: asked for more than once in an answer."""
    return parse_text(read_text(path), str(path), "json")


@cache
def bundled_index(calibrations: Path, accelerators: Path) -> BundledIndex:
    """Return the index of two folders, which stands beside the first; one that is missing or out of date is written."""
    path = calibrations.with_name(f"{calibrations.name}.index")
    index = BundledIndex.read(path, calibrations, accelerators)
    if index is None:
        document = made_index(calibrations, accelerators)
        with suppress(OutputError):  # the folder may belong to someone else
            write_file(path, json.dumps(document), force=True)
        index = BundledIndex(document)
    return index


@cache
def read_bundled(path: Path) -> Calibration:
    """Return the calibration of a bundled file, which nobody writes while the program runs."""
    return build_calibration(json.loads(path.read_bytes()), path)


def read_part(path: Path, whole: BundledCalibration, entries: Iterable[EntryPlace]) -> Calibration:
    """Return a bundled calibration with some of its entries; the others are not parsed."""
    content = path.read_bytes()
    keys = json.loads(b"%b[]%b" % (content[: whole.start], content[whole.end :]))
    parts = [json.loads(content[one.start : one.end]) for one in entries]
    return build_calibration({**keys, "entries": parts}, path)


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
