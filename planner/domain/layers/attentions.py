"""Attention: scores, softmax, dropout and context, and what stands before them.

n: sub-batch [samples]; a heads of d features, κ of keys and values; q queries, s keys; W = n·a·q·s weights, of a
context rank's queries s as :func:`ring_keys` has it.

=================  ========================================  ==========================================
call               forward                                   backward
=================  ========================================  ==========================================
copy (κ < a)       keys and values once a head               the same
scores  Q·Kᵀ       a·n products (q x d)·(d x s)              (q x s)·(s x d) of Q, (s x q)·(q x d) of K
bias               3W, an ``add``; the bias once             W where it is learned
softmax            2W                                        3W
dropout            2W, 1-byte mask                           the same
context  P·V       a·n products (q x s)·(s x d)              (q x d)·(d x s) of P, (s x q)·(q x d) of V
fused attention    a·n heads of q queries and s keys         the same, in place of the rows above
rotary             2E; 2E of a normalisation before          the same; 5E
=================  ========================================  ==========================================

The products of attention are batched, one a head and sample, and stand apart from those of linear layers. Scaling and
masking are part of the softmax kernel, as in Megatron-LM (Shoeybi et al. 2019, arXiv:1909.08053); heads are split and
joined without copies. Fused attention never writes the scores (FlashAttention, Dao et al. 2022, arXiv:2205.14135), nor
does it repeat keys and values; where values are narrower than keys, its width is the mean of both.

``attention`` reads queries, keys and values side by side, (positions, (a + 2κ)·d), each part split into heads;
``cross_attention`` queries of one sequence, and keys and values of another. ``latent`` makes the former of what
multi-head latent attention compresses (DeepSeek-V2, arXiv:2405.04434).

Modules of PyTorch are made as they are lowered: of batched products, a softmax and dropout, or of one fused kernel.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from planner.domain.arrays import FloatArray
from planner.domain.kernels import BACKWARD_DATA, FORWARD
from planner.domain.layers import record
from planner.domain.layers.record import Attribute, Call, Layer, LayerKind, Lowering, Shape, Share, Site, traffic
from planner.errors import ParameterError

_Count = TypeVar("_Count", int, FloatArray)
BASE = 10_000.0
"""Of the wavelengths of rotary positions; no time depends on it."""
ROOT_BYTES = 4
"""Of a head that is normalised by its root mean square: its scale in fp32."""
LOG_SUM_BYTES = 4
"""Of a head and position: what fused attention keeps of its weights, the logarithm of the sum of exponentials."""


def ring_keys(keys: _Count, queries: _Count) -> _Count:
    """Return how many keys a context rank computes causal weights of for each query, where no kernel skips hidden ones.

    Each of c = keys / queries ranks has an early and a late part of the positions, and takes the keys of one rank at a
    time. Of its own it computes all weights. Of an earlier rank's all queries see the early keys and none the late
    ones; a later rank's are seen by the late queries alone: half of the weights each, as Megatron-LM deals positions
    out (MODEL 10.8). With q queries that is q·(1 + (c - 1)/2) keys; all of them for one rank.
    """
    return (keys + queries) // 2


def aligned_head_size(head_size: _Count, multiple: int = 8) -> _Count:
    """Return the features of a head as fused attention computes them, rounded up to a multiple of 8.

    FlashAttention-2 pads queries, keys and values so (Dao 2023, arXiv:2307.08691, its interface), and PyTorch's kernels
    do; 16-byte loads of 2-byte elements ask for it.

    >>> aligned_head_size(100), aligned_head_size(128)
    (104, 128)
    """
    return -(-head_size // multiple) * multiple


class Core(NamedTuple):
    """Sizes of one sample's attention; every window has heads of its own.

    Heads, positions of queries and of keys, features of a key and of a value; ``visible``: keys of which weights are
    computed, for each query.
    """

    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    values: int
    visible: int

    @property
    def weights(self) -> int:
        """One a head and pair of positions that is computed."""
        return self.heads * self.queries * self.visible

    @property
    def repeated(self) -> int:
        """Elements of keys and values that stand once a head, where heads share them."""
        return self.heads * self.keys * (self.width + self.values) if self.kv_heads < self.heads else 0


def _attended(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    positions, features = inputs[0]
    heads, kv_heads = layer.integer("heads"), layer.integer("kv_heads") or layer.integer("heads")
    what = f"layer {layer.name}: features in"
    if heads % kv_heads:
        raise ParameterError(f"layer {layer.name}: kv_heads", f"a divisor of heads = {heads}", kv_heads)
    if layer.integer("value_size"):
        rest = features - kv_heads * layer.integer("value_size")
        if rest < 1 or rest % (heads + kv_heads):
            rule = f"those of values and a multiple of heads + kv_heads = {heads + kv_heads}: queries and keys"
            raise ParameterError(what, rule, features)
    elif features % (heads + 2 * kv_heads):
        parts = "3 x heads" if kv_heads == heads else "heads + 2 x kv_heads"
        rule = f"divisible by {parts} = {heads + 2 * kv_heads}: queries, keys and values"
        raise ParameterError(what, rule, features)
    if positions % layer.integer("windows") or (layer.integer("windows") > 1 and layer.integer("keys")):
        rule = f"1, or a divisor of the {positions} positions, all of which a rank has"
        raise ParameterError(f"layer {layer.name}: windows", rule, layer.integer("windows"))
    _check_fused(layer)
    return (positions, heads * core_of(layer, positions, features).values)


def _crossed(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    heads = layer.integer("heads")
    what = f"layer {layer.name}"
    if len(inputs) != 2:
        raise ParameterError(f"{what}: inputs", "two: queries, and keys and values side by side", len(inputs))
    (positions, features), (_, both) = inputs
    if features % heads:
        raise ParameterError(f"{what}: features of queries", f"divisible by heads = {heads}", features)
    if both != 2 * features:
        raise ParameterError(f"{what}: features of keys and values", f"2 x {features}, those of queries", both)
    _check_fused(layer)
    return (positions, features)


def _check_fused(layer: Layer) -> None:
    if layer.attributes["fused"] and layer.number("dropout"):
        rule = "0 where attention is fused, as PyTorch's fused kernel on CPUs drops none"
        raise ParameterError(f"layer {layer.name}: dropout", rule, layer.number("dropout"))


def core_of(layer: Layer, positions: int, features: int) -> Core:
    """Return the sizes of a layer of attention that reads so many positions of so many features."""
    heads = layer.integer("heads")
    kv_heads = layer.integer("kv_heads") or heads
    values = layer.integer("value_size") or features // (heads + 2 * kv_heads)
    width, windows = (features - kv_heads * values) // (heads + kv_heads), layer.integer("windows")
    positions //= windows
    keys = layer.integer("keys") or positions
    visible = ring_keys(keys, positions) if layer.attributes["causal"] else keys
    return Core(windows * heads, windows * kv_heads, positions, keys, width, values, visible)


def _core(site: Site) -> Core:
    if site.layer.kind == "attention":
        return core_of(site.layer, *site.inputs[0])
    (queries, features), (keys, _) = site.inputs
    heads, keys = site.layer.integer("heads"), site.layer.integer("keys") or keys
    return Core(heads, heads, queries, keys, features // heads, features // heads, keys)


def _attention(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield scores, softmax, dropout and context; backward the gradients of queries, keys, values and weights."""
    core = _core(site)
    rows = record.per_sample(core.heads * core.queries)
    if _is_fused(site.layer):
        # Positions that see keys of others are dealt out so that each rank has as many pairs of a query and a key:
        # behind a causal mask half of them.
        is_causal, is_part = bool(site.layer.attributes["causal"]), core.keys > core.queries
        keys = -(-core.keys // 2) if is_causal and is_part else core.keys
        sizes = core.queries, keys, aligned_head_size((core.width + core.values) // 2), int(is_causal and not is_part)
        work = (record.per_sample(core.heads), *map(record.fixed, sizes))
        yield from record.passes("attention", site, work, work)
        return
    yield from _repeats(site, core)
    yield from _products(site, core)
    yield from _biased(site, core)
    weights = core.weights
    yield from record.passes(
        "softmax", site, (*traffic(weights, 2 * weights), rows), (*traffic(weights, 3 * weights), rows)
    )
    if site.layer.number("dropout"):
        dropped = traffic(weights, 2 * weights, weights)
        yield from record.passes("dropout", site, dropped, dropped)


def _products(site: Site, core: Core) -> Iterator[Call]:
    def product(rows: int, columns: int, inner: int) -> tuple[tuple[int, int], ...]:
        return (record.fixed(rows), record.fixed(columns), record.fixed(inner), record.per_sample(core.heads))

    queries, keys, width, values = core.queries, core.visible, core.width, core.values
    yield Call("gemm", FORWARD, product(queries, keys, width))
    yield Call("gemm", FORWARD, product(queries, values, keys))
    if site.has_gradient:
        yield Call("gemm", BACKWARD_DATA, product(queries, keys, values))
        others = (product(queries, width, keys), product(keys, width, queries), product(keys, values, queries))
        for work, count in Counter(others).items():
            yield Call("gemm", BACKWARD_DATA, work, record.fixed(count))


def _repeats(site: Site, core: Core) -> Iterator[Call]:
    if core.repeated:
        read = core.repeated // core.heads * core.kv_heads
        work = traffic(core.repeated, core.repeated + read)
        yield from record.passes("copy", site, work, work)


def _biased(site: Site, core: Core) -> Iterator[Call]:
    """Yield the sum of scores and a bias that all samples share, and of the gradients of a bias that is learned."""
    bias = str(site.layer.attributes.get("bias", "none"))
    if bias != "none":
        weights, of_all = record.per_sample(core.weights), core.weights // site.layer.integer("windows")
        yield Call("add", FORWARD, (weights, (of_all, 2 * of_all), record.fixed(0)))
        if bias == "learned" and site.trained:
            yield Call("add", BACKWARD_DATA, (weights, (of_all, of_all), record.fixed(0)))


def _is_fused(layer: Layer) -> bool:
    return bool(layer.attributes["fused"])


def _kept(site: Site, itemsize: int) -> int:
    core = _core(site)
    if _is_fused(site.layer):
        return LOG_SUM_BYTES * core.heads * core.queries
    apart = core.repeated + core.heads * core.queries * core.width if core.repeated else 0
    return _kept_weights(site, itemsize) + itemsize * apart


def _kept_weights(site: Site, itemsize: int) -> int:
    """Return the bytes of attention weights; with dropout of their mask and what is left, too."""
    if _is_fused(site.layer):
        return 0
    return _core(site).weights * (2 * itemsize + 1 if site.layer.number("dropout") else itemsize)


def _keeps(layer: Layer) -> tuple[bool, bool]:
    """Where keys and values are repeated, these and the queries are kept, not what they were joined in."""
    kv_heads = layer.attributes.get("kv_heads") or layer.integer("heads")
    return _is_fused(layer) or kv_heads == layer.integer("heads"), _is_fused(layer)


def _macs(site: Site) -> int:
    """Of all pairs, whether or not a mask hides half of them, and whether or not a fused kernel leaves those out."""
    core = _core(site)
    return core.heads * core.queries * core.keys * (core.width + core.values)


def _inside(site: Site) -> int:
    """Those of the weights before and behind the softmax; fused, of queries, keys and values before they are joined."""
    return site.input_elements if _is_fused(site.layer) else 2 * _core(site).weights


def _rotated(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    if layer.integer("features") % (layer.integer("norm") or 1):
        rule = f"a divisor of features = {layer.integer('features')}"
        raise ParameterError(f"layer {layer.name}: norm", rule, layer.integer("norm"))
    if inputs[0][-1] < layer.integer("features"):
        raise ParameterError(f"layer {layer.name}: features", f"at most the {inputs[0][-1]} it reads", inputs[0][-1])
    return inputs[0]


def _rotary(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield the normalisation of every head of queries and keys, where there is one, and the rotation."""
    rotated = site.inputs[0][0] * site.layer.integer("features")
    if site.layer.integer("norm"):
        rows = record.per_sample(rotated // site.layer.integer("norm"))
        normed = (*traffic(rotated, 2 * rotated), rows), (*traffic(rotated, 5 * rotated), rows)
        yield from record.passes("layer_norm", site, *normed)
    work = traffic(rotated, 2 * rotated)
    yield from record.passes("activation", site, work, work)


def _rotary_kept(site: Site, _itemsize: int) -> int:
    norm = site.layer.integer("norm")
    return ROOT_BYTES * site.inputs[0][0] * site.layer.integer("features") // norm if norm else 0


def _latent_sizes(layer: Layer) -> tuple[int, int, int, int]:
    """Return heads, and features of a head's plain and rotary part and of its values."""
    heads, plain, rotary, value = (layer.integer(key) for key in ("heads", "plain", "rotary", "value"))
    return heads, plain, rotary, value


def _latent_joined(layer: Layer, inputs: tuple[Shape, ...]) -> Shape:
    heads, plain, rotary, value = _latent_sizes(layer)
    if len(inputs) != 3:
        raise ParameterError(f"layer {layer.name}: inputs", "three: queries, compressed, keys and values", len(inputs))
    wanted = (heads * (plain + rotary), inputs[1][-1], heads * (plain + value))
    features = tuple(shape[-1] for shape in inputs)
    if features != wanted or inputs[1][-1] < rotary:
        raise ParameterError(f"layer {layer.name}: features in", f"{wanted}, of heads and their parts", features)
    return (inputs[0][0], heads * (2 * (plain + rotary) + value))


def _latent(site: Site, _lowering: Lowering) -> Iterator[Call]:
    """Yield the rotation of a head's part of queries, and of the part of keys that heads share; and the joining."""
    heads, _, rotary, _ = _latent_sizes(site.layer)
    rotated = site.output[0] * (heads + 1) * rotary
    work = traffic(rotated, 2 * rotated)
    yield from record.passes("activation", site, work, work)
    joined = traffic(site.output_elements, 2 * site.output_elements)
    yield from record.passes("concat", site, joined, joined)


def attention(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return softmax(Q·Kᵀ/√d)·V a head, of queries, keys and values that stand side by side."""
    if not is_plain(layer):
        return grouped_attention(torch, layer, inputs)
    (positions, features), heads = inputs[0], layer.integer("heads")
    if layer.attributes["fused"]:
        return fused_attention(torch, positions, heads, causal=bool(layer.attributes["causal"]))
    width, rate = features // (3 * heads), layer.number("dropout")

    class Attention(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            mask = torch.full((positions, positions), -math.inf).triu(1) if layer.attributes["causal"] else None
            self.register_buffer("mask", mask)

        def forward(self, joined: Any) -> Any:
            parts = joined.view(-1, positions, 3, heads, width).permute(2, 0, 3, 1, 4)
            scores = (parts[0] / math.sqrt(width)) @ parts[1].transpose(-2, -1)
            weights = torch.softmax(scores if self.mask is None else scores + self.mask, dim=-1)
            if rate:
                weights = torch.nn.functional.dropout(weights, rate, self.training)
            return (weights @ parts[2]).transpose(1, 2).reshape(-1, positions, heads * width)

    return Attention()


def fused_attention(torch: Any, positions: int, heads: int, *, causal: bool) -> Callable[[Any], Any]:
    """Return the same in one kernel where the device has one, on views of queries, keys and values."""

    def attend(joined: Any) -> Any:
        query, key, value = joined.view(-1, positions, 3, heads, joined.shape[-1] // (3 * heads)).unbind(2)
        split = (query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        context = torch.nn.functional.scaled_dot_product_attention(*split, is_causal=causal)
        return context.transpose(1, 2).reshape(-1, positions, joined.shape[-1] // 3)

    return attend


def is_plain(layer: Layer) -> bool:
    """Tell whether all heads have keys of their own, as wide as values, of all positions, and no bias is added."""
    is_grouped = layer.integer("kv_heads") not in (0, layer.integer("heads"))
    is_whole = layer.integer("windows") == 1 and layer.attributes["bias"] == "none"
    return not is_grouped and not layer.integer("value_size") and is_whole


def grouped_attention(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return attention of queries, keys and values side by side, whatever their heads, widths and bias."""
    (positions, features), heads, windows = inputs[0], layer.integer("heads"), layer.integer("windows")
    positions, kv_heads = positions // windows, layer.integer("kv_heads") or heads
    values = layer.integer("value_size") or features // (heads + 2 * kv_heads)
    width = (features - kv_heads * values) // (heads + kv_heads)
    sizes = (heads * width, kv_heads * width, kv_heads * values)

    class Grouped(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            buckets = layer.integer("buckets")
            self.table = torch.nn.Embedding(buckets, heads) if buckets else None
            apart = torch.arange(positions)[:, None] - torch.arange(positions)
            self.register_buffer("bucket", apart.abs().clamp(max=buckets - 1) if buckets else None)
            has_bias = layer.attributes["bias"] != "none" and not buckets
            self.register_buffer("bias", -apart.abs().float().expand(heads, -1, -1) if has_bias else None)
            is_masked = layer.attributes["causal"] and (not layer.attributes["fused"] or has_bias or buckets)
            self.register_buffer(
                "mask", torch.full_like(apart, -math.inf, dtype=torch.float32).triu(1) if is_masked else None
            )

        def added(self, dtype: Any) -> Any:
            """Return what is added to scores, or None."""
            bias = self.bias if self.table is None else self.table(self.bucket).permute(2, 0, 1)
            terms = [term.to(dtype) for term in (bias, self.mask) if term is not None]
            return sum(terms[1:], terms[0]) if terms else None

        def forward(self, joined: Any) -> Any:
            parts = joined.unflatten(1, (windows, positions)).flatten(0, 1).split(sizes, dim=-1)
            split = [
                part.unflatten(-1, (-1, one)).transpose(1, 2)
                for part, one in zip(parts, (width, width, values), strict=True)
            ]
            context = _context(torch, layer, split, self.added(joined.dtype), training=self.training)
            return context.transpose(1, 2).flatten(2).unflatten(0, (-1, windows)).flatten(1, 2)

    return Grouped()


def cross_attention(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return attention of queries to keys and values of another sequence, which stand side by side."""
    width = inputs[0][1] // layer.integer("heads")

    class Cross(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def forward(self, queries: Any, both: Any) -> Any:
            parts = (queries, *both.chunk(2, dim=-1))
            split = [part.unflatten(-1, (-1, width)).transpose(1, 2) for part in parts]
            return _context(torch, layer, split, None, training=self.training).transpose(1, 2).flatten(2)

    return Cross()


def _context(torch: Any, layer: Layer, split: list[Any], added: Any, *, training: bool) -> Any:
    query, key, value = split
    is_grouped = key.shape[1] < query.shape[1]
    if layer.attributes["fused"]:
        is_causal = bool(layer.attributes["causal"]) and added is None
        fused = torch.nn.functional.scaled_dot_product_attention
        return fused(query, key, value, attn_mask=added, is_causal=is_causal, enable_gqa=is_grouped)
    if is_grouped:
        key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for part in (key, value))
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
    weights = torch.softmax(scores if added is None else scores + added, dim=-1)
    if layer.number("dropout"):
        weights = torch.nn.functional.dropout(weights, layer.number("dropout"), training)
    return weights @ value


def latent(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return queries, keys and values side by side, of latent attention; what heads share of keys is copied to each."""
    plain, rotated, value = (layer.integer(key) for key in ("plain", "rotary", "value"))
    positions, half = inputs[0][0], rotated // 2

    class Latent(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            angles = torch.outer(torch.arange(positions), torch.arange(half) + 1.0)[:, None]
            self.register_buffer("cosine", angles.cos())
            self.register_buffer("sine", angles.sin())

        def turned(self, part: Any) -> Any:
            first, second, rest = part.split((half, half, rotated - 2 * half), dim=-1)
            cosine, sine = self.cosine.to(part.dtype), self.sine.to(part.dtype)
            return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1)

        def forward(self, queries: Any, compressed: Any, both: Any) -> Any:
            query, query_turned = queries.unflatten(-1, (-1, plain + rotated)).split((plain, rotated), dim=-1)
            key, values = both.unflatten(-1, (-1, plain + value)).split((plain, value), dim=-1)
            shared = self.turned(compressed[..., None, -rotated:]).expand(-1, -1, key.shape[2], -1)
            parts = (torch.cat((query, self.turned(query_turned)), -1), torch.cat((key, shared), -1), values)
            return torch.cat([part.flatten(2) for part in parts], dim=-1)

    return Latent()


def rotary(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return the rotation of pairs of the first features by their position; pairs are apart by half of the features."""
    positions, half, norm = inputs[0][0], layer.integer("features") // 2, layer.integer("norm")

    class Rotary(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(norm) for _ in range(2 if norm else 0))
            angles = torch.outer(torch.arange(positions), BASE ** -(torch.arange(half) / max(half, 1)))
            self.register_buffer("cosine", angles.cos())
            self.register_buffer("sine", angles.sin())

        def forward(self, joined: Any) -> Any:
            if norm:  # how many heads are keys is not known here: half of them, which takes as many kernels and bytes
                heads = joined[..., : 2 * half].unflatten(-1, (-1, norm)).chunk(2, dim=-2)
                normed = [one(part).flatten(-2) for one, part in zip(self.norms, heads, strict=False)]
                joined = torch.cat((*normed, joined[..., 2 * half :]), dim=-1)
            first, second, rest = joined.split((half, half, joined.shape[-1] - 2 * half), dim=-1)
            cosine, sine = self.cosine.to(joined.dtype), self.sine.to(joined.dtype)
            turned = (first * cosine - second * sine, second * cosine + first * sine)
            return torch.cat((*turned, rest), dim=-1)

    return Rotary()


_COMMON = {
    "heads": Attribute("int", None, "heads that the features are split into"),
    "causal": Attribute("bool", default=False, doc="whether later positions are masked"),
    "dropout": Attribute("float", 0.0, "fraction of the attention weights dropped"),
    "fused": Attribute("bool", default=False, doc="whether one kernel does it all, without weights in memory"),
    "keys": Attribute("int", 0, "positions of keys, with those of other ranks; 0: those it reads", least=0, quiet=True),
}
_CROSS = LayerKind(
    _COMMON, _crossed, (2,), joins=True, calls=_attention, macs=_macs, multiplies_weights=False, keeps=_keeps,
    kept_besides=_kept, repeated=_kept_weights, inside=_inside, computes="16 bits",
    share=lambda _layer: Share("heads"), module=cross_attention,
)  # fmt: skip
KINDS = {
    "attention": replace(
        _CROSS,
        attributes=_COMMON
        | {
            "kv_heads": Attribute("int", 0, "heads of keys and values; 0: as many as heads", least=0, quiet=True),
            "value_size": Attribute("int", 0, "features of a head's values; 0: as its keys", least=0, quiet=True),
            "bias": Attribute("none|fixed|learned", "none", "what is added to scores by position", quiet=True),
            "windows": Attribute("int", 1, "equal parts of the positions, each of which attends to itself", quiet=True),
            "buckets": Attribute("int", 0, "rows of a table of biases that is here, one a head", least=0, quiet=True),
        },
        output=_attended,
        joins=False,
        parameters=lambda layer, _shape: (
            (layer.integer("buckets") * layer.integer("heads"),) if layer.integer("buckets") else ()
        ),
        module=attention,
    ),
    "cross_attention": _CROSS,
    "rotary": LayerKind(
        {
            "features": Attribute("int", None, "features that are rotated by position: those of queries and keys"),
            "norm": Attribute(
                "int", 0, "features of a head, normalised by their root mean square before; 0: none are", 0, quiet=True
            ),
        },
        _rotated,
        (2,),
        parameters=lambda layer, _shape: (layer.integer("norm"),) * 2 if layer.integer("norm") else (),
        calls=_rotary,
        keeps=lambda layer: (layer.integer("norm") > 0, False),
        kept_besides=_rotary_kept,
        module=rotary,
    ),
    "latent": LayerKind(
        {
            "heads": Attribute("int", None, "heads of attention"),
            "plain": Attribute("int", None, "features of a head's queries and keys without positions"),
            "rotary": Attribute("int", None, "features of a head's queries and keys with rotary positions"),
            "value": Attribute("int", None, "features of a head's values"),
        },
        _latent_joined,
        (2,),
        joins=True,
        calls=_latent,
        module=latent,
        share=lambda _layer: Share("heads"),
    ),
}
