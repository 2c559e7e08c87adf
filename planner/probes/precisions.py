"""Precisions that can be measured: how PyTorch stores their numbers, on which devices, for which kernels."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from planner.domain.arrays import frozen_map
from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.precision import precision_named
from planner.errors import MissingPackageError, ParameterError

MISSING = "measuring must be done with PyTorch, got no package torch; pip install 'epoch-planner[torch]'"


def check_torch() -> None:
    """Raise MissingPackageError where PyTorch is not installed, without the seconds that importing it takes."""
    if find_spec("torch") is None:
        raise MissingPackageError(MISSING)


def import_torch() -> Any:
    """Return the torch module, or raise MissingPackageError saying how to get it."""
    try:
        import torch  # noqa: PLC0415 - heavy, and optional
    except ImportError as error:
        raise MissingPackageError(MISSING) from error
    return torch


@dataclass(frozen=True, slots=True)
class Computing:
    """How PyTorch, and a GPU, compute in a precision.

    Attributes
    ----------
    stored : PyTorch's type of the operands
    capability : from which a GPU has the arithmetic (CUDA C++ Programming Guide, "Compute Capabilities")
    times_fp32 : peak rate by the width of operands alone; measuring replaces it
    result_bytes : of an element of an 8-bit product
    least_rows, multiple : of the first operand of an 8-bit product; of its summed dimension and of the columns of the
        second (checks of ``_int_mm`` and ``_scaled_mm`` in PyTorch, aten/src/ATen/native/cuda)
    """

    stored: str
    capability: tuple[int, int]
    times_fp32: float
    result_bytes: int = 0
    least_rows: int = 1
    multiple: int = 1


COMPUTING: Mapping[str, Computing] = frozen_map(
    {
        "fp32": Computing("float32", (0, 0), 1.0),
        "tf32": Computing("float32", (8, 0), 1.0),
        "fp16": Computing("float16", (5, 3), 2.0),
        "bf16": Computing("bfloat16", (8, 0), 2.0),
        "int8": Computing("int8", (7, 5), 4.0, result_bytes=4, least_rows=17, multiple=8),
        "fp8": Computing("float8_e4m3fn", (8, 9), 4.0, result_bytes=2, multiple=16),
    }
)
HALVES, NARROW = ("bf16", "fp16"), ("int8", "fp8")
"""Precisions of 16 and of 8 bits."""
CPU_PRECISIONS = ("fp32", "bf16", "int8")
HALF_KINDS = frozenset(
    {"activation", "gelu", "max_pool", "average_pool", "batch_norm", "dropout", "add", "bias", "concat", "copy"}
)
"""Kinds whose work is bytes that autocast leaves in 16 bits (PyTorch documentation, "CUDA Ops that can autocast")."""


def gpu_precisions(capability: tuple[int, int]) -> tuple[str, ...]:
    """Return the precisions that a GPU of a compute capability can be measured in, fp32 first."""
    return tuple(name for name, own in COMPUTING.items() if capability >= own.capability)


def wanted_precisions(names: Sequence[str], able: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """Return the precisions to measure: those asked for, or the default; fp32, which overheads are fitted to, first.

    UnknownNameError: there is no such precision. ParameterError: the device does not have one.
    """
    for name in names:
        if precision_named(name).name not in able:
            raise ParameterError("--precision", "one that the device can be measured in: " + ", ".join(able), name)
    return tuple(dict.fromkeys(("fp32", *(names or default))))


def byte_precisions(precisions: Sequence[str]) -> tuple[str, ...]:
    """Return those in which kinds whose work is bytes are measured: fp32, and one of half its size if wanted."""
    return ("fp32", *[name for name in HALVES if name in precisions][:1])


def computes(precision: str, kind: str, direction: str) -> bool:
    """Tell whether a convolution, a product or fused attention is computed in a precision.

    Of 8 bits there are products alone, and of int8 only those of the forward pass and of gradients of inputs, but for
    quantised convolutions forward.
    """
    if precision == "int8":
        return (kind == "gemm" and direction != BACKWARD_WEIGHT) or (kind, direction) == ("convolution", FORWARD)
    return kind == "gemm" or (kind in ("attention", "convolution") and precision != "fp8")


def measures(precision: str, precisions: Sequence[str], kernel: tuple[str, str], batch: int = 1) -> bool:
    """Tell whether a kernel (kind and direction) is measured in one of the precisions wanted that is not fp32.

    What computes is; what moves bytes only in one of 16 bits; of batched products there are none of 8 bits.
    """
    if precision in NARROW and batch > 1:
        return False
    return computes(precision, *kernel) or (kernel[0] in HALF_KINDS and precision in byte_precisions(precisions)[1:])


def has_kernel(precision: str, direction: str, work: Mapping[str, int]) -> bool:
    """Tell whether PyTorch has a kernel of a GPU for a call: not for convolutions, nor all products, of 8 bits."""
    if precision not in NARROW or "m" not in work:
        return precision not in NARROW or "in_c" not in work
    rows, columns, depth = product_sizes(direction, work)
    own = COMPUTING[precision]
    return rows >= own.least_rows and columns % own.multiple == depth % own.multiple == 0


def product_sizes(direction: str, work: Mapping[str, int]) -> tuple[int, int, int]:
    """Return rows of the first operand, columns of the second, and the summed dimension."""
    m, n, k = (work[name] for name in ("m", "n", "k"))
    return (n, m, k) if direction in (FORWARD, BACKWARD_DATA) else (m, n, k)


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Let fp32 products and convolutions of a GPU use TF32 where the precision is ``tf32``, and only there.

    By the older switches, which set the newer ``fp32_precision`` too; once that is set alone PyTorch refuses to read
    the older ones, as its own code does (PyTorch documentation, "CUDA semantics", TensorFloat-32).
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
    if precision not in HALVES:
        return contextlib.nullcontext()
    torch = import_torch()
    context: contextlib.AbstractContextManager[object] = torch.autocast(
        device.partition(":")[0], dtype=getattr(torch, COMPUTING[precision].stored)
    )
    return context
