"""Networks of images: plain chains, inverted residual blocks, patches, residual blocks, detectors.

``alexnet``: Krizhevsky, Sutskever, Hinton (2012) as Caffe ships it (``bvlc_alexnet``): two groups in conv2, conv4 and
conv5, local response normalisation before pooling, input 227 x 227. ``alexnet-owt``: the single tower of Krizhevsky
(2014), "One weird trick for parallelizing convolutional neural networks", as in torchvision: no groups, no
normalisation, dropout before fc6 and fc7. ``alexnet-mxnet``: the widths of 2012 without groups, normalisation behind
the pooling, no padding, so that fc6 reads 256 x 5 x 5 (apache/mxnet, example/image-classification/symbols/alexnet.py).
``overfeat``: the fast model of Sermanet et al. (2014), arXiv:1312.6229, as in soumith/convnet-benchmarks.
``vgg11``, ``vgg13``, ``vgg16``, ``vgg19``: configurations A, B, D and E of Simonyan, Zisserman (2014), arXiv:1409.1556.

``sprint-15``: a stand-in for the networks of the SPRINT work (Oyama et al., "Predicting statistics of asynchronous SGD
parameters for a large-scale distributed deep learning system on GPU supercomputers", IEEE BigData 2016, and slides),
which have 15 to 17 weight layers whose list, widths and input were never published. Sized by the published figures:
over 100 kernels an iteration; 14.9 G multiply-adds forward, 89 GFLOP a training pass (8 nodes of 8 K80 dies processed
720 images/s, 89 ms per image and die at the 1 to 1.5 TFLOP/s that a die sustains); 56.7 M parameters (updating weights
with momentum moves 20 bytes of host memory for each). Nothing predicted for it is a prediction for the originals.

Networks of inverted residual blocks.

A 1 x 1 convolution widens, a square one works on every channel alone, a 1 x 1 narrows, without an activation behind
it. Squeeze and excite multiplies channels by what two 1 x 1 convolutions make of their means (Hu et al. 2018,
arXiv:1709.01507). All as in torchvision.

``mobilenet-v2``: width 1 of Sandler et al. (2018), arXiv:1801.04381. ReLU6 costs what ReLU does and stands as ReLU.
``mobilenet-v3``: the large one of Howard et al. (2019), arXiv:1905.02244. ``efficientnet-b0``: Tan, Le (2019),
arXiv:1905.11946; blocks are dropped for some samples at the rate of the last one.

Networks that normalise over channels and mix them with linear layers, on patches that a convolution makes.

``convnext-t``: Liu et al. (2022), arXiv:2201.03545. ``swin-t``: Liu et al. (2021), arXiv:2103.14030: attention within
windows of 7 x 7 positions, every other time shifted by 3, whose mask stands in the learned bias; four neighbours are
merged to one between stages, in one copy. Both as in torchvision, but blocks are dropped at the rate of the last one.

Networks of residual blocks.

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
from typing import NamedTuple

from planner.domain.network import Network
from planner.errors import ParameterError
from planner.networks.builder import Argument, NetworkBuilder, ZooEntry


def _alexnet_grouped(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.convolution_relu("conv1", "input", 96, 11, stride=4)
    top = net.pool("pool1", net.add("lrn", "norm1", top), 3, 2, ceil=True)
    top = net.convolution_relu("conv2", top, 256, 5, padding=2, groups=2)
    top = net.pool("pool2", net.add("lrn", "norm2", top), 3, 2, ceil=True)
    top = net.convolution_relu("conv3", top, 384, 3, padding=1)
    top = net.convolution_relu("conv4", top, 384, 3, padding=1, groups=2)
    top = net.convolution_relu("conv5", top, 256, 3, padding=1, groups=2)
    top = net.pool("pool5", top, 3, 2, ceil=True)
    net.classifier(("fc6", "fc7", "fc8"), top, (4096, 4096))
    return net.network(name, (3, 227, 227), "Krizhevsky et al. 2012, grouped, in Caffe's form (bvlc_alexnet)")


def _alexnet_one_tower(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.convolution_relu("conv1", "input", 64, 11, stride=4, padding=2)
    top = net.pool("pool1", top, 3, 2)
    top = net.convolution_relu("conv2", top, 192, 5, padding=2)
    top = net.pool("pool2", top, 3, 2)
    for number, channels in ((3, 384), (4, 256), (5, 256)):
        top = net.convolution_relu(f"conv{number}", top, channels, 3, padding=1)
    top = net.add("flatten", "flatten", net.pool("pool5", top, 3, 2))
    for number in (6, 7):
        top = net.add("dropout", f"fc{number}.dropout", top)
        top = net.relu(f"fc{number}.relu", net.linear(f"fc{number}", top, 4096))
    net.add("loss", "loss", net.linear("fc8", top, 1000))
    return net.network(name, (3, 224, 224), "Krizhevsky 2014 (one weird trick), one tower, in torchvision's form")


def _alexnet_ungrouped(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.convolution_relu("conv1", "input", 96, 11, stride=4)
    top = net.add("lrn", "norm1", net.pool("pool1", top, 3, 2))
    top = net.convolution_relu("conv2", top, 256, 5, padding=2)
    top = net.add("lrn", "norm2", net.pool("pool2", top, 3, 2))
    for number, channels in ((3, 384), (4, 384), (5, 256)):
        top = net.convolution_relu(f"conv{number}", top, channels, 3, padding=1)
    net.classifier(("fc6", "fc7", "fc8"), net.pool("pool5", top, 3, 2), (4096, 4096))
    return net.network(name, (3, 224, 224), "Krizhevsky et al. 2012 without groups, in MXNet's form")


ALEXNET = {
    "alexnet": ZooEntry(_alexnet_grouped),
    "alexnet-owt": ZooEntry(_alexnet_one_tower),
    "alexnet-mxnet": ZooEntry(_alexnet_ungrouped),
}


_OF_MLP = {
    "input": Argument(("784",), "features of a sample", counts=True, most=999_999),
    "hidden": Argument(("512",), "features of each hidden layer", counts=True, most=999_999),
    "layers": Argument(("2",), "hidden layers", counts=True, most=999),
    "classes": Argument(("10",), "classes told apart", counts=True, most=999_999),
}


def _mlp(name: str, arguments: Mapping[str, str]) -> Network:
    features, hidden, layers, classes = (int(arguments[key]) for key in ("input", "hidden", "layers", "classes"))
    net = NetworkBuilder()
    top = "input"
    for number in range(1, layers + 1):
        top = net.relu(f"fc{number}.relu", net.linear(f"fc{number}", top, hidden))
    net.add("loss", "loss", net.linear(f"fc{layers + 1}", top, classes))
    return net.network(name, (features,), f"{layers} hidden layers of {hidden} features, ReLU", dataset=None)


MLP = {"mlp": ZooEntry(_mlp, _OF_MLP)}


def _overfeat(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.pool("pool1", net.convolution_relu("conv1", "input", 96, 11, stride=4), 2, 2)
    top = net.pool("pool2", net.convolution_relu("conv2", top, 256, 5), 2, 2)
    for number, channels in ((3, 512), (4, 1024), (5, 1024)):
        top = net.convolution_relu(f"conv{number}", top, channels, 3, padding=1)
    net.classifier(("fc6", "fc7", "fc8"), net.pool("pool5", top, 2, 2), (3072, 4096))
    return net.network(name, (3, 231, 231), "Sermanet et al. 2014, fast model, as in convnet-benchmarks")


OVERFEAT = {"overfeat": ZooEntry(_overfeat)}


# weight layers: convolutions in the first two stages, in the other three
_VGG_REPEATS = {11: (1, 2), 13: (2, 2), 16: (2, 3), 19: (2, 4)}


def _convolution_stages(net: NetworkBuilder, stages: tuple[tuple[int, ...], ...]) -> str:
    """Append stages of 3 x 3 convolutions with ReLU, given by their channels, each ending in 2 x 2 max-pooling."""
    top = "input"
    for stage, widths in enumerate(stages, 1):
        for number, channels in enumerate(widths, 1):
            top = net.convolution_relu(f"conv{stage}_{number}", top, channels, 3, padding=1)
        top = net.pool(f"pool{stage}", top, 2, 2)
    return top


def _vgg(name: str, _arguments: Mapping[str, str], *, depth: int) -> Network:
    first, rest = _VGG_REPEATS[depth]
    net = NetworkBuilder()
    stages = ((64,) * first, (128,) * first, (256,) * rest, (512,) * rest, (512,) * rest)
    net.classifier(("fc6", "fc7", "fc8"), _convolution_stages(net, stages), (4096, 4096))
    return net.network(name, (3, 224, 224), f"Simonyan and Zisserman 2014, {depth} weight layers, no batch norm")


VGG = {f"vgg{depth}": ZooEntry(partial(_vgg, depth=depth)) for depth in _VGG_REPEATS}


_SPRINT_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512))


def _sprint(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    net.classifier(("fc13", "fc14", "fc15"), _convolution_stages(net, _SPRINT_STAGES), (1600, 1600))
    notes = (
        "Stand-in of the class of networks in the SPRINT work (Oyama et al. 2016), whose layers were never published"
    )
    return net.network(name, (3, 224, 224), notes)


SPRINT = {"sprint-15": ZooEntry(_sprint)}


class _Block(NamedTuple):
    """Channels between and out, side of the kernel, stride, activation; of squeeze and excite the channels, or 0."""

    wide: int
    channels: int
    kernel: int
    stride: int
    function: str
    squeezed: int = 0
    gates: tuple[str, str] = ("relu", "hard_sigmoid")


def _inverted_residual(
    net: NetworkBuilder, block: str, source: str, width: int, of: _Block, *, dropped: float = 0.0
) -> str:
    """Append a block that reads ``width`` channels, and its sum with what it reads where that has the same shape."""
    top = source
    if of.wide != width:
        top = net.unit(f"{block}.widen", top, of.wide, 1, of.function)
    top = net.unit(f"{block}.depthwise", top, of.wide, of.kernel, of.function, stride=of.stride, groups=of.wide)
    if of.squeezed:
        gate = net.convolution(f"{block}.squeeze", net.add("global_pool", f"{block}.pool", top), of.squeezed, 1)
        gate = net.add("activation", f"{block}.squeeze.{of.gates[0]}", gate, function=of.gates[0])
        gate = net.convolution(f"{block}.excite", gate, of.wide, 1)
        gate = net.add("activation", f"{block}.excite.{of.gates[1]}", gate, function=of.gates[1])
        top = net.add("multiply", f"{block}.multiply", (top, gate))
    top = net.convolution_norm(f"{block}.narrow", top, of.channels, 1)
    if of.stride > 1 or of.channels != width:
        return top
    if dropped:
        top = net.add("drop_path", f"{block}.drop", top, rate=dropped)
    return net.add("add", f"{block}.add", (top, source))


def _end(net: NetworkBuilder, source: str) -> None:
    net.classify(net.add("dropout", "dropout", source, rate=0.2))


# stage: factor of widening, side of the kernel, stride of the first, channels out, blocks (tables of the papers)
_MOBILENET_V2_STAGES = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 3, 2, 32, 3), (6, 3, 2, 64, 4), (6, 3, 1, 96, 3), (6, 3, 2, 160, 3),
    (6, 3, 1, 320, 1),
)  # fmt: skip
_EFFICIENTNET_STAGES = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)  # fmt: skip


def _staged(name: str, _arguments: Mapping[str, str], *, stages: tuple[tuple[int, ...], ...], function: str) -> Network:
    """Return stages of blocks; with SiLU they squeeze and excite, and are dropped for some samples."""
    net, is_b0 = NetworkBuilder(), function == "silu"
    top, width = net.unit("conv1", "input", 32, 3, function, stride=2), 32
    for stage, (factor, kernel, stride, channels, blocks) in enumerate(stages, 1):
        for number in range(1, blocks + 1):
            sizes = (factor * width, channels, kernel, stride if number == 1 else 1)
            block = _Block(*sizes, function, width // 4 if is_b0 else 0, ("silu", "sigmoid"))
            top = _inverted_residual(net, f"stage{stage}.{number}", top, width, block, dropped=0.2 * is_b0)
            width = channels
    _end(net, net.top("pool", net.unit("conv2", top, 1280, 1, function)))
    source, optimizer = (
        ("Tan and Le 2019, B0", "rmsprop") if is_b0 else ("Sandler et al. 2018, width 1", "sgd-momentum")
    )
    return net.network(name, (3, 224, 224), f"{source}, in torchvision's form", optimizer=optimizer)


# block: side of the kernel, channels between and out, of squeeze and excite, stride (table 1 of the paper); the
# activation is ReLU in the first six, then hard swish
_MOBILENET_V3_BLOCKS = (
    (3, 16, 16, 0, 1), (3, 64, 24, 0, 2), (3, 72, 24, 0, 1), (5, 72, 40, 24, 2), (5, 120, 40, 32, 1),
    (5, 120, 40, 32, 1), (3, 240, 80, 0, 2), (3, 200, 80, 0, 1), (3, 184, 80, 0, 1), (3, 184, 80, 0, 1),
    (3, 480, 112, 120, 1), (3, 672, 112, 168, 1), (5, 672, 160, 168, 2), (5, 960, 160, 240, 1), (5, 960, 160, 240, 1),
)  # fmt: skip


def _mobilenet_v3(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top, width = net.unit("conv1", "input", 16, 3, "hard_swish", stride=2), 16
    for number, (kernel, wide, channels, squeezed, stride) in enumerate(_MOBILENET_V3_BLOCKS, 1):
        block = _Block(wide, channels, kernel, stride, "relu" if number <= 6 else "hard_swish", squeezed)
        top, width = _inverted_residual(net, f"block{number}", top, width, block), channels
    top = net.linear("fc1", net.top("pool", net.unit("conv2", top, 960, 1, "hard_swish")), 1280)
    _end(net, net.add("activation", "fc1.hard_swish", top, function="hard_swish"))
    return net.network(name, (3, 224, 224), "Howard et al. 2019, large, in torchvision's form", optimizer="rmsprop")


MOBILENET = {
    "mobilenet-v2": ZooEntry(partial(_staged, stages=_MOBILENET_V2_STAGES, function="relu")),
    "mobilenet-v3": ZooEntry(_mobilenet_v3),
}


EFFICIENTNET = {"efficientnet-b0": ZooEntry(partial(_staged, stages=_EFFICIENTNET_STAGES, function="silu"))}


_WIDTH, _SIDE = 96, 56
"""Channels and rows of the first stage; each stage has twice as many, and half as many, as the one before."""
_CONVNEXT_BLOCKS = (3, 3, 9, 3)
_SWIN_BLOCKS = (2, 2, 6, 2)
_WINDOW, _HEAD = 7, 32


def _normed_image(net: NetworkBuilder, name: str, source: str, height: int) -> str:
    """Append layer normalisation of every pixel."""
    top = net.add("layer_norm", f"{name}.norm", net.add("sequence", f"{name}.pixels", source))
    return net.add("image", f"{name}.image", top, height=height)


def _widened(net: NetworkBuilder, name: str, source: str, width: int) -> str:
    """Append two linear layers, four times as wide between, with GELU."""
    top = net.add("activation", f"{name}.gelu", net.linear(f"{name}.wide", source, 4 * width), function="gelu")
    return net.linear(f"{name}.narrow", top, width)


def _convnext_t(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = _normed_image(net, "conv1", net.convolution("conv1", "input", _WIDTH, 4, stride=4), _SIDE)
    for stage, blocks in enumerate(_CONVNEXT_BLOCKS):
        width, side = _WIDTH << stage, _SIDE >> stage
        if stage:
            top = _normed_image(net, f"stage{stage + 1}.down", top, 2 * side)
            top = net.convolution(f"stage{stage + 1}.down", top, width, 2, stride=2)
        for number in range(1, blocks + 1):
            block = f"stage{stage + 1}.{number}"
            branch = net.convolution(f"{block}.depthwise", top, width, 7, padding=3, groups=width)
            branch = net.add("layer_norm", f"{block}.norm", net.add("sequence", f"{block}.pixels", branch))
            branch = net.add("image", f"{block}.image", _widened(net, block, branch, width), height=side)
            branch = net.add("layer_scale", f"{block}.scale", branch)
            branch = net.add("drop_path", f"{block}.drop", branch, rate=0.1)
            top = net.add("add", f"{block}.add", (branch, top))
    top = net.add("layer_norm", "norm", net.top("pool", top))
    net.classify(top)
    return net.network(name, (3, 224, 224), "Liu et al. 2022, tiny, in torchvision's form", optimizer="adam")


def _swin_t(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.add("sequence", "conv1.pixels", net.convolution("conv1", "input", _WIDTH, 4, stride=4))
    top = net.add("layer_norm", "conv1.norm", top)
    for stage, blocks in enumerate(_SWIN_BLOCKS):
        width, side = _WIDTH << stage, _SIDE >> stage
        if stage:
            merge = f"stage{stage + 1}.merge"
            top = net.add("windows", merge, top, height=2 * side, side=2, merged=True)
            top = net.linear(f"{merge}.linear", net.add("layer_norm", f"{merge}.norm", top), width, bias=False)
        for number in range(1, blocks + 1):
            block, shift = f"stage{stage + 1}.{number}", _WINDOW // 2 if number % 2 == 0 and side > _WINDOW else 0
            order = {"height": side, "side": _WINDOW, "shift": shift}
            branch = net.add("layer_norm", f"{block}.attention.norm", top)
            branch = net.add("windows", f"{block}.windows", branch, **order)
            branch = net.add(
                "attention", f"{block}.attention", net.linear(f"{block}.qkv", branch, 3 * width), heads=width // _HEAD,
                windows=(side // _WINDOW) ** 2, bias="learned", buckets=(2 * _WINDOW - 1) ** 2,
            )  # fmt: skip
            branch = net.linear(f"{block}.project", branch, width)
            branch = net.add("windows", f"{block}.back", branch, **order, back=True)
            top = net.add(
                "add", f"{block}.attention.add", (net.add("drop_path", f"{block}.attention.drop", branch), top)
            )
            branch = _widened(net, block, net.add("layer_norm", f"{block}.norm", top), width)
            top = net.add("add", f"{block}.add", (net.add("drop_path", f"{block}.drop", branch), top))
    top = net.add("image", "image", net.add("layer_norm", "norm", top), height=_WINDOW)
    top = net.top("pool", top)
    net.classify(top)
    return net.network(name, (3, 224, 224), "Liu et al. 2021, tiny, in torchvision's form", optimizer="adam")


CONVNEXT = {"convnext-t": ZooEntry(_convnext_t)}
SWIN = {"swin-t": ZooEntry(_swin_t)}


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
