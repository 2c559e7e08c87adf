"""Stale rows of a GPU's sheet, told by a sibling GPU that timed the same calls.

Of two GPUs whose libraries are alike, the ratio of times hardly depends on the call. A cell whose ratio is off the
median ratio of its precision and direction, either way, by more than LIMIT and by more than DEVIATIONS robust standard
deviations (1.4826 times the median absolute deviation of log ratios) was left from another library or another run: two
GPUs of one die spread little, those of two generations more. End-to-end times take no part.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from validation.kernel_rows import Table, shape_of

__all__ = ["LIMIT", "Stale", "stale_cells"]

LIMIT, DEVIATIONS = 1.5, 3.0


@dataclass(frozen=True, slots=True)
class Stale:
    """A row that is left out: its place in the table, and how many times off the usual ratio to the sibling it is."""

    place: int
    factor: float


def stale_cells(table: Table, gpu: str, sibling: str, shape: Collection[str]) -> tuple[Stale, ...]:
    """Return the rows of a GPU that are off; none where the sibling is not named.

    Parameters
    ----------
    table : rows of all GPUs
    gpu, sibling : str
    shape : columns that, with precision and direction, say which call a row timed
    """
    return tuple(_stale(table, gpu, sibling, shape)) if sibling else ()


def _stale(table: Table, gpu: str, sibling: str, shape: Collection[str]) -> Iterator[Stale]:
    known = {_call(row, shape): float(row["time_ms"]) for row in table if row["gpu"] == sibling}
    ratios = {
        place: math.log(float(row["time_ms"]) / known[_call(row, shape)])
        for place, row in enumerate(table)
        if row["gpu"] == gpu and _call(row, shape) in known
    }
    alike: dict[tuple[str, str], list[float]] = defaultdict(list)
    for place, ratio in ratios.items():
        alike[_class(table[place])].append(ratio)
    limits = {key: _limits(values) for key, values in alike.items()}
    for place, ratio in ratios.items():
        usual, limit = limits[_class(table[place])]
        if abs(ratio - usual) > limit:
            yield Stale(place, math.exp(ratio - usual))


def _limits(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the median of log ratios, and how far a log ratio may be off it."""
    usual = median(ratios)
    spread = 1.4826 * median(abs(ratio - usual) for ratio in ratios)
    return usual, max(math.log(LIMIT), DEVIATIONS * spread)


def _class(row: Mapping[str, str]) -> tuple[str, str]:
    return row["precision"], row.get("direction", "")


def _call(row: Mapping[str, str], shape: Collection[str]) -> tuple[str, ...]:
    return (*_class(row), *shape_of(row, shape))
