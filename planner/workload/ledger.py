"""A ledger of kernel calls: written layer by layer, read as arrays over sub-batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.domain.arrays import IntArray
from planner.domain.kernels import DIRECTIONS, KINDS, WORK_COLUMNS, KernelCalls
from planner.domain.layers.record import Amount, Call
from planner.workload.program import Program

__all__ = ["Ledger"]


LARGEST_WHOLE = 2.0**62
"""Amounts above this are not whole numbers of 64 bits, which would wrap, but floating-point ones."""


class _Column(NamedTuple):
    """Amounts base + slope·n of k layers, shape (k,) each, the most of either, and whether any slope is not 0."""

    base: IntArray
    slope: IntArray
    most_base: float
    most_slope: float
    varies: bool

    def of(self, sub_batch: IntArray, most: float) -> IntArray:
        """Return the amounts at sub-batches (s,) of at most so many samples: (s, k), or (1, k) where all are alike."""
        is_whole = self.most_base + self.most_slope * most <= LARGEST_WHOLE
        base, slope = (one if is_whole else one.astype(np.float64) for one in (self.base, self.slope))
        amounts: NDArray[Any] = base + slope * sub_batch[:, None] if self.varies else base[None, :]
        return amounts


class Ledger:
    """Collects the calls of a program's layers; kinds and directions in the order of KINDS and DIRECTIONS."""

    def __init__(self, of: Program) -> None:
        self._program = of
        self._rows: dict[tuple[str, str], list[tuple[int, list[Amount]]]] = {}

    def add(self, position: int, call: Call) -> None:
        """Note the calls of one layer like that at ``position``."""
        self._rows.setdefault((call.kind, call.direction), []).append((position, [call.count, *call.work]))

    def rows(self) -> Iterator[tuple[str, str, IntArray, IntArray]]:
        """Yield kind, direction, positions of layers, shape (k,), and amounts, (a, b) each, shape (k, 1 + columns, 2).

        The first amount is the count of all layers that are like the one at a position.
        """
        for kind, direction in ((kind, direction) for kind in KINDS for direction in DIRECTIONS):
            if rows := self._rows.get((kind, direction)):
                layer = np.array([position for position, _ in rows], dtype=np.int64)
                amounts = np.array([amounts for _, amounts in rows], dtype=np.int64)
                amounts[:, 0] *= self._program.layers[self._program.site[layer], None]
                yield kind, direction, layer, amounts

    @cached_property
    def _columns(self) -> list[tuple[str, str, IntArray, list[_Column]]]:
        """The rows by column: the ledger is written before it is read."""
        return [
            (kind, direction, layer, [_column(*amounts[:, at].T) for at in range(amounts.shape[1])])
            for kind, direction, layer, amounts in self.rows()
        ]

    def calls(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        """Return the calls for sub-batches of shape (s,)."""
        return tuple(_record(*row, sub_batch) for row in self._columns)


def _column(base: IntArray, slope: IntArray) -> _Column:
    most = float(base.max()), float(slope.max())
    return _Column(np.ascontiguousarray(base), np.ascontiguousarray(slope), *most, bool(slope.any()))


def _record(kind: str, direction: str, layer: IntArray, columns: list[_Column], sub_batch: IntArray) -> KernelCalls:
    most = float(sub_batch.max(initial=0))
    count, *work = (one.of(sub_batch, most) for one in columns)
    of_all = count if columns[0].varies else count[0]
    return KernelCalls(kind, direction, layer, of_all, dict(zip(WORK_COLUMNS[kind], work, strict=True)))
