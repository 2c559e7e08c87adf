"""PyTorch modules, each of one function between two linear layers, or of a block in primitives: what they keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

FEATURES, INNER, HEADS = 32, 64, 4
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(functional, name) for name in (
        "relu", "gelu", "silu", "mish", "softplus", "elu", "celu", "leaky_relu", "hardtanh", "relu6", "hardswish",
        "hardsigmoid", "relu_",
    )},
    **{name: getattr(torch, name) for name in (
        "tanh", "sigmoid", "exp", "sqrt", "rsqrt", "reciprocal", "log", "erf", "sin", "cos", "abs", "neg", "square",
    )},
    "twice": lambda x: 2 * x,
    "shifted": lambda x: x - 0.5,
    "squared": lambda x: x * x,
    "gated": lambda x: x * torch.sigmoid(x.roll(1, -1)),
    "quotient": lambda x: x / (1 + x.exp()),
    "inverse": lambda x: 1 / (2 + x.tanh()),
    "clamped": lambda x: x.clamp(-1, 1),
    "larger": lambda x: torch.maximum(x, -x),
    "softmax": lambda x: x.softmax(-1),
    "centred": lambda x: x - x.mean(-1, keepdim=True),
    "hidden": lambda x: x.masked_fill(torch.ones(x.shape[1:], dtype=torch.bool, device=x.device).triu(1), -1e9),
    "gelu_of_tanh": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3))),
    "gelu_of_erf": lambda x: 0.5 * x * (1 + torch.erf(x / 1.414)),
    "silu_of_sigmoid": lambda x: x * torch.sigmoid(x),
    "halves": lambda x: torch.cat([part.tanh() for part in x.chunk(2, -1)], -1),
    "copied": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2).exp(),
    "row_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "root_norm": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "scores": lambda x: (x @ x.transpose(1, 2)) @ x,
    "added_in_place": lambda x: x.add_(1).tanh(),
}  # fmt: skip
"""Of positions and features."""


class OfFunction(nn.Module):
    """A function between two linear layers."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function, self.first, self.second = function, nn.Linear(FEATURES, 24), nn.Linear(24, 10)

    def forward(self, sequence: Any) -> Any:  # noqa: D102 - as of every module
        return self.second(self.function(self.first(sequence)))


class RootNorm(nn.Module):
    """Normalisation by the root mean square, of primitives, with a scale."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, sequence: Any) -> Any:  # noqa: D102 - as of every module
        return self.scale * (sequence * torch.rsqrt(sequence.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    """Attention of products and a softmax, its keys repeated for several heads, normalised and rotated where told."""

    def __init__(self, kv_heads: int, *, rotates: bool = False, norms: bool = False, is_joined: bool = False) -> None:
        super().__init__()
        self.width, self.rotates = FEATURES // HEADS, rotates
        self.sizes = [heads * self.width for heads in (HEADS, kv_heads, kv_heads)]
        parts = [sum(self.sizes)] if is_joined else self.sizes
        self.parts = nn.ModuleList(nn.Linear(FEATURES, part, bias=is_joined) for part in parts)
        self.norms = nn.ModuleList(RootNorm(self.width) if norms else nn.Identity() for _ in range(2))
        self.out = nn.Linear(FEATURES, FEATURES, bias=is_joined)

    def turned(self, heads: Any) -> Any:  # noqa: D102 - as of every module
        angles = torch.outer(torch.arange(heads.shape[-2]).float(), torch.ones(self.width)).to(heads.device)
        first, second = heads.chunk(2, dim=-1)
        return heads * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()

    def forward(self, sequence: Any) -> Any:  # noqa: D102 - as of every module
        joined = torch.cat([part(sequence) for part in self.parts], -1) if len(self.parts) < 2 else None
        parts = [one(sequence) for one in self.parts] if joined is None else torch.split(joined, self.sizes, -1)
        query, key, value = (part.unflatten(-1, (-1, self.width)).transpose(1, 2) for part in parts)
        query, key = (norm(part) for norm, part in zip(self.norms, (query, key), strict=True))
        if self.rotates:
            query, key = self.turned(query), self.turned(key)
        key, value = (part.repeat_interleave(HEADS // part.shape[1], dim=1) for part in (key, value))
        hidden = torch.ones(*[len(sequence[0])] * 2, dtype=torch.bool, device=sequence.device).triu(1)
        scores = (query @ key.transpose(-2, -1) / self.width**0.5).masked_fill(hidden, float("-inf"))
        return self.out((scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))


class Part(nn.Module):
    """A feed-forward part: with a gate or without, its function of primitives or not."""

    def __init__(self, function: str, *, is_gated: bool) -> None:
        super().__init__()
        self.function = FUNCTIONS[function]
        self.wide = nn.ModuleList(nn.Linear(FEATURES, INNER, bias=not is_gated) for _ in range(1 + is_gated))
        self.narrow = nn.Linear(INNER, FEATURES, bias=not is_gated)

    def forward(self, sequence: Any) -> Any:  # noqa: D102 - as of every module
        gate, *values = (one(sequence) for one in self.wide)
        inner = self.function(gate)
        return self.narrow(inner * values[0] if values else inner)


class Decoder(nn.Module):
    """Two blocks between a table and logits."""

    def __init__(self, norm: Callable[[int], nn.Module], function: str, kv_heads: int, **how: Any) -> None:
        super().__init__()
        is_gated, self.table = how.pop("is_gated", False), nn.Embedding(100, FEATURES)
        self.norms = nn.ModuleList(norm(FEATURES) for _ in range(5))
        self.attentions = nn.ModuleList(Attention(kv_heads, **how) for _ in range(2))
        self.parts = nn.ModuleList(Part(function, is_gated=is_gated) for _ in range(2))
        self.logits = nn.Linear(FEATURES, 100, bias=False)

    def forward(self, tokens: Any) -> Any:  # noqa: D102 - as of every module
        top = self.table(tokens)
        for at, (attention, part) in enumerate(zip(self.attentions, self.parts, strict=True)):
            top = top + attention(self.norms[2 * at](top))
            top = top + part(self.norms[2 * at + 1](top))
        return self.logits(self.norms[-1](top))


DECODERS: dict[str, Callable[[], nn.Module]] = {
    "as_gpt2": lambda: Decoder(nn.LayerNorm, "gelu_of_tanh", HEADS, is_joined=True),
    "as_opt": lambda: Decoder(nn.LayerNorm, "relu", HEADS),
    "as_llama": lambda: Decoder(RootNorm, "silu", 2, rotates=True, is_gated=True),
    "as_qwen3": lambda: Decoder(RootNorm, "silu", 2, rotates=True, norms=True, is_gated=True),
    "as_gemma": lambda: Decoder(RootNorm, "gelu_of_tanh", 1, rotates=True, is_gated=True),
    "as_t5": lambda: Decoder(RootNorm, "relu", HEADS),
}
"""Of tokens."""


def __getattr__(name: str) -> Callable[[], nn.Module]:
    """Return the factory of a function's module, or of a decoder."""
    if name in FUNCTIONS:
        return lambda: OfFunction(FUNCTIONS[name])
    if name in DECODERS:
        return DECODERS[name]
    raise AttributeError(name)
