"""MobileNetV2 of width 1: Sandler et al. (2018), arXiv:1801.04381, as torchvision ships it.

Inverted residual blocks: a 1 x 1 convolution widens, a 3 x 3 works on every channel alone, a 1 x 1 narrows, without an
activation behind it. ReLU6 costs what ReLU does and stands as ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import ZooEntry

__all__ = ["ENTRIES"]

# stage: factor of widening, channels out, blocks, stride of the first (table 2 of the paper)
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _mobilenet_v2(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top, width = net.relu("conv1.relu", net.convolution_norm("conv1", "input", 32, 3, stride=2, padding=1)), 32
    for stage, (factor, channels, blocks, stride) in enumerate(_STAGES, 1):
        for number in range(1, blocks + 1):
            block = _block(net, f"stage{stage}.{number}", top, (factor * width, channels), stride if number == 1 else 1)
            top = block if number == 1 else net.add("add", f"stage{stage}.{number}.add", (block, top))
            width = channels
    top = net.relu("conv2.relu", net.convolution_norm("conv2", top, 1280, 1))
    top = net.add("dropout", "dropout", net.add("flatten", "flatten", net.add("global_pool", "pool", top)), rate=0.2)
    net.add("loss", "loss", net.linear("fc", top, 1000))
    return net.network(name, (3, 224, 224), "Sandler et al. 2018, width 1, in torchvision's form")


def _block(net: NetworkBuilder, block: str, source: str, widths: tuple[int, int], stride: int) -> str:
    wide, channels = widths
    if block != "stage1.1":  # the first one has nothing to widen
        source = net.relu(f"{block}.widen.relu", net.convolution_norm(f"{block}.widen", source, wide, 1))
    top = net.convolution_norm(f"{block}.depthwise", source, wide, 3, stride=stride, padding=1, groups=wide)
    return net.convolution_norm(f"{block}.narrow", net.relu(f"{block}.depthwise.relu", top), channels, 1)


ENTRIES = {"mobilenet-v2": ZooEntry(_mobilenet_v2)}
