"""Transformers for language with normalisation by scale alone and no biases: Llama, mixtures of experts, MPT, T5.

``llama``: Touvron et al. (2023), arXiv:2302.13971: normalisation by the root mean square before each part and at the
end, rotary positions, a gated feed-forward part (SwiGLU), no biases, no dropout; ``kv_heads`` below ``heads`` groups
queries (Ainslie et al. 2023, arXiv:2305.13245). ``llama-7b`` is also Llama 2's; ``llama2-13b``, ``llama2-70b``: Touvron
et al. (2023), arXiv:2307.09288; ``llama3-8b``, ``llama3-70b``, ``llama3-405b``: Llama Team (2024), arXiv:2407.21783.

``moe``: the same with experts in the place of the feed-forward part: Jiang et al. (2024), "Mixtral of experts",
arXiv:2401.04088, as ``mixtral-8x7b``. ``shared_experts`` all tokens pass besides, the first ``dense_layers`` have a
feed-forward part of ``ffn``, and with ``kv_rank`` keys and values are compressed (multi-head latent attention):
``deepseek-v2-lite``, DeepSeek-AI (2024), arXiv:2405.04434. ``capacity_factor`` is how many tokens an expert takes at
most, as a multiple of the mean; ``none`` drops and pads none.

``qwen2-0.5b``, ``qwen2-7b``: Qwen Team (2024), arXiv:2407.10671, with biases of queries, keys and values;
``qwen3-0.6b``, ``qwen3-8b``: Qwen Team (2025), arXiv:2505.09388, whose heads are normalised; ``mistral-7b``: Jiang et
al. (2023), arXiv:2310.06825; ``gemma2-2b``, ``gemma2-9b``: Gemma Team (2024), arXiv:2408.00118, normalised before and
behind each part; their windows of 4096 positions leave samples of 4096 whole. ``llama3.2-1b``, ``llama3.2-3b``: the
``config.json`` of meta-llama's repositories on Hugging Face, as are all sizes of this paragraph.

``neox``: Black et al. (2022), arXiv:2204.06745: attention and feed-forward part read the same, and are summed together;
a quarter of each head has rotary positions; ``gpt-neox-20b`` is its published size.

``mpt``: MosaicML (2023), "Introducing MPT-7B: a new standard for open-source, commercially usable LLMs": as GPT;
positions are linear biases of attention without parameters (ALiBi, Press et al. 2021, arXiv:2108.12409). The output
layer shares the table of tokens; no dropout. Sizes are those of mosaicml/mpt-7b and mpt-30b.

``t5``: Raffel et al. (2019), arXiv:1910.10683, version 1.0: an encoder and a decoder that attends to it, ReLU, dropout
of 0.1. Positions are biases of attention, learned in 32 buckets of distances, one table a stack, which its first layer
holds. Attention is heads x head_size wide, whatever the hidden features. Both stacks and the output layer share the
table of tokens. A sample has ``sequence`` positions for the encoder and ``target`` for the decoder, looked up together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.domain.layers.record import AttributeValue
from planner.domain.network import Network, family_of
from planner.errors import ParameterError
from planner.networks.builder import Argument, NetworkBuilder, ZooEntry
from planner.networks.zoo import transformers
from planner.networks.zoo.transformers import ATTENTION, Sizes, preset, sequence, sizes, sizes_of

_AS_HEADS = "heads"
_NONE = "none"


class Preset(NamedTuple):
    """Sizes of a published network; ``others``: arguments besides that it fixes."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    sequence: int
    others: Mapping[str, str] = {}


def _llama(name: str, arguments: Mapping[str, str]) -> Network:
    of = _llama_sizes(name, arguments)
    net = NetworkBuilder()
    top = net.add("embedding", "embedding", "input", features=of.hidden, vocabulary=of.vocabulary)
    for number in range(1, of.layers + 1):
        block = f"layer{number}"
        part = f"{block}.attention"
        branch = _llama_attention(net, part, net.add("rms_norm", f"{part}.norm", top), of)
        top = _summed(net, part, branch, top, of)
        part = f"{block}.mlp"
        source = net.add("rms_norm", f"{part}.norm", top)
        has_experts = of.experts > 0 and number > of.dense_layers
        branch = _experts(net, block, source, of) if has_experts else _gated_feed_forward(net, part, source, of)
        top = _summed(net, part, branch, top, of)
    top = net.add("rms_norm", "norm", top)
    net.add("loss", "loss", net.linear("logits", top, of.vocabulary, tied=of.tied, bias=False))
    return net.network(name, (of.sequence,), _notes(of), dataset=None, optimizer="adam")


def _summed(net: NetworkBuilder, name: str, branch: str, source: str, of: Sizes) -> str:
    """Append the residual sum, of what a part gives as it is, or normalised once more."""
    branch = net.add("rms_norm", f"{name}.norm_behind", branch) if of.around else branch
    return net.add("add", f"{name}.add", (branch, source))


def _llama_attention(net: NetworkBuilder, name: str, source: str, of: Sizes) -> str:
    how: dict[str, AttributeValue] = {"heads": of.heads, "causal": True, "fused": of.fused}
    if of.latent is None:
        joined = net.linear(f"{name}.qkv", source, of.query_width + 2 * of.kv_width, bias=of.qkv_bias)
        rotated = of.query_width + of.kv_width
        joined = net.add("rotary", f"{name}.rotary", joined, features=rotated, norm=of.norm)
        core = net.add("attention", f"{name}.core", joined, kv_heads=of.kv_heads, **how)
    else:
        core = net.add("attention", f"{name}.core", _latent(net, name, source, of), value_size=of.latent.value, **how)
    return net.linear(f"{name}.project", core, of.hidden, bias=of.project_bias)


def _latent(net: NetworkBuilder, name: str, source: str, of: Sizes) -> str:
    """Append queries, compressed keys and values, and what they are made of them."""
    latent = of.latent
    assert latent is not None  # noqa: S101 - asked for such attention only
    sizes = {"plain": latent.plain, "rotary": latent.rotary, "value": latent.value}
    before = source
    if latent.queries:
        before = net.linear(f"{name}.queries.compress", source, latent.queries, bias=False)
        before = net.add("rms_norm", f"{name}.queries.norm", before)
    queries = net.linear(f"{name}.queries", before, of.heads * (latent.plain + latent.rotary), bias=False)
    small = net.linear(f"{name}.compress", source, latent.rank + latent.rotary, bias=False)
    normed = net.add("rms_norm", f"{name}.compress.norm", small, features=latent.rank)
    both = net.linear(f"{name}.expand", normed, of.heads * (latent.plain + latent.value), bias=False)
    return net.add("latent", f"{name}.join", (queries, small, both), heads=of.heads, **sizes)


def _gated_feed_forward(net: NetworkBuilder, name: str, source: str, of: Sizes, width: int = 0) -> str:
    wide = net.linear(f"{name}.widen", source, 2 * (width or of.ffn), bias=of.mlp_bias)
    gate = "swiglu" if of.function == "silu" else "geglu"
    wide = net.add("gated_activation", f"{name}.{gate}", wide, function=of.function)
    return net.linear(f"{name}.narrow", wide, of.hidden, bias=of.mlp_bias)


def _experts(net: NetworkBuilder, block: str, source: str, of: Sizes) -> str:
    scores = net.linear(f"{block}.router", source, of.experts, bias=False)
    how = {"experts": of.experts, "top_k": of.top_k, "ffn": of.expert_ffn, "capacity": of.capacity}
    routed = net.add("experts", f"{block}.experts", (source, scores), **how)
    if not of.shared_ffn:
        return routed
    beside = _gated_feed_forward(net, f"{block}.shared", source, of, of.shared_ffn)
    return net.add("add", f"{block}.shared.add", (routed, beside))


def _llama_sizes(name: str, arguments: Mapping[str, str]) -> Sizes:
    family, heads = family_of(name), int(arguments["heads"])
    kv_heads = heads if arguments["kv_heads"] == _AS_HEADS else int(arguments["kv_heads"])
    if heads % kv_heads:
        raise ParameterError(f"argument kv_heads of network {family}", f"a divisor of heads = {heads}", kv_heads)
    dense = sizes_of(
        name, arguments, kv_heads=kv_heads, latent=_latent_sizes(arguments),
        qkv_bias=arguments["attention_bias"] != _NONE, project_bias=arguments["attention_bias"] == "all",
        mlp_bias=arguments["mlp_bias"] == "true", around=arguments["norms"] == "around",
    )  # fmt: skip
    if arguments["head_norm"] == "true":
        dense = replace(dense, norm=dense.head_size)
    return _with_experts(dense, family, arguments) if "experts" in arguments else dense


def _with_experts(dense: Sizes, family: str, arguments: Mapping[str, str]) -> Sizes:
    experts, top_k, first = (int(arguments[key]) for key in ("experts", "top_k", "dense_layers"))
    if top_k > experts:
        raise ParameterError(f"argument top_k of network {family}", f"at most experts = {experts}", top_k)
    if first > dense.layers:
        raise ParameterError(f"argument dense_layers of network {family}", f"at most layers = {dense.layers}", first)
    width, capacity = int(arguments["expert_ffn"]), arguments["capacity_factor"]
    return replace(
        dense, experts=experts, top_k=top_k, expert_ffn=width, shared_ffn=int(arguments["shared_experts"]) * width,
        capacity=0.0 if capacity == _NONE else float(capacity), dense_layers=first,
    )  # fmt: skip


def _latent_sizes(arguments: Mapping[str, str]) -> transformers.Latent | None:
    if arguments.get("kv_rank", _NONE) == _NONE:
        return None
    keys = ("kv_rank", "plain_size", "rotary_size", "value_size", "query_rank")
    return transformers.Latent(*(0 if arguments[key] == _NONE else int(arguments[key]) for key in keys))


def _notes(of: Sizes) -> str:
    groups = "" if of.kv_heads == of.heads else f" on {of.kv_heads} of keys and values"
    latent = f", keys and values of {of.latent.rank} features" if of.latent else ""
    experts = f", {of.top_k} of {of.experts} experts of {of.expert_ffn}" if of.experts else ""
    heads = f"{of.heads} heads{groups}{latent}{experts}"
    return f"decoder of {of.layers} layers, {of.hidden} features, {heads}, {of.sequence} positions"


_OF_LLAMA = sequence(4096) | ATTENTION
_FFN_WORDS = f"features inside the feed-forward part; default up to a multiple of {transformers.FFN_MULTIPLE}"
_SIZES = {
    **sizes(layers=32, hidden=4096, heads=32),
    "kv_heads": Argument((_AS_HEADS,), "heads of keys and values, that groups of heads share", counts=True),
    **sizes(head_size=transformers.HEAD_SIZE, ffn=transformers.GATED_FFN, vocabulary=32000),
    "ffn": Argument((transformers.GATED_FFN,), _FFN_WORDS, counts=True, most=9_999_999),
    "tied": Argument(("false", "true"), "whether the output layer shares the table of tokens"),
    "attention_bias": Argument((_NONE, "qkv", "all"), "biases of attention; all: of its projection, too"),
    "mlp_bias": Argument(("false", "true"), "whether the feed-forward part has biases"),
    "head_norm": Argument(("false", "true"), "whether each head's queries and keys are normalised"),
    "function": Argument(("silu", "gelu"), "function of the gate"),
    "norms": Argument(("before", "around"), "normalisation of a part; around: behind it, too"),
}
_EXPERTS = {
    "experts": Argument(("8",), "experts of a layer", counts=True),
    "top_k": Argument(("2",), "experts that a token goes to", counts=True),
    "expert_ffn": Argument(("14336",), "features inside an expert", counts=True, most=9_999_999),
    "shared_experts": Argument(("0",), "experts of that width that every token passes besides; 0: none", counts=True),
    "capacity_factor": Argument((_NONE,), "tokens an expert takes at most, in means", factor=True),
    "dense_layers": Argument(("0",), "first layers, without experts; 0: none", counts=True),
    "kv_rank": Argument((_NONE,), "features that keys and values are compressed to (latent attention)", counts=True,
                        most=999_999),
    "query_rank": Argument((_NONE,), "with kv_rank, features that queries are compressed to", counts=True,
                           most=999_999),
    "plain_size": Argument(("128",), "with kv_rank, features of a head's keys without positions", counts=True),
    "rotary_size": Argument(("64",), "with kv_rank, features of a head's keys with rotary positions", counts=True),
    "value_size": Argument(("128",), "with kv_rank, features of a head's values", counts=True),
}  # fmt: skip
_DEEPSEEK = {
    "experts": "64", "top_k": "6", "expert_ffn": "1408", "shared_experts": "2", "dense_layers": "1", "kv_rank": "512",
}  # fmt: skip
_QWEN2 = {"attention_bias": "qkv"}
_QWEN3 = {"head_size": "128", "head_norm": "true"}
_GEMMA2 = {"head_size": "256", "tied": "true", "function": "gelu", "norms": "around"}
_PRESETS = {
    "llama-7b": Preset(32, 4096, 32, 32, 11008, 32000, 2048),
    "llama2-13b": Preset(40, 5120, 40, 40, 13824, 32000, 4096),
    "llama2-70b": Preset(80, 8192, 64, 8, 28672, 32000, 4096),
    "llama3-8b": Preset(32, 4096, 32, 8, 14336, 128256, 8192),
    "llama3-70b": Preset(80, 8192, 64, 8, 28672, 128256, 8192),
    "llama3-405b": Preset(126, 16384, 128, 8, 53248, 128256, 8192),
    "llama3.2-1b": Preset(16, 2048, 32, 8, 8192, 128256, 8192, {"tied": "true"}),
    "llama3.2-3b": Preset(28, 3072, 24, 8, 8192, 128256, 8192, {"tied": "true"}),
    "mistral-7b": Preset(32, 4096, 32, 8, 14336, 32000, 4096),
    "qwen2-0.5b": Preset(24, 896, 14, 2, 4864, 151936, 4096, {"tied": "true", **_QWEN2}),
    "qwen2-7b": Preset(28, 3584, 28, 4, 18944, 152064, 4096, _QWEN2),
    "qwen3-0.6b": Preset(28, 1024, 16, 8, 3072, 151936, 4096, {"tied": "true", **_QWEN3}),
    "qwen3-8b": Preset(36, 4096, 32, 8, 12288, 151936, 4096, _QWEN3),
    "gemma2-2b": Preset(26, 2304, 8, 4, 9216, 256000, 4096, _GEMMA2),
    "gemma2-9b": Preset(42, 3584, 16, 8, 14336, 256000, 4096, _GEMMA2),
    "mixtral-8x7b": Preset(32, 4096, 32, 8, 14336, 32000, 4096, {"experts": "8"}),
    "deepseek-v2-lite": Preset(27, 2048, 16, 16, 10944, 102400, 4096, _DEEPSEEK),
}


def _preset(numbers: Preset) -> ZooEntry:
    *values, others = numbers
    options, every = _OF_LLAMA | sequence(numbers.sequence), _SIZES
    if "experts" in others:
        options["capacity_factor"], every = _EXPERTS["capacity_factor"], _SIZES | _EXPERTS
    fixed = {key: argument.values[0] for key, argument in every.items()}
    return preset(_llama, options, **{**fixed, **dict(zip(Preset._fields, values, strict=False)), **others})


LLAMA = {
    "llama": ZooEntry(_llama, _SIZES | _OF_LLAMA),
    "moe": ZooEntry(_llama, _SIZES | _EXPERTS | _OF_LLAMA),
    **{name: _preset(sizes) for name, sizes in _PRESETS.items()},
}


def _mpt(name: str, arguments: Mapping[str, str]) -> Network:
    of = sizes_of(name, arguments, kv_heads=int(arguments["heads"]), tied=True)
    return _plain_decoder(name, of, biases=False, bias="fixed")


def _neox(name: str, arguments: Mapping[str, str]) -> Network:
    of = sizes_of(name, arguments, kv_heads=int(arguments["heads"]), parallel=arguments["parallel"] == "true")
    rotated = int(of.head_size * float(arguments["rotary_share"]))
    return _plain_decoder(name, replace(of, rotated=2 * of.heads * rotated), biases=True)


def _plain_decoder(name: str, of: Sizes, *, biases: bool, **how: AttributeValue) -> Network:
    """Return a decoder of plain blocks, without dropout or a table of positions; ``how``: attributes of attention."""
    net = NetworkBuilder()
    top = net.add("embedding", "embedding", "input", features=of.hidden, vocabulary=of.vocabulary)
    how = {"heads": of.heads, "causal": True, "fused": of.fused, **how}
    for number in range(1, of.layers + 1):
        top = transformers.plain_block(net, f"layer{number}", top, of, biases=biases, **how)
    top = net.add("layer_norm", "norm", top, **({} if biases else {"shift": False}))
    net.add("loss", "loss", net.linear("logits", top, of.vocabulary, tied=of.tied, bias=False))
    return net.network(name, (of.sequence,), _notes(of), dataset=None, optimizer="adam")


_OF_7B, _VOCABULARY = sequence(2048) | ATTENTION, 50432
MPT = {
    "mpt": ZooEntry(_mpt, sizes(layers=32, hidden=4096, heads=32, vocabulary=_VOCABULARY) | _OF_7B),
    "mpt-7b": preset(_mpt, _OF_7B, layers=32, hidden=4096, heads=32, vocabulary=_VOCABULARY),
    "mpt-30b": preset(_mpt, sequence(8192) | ATTENTION, layers=48, hidden=7168, heads=64, vocabulary=_VOCABULARY),
}


_OF_NEOX = sequence(2048) | ATTENTION
_NEOX_SIZES = {
    **sizes(layers=44, hidden=6144, heads=64, head_size=transformers.HEAD_SIZE, ffn=transformers.FFN, vocabulary=50432),
    "rotary_share": Argument(("0.25",), "share of a head that has rotary positions", factor=True, most=1),
    "parallel": Argument(("true", "false"), "whether attention and feed-forward part read the same"),
    "tied": Argument(("false", "true"), "whether the output layer shares the table of tokens"),
}
NEOX = {
    "neox": ZooEntry(_neox, _NEOX_SIZES | _OF_NEOX),
    "gpt-neox-20b": preset(_neox, _OF_NEOX, **{key: one.values[0] for key, one in _NEOX_SIZES.items()}),
}


_RATE = 0.1
_BUCKETS = 32
_AS_SEQUENCE = "sequence"


@dataclass(frozen=True, slots=True)
class _Stack:
    """A stack: its name, layers, and what these attend to besides; empty: an encoder, which attends to none."""

    name: str
    layers: int
    encoded: str = ""


def _t5(name: str, arguments: Mapping[str, str]) -> Network:
    encoded, target = int(arguments["sequence"]), arguments["target"]
    written = encoded if target == _AS_SEQUENCE else int(target)
    of = sizes_of(name, arguments, sequence=written, encoder_sequence=encoded)
    net = NetworkBuilder()
    rows = net.add("embedding", "embedding", "input", features=of.hidden, vocabulary=of.vocabulary)
    source = net.add("positions", "encoder.tokens", rows, count=of.encoder_sequence)
    target = net.add("positions", "decoder.tokens", rows, start=of.encoder_sequence, count=of.sequence)
    read = _stack(net, _Stack("encoder", of.layers), source, of)
    below = of.layers if arguments["decoder_layers"] == "layers" else int(arguments["decoder_layers"])
    top = _stack(net, _Stack("decoder", below, read), target, of)
    net.add("loss", "loss", net.linear("logits", top, of.vocabulary, tied=of.tied, bias=False))
    depth = f"{of.layers} layers each" if below == of.layers else f"{of.layers} and {below} layers"
    notes = (
        f"encoder and decoder of {depth}, {of.hidden} features, {of.heads} heads of {of.head_size}, "
        f"{of.encoder_sequence} and {of.sequence} positions"
    )
    shape = (of.encoder_sequence + of.sequence,)
    return net.network(name, shape, notes, dataset=None, optimizer="adam")


def _stack(net: NetworkBuilder, stack: _Stack, source: str, of: Sizes) -> str:
    top = net.add("dropout", f"{stack.name}.dropout", source, rate=_RATE)
    for number in range(1, stack.layers + 1):
        block = f"{stack.name}.layer{number}"
        top = _t5_attention(net, block, top, of, causal=bool(stack.encoded), buckets=_BUCKETS if number == 1 else 0)
        if stack.encoded:
            top = _cross_attention(net, block, top, stack.encoded, of)
        top = _t5_feed_forward(net, block, top, of)
    top = net.add("rms_norm", f"{stack.name}.norm", top)
    return net.add("dropout", f"{stack.name}.norm.dropout", top, rate=_RATE)


def _t5_attention(net: NetworkBuilder, block: str, source: str, of: Sizes, *, causal: bool, buckets: int) -> str:
    name = f"{block}.attention"
    normed = net.add("rms_norm", f"{name}.norm", source)
    joined = net.linear(f"{name}.qkv", normed, 3 * of.query_width, bias=False)
    how: dict[str, AttributeValue] = {"heads": of.heads, "causal": causal, "dropout": _RATE}
    how |= {"bias": "learned", "buckets": buckets}
    return _projected(net, name, net.add("attention", f"{name}.core", joined, **how), source, of)


def _cross_attention(net: NetworkBuilder, block: str, source: str, encoded: str, of: Sizes) -> str:
    name = f"{block}.cross"
    normed = net.add("rms_norm", f"{name}.norm", source)
    queries = net.linear(f"{name}.queries", normed, of.query_width, bias=False)
    both = net.linear(f"{name}.keys_values", encoded, 2 * of.query_width, bias=False)
    core = net.add("cross_attention", f"{name}.core", (queries, both), heads=of.heads, dropout=_RATE)
    return _projected(net, name, core, source, of)


def _t5_feed_forward(net: NetworkBuilder, block: str, source: str, of: Sizes) -> str:
    name = f"{block}.mlp"
    normed, is_gated = net.add("rms_norm", f"{name}.norm", source), of.function != "relu"
    wide = net.linear(f"{name}.widen", normed, of.ffn * (1 + is_gated), bias=False)
    if is_gated:
        wide = net.add("gated_activation", f"{name}.geglu", wide, function="gelu")
    else:
        wide = net.relu(f"{name}.relu", wide)
    return _projected(net, name, net.add("dropout", f"{wide}.dropout", wide, rate=_RATE), source, of)


def _projected(net: NetworkBuilder, name: str, inner: str, source: str, of: Sizes) -> str:
    """Append the linear layer back to hidden features, dropout, and the residual sum."""
    top = net.linear(f"{name}.project", inner, of.hidden, bias=False)
    return net.add("add", f"{name}.add", (net.add("dropout", f"{name}.dropout", top, rate=_RATE), source))


_OF_T5 = {
    "sequence": Argument(("512",), "positions that the encoder reads", counts=True, most=499_999),
    "target": Argument((_AS_SEQUENCE,), "positions that the decoder writes", counts=True, most=499_999),
}
_DIFFERENT = {
    "layers": Argument(("12",), "layers of the encoder, and of the decoder", counts=True),
    "head_size": Argument(("64",), "features of a head", counts=True),
}
_T5_FIXED = {"head_size": 64, "ffn": transformers.FFN, "vocabulary": 32128}
_T5_FORMS = {
    "decoder_layers": Argument(("layers",), "layers of the decoder", counts=True),
    "function": Argument(("relu", "gated-gelu"), "activation of the feed-forward part; gated-gelu as in version 1.1"),
    "tied": Argument(("true", "false"), "whether the output layer shares the table of tokens"),
}
_T5_PRESET = _T5_FIXED | {key: argument.values[0] for key, argument in _T5_FORMS.items()}
T5 = {
    "t5": ZooEntry(_t5, sizes(layers=12, hidden=768, heads=12, **_T5_FIXED) | _DIFFERENT | _T5_FORMS | _OF_T5),
    "t5-small": preset(_t5, _OF_T5, layers=6, hidden=512, heads=8, **_T5_PRESET),
    "t5-base": preset(_t5, _OF_T5, layers=12, hidden=768, heads=12, **_T5_PRESET),
    "t5-large": preset(_t5, _OF_T5, layers=24, hidden=1024, heads=16, **_T5_PRESET),
}
