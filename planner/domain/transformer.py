"""The architecture of a transformer in numbers, beside its graph of layers: degrees, memory and bounds count by it."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.arrays import check_count
from planner.errors import ParameterError

__all__ = ["HEADS", "NORMS", "Latent", "Transformer"]

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

    def __post_init__(self) -> None:
        for what in ("rank", "plain", "rotary", "value"):
            check_count(f"latent attention: {what}", getattr(self, what))


@dataclass(frozen=True, slots=True)
class Transformer:
    """A transformer; letters are those of the formulas that count it (:mod:`planner.workload.transformer`).

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

    def __post_init__(self) -> None:
        for what in ("layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "sequence"):
            check_count(what, getattr(self, what))
        for what in _COUNTS_FROM_0:
            check_count(what, getattr(self, what), least=0)
        for what, value, known in (("norm", self.norm, NORMS), ("head", self.head, HEADS)):
            if value not in known:
                raise ParameterError(what, "one of " + ", ".join(known), value)
        if self.heads % self.kv_heads:
            raise ParameterError("kv_heads", f"a divisor of the {self.heads} heads", self.kv_heads)
        self._check_experts()

    def _check_experts(self) -> None:
        if not self.experts:
            return
        check_count("top_k", self.top_k, most=self.experts)
        check_count("expert_ffn", self.expert_ffn)
        check_count("dense_layers", self.dense_layers, least=0, most=self.layers)

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


_COUNTS_FROM_0 = (
    "vocabulary", "positions", "types", "buckets", "classes", "predictions", "patch", "experts", "top_k", "expert_ffn",
    "shared_ffn", "dense_layers", "encoder_layers", "encoder_sequence",
)  # fmt: skip
