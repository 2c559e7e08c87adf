"""The sample files of a folder for ``planner calibrate --samples``: which are read, what is wrong, by line.

``planner calibrate`` writes such a file beside a calibration: rows of kernels as they are fitted; a training step as a
row of kind ``step`` that names its network; in circumstance ``node`` what was measured on.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from planner import catalog
from planner.domain.arrays import BoolArray, IntArray
from planner.domain.calibration import Calibration
from planner.domain.cluster import Accelerator, Cluster, Node
from planner.domain.network import Network
from planner.domain.samples import DISTURBED_NOTE, STEP, Samples, TimedStep
from planner.errors import InputFileError, ParameterError, PlannerError, UnknownNameError
from planner.fitting import screening
from planner.fitting.calibration import fit_links, with_overheads
from planner.fitting.overheads import times_over_kernels
from planner.fitting.rows import take, usable
from planner.fitting.screening import Outlier
from planner.formats.calibration import parse_node, text_of_node
from planner.formats.documents import read_text
from planner.formats.logs import UNSTATED, Stated, is_log
from planner.formats.samples import SampleFiles, read_sample_files, write_samples
from planner.numbers import constant
from planner.probes.calibrate import Measurement
from planner.probes.machine import names_of_gpu
from planner.probes.steps import probe_networks
from planner.sessions.inputs import Say

NODE = "node"
SAMPLES_SUFFIX = ".samples.csv"


def samples_path(calibration: Path) -> Path:
    """Return the file beside that of a calibration: ``mine.samples.csv`` beside ``mine.json``."""
    return calibration.with_suffix(SAMPLES_SUFFIX)


def samples_text(measurement: Measurement, source: str, date: str) -> str:
    """Return the samples file of a measurement, with its source and date."""
    rows: list[Mapping[str, Any]] = [
        {
            "kind": STEP, "precision": step.precision, "device": measurement.accelerator.name, "library": "pytorch",
            "call": step.network.name, "sub_batch": step.sub_batch, "time_s": step.time_s, "spread_s": step.spread_s,
        }
        for step in measurement.steps
    ]  # fmt: skip
    circumstances = {"source": source, "date": date, NODE: text_of_node(measurement.node)}
    whole = measurement.samples.joined(Samples.from_rows(rows, {})) if rows else measurement.samples
    return write_samples(Samples(whole.text, whole.number, {**whole.circumstances, **circumstances}))


def steps_of(samples: Samples, say: Say) -> dict[int, TimedStep]:
    """Return the training steps among rows, by their position; ``say`` is told of networks that are not known."""
    at = np.flatnonzero(samples.text["kind"] == STEP)
    columns = (
        at, samples.text["call"][at], samples.number["sub_batch"][at], samples.time_s[at],
        samples.number["spread_s"][at], samples.text["precision"][at],
    )  # fmt: skip
    networks: dict[str, Network | None] = {one.name: one for one in (probe_networks("gpu") if at.size else ())}
    for name in dict.fromkeys(columns[1].tolist()):
        try:
            networks[name] = networks.get(name) or catalog.find_network(name)
        except PlannerError as error:
            networks[name] = None
            say(f"rows of kind step of network {name!r} are left out: {error}")
    steps = {}
    for row, name, sub_batch, time_s, spread_s, precision in zip(*(column.tolist() for column in columns), strict=True):
        network = networks[name]
        if network is not None and sub_batch >= 1:
            known_spread_s = 0.0 if np.isnan(spread_s) else spread_s
            steps[row] = TimedStep(network, int(sub_batch), time_s, known_spread_s, precision or "fp32")
    return steps


REJECTED = "rejected"
"""Circumstance: how many rows took no part in the fit, where the first ones stand, and why."""
DISPUTED = "another row of its call differs by more than the spread, and is undisturbed or faster"
SENTENCES_SAID = 5
"""Reasons for rejected rows that are listed."""
SENTENCES_RECORDED = 3
"""Of these, those that a calibration holds."""
LOG_FAR_OFF = math.log(constant("sample_files.far_off"))
"""Of steps over the sum of their kernels and 10 us a call: between good ones and those off by a unit (docs/numbers.md).
"""


class _Selection(NamedTuple):
    """Rows that take part in a fit, and lots of rows that do not, each with its reason."""

    files: SampleFiles
    lots: tuple[tuple[SampleFiles, str], ...] = ()

    def without(self, reasons: Mapping[int, str]) -> _Selection:
        """Return this with rows left out by their position, each for its reason."""
        rows = np.arange(self.files.samples.size)
        lots = [
            (self.files.select(np.isin(rows, [row for row in reasons if reasons[row] == reason])), reason)
            for reason in dict.fromkeys(reasons[row] for row in sorted(reasons))
        ]
        return _Selection(self.files.select(~np.isin(rows, list(reasons))), (*self.lots, *lots))

    @property
    def rejections(self) -> int:
        """Rows that take no part."""
        return sum(lot.samples.size for lot, _ in self.lots)


class StepRows(NamedTuple):
    """Training steps, and the rows that hold them."""

    steps: tuple[TimedStep, ...]
    files: SampleFiles


def links_of(place: Path, name: str, cluster: Cluster | None, stated: Stated) -> Calibration | SampleFiles:
    """Return the calibration of files that time links alone; else these files, as they are.

    The node is the cluster's, else that of the files; of files that name none it serves any cluster that it is named
    for.

    ParameterError: no such folder, none of its files is a CSV or a log, or they are of kernels and a cluster is given.
    InputFileError: a file is wrong, or of another device than others or the cluster.
    CoverageError: nothing can be fitted.
    """
    files = read_sample_files(_sample_paths(place), stated)
    samples = files.samples
    if not samples.size or not (samples.text["operation"] != "").all():
        if cluster is not None or stated != UNSTATED:
            rule = "--cluster, --nodes and --gpus-per-node", "given with times of links alone"
            raise ParameterError(*rule, str(place), "these files hold kernels: leave them out")
        return files
    circumstances = dict(samples.circumstances)
    text = circumstances.pop(NODE, "")
    node = cluster.node if cluster else parse_node(text, files.places[0][0]) if text else None
    device = node.accelerator if node else None
    for row, text in enumerate(samples.text["device"].tolist()):
        names = (text, *names_of_gpu(text))
        if text and device and device.name not in names:
            raise _error(files, row, f"device must be {device.name}, as of the others, got {text!r}; fit them apart")
        device = device or next(filter(None, map(catalog.known_accelerator, names)), None)
    gpus = int(samples.number["ranks_per_node"].max())
    node = node or (Node(gpus, device) if device else None)
    samples = replace(samples, circumstances=circumstances)
    return fit_links(samples, name, device, node, cluster.name if cluster else None)


def samples_of(every: SampleFiles, place: Path, name: str, say: Say) -> tuple[Samples, Node, StepRows]:
    """Return the samples of files, the node that they are of, and training steps, for a calibration's name.

    Sentences to ``say``, and circumstance ``rejected``, name what takes no part in a fit. The node is the one that the
    files name, else one of their bundled device.

    ParameterError: the name is that of another device.
    InputFileError: a file is of another device or unit than others, or its rows contradict each other or theirs.
    """
    by_row, files = steps_of(every.samples, say), every.select(every.samples.text["kind"] != STEP)
    steps = StepRows(tuple(by_row.values()), every.select(np.isin(np.arange(every.samples.size), list(by_row))))
    if not files.places:  # whole training steps alone are what --plan leaves
        count, rule = len(every.places), "rows must follow the header, got none in this folder"
        got = f"{count} {'rows' if count > 1 else 'row'} of kind {STEP} alone, whole training steps, in this folder"
        remedy = "put a samples file of the same device's kernels beside it, as planner calibrate without --plan leaves"
        raise InputFileError(
            str(_sample_paths(place)[0]),
            f"rows of kernels must follow the header, got {got}; {remedy}" if count else rule,
        )
    node = _node(files)
    accelerator = node.accelerator
    if name != accelerator.name and name in catalog.names("accelerators"):
        rule = f"the name of the samples' device, {accelerator.name}, or that of no device"
        raise ParameterError("--name", rule, name, f"these are no samples of {name}")
    selection = _selection(files, accelerator)
    samples = _told(selection, "rows time a call again; the median of each call is fitted", say)
    circumstances = {key: value for key, value in files.samples.circumstances.items() if key != NODE}
    return replace(samples, circumstances=circumstances | _rejections(selection)), node, steps


def fitted_with_steps(calibration: Calibration, rows: StepRows, say: Say) -> Calibration:
    """Return the calibration of kernels with the overheads that steps show which go with them; tell the others.

    InputFileError: more than half of the steps of a file take 30 times as long as their kernels, or a thirtieth.
    """
    factors = times_over_kernels(calibration.entries, rows.steps)
    off = [Outlier(int(row), float(factors[row])) for row in np.flatnonzero(np.abs(np.log(factors)) >= LOG_FAR_OFF)]
    for own in _rows_by_file(rows.files):
        of_file = [one for one in off if one.row in own]
        if 2 * len(of_file) > own.size:
            path = rows.files.places[of_file[0].row][0]
            middle = Outlier(of_file[0].row, float(np.median([one.factor for one in of_file])))
            got = f"{len(of_file)} of {own.size} rows of kind step that are {_off(middle)} as their kernels (median)"
            if middle.unit is None:
                rule, remedy = "go with the kernels of the step", "leave these rows out, or measure them again"
            else:
                rule, remedy = "be in seconds", _guess(middle, *middle.unit, "these rows")
            lines = rows.files.where(one.row for one in of_file).removeprefix(f"{path}: ")
            raise InputFileError(path, f"time_s must {rule}, got {got}: {remedy}", lines)
    reasons = {one.row: f"time_s is {rows.steps[one.row].time_s:g} s, {_off(one)} as its kernels" for one in off}
    before = {REJECTED: calibration.environment.get(REJECTED, "")}
    files = replace(rows.files, samples=replace(rows.files.samples, circumstances=before))
    selection = _without_disputed(_Selection(files).without(reasons))
    samples = _told(selection, "training steps are timed again; the median of each is fitted", say)
    whole = with_overheads(calibration, screening.merged_steps(steps_of(samples, say).values()))
    return replace(whole, environment={**whole.environment, **_rejections(selection)})


def _selection(files: SampleFiles, accelerator: Accelerator) -> _Selection:
    """Return the rows that a fit can use, and those it cannot; refuse files that are wrong as a whole."""
    selection = _Selection(files).without(dict(usable(files.samples)[1]))
    _check_repeats(selection.files)
    selection = _without_disputed(selection, _rows_by_file(selection.files))
    for own in _rows_by_file(selection.files):  # times, those of a kind, or of some rows, that are evidently no seconds
        of_file = selection.files.select(np.isin(np.arange(selection.files.samples.size), own))
        _refuse_other_units(of_file, screening.outliers(of_file.samples, accelerator))
        if doubt := screening.unit_doubt(of_file.samples, accelerator):
            path = of_file.places[0][0]
            lines = of_file.where(doubt.rows).removeprefix(f"{path}: ") if doubt.rows else ""
            raise InputFileError(path, doubt.sentence, lines)
    rows, times = selection.files, selection.files.samples.time_s
    off = screening.outliers(rows.samples, accelerator)
    _refuse_other_units(rows, off)
    selection = selection.without({one.row: f"time_s is {times[one.row]:g} s, {_off(one)} as its like" for one in off})
    _check_files(selection.files)
    return _without_disputed(selection)


def _without_disputed(selection: _Selection, groups: Sequence[IntArray] = ()) -> _Selection:
    """Return rows without those that disagree with the best one of their call, in their group or any file."""
    files, disturbed = selection.files, _disturbed(selection.files)
    rows = (
        own[~screening.undisputed(take(files.samples, own), disturbed[own])].tolist()
        for own in groups or [np.arange(files.samples.size)]
    )
    return selection.without(dict.fromkeys(itertools.chain.from_iterable(rows), DISPUTED))


def _told(selection: _Selection, again: str, say: Say) -> Samples:
    """Say which rows take no part, and how many time what others did; return those that take part."""
    for sentence in _sentences(selection, SENTENCES_SAID):
        say(f"rejected: {sentence}")
    samples = selection.files.samples
    if count := screening.repeated(samples):
        say(f"{count} of {samples.size} {again}")
    return samples


def _sentences(selection: _Selection, most: int) -> Iterator[str]:
    """Yield a sentence on each of the first lots of rejected rows, then how many rows are in others."""
    for lot, reason in selection.lots[:most]:
        yield f"{lot.where(range(lot.samples.size))}: {reason}"
    more = _Selection(selection.files, selection.lots[most:]).rejections
    if more:
        yield f"{more} more rows, for other reasons"


def _rejections(selection: _Selection) -> dict[str, str]:
    """Return the circumstance of the rejected rows, behind what the files say of theirs; nothing without any."""
    if not selection.lots:
        return {}
    lots = tuple(  # their files without the folder: a calibration is read elsewhere
        (SampleFiles(lot.samples, tuple((Path(path).name, line) for path, line in lot.places)), reason)
        for lot, reason in selection.lots
    )
    rows, samples = selection.rejections, selection.files.samples
    sentences = "; ".join(_sentences(_Selection(selection.files, lots), SENTENCES_RECORDED))
    before = samples.circumstances.get(REJECTED, "")
    return {REJECTED: f"{before}{'; ' if before else ''}{rows} of {samples.size + rows} rows: {sentences}"}


def _node(files: SampleFiles) -> Node:
    """Return the node that the files name, where it is of their device, else one of their bundled device."""
    devices, text = files.samples.text["device"], files.samples.circumstances.get(NODE, "")
    device = str(devices[0])
    others = np.flatnonzero(devices != device)
    if not device or (others.size and not devices[others[0]]):
        rule = "device must be given in every row, got nothing; 'planner show accelerators' lists them"
        raise _error(files, int(others[0]) if device else 0, rule)
    if others.size:
        row = int(others[0])
        rule = f"device must be {device!r}, as in {files.where([0])}, got {str(devices[row])!r}"
        raise _error(files, row, f"{rule}; fit samples of each device apart")
    node = parse_node(text, files.places[0][0]) if text else None
    if node is not None and node.accelerator.name == device:
        return node
    try:
        return Node(1, catalog.find_accelerator(device))
    except UnknownNameError as error:
        guess = f"did you mean {error.nearest!r}?" if error.nearest else "'planner show accelerators' lists them"
        raise _error(files, 0, f"device must be a known accelerator, got {device!r}; {guess}") from None


def _error(files: SampleFiles, row: int, problem: str) -> InputFileError:
    path, line = files.places[row]
    return InputFileError(path, problem, f"line {line}")


def _refuse_other_units(files: SampleFiles, off: Sequence[Outlier]) -> None:
    """Refuse the first time that is off by a unit, and name all those off to the same side by no other."""
    one = next((one for one in off if one.unit is not None), None)
    if one is None or one.unit is None:
        return
    alike = [other.row for other in off if (other.factor > 1) == (one.factor > 1) and other.unit in (None, one.unit)]
    kind, time_s = files.samples.text["kind"][one.row], files.samples.time_s[one.row]
    more = f" (and so {files.where(alike)})" if alike[1:] else ""
    got = f"{time_s:g}, {_off(one)} as rows of kind {kind} of like size{more}"
    guess = _guess(one, *one.unit, f"these {len(alike)} rows" if alike[1:] else "this row")
    raise _error(files, one.row, f"time_s must be in seconds, got {got}: {guess}")


def _off(one: Outlier) -> str:
    return f"{one.factor:,.0f} times as long" if one.factor > 1 else f"{1 / one.factor:,.0f} times as short"


def _guess(one: Outlier, unit: str, per_second: float, these: str) -> str:
    """Return what a time looks like that is off by a unit, and what to do."""
    if one.factor > 1:
        return f"looks like {unit}; divide {these} alone by {per_second:,.0f}"
    often = f"seconds divided by {per_second:,.0f} once too often"
    return f"looks like {often}; multiply {these} alone by {per_second:,.0f}"


def _file_numbers(files: SampleFiles) -> IntArray:
    """Return the number of each row's file, shape (k,)."""
    return np.unique([path for path, _ in files.places], return_inverse=True)[1].astype(np.int64)


def _rows_by_file(files: SampleFiles) -> list[IntArray]:
    numbers = _file_numbers(files)
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def _disturbed(files: SampleFiles) -> BoolArray:
    """Tell which rows were measured while the machine was disturbed, shape (k,)."""
    disturbed: BoolArray = files.samples.text["notes"] == DISTURBED_NOTE
    return disturbed


def _check_repeats(files: SampleFiles) -> None:
    """Refuse undisturbed rows of one file and one call whose times differ by more than their spread."""
    disturbed, times = _disturbed(files), files.samples.time_s
    for rows in _rows_by_file(files):
        own = rows[~disturbed[rows]]
        pairs = screening.contradictions(take(files.samples, own))
        if pairs:
            fast, slow = (int(own[at]) for at in pairs[0])
            more = f" (and {len(pairs) - 1} more such calls)" if pairs[1:] else ""
            rule = f"time_s of one call must agree within its spread, got {times[slow]:g} s, but {times[fast]:g} s in "
            remedy = "leave out the wrong row, or tell them apart in library or source"
            raise _error(files, slow, f"{rule}{files.where([fast])}{more}; {remedy}")


def _check_files(files: SampleFiles) -> None:
    """Refuse files whose times of the same calls contradict each other grossly: more than runs of one machine do."""
    times, disturbed = files.samples.time_s, _disturbed(files)
    apart = screening.runs_apart(files.samples, _file_numbers(files), disturbed)
    if apart is not None:
        rule = f"times of one call must be alike in all files, got {times[apart.slow]:g} s, but {times[apart.fast]:g} s"
        noisy = [row for row in (apart.slow, apart.fast) if disturbed[row]]
        remedy = "fit such files apart"
        if noisy:
            paths = np.array([path for path, _ in files.places])
            shares = {path: float(np.mean(disturbed[paths == path])) for path in paths[noisy].tolist()}
            worst = max(shares, key=lambda path: shares[path])
            were = f"{files.where(noisy)} {'were' if noisy[1:] else 'was'} {DISTURBED_NOTE}, as {shares[worst]:.0%}"
            again = "leave that file out, or calibrate again on a quiet machine"
            remedy = f"{were} of the rows of {worst} were: {again}"
        why = f"of {apart.common} calls in both {apart.far} are 3 times or more apart"
        ratio = f"one file takes {apart.ratio:.2f} times as long in the median"
        raise _error(files, apart.slow, f"{rule} in {files.where([apart.fast])} ({why}, and {ratio}); {remedy}")


MOST_FOLDERS = 3
"""Folders that are named where the one given holds no files itself."""
SUFFIX, LOGS = ".csv", (".log", ".txt", ".out", ".json", "")


def _sample_paths(place: Path) -> list[Path]:
    rule = f"a file or folder of samples (*{SUFFIX}), or of logs of tests of links"
    return table_paths(place, "--samples", rule, lambda path: is_log(read_text(path)))


def table_paths(place: Path, what: str, rule: str, holds_log: Callable[[Path], bool]) -> list[Path]:
    """Return a file, or the tables of a folder and the files that hold logs, sorted.

    ``what``: the option; ``rule``: what it takes. ParameterError: no such file or folder, or none of its files is one.
    """
    try:
        names = [place] if place.is_file() else sorted(place.iterdir())
    except FileNotFoundError:
        raise ParameterError(what, rule, str(place), "there is no such folder") from None
    except OSError as error:
        raise ParameterError(what, rule, str(place), f"it cannot be read: {error.strerror}") from None
    paths = names if place.is_file() else _tables(names, holds_log)
    if not paths:
        content, remedy = "no such file is in it" if names else "it is empty", "put the files of one device there"
        folders = []
        for path in names:
            with contextlib.suppress(OSError):
                folders += [str(path)] if path.is_dir() and _tables(path.iterdir(), holds_log) else []
        if folders:
            more = f" and {len(folders) - MOST_FOLDERS} more" if folders[MOST_FOLDERS:] else ""
            remedy = f"give one of its folders: {', '.join(folders[:MOST_FOLDERS])}{more}"
        raise ParameterError(what, rule, str(place), f"{content}; {remedy}")
    return paths


def _tables(names: Iterable[Path], holds_log: Callable[[Path], bool]) -> list[Path]:
    tables = []
    for path in names:
        with contextlib.suppress(InputFileError):
            if path.suffix.lower() == SUFFIX or (path.suffix in LOGS and holds_log(path)):
                tables.append(path)
    return tables
