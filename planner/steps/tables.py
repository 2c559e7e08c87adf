"""Tables by distinct case: work is done once per case, configurations gather from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import numpy as np

from planner.domain.arrays import FloatArray, IntArray, distinct_values

Columns = TypeVar("Columns", bound=Any)

_LARGEST_DENSE_TABLE = 1 << 22
"""Largest number of possible keys that are kept as an array by key (16 to 32 MB)."""


class Grown:
    """An array that grows by rows, at a cost that does not depend on how many it has."""

    def __init__(self, rows: FloatArray) -> None:
        self._room, self._size = rows, len(rows)

    def add(self, rows: FloatArray) -> FloatArray:
        """Return all rows with some more; those returned before stay as they are."""
        before, self._size = self._size, self._size + len(rows)
        if self._size > len(self._room):
            room = np.empty((max(self._size, 2 * before), *rows.shape[1:]))
            room[:before] = self._room[:before]
            self._room = room
        self._room[before : self._size] = rows
        return self._room[: self._size]


class CaseTable(Generic[Columns]):
    """Columns of distinct cases, each made once. Append-only: a case keeps the number of its row.

    Parameters
    ----------
    make : keys, each of shape (k,) -> columns
        A record of arrays whose first axis is the k cases.
    widths : of each key but the first, a number that it stays below. Keys are whole numbers >= 0
    """

    def __init__(self, make: Callable[..., Columns], *widths: int) -> None:
        self._make, self._widths = make, widths
        none = np.zeros(0, dtype=np.int64)
        self._codes = none  # of each row
        self._row = none  # of each code, -1: none; or where codes are large the rows in the order of codes
        self.columns = make(*(none for _ in range(len(widths) + 1)))
        self._grown = {f.name: Grown(getattr(self.columns, f.name)) for f in fields(self.columns)}

    @property
    def size(self) -> int:
        """Number of cases."""
        return self._codes.size

    def rows(self, *keys: IntArray) -> IntArray:
        """Return the row of each case, all of which must be there, of the shape that the keys broadcast to."""
        codes = self._codes_of(keys)
        if self._is_dense:
            return self._row[codes]
        return self._row[np.searchsorted(self._codes, codes, sorter=self._row)]

    def ensure(self, *keys: IntArray) -> None:
        """Make the cases that are missing, of keys of shape (k,)."""
        missing = self._missing(distinct_values(self._codes_of(keys)))
        if missing.size == 0:
            return
        columns = self._make(*self._keys(missing))
        self.columns = replace(columns, **{name: one.add(getattr(columns, name)) for name, one in self._grown.items()})
        self._codes = np.concatenate([self._codes, missing])
        if self._is_dense:
            self._row = np.full(int(self._codes.max()) + 1, -1)
            self._row[self._codes] = np.arange(self._codes.size)
        else:
            self._row = np.argsort(self._codes)

    def _missing(self, codes: IntArray) -> IntArray:
        """Return those of codes in ascending order that have no row."""
        in_order = np.sort(self._codes)
        place = np.minimum(np.searchsorted(in_order, codes), in_order.size - 1)
        return codes[in_order[place] != codes] if in_order.size else codes

    @property
    def _is_dense(self) -> bool:
        return int(self._codes.max(initial=0)) < _LARGEST_DENSE_TABLE

    def _codes_of(self, keys: tuple[IntArray, ...]) -> IntArray:
        codes = keys[0]
        for key, width in zip(keys[1:], self._widths, strict=True):
            codes = codes * width + key
        return codes

    def _keys(self, codes: IntArray) -> list[IntArray]:
        keys = []
        for width in reversed(self._widths):
            codes, key = np.divmod(codes, width)
            keys.append(key)
        return [codes, *reversed(keys)]


class RowTable:
    """Arrays that follow from the columns of a case table row by row, worked out once of each row.

    ``make``: columns of some rows -> arrays whose first axis is these rows.
    """

    def __init__(self, cases: CaseTable[Columns], make: Callable[[Columns], Sequence[FloatArray]]) -> None:
        self._cases, self._make, self._size = cases, make, 0
        self._grown: list[Grown] = []
        self._arrays: tuple[FloatArray, ...] = ()

    @property
    def arrays(self) -> tuple[FloatArray, ...]:
        """Of all rows that the case table has by now."""
        if not self._grown or self._size < self._cases.size:
            columns = self._cases.columns
            more = {f.name: getattr(columns, f.name)[self._size :] for f in fields(columns)}
            arrays, self._size = self._make(replace(columns, **more)), self._cases.size
            self._grown = self._grown or [Grown(one[:0]) for one in arrays]
            self._arrays = tuple(one.add(rows) for one, rows in zip(self._grown, arrays, strict=True))
        return self._arrays


class PairTable:
    """One number for each pair of rows of two case tables, computed when first asked for; both may grow.

    Parameters
    ----------
    compute : (row, column) -> numbers
        Of pairs, sorted by row then column, all of shape (k,); or of shapes (r, 1) and (c,), every row with every
        column, numbers of shape (r, c).
    """

    def __init__(self, compute: Callable[[IntArray, IntArray], FloatArray]) -> None:
        self._compute = compute
        self._values = np.full((0, 0), np.nan)

    def ensure(self, rows: IntArray, columns: IntArray) -> None:
        """Compute the numbers of every row with every column, of shapes (r,) and (c,), where so many are kept."""
        if self._has_place(rows, columns):
            block = np.ix_(rows, columns)
            if np.isnan(self._values[block]).any():
                self._values[block] = self._compute(rows[:, None], columns)

    def gather(self, row: IntArray, column: IntArray) -> FloatArray:
        """Return the numbers of pairs, of the shape that row and column broadcast to."""
        if not self._has_place(row, column):
            width = int(column.max()) + 1
            pairs = row * width + column
            codes, inverse = np.unique(pairs, return_inverse=True)
            computed: FloatArray = self._compute(codes // width, codes % width)[inverse]
            return computed.reshape(pairs.shape)
        values, width = self._values.ravel(), self._values.shape[1]
        pairs = row * width + column
        result: FloatArray = values[pairs]
        if np.isnan(result).any():
            is_missing = np.zeros(values.size, dtype=np.bool_)
            is_missing[pairs] = True
            missing = np.flatnonzero(is_missing & np.isnan(values))
            values[missing] = self._compute(missing // width, missing % width)
            result = values[pairs]
        return result

    def _has_place(self, row: IntArray, column: IntArray) -> bool:
        """Make place for pairs, and tell whether there is some: not where the table would be too large to keep."""
        before = self._values
        needed = (int(one.max(initial=-1)) + 1 for one in (row, column))
        height, width = (max(pair) for pair in zip(needed, before.shape, strict=True))
        if height * width > _LARGEST_DENSE_TABLE:
            return False
        if (height, width) != before.shape:
            self._values = np.full((height, width), np.nan)
            self._values[: before.shape[0], : before.shape[1]] = before
        return True
