"""Tables by distinct case: work is done once per case, configurations gather from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from planner.domain.arrays import FloatArray, IntArray

__all__ = ["Index", "PairTable", "distinct_pairs", "slices"]

CHUNK = 1 << 16
"""Configurations priced at once: temporary arrays of 512 KiB stay in a core's cache."""
_DENSE = 1 << 22
"""Largest number of possible keys that are kept as an array by key (16 to 32 MB)."""


def slices(size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most CHUNK."""
    for start in range(0, size, CHUNK):
        yield slice(start, min(start + CHUNK, size))


def distinct_pairs(first: IntArray, second: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct pairs of two columns of whole numbers >= 0, shape (n,), in ascending order.

    Marks possible pairs where there are few of them, because sorting a million numbers takes 0.1 s.
    """
    if first.size == 0:
        return first, second
    width = int(second.max()) + 1
    possible = (int(first.max()) + 1) * width
    if possible <= _DENSE:
        used = np.zeros(possible, dtype=np.bool_)
        for part in slices(first.size):
            used[first[part] * width + second[part]] = True
        keys = np.flatnonzero(used)
    else:
        keys = np.unique(first * width + second)
    return keys // width, keys % width


class Index:
    """Positions of whole numbers >= 0 in a sorted list of distinct ones."""

    def __init__(self, keys: IntArray) -> None:
        self.keys = keys
        self._position: IntArray | None = None
        if keys.size and int(keys[-1]) < _DENSE:
            self._position = np.zeros(int(keys[-1]) + 1, dtype=np.int64)
            self._position[keys] = np.arange(keys.size)

    def positions(self, values: IntArray) -> IntArray:
        """Return the position of each value, all of which must be keys."""
        if self._position is not None:
            return self._position[values]
        return np.searchsorted(self.keys, values)


class PairTable:
    """One number for each pair of rows of two tables, computed when first asked for.

    Parameters
    ----------
    rows, columns : int
        Sizes of the two tables.
    compute : (row, column), sorted by row then column -> numbers, all of shape (k,)
    """

    def __init__(self, rows: int, columns: int, compute: Callable[[IntArray, IntArray], FloatArray]) -> None:
        self._columns = columns
        self._compute = compute
        self._values = np.full(rows * columns, np.nan) if rows * columns <= _DENSE else None

    def gather(self, row: IntArray, column: IntArray) -> FloatArray:
        """Return the numbers of pairs, shape (n,)."""
        pairs = row * self._columns + column
        if self._values is None:
            distinct, inverse = np.unique(pairs, return_inverse=True)
            found = self._compute(distinct // self._columns, distinct % self._columns)
            return np.asarray(found[inverse], dtype=np.float64)
        wanted = np.zeros(self._values.size, dtype=np.bool_)
        wanted[pairs] = True
        missing = np.flatnonzero(wanted & np.isnan(self._values))
        if missing.size:
            self._values[missing] = self._compute(missing // self._columns, missing % self._columns)
        gathered: FloatArray = self._values[pairs]
        return gathered
