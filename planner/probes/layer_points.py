"""Points of a network's own calls: each at one small and one large sub-batch, and more where no line fits between.

Of a GPU a call is timed at three, as its times bend where it is filled; of a CPU a convolution that PyTorch computes in
another way from some sub-batch on is timed at that one and the one before too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from planner.domain.kernels import BACKWARD_DATA, FORWARD, MATRIX_KINDS, convolution_output, is_that_of_fp32
from planner.domain.layers.attentions import is_plain
from planner.domain.network import LayerCall, Point
from planner.probes.operands import POOL_ELEMENTS
from planner.probes.precisions import HALVES, NARROW, computes, has_kernel

SMALL_SUB_BATCH, LARGE_SUB_BATCH = 1, 16
"""Sub-batches: one call at both predicts any other of its work within a few per cent."""
GPU_SUB_BATCHES = (1, 8, 64)
ROW_SUB_BATCHES = (2, 3, 4, 8)
"""Further sub-batches of products with one row a sample: libraries take another path for each of the first few rows,
and gradients of weights bend once more (docs/cpu.md)."""
MOST_OPERAND_ELEMENTS = POOL_ELEMENTS // 2
MOST_ELEMENTS = 3 * POOL_ELEMENTS // 2
"""Of all operands and results together, 384 MiB: calls of so much are timed at the largest sub-batch that fits."""
ALONE_ELEMENTS = 5 * POOL_ELEMENTS // 2
"""Of those of a call that is more at any sub-batch, 640 MiB: a run stays below 2 GB (docs/cpu.md)."""
ALONE_GROWTH = 2
"""Such a call is timed at the smallest sub-batch, and at one that takes up to so many times as much."""
OTHER_BLOCK_ELEMENTS = 3 * POOL_ELEMENTS // 4
"""Of 2 bytes and of 1, in elements of 4."""

POINTWISE_IMAGES = 16
"""From so many on oneDNN computes pointwise convolutions of unit stride."""
OWN_IMAGE_ELEMENTS, OWN_KERNEL_SIDE = 20480, 3
"""Of one image, and of the shorter side of its kernel: up to these PyTorch's own code computes it alone, not oneDNN."""
ATTENTION_TENSORS = 11
"""Of fused attention backward: queries, keys, values and their gradients, apart and joined, output and its gradient."""

OPTIMIZERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sgd": ("SGD", {"lr": 1e-3}), "sgd-momentum": ("SGD", {"lr": 1e-3, "momentum": 0.9}),
    "nesterov": ("SGD", {"lr": 1e-3, "momentum": 0.9, "nesterov": True}), "adagrad": ("Adagrad", {"lr": 1e-3}),
    "rmsprop": ("RMSprop", {"lr": 1e-3}), "adam": ("Adam", {"lr": 1e-3}),
}  # fmt: skip
"""Optimizer -> PyTorch's class and options."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the calls of networks are measured.

    Attributes
    ----------
    sub_batches : in increasing order, from SMALL_SUB_BATCH
    precisions : fp32 first
    operand_elements, elements : of the largest operand or result, and of all of a call, at most
    alone_elements : of all of a call of a CPU that is more at the smallest two sub-batches: its operands are made for
        it alone
    on_gpu : whether products of 8 bits are those that GPUs have kernels for
    """

    sub_batches: tuple[int, ...] = (SMALL_SUB_BATCH, LARGE_SUB_BATCH)
    precisions: tuple[str, ...] = ("fp32",)
    operand_elements: int = MOST_OPERAND_ELEMENTS
    elements: int = MOST_ELEMENTS
    alone_elements: int = ALONE_ELEMENTS
    on_gpu: bool = False

    @property
    def most_alone(self) -> int:
        """Elements that a call may have alone: blocks of numbers of further types take some of the memory."""
        return self.alone_elements - (OTHER_BLOCK_ELEMENTS if len(self.precisions) > 1 else 0)


THIS_CPU = Extent()


def layer_points(calls: Sequence[LayerCall], extent: Extent = THIS_CPU) -> tuple[Point, ...]:
    """Return the points of calls, in their order: small, then larger where that fits the memory, in every precision.

    A call whose work is the same at any sub-batch has one. The largest sub-batch is halved until it fits, of a large
    call of a CPU until it takes no more than ALONE_GROWTH times as much as the small one. A call that does not fit
    even so has no point: of a CPU two are needed, as one would tell nothing of other sub-batches. A product of 8 bits
    that a GPU has a kernel for at fewer than two sub-batches has none either: no line runs through one. Of what moves
    bytes the 16-bit precisions have points, but not of updates and embeddings, which are fp32 in all of them; TF32 is
    fp32 there.
    """
    return tuple(
        point
        for call in calls
        for precision in extent.precisions
        if _is_of_its_own(call, precision) and not unmeasurable(call, extent, precision)
        for point in _points(call, precision, extent)
    )


def _is_of_its_own(call: LayerCall, precision: str) -> bool:
    """Tell whether a call in a precision is another one than in fp32, and can be made."""
    if precision == "fp32":
        return True
    if call.kind in MATRIX_KINDS:
        is_batched = call.layer.kind in ("attention", "cross_attention", "experts")
        return computes(precision, call.kind, call.direction) and not (is_batched and precision in NARROW)
    return precision in HALVES and not is_that_of_fp32(call.kind, precision)


class Unmeasured(NamedTuple):
    """Why a call is not measured: what it needs, and words behind that or behind ``is``; 0: memory is not why."""

    needed_bytes: int
    words: str


def unmeasurable(call: LayerCall, extent: Extent = THIS_CPU, precision: str = "fp32") -> Unmeasured | None:
    """Return why a call is not measured in a precision, though it takes time; None: it can be.

    Of a CPU no call is timed alone in 16 bits, for the memory of its casts (docs/cpu.md). A call that is no other
    one there than in fp32 is measured where that is.
    """
    if call.optimizer and call.optimizer not in OPTIMIZERS:
        return Unmeasured(0, f"of optimizer {call.optimizer}, which is not part of PyTorch")
    is_unfused = call.layer.kind == "attention" and call.kind != "attention" and not is_plain(call.layer)
    in_parts = ("experts",) if call.optimizer else IN_PARTS
    if call.layer.kind in in_parts or (is_unfused and not call.optimizer):
        return Unmeasured(0, f"one of several calls of a layer of kind {call.layer.kind}, which are made together")
    needs_two = call.depends_on_sub_batch and not extent.on_gpu
    least = SMALL_SUB_BATCH + 1 if needs_two else SMALL_SUB_BATCH
    may_be_alone = not extent.on_gpu and (precision == "fp32" or not _is_of_its_own(call, precision))
    is_alone = may_be_alone and (
        _large(call, extent) > SMALL_SUB_BATCH if needs_two else _fits_alone(call, SMALL_SUB_BATCH, extent)
    )
    if is_alone or _fits(call, least, extent):
        return None
    elements, limit, what = _held(call, least), extent.most_alone, "operands and results"
    if not may_be_alone:
        limit = extent.elements
        if elements <= limit:
            elements, limit, what = _largest(call, least), extent.operand_elements, "one operand"
    at = f" at a sub-batch of {least}" if call.depends_on_sub_batch else ""
    return Unmeasured(4 * elements, f"of {what}{at}, where one call may have {4 * limit / 2**20:,.0f} MiB")


IN_PARTS = ("class_token", "cross_attention", "experts", "latent")
"""Kinds of layers whose modules make several calls that no call of its own stands for."""


def _points(call: LayerCall, precision: str, extent: Extent) -> tuple[Point, ...]:
    """Return the points of a call in a precision; none where a GPU has kernels for fewer than two of several."""
    sub_batches = {SMALL_SUB_BATCH}
    if call.depends_on_sub_batch:
        large, others = _large(call, extent), [*extent.sub_batches[:-1]]
        if "m" in call.work and (0, 1) in call.work.values():
            others += ROW_SUB_BATCHES
        if call.kind == "convolution" and precision == "fp32" and not extent.on_gpu:
            first = first_of_another_way(call.at(SMALL_SUB_BATCH))
            others += (first - 1, first) if first else ()
        sub_batches |= {one for one in (*others, large) if SMALL_SUB_BATCH < one <= large}
    points = tuple(
        Point(call.kind, call.direction, call.at(one), call=call, sub_batch=one, precision=precision)
        for one in sorted(sub_batches)
    )
    possible = tuple(p for p in points if not extent.on_gpu or has_kernel(p.precision, p.direction, p.work))
    return possible if possible == points or len(possible) > 1 else ()


def _large(call: LayerCall, extent: Extent) -> int:
    """Return the largest sub-batch that a call is timed at; SMALL_SUB_BATCH: it fits at no other."""
    sub_batches = [extent.sub_batches[-1]]
    while sub_batches[-1] > SMALL_SUB_BATCH:
        sub_batches.append(sub_batches[-1] // 2)
    large = next((one for one in sub_batches if _fits(call, one, extent)), SMALL_SUB_BATCH)
    if large > SMALL_SUB_BATCH:
        return large
    most = ALONE_GROWTH * _held(call, SMALL_SUB_BATCH)
    return next(
        (one for one in sub_batches if _held(call, one) <= most and _fits_alone(call, one, extent)), SMALL_SUB_BATCH
    )


def first_of_another_way(work: Mapping[str, int]) -> int:
    """Return from how many images on one thread of a CPU computes an fp32 convolution in another way; 0: in one way.

    PyTorch has convolutions of its own, a product for each image, and those of oneDNN (ConvParams::use_mkldnn in
    aten/src/ATen/native/Convolution.cpp). Times of the two lie on different lines (docs/cpu.md). Images do not count.
    """
    kernel = work["k_h"], work["k_w"]
    if kernel == (1, 1) and work["stride_h"] == work["stride_w"] == 1:
        return POINTWISE_IMAGES
    is_small = work["in_c"] * work["in_h"] * work["in_w"] <= OWN_IMAGE_ELEMENTS
    return 2 if is_small and work["groups"] == 1 and min(kernel) <= OWN_KERNEL_SIDE else 0


def _fits(call: LayerCall, sub_batch: int, extent: Extent) -> bool:
    return _largest(call, sub_batch) <= extent.operand_elements and _held(call, sub_batch) <= extent.elements


def _largest(call: LayerCall, sub_batch: int) -> int:
    """Return the elements of the largest operand or result, or of what the layer reads; an update reads none of it."""
    inputs = [] if call.optimizer else [prod(shape) * sub_batch for shape in call.inputs]
    return max([_elements(call.at(sub_batch))[0], *inputs])


def _fits_alone(call: LayerCall, sub_batch: int, extent: Extent) -> bool:
    return not extent.on_gpu and _held(call, sub_batch) <= extent.most_alone


LRN_TENSORS = 3
"""Times what it moves, a normalisation over channels keeps: it is composed of many calls that keep a result each."""
LOSS_TENSORS = {FORWARD: 2, BACKWARD_DATA: 4}
"""Tensors as large as its input that a loss holds: that and the logarithms, backward also two gradients."""


def _held(call: LayerCall, sub_batch: int) -> int:
    """Return the elements of all operands and results of a call."""
    work = call.at(sub_batch)
    if call.layer.kind == "loss":
        return LOSS_TENSORS[call.direction] * work["elements"]
    total = _elements(work)[1] * (LRN_TENSORS if call.kind == "lrn" else 1)
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
