"""What mixed precision of 16 bits keeps in fp32 around the calls of a network's layers: weights, and some values.

Under autocast a product or convolution casts its weights to 16 bits once a step, and what it reads where that is fp32;
backward, gradients of both are cast to fp32 (PyTorch documentation, "Automatic Mixed Precision package"). These casts
are part of the timed call that they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from planner.probes.operands import Operands
from planner.probes.points import Point

__all__ = ["HALF_BYTES", "gradients_in_fp32", "is_mixed", "kept", "wide_tensors"]

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
