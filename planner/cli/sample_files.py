"""The sample files of a folder for ``planner calibrate --samples``: what is wrong with them, by file and line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner import catalog
from planner.cli.kept_samples import NODE, node_of, steps_of
from planner.cli.streams import note
from planner.domain.arrays import BoolArray, IntArray
from planner.domain.cluster import Accelerator, Node
from planner.domain.samples import Samples
from planner.domain.training import STEP, TimedStep
from planner.errors import InputFileError, ParameterError, UnknownNameError
from planner.fitting.repeats import contradictions, repeated, runs_apart, undisputed
from planner.fitting.rows import take, usable
from planner.fitting.screening import OffCourse, off_course, unit_doubt
from planner.formats.sample_files import SampleFiles, read_sample_files
from planner.probes.run import DISTURBED_NOTE

__all__ = ["samples_of"]

MOST_REASONS = 5
"""Reasons for rejected rows that are listed."""
MOST_FOLDERS = 3
"""Folders that are named where the one given holds no files itself."""
SUFFIX = ".csv"


def samples_of(folder: Path, name: str) -> tuple[Samples, Node, tuple[TimedStep, ...]]:
    """Return the samples of a folder's files, the node that they are of, and training steps.

    Notes say what takes no part in a fit. The node is the one that the files name, else one of their bundled device.

    Parameters
    ----------
    folder : Path
    name : str
        Of the calibration that they are for.

    Raises
    ------
    ParameterError
        No such folder, none of its files is a CSV, or the name is that of another device.
    InputFileError
        A file is wrong, of another device than those before it, in another unit, if only in some rows, or has rows that
        contradict others.
    """
    paths = _paths(folder)
    files = read_sample_files(paths)
    steps, files = steps_of(files.samples), _without_steps(files)
    if not files.places:
        raise InputFileError(str(paths[0]), "rows must follow the header, got none in this folder")
    node = _node(files)
    accelerator = node.accelerator
    if name != accelerator.name and name in catalog.names("accelerators"):
        rule = f"the name of the samples' device, {accelerator.name}, or that of no device"
        raise ParameterError("--name", rule, name, f"these are no samples of {name}")
    _check_repeats(files)
    files = _without_disputed(files, _runs(files))
    _check_units(files, accelerator)
    files = _on_course(files, accelerator)
    _check_runs(files)
    files = _without_disputed(files, np.zeros_like(_runs(files)))
    _tell_rejected(files)
    rest = {key: value for key, value in files.samples.circumstances.items() if key != NODE}
    return replace(files.samples, circumstances=rest), node, steps


def _without_steps(files: SampleFiles) -> SampleFiles:
    """Return the rows of calls, those of whole training steps left out."""
    return _kept(files, files.samples.text["kind"] != STEP)


def _kept(files: SampleFiles, kept: BoolArray) -> SampleFiles:
    """Return the rows where ``kept``, shape (k,), is true."""
    places = tuple(place for place, is_kept in zip(files.places, kept.tolist(), strict=True) if is_kept)
    return SampleFiles(files.samples.select(kept), places)


def _paths(folder: Path) -> list[Path]:
    what, rule = "--samples", f"a folder with sample files (*{SUFFIX})"
    if not folder.exists():
        raise ParameterError(what, rule, str(folder), "there is no such folder")
    if not folder.is_dir():
        raise ParameterError(what, rule, str(folder), "that is a file: name the folder it stands in")
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        raise ParameterError(what, rule, str(folder), f"it cannot be read: {error.strerror}") from None
    paths = _tables(names)
    if not paths:
        held = "no such file is in it" if names else "it is empty"
        below = _folders_with_tables(names)
        remedy = f"give one of its folders: {below}" if below else "put the files of one device there"
        raise ParameterError(what, rule, str(folder), f"{held}; {remedy}")
    return paths


def _tables(names: Iterable[Path]) -> list[Path]:
    return [path for path in names if path.suffix.lower() == SUFFIX]


def _folders_with_tables(names: Sequence[Path]) -> str:
    """Return the first folders that hold such files, and how many more do; empty without any."""
    found = []
    for path in names:
        with contextlib.suppress(OSError):
            found += [str(path)] if path.is_dir() and _tables(path.iterdir()) else []
    more = f" and {len(found) - MOST_FOLDERS} more" if found[MOST_FOLDERS:] else ""
    return ", ".join(found[:MOST_FOLDERS]) + more


def _node(files: SampleFiles) -> Node:
    """Return the node that the files name, where it is of their device, else one of their bundled device."""
    device = _device_name(files)
    node = node_of(files.samples, files.places[0][0])
    if node is not None and node.accelerator.name == device:
        return node
    accelerator = _device(files, device)
    return Node(1, accelerator)


def _device_name(files: SampleFiles) -> str:
    """Return the one device of all rows."""
    devices = files.samples.text["device"]
    first = str(devices[0])
    other = np.flatnonzero(devices != first)
    if not first or (other.size and not devices[other[0]]):
        row = int(other[0]) if first else 0
        raise _error(
            files, row, "device must be given in every row, got nothing; 'planner show accelerators' lists them"
        )
    if other.size:
        row = int(other[0])
        rule = f"device must be {first!r}, as in {files.where([0])}, got {str(devices[row])!r}"
        raise _error(files, row, f"{rule}; fit samples of each device apart")
    return first


def _device(files: SampleFiles, first: str) -> Accelerator:
    try:
        return catalog.find_accelerator(first)
    except UnknownNameError as error:
        guess = f"did you mean {error.nearest!r}?" if error.nearest else "'planner show accelerators' lists them"
        raise _error(files, 0, f"device must be a known accelerator, got {first!r}; {guess}") from None


def _error(files: SampleFiles, row: int, problem: str) -> InputFileError:
    path, line = files.places[row]
    return InputFileError(path, problem, f"line {line}")


def _check_units(files: SampleFiles, accelerator: Accelerator) -> None:
    """Refuse a file whose times, those of a kind in it, or those of some rows are evidently not seconds."""
    runs = _runs(files)
    for run in np.unique(runs).tolist():
        own = _kept(files, runs == run)
        _refuse_other_units(own, off_course(own.samples, accelerator))
        doubt = unit_doubt(own.samples, accelerator)
        if doubt:
            path = own.places[0][0]
            lines = own.where(doubt.rows).removeprefix(f"{path}: ") if doubt.rows else ""
            raise InputFileError(path, doubt.sentence, lines)


def _refuse_other_units(files: SampleFiles, found: Sequence[OffCourse]) -> None:
    for one in found:
        if one.unit is not None:
            raise _error(files, one.row, _other_unit(files, one, *one.unit, found))


def _on_course(files: SampleFiles, accelerator: Accelerator) -> SampleFiles:
    """Return the rows whose times are not far off those of their like; refuse those that are off by a unit."""
    found = off_course(files.samples, accelerator)
    _refuse_other_units(files, found)
    if not found:
        return files
    kept = np.ones(files.samples.size, dtype=np.bool_)
    for one in found:
        kept[one.row] = False
        time_s = files.samples.time_s[one.row]
        note(f"rejected: {files.where([one.row])}: time_s is {time_s:g} s, {_off(one)} as its like")
    return _kept(files, kept)


def _off(one: OffCourse) -> str:
    return f"{one.factor:,.0f} times as long" if one.factor > 1 else f"{1 / one.factor:,.0f} times as short"


def _other_unit(files: SampleFiles, one: OffCourse, unit: str, per_second: float, found: Sequence[OffCourse]) -> str:
    """Return what is wrong with a time that is off by a unit, and with all those off to the same side by no other."""
    alike = [
        other.row
        for other in found
        if (other.factor > 1) == (one.factor > 1) and other.unit in (None, (unit, per_second))
    ]
    kind, time_s = files.samples.text["kind"][one.row], files.samples.time_s[one.row]
    more = f" (and so {files.where(alike)})" if alike[1:] else ""
    guess, remedy = (
        (unit, "divide") if one.factor > 1 else (f"seconds divided by {per_second:,.0f} once too often", "multiply")
    )
    these = f"these {len(alike)} rows" if alike[1:] else "this row"
    return (
        f"time_s must be in seconds, got {time_s:g}, {_off(one)} as rows of kind {kind} of like size{more}: looks like "
        f"{guess}; {remedy} {these} alone by {per_second:,.0f}"
    )


def _runs(files: SampleFiles) -> IntArray:
    """Return the number of each row's file, shape (k,)."""
    return np.unique([path for path, _ in files.places], return_inverse=True)[1].astype(np.int64)


def _disturbed(files: SampleFiles) -> BoolArray:
    """Tell which rows were measured while the machine was disturbed, shape (k,)."""
    disturbed: BoolArray = files.samples.text["notes"] == DISTURBED_NOTE
    return disturbed


def _check_repeats(files: SampleFiles) -> None:
    """Refuse undisturbed rows of one file and one call whose times differ by more than their spread."""
    runs, disturbed, times = _runs(files), _disturbed(files), files.samples.time_s
    for run in np.unique(runs).tolist():
        own = np.flatnonzero((runs == run) & ~disturbed)
        found = contradictions(take(files.samples, own))
        if found:
            fast, slow = (int(own[at]) for at in found[0])
            more = f" (and {len(found) - 1} more such calls)" if found[1:] else ""
            rule = f"time_s of one call must agree within its spread, got {times[slow]:g} s, but {times[fast]:g} s in "
            remedy = "leave out the wrong row, or tell them apart in library or source"
            raise _error(files, slow, f"{rule}{files.where([fast])}{more}; {remedy}")


def _check_runs(files: SampleFiles) -> None:
    """Refuse files whose times of the same calls contradict each other grossly: more than runs of one machine do."""
    times = files.samples.time_s
    apart = runs_apart(files.samples, _runs(files), _disturbed(files))
    if apart is not None:
        rule = f"times of one call must be alike in all files, got {times[apart.slow]:g} s, but {times[apart.fast]:g} s"
        raise _error(
            files,
            apart.slow,
            f"{rule} in {files.where([apart.fast])} (of {apart.common} calls in both {apart.far} are 3 times or more "
            f"apart, and one file takes {apart.ratio:.2f} times as long in the median); fit such files apart",
        )


def _without_disputed(files: SampleFiles, runs: IntArray) -> SampleFiles:
    """Return the rows that agree with the best one of their call in the same run, and say how many do not."""
    kept, disturbed = np.ones(files.samples.size, dtype=np.bool_), _disturbed(files)
    for run in np.unique(runs).tolist():
        own = np.flatnonzero(runs == run)
        kept[own] = undisputed(take(files.samples, own), disturbed[own])
    if not kept.all():
        note(
            f"{np.sum(~kept)} of {kept.size} rows are left out: other rows of their calls differ by more than the "
            "spread, and are undisturbed or faster"
        )
    return _kept(files, kept)


def _tell_rejected(files: SampleFiles) -> None:
    _, rejected = usable(files.samples)
    reasons: dict[str, list[int]] = {}
    for row, reason in rejected:
        reasons.setdefault(reason, []).append(row)
    for reason, rows in list(reasons.items())[:MOST_REASONS]:
        note(f"rejected: {files.where(rows)}: {reason}")
    if len(reasons) > MOST_REASONS:
        note(f"rejected: {len(reasons) - MOST_REASONS} more reasons, of {len(rejected)} rows in all")
    again = repeated(files.samples)
    if again:
        note(f"{again} of {files.samples.size} rows time a call again; the median of each call is fitted")
