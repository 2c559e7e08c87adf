"""Answers to all measured runs of this folder: as bundled, and with coefficients fitted without each group in turn.

Every view answers the same rows in the same order. The runs of all sources that fits learn from are fitted together, so
that what a row is predicted by may come from another source; what is left out (a network, a GPU, a cluster) is left out
of all of them. Rows that no fit learns from are predicted by the same fits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from planner.cli.streams import note
from planner.domain.runs import MEMORY_METRIC, Runs
from planner.fitting.step_fit import properties_of
from planner.formats.runs import read_runs
from planner.scoring.evaluate import Answer, answers_of
from planner.scoring.refit import Asked, fit_runs, held_out_answers
from planner.sessions.runs import Table, framework_of, locked_sources, table_of, unfitted_sources

__all__ = [
    "APART", "AXES", "BUNDLED", "DEVELOPMENT", "FOLDER", "LEFT_OUT", "LOCKED", "NEW", "UNCOUNTED", "UNEVEN",
    "Facts", "Views", "answer_all", "files_of_runs", "learned_runs", "memory_answers", "timed_runs",
]  # fmt: skip

FOLDER = Path(__file__).resolve().parent
BUNDLED = "bundled"
AXES = ("network", "gpu", "cluster", "source")
"""What is left out in turn."""
LEFT_OUT: Mapping[str, str] = {"network": "network", "gpu": "GPU", "cluster": "cluster", "source": "source"}
"""The same as pages call it."""
UNCOUNTED = ("torchtitan-fp8", "vtrain-single")
"""Sources that are shown by themselves, but in no sum, and that no fit learns from: fp8 and context parallelism, and
rows that a formula composed. All views predict them as bundled."""
UNEVEN = "pollux-t4, unequal nodes"
"""Name under which runs on nodes with unequal numbers of GPUs are shown."""
DEVELOPMENT, NEW, LOCKED, APART = "development", "new", "locked", "apart"
"""Parts of the rows: those that fits learn from, those that they do not yet, those of sources that are locked, which
nobody looks at row by row and of which sums alone are printed, as bundled, and UNCOUNTED."""
Say = Callable[[str], None]
T = TypeVar("T")


class Facts(NamedTuple):
    """What a figure needs to know of a row's run beside its answer.

    Attributes
    ----------
    kernels : {"measured", "specified", ""}
        Where kernel times of its GPU are from in its precision; empty where it is not predicted.
    part : one of DEVELOPMENT, NEW, LOCKED, APART
    name : str
        Under which it is shown: its source, or UNEVEN.
    nodes : int
        That it runs on; 0 where it is no run.
    is_replicated : bool
        Whether every device holds the whole network in its plan.
    program : str
        The framework that ran it, with what was switched on in it.
    """

    kernels: str = ""
    part: str = DEVELOPMENT
    name: str = ""
    nodes: int = 0
    is_replicated: bool = True
    program: str = ""


@dataclass(frozen=True)
class Views:
    """Answers to n rows.

    Attributes
    ----------
    answers : mapping of str to sequence of n Answer
        By BUNDLED and each of AXES.
    facts : sequence of n Facts
    free_numbers : int
        Fitted values of the step model: all effects.
    memory : sequence of Answer
        As bundled, to the rows of memory, which are not among the n.
    """

    answers: Mapping[str, Sequence[Answer]]
    facts: Sequence[Facts]
    free_numbers: int = 0
    memory: Sequence[Answer] = ()


def answer_all(
    folder: Path = FOLDER, say: Say = lambda _text: None, axes: Sequence[str] = AXES, *, counted: bool = True
) -> Views:
    """Return the answers to every run of the folder's tables; ``say`` is called with what is done next.

    ``axes``: what is left out in turn; ``counted``: whether fitted numbers are.
    """
    tables = [table_of(timed_runs(path), folder, {}, note) for path in files_of_runs(folder)]
    say("predicting with the bundled calibrations")
    bundled = [answers_of(problem, runs) for table in tables for problem, runs in table.problems]
    asked = [Asked(problem, runs) for table in tables for problem, runs in table.problems]
    found = {BUNDLED: _in_order(tables, bundled)}
    learned, unfitted, locked = learned_runs(asked, folder), unfitted_sources(folder), locked_sources(folder)
    parts = [_part(one.runs[0].source, unfitted, locked) for one in asked]
    tested = {at: one for at, (one, part) in enumerate(zip(asked, parts, strict=True)) if part in (DEVELOPMENT, NEW)}
    for axis in axes:
        progress = _progress(axis, say)
        answers = held_out_answers(list(tested.values()), axis, progress, os.cpu_count() or 1, learned)
        held_out = dict(zip(tested, answers, strict=True))
        found[axis] = _in_order(tables, [held_out.get(at, some) for at, some in enumerate(bundled)])
    facts = [list(_facts(*one)) for one in zip(asked, bundled, parts, strict=True)]
    of_rest = [
        [Facts(part=_part(one.row.source, unfitted, locked), name=one.row.source) for one in table.answers]
        for table in tables
    ]
    views = Views(found, _interleaved(tables, of_rest, facts), memory=memory_answers(folder))
    return replace(views, free_numbers=len(fit_runs(learned).effects)) if counted else views


def files_of_runs(folder: Path = FOLDER) -> list[Path]:
    """Return the files of runs of a folder, sorted."""
    return sorted(folder.glob("*.csv"))


def timed_runs(path: Path) -> Runs:
    """Return the runs of a file without rows of memory, which no fit learns from."""
    runs = read_runs(path)
    return replace(runs, rows=tuple(run for run in runs.rows if run.metric != MEMORY_METRIC))


def memory_answers(folder: Path = FOLDER) -> list[Answer]:
    """Return the answers as bundled to the rows of memory of a folder's files."""
    files = (read_runs(path) for path in files_of_runs(folder))
    tables = [
        table_of(runs, folder, {}, note) for runs in files if any(run.metric == MEMORY_METRIC for run in runs.rows)
    ]
    answers = [one for table in tables for problem, runs in table.problems for one in answers_of(problem, runs)]
    return [one for one in answers if one.row.metric == MEMORY_METRIC]


def learned_runs(asked: Sequence[Asked], folder: Path = FOLDER) -> list[Asked]:
    """Return the runs that fits learn from."""
    left_out = unfitted_sources(folder)
    return [one for one in asked if one.runs[0].source not in left_out]


def _part(source: str, unfitted: Collection[str], locked: Collection[str]) -> str:
    """Return the part of the rows that those of a source belong to."""
    if source in UNCOUNTED:
        return APART
    if source in locked:
        return LOCKED
    return NEW if source in unfitted else DEVELOPMENT


def _progress(axis: str, say: Say) -> Callable[[str, int, int], None]:
    return lambda name, number, of: say(f"without {axis} {name} ({number + 1} of {of})")


def _in_order(tables: Sequence[Table], predicted: Sequence[Sequence[Answer]]) -> list[Answer]:
    return _interleaved(tables, [table.answers for table in tables], predicted)


def _interleaved(tables: Sequence[Table], rest: Sequence[Sequence[T]], asked: Sequence[Sequence[T]]) -> list[T]:
    """Return what belongs to the rows table by table: first to those without a problem, then problem by problem."""
    each = iter(asked)
    return [
        one
        for table, first in zip(tables, rest, strict=True)
        for some in (first, *(next(each) for _ in table.problems))
        for one in some
    ]


def _facts(asked: Asked, answers: Sequence[Answer], part: str) -> Iterator[Facts]:
    """Yield what is known of each run of a problem; fits learn from even nodes alone."""
    kernels: dict[str, str] = {}
    for run, answer in zip(asked.runs, answers, strict=True):
        if answer.row.predicted is not None and run.precision not in kernels:
            kernels[run.precision] = properties_of(asked.problem, run.precision)["kernels"]
        found = "" if answer.row.predicted is None else kernels[run.precision]
        name = UNEVEN if run.is_uneven else run.source
        here = NEW if run.is_uneven else part
        yield Facts(found, here, name, run.nodes, run.is_replicated, framework_of(run))
