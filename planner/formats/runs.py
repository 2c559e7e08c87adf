"""Run files (CSV): one measured or wanted training run a row.

The first line is the header; a line ``# planner/runs 1`` before it is accepted. Columns stand in any order, and one
that is absent is empty. A row that is wrong is refused with its line and costs no other row. Of a file of more than
``MOST_RUNS`` runs the first so many are read and the others counted. A log of a training program is known by what
stands in it, where its first line is no header.
"""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from planner.domain.axes import AXES
from planner.domain.runs import RefusedRow, Run, Runs
from planner.errors import NOTHING, InputFileError, ParameterError, Refusal, hidden
from planner.formats.documents import opened, place_of
from planner.formats.fields import LONGEST_NAME
from planner.formats.logs import TrainingLog, steady, training_log
from planner.formats.tables import Rows, check_header, check_opening, lines_of, rows_of, short, without_end, write_table
from planner.units import BOUNDS

VERSION = 1
_PLAN_COLUMNS = ("tensor_parallel", "pipeline_parallel", "virtual_stages", "recompute", "sharding")
OPTIONAL_COLUMNS = {a.name: str(a.default) for a in AXES if not a.always_said and a.name not in _PLAN_COLUMNS}
OPTIONAL_COLUMNS |= dict.fromkeys(("input", "strategy", "framework_version", "dataset", "rank_order", "placement"), "")
"""Columns that are written where a run says something else there than this."""
_COLUMNS_BEFORE = {"sub_batch": ("mini_batch",)}
COLUMNS = (
    "id", "source", "network", "cluster",
    *(name for axis in AXES if axis.always_said for name in (*_COLUMNS_BEFORE.get(axis.name, ()), axis.name)),
    "data_parallel", *_PLAN_COLUMNS, "optimizer",
    "framework", "metric", "value", "status", "group", "notes", *OPTIONAL_COLUMNS,
)  # fmt: skip
REQUIRED = ("id", "network", "cluster", "metric")
WHOLE_COLUMNS = (*(axis.name for axis in AXES if not axis.words), "mini_batch", "data_parallel")
LARGEST_FILE = 2**29
"""Bytes of a file of runs: MOST_RUNS of 150 bytes each, which are read line by line."""
MOST_RUNS = 3_500_000
"""Runs of a file that are read; what follows is counted. Reading one takes 0.5 kB, answering it 2 kB of memory."""
MOST_FIRST_REFUSALS = 10_000
"""Rows from the first that are refused, all of them, before a file is taken for no table of runs."""
MOST_LISTED_REFUSALS = 100_000
"""Refused rows that are listed; more are counted."""
MOST_OPENING_LINES = 2
"""The line of the format, and the header: lines that are read again where they show that this is no table."""
LONGEST_REASON = 300
LONGEST_WORD = 300
"""Characters of a cell other than notes."""
NAME_COLUMNS = ("network", "dataset", "framework", "framework_version", "optimizer")
"""Columns of names, which are shorter; a cluster may be a path."""
GZIP_START = "\x1f\udc8b"
"""How a file compressed with gzip starts, read as text."""
NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
PLACEMENT_PATTERN = re.compile(r"\d{1,9}(\+\d{1,9})*", re.ASCII)


class NoRunError(InputFileError):
    """No row of a file of runs can be read; ``runs`` says why, row by row."""

    def __init__(self, path: str, runs: Runs) -> None:
        if runs.refused:
            first, count = runs.refused[0], len(runs.refused) + runs.omitted
            refusals = f"{count:,} refused row{'s' * (count > 1)}, the first because {first.reason}"
            super().__init__(path, f"file must hold a run that can be read, got {refusals}", f"line {first.line}")
        else:
            super().__init__(path, "file must hold a run, got a header alone; add a row a run")
        self.runs = runs


OfLog = Callable[[TrainingLog, str], list[Run]]
"""Makes runs of the log of a training program, and of its path."""


def read_runs(path: Path | str, of_log: OfLog | None = None) -> Runs:
    """Return the runs of a file, or of standard input where ``path`` is the text ``-``, and the rows refused.

    InputFileError where it is not readable, or its header has an unknown column, misses one, or gives one twice, or it
    is a log and there is no ``of_log``; NoRunError where no row is right; VersionError where it is newer than this
    program.
    """
    name = place_of(path)
    with _lines(path) as lines:
        first = list(islice(lines, MOST_OPENING_LINES))
        try:
            header, rows = _header(chain(first, lines), name)
        except InputFileError:
            log = training_log(chain(first, lines))
            if log is None:
                raise
            return Runs(tuple((of_log or _without_plan)(log, name)), is_log=True)
        runs = _Reading(header).of(rows)
    if not runs.rows:
        raise NoRunError(name, runs)
    return runs


@contextmanager
def _lines(path: Path | str) -> Iterator[Iterator[tuple[int, str]]]:
    with (
        opened(path, LARGEST_FILE) as file,
        io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape") as text,
    ):
        yield lines_of(text)


def is_training_log(path: Path) -> bool:
    """Tell whether a file is a log of a training program; InputFileError: it cannot be read."""
    with _lines(path) as lines:
        return training_log(lines) is not None


def _without_plan(log: TrainingLog, path: str) -> list[Run]:
    """Refuse a log without its plan, and say how a row of it is made."""
    found = None if log.gives_rate else steady(sorted(log.iterations.items()))
    value = f"{found.time_s:.6g}" if found else "SECONDS"
    remedy = (
        "name the document of planner suggest --json by --plan, or write a row under the header "
        f"id,network,cluster,nodes,sub_batch,precision,framework,metric,value that ends in iteration_s,{value}"
    )
    raise InputFileError(path, f"log of {log.program} must be given with the plan that ran, got none; {remedy}")


def _header(lines: Iterator[tuple[int, str]], path: str) -> tuple[list[str], Rows]:
    number, first = next(lines, (1, ""))
    if first.startswith(GZIP_START):
        raise InputFileError(path, "file must be text, got one compressed with gzip; decompress it first")
    if first.startswith("#"):
        check_opening(first, "runs", VERSION, path, rule="the header or ")
        rows = rows_of(lines)
    else:
        rows = rows_of(chain([(number, first)], lines))
    empty = Refusal("row", "header must name the columns", got="an empty file")
    number, header = next(rows, (number, empty))
    if isinstance(header, Refusal):
        raise InputFileError(path, header, f"line {number}")
    header = without_end(header)
    logs = ", or give a log of Megatron, torchtitan or Hugging Face's Trainer that has iterations"
    check_header(header, f"line {number}", columns=COLUMNS, required=REQUIRED, path=path, otherwise=logs)
    return header, rows


class _Reading:
    """Rows of one file on their way to runs: what earlier rows said limits later ones."""

    def __init__(self, header: list[str]) -> None:
        self.header, self.id_at = header, header.index("id")
        self.runs: list[Run] = []
        self.refused: list[RefusedRow] = []
        self.omitted = 0
        self.lines: dict[str, int] = {}
        self.groups: dict[str, Run] = {}

    def of(self, rows: Rows) -> Runs:
        for line, cells in rows:
            if isinstance(cells, Refusal):
                self._refuse(line, "", cells)
            elif any(cells):
                if len(self.runs) == MOST_RUNS:
                    rest = sum(isinstance(cells, Refusal) or any(cells) for _, cells in rows)
                    more = f"this row and {rest:,} row{'s' * (rest != 1)} after it, all omitted"
                    rule = f"file must be of at most {MOST_RUNS:,} runs"
                    reason = Refusal("row", rule, "file", more, "; split the file")
                    self.refused.append(RefusedRow(line, self._name(cells), reason))  # however many are listed
                    self.omitted += rest
                    break
                try:
                    self._add(self._run(line, cells))
                except ParameterError as error:
                    self._refuse(line, self._name(cells), error.refusal)
            if not self.runs and len(self.refused) >= MOST_FIRST_REFUSALS:
                break
        return Runs(tuple(self.runs), tuple(self.refused), self.omitted)

    def _name(self, cells: list[str]) -> str:
        return cells[self.id_at] if len(cells) > self.id_at else ""

    def _refuse(self, line: int, name: str, reason: Refusal) -> None:
        if len(self.refused) == MOST_LISTED_REFUSALS:
            self.omitted += 1
        else:
            short_reason = replace(
                reason, got=reason.got and short(reason.got, LONGEST_REASON), rest=short(reason.rest, LONGEST_REASON)
            )
            self.refused.append(RefusedRow(line, short(name, LONGEST_REASON), short_reason))

    def _run(self, line: int, cells: list[str]) -> Run:
        if any(cells[len(self.header) :]):
            remedy = "quote a cell that has a comma"
            raise ParameterError("row", f"of at most {len(self.header)} cells, as the header", len(cells), remedy)
        run = run_of(dict(zip(self.header, cells, strict=False)), line)
        if run.value is None and run.status == "ok":
            raise ParameterError("value", "given where status is ok", NOTHING)
        return run

    def _add(self, run: Run) -> None:
        if run.id in self.lines:
            remedy = f"it stands on line {self.lines[run.id]} too"
            raise ParameterError("id", "given once", short(run.id), remedy)
        if run.group:
            first = self.groups.setdefault(run.group, run)
            if first.metric != run.metric:
                rule = f"the same in group {short(run.group)!r}, {first.metric} as on line {first.line}"
                raise ParameterError("metric", rule, run.metric, "give each metric a group of its own")
        self.lines[run.id] = run.line
        self.runs.append(run)


def run_of(cells: Mapping[str, str], line: int = 0) -> Run:
    """Return the run of the cells of a row by column; an empty cell has the default of the record.

    ParameterError where a cell, or what cells say together, is wrong.
    """
    values: dict[str, Any] = {column: READERS[column](text) for column, text in cells.items() if text}
    if "placement" in values:
        values.setdefault("nodes", len(values["placement"]))
    for column in REQUIRED:
        if column not in values:
            raise ParameterError(column, "given", NOTHING)
    return Run(**values, line=line)


def _word(column: str, text: str) -> str:
    most = LONGEST_NAME if column in NAME_COLUMNS else LONGEST_WORD
    if len(text) > most:
        raise ParameterError(column, f"of at most {most} characters", len(text))
    if hidden(text):
        raise ParameterError(column, "on one line, without control characters", short(text))
    return text


def _value(text: str) -> float:
    number = float(text) if NUMBER_PATTERN.fullmatch(text) else math.nan
    least, most = BOUNDS["count"]
    if not least <= number <= most:
        raise ParameterError("value", f"a number from {least:g} to {most:g}", short(text))
    return number


def _whole(column: str, text: str) -> int:
    if len(text) < 10 and text.isascii() and text.isdigit():
        return int(text)
    number = float(text) if NUMBER_PATTERN.fullmatch(text) else math.nan  # spreadsheets write 8.0
    if not number.is_integer():
        raise ParameterError(column, "a whole number", short(text))
    return int(number)


def _placement(text: str) -> tuple[int, ...]:
    if PLACEMENT_PATTERN.fullmatch(text) is None:
        raise ParameterError("placement", "the GPUs on each node, as 1+1+2", short(text))
    return tuple(int(count) for count in text.split("+"))


READERS: Mapping[str, Callable[[str], Any]] = {
    # A million rows share a few words and numbers: look them up rather than read them again, and keep them once.
    **{column: lru_cache(512)(lambda text, column=column: sys.intern(_word(column, text))) for column in COLUMNS},
    **{column: lru_cache(512)(partial(_whole, column)) for column in WHOLE_COLUMNS},
    "id": partial(_word, "id"),
    "notes": sys.intern,
    "value": _value,
    "placement": _placement,
    "rank_order": lambda text: tuple(short(text, LONGEST_REASON).replace(",", "+").split("+")),
}
"""Columns -> what their cells become; an empty cell has the default of the record."""


def write_runs(rows: Iterable[Run]) -> str:
    """Return the text of a file of runs: every column in order, optional ones only where a run has them."""
    runs = list(rows)
    columns = {column: [_text(getattr(run, column)) for run in runs] for column in COLUMNS}
    written_columns = {
        column: cells
        for column, cells in columns.items()
        if column not in OPTIONAL_COLUMNS or any(cell != OPTIONAL_COLUMNS[column] for cell in cells)
    }
    return f"# planner/runs {VERSION}\n{write_table(written_columns)}"


def _text(value: str | float | tuple[int | str, ...] | None) -> str:
    if isinstance(value, tuple):
        return "+".join(str(one) for one in value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and value < 1e15 else repr(value)
    return "" if value is None else str(value)
