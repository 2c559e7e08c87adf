"""Points of a network's own calls: each at one small and one large sub-batch, and more where no line fits between.

Of a GPU a call is timed at three, as its times bend where it is filled; of a CPU a convolution that PyTorch computes in
another way from some sub-batch on is timed at that one and the one before too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from planner.domain.calls import LayerCall
from planner.domain.kernels import BACKWARD_DATA, FORWARD
from planner.probes.convolution_ways import first_of_another_way
from planner.probes.layer_kernels import OPTIMIZERS
from planner.probes.narrow_products import NARROW, has_kernel
from planner.probes.operands import POOL_ELEMENTS
from planner.probes.points import Point, convolution_output
from planner.probes.precisions import computes

__all__ = ["ALWAYS_FP32", "GPU_SUB_BATCHES", "LARGE", "SMALL", "Extent", "Unmeasured", "layer_points", "unmeasurable"]

SMALL, LARGE = 1, 16
"""Sub-batches: one call at both predicts any other of its work within a few per cent."""
GPU_SUB_BATCHES = (1, 8, 64)
FEW_ROWS = (2, 3, 4, 8)
"""Further sub-batches of products with one row a sample: libraries take another path for each of the first few rows
(products with 2048 x 2048 weights took 0.8, 1.7, 2.2 and 1.4 ms with 1 to 4 rows), and gradients of weights bend once
more (all of an MLP took 10 ms for 2 to 12 samples, 7 ms for 16)."""
MOST_OPERAND_ELEMENTS = POOL_ELEMENTS // 2
MOST_ELEMENTS = 3 * POOL_ELEMENTS // 2
"""Of all operands and results together, 384 MiB: calls of so much are timed at the largest sub-batch that fits."""
ALONE_ELEMENTS = 5 * POOL_ELEMENTS // 2
"""Of those of a call that is more at any sub-batch, 640 MiB: with the block of numbers and what PyTorch needs, below
2 GB (with 960 MiB a run of GPT-2 and VGG-16 had 2.04 GB). It is timed at the smallest, and at one that takes up to MORE
times as much."""
MORE = 2
OTHER_BLOCKS = 3 * POOL_ELEMENTS // 4
"""Of 2 bytes and of 1, in elements of 4."""

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
    alone_elements : int
        Of all of a call of a CPU that is more at the smallest two sub-batches: its operands are made for it alone.
    on_gpu : bool
        Whether products of 8 bits are those that GPUs have kernels for.
    """

    sub_batches: tuple[int, ...] = (SMALL, LARGE)
    precisions: tuple[str, ...] = ("fp32",)
    operand_elements: int = MOST_OPERAND_ELEMENTS
    elements: int = MOST_ELEMENTS
    alone_elements: int = ALONE_ELEMENTS
    on_gpu: bool = False


THIS_CPU = Extent()


def layer_points(calls: Sequence[LayerCall], extent: Extent = THIS_CPU) -> tuple[Point, ...]:
    """Return the points of calls, in their order: small, then larger where that fits the memory, in every precision.

    A call whose work is the same at any sub-batch has one. The largest sub-batch is halved until it fits, of a large
    call of a CPU until it takes no more than MORE times as much as the small one. A call that does not fit even so has
    no point: of a CPU two are needed, as one would tell nothing of other sub-batches. A product of 8 bits that a GPU
    has a kernel for at fewer than two sub-batches has none either: no line runs through one. Of what moves bytes the
    16-bit precisions have points, but not of updates and embeddings, which are fp32 in all of them; TF32 is fp32 there.
    """
    return tuple(
        point
        for call in calls
        for precision in extent.precisions
        if _is_of_its_own(call, precision) and not unmeasurable(call, extent, precision)
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


class Unmeasured(NamedTuple):
    """Why a call is not measured: what it needs, and words behind that or behind ``is``; 0: memory is not why."""

    needed_bytes: int
    words: str


def unmeasurable(call: LayerCall, extent: Extent = THIS_CPU, precision: str = "fp32") -> Unmeasured | None:
    """Return why a call is not measured in a precision, though it takes time; None: it can be.

    Of a CPU no call is timed alone in 16 bits, as its casts take up to 1.7 times as much as it. A call that is no other
    one there than in fp32 is measured where that is.
    """
    if call.optimizer and call.optimizer not in OPTIMIZERS:
        return Unmeasured(0, f"of optimizer {call.optimizer}, which is not part of PyTorch")
    needs_two = call.depends_on_sub_batch and not extent.on_gpu
    least = SMALL + 1 if needs_two else SMALL
    may_be_alone = not extent.on_gpu and (precision == "fp32" or not _is_of_its_own(call, precision))
    is_alone = may_be_alone and (_large(call, extent) > SMALL if needs_two else _fits_alone(call, SMALL, extent))
    if is_alone or _fits(call, least, extent):
        return None
    needed, limit, what = _held(call, least), _most_alone(extent), "operands and results"
    if not may_be_alone:
        limit = extent.elements
        if needed <= limit:
            needed, limit, what = _largest(call, least), extent.operand_elements, "one operand"
    at = f" at a sub-batch of {least}" if call.depends_on_sub_batch else ""
    return Unmeasured(4 * needed, f"of {what}{at}, where one call may have {4 * limit / 2**20:,.0f} MiB")


def _points(call: LayerCall, precision: str, extent: Extent) -> Iterator[Point]:
    yield _point(call, SMALL, precision)
    if not call.depends_on_sub_batch:
        return
    inner, large = extent.sub_batches[:-1], _large(call, extent)
    few = FEW_ROWS if "m" in call.work and (0, 1) in call.work.values() else ()
    for sub_batch in sorted({*few, *inner, large, *_both_sides(call, precision, extent)}):
        if SMALL < sub_batch <= large:
            yield _point(call, sub_batch, precision)


def _large(call: LayerCall, extent: Extent) -> int:
    """Return the largest sub-batch that a call is timed at; SMALL: it fits at no other."""
    halved = [extent.sub_batches[-1]]
    while halved[-1] > SMALL:
        halved.append(halved[-1] // 2)
    large = next((one for one in halved if _fits(call, one, extent)), SMALL)
    if large > SMALL:
        return large
    most = MORE * _held(call, SMALL)
    return next((one for one in halved if _held(call, one) <= most and _fits_alone(call, one, extent)), SMALL)


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
    return _largest(call, sub_batch) <= extent.operand_elements and _held(call, sub_batch) <= extent.elements


def _largest(call: LayerCall, sub_batch: int) -> int:
    """Return the elements of the largest operand or result, or of what the layer reads; an update reads none of it."""
    read = [] if call.optimizer else [prod(shape) * sub_batch for shape in call.inputs]
    return max([_elements(call.at(sub_batch))[0], *read])


def _fits_alone(call: LayerCall, sub_batch: int, extent: Extent) -> bool:
    """Tell whether the operands fit where they are made for the call alone."""
    return not extent.on_gpu and _held(call, sub_batch) <= _most_alone(extent)


def _most_alone(extent: Extent) -> int:
    """Return the elements that a call may have alone: blocks of numbers of further types take some of the memory."""
    return extent.alone_elements - (OTHER_BLOCKS if len(extent.precisions) > 1 else 0)


COMPOSED = 3
"""Times what it moves, a normalisation over channels keeps: it is composed of many calls that keep a result each."""
OF_LOSS = {FORWARD: 2, BACKWARD_DATA: 4}
"""Tensors as large as its input that a loss holds: that and the logarithms, backward also two gradients."""


def _held(call: LayerCall, sub_batch: int) -> int:
    """Return the elements of all operands and results of a call."""
    work = call.at(sub_batch)
    if call.layer.kind == "loss":
        return OF_LOSS[call.direction] * work["elements"]
    total = _elements(work)[1] * (COMPOSED if call.kind == "lrn" else 1)
    if call.optimizer:
        return total - work["elements"]  # parameters are read and written
    return total + sub_batch * sum(map(prod, call.inputs))


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
