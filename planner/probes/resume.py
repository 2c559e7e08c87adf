"""The partial measurements of a run that was interrupted: one JSON line each, behind a line of circumstances."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.errors import OutputError

__all__ = ["Measured", "append_measured", "read_measured", "start_file"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One timing of a point; ``reference_s``: the slower of the reference timings before and after it."""

    name: str
    time_s: float
    spread_s: float
    repeats: int
    reference_s: float


def read_measured(path: Path, circumstances: Mapping[str, str]) -> list[Measured]:
    """Return what an earlier run left; nothing where there is no file or it was made under other circumstances.

    A last line that was cut off is left out.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    if not lines or _parsed(lines[0]) != dict(circumstances):
        return []
    return [made for made in map(_measured, lines[1:]) if made is not None]


def start_file(path: Path, circumstances: Mapping[str, str], kept: Sequence[Measured]) -> None:
    """Write the file anew, with what is kept of an earlier run.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    lines = [json.dumps(dict(circumstances)), *(json.dumps(asdict(made)) for made in kept)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"the file of partial samples must be writable, got {error}") from error


def append_measured(path: Path, measured: Sequence[Measured]) -> None:
    """Add lines to the file, all at once."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(asdict(made)) + "\n" for made in measured))


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _measured(line: str) -> Measured | None:
    fields = _parsed(line)
    if not isinstance(fields, dict) or set(fields) != set(Measured.__slots__):
        return None
    return Measured(**fields)
