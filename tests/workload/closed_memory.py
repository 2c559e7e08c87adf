"""Closed forms of a rank of a split transformer, as oracles: parameters by stage, and bytes kept of one layer.

n = b·s/c positions of a rank, n_s = n/t where tensor ranks share positions between products (sequence parallelism),
else n; e bytes an element; h, a, d_h, κ, f, s, E, k, f_e as in :mod:`tests.workload.closed_transformer`. Masks: 1 byte.

=======================================  =====================================================================
tensor                                   bytes
=======================================  =====================================================================
inputs of norms, of products by columns  e·4n_s·h
queries, context                         e·2n·a·d_h/t
keys, values                             e·2n·κ·d_h/max(t, κ): no less than one head
attention weights, not fused             e·n·s·a/t; with dropout (2e + 1)·n·s·a/t: mask and what is left, too; of
                                         causal ones behind context ranks s is (s + s/c)/2
row statistics of fused attention        4n·a/t
masks of dropout behind the two parts    2n_s·h
inside the feed-forward part             e·2n·f/t; ReLU in place e·n·f/t; gated and fused e·3n·f/t, else e·4n·f/t
dropout there (T5)                       (e + 1)·n·f/t: mask and what is left
statistics of RMS norms                  8n_s
experts                                  e·u·k·(n·h + 3n·f_e/t) + e·k·n_s·h + 8n_s·E
=======================================  =====================================================================

In 2-byte precisions with LayerNorm, GELU and f = 4h that is n·h(34 + 5a·s/h), and n·h(10 + 24/t + 5a·s/(h·t)) split:
Korthikanti et al. 2022, arXiv:2205.05198. The statistics of LayerNorm, 16n_s, are not in it. Experts keep the rows they
are given, what is inside of them, their output for the weighted sum, and fp32 logits and probabilities of the router; u
is the imbalance. Moving rows keeps positions alone, and what was sent is no longer needed.

Tensor ranks split products, biases of columns, tables of tokens and logits (Shoeybi et al. 2019, arXiv:1909.08053,
section 3); norms, biases of rows, routers and what compresses latent keys are whole on each. Where there are more
tensor ranks than heads of keys, some have the same head. Experts lie on x·t ranks. The first stages hold one layer more
where layers do not divide; tables stand on the first stage, norm and head on the last, which has a copy of a tied table
of tokens where it is not the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.configuration import Configurations
from planner.domain.layers.attentions import ring_keys
from planner.domain.split import StageLayers
from planner.workload.shards import padded_vocabulary
from tests.workload.closed_transformer import (
    DENSE,
    ENCODER,
    EXPERTS,
    Transformer,
    layer_parameters,
    outer_parameters,
    stage_blocks,
)

__all__ = ["LayerBytes", "RankParameters", "layer_bytes", "positions", "stage_parameters"]


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes of one layer and micro-batch on one rank, each of shape (n,).

    Attributes
    ----------
    scores : of attention weights that are not fused; what selective recompute makes again
    others : of all else
    input : of the layer's input, all that full recompute keeps
    gradients : of activations, the most that the backward pass of the layer has at one time
    """

    scores: FloatArray
    others: FloatArray
    input: FloatArray
    gradients: FloatArray

    @property
    def total(self) -> FloatArray:
        """Without recompute."""
        return self.scores + self.others


def positions(of: Transformer, plans: Configurations, *, encoder: bool = False) -> tuple[FloatArray, FloatArray]:
    """Return n, positions of a rank and micro-batch, and n_s, those between the products."""
    sequence = float(of.encoder_sequence if encoder else of.sequence)
    n = plans.sub_batch * sequence / plans.context_parallel
    return n, np.where(plans.sequence_parallel > 0, n / plans.tensor_parallel, n)


def layer_bytes(
    of: Transformer,
    plans: Configurations,
    kind: str = DENSE,
    itemsize: int = 2,
    *,
    fused_activation: bool = True,
    imbalance: float = 1.0,
) -> LayerBytes:
    """Return the bytes of one layer of a kind.

    Parameters
    ----------
    of : Transformer
    plans : Configurations
        Recompute, stages and sharding are not looked at.
    kind : {"dense", "experts", "encoder"}
    itemsize : int
        e, bytes of an activation.
    fused_activation : bool
        Whether a gated part keeps both products and what leaves it, but not the activation between.
    imbalance : float
        u, rows of the fullest rank's experts over their mean.

    Returns
    -------
    LayerBytes
    """
    e, h, t = float(itemsize), float(of.hidden), plans.tensor_parallel.astype(np.float64)
    n, n_s = positions(of, plans, encoder=kind == ENCODER)
    crosses = bool(of.encoder_layers) and kind != ENCODER
    keys = np.float64(of.encoder_sequence if kind == ENCODER else of.sequence)
    is_causal = of.causal and kind != ENCODER
    visible = ring_keys(np.full(n.shape, keys), keys / plans.context_parallel) if is_causal else keys
    encoder_keys = of.encoder_sequence if crosses else 0
    inside = n / t * _kept_inside(of, e, fused_activation=fused_activation)
    parts = 3 if crosses else 2
    others = parts * n_s * h * (2 * e + (of.dropout > 0)) + _attention(of, n, n, t, e)
    others = others + inside * (of.shared_ffn if kind == EXPERTS else of.ffn) + 4 * parts * n_s * (of.norm == "rms")
    widest = e * n / t * (3 if of.gated else 2) * (of.shared_ffn if kind == EXPERTS else of.ffn)
    if kind == EXPERTS:
        rows = imbalance * of.top_k * (of.capacity or 1.0)
        routed = e * rows * h * n + rows * inside * of.expert_ffn
        others = others + routed + e * of.top_k * n_s * h + 8 * n_s * of.experts
        widest = np.maximum(widest, rows * e * n / t * (3 if of.gated else 2) * of.expert_ffn)
    if crosses:
        n_e, _ = positions(of, plans, encoder=True)
        others = others + _attention(of, n, n_e, t, e)
    pairs = n * (visible + encoder_keys) * of.heads / t * (not of.fused)
    scores = pairs * (2 * e + 1 if of.dropout else e)
    features = 2 * n * (of.query_width + of.kv_width) / t
    return LayerBytes(scores, others, e * n_s * h, e * n_s * h + np.maximum(widest, e * (features + 2 * pairs)))


def _kept_inside(of: Transformer, e: float, *, fused_activation: bool) -> float:
    """Return the bytes that a feed-forward part keeps of each position and feature of its inner width."""
    if of.gated:
        return e * (3 if fused_activation else 4)
    dropped = (e + 1) * (of.family == "t5" and of.dropout > 0)
    return e * (1 if of.activation == "relu" else 2) + dropped


def _attention(of: Transformer, n: FloatArray, n_keys: FloatArray, t: FloatArray, e: float) -> FloatArray:
    """Return the bytes of queries, keys, values and context of a rank's heads, and of fused attention's statistics."""
    statistics = 4 * n * of.heads / t * of.fused
    if of.latent is not None:
        latent, heads = of.latent, of.heads / t
        compressed = n_keys * (2 * latent.rank + latent.rotary)  # before and behind its norm, and rotary keys
        wide = latent.plain + latent.rotary
        return statistics + e * (compressed + heads * (n * (wide + latent.value) + n_keys * (wide + latent.value)))
    keys = of.head_size * np.maximum(1.0, of.kv_heads / t)
    total: FloatArray = statistics + e * (2 * n * of.query_width / t + 2 * n_keys * keys)
    return total


@dataclass(frozen=True, slots=True)
class RankParameters:
    """Parameters on one rank of a stage, each of shape (n,).

    Attributes
    ----------
    shared : all but experts, summed over c·D ranks
    experts : summed over c·D/x ranks
    whole : those of ``shared`` that each tensor rank has whole and sees its own positions of alone where tensor
        ranks share positions: of layers, and the last norms; layers before the logits of a masked head are left out
    largest_unit : of what is gathered at once where weights are sharded: a layer, the table of tokens, or the logits
    """

    shared: FloatArray
    experts: FloatArray
    whole: FloatArray
    largest_unit: FloatArray

    @property
    def total(self) -> FloatArray:
        """All of them."""
        return self.shared + self.experts


def stage_parameters(
    of: Transformer, plans: Configurations, stage: IntArray, *, padded: bool = False, layers: StageLayers | None = None
) -> RankParameters:
    """Return the parameters of a rank of a stage.

    Parameters
    ----------
    of : Transformer
    plans : Configurations
    stage : ndarray of int
        From 0, broadcasts with the plans.
    padded : bool
        Whether the vocabulary is rounded up to 128 a tensor rank, as Megatron-LM does; else to a whole number a rank.
    layers : StageLayers, optional
        Of each stage, where they are not dealt out evenly.

    Returns
    -------
    RankParameters
    """
    common, experts, whole, unit = np.zeros((4, *plans.shape))
    for kind, count in stage_blocks(of, plans.pipeline_parallel, stage, layers):
        dense, routed = _layer_parameters(of, plans, kind)
        common, experts = common + count * dense, experts + count * routed
        whole = whole + count * _whole(of, kind)
        unit = np.maximum(unit, np.where(count > 0, dense + routed, 0.0))
    first, last = stage == 0, stage == plans.last_stage
    entry, tokens, head, logits = _outside(of, plans, padded=padded)
    common = common + first * (entry + tokens) + last * head + (last & np.logical_or(not of.tied, stage > 0)) * logits
    unit = np.maximum(unit, np.maximum(first * tokens, last * logits))
    whole = whole + (last if of.norm_first else first) * float(outer_parameters(of).norms)
    return RankParameters(common, experts, whole, unit)


def _layer_parameters(of: Transformer, plans: Configurations, kind: str) -> tuple[FloatArray, FloatArray]:
    """Return the parameters of a rank's part of a layer: of experts, and all others."""
    t, x = plans.tensor_parallel.astype(np.float64), plans.expert_parallel
    each = layer_parameters(of, kind)
    copies = 0.0 if of.latent else np.maximum(1 / of.kv_heads, 1 / t) - 1 / t
    keys = 2.0 * of.kv_width * (of.hidden + (of.biases or of.qkv_bias))
    split = float(each.products + each.column_biases) / t + keys * copies
    return _whole(of, kind) + split, each.experts / (t * x)


def _whole(of: Transformer, kind: str) -> float:
    """Return the parameters of a layer that every tensor rank has whole."""
    each = layer_parameters(of, kind)
    return float(each.row_biases + each.norms + each.router + each.compression)


def _outside(of: Transformer, plans: Configurations, *, padded: bool) -> tuple[float, FloatArray, float, FloatArray]:
    """Return what is whole on the first stage, the table of tokens, what is whole on the last stage, and the logits."""
    outer, t = outer_parameters(of), plans.tensor_parallel
    vocabulary = padded_vocabulary(of.vocabulary, t) if padded else of.vocabulary
    tokens = np.ceil(vocabulary / t) * of.hidden
    logits = tokens if of.has_logits else np.zeros_like(tokens)
    before, behind = (0.0, outer.norms) if of.norm_first else (outer.norms, 0.0)
    return outer.positions + outer.buckets + before, tokens, behind + float(outer.head_besides), logits
