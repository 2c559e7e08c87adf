"""PyTorch modules that tests read as networks; a file as a user has one."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions, and one around them."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)
        self.around = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, image: Any) -> Any:  # noqa: D102 - as of every module
        inner = functional.relu(self.first_norm(self.first(image)), inplace=True)
        return functional.relu(self.second_norm(self.second(inner)) + self.around(image))


class Attention(nn.Module):
    """Queries, keys and values of layers of their own, with fewer heads of keys, rotated or not."""

    def __init__(self, features: int, heads: int, kv_heads: int, *, bias: bool, rotates: bool, is_fused: bool) -> None:
        super().__init__()
        self.width, self.is_fused, self.rotates = features // heads, is_fused, rotates
        self.q = nn.Linear(features, features, bias=bias)
        self.k, self.v = (nn.Linear(features, kv_heads * self.width, bias=bias) for _ in range(2))
        self.o = nn.Linear(features, features, bias=bias)
        self.repeats = heads // kv_heads

    def turned(self, heads: Any) -> Any:  # noqa: D102 - as of every module
        angles = torch.outer(torch.arange(heads.shape[-2]).float(), torch.ones(self.width))
        first, second = heads.chunk(2, dim=-1)
        return heads * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()

    def forward(self, sequence: Any) -> Any:  # noqa: D102 - as of every module
        batch, positions, features = sequence.shape
        query, key, value = (
            one(sequence).view(batch, positions, -1, self.width).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        if self.rotates:
            query, key = self.turned(query), self.turned(key)
        key, value = (part.repeat_interleave(self.repeats, dim=1) for part in (key, value))
        if self.is_fused:
            context = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            hidden = torch.ones(positions, positions, dtype=torch.bool).triu(1)
            scores = (query @ key.transpose(-2, -1) / self.width**0.5).masked_fill(hidden, float("-inf"))
            context = scores.softmax(dim=-1) @ value
        return self.o(context.transpose(1, 2).reshape(batch, positions, features))


class RootNorm(nn.Module):
    """Normalisation by the root mean square, of primitives."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, sequence: Any) -> Any:  # noqa: D102 - as of every module
        wide = sequence.float()
        return self.scale * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(sequence.dtype)


class Gated(nn.Module):
    """A gated feed-forward part."""

    def __init__(self, features: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(features, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, features, bias=False)

    def forward(self, sequence: Any) -> Any:  # noqa: D102 - as of every module
        return self.down(functional.silu(self.gate(sequence)) * self.up(sequence))


class Decoder(nn.Module):
    """A decoder as of Llama: tokens in, logits out."""

    def __init__(self, layers: int = 3, *, is_fused: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(500, 64)
        self.norms = nn.ModuleList(RootNorm(64) for _ in range(2 * layers + 1))
        how = {"bias": False, "rotates": True, "is_fused": is_fused}
        self.attentions = nn.ModuleList(Attention(64, 4, 2, **how) for _ in range(layers))
        self.parts = nn.ModuleList(Gated(64, 176) for _ in range(layers))
        self.logits = nn.Linear(64, 500, bias=False)

    def forward(self, tokens: Any) -> Any:  # noqa: D102 - as of every module
        top = self.table(tokens)
        for at, (attention, part) in enumerate(zip(self.attentions, self.parts, strict=True)):
            top = top + attention(self.norms[2 * at](top))
            top = top + part(self.norms[2 * at + 1](top))
        return self.logits(self.norms[-1](top))


class Gpt(nn.Module):
    """A decoder as of GPT, its table tied, its GELU of primitives."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(500, 64), nn.Embedding(64, 64)
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(5))
        how = {"bias": True, "rotates": False, "is_fused": False}
        self.attentions = nn.ModuleList(Attention(64, 4, 4, **how) for _ in range(2))
        self.wide = nn.ModuleList(nn.Linear(64, 256) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(256, 64) for _ in range(2))
        self.logits = nn.Linear(64, 500, bias=False)
        self.logits.weight = self.table.weight

    def forward(self, tokens: Any) -> Any:  # noqa: D102 - as of every module
        top = functional.dropout(self.table(tokens) + self.places(torch.arange(tokens.shape[1])), 0.1, self.training)
        for at in range(2):
            top = top + self.attentions[at](self.norms[2 * at](top))
            inner = self.wide[at](self.norms[2 * at + 1](top))
            inner = 0.5 * inner * (1 + torch.tanh(0.8 * (inner + 0.045 * inner**3)))
            top = top + functional.dropout(self.narrow[at](inner), 0.1, self.training)
        return self.logits(self.norms[-1](top))


class OfData(nn.Module):
    """A module whose way depends on values."""

    def forward(self, values: Any) -> Any:  # noqa: D102 - as of every module
        return values if values.sum() > 0 else -values


class OfUnknown(nn.Module):
    """A module with an operator that is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, values: Any) -> Any:  # noqa: D102 - as of every module
        return torch.linalg.qr(self.linear(values).view(-1, 4, 2))[0]


def resnet() -> nn.Module:
    stem = (nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    blocks = (Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000))


def decoder() -> tuple[nn.Module, Any]:
    return Decoder(), torch.zeros(2, 64, dtype=torch.int64)


def unfused() -> nn.Module:
    return Decoder(is_fused=False)


def gpt() -> nn.Module:
    return Gpt()


def of_data() -> nn.Module:
    return OfData()


def of_unknown() -> nn.Module:
    return OfUnknown()


def needs_weights() -> Any:
    return torch.load("weights.pt")


def no_module() -> int:
    return 3


class Adapted(nn.Module):
    """A frozen linear layer, and beside it two of a low rank that are trained, as PEFT writes them."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, sequence: Any) -> Any:  # noqa: D102 - as of every module
        return self.base(sequence) + self.up(self.down(sequence)) * 2.0


class Again(nn.Module):
    """One block that is run several times, with the same parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)

    def forward(self, sequence: Any) -> Any:  # noqa: D102 - as of every module
        for _ in range(3):
            sequence = self.block(sequence)
        return sequence


class OfNodes(nn.Module):
    """Two graph convolutions, which read what nodes are and which of them are neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, nodes: Any, neighbours: Any) -> Any:  # noqa: D102 - as of every module
        return self.second(neighbours @ functional.relu(self.first(neighbours @ nodes)))


class Steps(nn.Module):
    """A recurrent layer, one step a position, and a linear layer over all."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.top = nn.LSTM(32, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, sequence: Any) -> Any:  # noqa: D102 - as of every module
        return self.top(self.steps(sequence)[0])


def adapted() -> tuple[nn.Module, Any]:
    """Return a decoder whose queries and values have adapters and of which nothing else is trained."""
    model = Decoder().requires_grad_(requires_grad=False)
    for one in model.modules():
        if isinstance(one, Attention):
            for name in ("q", "v"):
                setattr(one, name, Adapted(getattr(one, name)))
    return model, (torch.zeros(2, 64, dtype=torch.int64),)


def again() -> tuple[nn.Module, Any]:
    return Again(), (torch.zeros(2, 20, 64),)


def encoder() -> tuple[nn.Module, Any]:
    """Return blocks with norms behind sums, the first of which reads the input."""
    block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(block, 4, enable_nested_tensor=False), (torch.zeros(2, 20, 64),)


def both_sides() -> tuple[nn.Module, Any]:
    model = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
    return model, {"src": torch.zeros(2, 20, 64), "tgt": torch.zeros(2, 12, 64)}


def of_nodes() -> tuple[nn.Module, Any]:
    return OfNodes(), (torch.zeros(2, 50, 16), torch.zeros(2, 50, 50))


def steps() -> tuple[nn.Module, Any]:
    return Steps(), (torch.zeros(2, 200, 32),)


def samples_second() -> tuple[nn.Module, Any]:
    """Return a module whose samples are on the second axis."""
    return nn.TransformerEncoderLayer(64, 4, 128), (torch.zeros(20, 3, 64),)


def prints_and_leaves() -> None:
    sys.stdout.write("hello\n")
    sys.exit(7)
