"""The exponent of host and GPU time, where steps at small and at large sub-batches tell it.

Of each program, accelerator, precision and family of networks whose kernels are measured and whose steps span
sub-batches by SPAN or more, the coefficients of compute are fitted to their rows alone under every exponent of GRID.
L is the least loss, in squares of row deviations; where the best fit misses by more than those, all losses are divided
by how much more. Exponents with L - min L <= REJECTION_LOSS are accepted (likelihood ratio, 95 %). The data tell the
exponent where they reject any; it stays that of the family where that is accepted, and else is the best.

On specified kernels the exponent is not fitted: it would make up for their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from planner.fitting.observed import AloneSteps, Observed
from planner.sources.overheads import EXPONENTS, exponent_name

__all__ = ["GRID", "SPAN", "Exponent", "exponent_key", "exponent_of_losses", "fit_exponents"]

GRID = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
"""A sum, and up to nearly the longer of the two."""
SPAN = 8
"""Largest sub-batch of a network over its smallest, from which on steps are bound by the host here, the GPU there."""
REJECTION_LOSS = 3.84
NORMAL_95 = 1.96
FREE_COUNT = 4
"""Coefficients of a fit, and the exponent."""

ExponentKey = tuple[str, str, str, str, str]
"""Program, accelerator, precision, kernels, and the name of the exponent."""
Part = tuple[Observed, AloneSteps]


class Exponent(NamedTuple):
    """An exponent that the data tell, and its standard error."""

    value: float
    error: float


def exponent_key(properties: Mapping[str, str], name: str) -> ExponentKey:
    """Return what an exponent belongs to; properties that are missing are empty."""
    program, accelerator, precision, kernels = (
        properties.get(one, "") for one in ("program", "accelerator", "precision", "kernels")
    )
    return program, accelerator, precision, kernels, name


def fit_exponents(
    parts: Sequence[Part], loss: Callable[[Sequence[Part], float], float], most_rows: float
) -> dict[ExponentKey, Exponent]:
    """Return the exponents that steps on one GPU tell.

    Parameters
    ----------
    parts : sequence of (Observed, AloneSteps)
        Rows on one GPU, and the same as functions of coefficients.
    loss : parts, exponent -> float
        Least sum of squares of residuals over their deviations.
    most_rows : float
        As which rows of a part count at most.
    """
    parts_of: dict[ExponentKey, list[Part]] = {}
    for part in parts:
        name = exponent_name(part[0].problem.network)
        parts_of.setdefault(exponent_key(part[0].properties, name), []).append(part)
    exponents = {}
    for key, some in parts_of.items():
        if key[3] == "measured" and any(_span(one) >= SPAN for one, _ in some):
            rows = sum(min(float(one.measured_s.size), most_rows) for one, _ in some)
            exponent = exponent_of_losses([loss(some, exponent) for exponent in GRID], rows, EXPONENTS[key[4]])
            if exponent is not None:
                exponents[key] = exponent
    return exponents


def _span(observed: Observed) -> float:
    sub_batch = observed.configurations.sub_batch
    return float(sub_batch.max() / sub_batch.min())


def exponent_of_losses(losses: Sequence[float], rows: float, usual: float) -> Exponent | None:
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
    excess = max(1.0, min(losses) / max(rows - FREE_COUNT, 1.0))
    passing = [one for one, loss in zip(GRID, losses, strict=True) if (loss - min(losses)) / excess <= REJECTION_LOSS]
    if len(passing) == len(GRID):
        return None
    best = GRID[int(np.argmin(losses))]
    return Exponent(usual if usual in passing else best, (passing[-1] - passing[0]) / (2 * NORMAL_95))
