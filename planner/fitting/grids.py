"""A table of products measured on a full grid of m, n, k, as an interpolating entry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.costs.interpolation import AXES, LARGEST_GRID
from planner.costs.terms import evaluate
from planner.domain.arrays import FloatArray
from planner.domain.calibration import Entry
from planner.domain.samples import Samples
from planner.fitting.entries import Key, fit_entry
from planner.fitting.rows import work_of

__all__ = ["fit_grid"]

LEAST_POINTS = 8


def fit_grid(samples: Samples, key: Key, settings: dict[str, float]) -> Entry | None:
    """Return an interpolating entry, or None where the rows are no full grid of single products.

    It is held out by planes: every inner value of an axis is left out once, and predicted from the others.
    """
    axes = _axes(samples)
    if axes is None:
        return None
    entry = fit_entry(samples, key, "gemm.interpolation", {**settings, **axes})
    errors = []
    for axis, values in axes.items():
        for value in values[1:-1]:
            out = samples.number[axis] == value
            rest = samples.select(~out)
            rest_axes = _axes(rest)
            if rest_axes is None:
                continue
            thinner = fit_entry(rest, key, "gemm.interpolation", {**settings, **rest_axes})
            left_out = samples.select(out)
            errors.append(np.abs(evaluate(thinner, work_of(left_out, "gemm")) / left_out.time_s - 1))
    if not errors:
        return entry
    all_ = np.concatenate(errors)
    return replace(entry, held_out_error=float(all_.mean()), worst_error=float(all_.max()), held_out_by="plane")


def _axes(samples: Samples) -> dict[str, tuple[float, ...]] | None:
    """Return the axes of a full grid, or None."""
    values: list[FloatArray] = [np.unique(samples.number[axis]) for axis in AXES]
    points = int(np.prod([axis.size for axis in values]))
    single = bool(np.all(np.nan_to_num(samples.number["batch"], nan=1.0) == 1))
    if not single or samples.size != points or not LEAST_POINTS <= points <= LARGEST_GRID:
        return None
    return {axis: tuple(column.tolist()) for axis, column in zip(AXES, values, strict=True)}
