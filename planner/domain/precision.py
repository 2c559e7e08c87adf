"""Precisions of training: what each stores, sends and multiplies.

fp16, bf16 and fp8 mean mixed precision with fp32 master weights; int8 means int8 forward and input-gradient
products with 16-bit weight gradients. What runs in 8 bits: :mod:`planner.workload.calls`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import named


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of one element by role.

    Attributes
    ----------
    weight_bytes, activation_bytes, gradient_bytes : of the copy that kernels read, of a stored activation, of a
        gradient that is sent
    master_bytes : of the fp32 master copy of a weight; 0 where the weights themselves are fp32
    measured_only : of 8 bits, no candidate of a search without a measured sub-model
    is_lossy : training in it loses accuracy, and no program starts it: research
    batch_multiple : samples that a sub-batch is a multiple of: DP4A takes four numbers together (NVIDIA, DeepBench)
    """

    name: str
    weight_bytes: int
    activation_bytes: int
    gradient_bytes: int
    master_bytes: int
    measured_only: bool = False
    is_lossy: bool = False
    batch_multiple: int = 1


PRECISIONS = {
    p.name: p
    for p in (
        Precision("fp32", 4, 4, 4, 0),
        Precision("tf32", 4, 4, 4, 0),
        Precision("fp16", 2, 2, 2, 4),
        Precision("bf16", 2, 2, 2, 4),
        Precision("fp8", 1, 2, 2, 4, measured_only=True),
        Precision("int8", 1, 2, 2, 4, measured_only=True, is_lossy=True, batch_multiple=4),
    )
}


def precision_named(name: str) -> Precision:
    """Return the precision, or raise UnknownNameError naming the nearest."""
    return named("precision", name, PRECISIONS)
