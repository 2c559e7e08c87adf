"""The timed call of fused attention, of the generic design and of a network's layer alike.

It is that of :mod:`planner.probes.sequence_parts`: queries, keys and values are views of one tensor, and backward their
gradients are joined in one, as autograd does.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from planner.domain.kernels import FORWARD
from planner.probes.operands import Operands
from planner.probes.points import Point
from planner.probes.sequence_parts import fused_attention
from planner.probes.timing import Call

__all__ = ["fused_attention_call"]


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
    graphs = itertools.cycle([(attend(leaf), leaf) for leaf in leaves])
    gradient = operands.warm(n, s, shape[2] // 3)

    def backward() -> object:
        result, leaf = next(graphs)
        return torch.autograd.grad(result, leaf, gradient, retain_graph=True)

    return Call(backward)
