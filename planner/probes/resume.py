"""The partial measurements of a run that was interrupted: one JSON line each, behind a line of circumstances."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from planner.errors import OutputError

__all__ = [
    "Earlier",
    "Measured",
    "append_failed",
    "append_measured",
    "holds_measured",
    "read_measured",
    "remove_if_empty",
    "seconds_used",
    "start_file",
]


FAILED = "failed"


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
        return max((made.used_s for made in self.measured), default=0.0)

    def used_for(self, names: Collection[str]) -> float:
        """Return the seconds of it that points among names took: of what was timed in one stretch, equal parts."""
        total_s, before_s = 0.0, 0.0
        for until_s, stretch in itertools.groupby(self.measured, key=lambda made: made.used_s):
            mine = [made.name in names for made in stretch]
            total_s += (until_s - before_s) * sum(mine) / len(mine)
            before_s = until_s
        return total_s


def seconds_used(path: Path, circumstances: Mapping[str, str], names: Collection[str]) -> float:
    """Return what points among names took in an earlier run that will be continued from a file [s]; 0: none will."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0.0
    if not lines or _parsed(lines[0]) != dict(circumstances):
        return 0.0
    return Earlier(_all_measured(lines)).used_for(names)


def holds_measured(path: Path) -> bool:
    """Tell whether anything was measured by the run that left a file, if there is one."""
    try:
        return bool(_all_measured(path.read_text(encoding="utf-8", errors="replace").splitlines()))
    except OSError:
        return False


def remove_if_empty(path: Path) -> None:
    """Remove the file of a run that has measured nothing yet, and lost no device; any other stays."""
    with contextlib.suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        if len(lines) == 1 and isinstance(_parsed(lines[0]), dict):
            path.unlink()


def _all_measured(lines: Sequence[str]) -> tuple[Measured, ...]:
    """Return what the lines behind the first one hold; one that was cut off holds nothing."""
    return tuple(made for made in map(_measured, lines[1:]) if made is not None)


def read_measured(path: Path, circumstances: Mapping[str, str], names: Collection[str]) -> Earlier:
    """Return what an earlier run left under the same circumstances; a last line that was cut off is left out.

    All of it is kept; the sentence tells what of it is among ``names``, the points of the run that goes on. A file of
    other circumstances, or that is no such file, is set aside: renamed, never lost.

    Raises
    ------
    OutputError
        The file cannot be read or renamed.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return Earlier()
    except OSError as error:
        raise OutputError(f"the file of partial samples must be readable, got {path}: {error.strerror}") from error
    if not lines:
        return Earlier()
    known = _parsed(lines[0])
    if known != dict(circumstances):
        return Earlier(note=_set_aside(path, _why_other(known, circumstances)))
    measured = _all_measured(lines)
    earlier = Earlier(measured, failed=tuple(filter(None, map(_failed, lines[1:]))))
    points = {made.name for made in measured}
    mine = points & set(names)
    others = len(points) - len(mine)
    kept = f"; {others} points that other networks asked for are kept, not counted" if others else ""
    note = f"continuing from {path}: {len(mine)} points, {earlier.used_for(mine):.0f} s used{kept}" if points else ""
    return replace(earlier, note=note)


def _why_other(known: object, circumstances: Mapping[str, str]) -> str:
    if not isinstance(known, dict):
        return "which does not hold measurements of this program"
    keys = sorted({*known, *circumstances})
    key = next(key for key in keys if known.get(key) != circumstances.get(key))
    return f"which was measured under other circumstances ({key} {known.get(key)!r}, now {circumstances.get(key)!r})"


def _set_aside(path: Path, why: str) -> str:
    """Rename a file to the first name that is free, and say so."""
    names = (path.with_name(f"{path.name}.old{'' if at == 1 else f'-{at}'}") for at in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    try:
        path.rename(aside)
    except OSError as error:
        raise OutputError(f"{path}, {why}, must be renamed to {aside.name}, got {error.strerror}") from error
    return f"starting anew: {path}, {why}, is now {aside.name}"


def start_file(
    path: Path, circumstances: Mapping[str, str], kept: Sequence[Measured], failed: Sequence[str] = ()
) -> None:
    """Write the file anew, with what is kept of an earlier run, and what failed in it; whole or not at all.

    Raises
    ------
    OutputError
        It cannot be written.
    """
    lines = [json.dumps(dict(circumstances)), *(json.dumps(asdict(made)) for made in kept), *map(_failed_line, failed)]
    temporary = path.with_name(f".{path.name}.tmp")  # one process has the output: what a killed one left is replaced
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"the file of partial samples must be writable, got {path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def append_measured(path: Path, measured: Sequence[Measured]) -> None:
    """Add lines to the file, all at once."""
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(asdict(made)) + "\n" for made in measured))


def append_failed(path: Path, what: str) -> None:
    """Add a line that says in which point or step a device was lost."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_failed_line(what) + "\n")


def _failed_line(what: str) -> str:
    return json.dumps({FAILED: what})


def _failed(line: str) -> str:
    """Return what a line says that a device was lost in; empty: it says something else."""
    fields = _parsed(line)
    return str(fields[FAILED]) if isinstance(fields, dict) and set(fields) == {FAILED} else ""


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _measured(line: str) -> Measured | None:
    fields = _parsed(line)
    if not isinstance(fields, dict) or set(fields) != set(Measured.__slots__):
        return None
    numbers = [fields[name] for name in Measured.__slots__ if name != "name"]
    return Measured(**fields) if all(isinstance(number, int | float) for number in numbers) else None
