"""Vision transformers: Dosovitskiy et al. (2020), arXiv:2010.11929, as torchvision ships them.

A convolution turns patches into features, a class token goes before them, learned positions are added; then blocks as
in GPT, without a mask, one more normalisation, and a linear layer on the class token. No dropout.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network, family_of
from planner.errors import ParameterError
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import Argument, ZooEntry
from planner.networks.zoo.transformer_arguments import ATTENTION, Sizes, preset, sizes

__all__ = ["ENTRIES"]

_CHANNELS = 3
_FFN = "4 x hidden"
_IMAGENET_CLASSES = 1000


def _vit(name: str, arguments: Mapping[str, str]) -> Network:
    of, side, patch = _architecture(name, arguments), int(arguments["image"]), int(arguments["patch"])
    net = NetworkBuilder()
    top = net.convolution("patches", "input", of.hidden, patch, stride=patch)
    top = net.add("class_token", "class_token", top)
    for number in range(1, of.layers + 1):
        top = _block(net, f"layer{number}", top, of)
    top = net.add("first_position", "first", net.add("layer_norm", "norm", top))
    net.add("loss", "loss", net.linear("classes", top, of.classes))
    notes = f"encoder of {of.layers} layers, {of.hidden} features, {of.heads} heads, patches of {patch} x {patch}"
    dataset = "imagenet-1k" if of.classes == _IMAGENET_CLASSES else None
    return net.network(name, (_CHANNELS, side, side), notes, dataset, optimizer="adam")


def _architecture(name: str, arguments: Mapping[str, str]) -> Sizes:
    keys = ("layers", "hidden", "heads", "image", "patch", "classes")
    layers, hidden, heads, side, patch, classes = (int(arguments[key]) for key in keys)
    family = family_of(name)
    if heads > hidden:
        raise ParameterError(f"argument heads of network {family}", f"at most hidden = {hidden}", heads)
    if patch > side:
        raise ParameterError(f"argument patch of network {family}", f"at most image = {side}", patch)
    return Sizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        head_size=hidden // heads,
        ffn=4 * hidden if arguments["ffn"] == _FFN else int(arguments["ffn"]),
        sequence=(side // patch) ** 2 + 1,
        fused=arguments["attention"] == "fused",
        classes=classes,
    )


def _block(net: NetworkBuilder, block: str, source: str, of: Sizes) -> str:
    name = f"{block}.attention"
    joined = net.linear(f"{name}.qkv", net.add("layer_norm", f"{name}.norm", source), 3 * of.query_width)
    core = net.add("attention", f"{name}.core", joined, heads=of.heads, fused=of.fused)
    source = net.add("add", f"{name}.add", (net.linear(f"{name}.project", core, of.hidden), source))
    name = f"{block}.mlp"
    wide = net.linear(f"{name}.widen", net.add("layer_norm", f"{name}.norm", source), of.ffn)
    wide = net.add("activation", f"{name}.gelu", wide, function="gelu")
    return net.add("add", f"{name}.add", (net.linear(f"{name}.narrow", wide, of.hidden), source))


_COMMON = {
    "image": Argument(("224",), "height and width of the image", counts=True),
    "classes": Argument(("1000",), "classes told apart", counts=True, most=999_999),
    **ATTENTION,
}
_PATCH = {"patch": Argument(("16",), "height and width of a patch", counts=True)}
ENTRIES = {
    "vit": ZooEntry(_vit, sizes(layers=12, hidden=768, heads=12, ffn=_FFN) | _PATCH | _COMMON),
    "vit-b16": preset(_vit, _COMMON, layers=12, hidden=768, heads=12, ffn=_FFN, patch=16),
    "vit-l16": preset(_vit, _COMMON, layers=24, hidden=1024, heads=16, ffn=_FFN, patch=16),
}
