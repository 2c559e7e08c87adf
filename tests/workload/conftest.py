"""Transformers in numbers and as networks, their memory, and the calls of one layer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from planner.catalog import find_network
from planner.domain.configuration import Configurations
from planner.domain.framework import GENERIC, Framework
from planner.domain.kernels import KernelCalls
from planner.domain.network import Network
from planner.domain.split import SplitMemoryBytes
from planner.workload.calls import lower
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from tests.workload.closed_transformer import Latent, Transformer


def gpt(layers: int, hidden: int, heads: int, *, vocabulary: int = 51200) -> Transformer:
    return Transformer(
        "gpt", layers, hidden, heads, heads, hidden // heads, 4 * hidden, 2048, vocabulary, positions=2048, dropout=0.1
    )


def llama(layers: int, hidden: int, heads: tuple[int, int], ffn: int, vocabulary: int = 32000) -> Transformer:
    return Transformer(
        "llama", layers, hidden, *heads, hidden // heads[0], ffn, 4096, vocabulary,
        gated=True, activation="silu", norm="rms", tied=False, biases=False, fused=True, rotary=True,
    )  # fmt: skip


GPT_1T = gpt(128, 25600, 160)
LLAMA_7B = llama(32, 4096, (32, 32), 11008)
LLAMA3_8B = llama(32, 4096, (32, 8), 14336, 128256)
LLAMA3_70B = llama(80, 8192, (64, 8), 28672, 128256)
MIXTRAL = replace(
    llama(32, 4096, (32, 8), 14336), family="moe", experts=8, top_k=2, expert_ffn=14336,
)  # fmt: skip
DEEPSEEK = replace(
    llama(27, 2048, (16, 16), 10944, 102400), family="moe", experts=64, top_k=6, expert_ffn=1408, shared_ffn=2816,
    dense_layers=1, latent=Latent(512, 128, 64, 128),
)  # fmt: skip
T5 = Transformer(
    "t5", 12, 768, 12, 12, 64, 3072, 512, 32128, activation="relu", norm="scale", biases=False, dropout=0.1, buckets=32,
    encoder_layers=12, encoder_sequence=512,
)  # fmt: skip
VIT = Transformer(
    "vit", 12, 768, 12, 12, 64, 3072, 197, 0, positions=197, patch=768, causal=False, head="classes", classes=1000,
    head_bias=True, dropout=0.1,
)  # fmt: skip
EVERY = {
    "gpt": gpt(6, 768, 12), "llama": LLAMA_7B, "llama3-70b": LLAMA3_70B, "mixtral": MIXTRAL, "deepseek": DEEPSEEK,
    "t5": T5, "vit": VIT,
}  # fmt: skip


NAMES = {
    "gpt": "gpt:layers=6,hidden=768,heads=12,sequence=2048,vocabulary=51200", "llama": "llama-7b:sequence=4096",
    "llama3-70b": "llama3-70b:sequence=4096", "mixtral": "mixtral-8x7b:sequence=4096",
    "deepseek": "deepseek-v2-lite:sequence=4096", "t5": "t5", "vit": "vit-b16",
}  # fmt: skip
"""Networks of EVERY, as a user types them."""


@cache
def gpt_network(layers: int, hidden: int, heads: int, vocabulary: int = 51200) -> Network:
    return find_network(f"gpt:layers={layers},hidden={hidden},heads={heads},sequence=2048,vocabulary={vocabulary}")


@cache
def network_of(name: str) -> Network:
    return find_network(NAMES.get(name, name))


def ledger(network: Network | str, framework: Framework = GENERIC, /, precision: str = "bf16", **rules: Any) -> Memory:
    """Return the memory of a network, with Adam; ``rules``: what differs from those of the framework."""
    of = MemoryRules.of(precision, "adam", framework)
    return Memory(network_of(network) if isinstance(network, str) else network, replace(of, **rules))


def memory_bytes(
    network: Network,
    sub_batch: Any,
    precision: str,
    optimizer: str,
    kind: str,
    **how: Any,
) -> SplitMemoryBytes:
    """Return the memory of a network on one device."""
    rules = MemoryRules.of(precision, optimizer, device_kind=kind, **how)
    return Memory(network, rules).fullest(Configurations.having(sub_batch=np.asarray(sub_batch)))


SAMPLES = 3
Rows = list[tuple[int, ...]]


def rows_of(network: Network, layer: str, samples: int = SAMPLES) -> dict[tuple[str, str], Rows]:
    """Return count and work of every call that a layer makes, by kind and direction."""
    position = [one.name for one in network.layers].index(layer)
    return {
        (call.kind, call.direction): rows
        for call in lower(network, np.array([samples]), merged=False)
        if (rows := [row for at, row in rows_by_layer(call) if at == position])
    }


def rows_by_layer(call: KernelCalls) -> list[tuple[int, tuple[int, ...]]]:
    columns = [np.broadcast_to(column, (1, call.layer.size))[0] for column in (call.count, *call.work.values())]
    return [(int(at), tuple(int(column[k]) for column in columns)) for k, at in enumerate(call.layer)]
