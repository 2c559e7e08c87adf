"""The partial measurements of a run that was interrupted: one JSON line each, behind a line of circumstances."""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from planner.errors import OutputError

__all__ = [
    "Earlier", "Measured", "append", "holds_measured", "read_measured", "remove_if_empty",
    "seconds_used", "start_file",
]  # fmt: skip


FAILED = "failed"
PASSING_CIRCUMSTANCES = frozenset({"load_average", "steal_s", "steal_during_s"})
"""Circumstances that say how a run went, not what was measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One timing of a point.

    ``reference_s``: the slower of the reference timings before and after it; ``used_s``: what measuring points had
    taken by then, in the runs before that this one continues too. Time that measures none, for loading, choosing or
    training steps, is each run's own.
    """

    name: str
    time_s: float
    spread_s: float
    repeats: int
    reference_s: float
    used_s: float


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier run left, and a sentence about it for the user; empty: there was nothing.

    ``failed``: points and steps in which a device was lost.
    """

    measured: tuple[Measured, ...] = ()
    note: str = ""
    failed: tuple[str, ...] = ()

    @property
    def used_s(self) -> float:
        """Seconds of the budget that measuring points used."""
        return max((one.used_s for one in self.measured), default=0.0)

    def used_for(self, names: Collection[str]) -> float:
        """Return the seconds of it that points among names took: of what was timed in one stretch, equal parts."""
        total_s, before_s = 0.0, 0.0
        for until_s, stretch in itertools.groupby(self.measured, key=lambda one: one.used_s):
            own = [one.name in names for one in stretch]
            total_s += (until_s - before_s) * sum(own) / len(own)
            before_s = until_s
        return total_s


def seconds_used(path: Path, circumstances: Mapping[str, str], names: Collection[str]) -> float:
    """Return what points among names took in an earlier run that will be continued from a file [s]; 0: none will.

    Points of other networks, which are not among ``names``, are not charged.
    """
    with contextlib.suppress(OSError):
        lines = _lines(path)
        if lines and lines[0] == _lasting(circumstances):
            return Earlier(_measurements(lines)).used_for(names)
    return 0.0


def holds_measured(path: Path) -> bool:
    """Tell whether anything was measured by the run that left a file, if there is one."""
    with contextlib.suppress(OSError):
        return bool(_measurements(_lines(path)))
    return False


def remove_if_empty(path: Path) -> None:
    """Remove the file of a run that has measured nothing yet, and lost no device; any other stays."""
    with contextlib.suppress(OSError):
        lines = _lines(path)
        if len(lines) == 1 and isinstance(lines[0], dict):
            path.unlink()


def read_measured(path: Path, circumstances: Mapping[str, str], names: Collection[str]) -> Earlier:
    """Return what an earlier run left under the same circumstances; a last line that was cut off is left out.

    All of it is kept; the sentence tells what of it is among ``names``, the points of the run that goes on. A file of
    other circumstances, or that is no such file, is renamed. OutputError: the file cannot be read or renamed.
    """
    try:
        lines = _lines(path)
    except FileNotFoundError:
        return Earlier()
    except OSError as error:
        raise OutputError(f"the file of partial samples must be readable, got {path}: {error.strerror}") from error
    if not lines:
        return Earlier()
    now = _lasting(circumstances)
    if lines[0] != now:
        return Earlier(note=_set_aside(path, lines[0], now))
    failures = tuple(str(line[FAILED]) for line in lines[1:] if isinstance(line, dict) and set(line) == {FAILED})
    earlier = Earlier(_measurements(lines), failed=failures)
    points = {one.name for one in earlier.measured}
    own = points & set(names)
    others = len(points) - len(own)
    more = f"; {others} points that other networks asked for are kept, not counted" if others else ""
    note = f"continuing from {path}: {len(own)} points, {earlier.used_for(own):.0f} s used{more}" if points else ""
    return replace(earlier, note=note)


def _lasting(circumstances: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in circumstances.items() if key not in PASSING_CIRCUMSTANCES}


def _set_aside(path: Path, before: object, now: Mapping[str, str]) -> str:
    """Rename a file of other circumstances to the first name that is free, and say so."""
    why = "which does not hold measurements of this program"
    if isinstance(before, dict):
        key = next(key for key in sorted({*before, *now}) if before.get(key) != now.get(key))
        why = f"which was measured under other circumstances ({key} {before.get(key)!r}, now {now.get(key)!r})"
    names = (path.with_name(f"{path.name}.old{'' if at == 1 else f'-{at}'}") for at in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    try:
        path.rename(aside)
    except OSError as error:
        raise OutputError(f"{path}, {why}, must be renamed to {aside.name}, got {error.strerror}") from error
    return f"starting anew: {path}, {why}, is now {aside.name}"


def start_file(
    path: Path, circumstances: Mapping[str, str], timings: Sequence[Measured], failures: Sequence[str] = ()
) -> None:
    """Write the file anew, with what is kept of an earlier run, and what failed in it; whole or not at all.

    OutputError: it cannot be written.
    """
    text = _text((_lasting(circumstances), *timings, *failures))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # one process has the output: of a killed one
            left.unlink()
        with temporary.open("x", encoding="utf-8") as file:  # a new file: no link that somebody laid is followed
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"the file of partial samples must be writable, got {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def append(path: Path, values: Iterable[Measured | str]) -> None:
    """Add a line for each timing, or point or step in which a device was lost, all at once.

    A link in place of the file is not followed. OutputError: the file cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
            file.write(_text(values))
    except OSError as error:
        raise OutputError(f"the file of partial samples must be writable, got {path}: {error.strerror}") from error


def _text(values: Iterable[object]) -> str:
    """Return a line of JSON for each timing, mapping, or what failed."""
    texts = []
    for one in values:
        table = {FAILED: one} if isinstance(one, str) else one
        texts.append(json.dumps(asdict(table) if isinstance(table, Measured) else table) + "\n")
    return "".join(texts)


def _lines(path: Path) -> list[object]:
    """Return the value of every line of a file; None of one that was cut off."""
    values: list[object] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values.append(json.loads(line))
        except json.JSONDecodeError:
            values.append(None)
    return values


def _measurements(lines: Sequence[object]) -> tuple[Measured, ...]:
    """Return the timings among the lines behind the first one."""
    names = set(Measured.__slots__)
    tables = (line for line in lines[1:] if isinstance(line, dict) and set(line) == names)
    return tuple(
        Measured(**table) for table in tables if all(isinstance(table[name], int | float) for name in names - {"name"})
    )
