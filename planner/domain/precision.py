"""Precisions of training: what each stores, sends and multiplies.

fp16, bf16 and fp8 mean mixed precision with fp32 master weights; int8 means int8 forward and input-gradient
products with 16-bit weight gradients. What runs in 8 bits: :mod:`planner.workload.products`.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.framework import name_and_version
from planner.errors import UnknownNameError

__all__ = ["FP32_GRADIENTS", "PRECISIONS", "Precision", "gradient_bytes", "precision_named"]

FP32_GRADIENTS = frozenset({"pytorch"})
"""Frameworks whose mixed precision casts inside operators alone: weights, and so their gradients, stay fp32.

PyTorch, documentation of torch.amp: operators cast the weights that they read; gradients have the type of the weights.
Others (Megatron-LM, DeepSpeed, MXNet with multi_precision) hold and send gradients of 2 bytes.
"""


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of one element by role.

    Attributes
    ----------
    name : str
    weight_bytes, activation_bytes, gradient_bytes : int
        Of the copy that kernels read, of a stored activation, of a gradient that is sent.
    master_bytes : int
        Of the fp32 master copy of a weight; 0 where the weights themselves are fp32.
    measured_only : bool
        Never derived from another precision, and no candidate of a search without a measured sub-model.
    """

    name: str
    weight_bytes: int
    activation_bytes: int
    gradient_bytes: int
    master_bytes: int
    measured_only: bool = False


PRECISIONS = {
    p.name: p
    for p in (
        Precision("fp32", 4, 4, 4, 0),
        Precision("tf32", 4, 4, 4, 0),
        Precision("fp16", 2, 2, 2, 4),
        Precision("bf16", 2, 2, 2, 4),
        Precision("fp8", 1, 2, 2, 4, measured_only=True),
        Precision("int8", 1, 2, 2, 4, measured_only=True),
    )
}


def precision_named(name: str) -> Precision:
    """Return the precision, or raise UnknownNameError naming the nearest."""
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]


def gradient_bytes(precision: str, framework: str) -> int:
    """Return the bytes of a gradient element as a framework sends it; ``framework`` may carry a version or variant.

    >>> gradient_bytes("bf16", "pytorch@2.4"), gradient_bytes("bf16", "megatron")
    (4, 2)
    """
    family = name_and_version(framework)[0].partition("-")[0]
    return 4 if family in FP32_GRADIENTS else precision_named(precision).gradient_bytes
