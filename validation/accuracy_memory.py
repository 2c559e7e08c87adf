"""Memory on the accuracy page: errors and calls by source, and the half-width of its interval.

Memory is counted and no fit learns of it, so that all rows are held out. The half-width is the 90 % quantile of
abs(ln(predicted / measured)) in which every source has one vote; *covered* is by that of all other sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.provenance import INTERVAL_LEVEL
from planner.numbers import constant
from planner.scoring.evaluate import Answer, validation_of
from validation.tables import markdown_table

__all__ = ["half_width", "memory_figures", "memory_page"]

ALL = "all"
ROUNDING = 1e-9


def memory_figures(timed: Sequence[Answer], memory: Sequence[Answer]) -> dict[str, Any]:
    """Return figures of all rows and by source; ``timed``: rows whose status counts, but no figure of theirs."""
    counted = {one.row.source for one in timed}
    rows = [one.row for one in memory]
    alone = [
        replace(one, row=replace(row, repeats_run=row.repeats_run and row.source in counted))
        for one, row in zip(memory, rows, strict=True)
    ]
    found = validation_of([*timed, *alone])
    logs = _logs_by_source(memory)
    figures = {ALL: asdict(found.memory)} | {name: asdict(one) for name, one in found.memory_by.items()}
    inside = {
        name: np.abs(own) <= half_width({other: some for other, some in logs.items() if other != name})
        for name, own in logs.items()
        if len(logs) > 1
    }
    for name, some in inside.items():
        figures[name]["coverage_90"] = float(np.mean(some))
    figures[ALL]["coverage_90"] = float(np.mean(np.concatenate(list(inside.values())))) if inside else None
    return {"by_source": figures, "half_width": half_width(logs) if logs else None}


def _logs_by_source(memory: Sequence[Answer]) -> dict[str, FloatArray]:
    found: dict[str, list[float]] = {}
    for row in (one.row for one in memory):
        if row.error is not None:
            found.setdefault(row.source, []).append(math.log1p(row.error))
    return {name: np.array(found[name]) for name in sorted(found)}


def half_width(logs: Mapping[str, FloatArray]) -> float:
    """Return the quantile of the module; ``logs``: ln(predicted / measured) of the rows of each source."""
    sizes = np.concatenate([np.abs(some) for some in logs.values()])
    weights = np.concatenate([np.full(some.size, 1 / (some.size * len(logs))) for some in logs.values()])
    order = np.argsort(sizes, kind="stable")
    return float(sizes[order][int(np.searchsorted(np.cumsum(weights[order]), INTERVAL_LEVEL - ROUNDING))])


def memory_page(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section of the page."""
    used, told = constant("memory.half_width"), found["half_width"]
    yield "## Memory\n"
    yield (
        "Of the fullest GPU, counted and never fitted, against what was read: in use of the device, reserved by an "
        "allocator, or allocated to tensors, as the notes of rows say. *Error* is exp(mean of |ln(predicted / "
        "measured)|) - 1, *bias* the same without the bars; *covered* by a half-width of all other sources. *Ran* and "
        "*ran out*: runs, among them those whose memory nobody read.\n"
    )
    if told is not None:
        yield (
            f"Answers state memory within x{np.exp(used):.2f}; the rows ask for x{np.exp(told):.2f} now, one vote a "
            "source (`memory.half_width` of [numbers.md](numbers.md)).\n"
        )
    head = ("source", "rows", "error", "bias", "covered", "ran", "called too large", "ran out", "called to fit")
    yield markdown_table(head, (_cells(name, one) for name, one in found["by_source"].items()))


def _cells(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    error, bias, covered = (one[key] for key in ("error", "bias", "coverage_90"))
    return (
        name,
        f"{one['n']:,}",
        "-" if error is None else f"{100 * error:.1f} %",
        "-" if bias is None else f"{100 * bias:+.1f} %",
        "-" if covered is None else f"{100 * covered:.0f} %",
        f"{one['true_ok'] + one['false_out_of_memory']:,}",
        f"{one['false_out_of_memory']:,}",
        f"{one['true_out_of_memory'] + one['false_ok']:,}",
        f"{one['false_ok']:,}",
    )
