"""The exponent of host and GPU time, where steps at small and at large sub-batches tell it.

Of each cell (framework, accelerator, precision) and family of networks whose kernels are measured and whose steps span
sub-batches by SPAN or more, the coefficients of compute are fitted to that cell alone under every exponent of GRID. L
is the least loss, in squares of row deviations; where the best fit misses by more than those, all losses are divided by
how much more. Exponents with L - min L <= REJECTED are accepted (likelihood ratio, 95 %). The data tell the exponent
where they reject any; it stays that of the family where that is accepted, and else is the best.

On specified kernels the exponent is not fitted: it would make up for their errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import FloatArray
from planner.fitting.estimators import robust_least_squares
from planner.fitting.observed import AloneSteps, Observed
from planner.sources.overheads import EXPONENTS, exponent_name

__all__ = ["GRID", "SPAN", "Exponent", "Part", "Prior", "cell_of", "fit_exponents", "told_exponent"]

GRID = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
"""A sum, and up to nearly the longer of the two."""
SPAN = 8
"""Largest sub-batch of a network over its smallest, from which on steps are bound by the host here, the GPU there."""
REJECTED = 3.84
NORMAL_95 = 1.96
FREE = 4
"""Coefficients of a fit, and the exponent."""

Cell = tuple[str, str, str, str, str]
"""Framework, accelerator, precision, kernels, and the name of the exponent."""


class Exponent(NamedTuple):
    """An exponent that the data tell, and its standard error."""

    value: float
    error: float


class Part(NamedTuple):
    """Rows on one GPU, the same as functions of coefficients, and the weight of a row."""

    observed: Observed
    steps: AloneSteps
    weight: float


class Prior(NamedTuple):
    """Normal priors of log(k, m, h), shape (3,), and the deviation of log(predicted / measured) of a row."""

    mean: FloatArray
    deviation: FloatArray
    of_row: float


def cell_of(properties: Mapping[str, str], name: str) -> Cell:
    """Return what an exponent belongs to; properties that are missing are empty."""
    framework, accelerator, precision, kernels = (
        properties.get(one, "") for one in ("framework", "accelerator", "precision", "kernels")
    )
    return framework, accelerator, precision, kernels, name


def fit_exponents(parts: Sequence[Part], prior: Prior) -> dict[Cell, Exponent]:
    """Return the exponents that steps on one GPU tell.

    Parameters
    ----------
    parts : sequence of Part
    prior : Prior
    """
    cells: dict[Cell, list[Part]] = {}
    for part in parts:
        name = exponent_name(part.observed.problem.network)
        cells.setdefault(cell_of(part.observed.properties, name), []).append(part)
    found = {}
    for cell, some in cells.items():
        if cell[3] == "measured" and any(_span(one.observed) >= SPAN for one in some):
            rows = sum(one.weight * one.observed.measured_s.size for one in some)
            told = told_exponent([_loss(some, exponent, prior) for exponent in GRID], rows, EXPONENTS[cell[4]])
            if told is not None:
                found[cell] = told
    return found


def _span(observed: Observed) -> float:
    sub_batch = observed.configurations.sub_batch
    return float(sub_batch.max() / sub_batch.min())


def told_exponent(losses: Sequence[float], rows: float, usual: float) -> Exponent | None:
    """Return the exponent that the losses of GRID tell; None where they reject none.

    Parameters
    ----------
    losses : sequence of float
        Least sum of squares of residuals over their deviations, of each exponent of GRID.
    rows : float
        How many there are, by weight.
    usual : float
        The family's value, which is kept where it is accepted.
    """
    excess = max(1.0, min(losses) / max(rows - FREE, 1.0))
    accepted = [one for one, loss in zip(GRID, losses, strict=True) if (loss - min(losses)) / excess <= REJECTED]
    if len(accepted) == len(GRID):
        return None
    best = GRID[int(np.argmin(losses))]
    return Exponent(usual if usual in accepted else best, (accepted[-1] - accepted[0]) / (2 * NORMAL_95))


def _loss(parts: Sequence[Part], exponent: float, prior: Prior) -> float:
    """Return the least loss under an exponent, by k, m and h."""
    sets = [(np.log(one.observed.measured_s), one.steps.at_exponent(exponent)) for one in parts]
    weights = np.concatenate([np.full(one.observed.measured_s.size, one.weight) for one in parts])

    def residuals(shift: FloatArray) -> FloatArray:
        values = np.exp(prior.mean + shift)
        found: FloatArray = np.concatenate([np.log(steps.times_s(values)) - log_s for log_s, steps in sets])
        return found / prior.of_row

    def jacobian(shift: FloatArray) -> FloatArray:
        values = np.exp(prior.mean + shift)
        rows = [steps.slopes(values) * values / steps.times_s(values)[:, None] for _, steps in sets]
        found: FloatArray = np.concatenate(rows)
        return found / prior.of_row

    shift, _ = robust_least_squares(residuals, jacobian, np.zeros(3), prior.deviation, weights)
    return float(np.sum(weights * residuals(shift) ** 2) + np.sum((shift / prior.deviation) ** 2))
