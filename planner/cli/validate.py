"""``planner validate``: predicted against measured runs.

Figures depend on the files and the options alone: neither ``planner.toml`` nor a calibration of this machine's own
takes part unless it is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner import catalog
from planner.cli import output
from planner.cli.plot import draw, plot_file
from planner.cli.progress import bar
from planner.cli.streams import note
from planner.cli.values import from_options
from planner.domain.precision import PRECISIONS
from planner.domain.runs import Runs
from planner.errors import NOTHING, InputFileError, ParameterError
from planner.formats.runs import NoRunError, read_runs
from planner.formats.validation import validation_document
from planner.report.validation import validation_view
from planner.scoring.evaluate import Answer, answers_of, validation_of
from planner.scoring.refit import Asked, group_of, held_out_answers
from planner.sessions.runs import Table, table_of
from planner.sources.sources import Sources
from planner.sources.usable import why_not_candidate, why_not_precision

__all__ = ["run"]


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
    tables = [table_of(one, Path(path).parent, values, note) for path, one in zip(paths, read, strict=True)]
    axis = values["hold_out"].value if "hold_out" in values else None
    _note_frameworks(tables)
    _note_specified(tables)
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


def _read(paths: Sequence[str]) -> tuple[list[Runs], InputFileError | None]:
    """Return the runs of every file, and the first error that one of them cannot be read.

    Raises
    ------
    InputFileError
        No file has a header that can be read.
    """
    read: list[Runs] = []
    broken: InputFileError | None = None
    headers = 0
    for path in paths:
        try:
            read.append(read_runs(path))
            headers += 1
        except NoRunError as error:
            read.append(error.runs)
            headers += 1
            broken = broken or error
        except InputFileError as error:
            read.append(Runs(()))
            broken = broken or error
    if broken is not None and not headers:
        raise broken
    return read, broken


def _note_alone(asked: Sequence[Asked], axis: str) -> None:
    """Say where leaving out a group leaves nothing: its rows are then predicted by what is assumed of any framework."""
    names = {group_of(one, axis) for one in asked if one.observed}
    if len(names) == 1:
        note(
            f"--hold-out {axis}: all runs are of {axis} {names.pop()}, so that none is left to fit to and what is "
            "assumed of any framework predicts them; name files with others by more --runs"
        )


def _note_frameworks(tables: Sequence[Table]) -> None:
    """Say once of every framework that nothing was fitted to its runs."""
    found = {}
    for problem, runs in (each for table in tables for each in table.asked):
        overheads = Sources(problem).overheads(runs[0].precision, runs[0].mode)
        if overheads.matched in ("generic", "assumed"):
            found[problem.settings.framework.label] = overheads.matched
    for framework, matched in sorted(found.items()):
        note(f"framework {framework!r} was not measured: {matched} coefficients are used for its runs")


def _note_specified(tables: Sequence[Table]) -> None:
    """Say once of every precision of 8 bits that the data sheet of a device answers for it."""
    found = set()
    for problem, runs in (each for table in tables for each in table.asked):
        sources = Sources(problem)
        for precision in {run.precision for run in runs if PRECISIONS[run.precision].measured_only}:
            if why_not_candidate(sources, precision) and not why_not_precision(sources, precision):
                found.add((precision, sources.accelerator.name))
    for precision, device in sorted(found):
        note(f"precision {precision!r} was not measured on {device}: its runs are answered from the data sheet")


def _in_file(answer: Answer, path: str) -> Answer:
    """Return the answer with its group told apart from one of the same name in another file."""
    row = answer.row
    return replace(answer, row=replace(row, group=f"{row.group} ({path})")) if row.group else answer


def _answered(tables: Sequence[Table], axis: str | None) -> list[list[Answer]]:
    """Return the answers of each file, in its order; with an axis by coefficients fitted without each group of it."""
    if axis is None:
        predicted = [[answers_of(problem, runs) for problem, runs in table.asked] for table in tables]
    else:
        asked = [Asked(problem, runs) for table in tables for problem, runs in table.asked]
        _note_alone(asked, axis)
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
