"""Cells: training runs that were measured at the very sub-batch, precision and division of a plan.

An entry of overheads with library ``cells`` holds, by network, what measured runs take as multiples of what their
kernels and overheads give: ``(tensor, sub_batch, factor, runs, ...)``. It corrects forward and backward passes of that
network, and nothing else; the update of weights is part of no run.

The log ratio of measured to predicted time is an effect that all sub-batches of the network have in common, plus one of
the sub-batch, plus noise of the run (nested random intercepts; Efron & Morris 1975, J. Am. Stat. Assoc. 70(350)). With
the variance of both effects together as unit, the common one has COMMON and the noise NOISE. Sub-batches that were run
are multiplied by what is expected of both effects, given all runs of the network in that precision, and all others by
what is expected of the common one: plans that were not run are not the faster ones for that. A stored factor is what
runs of its cell say alone: exp(m·k / (k + NOISE)) of k runs with mean log ratio m.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.calibration import Calibration, Entry
from planner.domain.kernels import FORWARD, UPDATE

__all__ = ["CELLS", "COMMON", "NOISE", "Cell", "cell_factors", "cells_of", "drawn", "packed", "told", "unpacked"]

CELLS = "cells"
"""Library of such entries."""
FIELDS = 4
NOISE = 0.2
"""Variance of the noise of a run over that of effects: one run alone moves its own cell five sixths of the way."""
COMMON = 0.6
"""Variance of the common effect over that of both.

Of 22 pairs of network and GPU with 87 steps (MXNet, TensorFlow of 2017, NeuSight), predicted with coefficients of whole
steps that other networks of the GPU give (``held_out`` of validation/single_gpu_rows.py), means of pairs deviate from 0
by 0.154 and sub-batches from these by 0.129: a share of 0.59; of the 11 whose kernels are measured by 0.042 and 0.059:
0.33. A step predicted from the pair's others misses least with 0.7 (of all) and 0.4 (of the 11); with 0.6 by a
hundredth more.
"""
ANY = 0
"""Stands for all sub-batches that were not run."""


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
        if factor > 0 and runs >= 1
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


def drawn(runs: int) -> float:
    """Return how far so many runs move the prediction of a cell of which alone there are any, 0 to 1."""
    return runs / (runs + NOISE)


def cell_factors(cells: Mapping[tuple[int, int], Cell], stage: str, sub_batch: IntArray, tensor: int = 1) -> FloatArray:
    """Return by what the time of a stage is multiplied at sub-batches, both of shape (s,); 1 without any run."""
    if not cells or stage == UPDATE:
        return np.ones(sub_batch.size)
    factors = _factors(cells, tensor)
    return np.array([factors.get(n, factors[ANY]) for n in sub_batch.tolist()])


def told(cells: Mapping[tuple[int, int], Cell], sub_batch: int, tensor: int = 1) -> str:
    """Return in words what runs were used of a sub-batch, and by what its passes are multiplied; '' without any."""
    alike = {one.sub_batch: one for one in cells.values() if one.tensor == tensor}
    if not alike:
        return ""
    own = alike.get(sub_batch)
    used = (own,) if own else tuple(alike[n] for n in sorted(alike))
    count = sum(one.runs for one in used)
    runs = "a measured run" if count == 1 else f"{count} measured runs"
    of = "" if own else f" of sub-batch {', '.join(str(one.sub_batch) for one in used)}"
    names = " and ".join(dict.fromkeys(one.calibration for one in used))
    (factor,) = cell_factors(cells, FORWARD, np.array([sub_batch]), tensor)
    return (
        f"{runs}{of} {'was' if count == 1 else 'were'} used, of calibration {names}: "
        f"forward and backward passes are multiplied by {factor:.4g}"
    )


def _factors(cells: Mapping[tuple[int, int], Cell], tensor: int) -> dict[int, float]:
    """Return factors by sub-batch, and at ANY that of all others."""
    alike = [one for one in cells.values() if one.tensor == tensor]
    means = np.array([math.log(one.factor) / drawn(one.runs) for one in alike])
    variances = (1 - COMMON) + NOISE / np.array([one.runs for one in alike], dtype=np.float64)
    common = float((means / variances).sum() / (1 / COMMON + (1 / variances).sum()))
    own = (1 - COMMON) / variances * (means - common)
    factors = {one.sub_batch: math.exp(common + effect) for one, effect in zip(alike, own.tolist(), strict=True)}
    return {**factors, ANY: math.exp(common)}
