"""``planner validate``: predicted against measured runs.

Figures depend on the files and the options alone: neither ``planner.toml`` nor a calibration of this machine's own
takes part unless it is named. Relative paths of clusters, networks and data sets start from the folder of their file
of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from planner import catalog
from planner.cli import output
from planner.cli.inputs import Machine, machine_of
from planner.cli.parsing import NOTHING
from planner.cli.plot import draw, plot_file
from planner.cli.progress import bar
from planner.cli.values import DEFAULT_REQUEST, OPTION, Values, from_options
from planner.domain.configuration import Settings
from planner.domain.network import Network
from planner.domain.request import Problem, Sourced
from planner.domain.runs import Run, Runs
from planner.errors import ParameterError, PlannerError, UnknownNameError
from planner.formats.runs import NoRunError, read_runs
from planner.formats.validation import validation_document
from planner.report.validation import validation_view
from planner.scoring.evaluate import Answer, answers_of, refused, unread, validation_of
from planner.scoring.refit import Asked, held_out_answers

__all__ = ["run"]

T = TypeVar("T")


def run(arguments: Mapping[str, Any]) -> None:
    """Validate: read the runs, predict them problem by problem, score, write."""
    values = from_options(arguments)
    if "runs" not in values:
        raise ParameterError("--runs", "given", NOTHING, "name a table of measured runs")
    plot = plot_file(values)
    paths = values["runs"].value
    read, broken = _read(paths)
    for name in values["calibration"].value if "calibration" in values else ():
        catalog.find_calibration(name)
    tables = [_table(one, Path(path).parent, values) for path, one in zip(paths, read, strict=True)]
    axis = values["hold_out"].value if "hold_out" in values else None
    each = _answered(tables, axis)
    read_any = any(one.rows for one in read)
    if len(paths) > 1:
        each = [[_in_file(one, path) for one in found] for path, found in zip(paths, each, strict=True)]
    scored = validation_of([one for some in each for one in some], axis)
    omitted = sum(one.omitted for one in read)
    if "json" in arguments:
        output.write_document(validation_document(scored, omitted))
    elif read_any:
        output.write_view(validation_view(scored, paths, omitted))
    if plot and read_any:
        draw(scored, plot, force="force" in arguments)
    if broken is not None:
        raise broken


def _read(paths: Sequence[str]) -> tuple[list[Runs], NoRunError | None]:
    """Return the runs of every file, and the first error that one of them has none that can be read."""
    read: list[Runs] = []
    broken = None
    for path in paths:
        try:
            read.append(read_runs(path))
        except NoRunError as error:
            read.append(error.runs)
            broken = broken or error
    return read, broken


def _in_file(answer: Answer, path: str) -> Answer:
    """Return the answer with its group told apart from one of the same name in another file."""
    row = answer.row
    return replace(answer, row=replace(row, group=f"{row.group} ({path})")) if row.group else answer


class _Key(NamedTuple):
    """What the runs of one problem share, as it is written."""

    network: str
    cluster: str
    dataset: str
    optimizer: str
    strategy: str
    input: str
    framework: str
    source: str


class _Table(NamedTuple):
    """A file: answers to rows that are not predicted whatever the coefficients, and the runs of each problem."""

    answers: list[Answer]
    asked: list[tuple[Problem, list[Run]]]


def _table(runs: Runs, folder: Path, values: Values) -> _Table:
    """Return the rows of a file in ``folder``, where relative paths in them start."""
    files = _Files(folder, values)
    grouped: dict[_Key, list[Run]] = {}
    for one in runs.rows:
        grouped.setdefault(_key(one, values), []).append(one)
    found = _Table([unread(row) for row in runs.refused], [])
    for key, some in grouped.items():
        cluster = None
        try:
            _check_texts(key)
            machine = files.machine(key.cluster)
            cluster = machine.cluster
            found.asked.append((files.problem(key, machine), some))
        except PlannerError as error:
            found.answers.extend(refused(one, str(error), cluster) for one in some)
    return found


def _answered(tables: Sequence[_Table], axis: str | None) -> list[list[Answer]]:
    """Return the answers of each file, in its order; with an axis by coefficients fitted without each group of it."""
    if axis is None:
        predicted = [[answers_of(problem, runs) for problem, runs in table.asked] for table in tables]
    else:
        asked = [Asked(problem, runs) for table in tables for problem, runs in table.asked]
        sentence = f"fitting end-to-end coefficients without each {axis} in turn"
        with bar("fitting", 1.0, sentence) as show:
            found = iter(
                held_out_answers(asked, axis, lambda name, number, of: show(number / of, f"without {axis} {name}"))
            )
        predicted = [[next(found) for _ in table.asked] for table in tables]
    return [
        sorted([*table.answers, *(one for some in each for one in some)], key=lambda answer: answer.row.line)
        for table, each in zip(tables, predicted, strict=True)
    ]


def _key(run: Run, values: Values) -> _Key:
    framework = run.framework + (f"@{run.framework_version}" if run.framework_version else "")
    if "framework" in values:
        framework = values["framework"].value
    return _Key(run.network, run.cluster, run.dataset, run.optimizer, run.strategy, run.input, framework, run.source)


def _check_texts(key: _Key) -> None:
    """Refuse a null character, which no name has and no path can have."""
    for what, text in key._asdict().items():
        if "\0" in text:
            raise ParameterError(what, "text without a null character", text)


class _Once(Generic[T]):
    """Finds each thing once; what cannot be found is refused again without looking."""

    def __init__(self, find: Callable[[str], T]) -> None:
        self.find = find
        self.found: dict[str, T | PlannerError] = {}

    def __call__(self, text: str) -> T:
        if text not in self.found:
            try:
                self.found[text] = self.find(text)
            except PlannerError as error:
                self.found[text] = error
        one = self.found[text]
        if isinstance(one, PlannerError):
            raise one
        return one


class _Files:
    """Networks, clusters and data sets that rows of a file name."""

    def __init__(self, folder: Path, values: Values) -> None:
        self.folder, self.values = folder, values
        self.network = _Once(self._network)
        self.machine = _Once(self._machine)

    def problem(self, key: _Key, machine: Machine) -> Problem:
        """Return the problem of rows, or raise PlannerError."""
        network = self.network(key.network)
        dataset = key.dataset or network.dataset
        settings = Settings(key.optimizer or network.optimizer, key.strategy, key.input, key.framework)
        return Problem(
            network,
            catalog.find_dataset(self._path(dataset)) if dataset else None,
            machine.cluster,
            machine.calibrations,
            machine.explicit,
            settings,
        )

    def _network(self, text: str) -> Network:
        return catalog.find_network(self._path(text))

    def _machine(self, text: str) -> Machine:
        if text not in catalog.names("clusters") and not _is_path(text):
            raise UnknownNameError("cluster", text, catalog.names("clusters"))
        values: dict[str, Sourced[Any]] = {
            "cluster": Sourced(self._path(text), OPTION),
            # As in the default request: no calibration of this machine's own, which would differ elsewhere.
            "network": Sourced((), DEFAULT_REQUEST),
        }
        return machine_of(values | {key: one for key, one in self.values.items() if key == "calibration"})

    def _path(self, text: str) -> str:
        """Return a path from the folder of the file of runs; a name stays as it is."""
        return str(self.folder / text) if _is_path(text) else text


def _is_path(text: str) -> bool:
    return text.endswith(".toml") or ("/" in text and "=" not in text)
