"""Leaving groups out in turn: what is predicted takes no part in the fit that predicts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from planner.domain.arrays import BoolArray
from planner.scoring.groups import numbered

__all__ = ["HOLD_OUTS", "Split", "splits"]

HOLD_OUTS = ("network", "gpu", "cluster", "source")
"""Properties of a run whose values can be left out in turn."""


class Split(NamedTuple):
    """Rows to fit on and rows to predict, bool (n,); no row is in both, and ``name`` is in none of ``fit``."""

    name: str
    fit: BoolArray
    test: BoolArray


def splits(groups: Sequence[str], mask: BoolArray | None = None) -> Iterator[Split]:
    """Yield one split for every group of the masked rows, by name; every masked row is tested once.

    Of a single group nothing remains to fit on: ``fit`` is then False everywhere.

    Parameters
    ----------
    groups : sequence of str, n
        The value of the property that is left out.
    mask : ndarray of bool, shape (n,), optional
        Rows that take part at all.
    """
    use = np.ones(len(groups), dtype=np.bool_) if mask is None else mask
    names, code = numbered(groups, use)
    number = np.full(len(groups), -1, dtype=np.int64)
    number[use] = code
    for position, name in enumerate(names):
        test = number == position
        yield Split(name, use & ~test, test)
