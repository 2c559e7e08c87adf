"""Rows of files of runs -> problems: networks, clusters and data sets found once, and why a row has none.

Relative paths of clusters, networks and data sets start from the folder of their file of runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from planner import catalog
from planner.domain.configuration import Settings
from planner.domain.framework import GENERIC, Framework
from planner.domain.network import Network
from planner.domain.request import Problem, Sourced
from planner.domain.runs import Run, Runs
from planner.errors import InputFileError, ParameterError, PlannerError, UnknownNameError
from planner.formats.documents import STANDARD_INPUT, parse_text, read_text
from planner.formats.runs import read_runs
from planner.scoring.evaluate import Answer, refused, unread
from planner.scoring.refit import Asked
from planner.sessions.inputs import DEFAULT_REQUEST, OPTION, Machine, Say, Values, machine_of, value_of
from planner.workload.fusion import with_attention

__all__ = ["Table", "framework_of", "learned_from", "locked_sources", "table_of", "unfitted_sources"]


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
    rank_order: tuple[str, ...]


class Table(NamedTuple):
    """A file: answers to rows that are not predicted whatever the coefficients, and the runs of each problem.

    ``unknown``: runs by a framework that nobody knows, which are answered as those of any.
    """

    answers: list[Answer]
    problems: list[tuple[Problem, list[Run]]]
    unknown: Counter[str]


def table_of(runs: Runs, folder: Path, values: Values, say: Say) -> Table:
    """Return the rows of a file in ``folder``, where relative paths in them start."""
    files = _Files(folder, values, say)
    by_key: dict[_Key, list[Run]] = {}
    for one in runs.rows:
        by_key.setdefault(_key(one, values), []).append(one)
    table = Table([unread(row) for row in runs.refused], [], Counter())
    for key, some in by_key.items():
        cluster = None
        try:
            _check_texts(key)
            machine = files.machine(key.cluster)
            cluster = machine.cluster
            table.problems.append((files.problem(key, machine), some))
            table.unknown[key.framework] += len(some) * (key.framework in files.unknown)
        except PlannerError as error:
            table.answers.extend(refused(one, error.refusal, cluster) for one in some)
    return table


def _key(run: Run, values: Values) -> _Key:
    framework = value_of(values, "framework", framework_of(run))
    named = run.network, run.cluster, run.dataset, run.optimizer, run.strategy, run.input, framework, run.source
    return _Key(*named, run.rank_order)


def framework_of(run: Run) -> str:
    """Return the framework of a run as an option names it."""
    return run.framework + (f"@{run.framework_version}" if run.framework_version else "")


def _check_texts(key: _Key) -> None:
    """Refuse a null character, which no name has and no path can have; standard input is for the command line."""
    for what, text in key._asdict().items():
        if text == STANDARD_INPUT and what in ("network", "dataset"):
            raise ParameterError(what, "a name or a file", text)
        if "\0" in text:
            raise ParameterError(what, "text without a null character", text)


class _Files:
    """Networks, clusters and data sets that rows of a file name."""

    def __init__(self, folder: Path, values: Values, say: Say) -> None:
        self.folder, self.values, self.say = folder, values, say
        self.network, self.machine, self.unknown = cache(self._network), cache(self._machine), set[str]()
        # An option must be known, where a row may name anything; a path in it starts from the working directory.
        of_option = catalog.find_framework(values["framework"].value) if "framework" in values else None
        self.framework = cache(self._framework if of_option is None else lambda _: of_option)

    def problem(self, key: _Key, machine: Machine) -> Problem:
        """Return the problem of rows, or raise PlannerError."""
        network = self.network(key.network)
        dataset = key.dataset or network.dataset
        framework = self.framework(key.framework)
        settings = Settings(
            key.optimizer or network.optimizer, key.strategy or framework.strategy, key.input, framework, key.rank_order
        )
        return Problem(
            with_attention(network, framework.fuses),
            catalog.find_dataset(self._path(dataset)) if dataset else None,
            machine.cluster,
            machine.calibrations,
            machine.only_named,
            settings,
        )

    def _network(self, text: str) -> Network:
        return catalog.find_network(self._path(text))

    def _framework(self, text: str) -> Framework:
        """Return the framework of rows; a name that nobody knows is any framework's, with a note."""
        try:
            return catalog.find_framework(self._path(text) if _is_path(text.partition("@")[0]) else text)
        except UnknownNameError as error:
            self.unknown.add(text)
            self.say(f"{error} Its runs are answered as those of {GENERIC.name!r}")
            return catalog.find_framework(GENERIC.name)

    def _machine(self, text: str) -> Machine:
        if text not in catalog.names("clusters") and not _is_path(text):
            raise UnknownNameError("cluster", text, catalog.names("clusters"))
        values: dict[str, Sourced[Any]] = {
            "cluster": Sourced(self._path(text), OPTION),
            # As in the default request: no calibration of this machine's own, which would differ elsewhere.
            "network": Sourced((), DEFAULT_REQUEST),
        }
        named = {key: one for key, one in self.values.items() if key in ("calibration", "only_calibration")}
        return machine_of(values | named, self.say)

    def _path(self, text: str) -> str:
        return str(self.folder / text) if _is_path(text) else text


def _is_path(text: str) -> bool:
    return text.endswith(".toml") or ("/" in text and "=" not in text)


SOURCES_FILE = "SOURCES.toml"
"""Beside files of runs: what is known of each of their sources, by name."""


def unfitted_sources(folder: Path) -> frozenset[str]:
    """Return the sources of a folder's runs that no fit learns from: those with ``fitted = false``, and locked ones."""
    described = _described(folder).items()
    return frozenset(name for name, one in described if one.get("fitted") is False) | locked_sources(folder)


def locked_sources(folder: Path) -> frozenset[str]:
    """Return the sources of a folder's runs of which sums alone are told: those with ``locked = true``."""
    return frozenset(name for name, one in _described(folder).items() if one.get("locked") is True)


def _described(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the tables of a folder's SOURCES_FILE by source; none where there is no such file."""
    path = folder / SOURCES_FILE
    if not path.is_file():
        return {}
    described: Mapping[str, Any] = parse_text(read_text(path), str(path), "toml")
    return {name: one for name, one in described.items() if isinstance(one, Mapping)}


def learned_from(
    paths: Sequence[str], asked: Mapping[str, Sequence[Asked]], named: Sequence[str], values: Values, say: Say
) -> list[Asked]:
    """Return the runs that fits learn from, by problem: those of files ``named``, else of the folders of ``paths``.

    ``asked`` holds the runs of ``paths`` by problem: these are returned, not others like them. Of a folder, sources
    with ``fitted = false`` are left out, and files that hold no runs; of files that are named, nothing is.
    InputFileError: a file that is named cannot be read.
    """
    known = {_place(path): some for path, some in asked.items()}
    given = [Path(path) for path in paths if path != STANDARD_INPUT]
    beside = (one for path in given for one in sorted(path.parent.glob("*.csv")))
    each_once = {_place(str(one)): one for one in (*given, *beside)}
    found: list[Asked] = []
    for path in map(Path, named) if named else each_once.values():
        left_out = frozenset() if named else unfitted_sources(path.parent)
        if _place(str(path)) in known:
            some = known[_place(str(path))]
        else:
            try:
                runs = read_runs(str(path))
            except InputFileError:
                if named:
                    raise
                continue
            some = [Asked(problem, each) for problem, each in table_of(runs, path.parent, values, say).problems]
        found += [one for one in some if one.runs[0].source not in left_out]
    return found


def _place(path: str) -> str:
    return path if path == STANDARD_INPUT else str(Path(path).resolve())
