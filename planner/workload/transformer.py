"""Counts of a transformer in closed form: parameters, FLOP, and the sizes that frameworks round.

L layers, h hidden, a heads of d_h, κ key/value heads, f inside the feed-forward part, s positions, V tokens, b samples;
E experts of f_e, k a token, f_s shared; r, d_n, d_r, d_v of latent attention. All counts are whole numbers of Python,
which do not overflow.

================  ==============================================================================================
a layer           parameters
================  ==============================================================================================
attention         h·(2a + 2κ)·d_h; latent h·a(d_n+d_r) + h(r+d_r) + r + r·a(d_n+d_v) + a·d_v·h
cross attention   4h·a·d_h
feed-forward      2hf, gated 3hf; with experts h·E + 3h(E·f_e + f_s)
biases            (a + 2κ)·d_h + f by columns, 2h by rows
normalisation     h each, 2h with a shift
================  ==============================================================================================

Forward FLOP, two a multiply-add of products: 2bs a weight of the layer that a token meets, and 4bs²·a·d_h of scores and
context (latent: 2bs²·a(d_n+d_r+d_v)). Training takes three times as many. Where pairs that a causal mask hides are left
out, scores and context take half of that, as Megatron-LM counts since 2024 (NVIDIA/Megatron-LM at d98e8a64,
num_floating_point_operations), without the half pair a position that it sees of itself; Narayanan et al. 2021,
arXiv:2104.04473, and Chowdhery et al. 2022, arXiv:2204.02311, count all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.transformer import Transformer
from planner.workload.units import StageLayers, even_layers

__all__ = [
    "DENSE", "ENCODER", "EXPERTS", "LayerParameters", "OuterParameters",
    "blocks", "forward_flop", "layer_forward_flop", "layer_parameters", "outer_parameters", "padded_vocabulary",
    "parameters", "recomputed_flop", "stage_blocks", "training_flop",
]  # fmt: skip

_Count = TypeVar("_Count", int, IntArray)

ENCODER, DENSE, EXPERTS = "encoder", "dense", "experts"
"""Kinds of layers: of an encoder that a decoder attends to; with one feed-forward part; with experts."""


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one layer, by how tensor and expert parallelism treat them.

    Attributes
    ----------
    products : int
        Weights of attention and of the feed-forward part all tokens pass: split over tensor ranks.
    column_biases : int
        Behind products that are split by columns: split.
    row_biases : int
        Behind products that are split by rows: whole on each rank.
    norms : int
        Whole, the norm inside latent attention with them.
    compression : int
        Weights that make the latent keys and values, whole.
    router : int
        Whole.
    experts : int
        Of all experts: split over expert ranks, each expert over its tensor ranks.
    """

    products: int
    column_biases: int = 0
    row_biases: int = 0
    norms: int = 0
    compression: int = 0
    router: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        """Of the layer."""
        whole = self.row_biases + self.norms + self.compression + self.router
        return self.products + self.column_biases + whole + self.experts


@dataclass(frozen=True, slots=True)
class OuterParameters:
    """Parameters outside the layers.

    Attributes
    ----------
    tokens : int
        Table of tokens, V·h: split over tensor ranks.
    positions : int
        Other tables that are added to it: positions, types; of an image the weights of patches and the class token.
    norms : int
        Behind the last layer or the embedding.
    buckets : int
        Tables of relative positions, one a stack.
    head : int
        Weights of the logits where they are not the table of tokens: split.
    head_besides : int
        What else the head has: layers before the last one, and biases.
    """

    tokens: int
    positions: int
    norms: int
    buckets: int
    head: int
    head_besides: int

    @property
    def total(self) -> int:
        """Outside the layers."""
        return self.tokens + self.positions + self.norms + self.buckets + self.head + self.head_besides


def blocks(of: Transformer) -> tuple[tuple[str, int], ...]:
    """Return kinds of layers in their order, each with how many there are; none that is not there."""
    dense = of.layers - of.expert_layers
    return tuple(
        (kind, count)
        for kind, count in ((ENCODER, of.encoder_layers), (DENSE, dense), (EXPERTS, of.expert_layers))
        if count
    )


def stage_blocks(
    of: Transformer, pipeline: IntArray, stage: IntArray, layers: StageLayers | None = None
) -> tuple[tuple[str, FloatArray], ...]:
    """Return kinds of layers and how many of them a stage has; ``layers`` None: they are dealt out evenly."""
    kinds = blocks(of)
    first, end, _ = layers or even_layers(sum(count for _, count in kinds), pipeline, stage)
    result, before = [], 0
    for kind, count in kinds:
        inside = np.minimum(end, before + count) - np.maximum(first, before)
        result.append((kind, np.maximum(inside, 0.0)))
        before += count
    return tuple(result)


def layer_parameters(of: Transformer, block: str = DENSE) -> LayerParameters:
    """Return the parameters of one layer of a kind."""
    h = of.hidden
    crosses = bool(of.encoder_layers) and block != ENCODER
    compression = h * (of.latent.rank + of.latent.rotary) if of.latent else 0
    inner = of.shared_ffn if block == EXPERTS else of.ffn
    products = _attention_weights(of) - compression + crosses * _cross_weights(of) + _matrices(of) * h * inner
    return LayerParameters(
        products,
        column_biases=(of.query_width + 2 * of.kv_width + of.ffn) * of.biases,
        row_biases=2 * h * of.biases,
        norms=_norm_parameters(of) * (2 + crosses) + (of.latent.rank if of.latent else 0),
        compression=compression,
        router=h * of.experts * (block == EXPERTS),
        experts=_expert_parameters(of) * of.experts * (block == EXPERTS),
    )


def outer_parameters(of: Transformer) -> OuterParameters:
    """Return the parameters outside the layers."""
    h = of.hidden
    image = of.patch * h + 2 * h if of.patch else 0  # weights and biases of patches, the class token
    stacks = 1 + bool(of.encoder_layers)
    last, before = _head_parameters(of)
    return OuterParameters(
        tokens=of.vocabulary * h,
        positions=(of.positions + of.types) * h + image,
        norms=_norm_parameters(of) * stacks,
        buckets=of.buckets * of.heads * stacks,
        head=last,
        head_besides=before,
    )


def parameters(of: Transformer) -> int:
    """Return the trained parameters, without padding."""
    return outer_parameters(of).total + sum(count * layer_parameters(of, block).total for block, count in blocks(of))


def layer_forward_flop(of: Transformer, block: str = DENSE, *, masked: bool = True) -> int:
    """Return the FLOP of products of one layer of a kind, forward, a sample.

    ``masked``: whether pairs of positions that a causal mask hides are counted.
    """
    encodes = block == ENCODER
    s = of.encoder_sequence if encodes else of.sequence
    feed_forward = _matrices(of) * of.hidden * of.ffn
    if block == EXPERTS:
        feed_forward = of.hidden * of.experts + _expert_parameters(of) * of.top_k
        feed_forward += _matrices(of) * of.hidden * of.shared_ffn
    flop = 2 * s * (_attention_weights(of) + feed_forward) + _layer_core_flop(of, block, masked=masked)
    if of.encoder_layers and not encodes:
        flop += 4 * (s + of.encoder_sequence) * of.hidden * of.query_width
    return flop


def _layer_core_flop(of: Transformer, block: str, *, masked: bool) -> int:
    """Return the FLOP of scores and context of one layer of a kind, forward, a sample."""
    encodes = block == ENCODER
    s = of.encoder_sequence if encodes else of.sequence
    crossed = 4 * s * of.encoder_sequence * of.query_width if of.encoder_layers and not encodes else 0
    return _core_flop(of, s, masked or encodes or not of.causal) + crossed


def forward_flop(of: Transformer, samples: int = 1, *, masked: bool = True) -> int:
    """Return the FLOP of products, forward; ``masked``: see :func:`layer_forward_flop`.

    With padded tokens, give the architecture with a padded vocabulary.
    """
    patches = 2 * (of.sequence - 1) * of.patch * of.hidden
    layers = sum(count * layer_forward_flop(of, block, masked=masked) for block, count in blocks(of))
    return samples * (patches + layers + _head_flop(of))


def training_flop(of: Transformer, samples: int = 1, *, masked: bool = True) -> int:
    """Return model FLOP of a training step: three times forward, nothing made again, no exception for the first."""
    return 3 * forward_flop(of, samples, masked=masked)


def recomputed_flop(
    of: Transformer,
    recompute: str,
    samples: int = 1,
    *,
    masked: bool = True,
    layers: Sequence[tuple[str, int]] | None = None,
) -> int:
    """Return the FLOP of products that a backward pass makes again: of ``full`` layers, of ``selective`` attention.

    Fused attention keeps nothing that selective recompute could make again. ``layers``: kinds of those that are
    computed again, each with how many there are; None: all.
    """
    flop = 0
    for block, count in blocks(of) if layers is None else layers:
        if recompute == "full":
            flop += count * layer_forward_flop(of, block, masked=masked)
        elif recompute == "selective" and not of.fused:
            flop += count * _layer_core_flop(of, block, masked=masked)
    return samples * flop


def padded_vocabulary(vocabulary: int, tensor: _Count, multiple: int = 128) -> _Count:
    """Return V rounded up to a multiple of 128 a tensor rank, as Megatron-LM pads the table of tokens by default.

    >>> padded_vocabulary(50257, 1), padded_vocabulary(50257, 8), padded_vocabulary(128256, 8)
    (50304, 51200, 129024)
    """
    unit = multiple * tensor
    return -(-vocabulary // unit) * unit


def _matrices(of: Transformer) -> int:
    return 3 if of.gated else 2


def _norm_parameters(of: Transformer) -> int:
    return of.hidden * (2 if of.norm == "layer" else 1)


def _expert_parameters(of: Transformer) -> int:
    return _matrices(of) * of.hidden * of.expert_ffn


def _attention_weights(of: Transformer) -> int:
    """Return the weights of a layer's own attention that multiply something."""
    h, a = of.hidden, of.heads
    if of.latent is None:
        return 2 * h * (of.query_width + of.kv_width)
    latent = of.latent
    up = latent.rank * a * (latent.plain + latent.value)
    return h * a * (latent.plain + latent.rotary) + h * (latent.rank + latent.rotary) + up + a * latent.value * h


def _cross_weights(of: Transformer) -> int:
    return 4 * of.hidden * of.query_width


def _core_flop(of: Transformer, s: int, whole: bool) -> int:  # noqa: FBT001 - one of two counts
    """Return the FLOP of scores and context of s positions, of all pairs or of half of them."""
    widths = 2 * of.head_size
    if of.latent is not None:
        widths = of.latent.plain + of.latent.rotary + of.latent.value
    return s * s * (2 if whole else 1) * of.heads * widths


def _head_parameters(of: Transformer) -> tuple[int, int]:
    """Return weights of the last layer that are its own, and what else the head has."""
    h = of.hidden
    pooler, transform = h * h + h, h * h + h + _norm_parameters(of)
    logits = 0 if of.tied else of.vocabulary * h
    bias = of.vocabulary if of.head_bias else 0
    own = {
        "tokens": (logits, bias),
        "masked": (logits, transform + bias),
        "pretraining": (logits, transform + bias + pooler + (h + 1) * of.classes),
        "pooler": (0, pooler),
    }
    return own.get(of.head, (0, of.classes * (h + of.head_bias)))


def _head_flop(of: Transformer) -> int:
    """Return the FLOP of the head, a sample."""
    h, computed = of.hidden, of.predictions or of.sequence
    logits, pooler, first = 2 * computed * h * of.vocabulary, 2 * h * h, 2 * h * of.classes
    masked = logits + 2 * computed * h * h
    return {
        "tokens": logits,
        "masked": masked,
        "labels": of.sequence * first,
        "classes": first,
        "pooler": pooler,
        "pretraining": masked + pooler + first,
    }[of.head]
