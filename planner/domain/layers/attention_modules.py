"""PyTorch modules of attention and of what stands before it.

Attention is made as it is lowered: of batched products, a softmax and dropout, or of one fused kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from planner.domain.layers.record import Layer, Shape

__all__ = ["attention", "cross_attention", "fused_attention", "grouped_attention", "is_plain", "latent", "rotary"]

BASE = 10_000.0
"""Of the wavelengths of rotary positions; no time depends on it."""


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
            context = _attended(torch, layer, split, self.added(joined.dtype), training=self.training)
            return context.transpose(1, 2).flatten(2).unflatten(0, (-1, windows)).flatten(1, 2)

    return Grouped()


def cross_attention(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return attention of queries to keys and values of another sequence, which stand side by side."""
    width = inputs[0][1] // layer.integer("heads")

    class Cross(torch.nn.Module):  # type: ignore[misc]  # imported as Any
        def forward(self, queries: Any, both: Any) -> Any:
            parts = (queries, *both.chunk(2, dim=-1))
            split = [part.unflatten(-1, (-1, width)).transpose(1, 2) for part in parts]
            return _attended(torch, layer, split, None, training=self.training).transpose(1, 2).flatten(2)

    return Cross()


def _attended(torch: Any, layer: Layer, split: list[Any], added: Any, *, training: bool) -> Any:
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
