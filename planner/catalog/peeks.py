"""What the file of a calibration tells before it is built."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["is_about", "kernel_entries"]

_SUBJECT = re.compile(rb'"(accelerator|cluster|precision)"\s*:\s*"([^"]*)"')


def kernel_entries(keys: Mapping[str, Any], missing: Callable[[str, str, str], bool]) -> list[dict[str, Any]]:
    """Return the entries of kernels (kind, direction, precision) that are missing."""
    key = ("kind", "direction", "precision")
    of_kernels = (entry for entry in keys.get("entries", ()) if entry.get("scope") == "kernels")
    return [entry for entry in of_kernels if missing(*(entry.get(name, "") for name in key))]


def is_about(
    path: Path, accelerators: Iterable[str], clusters: Iterable[str] = (), precisions: Collection[str] = ()
) -> bool:
    """Tell without parsing whether a bundled calibration may be of an accelerator or cluster, in a precision if any."""
    named = _named(path)
    wanted = {("accelerator", one) for one in accelerators} | {("cluster", one) for one in clusters}
    return bool(named & wanted) and (not precisions or any(("precision", one) in named for one in precisions))


@cache
def _named(path: Path) -> frozenset[tuple[str, str]]:
    return frozenset((key.decode(), name.decode()) for key, name in set(_SUBJECT.findall(path.read_bytes())))
