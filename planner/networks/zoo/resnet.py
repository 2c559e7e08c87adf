"""Networks of residual blocks.

``resnet18`` to ``resnet152``: He et al. (2016), arXiv:1512.03385: projections (1 x 1 convolutions) where sizes change,
batch normalisation after every convolution. Bottleneck blocks take their stride in the 3 x 3 convolution, as
torchvision and NVIDIA's "v1.5" do, or in the first 1 x 1, as in the paper and in Caffe. For small images the stem is
one 3 x 3 convolution of stride 1 without pooling, as in kuangliu/pytorch-cifar:
``resnet18:classes=10,input=32,stem=cifar``.

``resnet200``: full pre-activation, He et al. (2016b), arXiv:1603.05027, in the form of fb.resnet.torch: batch
normalisation and ReLU stand before convolutions; the first block of a stage takes its shortcut, a 1 x 1 convolution
without normalisation, behind them. The stride is in the 3 x 3 convolution. Nothing follows an addition.

``resnet110``, ``resnet5000``: three stages of n pairs of 3 x 3 convolutions of 16, 32 and 64 channels on images of
32 x 32, 6n + 2 weight layers (He et al. 2016, section 4.2), projections where sizes change. ``resnet1001``: three
stages of 111 pre-activation bottlenecks from 16 channels, 9n + 2 weight layers (He et al. 2016b). HyPar-Flow divides
these three between processes (Awan et al. 2020, arXiv:1911.05146).

``yolov3``: Redmon and Farhadi (2018), arXiv:1804.02767, as darknet's ``yolov3.cfg`` and ``yolov3-voc.cfg`` write it:
Darknet-53 without its classifier, then three detectors of 3 boxes a cell, coarse to fine, each of which reads the
features of the one before, upsampled, beside those that the body has at its size. Batch normalisation and leaky ReLU
follow every convolution but the last one of each detector, which has a bias. One softmax cross-entropy over all
3·(5 + classes) numbers of a cell stands for the losses of YOLO: little work beside the convolutions, but in truth many
small operations, whose launches are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from planner.domain.network import Network
from planner.errors import ParameterError
from planner.networks.builder import Argument, NetworkBuilder, ZooEntry

__all__ = ["PRERESNET", "RESNET", "YOLO"]


_PREACTIVATED_BLOCKS = {200: (3, 24, 36, 3), 1001: (111, 111, 111)}
_OF_CIFAR = {
    "input": Argument(("32",), "height and width of the image", counts=True),
    "classes": Argument(("10",), "classes told apart", counts=True),
}


def _preactivated(name: str, arguments: Mapping[str, str], *, depth: int) -> Network:
    net, is_small = NetworkBuilder(), depth > 200
    top = _stem(net, "cifar", 16) if is_small else _stem(net, "imagenet")
    for stage, blocks in enumerate(_PREACTIVATED_BLOCKS[depth]):
        for number in range(blocks):
            top = _preactivated_block(net, (stage, number), top, (16 if is_small else 64) << stage)
    top = net.top("pool5", net.norm_relu("last", top))
    notes = f"He et al. 2016 (identity mappings), {depth} weight layers, pre-activation"
    return _classified(net, top, name, {"input": "224", "classes": "1000"} | dict(arguments), notes)


def _preactivated_block(net: NetworkBuilder, place: tuple[int, int], source: str, channels: int) -> str:
    """Append a bottleneck block; the very first one reads what is already normalised."""
    stage, number = place
    block = f"stage{stage + 1}.{number + 1}"
    stride = 2 if stage and not number else 1
    top = source if place == (0, 0) else net.norm_relu(block, source)
    shortcut = source
    if not number:
        shortcut = net.convolution(f"{block}.project", top, 4 * channels, 1, stride=stride, bias=False)
    top = net.unit(f"{block}.conv2", net.unit(f"{block}.conv1", top, channels, 1), channels, 3, stride=stride)
    branch = net.convolution(f"{block}.conv3", top, 4 * channels, 1, bias=False)
    return net.add("add", f"{block}.add", (branch, shortcut))


PRERESNET = {
    f"resnet{depth}": ZooEntry(partial(_preactivated, depth=depth), {} if depth == 200 else _OF_CIFAR)
    for depth in _PREACTIVATED_BLOCKS
}


_RESNET_BLOCKS = {
    18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3),
    110: (18, 18, 18), 5000: (833, 833, 833),
}  # fmt: skip
_BOTTLENECKS = (50, 101, 152)
_COMMON = {
    "input": Argument(("224",), "height and width of the image", counts=True),
    "classes": Argument(("1000",), "classes told apart", counts=True),
    "stem": Argument(("imagenet", "cifar"), "7 x 7 convolution of stride 2 and pooling, or 3 x 3 of stride 1 alone"),
}
_STRIDE = {"stride": Argument(("3x3", "1x1"), "convolution of a bottleneck block that takes the stride")}


def _resnet(name: str, arguments: Mapping[str, str], *, depth: int) -> Network:
    net = NetworkBuilder()
    stem, width = arguments.get("stem", "cifar"), 64 if "stem" in arguments else 16
    top = _stem(net, stem, width)
    on_first = arguments.get("stride") == "1x1"
    for stage, blocks in enumerate(_RESNET_BLOCKS[depth]):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            block = f"stage{stage + 1}.{number + 1}"
            if depth in _BOTTLENECKS:
                branch = _bottleneck(net, block, top, width << stage, (stride, 1) if on_first else (1, stride))
                channels, is_projected = 4 * width << stage, not number
            else:
                branch = _basic(net, block, top, width << stage, stride)
                channels, is_projected = width << stage, stride > 1
            shortcut = top
            if is_projected:
                shortcut = net.convolution_norm(f"{block}.project", top, channels, 1, stride=stride)
            top = net.relu(f"{block}.relu", net.add("add", f"{block}.add", (branch, shortcut)))
    top = net.top("pool5", top)
    placed = f", stride on the {arguments['stride']} convolution" if depth in _BOTTLENECKS else ""
    of_stem = ", stem of kuangliu/pytorch-cifar" if arguments.get("stem") == "cifar" else ""
    return _classified(net, top, name, arguments, f"He et al. 2016, {depth} weight layers{placed}{of_stem}")


def _classified(net: NetworkBuilder, top: str, name: str, arguments: Mapping[str, str], notes: str) -> Network:
    side, classes = int(arguments["input"]), int(arguments["classes"])
    net.classify(top, classes)
    dataset = "imagenet-1k" if classes == 1000 else "cifar-10" if (side, classes) == (32, 10) else None
    return net.network(name, (3, side, side), notes, dataset)


def _stem(net: NetworkBuilder, kind: str, width: int = 64) -> str:
    if kind == "cifar":
        return net.unit("conv1", "input", width, 3)
    return net.pool("pool1", net.unit("conv1", "input", width, 7, stride=2), 3, 2, padding=1)


def _basic(net: NetworkBuilder, block: str, source: str, channels: int, stride: int) -> str:
    top = net.unit(f"{block}.conv1", source, channels, 3, stride=stride)
    return net.convolution_norm(f"{block}.conv2", top, channels, 3, padding=1)


def _bottleneck(net: NetworkBuilder, block: str, source: str, channels: int, strides: tuple[int, int]) -> str:
    top = net.unit(f"{block}.conv1", source, channels, 1, stride=strides[0])
    top = net.unit(f"{block}.conv2", top, channels, 3, stride=strides[1])
    return net.convolution_norm(f"{block}.conv3", top, 4 * channels, 1)


RESNET = {
    f"resnet{depth}": ZooEntry(
        partial(_resnet, depth=depth),
        _OF_CIFAR if len(blocks) == 3 else _COMMON | (_STRIDE if depth in _BOTTLENECKS else {}),
    )
    for depth, blocks in _RESNET_BLOCKS.items()
}


_DARKNET_BLOCKS = (1, 2, 8, 8, 4)
"""Residual blocks of Darknet-53 a stage; each stage begins by halving the sides and doubling the channels."""
_BOXES = 3
_COARSEST = 32
"""Pixels a side of the coarsest detector's cells."""
_OF_YOLO = {
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
            top = _leaky_unit(net, f"detector{number}.reduce", top, width, 1)
            top = net.add("upsample", f"detector{number}.upsample", top, factor=2)
            top = net.add("concat", f"detector{number}.concat", (top, route))
        top = _detector(net, f"detector{number}", top, width, _BOXES * (5 + classes))
    notes = f"Redmon and Farhadi 2018 on Darknet-53, {classes} classes, losses simplified"
    return net.network(name, (3, side, side), notes, dataset=None)


def _darknet53(net: NetworkBuilder) -> list[str]:
    """Append the body and return the last layer of every stage."""
    top = _leaky_unit(net, "conv1", "input", 32, 3)
    ends = []
    for stage, blocks in enumerate(_DARKNET_BLOCKS, 1):
        channels = 32 << stage
        top = _leaky_unit(net, f"stage{stage}.down", top, channels, 3, stride=2)
        for number in range(1, blocks + 1):
            block = f"stage{stage}.{number}"
            branch = _leaky_unit(net, f"{block}.conv1", top, channels // 2, 1)
            top = net.add("add", f"{block}.add", (_leaky_unit(net, f"{block}.conv2", branch, channels, 3), top))
        ends.append(top)
    return ends


def _detector(net: NetworkBuilder, name: str, source: str, width: int, outputs: int) -> str:
    """Append five convolutions, whose last one is returned, and behind it what predicts the boxes, with its loss."""
    for number in range(1, 6):
        source = _leaky_unit(net, f"{name}.conv{number}", source, width * (2 - number % 2), 1 if number % 2 else 3)
    boxes = net.convolution(f"{name}.boxes", _leaky_unit(net, f"{name}.conv6", source, 2 * width, 3), outputs, 1)
    net.add("loss", f"{name}.loss", net.add("flatten", f"{name}.flatten", boxes))
    return source


def _leaky_unit(net: NetworkBuilder, name: str, source: str, channels: int, kernel: int, *, stride: int = 1) -> str:
    """Append convolution, batch normalisation and leaky ReLU; padding keeps the size but for the stride."""
    norm = net.convolution_norm(name, source, channels, kernel, stride=stride, padding=kernel // 2)
    return net.add("activation", f"{name}.leaky", norm, function="leaky_relu")


YOLO = {"yolov3": ZooEntry(_yolov3, _OF_YOLO)}
