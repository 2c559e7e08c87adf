"""Timed calls of layers that work on sequences: batched products, softmax and dropout of attention, embeddings.

Attention is that of :mod:`planner.domain.layers.sequences`, scaling, masking and the copies of split and joined heads
included. Its four products backward are timed together, as autograd runs them, and share their time. Of fused attention
queries, keys and values are views of one tensor, and backward their gradients are joined in one, as autograd does.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from planner.domain.kernels import FORWARD
from planner.domain.layers.attention_modules import fused_attention
from planner.probes.mixed import HALF_BYTES, kept
from planner.probes.operands import Operands, backward_call
from planner.probes.points import Point
from planner.probes.timing import Call

__all__ = ["attention_dropout", "attention_product", "attention_softmax", "embedding", "fused_attention_call"]

PRODUCTS_BACKWARD = 4


def _sizes(point: Point) -> tuple[int, int, int, int]:
    geometry = point.geometry
    return geometry["images"], geometry["positions"], geometry["heads"], geometry["width"]


def _has_wide_weights(point: Point, operands: Operands) -> bool:
    """Tell whether attention weights are fp32 though products are of 16 bits; ``wide`` may say that they are not."""
    return operands.itemsize == HALF_BYTES and bool(point.geometry.get("wide", 1))


def attention_product(torch: Any, point: Point, operands: Operands) -> Call:
    """Return scores (q/√w)·kᵀ or context p·v, forward; or all four products backward.

    ``wide``: the weights p are fp32 though products are not, and are cast before them, as their gradients are after.
    """
    n, s, heads, width = _sizes(point)
    is_wide = bool(point.geometry.get("wide"))
    source = kept(operands, wide=is_wide)

    def parts(projections: Any) -> Any:
        return projections.view(n, s, 3, heads, width).permute(2, 0, 3, 1, 4)

    def scores(projections: Any) -> Any:
        split = parts(projections)
        return (split[0] / math.sqrt(width)) @ split[1].transpose(-2, -1)

    def context(projections: Any, weights: Any) -> Any:
        return (weights @ parts(projections)[2]).transpose(1, 2).reshape(n, s, heads * width)

    if point.direction == FORWARD:
        projections = operands.warm(n, s, 3 * heads * width)
        if point.work["n"] == s:
            return Call(lambda: scores(projections))
        weights = source.warm(n, heads, s, s)
        return Call(lambda: context(projections, weights.to(operands.dtype) if is_wide else weights))
    graphs = []
    for _ in range(operands.graphs(operands.itemsize * n * s * heads * (3 * width + s))):
        projections = operands.warm(n, s, 3 * heads * width).detach().requires_grad_()
        weights = source.warm(n, heads, s, s).detach().requires_grad_()
        split = parts(projections)  # once, as in a training step
        outputs = (
            (split[0] / math.sqrt(width)) @ split[1].transpose(-2, -1),
            (weights.to(operands.dtype) @ split[2]).transpose(1, 2).reshape(n, s, heads * width),
        )
        graphs.append((outputs, (projections, weights)))
    gradients = (operands.warm(n, heads, s, s), operands.warm(n, s, heads * width))
    return backward_call(torch, graphs, gradients, PRODUCTS_BACKWARD)


def attention_softmax(torch: Any, point: Point, operands: Operands) -> Call:
    """Return the softmax of scores, masked where attention is causal; ``wide``: of 16-bit scores too it is fp32."""
    n, s, heads, _ = _sizes(point)
    is_wide = _has_wide_weights(point, operands)
    mask = None
    if point.geometry["causal"]:
        mask = torch.full((s, s), -math.inf, device=operands.device).triu(1)

    def softmax(scores: Any) -> Any:
        return torch.softmax(scores if mask is None else scores + mask, dim=-1, dtype=torch.float32)

    shape = (n, heads, s, s)
    if point.direction == FORWARD:
        scores = operands.warm(*shape)
        if is_wide:
            return Call(lambda: softmax(scores))
        return Call(lambda: torch.softmax(scores if mask is None else scores + mask, dim=-1))
    gradient = kept(operands, wide=is_wide).warm(*shape)
    if is_wide:
        leaves = [operands.warm(*shape).detach().requires_grad_() for _ in range(operands.graphs(gradient.nbytes))]
        return backward_call(torch, ((softmax(leaf), leaf) for leaf in leaves), gradient)
    weights = operands.cold(*shape)
    backward = torch.ops.aten._softmax_backward_data  # noqa: SLF001 - an operator has no other name
    return Call(lambda: backward(gradient, next(weights), -1, operands.dtype))


def attention_dropout(torch: Any, point: Point, operands: Operands) -> Call:
    """Return dropout of attention weights; ``wide``: they are fp32 in 16-bit precisions too."""
    n, s, heads, _ = _sizes(point)
    weights = kept(operands, wide=_has_wide_weights(point, operands)).warm(n, heads, s, s)
    if point.direction == FORWARD:
        leaf = weights.detach().requires_grad_()
        return Call(lambda: torch.nn.functional.dropout(leaf, 0.1, training=True))
    drop = torch.ops.aten.native_dropout_backward
    shape, turns = (n, heads, s, s), operands.graphs(torch.bool.itemsize * n * heads * s * s)
    masks = itertools.cycle([torch.rand(shape, device=operands.device) > 0.1 for _ in range(turns)])
    return Call(lambda: drop(weights, next(masks), 1.1))


def fused_attention_call(torch: Any, point: Point, operands: Operands) -> Call:
    """Return the forward or backward pass; ``geometry`` says how many samples and heads ``batch`` stands for."""
    n, s, heads = (point.geometry[name] for name in ("images", "positions", "heads"))
    shape = (n, s, 3 * heads * point.work["width"])
    attend = fused_attention(torch, s, heads, causal=bool(point.work["causal"]))
    if point.direction == FORWARD:
        leaf = operands.warm(*shape).detach().requires_grad_()
        return Call(lambda: attend(leaf))
    turns = operands.graphs(operands.itemsize * math.prod(shape))
    leaves = [operands.warm(*shape).detach().requires_grad_() for _ in range(turns)]
    return backward_call(torch, [(attend(leaf), leaf) for leaf in leaves], operands.warm(n, s, shape[2] // 3))


def embedding(torch: Any, point: Point, operands: Operands) -> Call:
    """Return looking up ``tokens`` rows of a table, or adding up their gradients in one that is cleared before.

    ``summands``: how many gradients of each row are summed before, as those of a table of positions are.
    """
    geometry = point.geometry
    rows, tokens, features, summands = (geometry[key] for key in ("rows", "tokens", "features", "summed"))
    numbers = torch.randint(0, rows, (tokens,)) if summands == 1 else torch.arange(tokens) % rows
    numbers = numbers.to(operands.device)
    if point.direction == FORWARD:
        table = operands.warm(rows, features)
        return Call(lambda: torch.nn.functional.embedding(numbers, table))
    gradient = operands.warm(summands, tokens, features)
    add_up = torch.ops.aten.embedding_dense_backward

    def backward() -> object:
        return add_up(gradient.sum(0) if summands > 1 else gradient[0], numbers, rows, -1, False)  # noqa: FBT003

    return Call(backward, operands.itemsize * rows * features)
