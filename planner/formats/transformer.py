"""The architecture of a transformer, in network files: what its layers are in numbers."""

from __future__ import annotations

from planner.domain.arrays import LARGEST_COUNT
from planner.domain.transformer import HEADS, NORMS, Latent, Transformer
from planner.formats.fields import Field, Nullable, Table
from planner.formats.values import Flag, Name, Number, Text, Whole

__all__ = ["TRANSFORMER"]

_LAYERS, _LAYERS_OR_NONE = Whole(most=10_000), Whole(least=0, most=10_000)  # ten times the deepest yet trained
_COUNT, _COUNT_OR_NONE = Whole(most=LARGEST_COUNT), Whole(least=0, most=LARGEST_COUNT)
_LATENT = Table(
    (
        Field("rank", _COUNT, "features that keys and values are made of"),
        Field("plain", _COUNT, "features of a head's queries and keys without positions"),
        Field("rotary", _COUNT, "features of a head's queries and keys with rotary positions"),
        Field("value", _COUNT, "features of a head's values"),
    ),
    Latent,
)
TRANSFORMER = Table(
    (
        Field("family", Name(), "gpt, opt, mpt, bert, llama, moe, t5 or vit"),
        Field("layers", _LAYERS, "layers; of encoder and decoder, the decoder's"),
        Field("hidden", _COUNT, "features of a position"),
        Field("heads", _COUNT, "heads of attention"),
        Field("kv_heads", _COUNT, "heads of keys and values; as many as heads: no groups"),
        Field("head_size", _COUNT, "features of a head"),
        Field("ffn", _COUNT, "features inside the feed-forward part"),
        Field("sequence", _COUNT, "positions of a sample"),
        Field("vocabulary", _COUNT_OR_NONE, "rows of the table of tokens; 0: none"),
        Field("gated", Flag(), "whether the feed-forward part multiplies two products", default=False),
        Field("activation", Text(("gelu", "relu", "silu")), "function of the feed-forward part", "gelu"),
        Field("norm", Text(NORMS), "normalisation: scale and shift, scale alone, or root mean square", "layer"),
        Field("norm_first", Flag(), "whether normalisation stands before each part", default=True),
        Field("tied", Flag(), "whether weights of the logits are the table of tokens", default=True),
        Field("positions", _COUNT_OR_NONE, "rows of learned positions; 0: none", 0),
        Field("types", _COUNT_OR_NONE, "rows of token types; 0: none", 0),
        Field("biases", Flag(), "whether linear layers in the blocks have biases", default=True),
        Field("dropout", Number("share"), "fraction dropped; 0: none", 0.0),
        Field("causal", Flag(), "whether later positions are masked", default=True),
        Field("fused", Flag(), "whether one kernel computes attention", default=False),
        Field("rotary", Flag(), "whether queries and keys are rotated by position", default=False),
        Field("buckets", _COUNT_OR_NONE, "rows of relative positions of each stack; 0: none", 0),
        Field("head", Text(HEADS), "what is computed of the last layer", "tokens"),
        Field("head_bias", Flag(), "whether the last linear layer has a bias", default=False),
        Field("classes", _COUNT_OR_NONE, "numbers that the head gives, of labels or classes", 0),
        Field("predictions", _COUNT_OR_NONE, "positions of which logits are computed; 0: all", 0),
        Field("patch", _COUNT_OR_NONE, "features of a patch of an image; 0: no image", 0),
        Field("experts", _LAYERS_OR_NONE, "experts of a layer; 0: none", 0),
        Field("top_k", _LAYERS_OR_NONE, "experts that a token goes to", 0),
        Field("expert_ffn", _COUNT_OR_NONE, "features inside an expert", 0),
        Field("shared_ffn", _COUNT_OR_NONE, "features inside the experts that every token passes, together", 0),
        Field("capacity", Number(), "tokens an expert takes at most, in means; 0: no limit", 0.0),
        Field("dense_layers", _LAYERS_OR_NONE, "first layers, without experts", 0),
        Field("latent", Nullable(_LATENT), "how attention compresses keys and values", None),
        Field("encoder_layers", _LAYERS_OR_NONE, "layers of an encoder; 0: none", 0),
        Field("encoder_sequence", _COUNT_OR_NONE, "positions that the encoder reads", 0),
    ),
    Transformer,
    "architecture in numbers",
    "transformer",
)
