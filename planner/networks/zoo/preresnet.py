"""ResNet-200 with full pre-activation: He et al. (2016b), arXiv:1603.05027, in the form of fb.resnet.torch.

Batch normalisation and ReLU stand before convolutions; the first block of a stage takes its shortcut, a 1 x 1
convolution without normalisation, behind them. The stride is in the 3 x 3 convolution. Nothing follows an addition.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import ZooEntry

__all__ = ["ENTRIES"]

_BLOCKS = (3, 24, 36, 3)


def _resnet200(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.relu("conv1.relu", net.convolution_norm("conv1", "input", 64, 7, stride=2, padding=3))
    top = net.pool("pool1", top, 3, 2, padding=1)
    for stage, blocks in enumerate(_BLOCKS):
        for number in range(blocks):
            top = _block(net, (stage, number), top)
    top = net.add("flatten", "flatten", net.add("global_pool", "pool5", _norm_relu(net, "last", top)))
    net.add("loss", "loss", net.linear("fc", top, 1000))
    return net.network(name, (3, 224, 224), "He et al. 2016 (identity mappings), 200 weight layers, pre-activation")


def _block(net: NetworkBuilder, place: tuple[int, int], source: str) -> str:
    """Append a bottleneck block; the very first one reads what is already normalised."""
    stage, number = place
    block, channels = f"stage{stage + 1}.{number + 1}", 64 << stage
    stride = 2 if stage and not number else 1
    top = source if place == (0, 0) else _norm_relu(net, block, source)
    shortcut = source
    if not number:
        shortcut = net.convolution(f"{block}.project", top, 4 * channels, 1, stride=stride, bias=False)
    top = net.relu(f"{block}.conv1.relu", net.convolution_norm(f"{block}.conv1", top, channels, 1))
    top = net.convolution_norm(f"{block}.conv2", top, channels, 3, stride=stride, padding=1)
    top = net.relu(f"{block}.conv2.relu", top)
    branch = net.convolution(f"{block}.conv3", top, 4 * channels, 1, bias=False)
    return net.add("add", f"{block}.add", (branch, shortcut))


def _norm_relu(net: NetworkBuilder, name: str, source: str) -> str:
    return net.relu(f"{name}.relu", net.add("batch_norm", f"{name}.norm", source))


ENTRIES = {"resnet200": ZooEntry(_resnet200)}
