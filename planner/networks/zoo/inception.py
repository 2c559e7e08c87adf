"""Inception v3: Szegedy et al. (2016), arXiv:1512.00567, as torchvision ships it, without the auxiliary head.

Input 299 x 299; every convolution is followed by batch normalisation and ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder, Pair
from planner.networks.zoo.entry import ZooEntry

__all__ = ["ENTRIES"]

Step = tuple[int, Pair]  # channels, kernel; sizes are kept by padding
_WIDE, _TALL = (1, 7), (7, 1)


def _inception_v3(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = _unit(net, "conv1", "input", 32, 3, stride=2)
    top = _unit(net, "conv2", top, 32, 3)
    top = net.pool("pool1", _chain(net, "conv3", top, (64, 3)), 3, 2)
    top = _unit(net, "conv5", _unit(net, "conv4", top, 80, 1), 192, 3)
    top = net.pool("pool2", top, 3, 2)
    for block, projected in (("5a", 32), ("5b", 64), ("5c", 64)):
        top = _block_35(net, block, top, projected)
    top = _reduction_17(net, "6a", top)
    for block, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        top = _block_17(net, block, top, width)
    top = _reduction_8(net, "7a", top)
    for block in ("7b", "7c"):
        top = _block_8(net, block, top)
    top = net.add("flatten", "flatten", net.add("dropout", "dropout", net.add("global_pool", "pool3", top)))
    net.add("loss", "loss", net.linear("fc", top, 1000))
    return net.network(name, (3, 299, 299), "Szegedy et al. 2016 in torchvision's form, without the auxiliary head")


def _unit(net: NetworkBuilder, name: str, source: str, channels: int, kernel: Pair, *, stride: int = 1) -> str:
    """Append convolution without padding, batch normalisation and ReLU."""
    return net.relu(f"{name}.relu", net.convolution_norm(name, source, channels, kernel, stride=stride))


def _chain(net: NetworkBuilder, name: str, source: str, *steps: Step) -> str:
    """Append units that keep the size of the image, one behind the other."""
    for number, (channels, kernel) in enumerate(steps, 1):
        sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        unit = f"{name}.{number}" if len(steps) > 1 else name
        top = net.convolution_norm(unit, source, channels, kernel, padding=(sides[0] // 2, sides[1] // 2))
        source = net.relu(f"{unit}.relu", top)
    return source


def _pooled(net: NetworkBuilder, block: str, source: str, channels: int) -> str:
    pooled = net.pool(f"{block}.pool", source, 3, 1, padding=1, mode="average")
    return _chain(net, f"{block}.project", pooled, (channels, 1))


def _block_35(net: NetworkBuilder, block: str, source: str, projected: int) -> str:
    branches = (
        _chain(net, f"{block}.1x1", source, (64, 1)),
        _chain(net, f"{block}.5x5", source, (48, 1), (64, 5)),
        _chain(net, f"{block}.3x3", source, (64, 1), (96, 3), (96, 3)),
        _pooled(net, block, source, projected),
    )
    return net.add("concat", f"{block}.concat", branches)


def _reduction_17(net: NetworkBuilder, block: str, source: str) -> str:
    branches = (
        _unit(net, f"{block}.3x3", source, 384, 3, stride=2),
        _unit(net, f"{block}.deep", _chain(net, f"{block}.deep", source, (64, 1), (96, 3)), 96, 3, stride=2),
        net.pool(f"{block}.pool", source, 3, 2),
    )
    return net.add("concat", f"{block}.concat", branches)


def _block_17(net: NetworkBuilder, block: str, source: str, width: int) -> str:
    deep = ((width, 1), (width, _TALL), (width, _WIDE), (width, _TALL), (192, _WIDE))
    branches = (
        _chain(net, f"{block}.1x1", source, (192, 1)),
        _chain(net, f"{block}.7x7", source, (width, 1), (width, _WIDE), (192, _TALL)),
        _chain(net, f"{block}.deep", source, *deep),
        _pooled(net, block, source, 192),
    )
    return net.add("concat", f"{block}.concat", branches)


def _reduction_8(net: NetworkBuilder, block: str, source: str) -> str:
    deep = _chain(net, f"{block}.7x7", source, (192, 1), (192, _WIDE), (192, _TALL))
    branches = (
        _unit(net, f"{block}.3x3", _chain(net, f"{block}.3x3.reduce", source, (192, 1)), 320, 3, stride=2),
        _unit(net, f"{block}.7x7", deep, 192, 3, stride=2),
        net.pool(f"{block}.pool", source, 3, 2),
    )
    return net.add("concat", f"{block}.concat", branches)


def _block_8(net: NetworkBuilder, block: str, source: str) -> str:
    middle = _chain(net, f"{block}.3x3.reduce", source, (384, 1))
    deep = _chain(net, f"{block}.deep", source, (448, 1), (384, 3))
    branches = (
        _chain(net, f"{block}.1x1", source, (320, 1)),
        _chain(net, f"{block}.3x3.wide", middle, (384, (1, 3))),
        _chain(net, f"{block}.3x3.tall", middle, (384, (3, 1))),
        _chain(net, f"{block}.deep.wide", deep, (384, (1, 3))),
        _chain(net, f"{block}.deep.tall", deep, (384, (3, 1))),
        _pooled(net, block, source, 192),
    )
    return net.add("concat", f"{block}.concat", branches)


ENTRIES = {"inception-v3": ZooEntry(_inception_v3)}
