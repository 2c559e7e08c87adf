"""T5: an encoder and a decoder that attends to it, Raffel et al. (2019), arXiv:1910.10683, version 1.0.

Normalisation by the root mean square before each part and at the end of both stacks, no biases, ReLU, dropout of 0.1.
Positions are biases of attention, learned in 32 buckets of distances, one table a stack, which its first layer holds.
The width of attention is heads x head_size, whatever the hidden features. Both stacks and the output layer share the
table of tokens. A sample has ``sequence`` positions for the encoder and ``target`` for the decoder, looked up together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.domain.network import AttributeValue, Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import Argument, ZooEntry
from planner.networks.zoo.transformer_arguments import Sizes, preset, sizes

__all__ = ["ENTRIES"]

_RATE = 0.1
_BUCKETS = 32
_AS_SEQUENCE = "sequence"
_FFN = "4 x hidden"


@dataclass(frozen=True, slots=True)
class _Stack:
    """A stack of layers: its name, and what its layers attend to besides; empty: an encoder, which attends to none."""

    name: str
    encoded: str = ""


def _t5(name: str, arguments: Mapping[str, str]) -> Network:
    of = _architecture(arguments)
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


def _architecture(arguments: Mapping[str, str]) -> Sizes:
    layers, hidden, heads = (int(arguments[key]) for key in ("layers", "hidden", "heads"))
    encoded = int(arguments["sequence"])
    return Sizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        head_size=int(arguments["head_size"]),
        vocabulary=int(arguments["vocabulary"]),
        ffn=4 * hidden if arguments["ffn"] == _FFN else int(arguments["ffn"]),
        sequence=encoded if arguments["target"] == _AS_SEQUENCE else int(arguments["target"]),
        encoder_sequence=encoded,
    )


def _stack(net: NetworkBuilder, stack: _Stack, source: str, of: Sizes) -> str:
    top = net.add("dropout", f"{stack.name}.dropout", source, rate=_RATE)
    for number in range(1, of.layers + 1):
        block = f"{stack.name}.layer{number}"
        top = _attention(net, block, top, of, causal=bool(stack.encoded), buckets=_BUCKETS if number == 1 else 0)
        if stack.encoded:
            top = _cross_attention(net, block, top, stack.encoded, of)
        top = _feed_forward(net, block, top, of)
    top = net.add("rms_norm", f"{stack.name}.norm", top)
    return net.add("dropout", f"{stack.name}.norm.dropout", top, rate=_RATE)


def _attention(net: NetworkBuilder, block: str, source: str, of: Sizes, *, causal: bool, buckets: int) -> str:
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


def _feed_forward(net: NetworkBuilder, block: str, source: str, of: Sizes) -> str:
    name = f"{block}.mlp"
    wide = net.linear(f"{name}.widen", net.add("rms_norm", f"{name}.norm", source), of.ffn, bias=False)
    wide = net.add("dropout", f"{name}.relu.dropout", net.relu(f"{name}.relu", wide), rate=_RATE)
    return _projected(net, name, wide, source, of)


def _projected(net: NetworkBuilder, name: str, inner: str, source: str, of: Sizes) -> str:
    """Append the linear layer back to hidden features, dropout, and the residual sum."""
    top = net.linear(f"{name}.project", inner, of.hidden, bias=False)
    return net.add("add", f"{name}.add", (net.add("dropout", f"{name}.dropout", top, rate=_RATE), source))


_COMMON = {
    "sequence": Argument(("512",), "positions that the encoder reads", counts=True, most=499_999),
    "target": Argument((_AS_SEQUENCE,), "positions that the decoder writes", counts=True, most=499_999),
}
_DIFFERENT = {
    "layers": Argument(("12",), "layers of encoder and decoder, each", counts=True),
    "head_size": Argument(("64",), "features of a head", counts=True),
}
_FIXED = {"head_size": 64, "ffn": _FFN, "vocabulary": 32128}
ENTRIES = {
    "t5": ZooEntry(_t5, sizes(layers=12, hidden=768, heads=12, **_FIXED) | _DIFFERENT | _COMMON),
    "t5-small": preset(_t5, _COMMON, layers=6, hidden=512, heads=8, **_FIXED),
    "t5-base": preset(_t5, _COMMON, layers=12, hidden=768, heads=12, **_FIXED),
    "t5-large": preset(_t5, _COMMON, layers=24, hidden=1024, heads=16, **_FIXED),
}
