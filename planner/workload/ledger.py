"""A ledger of kernel calls: written layer by layer, read as arrays over sub-batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.kernels import DIRECTIONS, KINDS, WORK_COLUMNS, KernelCalls
from planner.domain.layers.record import Amount, Call
from planner.workload.program import Program

__all__ = ["Ledger"]


LARGEST_WHOLE = 2.0**62
"""Amounts above this are not whole numbers of 64 bits, which would wrap, but floating-point ones."""


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

    def calls(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        """Return the calls for sub-batches of shape (s,)."""
        return tuple(_record(*row, sub_batch) for row in self.rows())


def _record(kind: str, direction: str, layer: IntArray, amounts: IntArray, sub_batch: IntArray) -> KernelCalls:
    values = []
    most = float(sub_batch.max(initial=0))
    for column in range(amounts.shape[1]):
        base, slope = amounts[:, column, 0], amounts[:, column, 1]
        if float(base.max()) + float(slope.max()) * most > LARGEST_WHOLE:
            base, slope = base.astype(np.float64), slope.astype(np.float64)
        values.append(base + slope * sub_batch[:, None] if slope.any() else base[None, :])
    count = values[0] if amounts[:, 0, 1].any() else values[0][0]
    return KernelCalls(kind, direction, layer, count, dict(zip(WORK_COLUMNS[kind], values[1:], strict=True)))
