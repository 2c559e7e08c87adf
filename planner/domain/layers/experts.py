"""Experts: each token goes to k of E feed-forward parts, as a router scores them.

n: sub-batch [samples]; s: positions; h: features; f: inside an expert; R = n·s·k rows, on the mean R/E an expert.

=================  ==============================================  ====================================
call               forward                                         backward
=================  ==============================================  ====================================
softmax            3·n·s·E, choosing k with it                     3·n·s·E
copy               2·R·h: rows in the order of experts             the same
products           E of (2f x h)·(h x R/E), f ungated              E each of rows and of weights
gated activation   5·R·f, as apart from experts                    8·R·f
products           E of (h x f)·(f x R/E)                          E each of rows and of weights
add                R·h + n·s·h: rows weighted and summed           2·R·h + n·s·h
=================  ==============================================  ====================================

Products of all experts are one call, a batch of E, as grouped products are. All experts take as many rows, those of a
sample rounded up; with a capacity c, they take c times the mean, padded or dropped to it (Lepikhin et al. 2020,
arXiv:2006.16668). Which experts tokens prefer is not modelled. Dispatching to other devices is a message, not a call.
Reads a sequence and the router's scores of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.layers.record import (
    Attribute,
    Call,
    Layer,
    LayerKind,
    Lowering,
    Shape,
    Share,
    Site,
    fixed,
    passes,
    per_sample,
    traffic,
)
from planner.errors import ParameterError

__all__ = ["KINDS"]

SCORE_BYTES = 4
"""Of a router's probability, which stays fp32."""
INDEX_BYTES = 8


def _routed(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    what, experts = f"layer {layer.name}", layer.integer("experts")
    if len(inputs) != 2:
        raise ParameterError(f"{what}: inputs", "two: a sequence and the scores of a router", len(inputs))
    if inputs[1] != (inputs[0][0], experts):
        raise ParameterError(f"{what}: scores", f"of the shape {(inputs[0][0], experts)}, one an expert", inputs[1])
    if experts % layer.integer("ranks"):
        raise ParameterError(f"{what}: ranks", f"a divisor of the {experts} experts", layer.integer("ranks"))
    if layer.integer("top_k") > experts:
        raise ParameterError(f"{what}: top_k", f"at most experts = {experts}", layer.integer("top_k"))
    return inputs[0]


def _matrices(layer: Layer) -> int:
    return 3 if layer.attributes["gated"] else 2


def _rows(site: Site) -> tuple[int, int]:
    """Return the rows of one expert, and of all that a rank has, per sample; each rank sends as many as it gets."""
    layer = site.layer
    mean = site.output[0] * layer.integer("top_k") * layer.integer("ranks") / layer.integer("experts")
    each = max(1, math.ceil(mean * (layer.number("capacity") or 1.0)))
    padded = _held(layer) * each if layer.number("capacity") else site.output[0] * layer.integer("top_k")
    return each, padded


def _held(layer: Layer) -> int:
    """Return the experts of one rank."""
    return layer.integer("experts") // layer.integer("ranks")


def _experts(site: Site, _lowering: Lowering) -> Iterator[Call]:
    layer, (positions, features) = site.layer, site.output
    inner = layer.integer("ffn")
    each, rows = _rows(site)
    scores = positions * layer.integer("experts")
    routed = (*traffic(scores, 3 * scores), per_sample(positions))
    yield from passes("softmax", site, routed, routed)
    copy = traffic(rows * features, 2 * rows * features)
    yield from passes("copy", site, copy, copy)
    wide = (_matrices(layer) - 1) * inner
    for outer, read in ((wide, features), (features, inner)):
        yield from _products(site, outer, read, each)
    gated = (3, 5) if layer.attributes["fused"] else (5, 8)
    forward, backward = gated if layer.attributes["gated"] else (2, 3)
    inside = rows * inner
    yield from passes("activation", site, traffic(inside, forward * inside), traffic(inside, backward * inside))
    summed, sums = rows * features, positions * features
    yield from passes("add", site, traffic(sums, summed + sums), traffic(sums, 2 * summed + sums))


def _products(site: Site, outer: int, inner: int, rows: int) -> Iterator[Call]:
    batch = fixed(_held(site.layer))
    m, k, n = fixed(outer), fixed(inner), per_sample(rows)
    yield Call("gemm", FORWARD, (m, n, k, batch))
    yield Call("gemm", BACKWARD_DATA, (k, n, m, batch))
    yield Call("gemm", BACKWARD_WEIGHT, (m, k, n, batch))


def _kept(site: Site, itemsize: int) -> int:
    """Return rows in the order of experts, what is inside of them, and what is between; frozen, no products' inputs."""
    layer, rows, trains = site.layer, _rows(site)[1], not site.layer.is_frozen
    inside = (4 - bool(layer.attributes["fused"]) if layer.attributes["gated"] else 2) + trains - 1
    return itemsize * rows * (trains * site.output[1] + inside * layer.integer("ffn")) + _kept_between(site, itemsize)


def _kept_between(site: Site, itemsize: int) -> int:
    """Return what experts give, and what a position has: scores, which were chosen, and places."""
    layer, (positions, features), rows = site.layer, site.output, _rows(site)[1]
    scores = positions * (SCORE_BYTES * layer.integer("experts") + INDEX_BYTES * layer.integer("top_k"))
    return itemsize * rows * features + scores + rows * (2 * INDEX_BYTES + itemsize)


def _macs(site: Site) -> int:
    layer, (positions, features) = site.layer, site.output
    return positions * layer.integer("top_k") * _matrices(layer) * features * layer.integer("ffn")


def _parameters(layer: Layer, shape: Shape) -> tuple[int, ...]:
    """Return those of the products into all experts, and out of them."""
    out = shape[-1] * layer.integer("ffn") * _held(layer)
    return ((_matrices(layer) - 1) * out, out)


def _module(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return experts of as many rows each, in the order of the experts that scores choose: equal shares in any case.

    Rows are padded to whole shares, and what is beyond a capacity is dropped.
    """
    features, experts, top_k, inner = (inputs[0][-1], *(layer.integer(key) for key in ("experts", "top_k", "ffn")))

    class Experts(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            self.into = torch.nn.Parameter(torch.randn(experts, features, (_matrices(layer) - 1) * inner) * 0.02)
            self.out = torch.nn.Parameter(torch.randn(experts, inner, features) * 0.02)

        def forward(self, sequence: Any, scores: Any) -> Any:
            rows = sequence.flatten(0, 1)
            weights, top = torch.softmax(scores.flatten(0, 1), dim=-1, dtype=torch.float32).topk(top_k)
            order = top.flatten().argsort()
            each = math.ceil(len(order) * (layer.number("capacity") or 1.0) / experts)
            order = torch.nn.functional.pad(order[: experts * each], (0, max(0, experts * each - len(order))))
            places = order // top_k
            of_expert = rows[places].view(experts, each, features)
            wide = torch.bmm(of_expert, self.into.to(of_expert.dtype))
            if layer.attributes["gated"]:
                gate, wide = wide.chunk(2, dim=-1)
                wide = torch.nn.functional.silu(gate) * wide
            else:
                wide = torch.nn.functional.gelu(wide)
            result = torch.bmm(wide, self.out.to(wide.dtype)).view(-1, features)
            result = result * weights.flatten()[order].to(result.dtype)[:, None]
            summed = torch.zeros_like(rows, dtype=result.dtype)
            return summed.scatter_add(0, places[:, None].expand_as(result), result).view(sequence.shape)

    return Experts()


KINDS = {
    "experts": LayerKind(
        {
            "experts": Attribute("int", None, "feed-forward parts to choose from"),
            "top_k": Attribute("int", None, "those that each position goes to"),
            "ffn": Attribute("int", None, "features inside of each"),
            "gated": Attribute("bool", default=True, doc="whether each multiplies two products"),
            "fused": Attribute("bool", default=False, doc="whether gates are one kernel with it", quiet=True),
            "ranks": Attribute("int", 1, "devices that share the experts; the layer is what one of them has"),
            "capacity": Attribute("float", 0.0, "rows an expert takes, in means, padded or dropped; 0: as they come"),
        },
        _routed,
        (2,),
        joins=True,
        parameters=_parameters,
        calls=_experts,
        macs=_macs,
        kept_besides=_kept,
        kept_between=_kept_between,
        inside=lambda site: _rows(site)[1] * _matrices(site.layer) * site.layer.integer("ffn"),
        computes="16 bits",
        share=lambda _layer: Share("ffn"),
        module=_module,
    )
}
