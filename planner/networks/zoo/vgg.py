"""VGG-16 and VGG-19: configurations D and E of Simonyan, Zisserman (2014), arXiv:1409.1556."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import ZooEntry

__all__ = ["ENTRIES", "convolution_stages"]


def convolution_stages(net: NetworkBuilder, stages: tuple[tuple[int, ...], ...]) -> str:
    """Append stages of 3 x 3 convolutions with ReLU, given by their channels, each ending in 2 x 2 max-pooling."""
    top = "input"
    for stage, widths in enumerate(stages, 1):
        for number, channels in enumerate(widths, 1):
            top = net.convolution_relu(f"conv{stage}_{number}", top, channels, 3, padding=1)
        top = net.pool(f"pool{stage}", top, 2, 2)
    return top


def _vgg(name: str, _arguments: Mapping[str, str], *, depth: int) -> Network:
    repeats = {16: 3, 19: 4}[depth]
    net = NetworkBuilder()
    stages = ((64,) * 2, (128,) * 2, (256,) * repeats, (512,) * repeats, (512,) * repeats)
    net.classifier(("fc6", "fc7", "fc8"), convolution_stages(net, stages), (4096, 4096))
    return net.network(name, (3, 224, 224), f"Simonyan and Zisserman 2014, {depth} weight layers, no batch norm")


ENTRIES = {f"vgg{depth}": ZooEntry(partial(_vgg, depth=depth)) for depth in (16, 19)}
