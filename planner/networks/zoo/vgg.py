"""VGG-11, VGG-13, VGG-16 and VGG-19: configurations A, B, D and E of Simonyan, Zisserman (2014), arXiv:1409.1556."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import ZooEntry

__all__ = ["ENTRIES", "convolution_stages"]

# weight layers: convolutions in the first two stages, in the other three
_REPEATS = {11: (1, 2), 13: (2, 2), 16: (2, 3), 19: (2, 4)}


def convolution_stages(net: NetworkBuilder, stages: tuple[tuple[int, ...], ...]) -> str:
    """Append stages of 3 x 3 convolutions with ReLU, given by their channels, each ending in 2 x 2 max-pooling."""
    top = "input"
    for stage, widths in enumerate(stages, 1):
        for number, channels in enumerate(widths, 1):
            top = net.convolution_relu(f"conv{stage}_{number}", top, channels, 3, padding=1)
        top = net.pool(f"pool{stage}", top, 2, 2)
    return top


def _vgg(name: str, _arguments: Mapping[str, str], *, depth: int) -> Network:
    first, rest = _REPEATS[depth]
    net = NetworkBuilder()
    stages = ((64,) * first, (128,) * first, (256,) * rest, (512,) * rest, (512,) * rest)
    net.classifier(("fc6", "fc7", "fc8"), convolution_stages(net, stages), (4096, 4096))
    return net.network(name, (3, 224, 224), f"Simonyan and Zisserman 2014, {depth} weight layers, no batch norm")


ENTRIES = {f"vgg{depth}": ZooEntry(partial(_vgg, depth=depth)) for depth in _REPEATS}
