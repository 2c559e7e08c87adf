"""Bytes that one rank of a split transformer keeps of one layer and micro-batch for the backward pass.

n = b·s/c positions of a rank, n_s = n/t where tensor ranks share positions between products (sequence parallelism),
else n; e bytes an element; h, a, d_h, κ, f, s, E, k, f_e as in :mod:`planner.workload.transformer`. Masks take 1 byte.

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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray
from planner.domain.layers.attentions import ring_keys
from planner.domain.split import SplitPlans
from planner.domain.transformer import Transformer
from planner.workload.transformer import DENSE, ENCODER, EXPERTS

__all__ = ["LayerBytes", "layer_bytes", "positions"]


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


def positions(of: Transformer, plans: SplitPlans, *, encoder: bool = False) -> tuple[FloatArray, FloatArray]:
    """Return n, positions of a rank and micro-batch, and n_s, those between the products."""
    sequence = float(of.encoder_sequence if encoder else of.sequence)
    n = plans.sub_batch * sequence / plans.context_parallel
    return n, np.where(plans.sequence_parallel > 0, n / plans.tensor_parallel, n)


def layer_bytes(
    of: Transformer,
    plans: SplitPlans,
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
    plans : SplitPlans
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
