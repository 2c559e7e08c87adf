"""Answers to all measured runs of this folder: as bundled, and with coefficients fitted without each group in turn.

Every view answers the same rows in the same order. The runs of all sources are fitted together, so that what a row is
predicted by may come from another source; what is left out (a network, a GPU, a cluster) is left out of all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from planner.cli.streams import note
from planner.fitting.observed import properties_of
from planner.formats.runs import read_runs
from planner.scoring.evaluate import Answer, answers_of
from planner.scoring.refit import Asked, held_out_answers
from planner.sessions.runs import Table, table_of

__all__ = ["AXES", "BUNDLED", "FOLDER", "PENDING", "UNCOUNTED", "Views", "answer_all", "files_of_runs"]

FOLDER = Path(__file__).resolve().parent
BUNDLED = "bundled"
AXES = ("network", "gpu", "cluster")
"""What is left out in turn."""
PENDING = ("superbench",)
"""Files of runs that are neither predicted nor learned from yet: SuperBench's results name neither GPU nor sub-batch,
and its steps include copies that plans do not say."""
UNCOUNTED = ("torchtitan-fp8", "vtrain-single")
"""Sources that are shown by themselves, but in no sum, and that no fit learns from: fp8 and context parallelism, and
rows that a formula composed (:mod:`validation.vtrain_cells` scores them). All views predict them as bundled."""
Say = Callable[[str], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Views:
    """Answers to n rows.

    Attributes
    ----------
    answers : mapping of str to sequence of n Answer
        By BUNDLED and each of AXES.
    kernels : sequence of n str
        Whether the kernel times of the row's GPU are ``measured`` or ``specified`` in its precision; empty where it is
        not predicted.
    """

    answers: Mapping[str, Sequence[Answer]]
    kernels: Sequence[str]


def answer_all(folder: Path = FOLDER, say: Say = lambda _text: None, axes: Sequence[str] = AXES) -> Views:
    """Return the answers to every run of the folder's tables; ``say`` is called with what is done next.

    ``axes``: what is left out in turn.
    """
    tables = [table_of(read_runs(path), folder, {}, note) for path in files_of_runs(folder)]
    say("predicting with the bundled calibrations")
    bundled = [answers_of(problem, runs) for table in tables for problem, runs in table.problems]
    asked = [Asked(problem, runs) for table in tables for problem, runs in table.problems]
    found = {BUNDLED: _in_order(tables, bundled)}
    learned = {at: one for at, one in enumerate(asked) if one.runs[0].source not in UNCOUNTED}
    for axis in axes:
        answers = held_out_answers(list(learned.values()), axis, _progress(axis, say), os.cpu_count() or 1)
        held_out = dict(zip(learned, answers, strict=True))
        found[axis] = _in_order(tables, [held_out.get(at, some) for at, some in enumerate(bundled)])
    kernels = [list(_kernels(one, some)) for one, some in zip(asked, bundled, strict=True)]
    of_rest = [[""] * len(table.answers) for table in tables]
    return Views(found, _interleaved(tables, of_rest, kernels))


def files_of_runs(folder: Path = FOLDER) -> list[Path]:
    """Return the files of runs of a folder, sorted, but for those that are PENDING."""
    return [path for path in sorted(folder.glob("*.csv")) if path.stem not in PENDING]


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


def _kernels(asked: Asked, answers: Sequence[Answer]) -> Iterator[str]:
    """Yield where the kernel times of each run are from."""
    found: dict[str, str] = {}
    for run, answer in zip(asked.runs, answers, strict=True):
        if answer.row.predicted is None:
            yield ""
            continue
        if run.precision not in found:
            found[run.precision] = properties_of(asked.problem, run.precision)["kernels"]
        yield found[run.precision]
