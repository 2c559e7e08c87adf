"""Networks that normalise over channels and mix them with linear layers, on patches that a convolution makes.

``convnext-t``: Liu et al. (2022), arXiv:2201.03545. ``swin-t``: Liu et al. (2021), arXiv:2103.14030: attention within
windows of 7 x 7 positions, every other time shifted by 3, whose mask stands in the learned bias; four neighbours are
merged to one between stages, in one copy. Both as in torchvision, but blocks are dropped at the rate of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder, ZooEntry

__all__ = ["CONVNEXT", "SWIN"]

_WIDTH, _SIDE = 96, 56
"""Channels and rows of the first stage; each stage has twice as many, and half as many, as the one before."""
_CONVNEXT_BLOCKS = (3, 3, 9, 3)
_SWIN_BLOCKS = (2, 2, 6, 2)
_WINDOW, _HEAD = 7, 32


def _normed_image(net: NetworkBuilder, name: str, source: str, height: int) -> str:
    """Append layer normalisation of every pixel."""
    top = net.add("layer_norm", f"{name}.norm", net.add("sequence", f"{name}.pixels", source))
    return net.add("image", f"{name}.image", top, height=height)


def _widened(net: NetworkBuilder, name: str, source: str, width: int) -> str:
    """Append two linear layers, four times as wide between, with GELU."""
    top = net.add("activation", f"{name}.gelu", net.linear(f"{name}.wide", source, 4 * width), function="gelu")
    return net.linear(f"{name}.narrow", top, width)


def _convnext_t(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = _normed_image(net, "conv1", net.convolution("conv1", "input", _WIDTH, 4, stride=4), _SIDE)
    for stage, blocks in enumerate(_CONVNEXT_BLOCKS):
        width, side = _WIDTH << stage, _SIDE >> stage
        if stage:
            top = _normed_image(net, f"stage{stage + 1}.down", top, 2 * side)
            top = net.convolution(f"stage{stage + 1}.down", top, width, 2, stride=2)
        for number in range(1, blocks + 1):
            block = f"stage{stage + 1}.{number}"
            branch = net.convolution(f"{block}.depthwise", top, width, 7, padding=3, groups=width)
            branch = net.add("layer_norm", f"{block}.norm", net.add("sequence", f"{block}.pixels", branch))
            branch = net.add("image", f"{block}.image", _widened(net, block, branch, width), height=side)
            branch = net.add("layer_scale", f"{block}.scale", branch)
            branch = net.add("drop_path", f"{block}.drop", branch, rate=0.1)
            top = net.add("add", f"{block}.add", (branch, top))
    top = net.add("layer_norm", "norm", net.add("flatten", "flatten", net.add("global_pool", "pool", top)))
    net.add("loss", "loss", net.linear("fc", top, 1000))
    return net.network(name, (3, 224, 224), "Liu et al. 2022, tiny, in torchvision's form", optimizer="adam")


def _swin_t(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.add("sequence", "conv1.pixels", net.convolution("conv1", "input", _WIDTH, 4, stride=4))
    top = net.add("layer_norm", "conv1.norm", top)
    for stage, blocks in enumerate(_SWIN_BLOCKS):
        width, side = _WIDTH << stage, _SIDE >> stage
        if stage:
            merge = f"stage{stage + 1}.merge"
            top = net.add("windows", merge, top, height=2 * side, side=2, merged=True)
            top = net.linear(f"{merge}.linear", net.add("layer_norm", f"{merge}.norm", top), width, bias=False)
        for number in range(1, blocks + 1):
            block, shift = f"stage{stage + 1}.{number}", _WINDOW // 2 if number % 2 == 0 and side > _WINDOW else 0
            branch = _window_attention(net, block, top, (width, side, shift))
            top = net.add(
                "add", f"{block}.attention.add", (net.add("drop_path", f"{block}.attention.drop", branch), top)
            )
            branch = _widened(net, block, net.add("layer_norm", f"{block}.norm", top), width)
            top = net.add("add", f"{block}.add", (net.add("drop_path", f"{block}.drop", branch), top))
    top = net.add("image", "image", net.add("layer_norm", "norm", top), height=_WINDOW)
    top = net.add("flatten", "flatten", net.add("global_pool", "pool", top))
    net.add("loss", "loss", net.linear("fc", top, 1000))
    return net.network(name, (3, 224, 224), "Liu et al. 2021, tiny, in torchvision's form", optimizer="adam")


def _window_attention(net: NetworkBuilder, block: str, source: str, sizes: tuple[int, int, int]) -> str:
    width, side, shift = sizes
    order = {"height": side, "side": _WINDOW, "shift": shift}
    top = net.add("windows", f"{block}.windows", net.add("layer_norm", f"{block}.attention.norm", source), **order)
    top = net.add(
        "attention", f"{block}.attention", net.linear(f"{block}.qkv", top, 3 * width), heads=width // _HEAD,
        windows=(side // _WINDOW) ** 2, bias="learned", buckets=(2 * _WINDOW - 1) ** 2,
    )  # fmt: skip
    return net.add("windows", f"{block}.back", net.linear(f"{block}.project", top, width), **order, back=True)


CONVNEXT = {"convnext-t": ZooEntry(_convnext_t)}
SWIN = {"swin-t": ZooEntry(_swin_t)}
