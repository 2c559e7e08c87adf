"""Layers of sequences: embeddings, normalisation over features, some of the positions, patches of images, experts.

n: sub-batch [samples]; s: positions; h: features; V: rows of a table; E = n·s·h; N: patches of an image, s = N + 1.

=================  ========================================  ==========================================
call               forward                                   backward
=================  ========================================  ==========================================
embedding          2E, 8-byte number of each token           V·h to clear, 3E to add rows, the numbers
... by position    2·s·h, once for all samples               E + V·h (a sum over samples)
sum of tables      3E each, an ``add``                       0
layer_norm         2E                                        3E of inputs, and 2E of parameters
windows            2E, a copy; 4E where they are shifted     the same
positions          0, a view; 2E of some that are picked     E in clearing, 2 of those taken
class token        2E, a ``concat`` of transposed patches    2E of patches, and E, a sum over samples
... positions      3E, an ``add``
=================  ========================================  ==========================================

Experts: each token goes to k of E feed-forward parts, as a router scores them; f: features inside an expert;
R = n·s·k rows, on the mean R/E an expert.

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
from planner.domain.layers import record
from planner.domain.layers.record import INPUT, Attribute, Call, Layer, LayerKind, Lowering, Shape, Share, Site, traffic
from planner.errors import ParameterError

TOKEN_BYTES = 8
"""Of a token's number, as PyTorch keeps it."""
STATISTICS_BYTES = 8
"""Of a position that layer normalisation works on: mean and scale in fp32."""
ROOT_BYTES = 4
"""Of a position that normalisation by the root mean square works on: its scale in fp32."""
TABLES = ("vocabulary", "positions", "types")


def _embedded(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    (positions,), rows = inputs[0], layer.integer("positions")
    if layer.inputs != (INPUT,):
        raise ParameterError(f"layer {layer.name}: input", f"{INPUT}, the numbers of tokens", layer.inputs[0])
    if 0 < rows < positions:
        raise ParameterError(f"layer {layer.name}: positions", f"0, or at least the {positions} of a sample", rows)
    return (positions, layer.integer("features"))


def _embedding(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield looking up a row a token, of each table, and their sum; backward, the gradients of the tables."""
    layer, elements = site.layer, site.output_elements
    index_bytes = TOKEN_BYTES * site.input_elements
    for table in ("vocabulary", "types"):
        if layer.integer(table):
            table_elements = layer.integer(table) * layer.integer("features")
            work = (record.per_sample(elements), (table_elements, 3 * elements), record.per_sample(index_bytes))
            yield Call("embedding", FORWARD, traffic(elements, 2 * elements, index_bytes))
            yield Call("embedding", BACKWARD_WEIGHT, work)
    if layer.integer("positions"):
        table_elements = layer.integer("positions") * layer.integer("features")
        yield Call(
            "embedding", FORWARD, (record.fixed(elements), record.fixed(2 * elements), record.fixed(index_bytes))
        )
        yield Call(
            "embedding", BACKWARD_WEIGHT, (record.per_sample(elements), (table_elements, elements), record.fixed(0))
        )
    sums = sum(layer.integer(table) > 0 for table in ("positions", "types"))
    if sums:
        yield Call("add", FORWARD, traffic(elements, 3 * elements), record.fixed(sums))


def _embedding_kept(site: Site, itemsize: int) -> int:
    """Numbers of tokens, less what was counted for them as the network's input, and of their types."""
    return (TOKEN_BYTES * (2 if site.layer.integer("types") else 1) - itemsize) * site.input_elements


def _layer_norm(site: Site, _lowering: Lowering) -> Iterator[Call]:
    elements = site.output_elements
    rows, backward = record.per_sample(elements // site.output[-1]), (5 if site.trained else 3) * elements
    return record.passes(
        "layer_norm", site, (*traffic(elements, 2 * elements), rows), (*traffic(elements, backward), rows)
    )


def _root_normed(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    *rest, features = inputs[0]
    if layer.integer("features") > features:
        raise ParameterError(
            f"layer {layer.name}: features", f"at most the {features} it reads", layer.integer("features")
        )
    return (*rest, layer.integer("features") or features)


def _taken(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    start, count, positions = layer.integer("start"), layer.integer("count"), inputs[0][0]
    if start + count > positions:
        raise ParameterError(f"layer {layer.name}: start + count", f"at most the {positions} it reads", start + count)
    return (count, *inputs[0][1:])


def _take(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield picking positions that do not lie together; backward clears the gradient of all and copies theirs."""
    if site.layer.attributes["scattered"]:
        yield Call("copy", FORWARD, traffic(site.output_elements, 2 * site.output_elements))
    yield from _first_position(site, _lowering)


def _with_class_token(_layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    features, height, width = inputs[0]
    return (height * width + 1, features)


def _class_token(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield patches put in a row behind the token, and the positions added; backward the gradients of all three."""
    elements, patches = site.output_elements, site.input_elements
    yield Call("concat", FORWARD, traffic(elements, 2 * elements))
    yield Call("add", FORWARD, (record.per_sample(elements), (elements, 2 * elements), record.fixed(0)))
    if site.trained:
        yield Call("add", BACKWARD_DATA, (record.per_sample(elements), (elements, elements), record.fixed(0)))
    if site.input_gradients[0]:
        yield Call("concat", BACKWARD_DATA, traffic(patches, 2 * patches))


def _windowed(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    (positions, features), height, side = inputs[0], layer.integer("height"), layer.integer("side")
    if positions % height or height % side or positions // height % side:
        rule = f"a divisor of both sides of the {positions} positions it reads, in {height} rows"
        raise ParameterError(f"layer {layer.name}: side", rule, side)
    return (positions // side**2, features * side**2) if layer.attributes["merged"] else inputs[0]


def _windows(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield a copy into the other order, and one that rolls the image where windows are shifted; the same backward."""
    work = traffic(site.output_elements, 2 * site.output_elements)
    for _ in range(1 + bool(site.layer.integer("shift"))):
        yield from record.passes("copy", site, work, work)


def _windows_module(_torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return what puts the positions of an image into the order of its windows, or back."""
    height, side, shift = layer.integer("height"), layer.integer("side"), layer.integer("shift")
    sides = (height // side, side, inputs[0][0] // height // side, side)

    def ordered(image: Any) -> Any:
        image = image.roll((-shift, -shift), (1, 2)) if shift else image
        rows = image.unflatten(2, sides[2:]).unflatten(1, sides[:2]).transpose(2, 3)
        return rows.flatten(3).flatten(1, 2) if layer.attributes["merged"] else rows.flatten(1, 4)

    def back(sequence: Any) -> Any:
        rows = sequence.unflatten(1, (sides[0], sides[2], side, side)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return (rows.roll((shift, shift), (1, 2)) if shift else rows).flatten(1, 2)

    return back if layer.attributes["back"] else lambda sequence: ordered(sequence.unflatten(1, (height, -1)))


def _first_position(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Forward is a view; backward clears the gradient of the whole sequence and copies that of one position."""
    if site.has_gradient:
        moved_elements = site.input_elements + 2 * site.output_elements
        yield Call("copy", BACKWARD_DATA, traffic(site.input_elements, moved_elements))


def _embedding_module(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return the sum of the rows of a token, of its position, and of type 0; ``words`` is the table of tokens."""
    (positions,), features = inputs[0], layer.integer("features")

    class Embedding(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            rows = {key: layer.integer(key) for key in ("vocabulary", "positions", "types")}
            self.words = torch.nn.Embedding(rows["vocabulary"], features)
            self.positions = torch.nn.Embedding(rows["positions"], features) if rows["positions"] else None
            self.types = torch.nn.Embedding(rows["types"], features) if rows["types"] else None

        def forward(self, tokens: Any) -> Any:
            rows = self.words(tokens)
            if self.positions is not None:
                rows = rows + self.positions(torch.arange(positions, device=tokens.device))
            return rows if self.types is None else rows + self.types(torch.zeros_like(tokens))

    return Embedding()


def _root_norm_module(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return normalisation over features, or over the first of them, by the root of their mean square."""
    features = layer.integer("features") or inputs[0][-1]

    class RootNorm(torch.nn.RMSNorm):  # type: ignore[misc]  # imported as Any
        def forward(self, sequence: Any) -> Any:
            return super().forward(sequence if features == sequence.shape[-1] else sequence[..., :features])

    return RootNorm(features)


def _positions_module(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    """Return what takes some positions: a view of those that lie together, else a copy."""
    start, count = layer.integer("start"), layer.integer("count")
    if not layer.attributes["scattered"]:
        return lambda sequence: sequence[:, start : start + count]
    return lambda sequence: sequence.index_select(1, torch.arange(start, start + count, device=sequence.device))


def _class_token_module(torch: Any, _layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return patches in a row behind a learned token, with learned positions added."""
    features, height, width = inputs[0]

    class ClassToken(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            self.token = torch.nn.Parameter(torch.zeros(1, 1, features))
            self.positions = torch.nn.Parameter(torch.zeros(1, height * width + 1, features))

        def forward(self, patches: Any) -> Any:
            row = patches.flatten(2).transpose(1, 2)
            return torch.cat((self.token.expand(len(row), -1, -1), row), dim=1) + self.positions

    return ClassToken()


KINDS = {
    "embedding": LayerKind(
        {
            "vocabulary": Attribute("int", None, "rows of the table of tokens"),
            "features": Attribute("int", None, "features of a token"),
            "positions": Attribute("int", 0, "rows of the table that is added by position; 0: none", least=0),
            "types": Attribute("int", 0, "rows of the table that is added by type of token; 0: none", least=0),
        },
        _embedded,
        (1,),
        parameters=lambda layer, _shape: tuple(
            layer.integer("features") * rows for table in TABLES if (rows := layer.integer(table))
        ),
        calls=_embedding,
        kept_besides=_embedding_kept,
        computes="fp32",
        share=lambda _layer: Share("vocabulary", is_rounded_up=True),
        module=_embedding_module,
    ),
    "layer_norm": LayerKind(
        {"shift": Attribute("bool", default=True, doc="whether a shift is added", quiet=True)},
        ranks=(1, 2),
        parameters=lambda layer, shape: (shape[-1],) * (1 + bool(layer.attributes["shift"])),
        calls=_layer_norm,
        keeps=lambda _layer: (True, False),
        kept_besides=lambda site, _itemsize: STATISTICS_BYTES * (site.output_elements // site.output[-1]),
        computes="fp32 on gpu",
        module=lambda torch, layer, inputs: torch.nn.LayerNorm(inputs[0][-1], bias=bool(layer.attributes["shift"])),
    ),
    "rms_norm": LayerKind(
        {"features": Attribute("int", 0, "first features, which alone are passed on; 0: all", least=0)},
        _root_normed,
        (1, 2),
        parameters=lambda layer, shape: (layer.integer("features") or shape[-1],),
        calls=_layer_norm,
        keeps=lambda _layer: (True, False),
        kept_besides=lambda site, _itemsize: ROOT_BYTES * (site.output_elements // site.output[-1]),
        computes="fp32 on gpu",
        module=_root_norm_module,
    ),
    "positions": LayerKind(
        {
            "start": Attribute("int", 0, "first position that is passed on", least=0),
            "count": Attribute("int", None, "positions that are passed on"),
            "scattered": Attribute("bool", default=False, doc="whether they do not lie together, and are copied"),
        },
        _taken,
        (2,),
        calls=_take,
        module=_positions_module,
    ),
    "windows": LayerKind(
        {
            "height": Attribute("int", None, "rows of the image that the positions are of"),
            "side": Attribute("int", 7, "height and width of a window"),
            "shift": Attribute("int", 0, "rows and columns by which windows are shifted", least=0),
            "back": Attribute("bool", default=False, doc="whether positions come back into the order of the image"),
            "merged": Attribute("bool", default=False, doc="whether a window becomes one position with all features"),
        },
        _windowed,
        (2,),
        calls=_windows,
        module=_windows_module,
    ),
    "class_token": LayerKind(
        {},
        _with_class_token,
        (3,),
        parameters=lambda _layer, shape: (shape[0], shape[0] * (shape[1] * shape[2] + 1)),
        calls=_class_token,
        computes="fp32",
        module=_class_token_module,
    ),
    "first_position": LayerKind(
        {},
        lambda _layer, inputs: inputs[0][1:],
        (2,),
        calls=_first_position,
        is_view=True,
        module=lambda _torch, _layer, _inputs: lambda sequence: sequence[:, 0],
    ),
}


SCORE_BYTES = 4
"""Of a router's probability, which stays fp32."""


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
    routed = (*traffic(scores, 3 * scores), record.per_sample(positions))
    yield from record.passes("softmax", site, routed, routed)
    copy = traffic(rows * features, 2 * rows * features)
    yield from record.passes("copy", site, copy, copy)
    wide = (_matrices(layer) - 1) * inner
    for outer, read in ((wide, features), (features, inner)):
        yield from _products(site, outer, read, each)
    gated = (3, 5) if layer.attributes["fused"] else (5, 8)
    forward, backward = gated if layer.attributes["gated"] else (2, 3)
    inside = rows * inner
    yield from record.passes("activation", site, traffic(inside, forward * inside), traffic(inside, backward * inside))
    summed, sums = rows * features, positions * features
    yield from record.passes("add", site, traffic(sums, summed + sums), traffic(sums, 2 * summed + sums))


def _products(site: Site, outer: int, inner: int, rows: int) -> Iterator[Call]:
    batch = record.fixed(_held(site.layer))
    m, k, n = record.fixed(outer), record.fixed(inner), record.per_sample(rows)
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
    scores = positions * (SCORE_BYTES * layer.integer("experts") + TOKEN_BYTES * layer.integer("top_k"))
    return itemsize * rows * features + scores + rows * (2 * TOKEN_BYTES + itemsize)


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


KINDS |= {
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
