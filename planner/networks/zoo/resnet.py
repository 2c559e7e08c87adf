"""Residual networks with 18, 34, 50, 101 and 152 weight layers: He et al. (2016), arXiv:1512.03385.

Projections (1 x 1 convolutions) where sizes change, batch normalisation after every convolution. Bottleneck blocks
take their stride in the 3 x 3 convolution, as torchvision and NVIDIA's "v1.5" do, or in the first 1 x 1, as in the
paper and in Caffe.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import Argument, ZooEntry

__all__ = ["ENTRIES"]

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_STRIDE = {"stride": Argument(("3x3", "1x1"), "convolution of a bottleneck block that takes the stride")}


def _resnet(name: str, arguments: Mapping[str, str], *, depth: int) -> Network:
    net = NetworkBuilder()
    top = net.relu("conv1.relu", net.convolution_norm("conv1", "input", 64, 7, stride=2, padding=3))
    top = net.pool("pool1", top, 3, 2, padding=1)
    on_first = arguments.get("stride") == "1x1"
    for stage, blocks in enumerate(_BLOCKS[depth]):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            block = f"stage{stage + 1}.{number + 1}"
            if depth < 50:
                branch = _basic(net, block, top, 64 << stage, stride)
                shortcut = _shortcut(net, block, top, 64 << stage, stride, project=stride > 1)
            else:
                branch = _bottleneck(net, block, top, 64 << stage, (stride, 1) if on_first else (1, stride))
                shortcut = _shortcut(net, block, top, 256 << stage, stride, project=not number)
            top = net.relu(f"{block}.relu", net.add("add", f"{block}.add", (branch, shortcut)))
    top = net.add("flatten", "flatten", net.add("global_pool", "pool5", top))
    net.add("loss", "loss", net.linear("fc", top, 1000))
    placed = "" if depth < 50 else f", stride on the {arguments['stride']} convolution"
    return net.network(name, (3, 224, 224), f"He et al. 2016, {depth} weight layers{placed}")


def _basic(net: NetworkBuilder, block: str, source: str, channels: int, stride: int) -> str:
    top = net.convolution_norm(f"{block}.conv1", source, channels, 3, stride=stride, padding=1)
    return net.convolution_norm(f"{block}.conv2", net.relu(f"{block}.conv1.relu", top), channels, 3, padding=1)


def _bottleneck(net: NetworkBuilder, block: str, source: str, channels: int, strides: tuple[int, int]) -> str:
    top = net.convolution_norm(f"{block}.conv1", source, channels, 1, stride=strides[0])
    top = net.relu(f"{block}.conv1.relu", top)
    top = net.convolution_norm(f"{block}.conv2", top, channels, 3, stride=strides[1], padding=1)
    top = net.relu(f"{block}.conv2.relu", top)
    return net.convolution_norm(f"{block}.conv3", top, 4 * channels, 1)


def _shortcut(net: NetworkBuilder, block: str, source: str, channels: int, stride: int, *, project: bool) -> str:
    return net.convolution_norm(f"{block}.project", source, channels, 1, stride=stride) if project else source


ENTRIES = {
    f"resnet{depth}": ZooEntry(partial(_resnet, depth=depth), _STRIDE if depth >= 50 else {}) for depth in _BLOCKS
}
