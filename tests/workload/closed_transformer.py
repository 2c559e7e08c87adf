"""A transformer in numbers, and its counts in closed form: oracles of what is found in a network's graph.

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

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.arrays import FloatArray, IntArray
from planner.domain.layers.record import Layer
from planner.domain.network import Network, layer_shapes
from planner.domain.split import StageLayers, even_layers

NORMS = ("layer", "scale", "rms")
"""Normalisation with scale and shift, with scale alone, and by the root of the mean square, with scale."""
HEADS = ("tokens", "masked", "labels", "pooler", "pretraining", "classes")
"""What is computed of the last layer; see :class:`Transformer`."""
_LOGITS_OF_TOKENS = ("tokens", "masked", "pretraining")


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), queries not compressed; sizes in features.

    Attributes
    ----------
    rank : int
        Of what keys and values are made of, r.
    plain, rotary : int
        Of a head's queries and keys: without positions, d_n, and with rotary ones, d_r; the latter of keys are shared.
    value : int
        Of a head's values, d_v.
    """

    rank: int
    plain: int
    rotary: int
    value: int


@dataclass(frozen=True, slots=True)
class Transformer:
    """A transformer; letters are those of the formulas below.

    Attributes
    ----------
    family : str
        gpt, opt, mpt, bert, llama, moe, t5 or vit.
    layers : int
        L; of encoder and decoder, those of the decoder.
    hidden, heads, kv_heads, head_size, ffn : int
        h, a, κ (a: no groups), d_h, f: the width inside the feed-forward part of a dense layer.
    sequence : int
        s, positions of a sample; of images, patches and the class token.
    vocabulary : int
        V, rows of the table of tokens; 0: none.
    gated : bool
        Whether the feed-forward part multiplies two products (SwiGLU), which makes three weights of it.
    activation : str
        gelu, relu or silu.
    norm : one of NORMS
    norm_first : bool
        Whether normalisation stands before each part, and once behind the last layer; else behind each sum, and once
        behind the embedding.
    tied : bool
        Whether the weights of the logits are the table of tokens.
    positions : int
        Rows of the table of learned positions; 0: none, positions are rotary, biases of attention, or absent.
    types : int
        Rows of the table of token types (bert); 0: none.
    biases : bool
        Whether linear layers in the blocks have biases.
    dropout : float
        Fraction dropped of embedding, of what each part gives, and of attention weights that are not fused; 0: none.
    causal : bool
        Whether later positions are masked.
    fused : bool
        Whether one kernel computes attention without keeping weights.
    rotary : bool
        Whether queries and keys are rotated by position.
    buckets : int
        Rows of the table of relative positions of each stack, one a head (t5); 0: none.
    head : one of HEADS
        tokens: logits of V; masked: a linear layer and normalisation before them; labels, classes: ``classes`` numbers
        at every position, or of the first one; pooler: a linear layer on the first position; pretraining: masked, and
        pooler with ``classes`` numbers behind it.
    head_bias : bool
        Whether the last linear layer has a bias, the weights of logits tied or not.
    classes : int
        Of the heads labels, classes and pretraining.
    predictions : int
        Positions of which logits are computed; 0: all.
    patch : int
        Features of a patch of the image that the first layer reads, 3·P²; 0: no image.
    experts, top_k, expert_ffn, shared_ffn : int
        E, k, f_e, and f_s, the summed width of experts that every token passes; E = 0: none.
    capacity : float
        Tokens that an expert takes at most, as a multiple of the mean; 0: no limit, nothing dropped or padded.
    dense_layers : int
        First layers, which have no experts.
    latent : Latent or None
        How attention compresses keys and values.
    encoder_layers, encoder_sequence : int
        Of an encoder whose output every layer attends to besides; 0: none.
    qkv_bias, head_norm, around : bool
        Whether queries, keys and values have biases; each head of queries and keys is normalised; what a part gives is.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    sequence: int
    vocabulary: int
    gated: bool = False
    activation: str = "gelu"
    norm: str = "layer"
    norm_first: bool = True
    tied: bool = True
    positions: int = 0
    types: int = 0
    biases: bool = True
    dropout: float = 0.0
    causal: bool = True
    fused: bool = False
    rotary: bool = False
    buckets: int = 0
    head: str = "tokens"
    head_bias: bool = False
    classes: int = 0
    predictions: int = 0
    patch: int = 0
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    capacity: float = 0.0
    dense_layers: int = 0
    latent: Latent | None = None
    encoder_layers: int = 0
    encoder_sequence: int = 0
    qkv_bias: bool = False
    head_norm: bool = False
    around: bool = False

    @property
    def query_width(self) -> int:
        """Features of the queries of all heads, a·d_h."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Features of all keys, and of all values, κ·d_h."""
        return self.kv_heads * self.head_size

    @property
    def has_logits(self) -> bool:
        """Whether the head makes as many logits as there are tokens."""
        return self.vocabulary > 0 and self.head in _LOGITS_OF_TOKENS

    @property
    def ties_logits(self) -> bool:
        """Whether the table of tokens makes them, of which the last stage of a pipeline then has a copy."""
        return self.tied and self.has_logits

    @property
    def expert_layers(self) -> int:
        """Layers that have experts."""
        return self.layers - self.dense_layers if self.experts else 0


def record_of(network: Network) -> Transformer:
    """Return a bundled transformer in numbers, by the names that its layers have."""
    by, shapes = {layer.name: layer for layer in network.layers}, layer_shapes(network)
    kinds = {layer.kind for layer in network.layers}
    stack = "decoder." if "decoder.layer1.attention.core" in by else ""
    numbers = [int(one[1]) for name in by if (one := re.match(rf"{re.escape(stack)}layer(\d+)\.", name))]
    core, join = by[f"{stack}layer1.attention.core"], by.get("layer1.attention.join")
    sequence, hidden = shapes[f"{stack}layer1.attention.project"]
    heads, gated = core.integer("heads"), bool({"gated_activation", "experts"} & kinds)
    expert = next((layer for layer in network.layers if layer.kind == "experts"), None)
    widen = by.get(f"{stack}layer1.mlp.widen")
    embedding, head, is_image = by.get("embedding"), _head(by), "patches" in by

    def of(layer: Layer | None, key: str) -> int:
        return layer.integer(key) if layer is not None else 0

    norm = next(layer for layer in network.layers if layer.kind.endswith("_norm"))
    functions = {str(one.attributes["function"]) for one in network.layers if one.kind == "activation"}
    last = by.get("logits") or by.get("labels") or by.get("classes") or by["pooler"]
    latent = Latent(*(of(by["layer1.attention.compress.norm"], "features") if key == "rank" else of(join, key)
                      for key in ("rank", "plain", "rotary", "value"))) if join else None  # fmt: skip
    kv_heads = core.integer("kv_heads") or heads
    return Transformer(
        "t5" if stack else "vit" if is_image else "bert" if "embedding.norm" in by else "",
        max(numbers), hidden, heads, kv_heads,
        shapes[core.name][1] // heads,
        of(widen, "features") // (1 + gated) if widen else of(expert, "ffn"),
        sequence, of(embedding, "vocabulary"),
        gated=gated,
        activation="silu" if gated else (functions - {"tanh"}).pop(),
        norm="rms" if norm.kind == "rms_norm" else "layer" if norm.attributes["shift"] else "scale",
        norm_first="embedding.norm" not in by,
        tied=bool(by["logits"].attributes["tied"]) if "logits" in by else True,
        positions=sequence if is_image else of(embedding, "positions"),
        types=of(embedding, "types"),
        biases=bool(by[f"{stack}layer1.attention.project"].attributes["bias"]),
        dropout=0.1 if "dropout" in kinds else 0.0,
        causal=bool(core.attributes["causal"]),
        fused=bool(core.attributes["fused"]),
        rotary="rotary" in kinds,
        buckets=of(core, "buckets"),
        head=head,
        head_bias=bool(last.attributes["bias"]),
        classes={"labels": 2, "pretraining": 2, "classes": of(by.get("classes"), "features")}.get(head, 0),
        predictions=of(by.get("masked"), "count"),
        patch=3 * by["patches"].pair("kernel")[0] ** 2 if is_image else 0,
        experts=of(expert, "experts"),
        top_k=of(expert, "top_k"),
        expert_ffn=of(expert, "ffn"),
        shared_ffn=of(next((one for name, one in by.items() if name.endswith(".shared.widen")), None), "features") // 2,
        capacity=expert.number("capacity") if expert else 0.0,
        dense_layers=max(numbers) - sum(layer.kind == "experts" for layer in network.layers) if expert else 0,
        latent=latent,
        encoder_layers=sum(bool(re.fullmatch(r"encoder\.layer\d+\.attention\.core", name)) for name in by),
        encoder_sequence=of(by.get("encoder.tokens"), "count"),
        qkv_bias=any(name.endswith(".qkv") and bool(one.attributes["bias"]) for name, one in by.items()),
        head_norm=of(by.get(f"{stack}layer1.attention.rotary"), "norm") > 0,
        around=f"{stack}layer1.attention.norm_behind" in by,
    )  # fmt: skip


def _head(by: dict[str, Layer]) -> str:
    if "next_sentence" in by:
        return "pretraining"
    if "tokens" in by:
        return "masked"
    return next((name for name in ("labels", "classes", "pooler") if name in by), "tokens")


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
        column_biases=(of.query_width + 2 * of.kv_width) * (of.biases or of.qkv_bias) + of.ffn * of.biases,
        row_biases=2 * h * of.biases,
        norms=_norm_parameters(of) * (2 + crosses + 2 * of.around)
        + (of.latent.rank if of.latent else 0)
        + 2 * of.head_size * of.head_norm,
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
