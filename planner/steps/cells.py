"""Cells: training runs that were measured at the very sub-batch, precision and division of a plan.

An entry of overheads with library ``cells`` holds, by network, what measured runs take as multiples of what their
kernels and overheads give: ``(tensor, sub_batch, factor, runs, ...)``. It corrects forward and backward passes of that
network at those sub-batches, and nothing else; the update of weights is part of no run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.kernels import UPDATE

__all__ = ["CELLS", "Cell", "cell_factors", "cells_of", "packed", "unpacked"]

CELLS = "cells"
"""Library of such entries."""
FIELDS = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """What runs of one cell say.

    Attributes
    ----------
    tensor, sub_batch : int
        Tensor-parallel degree, and samples of a pass.
    factor : float
        By which forward and backward passes are multiplied: measured over predicted, drawn towards 1.
    runs : int
        Measured.
    calibration : str
        Name of the calibration that holds it.
    """

    tensor: int
    sub_batch: int
    factor: float
    runs: int
    calibration: str = ""


def packed(cells: Iterable[Cell]) -> tuple[float, ...]:
    """Return cells as the setting that holds them."""
    return tuple(float(value) for one in cells for value in (one.tensor, one.sub_batch, one.factor, one.runs))


def unpacked(entry: Entry, network: str, calibration: str = "") -> tuple[Cell, ...]:
    """Return the cells of a network that an entry holds; a setting that is no such list holds none."""
    values = entry.settings.get(network, ())
    if not isinstance(values, tuple) or len(values) % FIELDS:
        return ()
    rows = (values[at : at + FIELDS] for at in range(0, len(values), FIELDS))
    return tuple(
        Cell(int(tensor), int(sub_batch), factor, int(runs), calibration) for tensor, sub_batch, factor, runs in rows
    )


def cells_of(
    calibrations: Iterable[Calibration], network: str, framework: str, precision: str
) -> Mapping[tuple[int, int], Cell]:
    """Return cells by tensor-parallel degree and sub-batch; of several calibrations the first that holds one serves it.

    Parameters
    ----------
    calibrations : iterable of Calibration
        Of the accelerator, in order.
    network, framework, precision : str
        A framework of a version also takes runs of no version.
    """
    kinds = (framework, framework.partition("@")[0])
    found: dict[tuple[int, int], Cell] = {}
    for calibration in calibrations:
        for entry in calibration.entries:
            if entry.library == CELLS and entry.kind in kinds and entry.precision == precision:
                for cell in unpacked(entry, network, calibration.name):
                    found.setdefault((cell.tensor, cell.sub_batch), cell)
    return found


def cell_factors(cells: Mapping[tuple[int, int], Cell], stage: str, sub_batch: IntArray, tensor: int = 1) -> FloatArray:
    """Return by what the time of a stage is multiplied at sub-batches, both of shape (s,); 1 where no run was made."""
    if not cells or stage == UPDATE:
        return np.ones(sub_batch.size)
    return np.array([cells[tensor, n].factor if (tensor, n) in cells else 1.0 for n in sub_batch.tolist()])
