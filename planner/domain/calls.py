"""Calls of a network's layers, whatever the sub-batch: what is timed at two sub-batches and looked up at all others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.domain.arrays import frozen_map
from planner.domain.kernels import COSTLY_ACTIVATIONS, LINEAR_BIAS, OF_LAYERS, SERVED_BY
from planner.domain.network import LAYER_KINDS, Layer

__all__ = ["LOOKED_UP", "LayerCall", "kind_of_kernel", "work_named"]

LOOKED_UP = "calls.measured"
"""Term of entries that look calls up by name."""
_COMPLETE_KINDS = ("convolution", "linear")
"""Kinds of layers of whose products the work says all but whether they add a bias."""


def kind_of_kernel(kind: str, layer: Layer) -> str:
    """Return the kind of kernel of a layer's call: some calls of a kind have one of their own."""
    if layer.kind in OF_LAYERS and kind == SERVED_BY[OF_LAYERS[layer.kind]]:
        return OF_LAYERS[layer.kind]
    if kind == "activation":
        return COSTLY_ACTIVATIONS.get(str(layer.attributes.get("function", "")), kind)
    return LINEAR_BIAS if (kind, layer.kind) == ("bias", "linear") else kind


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A kernel call that a layer makes, with work a + b·n for a sub-batch of n samples.

    Attributes
    ----------
    work : mapping of work column to (a, b)
    layer : one that makes the call
    inputs : shapes per sample that the layer reads
    optimizer : of an update; empty for any other call
    tensors : that an update changes, 0 for any other call
    count : how often a step makes the call
    wide : mapping of "cpu" or "gpu" to tuple of bool, whether each input of the layer, and last its output, stays fp32
        there in mixed precision of 16 bits; empty: none does. Not part of the name: a call that a network makes both
        ways is as most often
    """

    kind: str
    direction: str
    work: Mapping[str, tuple[int, int]]
    layer: Layer
    inputs: tuple[tuple[int, ...], ...]
    optimizer: str = ""
    tensors: int = 0
    count: int = 1
    wide: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "work", frozen_map(self.work))
        object.__setattr__(self, "wide", frozen_map(self.wide))

    def at(self, sub_batch: int) -> dict[str, int]:
        """Return the work columns of a sub-batch."""
        return {column: base + slope * sub_batch for column, (base, slope) in self.work.items()}

    @property
    def depends_on_sub_batch(self) -> bool:
        """Whether any of its work does."""
        return any(slope for _, slope in self.work.values())

    @property
    def name(self) -> str:
        """What tells calls of a kind and direction apart: work, and of what work does not say all, the layer."""
        work = " ".join(f"{column}={_amount(*amount)}" for column, amount in self.work.items())
        return f"{work} {self._variant}".strip()

    @property
    def _variant(self) -> str:
        if self.optimizer:
            return f"{self.optimizer} tensors={self.tensors}"
        if self.layer.kind in _COMPLETE_KINDS:
            return "bias" if self.layer.attributes["bias"] else ""
        shapes = " ".join("x".join(map(str, shape)) for shape in self.inputs)
        attributes = " ".join(
            f"{key}={value}" for key, value in sorted(self.layer.attributes.items()) if self._says(key)
        )
        return " ".join(filter(None, (self.layer.kind, shapes, attributes)))

    def _says(self, key: str) -> bool:
        declared = LAYER_KINDS[self.layer.kind].attributes[key]
        return not declared.quiet or self.layer.attributes[key] != declared.default


def _amount(base: int, slope: int) -> str:
    if not slope:
        return str(base)
    return f"{base}+{slope}n" if base else f"{slope}n"


_AMOUNT = re.compile(r"(\w+)=(?:(\d+)\+)?(\d+)(n?)")


def work_named(name: str) -> dict[str, tuple[int, int]]:
    """Return the amounts a + b·n that the name of a :class:`LayerCall` states, as (a, b), its work first."""
    amounts: dict[str, tuple[int, int]] = {}
    for part in filter(None, map(_AMOUNT.fullmatch, name.split())):
        column, base, amount, of_samples = part.groups()
        amounts.setdefault(column, (int(base or 0), int(amount)) if of_samples else (int(base or 0) + int(amount), 0))
    return amounts
