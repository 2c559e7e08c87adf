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

from planner.domain.network import AttributeValue, Network, family_of
from planner.errors import ParameterError
from planner.networks.builder import Argument, NetworkBuilder, ZooEntry
from planner.networks.zoo.transformers import (
    ATTENTION,
    FFN,
    HEAD_SIZE,
    Latent,
    Sizes,
    head_features,
    plain_block,
    preset,
    sequence,
    sizes,
)

__all__ = ["LLAMA", "MPT", "T5"]


_AS_HEADS = "heads"
_GATED_FFN = "8/3 x hidden"
_FFN_MULTIPLE = 256
"""Of the default ffn, as Llama 1 and 2 have it."""
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
        branch = _llama_attention(net, f"{block}.attention", net.add("rms_norm", f"{block}.attention.norm", top), of)
        top = net.add("add", f"{block}.attention.add", (branch, top))
        source = net.add("rms_norm", f"{block}.mlp.norm", top)
        has_experts = of.experts > 0 and number > of.dense_layers
        if has_experts:
            branch = _experts(net, block, source, of)
        else:
            branch = _gated_feed_forward(net, f"{block}.mlp", source, of)
        top = net.add("add", f"{block}.mlp.add", (branch, top))
    top = net.add("rms_norm", "norm", top)
    net.add("loss", "loss", net.linear("logits", top, of.vocabulary, tied=of.tied, bias=False))
    return net.network(name, (of.sequence,), _notes(of), dataset=None, optimizer="adam")


def _llama_attention(net: NetworkBuilder, name: str, source: str, of: Sizes) -> str:
    how: dict[str, AttributeValue] = {"heads": of.heads, "causal": True, "fused": of.fused}
    if of.latent is None:
        joined = net.linear(f"{name}.qkv", source, of.query_width + 2 * of.kv_width, bias=False)
        joined = net.add("rotary", f"{name}.rotary", joined, features=of.query_width + of.kv_width)
        core = net.add("attention", f"{name}.core", joined, kv_heads=of.kv_heads, **how)
    else:
        core = net.add("attention", f"{name}.core", _latent(net, name, source, of), value_size=of.latent.value, **how)
    return net.linear(f"{name}.project", core, of.hidden, bias=False)


def _latent(net: NetworkBuilder, name: str, source: str, of: Sizes) -> str:
    """Append queries, compressed keys and values, and what they are made of them."""
    latent = of.latent
    assert latent is not None  # noqa: S101 - asked for such attention only
    sizes = {"plain": latent.plain, "rotary": latent.rotary, "value": latent.value}
    queries = net.linear(f"{name}.queries", source, of.heads * (latent.plain + latent.rotary), bias=False)
    small = net.linear(f"{name}.compress", source, latent.rank + latent.rotary, bias=False)
    normed = net.add("rms_norm", f"{name}.compress.norm", small, features=latent.rank)
    both = net.linear(f"{name}.expand", normed, of.heads * (latent.plain + latent.value), bias=False)
    return net.add("latent", f"{name}.join", (queries, small, both), heads=of.heads, **sizes)


def _gated_feed_forward(net: NetworkBuilder, name: str, source: str, of: Sizes, width: int = 0) -> str:
    wide = net.linear(f"{name}.widen", source, 2 * (width or of.ffn), bias=False)
    return net.linear(f"{name}.narrow", net.add("gated_activation", f"{name}.swiglu", wide), of.hidden, bias=False)


def _experts(net: NetworkBuilder, block: str, source: str, of: Sizes) -> str:
    scores = net.linear(f"{block}.router", source, of.experts, bias=False)
    how = {"experts": of.experts, "top_k": of.top_k, "ffn": of.expert_ffn, "capacity": of.capacity}
    routed = net.add("experts", f"{block}.experts", (source, scores), **how)
    if not of.shared_ffn:
        return routed
    beside = _gated_feed_forward(net, f"{block}.shared", source, of, of.shared_ffn)
    return net.add("add", f"{block}.shared.add", (routed, beside))


def _llama_sizes(name: str, arguments: Mapping[str, str]) -> Sizes:
    family = family_of(name)
    hidden, heads = int(arguments["hidden"]), int(arguments["heads"])
    kv_heads = heads if arguments["kv_heads"] == _AS_HEADS else int(arguments["kv_heads"])
    if heads % kv_heads:
        raise ParameterError(f"argument kv_heads of network {family}", f"a divisor of heads = {heads}", kv_heads)
    dense = Sizes(
        layers=int(arguments["layers"]),
        hidden=hidden,
        heads=heads,
        sequence=int(arguments["sequence"]),
        vocabulary=int(arguments["vocabulary"]),
        kv_heads=kv_heads,
        head_size=head_features(name, arguments),
        ffn=-(-(8 * hidden // 3) // _FFN_MULTIPLE) * _FFN_MULTIPLE
        if arguments["ffn"] == _GATED_FFN
        else int(arguments["ffn"]),
        tied=arguments["tied"] == "true",
        fused=arguments["attention"] == "fused",
        latent=_latent_sizes(arguments),
    )
    return _with_experts(dense, family, arguments) if "experts" in arguments else dense


def _with_experts(dense: Sizes, family: str, arguments: Mapping[str, str]) -> Sizes:
    experts, top_k, first = (int(arguments[key]) for key in ("experts", "top_k", "dense_layers"))
    if top_k > experts:
        raise ParameterError(f"argument top_k of network {family}", f"at most experts = {experts}", top_k)
    if first > dense.layers:
        raise ParameterError(f"argument dense_layers of network {family}", f"at most layers = {dense.layers}", first)
    width, capacity = int(arguments["expert_ffn"]), arguments["capacity_factor"]
    return replace(
        dense,
        experts=experts,
        top_k=top_k,
        expert_ffn=width,
        shared_ffn=int(arguments["shared_experts"]) * width,
        capacity=0.0 if capacity == _NONE else float(capacity),
        dense_layers=first,
    )


def _latent_sizes(arguments: Mapping[str, str]) -> Latent | None:
    if arguments.get("kv_rank", _NONE) == _NONE:
        return None
    return Latent(*(int(arguments[key]) for key in ("kv_rank", "plain_size", "rotary_size", "value_size")))


def _notes(of: Sizes) -> str:
    groups = "" if of.kv_heads == of.heads else f" on {of.kv_heads} of keys and values"
    latent = f", keys and values of {of.latent.rank} features" if of.latent else ""
    experts = f", {of.top_k} of {of.experts} experts of {of.expert_ffn}" if of.experts else ""
    heads = f"{of.heads} heads{groups}{latent}{experts}"
    return f"decoder of {of.layers} layers, {of.hidden} features, {heads}, {of.sequence} positions"


_OF_LLAMA = sequence(4096) | ATTENTION
_FFN_WORDS = f"features inside the feed-forward part; default up to a multiple of {_FFN_MULTIPLE}"
_SIZES = {
    **sizes(layers=32, hidden=4096, heads=32),
    "kv_heads": Argument((_AS_HEADS,), "heads of keys and values, that groups of heads share", counts=True),
    **sizes(head_size=HEAD_SIZE, ffn=_GATED_FFN, vocabulary=32000),
    "ffn": Argument((_GATED_FFN,), _FFN_WORDS, counts=True, most=9_999_999),
    "tied": Argument(("false", "true"), "whether the output layer shares the table of tokens"),
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
    "plain_size": Argument(("128",), "with kv_rank, features of a head's keys without positions", counts=True),
    "rotary_size": Argument(("64",), "with kv_rank, features of a head's keys with rotary positions", counts=True),
    "value_size": Argument(("128",), "with kv_rank, features of a head's values", counts=True),
}  # fmt: skip
_DEEPSEEK = {
    "experts": "64", "top_k": "6", "expert_ffn": "1408", "shared_experts": "2", "dense_layers": "1", "kv_rank": "512",
}  # fmt: skip
_PRESETS = {
    "llama-7b": Preset(32, 4096, 32, 32, 11008, 32000, 2048),
    "llama2-13b": Preset(40, 5120, 40, 40, 13824, 32000, 4096),
    "llama2-70b": Preset(80, 8192, 64, 8, 28672, 32000, 4096),
    "llama3-8b": Preset(32, 4096, 32, 8, 14336, 128256, 8192),
    "llama3-70b": Preset(80, 8192, 64, 8, 28672, 128256, 8192),
    "llama3-405b": Preset(126, 16384, 128, 8, 53248, 128256, 8192),
    "mixtral-8x7b": Preset(32, 4096, 32, 8, 14336, 32000, 4096, {"experts": "8"}),
    "deepseek-v2-lite": Preset(27, 2048, 16, 16, 10944, 102400, 4096, _DEEPSEEK),
}


def _preset(numbers: Preset) -> ZooEntry:
    *values, others = numbers
    fixed = {"head_size": HEAD_SIZE, "tied": "false", **dict(zip(Preset._fields, values, strict=False)), **others}
    options = _OF_LLAMA | sequence(numbers.sequence)
    if "experts" in others:
        fixed = {key: argument.values[0] for key, argument in _EXPERTS.items()} | fixed
        options["capacity_factor"] = _EXPERTS["capacity_factor"]
    return preset(_llama, options, **fixed)


LLAMA = {
    "llama": ZooEntry(_llama, _SIZES | _OF_LLAMA),
    "moe": ZooEntry(_llama, _SIZES | _EXPERTS | _OF_LLAMA),
    **{name: _preset(sizes) for name, sizes in _PRESETS.items()},
}


def _mpt(name: str, arguments: Mapping[str, str]) -> Network:
    hidden, heads = int(arguments["hidden"]), int(arguments["heads"])
    of = Sizes(
        layers=int(arguments["layers"]),
        hidden=hidden,
        heads=heads,
        sequence=int(arguments["sequence"]),
        vocabulary=int(arguments["vocabulary"]),
        head_size=head_features(name, arguments),
        ffn=4 * hidden,
        fused=arguments["attention"] == "fused",
    )
    net = NetworkBuilder()
    top = net.add("embedding", "embedding", "input", features=hidden, vocabulary=of.vocabulary)
    how: dict[str, AttributeValue] = {"heads": of.heads, "causal": True, "fused": of.fused, "bias": "fixed"}
    for number in range(1, of.layers + 1):
        top = plain_block(net, f"layer{number}", top, of, biases=False, **how)
    top = net.add("layer_norm", "norm", top, shift=False)
    net.add("loss", "loss", net.linear("logits", top, of.vocabulary, tied=True, bias=False))
    notes = f"decoder of {of.layers} layers, {hidden} features, {heads} heads, {of.sequence} positions"
    return net.network(name, (of.sequence,), notes, dataset=None, optimizer="adam")


_OF_7B, _VOCABULARY = sequence(2048) | ATTENTION, 50432
MPT = {
    "mpt": ZooEntry(_mpt, sizes(layers=32, hidden=4096, heads=32, vocabulary=_VOCABULARY) | _OF_7B),
    "mpt-7b": preset(_mpt, _OF_7B, layers=32, hidden=4096, heads=32, vocabulary=_VOCABULARY),
    "mpt-30b": preset(_mpt, sequence(8192) | ATTENTION, layers=48, hidden=7168, heads=64, vocabulary=_VOCABULARY),
}


_RATE = 0.1
_BUCKETS = 32
_AS_SEQUENCE = "sequence"


@dataclass(frozen=True, slots=True)
class _Stack:
    """A stack of layers: its name, and what its layers attend to besides; empty: an encoder, which attends to none."""

    name: str
    encoded: str = ""


def _t5(name: str, arguments: Mapping[str, str]) -> Network:
    of = _t5_sizes(arguments)
    net = NetworkBuilder()
    rows = net.add("embedding", "embedding", "input", features=of.hidden, vocabulary=of.vocabulary)
    source = net.add("positions", "encoder.tokens", rows, count=of.encoder_sequence)
    target = net.add("positions", "decoder.tokens", rows, start=of.encoder_sequence, count=of.sequence)
    encoded = _stack(net, _Stack("encoder"), source, of)
    top = _stack(net, _Stack("decoder", encoded), target, of)
    net.add("loss", "loss", net.linear("logits", top, of.vocabulary, tied=True, bias=False))
    notes = (
        f"encoder and decoder of {of.layers} layers each, {of.hidden} features, {of.heads} heads of {of.head_size}, "
        f"{of.encoder_sequence} and {of.sequence} positions"
    )
    shape = (of.encoder_sequence + of.sequence,)
    return net.network(name, shape, notes, dataset=None, optimizer="adam")


def _t5_sizes(arguments: Mapping[str, str]) -> Sizes:
    layers, hidden, heads = (int(arguments[key]) for key in ("layers", "hidden", "heads"))
    encoded = int(arguments["sequence"])
    return Sizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        head_size=int(arguments["head_size"]),
        vocabulary=int(arguments["vocabulary"]),
        ffn=4 * hidden if arguments["ffn"] == FFN else int(arguments["ffn"]),
        sequence=encoded if arguments["target"] == _AS_SEQUENCE else int(arguments["target"]),
        encoder_sequence=encoded,
    )


def _stack(net: NetworkBuilder, stack: _Stack, source: str, of: Sizes) -> str:
    top = net.add("dropout", f"{stack.name}.dropout", source, rate=_RATE)
    for number in range(1, of.layers + 1):
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
    wide = net.linear(f"{name}.widen", net.add("rms_norm", f"{name}.norm", source), of.ffn, bias=False)
    wide = net.add("dropout", f"{name}.relu.dropout", net.relu(f"{name}.relu", wide), rate=_RATE)
    return _projected(net, name, wide, source, of)


def _projected(net: NetworkBuilder, name: str, inner: str, source: str, of: Sizes) -> str:
    """Append the linear layer back to hidden features, dropout, and the residual sum."""
    top = net.linear(f"{name}.project", inner, of.hidden, bias=False)
    return net.add("add", f"{name}.add", (net.add("dropout", f"{name}.dropout", top, rate=_RATE), source))


_OF_T5 = {
    "sequence": Argument(("512",), "positions that the encoder reads", counts=True, most=499_999),
    "target": Argument((_AS_SEQUENCE,), "positions that the decoder writes", counts=True, most=499_999),
}
_DIFFERENT = {
    "layers": Argument(("12",), "layers of encoder and decoder, each", counts=True),
    "head_size": Argument(("64",), "features of a head", counts=True),
}
_T5_FIXED = {"head_size": 64, "ffn": FFN, "vocabulary": 32128}
T5 = {
    "t5": ZooEntry(_t5, sizes(layers=12, hidden=768, heads=12, **_T5_FIXED) | _DIFFERENT | _OF_T5),
    "t5-small": preset(_t5, _OF_T5, layers=6, hidden=512, heads=8, **_T5_FIXED),
    "t5-base": preset(_t5, _OF_T5, layers=12, hidden=768, heads=12, **_T5_FIXED),
    "t5-large": preset(_t5, _OF_T5, layers=24, hidden=1024, heads=16, **_T5_FIXED),
}
