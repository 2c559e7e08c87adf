"""MPT: decoders of MosaicML (2023), "Introducing MPT-7B: a new standard for open-source, commercially usable LLMs".

As GPT, without biases anywhere: normalisation has a scale alone, and positions are linear biases of attention, which
have no parameters (ALiBi, Press et al. 2021, arXiv:2108.12409). The output layer shares the table of tokens; there is
no dropout. Sizes are those of mosaicml/mpt-7b and mpt-30b.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import AttributeValue, Network, family_of
from planner.errors import ParameterError
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import ZooEntry
from planner.networks.zoo.transformer_arguments import ATTENTION, Sizes, preset, sequence, sizes

__all__ = ["ENTRIES"]


def _mpt(name: str, arguments: Mapping[str, str]) -> Network:
    hidden, heads = int(arguments["hidden"]), int(arguments["heads"])
    if heads > hidden:
        raise ParameterError(f"argument heads of network {family_of(name)}", f"at most hidden = {hidden}", heads)
    of = Sizes(
        layers=int(arguments["layers"]),
        hidden=hidden,
        heads=heads,
        sequence=int(arguments["sequence"]),
        vocabulary=int(arguments["vocabulary"]),
        head_size=hidden // heads,
        ffn=4 * hidden,
        fused=arguments["attention"] == "fused",
    )
    net = NetworkBuilder()
    top = net.add("embedding", "embedding", "input", features=hidden, vocabulary=of.vocabulary)
    for number in range(1, of.layers + 1):
        top = _block(net, f"layer{number}", top, of)
    top = net.add("layer_norm", "norm", top, shift=False)
    net.add("loss", "loss", net.linear("logits", top, of.vocabulary, tied=True, bias=False))
    notes = f"decoder of {of.layers} layers, {hidden} features, {heads} heads, {of.sequence} positions"
    return net.network(name, (of.sequence,), notes, dataset=None, optimizer="adam")


def _block(net: NetworkBuilder, block: str, source: str, of: Sizes) -> str:
    name = f"{block}.attention"
    top = net.add("layer_norm", f"{name}.norm", source, shift=False)
    joined = net.linear(f"{name}.qkv", top, 3 * of.query_width, bias=False)
    how: dict[str, AttributeValue] = {"heads": of.heads, "causal": True, "fused": of.fused, "bias": "fixed"}
    core = net.add("attention", f"{name}.core", joined, **how)
    source = net.add("add", f"{name}.add", (net.linear(f"{name}.project", core, of.hidden, bias=False), source))
    name = f"{block}.mlp"
    wide = net.linear(f"{name}.widen", net.add("layer_norm", f"{name}.norm", source, shift=False), of.ffn, bias=False)
    wide = net.add("activation", f"{name}.gelu", wide, function="gelu")
    return net.add("add", f"{name}.add", (net.linear(f"{name}.narrow", wide, of.hidden, bias=False), source))


_OF_7B, _VOCABULARY = sequence(2048) | ATTENTION, 50432
ENTRIES = {
    "mpt": ZooEntry(_mpt, sizes(layers=32, hidden=4096, heads=32, vocabulary=_VOCABULARY) | _OF_7B),
    "mpt-7b": preset(_mpt, _OF_7B, layers=32, hidden=4096, heads=32, vocabulary=_VOCABULARY),
    "mpt-30b": preset(_mpt, sequence(8192) | ATTENTION, layers=48, hidden=7168, heads=64, vocabulary=_VOCABULARY),
}
