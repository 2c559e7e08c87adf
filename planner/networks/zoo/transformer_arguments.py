"""Arguments and sizes that families of transformers share; networks of published sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from planner.domain.network import Network
from planner.networks.zoo.entry import Argument, ZooEntry

__all__ = ["ATTENTION", "Latent", "Sizes", "preset", "sequence", "sizes"]

ATTENTION = {"attention": Argument(("fused", "unfused"), "kernels of attention; fused: one")}
_SIZES = {
    "layers": ("transformer layers", 9999),
    "hidden": ("features of a position", 999_999),
    "heads": ("heads of attention", 9999),
    "head_size": ("features of a head; its default is rounded down", 9999),
    "ffn": ("features inside the feed-forward part", 9_999_999),
    "vocabulary": ("tokens told apart", 9_999_999),
}
"""Argument -> what it is, and the most that it takes."""


class Latent(NamedTuple):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): features of what keys and values are made of.

    ``plain``, ``rotary``: of a head's queries and keys, without and with positions; ``value``: of a head's values.
    """

    rank: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the layers of a transformer; what its family does not have is 0."""

    layers: int
    hidden: int
    heads: int
    head_size: int
    ffn: int
    sequence: int
    vocabulary: int = 0
    kv_heads: int = 0
    fused: bool = False
    tied: bool = False
    encoder_sequence: int = 0
    classes: int = 0
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    capacity: float = 0.0
    dense_layers: int = 0
    latent: Latent | None = None

    @property
    def query_width(self) -> int:
        """Features of the queries of all heads."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Features of all keys, and of all values."""
        return self.kv_heads * self.head_size


def sizes(**defaults: object) -> dict[str, Argument]:
    """Return arguments for sizes, in order, with these defaults, which may be in words."""
    return {
        name: Argument((str(value),), _SIZES[name][0], counts=True, most=_SIZES[name][1])
        for name, value in defaults.items()
    }


def sequence(positions: int) -> dict[str, Argument]:
    """Return the argument for positions, with its default."""
    return {"sequence": Argument((str(positions),), "positions of a sample", counts=True, most=999_999)}


def preset(
    make: Callable[[str, Mapping[str, str]], Network], arguments: Mapping[str, Argument], **values: object
) -> ZooEntry:
    """Return a published network, which has these values of arguments and still takes ``arguments``."""
    fixed = {name: str(value) for name, value in values.items()}
    return ZooEntry(lambda name, others: make(name, {**fixed, **others}), arguments)
