"""GoogLeNet: Szegedy et al. (2015), arXiv:1409.4842, in Caffe's form (``bvlc_googlenet``).

Biases and no batch normalisation; 5 x 5 convolutions as 5 x 5; pooling sizes rounded up. The two auxiliary heads,
whose losses weigh 0.3, nearly double the parameters (6 998 552 to 13 378 280) and exist in training only.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import Argument, ZooEntry

__all__ = ["ENTRIES"]

# block: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; projection behind the pooling
_BLOCKS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_POOLED = ("3b", "4e")
_HEADS = {"4a": "auxiliary1", "4d": "auxiliary2"}


def _googlenet(name: str, arguments: Mapping[str, str]) -> Network:
    auxiliary = arguments["auxiliary"] == "true"
    net = NetworkBuilder()
    top = net.convolution_relu("conv1", "input", 64, 7, stride=2, padding=3)
    top = net.add("lrn", "norm1", net.pool("pool1", top, 3, 2, ceil=True))
    top = net.convolution_relu("conv2.reduce", top, 64, 1)
    top = net.convolution_relu("conv2", top, 192, 3, padding=1)
    top = net.pool("pool2", net.add("lrn", "norm2", top), 3, 2, ceil=True)
    for block, widths in _BLOCKS.items():
        top = _inception(net, block, top, widths)
        if block in _POOLED:
            top = net.pool(f"pool{block[0]}", top, 3, 2, ceil=True)
        if auxiliary and block in _HEADS:
            _head(net, _HEADS[block], top)
    top = net.add("dropout", "dropout", net.add("global_pool", "pool5", top), rate=0.4)
    net.add("loss", "loss", net.linear("fc", net.add("flatten", "flatten", top), 1000))
    heads = "with both auxiliary heads" if auxiliary else "without auxiliary heads"
    return net.network(name, (3, 224, 224), f"Szegedy et al. 2015 in Caffe's form, {heads}")


def _inception(net: NetworkBuilder, block: str, source: str, widths: tuple[int, ...]) -> str:
    one, reduced_3, three, reduced_5, five, projected = widths
    branches = (
        net.convolution_relu(f"{block}.1x1", source, one, 1),
        net.convolution_relu(
            f"{block}.3x3", net.convolution_relu(f"{block}.3x3.reduce", source, reduced_3, 1), three, 3, padding=1
        ),
        net.convolution_relu(
            f"{block}.5x5", net.convolution_relu(f"{block}.5x5.reduce", source, reduced_5, 1), five, 5, padding=2
        ),
        net.convolution_relu(
            f"{block}.project", net.pool(f"{block}.pool", source, 3, 1, padding=1, ceil=True), projected, 1
        ),
    )
    return net.add("concat", f"{block}.concat", branches)


def _head(net: NetworkBuilder, name: str, source: str) -> None:
    top = net.pool(f"{name}.pool", source, 5, 3, mode="average", ceil=True)
    top = net.add("flatten", f"{name}.flatten", net.convolution_relu(f"{name}.conv", top, 128, 1))
    top = net.relu(f"{name}.fc1.relu", net.linear(f"{name}.fc1", top, 1024))
    top = net.linear(f"{name}.fc2", net.add("dropout", f"{name}.dropout", top, rate=0.7), 1000)
    net.add("loss", f"{name}.loss", top, weight=0.3)


ENTRIES = {
    "googlenet": ZooEntry(
        _googlenet, {"auxiliary": Argument(("false", "true"), "whether the two auxiliary heads are trained")}
    )
}
