"""What the file of a calibration tells before it is built, and bundled ones built once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from planner.domain.calibration import Calibration
from planner.formats.calibration import build_calibration
from planner.formats.documents import parse_text, read_text

__all__ = ["bundled_keys", "is_about", "kernel_entries", "peek", "read_bundled"]

_SUBJECT = re.compile(rb'"(accelerator|cluster|precision)"\s*:\s*"([^"]*)"')


def peek(path: Path) -> Mapping[str, Any]:
    """Return the keys of a calibration unchecked: enough to see whether it is worth building."""
    return _keys_of(path, path.stat().st_mtime_ns) if path.is_file() else parse_text(read_text(path), str(path), "json")


def kernel_entries(keys: Mapping[str, Any], missing: Callable[[str, str, str], bool]) -> list[dict[str, Any]]:
    """Return the entries of kernels (kind, direction, precision) that are missing."""
    key = ("kind", "direction", "precision")
    of_kernels = (entry for entry in keys.get("entries", ()) if entry.get("scope") == "kernels")
    return [entry for entry in of_kernels if missing(*(entry.get(name, "") for name in key))]


def is_about(
    path: Path, accelerators: Iterable[str], clusters: Iterable[str] = (), precisions: Collection[str] = ()
) -> bool:
    """Tell without parsing whether a bundled calibration may be of an accelerator or cluster, in a precision if any."""
    subjects = _subjects(path)
    candidates = {("accelerator", one) for one in accelerators} | {("cluster", one) for one in clusters}
    return bool(subjects & candidates) and (not precisions or any(("precision", one) in subjects for one in precisions))


@cache
def _subjects(path: Path) -> frozenset[tuple[str, str]]:
    return frozenset((key.decode(), name.decode()) for key, name in set(_SUBJECT.findall(path.read_bytes())))


@cache
def _keys_of(path: Path, _written_ns: int) -> Mapping[str, Any]:
    """Return the keys of a file as it was written at a time: asked for more than once in an answer."""
    return parse_text(read_text(path), str(path), "json")


@cache
def bundled_keys(path: Path) -> Mapping[str, Any]:
    """Return the keys of a bundled file; what a user's file is searched for, a test searches these for."""
    keys: dict[str, Any] = json.loads(path.read_bytes())
    return keys


@cache
def read_bundled(path: Path) -> Calibration:
    """Return the calibration of a bundled file, which nobody writes while the program runs."""
    return build_calibration(bundled_keys(path), path)
