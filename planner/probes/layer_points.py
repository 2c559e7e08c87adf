"""Points of a network's own calls: each at one small and one large sub-batch, and more where no line fits between.

Of a GPU a call is timed at three, as its times bend where it is filled; of a CPU a convolution that PyTorch computes in
another way from some sub-batch on is timed at that one and the one before too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from planner.domain.calls import LayerCall
from planner.probes.convolution_ways import first_of_another_way
from planner.probes.layer_kernels import OPTIMIZERS
from planner.probes.narrow_products import NARROW, has_kernel
from planner.probes.operands import POOL_ELEMENTS
from planner.probes.points import Point, convolution_output
from planner.probes.precisions import computes

__all__ = ["ALWAYS_FP32", "GPU_SUB_BATCHES", "LARGE", "SMALL", "Extent", "layer_points", "unmeasurable"]

SMALL, LARGE = 1, 16
"""Sub-batches: one call at both predicts any other of its work within a few per cent."""
GPU_SUB_BATCHES = (1, 8, 64)
FEW_ROWS = (2, 3, 4, 8)
"""Further sub-batches of products with one row a sample: libraries take another path for each of the first few rows
(products with 2048 x 2048 weights took 0.8, 1.7, 2.2 and 1.4 ms with 1 to 4 rows), and gradients of weights bend once
more (all of an MLP took 10 ms for 2 to 12 samples, 7 ms for 16)."""
MOST_OPERAND_ELEMENTS = POOL_ELEMENTS // 2
MOST_ELEMENTS = 3 * POOL_ELEMENTS // 2
"""Of all operands and results together, 384 MiB: with the block of numbers and what PyTorch needs, below 2 GB."""

ATTENTION_TENSORS = 11
"""Of fused attention backward: queries, keys, values and their gradients, apart and joined, output and its gradient."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the calls of networks are measured.

    Attributes
    ----------
    sub_batches : tuple of int
        In increasing order, from SMALL.
    precisions : tuple of str
        fp32 first.
    operand_elements, elements : int
        Of the largest operand or result, and of all of a call, at most.
    on_gpu : bool
        Whether products of 8 bits are those that GPUs have kernels for.
    """

    sub_batches: tuple[int, ...] = (SMALL, LARGE)
    precisions: tuple[str, ...] = ("fp32",)
    operand_elements: int = MOST_OPERAND_ELEMENTS
    elements: int = MOST_ELEMENTS
    on_gpu: bool = False


THIS_CPU = Extent()


def layer_points(calls: Sequence[LayerCall], extent: Extent = THIS_CPU) -> tuple[Point, ...]:
    """Return the points of calls, in their order: small, then larger where that fits the memory, in every precision.

    A call whose work is the same at any sub-batch has one. The largest sub-batch is halved until it fits; a call that
    does not fit at the small one has no point. A product of 8 bits that a GPU has a kernel for at fewer than two
    sub-batches has none either: no line runs through one. Of what moves bytes the 16-bit precisions have points, but
    not of updates and embeddings, which are fp32 in all of them; TF32 is fp32 there.
    """
    return tuple(
        point
        for call in calls
        if not unmeasurable(call, extent)
        for precision in extent.precisions
        if _is_of_its_own(call, precision)
        for point in _with_kernels(tuple(_points(call, precision, extent)), extent)
    )


ALWAYS_FP32 = ("embedding", "update")
"""Kinds that mixed precision of 16 bits leaves in fp32."""


def _is_of_its_own(call: LayerCall, precision: str) -> bool:
    """Tell whether a call in a precision is another one than in fp32, and can be made."""
    if precision == "fp32":
        return True
    if call.kind in ("attention", "convolution", "gemm"):
        batched = call.layer.kind == "attention"
        return computes(precision, call.kind, call.direction) and not (batched and precision in NARROW)
    return precision in ("fp16", "bf16") and call.kind not in ALWAYS_FP32


def unmeasurable(call: LayerCall, extent: Extent = THIS_CPU) -> str:
    """Return why a call is not measured, though it takes time; empty: it can be."""
    if call.optimizer and call.optimizer not in OPTIMIZERS:
        return f"optimizer {call.optimizer} is not part of PyTorch"
    return "" if _fits(call, SMALL, extent) else f"it does not fit the memory at a sub-batch of {SMALL}"


def _points(call: LayerCall, precision: str, extent: Extent) -> Iterator[Point]:
    yield _point(call, SMALL, precision)
    if not call.depends_on_sub_batch:
        return
    *inner, large = extent.sub_batches
    while large > SMALL and not _fits(call, large, extent):
        large //= 2
    few = FEW_ROWS if "m" in call.work and (0, 1) in call.work.values() else ()
    for sub_batch in sorted({*few, *inner, large, *_both_sides(call, precision, extent)}):
        if SMALL < sub_batch <= large:
            yield _point(call, sub_batch, precision)


def _both_sides(call: LayerCall, precision: str, extent: Extent) -> tuple[int, ...]:
    """Return the last sub-batch of one way to compute a convolution and the first of another, where there are two."""
    if call.kind != "convolution" or precision != "fp32" or extent.on_gpu:
        return ()
    first = first_of_another_way(call.at(SMALL))
    return (first - 1, first) if first else ()


def _with_kernels(points: tuple[Point, ...], extent: Extent) -> tuple[Point, ...]:
    """Return points without those of a call that a GPU has no kernel for."""
    held = tuple(p for p in points if not extent.on_gpu or has_kernel(p.precision, p.direction, p.work))
    return held if held == points or len(held) > 1 else ()


def _point(call: LayerCall, sub_batch: int, precision: str) -> Point:
    work = call.at(sub_batch)
    return Point(call.kind, call.direction, work, call=call, sub_batch=sub_batch, precision=precision)


def _fits(call: LayerCall, sub_batch: int, extent: Extent) -> bool:
    """Tell whether the operands fit, the largest and all together."""
    largest, total = _elements(call.at(sub_batch))
    total *= COMPOSED if call.kind == "lrn" else 1
    read = [prod(shape) * sub_batch for shape in call.inputs]
    return max(largest, *read) <= extent.operand_elements and total + sum(read) <= extent.elements


COMPOSED = 3
"""Times what it moves, a normalisation over channels keeps: it is composed of many calls that keep a result each."""


def _elements(work: Mapping[str, int]) -> tuple[int, int]:
    """Return the elements of the largest operand or result, and of all; of what moves bytes those that it moves."""
    if "m" in work:
        sizes = [work[a] * work[b] * work["batch"] for a, b in ("mn", "nk", "mk")]
    elif "in_c" in work:
        sizes = [
            work["images"] * work["out_c"] * prod(convolution_output(work)),
            work["out_c"] * work["in_c"] * work["k_h"] * work["k_w"],
        ]
    elif "queries" in work:
        tensor = work["batch"] * max(work["queries"], work["keys"]) * work["width"]
        return 3 * tensor, ATTENTION_TENSORS * tensor
    else:
        return work["elements"], work["traffic"] + work["fixed_bytes"] // 4
    return max(sizes), sum(sizes)
