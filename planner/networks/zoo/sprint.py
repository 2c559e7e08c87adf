"""``sprint-15``: a stand-in for the networks of the SPRINT work, not one of them.

Oyama et al. ("Predicting statistics of asynchronous SGD parameters for a large-scale distributed deep learning system
on GPU supercomputers", IEEE BigData 2016, and the slides on SPRINT) model three networks of 15 to 17 weight layers:
convolutions, each with optional max-pooling, then fully connected layers. Their layer lists, widths and input sizes
were never published. This network is of that class and is sized by what can be inferred from the published figures:

- 15 weight layers, and more than 100 kernels an iteration;
- 14.9 G multiply-adds forward, 89 GFLOP a training pass: 8 nodes of 8 K80 dies processed 720 images/s, 89 ms per
  image and die, at the 1 to 1.5 TFLOP/s that a die sustains;
- 56.7 M parameters: updating weights with momentum moves 20 bytes of host memory for each.

Nothing predicted for it is a prediction for the original networks.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import ZooEntry
from planner.networks.zoo.vgg import convolution_stages

__all__ = ["ENTRIES"]

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512))
_HIDDEN = (1600, 1600)


def _sprint(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    net.classifier(("fc13", "fc14", "fc15"), convolution_stages(net, _STAGES), _HIDDEN)
    notes = (
        "Stand-in of the class of networks in the SPRINT work (Oyama et al. 2016), whose layers were never published"
    )
    return net.network(name, (3, 224, 224), notes)


ENTRIES = {"sprint-15": ZooEntry(_sprint)}
