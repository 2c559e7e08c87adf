"""Operands of timed calls: views of one block of random numbers, so that none is made while a clock runs.

In a training step the input of a kernel has just been written, while weights and saved activations were last touched
a whole pass ago. So operands come warm (one view, used by every call) or cold (views in turn that together overflow
the last cache).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.probes.torch_package import import_torch

if TYPE_CHECKING:
    import torch

__all__ = ["Operands"]

POOL_ELEMENTS = 1 << 26
"""256 MiB of fp32: larger than the last cache of current CPUs, and two of the largest operands of a designed point."""
COLD_BYTES = 96 * 2**20
"""Views in turn cover this much before the first is used again."""
MOST_VIEWS = 64


class Operands:
    """A source of operands.

    Parameters
    ----------
    seed : int
    elements : int
        Size of the block of random fp32 numbers; no operand may be larger.
    """

    def __init__(self, seed: int = 0, elements: int = POOL_ELEMENTS) -> None:
        self._torch = import_torch()
        generator = self._torch.Generator().manual_seed(seed)
        piece = self._torch.randn(1 << 20, generator=generator)
        self._pool = piece.repeat(math.ceil(elements / piece.numel()))[:elements]
        self._next = 0

    def warm(self, *shape: int) -> torch.Tensor:
        """Return one operand."""
        size = math.prod(shape)
        if self._next + size > self._pool.numel():
            self._next = 0
        view: torch.Tensor = self._pool[self._next : self._next + size].view(shape)
        self._next += -(-size // 16) * 16  # a cache line is 16 numbers
        return view

    def cold(self, *shape: int) -> Iterator[torch.Tensor]:
        """Return operands without end, each as if last touched long ago."""
        size = 4 * math.prod(shape)
        views = min(MOST_VIEWS, max(1, COLD_BYTES // size))
        return itertools.cycle([self.warm(*shape) for _ in range(views)])
