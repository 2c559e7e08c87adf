"""Points of a network's own calls: each at one small and one large sub-batch, and more where no line fits between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from planner.domain.calls import LayerCall
from planner.probes.layer_kernels import OPTIMIZERS
from planner.probes.operands import POOL_ELEMENTS
from planner.probes.points import Point, convolution_output

__all__ = ["LARGE", "SMALL", "layer_points", "unmeasurable"]

SMALL, LARGE = 1, 16
"""Sub-batches: one call at both predicts any other of its work within a few per cent."""
FEW_ROWS = (2, 3, 4)
"""Further sub-batches of products with one row a sample: libraries take another path for each of the first few rows
(products with 2048 x 2048 weights took 0.8, 1.7, 2.2 and 1.4 ms with 1 to 4 rows)."""
MOST_OPERAND_ELEMENTS = POOL_ELEMENTS // 2
MOST_ELEMENTS = 3 * POOL_ELEMENTS // 2
"""Of all operands and results together, 384 MiB: with the block of numbers and what PyTorch needs, below 2 GB."""

ATTENTION_TENSORS = 11
"""Of fused attention backward: queries, keys, values and their gradients, apart and joined, output and its gradient."""


def layer_points(calls: Sequence[LayerCall]) -> tuple[Point, ...]:
    """Return the points of calls, in their order: small, then large where that fits the memory.

    A call whose work is the same at any sub-batch has one. A large sub-batch that does not fit is halved until it does;
    a call that does not fit at the small one has no point.
    """
    return tuple(point for call in calls if not unmeasurable(call) for point in _points(call))


def unmeasurable(call: LayerCall) -> str:
    """Return why a call is not measured, though it takes time; empty: it can be."""
    if call.optimizer and call.optimizer not in OPTIMIZERS:
        return f"optimizer {call.optimizer} is not part of PyTorch"
    return "" if _fits(call, SMALL) else f"it does not fit the memory at a sub-batch of {SMALL}"


def _points(call: LayerCall) -> Iterator[Point]:
    yield _point(call, SMALL)
    if "m" in call.work and (0, 1) in call.work.values():
        for sub_batch in FEW_ROWS:
            yield _point(call, sub_batch)
    large = LARGE if call.depends_on_sub_batch else SMALL
    while large > SMALL and not _fits(call, large):
        large //= 2
    if large > SMALL:
        yield _point(call, large)


def _point(call: LayerCall, sub_batch: int) -> Point:
    return Point(call.kind, call.direction, call.at(sub_batch), call=call, sub_batch=sub_batch)


def _fits(call: LayerCall, sub_batch: int) -> bool:
    """Tell whether the operands fit, the largest and all together."""
    largest, total = _elements(call.at(sub_batch))
    read = [prod(shape) * sub_batch for shape in call.inputs]
    return max(largest, *read) <= MOST_OPERAND_ELEMENTS and total + sum(read) <= MOST_ELEMENTS


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
