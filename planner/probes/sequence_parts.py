"""PyTorch modules of the layers that work on sequences: embedding, attention, layer normalisation.

Attention is made as it is lowered: of batched products, a softmax and dropout, or of one fused kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from planner.domain.network import Layer
from planner.domain.shapes import Shape

__all__ = ["attention", "embedding", "first_position", "fused_attention", "layer_norm"]


def embedding(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
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


def attention(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return softmax(Q·Kᵀ/√d)·V a head, of queries, keys and values that stand side by side."""
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


def layer_norm(torch: Any, _layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    """Return normalisation over features."""
    return torch.nn.LayerNorm(inputs[0][-1])


def first_position(_torch: Any, _layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    """Return what takes the features of the first position."""
    return lambda sequence: sequence[:, 0]
