"""Arguments that families of transformers share: sizes, sequence, kernels of attention; and their published sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.domain.network import Network
from planner.networks.zoo.entry import Argument, ZooEntry

__all__ = ["ATTENTION", "preset", "sequence", "sizes"]

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
