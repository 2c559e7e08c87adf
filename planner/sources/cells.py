"""Cells: training runs that were measured at the very sub-batch, precision and division of a plan.

An entry of overheads with library ``cells`` holds, by network, what measured runs take as multiples of what their
kernels and overheads give: ``(tensor, sub_batch, factor, runs, ...)``. It corrects forward and backward passes of that
network, and nothing else; the update of weights is part of no run.

The log ratio of measured to predicted time is an effect that all sub-batches of the network have in common, plus one
that near ones share, plus noise of each run. With the variance of both effects together as unit, the common one has
COMMON, the other falls off by REACH, and the noise has NOISE. Every sub-batch is multiplied by what is expected of its
effects given all runs of the network in that precision (kriging with mean 0; Rasmussen & Williams 2006, eq. 2.25): a
plan that was not run does not win for that. A stored factor is what the runs of its cell say alone,
exp(m·k / (k + NOISE)) of k runs with mean log ratio m.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.framework import name_and_version
from planner.domain.kernels import FORWARD, UPDATE
from planner.numbers import constants

__all__ = [
    "CELLS",
    "COMMON",
    "NOISE",
    "REACH",
    "Cell",
    "cell_factors",
    "cells_of",
    "drawn",
    "packed",
    "told",
    "unpacked",
]

CELLS = "cells"
"""Library of such entries."""
FIELDS = 4
_KRIGING = constants("measured_plans.kriging")
NOISE = _KRIGING["noise"]
"""Variance of the noise of a run over that of effects: one run alone moves its own point five sixths of the way."""
COMMON = _KRIGING["common"]
"""Variance of the effect that all sub-batches have in common over that of both."""
REACH = _KRIGING["reach"]
"""Doublings of the sub-batch over which what it shares with another falls to 1/e (docs/numbers.md)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What runs of one cell say.

    Attributes
    ----------
    tensor, sub_batch : int
        Tensor-parallel degree, and samples of a pass.
    factor : float
        Measured over predicted time of forward and backward passes, drawn towards 1 by what its own runs say alone.
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
        Cell(int(tensor), int(sub_batch), factor, int(runs), calibration)
        for tensor, sub_batch, factor, runs in rows
        if min(factor, sub_batch) > 0 and runs >= 1
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
    kinds = (framework, name_and_version(framework)[0])
    found: dict[tuple[int, int], Cell] = {}
    for calibration in calibrations:
        for entry in calibration.entries:
            if entry.library == CELLS and entry.kind in kinds and entry.precision == precision:
                for cell in unpacked(entry, network, calibration.name):
                    found.setdefault((cell.tensor, cell.sub_batch), cell)
    return found


def drawn(runs: int) -> float:
    """Return how far so many runs move the prediction of a cell of which alone there are any, 0 to 1."""
    return runs / (runs + NOISE)


def cell_factors(cells: Mapping[tuple[int, int], Cell], stage: str, sub_batch: IntArray, tensor: int = 1) -> FloatArray:
    """Return by what the time of a stage is multiplied at sub-batches, both of shape (s,); 1 without any run."""
    if not cells or stage == UPDATE:
        return np.ones(sub_batch.size)
    alike = [one for one in cells.values() if one.tensor == tensor]
    ran = np.array([one.sub_batch for one in alike], dtype=np.int64)
    runs = np.array([one.runs for one in alike], dtype=np.float64)
    means = np.array([math.log(one.factor) / drawn(one.runs) for one in alike])
    weights = np.linalg.solve(_shared(ran, ran) + np.diag(NOISE / runs), means)
    factors: FloatArray = np.exp(_shared(sub_batch, ran) @ weights)
    return factors


def _shared(one: IntArray, other: IntArray) -> FloatArray:
    """Return covariances of the effects of sub-batches (s,) and (r,), shape (s, r)."""
    doublings = np.abs(np.log2(one)[:, None] - np.log2(other))
    shared: FloatArray = COMMON + (1 - COMMON) * np.exp(-doublings / REACH)
    return shared


def told(cells: Mapping[tuple[int, int], Cell], sub_batch: int, tensor: int = 1) -> str:
    """Return in words what runs were used at a sub-batch, and by what its passes are multiplied; '' without any."""
    used = sorted((one for one in cells.values() if one.tensor == tensor), key=lambda one: one.sub_batch)
    if not used:
        return ""
    count = sum(one.runs for one in used)
    runs = "a measured run" if count == 1 else f"{count} measured runs"
    ran = [str(one.sub_batch) for one in used]
    several = f"es {', '.join(ran[:-1])} and {ran[-1]}" if len(ran) > 1 else f" {ran[0]}"
    of = f" of sub-batch{several}" if ran != [str(sub_batch)] else ""
    names = " and ".join(dict.fromkeys(one.calibration for one in used))
    (factor,) = cell_factors(cells, FORWARD, np.array([sub_batch]), tensor)
    return (
        f"{runs}{of} {'was' if count == 1 else 'were'} used, of calibration {names}: "
        f"forward and backward passes are multiplied by {factor:.4g}"
    )
