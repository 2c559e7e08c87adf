"""An index of the bundled calibrations and accelerators: whose each is, and where in its file each entry stands.

A wheel carries it, made when the wheel is built (``hatch_build.py``). In a checkout it is made where it is missing, or
older than a file that it is of, and kept beside the bundled files; where these cannot be written, it is made each time.
Nothing here needs a package, as the wheel is built without any.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FORM = 1
"""Of the index; one of another form is made anew."""
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s,:]*")


class EntryPlace(NamedTuple):
    """An entry of a calibration: its key, and where its JSON begins and ends in the file [byte]."""

    scope: str
    kind: str
    direction: str
    precision: str
    term: str
    origin: str
    start: int
    end: int

    @property
    def kernel(self) -> tuple[str, str, str]:
        """Kind, direction and precision."""
        return self.kind, self.direction, self.precision


class BundledCalibration(NamedTuple):
    """A calibration: whose it is, and where the list of its entries begins and ends [byte]."""

    accelerator: str
    cluster: str
    origin: str
    start: int
    end: int
    entries: tuple[EntryPlace, ...]


class BundledIndex:
    """What the document of an index says: calibrations by name, and the keys of accelerators by name."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.accelerators: Mapping[str, Mapping[str, Any]] = document["accelerators"]
        self.calibrations = {
            name: BundledCalibration._make((*whose, tuple(map(EntryPlace._make, places))))
            for name, (*whose, places) in document["calibrations"].items()
        }

    @classmethod
    def read(cls, path: Path, calibrations: Path, accelerators: Path) -> BundledIndex | None:
        """Return the index of a file; None where there is none, or a file that it is of has changed since."""
        try:
            document = json.loads(path.read_bytes())
            written = _written_ns(calibrations, accelerators) if document["written_ns"] else {}
            return cls(document) if (document["form"], document["written_ns"]) == (FORM, written) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def made_index(calibrations: Path, accelerators: Path, *, final: bool = False) -> dict[str, Any]:
    """Return the document of an index of two folders, of JSON files and of TOML files.

    It holds when each file was written, but where it is ``final``: they do not change from now on, as in a wheel.
    """
    return {
        "form": FORM,
        "written_ns": {} if final else _written_ns(calibrations, accelerators),
        "calibrations": {path.stem: _calibration(path.read_bytes()) for path in sorted(calibrations.glob("*.json"))},
        "accelerators": {path.stem: tomllib.loads(path.read_text()) for path in sorted(accelerators.glob("*.toml"))},
    }


def _written_ns(*folders: Path) -> dict[str, int]:
    files = (file for folder in folders for file in os.scandir(folder))
    return {file.name: file.stat().st_mtime_ns for file in files if file.name.endswith((".json", ".toml"))}


def _calibration(content: bytes) -> tuple[Any, ...]:
    text = content.decode()
    keys = {key: (value, start, end) for key, value, start, end in _members(text)}

    def byte(at: int) -> int:
        return len(text[:at].encode())

    entries = [
        (*(one.get(name, "") for name in EntryPlace._fields[:6]), byte(start), byte(end))
        for one, start, end in _items(text, keys["entries"][1])
    ]
    whose = (keys[name][0] if name in keys else "" for name in BundledCalibration._fields[:3])
    return *whose, *map(byte, keys["entries"][1:]), entries


def _members(text: str) -> Iterator[tuple[str, Any, int, int]]:
    """Yield the keys of a JSON table, with values, and where these begin and end."""
    at = text.index("{") + 1
    while text[at := _next(text, at)] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _next(text, at)
        value, at = _DECODER.raw_decode(text, start)
        yield key, value, start, at


def _items(text: str, at: int) -> Iterator[tuple[Any, int, int]]:
    """Yield the values of a JSON list that begins at a place, and where each begins and ends."""
    at += 1
    while text[start := _next(text, at)] != "]":
        value, at = _DECODER.raw_decode(text, start)
        yield value, start, at


def _next(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()
