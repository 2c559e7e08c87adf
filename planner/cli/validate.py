"""``planner validate``: predicted against measured runs.

Figures depend on the files and the options alone: neither ``planner.toml`` nor a calibration of this machine's own
takes part unless it is named.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from planner import catalog
from planner.cli.request import from_options, say_unused_frameworks
from planner.cli.streams import bar, form_of, note, plot_file, write_document, write_view
from planner.domain.precision import PRECISIONS
from planner.domain.runs import Runs, Validation
from planner.errors import NOTHING, InputFileError, ParameterError, UsageError
from planner.formats.documents import write_file
from planner.formats.runs import NoRunError, OfLog, read_runs
from planner.formats.summaries import validation_document
from planner.report.plots import Points, validation_plot
from planner.report.studies import validation_view
from planner.scoring.errors import as_times
from planner.scoring.evaluate import Answer, answers_of, validation_with_locked
from planner.scoring.refit import Asked, held_out_answers
from planner.sessions.inputs import Values, value_of
from planner.sessions.runs import Table, files_of_runs, learned_from, locked_sources, runs_of_log, table_of
from planner.sources.sources import Sources, why_not_candidate, why_not_precision


def run(arguments: Mapping[str, Any]) -> None:
    """Validate: read the runs, predict them problem by problem, score, write."""
    values = from_options(arguments)
    if "runs" not in values:
        raise ParameterError("--runs", "given", NOTHING, "name a table of measured runs")
    plot = plot_file(values)
    paths = files_of_runs(values["runs"].value)
    of_log = None
    if "plan" in values:
        of_log = partial(runs_of_log, plan=values["plan"].value, position=value_of(values, "position"), say=note)
    tables_read, error = _read(paths, of_log)
    if of_log and error is None and not any(one.is_log for one in tables_read):
        raise ParameterError("--plan", "given for logs alone", values["plan"].value, "tables say their plans")
    for name in value_of(values, "calibration", ()):
        catalog.find_calibration(name)
    say_unused_frameworks()
    folders = [Path() if one.is_log else Path(path).parent for path, one in zip(paths, tables_read, strict=True)]
    tables = [table_of(one, folder, values, note) for folder, one in zip(folders, tables_read, strict=True)]
    axis = value_of(values, "hold_out")
    if "fit_on" in values and axis is None:
        remedy = "only a fit without a group learns from files"
        raise ParameterError("--hold-out", "given where --fit-on is", NOTHING, remedy)
    pairs = set[tuple[str, str]]()  # precisions of 8 bits and devices whose peak rate alone answers
    for problem, runs in (each for table in tables for each in table.problems):
        sources = Sources(problem)
        for precision in {run.precision for run in runs if PRECISIONS[run.precision].measured_only}:
            if why_not_candidate(sources, precision, allow_lossy=True) and not why_not_precision(sources, precision):
                pairs.add((precision, sources.accelerator.name))
    for precision, device in sorted(pairs):
        note(f"precision {precision!r} was not measured on {device}: its runs are answered by its peak rate")
    each, free_numbers = _answered(tables, paths, values)
    read_any = any(one.rows for one in tables_read)
    answers: list[Answer] = []
    flags: list[bool] = []
    for path, some in zip(paths, each, strict=True):
        locked = locked_sources(Path(path).parent)
        flags += [one.row.source in locked for one in some]
        for one in some:  # groups of the same name in several files are told apart
            group = f"{one.row.group} ({path})" if one.row.group and len(paths) > 1 else ""
            answers.append(replace(one, row=replace(one.row, group=group)) if group else one)
    validation = validation_with_locked(answers, np.array(flags, dtype=np.bool_), axis)
    unknown = sum((+one.unknown for one in tables), Counter[str]())
    validation = replace(validation, free_numbers=free_numbers, unknown_frameworks=unknown)
    omissions = sum(one.omitted for one in tables_read)
    if "json" in arguments:
        write_document(validation_document(validation, omissions))
    elif read_any:
        write_view(validation_view(validation, paths, omissions))
    if plot and read_any:
        _draw(validation, plot, force="force" in arguments)
    if error is not None:
        raise error


def _read(paths: Sequence[str], of_log: OfLog | None) -> tuple[list[Runs], InputFileError | None]:
    """Return the runs of every file, and the first error that one of them cannot be read.

    InputFileError: no file has a header that can be read.
    """
    tables: list[Runs] = []
    errors: list[InputFileError] = []
    for path in paths:
        try:
            tables.append(read_runs(path, of_log))
        except InputFileError as error:
            tables.append(error.runs if isinstance(error, NoRunError) else Runs(()))
            errors.append(error)
    if len(errors) == len(paths) and not any(isinstance(error, NoRunError) for error in errors):
        raise errors[0]
    return tables, errors[0] if errors else None


def _answered(tables: Sequence[Table], paths: Sequence[str], values: Values) -> tuple[list[list[Answer]], int | None]:
    """Return the answers of each file, in its order, and how many values were fitted for them, None: none."""
    free_numbers = None
    if "hold_out" not in values:
        answers = [[answers_of(problem, runs) for problem, runs in table.problems] for table in tables]
    else:  # by fits without the group of each problem
        axis = values["hold_out"].value
        asked = [[Asked(problem, runs) for problem, runs in table.problems] for table in tables]
        of_path, named = dict(zip(paths, asked, strict=True)), value_of(values, "fit_on", ())
        learned = learned_from(paths, of_path, named, values, lambda _text: None)
        counts: list[int] = []
        with bar("fitting", 1.0, f"fitting end-to-end coefficients without each {axis} in turn") as show:
            held_out = held_out_answers(
                [one for some in asked for one in some],
                axis,
                lambda name, number, of: show(number / of, f"without {axis} {name}"),
                os.cpu_count() or 1,
                learned,
                count=counts.append,
            )
        free_numbers, each = max(counts, default=0), iter(held_out)
        answers = [[next(each) for _ in table.problems] for table in tables]
    in_order = [
        sorted([*table.answers, *(one for some in of_table for one in some)], key=lambda answer: answer.row.line)
        for table, of_table in zip(tables, answers, strict=True)
    ]
    return in_order, free_numbers


def _draw(validation: Validation, path: Path, *, force: bool) -> None:
    """Draw the rows that have a predicted and a measured time, and say how many have other figures."""
    rows = [row for row in validation.rows if row.error is not None]
    metrics = [row.metric for row in rows]
    predicted_s = as_times(np.array([row.predicted for row in rows], dtype=np.float64), metrics)
    measured_s = as_times(np.array([row.measured for row in rows], dtype=np.float64), metrics)
    use = np.isfinite(predicted_s) & np.isfinite(measured_s)
    with_times = [row for row, is_in in zip(rows, use, strict=True) if is_in]
    omitted = len(rows) - len(with_times)
    if not with_times:
        got = f"none in {len(validation.rows):,}"
        raise UsageError(f"--plot must be given for rows with a predicted and a measured time, got {got}")
    points = Points(with_times, predicted_s[use], measured_s[use], omitted)
    write_file(path, validation_plot(points, form_of(path)), force)
    omission = f"; left out, as they are neither times nor rates: {omitted:,}" if omitted else ""
    note(f"rows shown in {path}: {len(with_times):,}{omission}")
