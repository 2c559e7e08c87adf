"""Precisions that can be measured: how PyTorch stores their numbers, on which devices, for which kernels."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.domain.arrays import frozen_map
from planner.domain.kernels import BACKWARD_WEIGHT
from planner.domain.precision import precision_named
from planner.errors import ParameterError
from planner.probes.torch_package import import_torch

__all__ = [
    "CPU_PRECISIONS",
    "HALF_KINDS",
    "STORED",
    "autocast",
    "byte_precisions",
    "computes",
    "computing_in",
    "gpu_precisions",
    "measures",
    "wanted_precisions",
]

STORED: Mapping[str, str] = frozen_map(
    {
        "fp32": "float32",
        "tf32": "float32",
        "fp16": "float16",
        "bf16": "bfloat16",
        "int8": "int8",
        "fp8": "float8_e4m3fn",
    }
)
"""Precision -> PyTorch's type of the operands."""
CPU_PRECISIONS = ("fp32", "bf16", "int8")
LEAST_CAPABILITY: Mapping[str, tuple[int, int]] = frozen_map(
    {"fp32": (0, 0), "tf32": (8, 0), "fp16": (5, 3), "bf16": (8, 0), "int8": (7, 5), "fp8": (8, 9)}
)
"""Compute capability from which a GPU has the arithmetic (CUDA C++ Programming Guide, "Compute Capabilities")."""
HALF_KINDS = frozenset(
    {"activation", "gelu", "max_pool", "average_pool", "batch_norm", "dropout", "add", "bias", "concat", "copy"}
)
"""Kinds whose work is bytes that autocast leaves in 16 bits (PyTorch documentation, "CUDA Ops that can autocast")."""
_HALVES = ("bf16", "fp16")


def gpu_precisions(capability: tuple[int, int]) -> tuple[str, ...]:
    """Return the precisions that a GPU of a compute capability can be measured in, fp32 first."""
    return tuple(name for name, least in LEAST_CAPABILITY.items() if capability >= least)


def wanted_precisions(asked: Sequence[str], able: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """Return the precisions to measure: those asked for, or the default; fp32 always, and first.

    Overheads of a framework are fitted to fp32 steps.

    Raises
    ------
    UnknownNameError
        There is no such precision.
    ParameterError
        The device does not have one.
    """
    for name in asked:
        if precision_named(name).name not in able:
            raise ParameterError("--precision", "one that the device can be measured in: " + ", ".join(able), name)
    return tuple(dict.fromkeys(("fp32", *(asked or default))))


def byte_precisions(precisions: Sequence[str]) -> tuple[str, ...]:
    """Return those in which kinds whose work is bytes are measured: fp32, and one of half its size if wanted."""
    return ("fp32", *[name for name in _HALVES if name in precisions][:1])


def computes(precision: str, kind: str, direction: str) -> bool:
    """Tell whether a convolution, a product or fused attention is computed in a precision.

    Of 8 bits there are products alone, and of int8 only those of the forward pass and of gradients of inputs.
    """
    if precision == "int8":
        return kind == "gemm" and direction != BACKWARD_WEIGHT
    return kind == "gemm" or (kind in ("attention", "convolution") and precision != "fp8")


def measures(precision: str, precisions: Sequence[str], kernel: tuple[str, str], batch: int = 1) -> bool:
    """Tell whether a kernel (kind and direction) is measured in one of the precisions wanted that is not fp32.

    What computes is; what moves bytes only in one of 16 bits; of batched products there are none of 8 bits.
    """
    if precision in ("int8", "fp8") and batch > 1:
        return False
    return computes(precision, *kernel) or (kernel[0] in HALF_KINDS and precision in byte_precisions(precisions)[1:])


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Let fp32 products and convolutions of a GPU use TF32 where the precision is ``tf32``, and only there.

    By the older switches: they set the newer ``fp32_precision`` too, whereas once that is set alone PyTorch refuses to
    read the older ones, as its own code does (PyTorch documentation, "CUDA semantics", TensorFloat-32). That they are
    the older ones PyTorch 2.9 warns of once, which tells a user nothing.
    """
    backends = import_torch().backends
    ways: tuple[Any, ...] = (backends.cuda.matmul, backends.cudnn)
    with _without_warning():
        before = [way.allow_tf32 for way in ways]
        for way in ways:
            way.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        with _without_warning():
            for way, earlier in zip(ways, before, strict=True):
                way.allow_tf32 = earlier


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Please use the new API settings to control TF32", UserWarning)
        yield


def autocast(device: str, precision: str) -> contextlib.AbstractContextManager[object]:
    """Return PyTorch's mixed precision of 16 bits; nothing for any other precision."""
    if precision not in _HALVES:
        return contextlib.nullcontext()
    torch = import_torch()
    made: contextlib.AbstractContextManager[object] = torch.autocast(
        device.partition(":")[0], dtype=getattr(torch, STORED[precision])
    )
    return made
