"""``--plot``: the file that a picture goes to, and what ``validate`` draws."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from planner.cli.streams import note
from planner.domain.arrays import FloatArray
from planner.domain.validation import Validation
from planner.errors import OutputError, UsageError
from planner.formats.documents import write_bytes
from planner.report.plots import PICTURE_FORMS, Points, check_matplotlib, validation_plot
from planner.scoring.ranking import as_times
from planner.sessions.values import Values

__all__ = ["draw", "form_of", "plot_file", "points_of"]


def plot_file(values: Values) -> Path | None:
    """Return where the plot goes, None where none is wanted; what cannot be drawn or written is refused."""
    if "plot" not in values:
        return None
    path = Path(values["plot"].value)
    if form_of(path) not in PICTURE_FORMS:
        raise OutputError(f"--plot must be a file whose name ends in .png, .svg or .pdf, got {str(path)!r}")
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise OutputError(f"--plot must be a file in a folder that exists and can be written, got {str(path)!r}")
    if path.exists() and "force" not in values:
        raise OutputError(f"--plot must be a new file, got {str(path)!r}, which exists; use --force to replace it")
    check_matplotlib()
    return path


def draw(validation: Validation, path: Path, *, force: bool) -> None:
    """Draw the rows that have a predicted and a measured time, and say how many have other figures.

    Raises
    ------
    UsageError
        No row has both.
    OutputError
        The file cannot be written.
    """
    points = points_of(validation)
    if not points.rows:
        got = f"none in {len(validation.rows):,}"
        raise UsageError(f"--plot must be given for rows with a predicted and a measured time, got {got}")
    write_bytes(path, validation_plot(points, form_of(path)), force)
    omission = f"; left out, as they are neither times nor rates: {points.omitted:,}" if points.omitted else ""
    note(f"rows shown in {path}: {len(points.rows):,}{omission}")


def points_of(validation: Validation) -> Points:
    """Return the rows that have an error and are times or rates, with their times."""
    rows = [row for row in validation.rows if row.error is not None]
    metrics = [row.metric for row in rows]
    predicted_s = as_times(_floats([row.predicted for row in rows]), metrics)
    measured_s = as_times(_floats([row.measured for row in rows]), metrics)
    use = np.isfinite(predicted_s) & np.isfinite(measured_s)
    with_times = [row for row, is_in in zip(rows, use, strict=True) if is_in]
    return Points(with_times, predicted_s[use], measured_s[use], len(rows) - len(with_times))


def form_of(path: Path) -> str:
    """Return the form of a picture, as the end of its file's name says."""
    return path.suffix[1:].lower()


def _floats(values: list[float | None]) -> FloatArray:
    return np.array(values, dtype=np.float64)
