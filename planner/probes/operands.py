"""Operands of timed calls: views of one block of random numbers, so that none is made while a clock runs.

In a training step the input of a kernel has just been written, while weights and saved activations were last touched
a whole pass ago. So operands come warm (one view, used by every call) or cold (views in turn that together overflow
the last cache).

Mixed precision of 16 bits keeps weights and some values in fp32: a product casts its weights once a step, what it reads
where that is fp32, and backward the gradients of both (PyTorch documentation, "Automatic Mixed Precision package").
These casts are part of the timed call that they belong to.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from planner.probes.points import Point
from planner.probes.precisions import COMPUTING, import_torch
from planner.probes.timing import Call, give_back_memory

if TYPE_CHECKING:
    import torch

__all__ = [
    "COLD_BYTES", "HALF_BYTES", "POOL_ELEMENTS", "Operands", "backward_call", "gradients_in_fp32", "is_mixed", "kept",
    "wide_tensors",
]  # fmt: skip

POOL_ELEMENTS = 1 << 26
"""256 MiB of fp32: larger than the last cache of current CPUs, and two of the largest operands of a designed point."""
COLD_BYTES = 96 * 2**20
"""Views in turn cover this much before the first is used again."""
MOST_VIEWS = 64
MOST_GPU_VIEWS = 1024
"""Of small operands: a GPU needs more calls in a row to be timed."""
MOST_GRAPHS, MOST_GPU_GRAPHS = 8, 64
"""Of autograd, of a CPU and of a GPU, whose last cache holds eight of most layers."""
CACHE_LINE_BYTES, GPU_ALIGNMENT_BYTES = 64, 512
"""Where operands begin; PyTorch's allocator of device memory gives out multiples of 512."""
_INT8_DEVIATION = 32
"""Standard deviation of whole numbers of 8 bits, random as those of fp32: the power that a product takes depends on
its numbers."""


class Operands:
    """A source of operands: of fp32, and by :meth:`of` of any other precision; ``itemsize`` [byte] of a number.

    ``elements``: of the block of random numbers; ``cold_bytes``: what views in turn cover, more than the last cache;
    ``beyond``: whether operands larger than the block are made, each for its call alone.
    """

    def __init__(
        self,
        seed: int = 0,
        elements: int = POOL_ELEMENTS,
        *,
        device: str = "cpu",
        cold_bytes: int = COLD_BYTES,
        beyond: bool = False,
    ) -> None:
        self._torch = import_torch()
        generator = self._torch.Generator().manual_seed(seed)
        self._piece = self._torch.randn(1 << 20, generator=generator)
        self._elements, self._cold_bytes, self.device, self._beyond = elements, cold_bytes, device, beyond
        self._set_block("float32")
        self._sources = {"float32": self}

    def _set_block(self, type_name: str) -> None:
        self.dtype: Any = getattr(self._torch, type_name)
        piece = (self._piece * _INT8_DEVIATION).clamp(-127, 127) if type_name == "int8" else self._piece
        self._tile = piece.to(self.dtype).to(self.device)
        self._pool = self._numbers(self._elements)
        self.itemsize: int = self._pool.element_size()
        self._next = 0

    def _numbers(self, size: int) -> torch.Tensor:
        """Return so many random numbers in memory of their own."""
        numbers: torch.Tensor = self._tile.repeat(math.ceil(size / self._tile.numel()))[:size]
        return numbers

    def of(self, precision: str) -> Operands:
        """Return the source of operands stored as a precision stores them; each has a block of its own."""
        type_name = COMPUTING[precision].stored
        if type_name not in self._sources:
            other = copy.copy(self)
            other._set_block(type_name)  # noqa: SLF001 - of this class
            self._sources[type_name] = other
        return self._sources[type_name]

    def warm(self, *shape: int) -> torch.Tensor:
        """Return one operand.

        torch.OutOfMemoryError: it is larger than the block of random numbers, which is as large as the device's memory
        allows, and none such is made.
        """
        size = math.prod(shape)
        if size > self._pool.numel():
            if self._beyond:
                give_back_memory()  # pieces too small for it
                return self._numbers(size).view(shape)
            too_large = f"an operand of {size} elements does not fit a block of {self._pool.numel()}"
            raise self._torch.OutOfMemoryError(too_large)
        if self._next + size > self._pool.numel():
            self._next = 0
        view: torch.Tensor = self._pool[self._next : self._next + size].view(shape)
        step = (CACHE_LINE_BYTES if self.device == "cpu" else GPU_ALIGNMENT_BYTES) // self.itemsize
        self._next += -(-size // step) * step
        return view

    def cold(self, *shape: int) -> Iterator[torch.Tensor]:
        """Return operands without end, each as if last touched long ago."""
        size = self.itemsize * math.prod(shape)
        most = MOST_VIEWS if self.device == "cpu" else MOST_GPU_VIEWS
        views = min(most, max(1, self._cold_bytes // size))
        return itertools.cycle([self.warm(*shape) for _ in range(views)])

    def graphs(self, saved_bytes: int) -> int:
        """Return how many graphs in turn find what they saved, ``saved_bytes`` each, as if last touched long ago."""
        most = MOST_GRAPHS if self.device == "cpu" else MOST_GPU_GRAPHS
        return min(most, max(1, self._cold_bytes // max(saved_bytes, 1)))


def backward_call(torch: Any, graphs: Iterable[tuple[Any, Any]], gradients: Any, calls: int = 1) -> Call:
    """Return the backward pass of graphs (outputs, inputs) in turn, as autograd makes it: so many kernel calls."""
    turn = itertools.cycle(list(graphs))

    def backward() -> object:
        outputs, inputs = next(turn)
        return torch.autograd.grad(outputs, inputs, gradients, retain_graph=True)

    return Call(backward, calls=calls)


HALF_BYTES = 2


def is_mixed(point: Point, operands: Operands) -> bool:
    """Tell whether a call is a layer's in mixed precision of 16 bits; the generic design has none."""
    return point.call is not None and operands.itemsize == HALF_BYTES


def wide_tensors(point: Point, operands: Operands) -> tuple[bool, ...]:
    """Return whether each input of a layer, and last its output, is fp32 though the precision has 16 bits."""
    call = point.call
    if call is None:
        return ()
    none = (False,) * (len(call.inputs) + 1)
    return call.wide.get("cpu" if operands.device == "cpu" else "gpu", none) if is_mixed(point, operands) else none


def kept(operands: Operands, *, wide: bool) -> Operands:
    """Return the source of operands that are fp32 where they are wide."""
    return operands.of("fp32") if wide else operands


def gradients_in_fp32(torch: Any, gradients: Callable[[], Iterable[Any]]) -> Callable[[], object]:
    """Return what casts the gradients made; those that are left out are None."""
    return lambda: [gradient.to(torch.float32) for gradient in gradients() if gradient is not None]
