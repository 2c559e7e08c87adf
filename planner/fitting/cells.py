"""Cells of a calibration: what measured training runs take as multiples of their predictions, drawn towards 1.

What is stored of a cell is what its own runs say of it; what cells of a network say together is found where they are
used, in :mod:`planner.sources.cells`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.calibration import Calibration, Entry
from planner.domain.request import Problem
from planner.domain.training import TimedStep
from planner.sources.cells import CELLS, Cell, drawn, packed, unpacked
from planner.sources.sources import Sources
from planner.steps.compute import Compute

__all__ = ["CellRun", "refined"]


@dataclass(frozen=True, slots=True)
class CellRun:
    """A measured run of a cell: its tensor-parallel degree and precision, and the time of its gradient computation."""

    tensor: int
    precision: str
    step: TimedStep


def refined(base: Calibration, problem: Problem, runs: Sequence[CellRun]) -> Calibration:
    """Return a calibration with the cells that runs of one network give, beside those that it has of others.

    Parameters
    ----------
    base : Calibration
    problem : Problem
        Of the network, priced by the base alone.
    runs : sequence of CellRun
        Of that network, without an update of weights; of one precision or several.

    Raises
    ------
    CoverageError
        The base does not price the network.
    """
    entries = list(base.entries)
    for precision in dict.fromkeys(run.precision for run in runs):
        cells = _cells(base, problem, [run for run in runs if run.precision == precision])
        old = next((entry for entry in entries if _is_cells(entry, problem, precision)), None)
        new = _entry(old, problem, precision, cells)
        entries = [new if entry is old else entry for entry in entries] if old else [*entries, new]
    return replace(base, entries=tuple(entries))


def _is_cells(entry: Entry, problem: Problem, precision: str) -> bool:
    key = ("overheads", problem.settings.framework.label, "", precision, CELLS)
    return entry.key == key


def _cells(base: Calibration, problem: Problem, runs: Sequence[CellRun]) -> tuple[Cell, ...]:
    """Return the cells of runs in one precision, against what the base without its cells predicts."""
    plain = replace(base, entries=tuple(entry for entry in base.entries if entry.library != CELLS))
    compute = Compute(Sources(replace(problem, calibrations=(plain,))), runs[0].precision)
    sub_batches = np.array([run.step.sub_batch for run in runs])
    compute.cases.ensure(sub_batches)
    predicted_s = (compute.table.forward_s + compute.table.backward_s[:, 0])[compute.cases.rows(sub_batches)]
    ratios: dict[tuple[int, int], list[float]] = {}
    for run, seconds in zip(runs, predicted_s.tolist(), strict=True):
        ratios.setdefault((run.tensor, run.step.sub_batch), []).append(math.log(run.step.time_s / seconds))
    return tuple(
        Cell(*key, math.exp(sum(logs) / len(logs) * drawn(len(logs))), len(logs))
        for key, logs in sorted(ratios.items())
    )


def _entry(old: Entry | None, problem: Problem, precision: str, cells: Sequence[Cell]) -> Entry:
    """Return the entry of a framework and precision with the cells of a network, new ones in place of old ones."""
    network, framework = problem.network.name, problem.settings.framework.label
    kept = {(one.tensor, one.sub_batch): one for one in (unpacked(old, network) if old else ())}
    kept |= {(one.tensor, one.sub_batch): one for one in cells}
    settings = {**(old.settings if old else {}), network: packed(kept[key] for key in sorted(kept))}
    found = Entry(
        "overheads", framework, "", precision, CELLS, "overheads", settings, {},
        estimator="shrunken means", source=f"training runs of {', '.join(sorted(settings))}",
        notes="measured over predicted time of forward and backward passes, drawn towards 1",
    )  # fmt: skip
    return replace(found, samples=sum(one.runs for name in settings for one in unpacked(found, name)))
