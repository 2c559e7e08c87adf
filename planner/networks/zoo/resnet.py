"""Residual networks with 18, 34, 50, 101 and 152 weight layers: He et al. (2016), arXiv:1512.03385.

Projections (1 x 1 convolutions) where sizes change, batch normalisation after every convolution. Bottleneck blocks
take their stride in the 3 x 3 convolution, as torchvision and NVIDIA's "v1.5" do, or in the first 1 x 1, as in the
paper and in Caffe. For small images the stem is one 3 x 3 convolution of stride 1 without pooling, as in
kuangliu/pytorch-cifar: ``resnet18:classes=10,input=32,stem=cifar``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import Argument, ZooEntry

__all__ = ["ENTRIES"]

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_COMMON = {
    "input": Argument(("224",), "height and width of the image", counts=True),
    "classes": Argument(("1000",), "classes told apart", counts=True),
    "stem": Argument(("imagenet", "cifar"), "7 x 7 convolution of stride 2 and pooling, or 3 x 3 of stride 1 alone"),
}
_STRIDE = {"stride": Argument(("3x3", "1x1"), "convolution of a bottleneck block that takes the stride")}


def _resnet(name: str, arguments: Mapping[str, str], *, depth: int) -> Network:
    net = NetworkBuilder()
    top = _stem(net, arguments["stem"])
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
    net.add("loss", "loss", net.linear("fc", top, int(arguments["classes"])))
    placed = "" if depth < 50 else f", stride on the {arguments['stride']} convolution"
    side = int(arguments["input"])
    stem = "" if arguments["stem"] == "imagenet" else ", stem of kuangliu/pytorch-cifar"
    notes = f"He et al. 2016, {depth} weight layers{placed}{stem}"
    return net.network(name, (3, side, side), notes, _dataset(side, int(arguments["classes"])))


def _dataset(side: int, classes: int) -> str | None:
    """Return the data set that a size of image and a number of classes are those of."""
    if classes == 1000:
        return "imagenet-1k"
    return "cifar-10" if (side, classes) == (32, 10) else None


def _stem(net: NetworkBuilder, kind: str) -> str:
    if kind == "cifar":
        return net.relu("conv1.relu", net.convolution_norm("conv1", "input", 64, 3, padding=1))
    top = net.relu("conv1.relu", net.convolution_norm("conv1", "input", 64, 7, stride=2, padding=3))
    return net.pool("pool1", top, 3, 2, padding=1)


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
    f"resnet{depth}": ZooEntry(partial(_resnet, depth=depth), _COMMON | (_STRIDE if depth >= 50 else {}))
    for depth in _BLOCKS
}
