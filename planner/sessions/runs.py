"""Rows of files of runs, and logs of a plan's training -> problems: names found once, and why a row has none.

Relative paths of clusters, networks and data sets start from the folder of their file of runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from planner import catalog
from planner.domain.axes import ALL, AXES
from planner.domain.configuration import Settings
from planner.domain.framework import GENERIC, Framework
from planner.domain.job import PlanToStart, job_of
from planner.domain.request import Problem, Sourced, Subject
from planner.domain.runs import MEMORY_METRIC, Run, Runs
from planner.domain.suggestion import Suggestion
from planner.errors import InputFileError, ParameterError, PlannerError, UnknownNameError
from planner.formats.documents import STANDARD_INPUT, parse_text, read_text
from planner.formats.logs import BATCH, GPUS, SEQUENCE, WRITERS, TrainingLog, steady
from planner.formats.runs import is_training_log, read_runs, write_runs
from planner.formats.suggestion import KeptPlans, read_plans
from planner.scoring.evaluate import Answer, refused, unread
from planner.scoring.refit import Asked
from planner.sessions.inputs import DEFAULT_REQUEST, OPTION, Machine, Say, Values, machine_of, value_of
from planner.sessions.sample_files import table_paths
from planner.units import format_seconds
from planner.workload.fusion import with_attention


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
        named = one.network, one.cluster, one.dataset, one.optimizer, one.strategy, one.input
        framework = value_of(values, "framework", framework_of(one))
        by_key.setdefault(_Key(*named, framework, one.source, one.rank_order), []).append(one)
    table = Table([unread(row) for row in runs.refused], [], Counter())
    for key, some in by_key.items():
        cluster = None
        try:
            for what, text in key._asdict().items():  # no name has a null character, and no path can have one
                if text == STANDARD_INPUT and what in ("network", "dataset"):
                    raise ParameterError(what, "a name or a file", text)
                if "\0" in text:
                    raise ParameterError(what, "text without a null character", text)
            machine = files.machine(key.cluster)
            cluster = machine.cluster
            table.problems.append((files.problem(key, machine), some))
            table.unknown[key.framework] += len(some) * (key.framework in files.unknown)
        except PlannerError as error:
            table.answers.extend(refused(one, error.refusal, cluster) for one in some)
    return table


def framework_of(run: Run) -> str:
    """Return the framework of a run as an option names it."""
    return run.framework + (f"@{run.framework_version}" if run.framework_version else "")


class _Files:
    """Networks, clusters and data sets that rows of a file name."""

    def __init__(self, folder: Path, values: Values, say: Say) -> None:
        self.folder, self.values, self.say = folder, values, say
        self.network = cache(lambda text: catalog.find_network(self._path(text)))
        self.machine, self.unknown = cache(self._machine), set[str]()
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
        found = catalog.find_dataset(self._path(dataset)) if dataset else None
        return machine.problem(with_attention(network, framework.fuses), found, settings)

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


def files_of_runs(paths: Sequence[str]) -> list[str]:
    """Return the files of ``--runs``: of a folder its tables and logs, sorted."""
    rule = "a file or folder of tables of runs (*.csv), or of logs of training programs"
    each = (table_paths(Path(one), "--runs", rule, is_training_log) if Path(one).is_dir() else [one] for one in paths)
    return [str(path) for some in each for path in some]


def kept_plan(path: str, position: int | None, what: str = "--plan") -> PlanToStart:
    """Return the plan of a document, which is given as ``what``, at a position, by default the one to take."""
    answers = read_plans(path, None, catalog.recorded)
    return KeptPlans.alone(answers, what).plan(position, "--position")


LARGEST_BATCH_ERROR = 0.1
"""Of samples an iteration that follow from rounded rates, and from epochs whose last batch is smaller."""


def runs_of_log(log: TrainingLog, path: str, *, plan: str, position: int | None, say: Say) -> list[Run]:
    """Return the runs of a log of a plan's training: a row of its time, and one of memory where it states that.

    ``plan``: the document that has the plan, at a position, by default the one to take.

    ParameterError: the plan is asynchronous, or there is none. InputFileError: the log contradicts the plan, or has no
    iteration after the first.
    """
    kept = kept_plan(plan, position)
    subject, configuration = kept.subject, kept.configuration
    if configuration.mode != "sync":
        raise ParameterError("--plan", "synchronous, of a log", configuration.mode)
    if subject.settings.trainable != ALL:
        raise ParameterError("--plan", "one that trains all parameters, of a log", subject.settings.trainable)
    network = catalog.find_network(subject.network_option or subject.network)
    stated: dict[str, int] = {BATCH: configuration.samples_per_update, GPUS: configuration.gpus}
    if any(layer.kind == "embedding" for layer in network.layers):
        stated[SEQUENCE] = network.input_shape[0]
    which = f"as in plan {kept.position} of {plan}"
    remedy = "give the plan that ran by --plan and --position"
    wrong = [f"{name} must be {stated[name]:,}, {which}, got {got:,}" for name, got in log.stated.items()
             if stated.get(name, got) != got]  # fmt: skip
    if log.samples and abs(log.samples / stated[BATCH] - 1) > LARGEST_BATCH_ERROR:
        wrong.append(f"{BATCH} must be {stated[BATCH]:,}, {which}, got about {log.samples:.4g}")
    if log.gives_rate and SEQUENCE not in stated:
        wrong.append(f"network must read tokens, which {log.program} counts, {which}, got {network.name}")
    if wrong:
        raise InputFileError(path, f"{wrong[0]}; {remedy}", f"line {log.line}")
    tokens = stated[BATCH] * stated.get(SEQUENCE, 1) / stated[GPUS]
    times = [(at, tokens / value if log.gives_rate else value) for at, value in sorted(log.iterations.items())]
    found = steady(times)
    if found is None:
        problem = "log must have an iteration after the first, which is warm-up, got none; let it run on"
        raise InputFileError(path, problem, f"line {log.line}")
    words = (
        f"median of {found.kept} steady times of {len(times)} logged, spread {found.spread_s / found.time_s:.1%}; left "
        f"out: warm-up {found.warm_up}, outliers {found.outliers}"
    )
    if log.mean_of:
        words = f"mean of all {log.mean_of:,} iterations, warm-up included"
    framework = subject.settings.framework
    if WRITERS.get(log.program, "") != framework.program and framework.name != GENERIC.name:
        beside = f"plan {kept.position} of {plan} is of {framework.label}"
        say(f"{path}: log of {log.program}, but {beside}: what these programs do otherwise counts as error")
    say(f"{path}: {format_seconds(found.time_s)}, {words}")
    own: dict[str, Any] = {"source": f"{log.program} log", "line": log.line}
    name, memory_bytes = Path(path).stem, log.memory_bytes
    of_time = run_of_plan(kept, id=name, metric="iteration_s", value=found.time_s, notes=words, **own)
    if not memory_bytes:
        return [of_time]
    words = "reserved, the most of the log"
    of_memory = {"id": f"{name} memory", "metric": MEMORY_METRIC, "value": memory_bytes, "notes": words}
    return [of_time, run_of_plan(kept, **own, **of_memory)]


def wanted_runs(suggestion: Suggestion, subject: Subject) -> str:
    """Return the text of a runs file: a row a plan, its ``value`` to be filled in, its command in ``notes``.

    The runs that decide between tied plans; without any the plan to take. Empty where no plan fits, and where that one
    is asynchronous: steps of such plans correct no prediction.
    """
    plan = suggestion.chosen_plan
    chosen = (plan,) if plan and plan.prediction.configuration.mode == "sync" else ()
    starts = [one.to_start(subject) for one in suggestion.deciding_plans or chosen]
    rows = [run_of_plan(one, id=f"plan-{one.position}", metric="iteration_s", notes=job_of(one).line) for one in starts]
    return write_runs(rows) if rows else ""


def run_of_plan(plan: PlanToStart, **values: Any) -> Run:
    """Return a run of a plan; ``values``: what it is called, and what was measured."""
    subject, settings = plan.subject, plan.subject.settings
    of_plan: dict[str, Any] = {axis.name: getattr(plan.configuration, axis.name) for axis in AXES}
    for name in ("network", "cluster"):
        option = getattr(subject, f"{name}_option")
        of_plan[name] = getattr(subject, name) if option in ("", STANDARD_INPUT) else option
    of_plan |= {name: getattr(settings, name) for name in ("optimizer", "strategy", "input")}
    return Run(
        **of_plan | values,
        framework=settings.framework.name,
        framework_version=settings.framework.version,
        rank_order=plan.rank_order or (() if settings.chooses_order else settings.rank_order),
    )
