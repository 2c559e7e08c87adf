"""Layers of sequences: embeddings, attention, normalisation over features, the first position.

n: sub-batch [samples]; s: positions; h: features; a: heads, each of h/a features; V: rows of a table; E = n·s·h.

=================  ========================================  ==========================================
call               forward                                   backward
=================  ========================================  ==========================================
embedding          2E, 8-byte number of each token           V·h to clear, 3E to add rows, the numbers
... by position    2·s·h, once for all samples               E + V·h (a sum over samples)
sum of tables      3E each, an ``add``                       0
scores  Q·Kᵀ       a·n products (s x h/a)·(h/a x s)          two (s x s)·(s x h/a): of Q and of K
softmax            2·n·a·s²                                  3·n·a·s²
dropout            2·n·a·s², 1-byte mask                     the same
context  P·V       a·n products (s x s)·(s x h/a)            (s x h/a)·(h/a x s) of P, (s x s)·(s x h/a) of V
fused attention    a·n heads of s queries and s keys         the same, in place of the four rows above
=================  ========================================  ==========================================

The products of attention are batched, one a head and sample, and stand apart from those of linear layers. Scaling and
masking are part of the softmax kernel, as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053); heads are split and
joined without copies. Fused attention never writes the scores (FlashAttention, Dao et al. 2022, arXiv:2205.14135).
Attention reads queries, keys and values side by side: (positions, 3·features), each part split into heads.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.domain.kernels import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD
from planner.domain.layers.record import (
    INPUT,
    Attribute,
    Call,
    Layer,
    LayerKind,
    Lowering,
    Shape,
    Site,
    fixed,
    passes,
    per_sample,
    traffic,
)
from planner.errors import ParameterError

__all__ = ["KINDS"]

TOKEN_BYTES = 8
"""Of a token's number, as PyTorch keeps it."""
STATISTICS_BYTES = 8
"""Of a position that layer normalisation works on: mean and scale in fp32."""
LOG_SUM_BYTES = 4
"""Of a head and position: what fused attention keeps of its weights, the logarithm of the sum of exponentials."""
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
            cleared = layer.integer(table) * layer.integer("features")
            work = (per_sample(elements), (cleared, 3 * elements), per_sample(index_bytes))
            yield Call("embedding", FORWARD, traffic(elements, 2 * elements, index_bytes))
            yield Call("embedding", BACKWARD_WEIGHT, work)
    if layer.integer("positions"):
        table_elements = layer.integer("positions") * layer.integer("features")
        yield Call("embedding", FORWARD, (fixed(elements), fixed(2 * elements), fixed(index_bytes)))
        yield Call("embedding", BACKWARD_WEIGHT, (per_sample(elements), (table_elements, elements), fixed(0)))
    sums = sum(layer.integer(table) > 0 for table in ("positions", "types"))
    if sums:
        yield Call("add", FORWARD, traffic(elements, 3 * elements), fixed(sums))


def _embedding_kept(site: Site, itemsize: int) -> int:
    """Numbers of tokens, less what was counted for them as the network's input, and of their types."""
    return (TOKEN_BYTES * (2 if site.layer.integer("types") else 1) - itemsize) * site.input_elements


def _attended(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    (positions, features), heads = inputs[0], layer.integer("heads")
    if features % (3 * heads):
        rule = f"divisible by 3 x heads = {3 * heads}: queries, keys and values"
        raise ParameterError(f"layer {layer.name}: features in", rule, features)
    if layer.attributes["fused"] and layer.number("dropout"):
        rule = "0 where attention is fused, as PyTorch's fused kernel on CPUs drops none"
        raise ParameterError(f"layer {layer.name}: dropout", rule, layer.number("dropout"))
    return (positions, features // 3)


def _attention(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield scores, softmax, dropout and context; backward the gradients of queries, keys, values and weights."""
    heads, (positions, features) = site.layer.integer("heads"), site.output
    width, rows = features // heads, per_sample(heads * positions)
    if _is_fused(site.layer):
        sizes = (positions, positions, width, int(bool(site.layer.attributes["causal"])))
        work = (per_sample(heads), *map(fixed, sizes))
        yield from passes("attention", site, work, work)
        return
    scores = (fixed(positions), fixed(positions), fixed(width), per_sample(heads))
    context = (fixed(positions), fixed(width), fixed(positions), per_sample(heads))
    weights = _weights(site)
    yield Call("gemm", FORWARD, scores)
    yield Call("gemm", FORWARD, context)
    if site.has_gradient:
        yield Call("gemm", BACKWARD_DATA, scores)
        yield Call("gemm", BACKWARD_DATA, context, fixed(3))
    yield from passes("softmax", site, (*traffic(weights, 2 * weights), rows), (*traffic(weights, 3 * weights), rows))
    if site.layer.number("dropout"):
        dropped = traffic(weights, 2 * weights, weights)
        yield from passes("dropout", site, dropped, dropped)


def _is_fused(layer: Layer) -> bool:
    return bool(layer.attributes["fused"])


def _weights(site: Site) -> int:
    """Return how many weights attention computes per sample: one a head and pair of positions."""
    return site.layer.integer("heads") * site.output[0] ** 2


def _attention_kept(site: Site, itemsize: int) -> int:
    if _is_fused(site.layer):
        return LOG_SUM_BYTES * site.layer.integer("heads") * site.output[0]
    return _weights(site) * (2 * itemsize + 1 if site.layer.number("dropout") else itemsize)


def _layer_norm(site: Site, _lowering: Lowering) -> Iterator[Call]:
    elements = site.output_elements
    rows = per_sample(elements // site.output[-1])
    return passes(
        "layer_norm", site, (*traffic(elements, 2 * elements), rows), (*traffic(elements, 5 * elements), rows)
    )


def _first_position(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Forward is a view; backward clears the gradient of the whole sequence and copies that of one position."""
    if site.has_gradient:
        copied = site.input_elements + 2 * site.output_elements
        yield Call("copy", BACKWARD_DATA, traffic(site.input_elements, copied))


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
        parameters=lambda layer, _shape: layer.integer("features") * sum(layer.integer(table) for table in TABLES),
        tensors=lambda layer: sum(layer.integer(table) > 0 for table in TABLES),
        calls=_embedding,
        kept_besides=_embedding_kept,
        computes="fp32",
    ),
    "attention": LayerKind(
        {
            "heads": Attribute("int", None, "heads that the features are split into"),
            "causal": Attribute("bool", default=False, doc="whether later positions are masked"),
            "dropout": Attribute("float", 0.0, "fraction of the attention weights dropped"),
            "fused": Attribute("bool", default=False, doc="whether one kernel does it all, without weights in memory"),
        },
        _attended,
        (2,),
        calls=_attention,
        # 2·s²·h, whether or not a mask hides half of them, and whether or not a fused kernel leaves those out
        macs=lambda site: 2 * site.output_elements * site.output[0],
        multiplies_weights=False,
        keeps=lambda layer: (True, _is_fused(layer)),
        kept_besides=_attention_kept,
        # those of the weights before and behind the softmax; fused, of queries, keys and values before they are joined
        inside=lambda site: site.input_elements if _is_fused(site.layer) else 2 * _weights(site),
        computes="16 bits",
    ),
    "layer_norm": LayerKind(
        ranks=(1, 2),
        parameters=lambda _layer, shape: 2 * shape[-1],
        calls=_layer_norm,
        keeps=lambda _layer: (True, False),
        kept_besides=lambda site, _itemsize: STATISTICS_BYTES * (site.output_elements // site.output[-1]),
        computes="fp32 on gpu",
    ),
    "first_position": LayerKind({}, lambda _layer, inputs: inputs[0][1:], (2,), calls=_first_position, is_view=True),
}
