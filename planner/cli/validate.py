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
from planner.cli.values import DEFAULT_REQUEST, OPTION, Values, from_options
from planner.domain.configuration import Settings
from planner.domain.network import Network
from planner.domain.request import Problem, Sourced
from planner.domain.runs import Run, Runs
from planner.domain.validation import Validation
from planner.errors import ParameterError, PlannerError, UnknownNameError
from planner.formats.runs import NoRunError, read_runs
from planner.formats.validation import validation_document
from planner.report.validation import validation_view
from planner.scoring.evaluate import Answer, answers_of, refused, unread, validation_of

__all__ = ["answers", "run"]

T = TypeVar("T")


def run(arguments: Mapping[str, Any]) -> None:
    """Validate: read the runs, predict them problem by problem, score, write."""
    values = from_options(arguments)
    if "hold_out" in values:
        raise ParameterError("--hold-out", "left out, as it is not supported yet", arguments["hold_out"])
    if "runs" not in values:
        raise ParameterError("--runs", "given", NOTHING, "name a table of measured runs")
    plot = plot_file(values)
    paths = values["runs"].value
    read, broken = _read(paths)
    for name in values["calibration"].value if "calibration" in values else ():
        catalog.find_calibration(name)
    each = [answers(one, Path(path).parent, values) for path, one in zip(paths, read, strict=True)]
    read_any = any(one.rows for one in read)
    found = _write(paths, read, each, as_json="json" in arguments, read_any=read_any)
    if plot and read_any:
        draw(found, plot, force="force" in arguments)
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


def _write(
    paths: Sequence[str], read: Sequence[Runs], each: Sequence[list[Answer]], *, as_json: bool, read_any: bool
) -> Validation:
    if len(paths) > 1:
        each = [[_in_file(one, path) for one in found] for path, found in zip(paths, each, strict=True)]
    found = validation_of([one for some in each for one in some])
    omitted = sum(one.omitted for one in read)
    if as_json:
        output.write_document(validation_document(found, omitted))
    elif read_any:
        output.write_view(validation_view(found, paths, omitted))
    return found


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


def answers(runs: Runs, folder: Path, values: Values) -> list[Answer]:
    """Return the answers to the rows of a file in ``folder``, in its order, those that are no runs among them.

    Parameters
    ----------
    runs : Runs
    folder : Path
        Where relative paths in the rows start.
    values : Values
        ``calibration`` and ``framework``, where the user gave them, hold for all rows.
    """
    files = _Files(folder, values)
    grouped: dict[_Key, list[Run]] = {}
    for one in runs.rows:
        grouped.setdefault(_key(one, values), []).append(one)
    found = [unread(row) for row in runs.refused]
    for key, some in grouped.items():
        found += _answered(files, key, some)
    return sorted(found, key=lambda answer: answer.row.line)


def _key(run: Run, values: Values) -> _Key:
    framework = run.framework + (f"@{run.framework_version}" if run.framework_version else "")
    if "framework" in values:
        framework = values["framework"].value
    return _Key(run.network, run.cluster, run.dataset, run.optimizer, run.strategy, run.input, framework)


def _answered(files: _Files, key: _Key, runs: Sequence[Run]) -> list[Answer]:
    cluster = None
    try:
        _check_texts(key)
        machine = files.machine(key.cluster)
        cluster = machine.cluster
        problem = files.problem(key, machine)
    except PlannerError as error:
        return [refused(one, str(error), cluster) for one in runs]
    return answers_of(problem, runs)


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
