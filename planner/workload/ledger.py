"""A ledger of kernel calls: written layer by layer, read as arrays over sub-batches."""

from __future__ import annotations

import numpy as np

from planner.domain.arrays import IntArray
from planner.domain.kernels import DIRECTIONS, KINDS, WORK_COLUMNS, KernelCalls

__all__ = ["Amount", "Ledger", "fixed", "per_sample", "traffic"]

Amount = tuple[int, int]
"""A count (a, b) that is a + b·n for a sub-batch of n samples."""


def fixed(count: int) -> Amount:
    """Return a count that does not depend on the sub-batch."""
    return (count, 0)


def per_sample(count: int) -> Amount:
    """Return a count proportional to the sub-batch."""
    return (0, count)


def traffic(elements: int, moved: int, fixed_bytes: int = 0) -> tuple[Amount, Amount, Amount]:
    """Return the work of a kernel that moves bytes, each count per sample."""
    return per_sample(elements), per_sample(moved), per_sample(fixed_bytes)


class Ledger:
    """Collects calls; ``calls`` gives one record a kind and direction, in the order of KINDS and DIRECTIONS."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[tuple[int, list[Amount]]]] = {}

    def add(self, kind: str, direction: str, position: int, *work: Amount, count: Amount = (1, 0)) -> None:
        """Note ``count`` calls that the layer at ``position`` makes, work in the order of the kind's columns."""
        self._rows.setdefault((kind, direction), []).append((position, [count, *work]))

    def calls(self, sub_batch: IntArray) -> tuple[KernelCalls, ...]:
        """Return the calls for sub-batches of shape (s,)."""
        order = ((kind, direction) for kind in KINDS for direction in DIRECTIONS)
        return tuple(
            self._record(kind, direction, sub_batch) for kind, direction in order if (kind, direction) in self._rows
        )

    def _record(self, kind: str, direction: str, sub_batch: IntArray) -> KernelCalls:
        rows = self._rows[kind, direction]
        amounts = np.array([amounts for _, amounts in rows], dtype=np.int64)  # (k, 1 + columns, 2)
        values = []
        for column in range(amounts.shape[1]):
            base, slope = amounts[:, column, 0], amounts[:, column, 1]
            values.append(base + slope * sub_batch[:, None] if slope.any() else base[None, :])
        count = values[0][0] if values[0].shape[0] == 1 and not amounts[:, 0, 1].any() else values[0]
        layer = np.array([position for position, _ in rows], dtype=np.int64)
        return KernelCalls(kind, direction, layer, count, dict(zip(WORK_COLUMNS[kind], values[1:], strict=True)))
