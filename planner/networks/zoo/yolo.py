"""YOLOv3: Redmon and Farhadi (2018), arXiv:1804.02767, as darknet's ``yolov3.cfg`` and ``yolov3-voc.cfg`` write it.

Darknet-53 without its classifier, then three detectors of 3 boxes a cell, coarse to fine: each reads the features of
the one before, upsampled, beside those that the body has at its size. Batch normalisation and leaky ReLU follow every
convolution but the last one of each detector, which has a bias.

The losses are simpler than those that YOLO trains with: one softmax cross-entropy over all numbers of a detector stands
for matching boxes to targets, the error of their places and sizes, and the cross-entropies of objects and classes. All
of that works on 3·(5 + classes) numbers a cell, little beside the convolutions, but in many small operations, whose
launches are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.errors import ParameterError
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import Argument, ZooEntry

__all__ = ["ENTRIES"]

_BLOCKS = (1, 2, 8, 8, 4)
"""Residual blocks of Darknet-53 a stage; each stage begins by halving the sides and doubling the channels."""
_BOXES = 3
_COARSEST = 32
"""Pixels a side of the coarsest detector's cells."""
_ARGUMENTS = {
    "input": Argument(("416",), "height and width of the image, a multiple of 32", counts=True),
    "classes": Argument(("20",), "classes told apart: 20 of PASCAL VOC, 80 of COCO", counts=True),
}


def _yolov3(name: str, arguments: Mapping[str, str]) -> Network:
    side, classes = int(arguments["input"]), int(arguments["classes"])
    if side % _COARSEST:
        raise ParameterError("argument input of network yolov3", f"a multiple of {_COARSEST}", side)
    net = NetworkBuilder()
    *_, fine, middle, top = _darknet53(net)
    for number, route in enumerate((None, middle, fine), 1):
        width = 1024 >> number
        if route is not None:
            top = _unit(net, f"detector{number}.reduce", top, width, 1)
            top = net.add("upsample", f"detector{number}.upsample", top, factor=2)
            top = net.add("concat", f"detector{number}.concat", (top, route))
        top = _detector(net, f"detector{number}", top, width, _BOXES * (5 + classes))
    notes = f"Redmon and Farhadi 2018 on Darknet-53, {classes} classes, losses simplified"
    return net.network(name, (3, side, side), notes, dataset=None)


def _darknet53(net: NetworkBuilder) -> list[str]:
    """Append the body and return the last layer of every stage."""
    top = _unit(net, "conv1", "input", 32, 3)
    ends = []
    for stage, blocks in enumerate(_BLOCKS, 1):
        channels = 32 << stage
        top = _unit(net, f"stage{stage}.down", top, channels, 3, stride=2)
        for number in range(1, blocks + 1):
            block = f"stage{stage}.{number}"
            branch = _unit(net, f"{block}.conv1", top, channels // 2, 1)
            top = net.add("add", f"{block}.add", (_unit(net, f"{block}.conv2", branch, channels, 3), top))
        ends.append(top)
    return ends


def _detector(net: NetworkBuilder, name: str, source: str, width: int, outputs: int) -> str:
    """Append five convolutions, whose last one is returned, and behind it what predicts the boxes, with its loss."""
    for number in range(1, 6):
        source = _unit(net, f"{name}.conv{number}", source, width * (2 - number % 2), 1 if number % 2 else 3)
    boxes = net.convolution(f"{name}.boxes", _unit(net, f"{name}.conv6", source, 2 * width, 3), outputs, 1)
    net.add("loss", f"{name}.loss", net.add("flatten", f"{name}.flatten", boxes))
    return source


def _unit(net: NetworkBuilder, name: str, source: str, channels: int, kernel: int, *, stride: int = 1) -> str:
    """Append convolution, batch normalisation and leaky ReLU; padding keeps the size but for the stride."""
    norm = net.convolution_norm(name, source, channels, kernel, stride=stride, padding=kernel // 2)
    return net.add("activation", f"{name}.leaky", norm, function="leaky_relu")


ENTRIES = {"yolov3": ZooEntry(_yolov3, _ARGUMENTS)}
