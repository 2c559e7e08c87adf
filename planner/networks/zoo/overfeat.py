"""OverFeat, the fast model: Sermanet et al. (2014), arXiv:1312.6229, as in soumith/convnet-benchmarks."""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import ZooEntry

__all__ = ["ENTRIES"]


def _overfeat(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.pool("pool1", net.convolution_relu("conv1", "input", 96, 11, stride=4), 2, 2)
    top = net.pool("pool2", net.convolution_relu("conv2", top, 256, 5), 2, 2)
    for number, channels in ((3, 512), (4, 1024), (5, 1024)):
        top = net.convolution_relu(f"conv{number}", top, channels, 3, padding=1)
    net.classifier(("fc6", "fc7", "fc8"), net.pool("pool5", top, 2, 2), (3072, 4096))
    return net.network(name, (3, 231, 231), "Sermanet et al. 2014, fast model, as in convnet-benchmarks")


ENTRIES = {"overfeat": ZooEntry(_overfeat)}
