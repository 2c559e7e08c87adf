"""Inception with batch normalisation: Ioffe, Szegedy (2015), arXiv:1502.03167, as in apache/mxnet.

The network of example/image-classification/symbols/inception-bn.py: 5 x 5 convolutions are two of 3 x 3, sizes fall in
blocks of stride 2 that pass their input on through pooling, every convolution keeps its bias.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import ZooEntry

__all__ = ["ENTRIES"]

# block: 1x1; 3x3 reduced, 3x3; double 3x3 reduced, double 3x3; projection behind the pooling (0, 0: stride 2)
_BLOCKS = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}
_POOLED_BY_MAXIMUM = ("3c", "4e", "5b")


def _inception_bn(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.pool("pool1", _unit(net, "conv1", "input", 64, 7, stride=2), 3, 2)
    top = _unit(net, "conv2", _unit(net, "conv2.reduce", top, 64, 1), 192, 3)
    top = net.pool("pool2", top, 3, 2)
    for block, widths in _BLOCKS.items():
        top = _inception(net, block, top, widths)
    top = net.add("flatten", "flatten", net.add("global_pool", "pool5", top))
    net.add("loss", "loss", net.linear("fc", top, 1000))
    return net.network(name, (3, 224, 224), "Ioffe and Szegedy 2015 in MXNet's form")


def _unit(net: NetworkBuilder, name: str, source: str, channels: int, kernel: int, *, stride: int = 1) -> str:
    """Append convolution with bias, batch normalisation and ReLU; padding keeps the size but for the stride."""
    unit = net.convolution_norm(name, source, channels, kernel, stride=stride, padding=kernel // 2, bias=True)
    return net.relu(f"{name}.relu", unit)


def _inception(net: NetworkBuilder, block: str, source: str, widths: tuple[int, ...]) -> str:
    one, reduced, three, reduced_double, double, projected = widths
    stride = 1 if one else 2
    top = _unit(net, f"{block}.3x3.reduce", source, reduced, 1)
    branches = [_unit(net, f"{block}.3x3", top, three, 3, stride=stride)]
    top = _unit(net, f"{block}.double.reduce", source, reduced_double, 1)
    top = _unit(net, f"{block}.double.1", top, double, 3)
    branches.append(_unit(net, f"{block}.double.2", top, double, 3, stride=stride))
    mode = "max" if block in _POOLED_BY_MAXIMUM else "average"
    branches.append(net.pool(f"{block}.pool", source, 3, stride, padding=1, mode=mode))
    if one:
        branches[-1] = _unit(net, f"{block}.project", branches[-1], projected, 1)
        branches.insert(0, _unit(net, f"{block}.1x1", source, one, 1))
    return net.add("concat", f"{block}.concat", tuple(branches))


ENTRIES = {"inception-bn": ZooEntry(_inception_bn)}
