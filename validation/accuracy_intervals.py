"""Intervals of the accuracy page: what share of rows they cover, and how wide they are, by kind of prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from planner.domain.provenance import PREDICTION_KINDS
from planner.domain.runs import ScoredRow
from validation.accuracy_answers import AXES, LEFT_OUT
from validation.tables import markdown_table

__all__ = ["intervals_by_kind", "intervals_page"]

LEAST_COVERED = 0.75
"""Share below which a kind of FEWEST_ROWS rows or more is named."""
FEWEST_ROWS = 10
ALL, OTHERS = "all", "others"
"""All rows, and those whose kind has no conformal score: their intervals are by the errors of the fits."""


def intervals_by_kind(rows: Mapping[str, Sequence[ScoredRow]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return by place and evidence, then by view: rows, share covered, and the median of sqrt(high / low).

    Rows that a calibration has seen, that were refused, or that have no interval do not count.
    """
    names = {f"{kind.place}, {kind.evidence}": None for kind in PREDICTION_KINDS.values()}
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in (*names, OTHERS, ALL)}
    for view, some in rows.items():
        used = [row for row in some if row.error is not None and not row.in_sample and row.high is not None]
        for name, by_view in found.items():
            by_view[view] = _of([row for row in used if name in (ALL, _name_of(row))])
    return {name: one for name, one in found.items() if any(each["n"] for each in one.values())}


def _name_of(row: ScoredRow) -> str:
    kind = PREDICTION_KINDS.get(row.kind)
    return OTHERS if kind is None else f"{kind.place}, {kind.evidence}"


def _of(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    ends = np.array([(row.low, row.high, row.measured) for row in rows], dtype=np.float64).reshape(-1, 3)
    low, high, measured = ends.T
    return {
        "n": len(rows),
        "coverage_90": float(np.mean((low <= measured) & (measured <= high))) if rows else None,
        "times": float(np.median(np.sqrt(high / low))) if rows else None,
    }


def intervals_page(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the section of the page."""
    yield "## Intervals\n"
    yield (
        "Stated to hold 90 % of rows. Each is by what rows of all other groups were missed by; *times* is the median "
        "of the square root of its high over its low end. By where a step is predicted for, and what matrix kernels "
        "rest on: timed on the GPU, scaled from another GPU or precision, or a data sheet. *Others* are plans that "
        "split transformers, and what rests on timed calls of the very network: their intervals are by the errors of "
        "the fits.\n"
    )
    of = {axis: f"new {LEFT_OUT[axis]}" for axis in AXES}
    short = [
        f"{name.replace('_', ' ')} ({of[axis]}, {100 * one[axis]['coverage_90']:.0f} %)"
        for name, one in found.items()
        for axis in AXES
        if one[axis]["n"] >= FEWEST_ROWS and one[axis]["coverage_90"] < LEAST_COVERED
    ]
    if short:
        yield f"Far from 90 % they hold of: {', '.join(short)}.\n"
    rows = (
        (
            name.replace("_", " "),
            f"{max(one[axis]['n'] for axis in AXES):,}",
            *(cell for axis in AXES for cell in _cells(one[axis])),
        )
        for name, one in found.items()
    )
    yield markdown_table(
        ("predictions", "rows", *(head for axis in AXES for head in (f"{of[axis]}: covered", "times"))), rows
    )


def _cells(one: Mapping[str, Any]) -> tuple[str, str]:
    covered, width = one["coverage_90"], one["times"]
    return "-" if covered is None else f"{100 * covered:.0f} %", "-" if width is None else f"{width:.2f}"
