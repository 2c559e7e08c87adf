"""Networks whose branches are joined along the channels: inception blocks, dense blocks, and a U.

``googlenet``: Szegedy et al. (2015), arXiv:1409.4842, in Caffe's form (``bvlc_googlenet``): biases and no batch
normalisation; 5 x 5 convolutions as 5 x 5; pooling sizes rounded up. The two auxiliary heads, whose losses weigh 0.3,
nearly double the parameters (6 998 552 to 13 378 280) and exist in training only.

``inception-bn``: Ioffe, Szegedy (2015), arXiv:1502.03167, as in apache/mxnet
(example/image-classification/symbols/inception-bn.py): 5 x 5 convolutions are two of 3 x 3, sizes fall in blocks of
stride 2 that pass their input on through pooling, every convolution keeps its bias.

``inception-v3``: Szegedy et al. (2016), arXiv:1512.00567, as torchvision ships it, without the auxiliary head: input
299 x 299, batch normalisation and ReLU behind every convolution.

``densenet121``: Huang et al. (2017), arXiv:1608.06993, as in torchvision: every layer of a block reads all before it,
joined anew each time.

``unet``: Ronneberger et al. (2015), arXiv:1505.04597, in the form of milesial/Pytorch-UNet: convolutions are padded, so
that nothing is cropped, with batch normalisation and without bias; transposed convolutions double the sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from planner.domain.network import Network
from planner.errors import ParameterError
from planner.networks.builder import Argument, NetworkBuilder, Pair, ZooEntry

# block: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; projection behind the pooling
_GOOGLENET_BLOCKS = {
    "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64), "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64), "4c": (128, 128, 256, 24, 64, 64), "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128), "5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128),
}  # fmt: skip
_GOOGLENET_POOLED = ("3b", "4e")
_AUXILIARY_HEADS = {"4a": "auxiliary1", "4d": "auxiliary2"}


def _googlenet(name: str, arguments: Mapping[str, str]) -> Network:
    auxiliary = arguments["auxiliary"] == "true"
    net = NetworkBuilder()
    top = net.convolution_relu("conv1", "input", 64, 7, stride=2, padding=3)
    top = net.add("lrn", "norm1", net.pool("pool1", top, 3, 2, ceil=True))
    top = net.convolution_relu("conv2.reduce", top, 64, 1)
    top = net.convolution_relu("conv2", top, 192, 3, padding=1)
    top = net.pool("pool2", net.add("lrn", "norm2", top), 3, 2, ceil=True)
    for block, widths in _GOOGLENET_BLOCKS.items():
        top = _googlenet_block(net, block, top, widths)
        if block in _GOOGLENET_POOLED:
            top = net.pool(f"pool{block[0]}", top, 3, 2, ceil=True)
        if auxiliary and block in _AUXILIARY_HEADS:
            head = _AUXILIARY_HEADS[block]
            side = net.pool(f"{head}.pool", top, 5, 3, mode="average", ceil=True)
            side = net.add("flatten", f"{head}.flatten", net.convolution_relu(f"{head}.conv", side, 128, 1))
            side = net.relu(f"{head}.fc1.relu", net.linear(f"{head}.fc1", side, 1024))
            side = net.linear(f"{head}.fc2", net.add("dropout", f"{head}.dropout", side, rate=0.7), 1000)
            net.add("loss", f"{head}.loss", side, weight=0.3)
    top = net.add("dropout", "dropout", net.add("global_pool", "pool5", top), rate=0.4)
    net.classify(net.add("flatten", "flatten", top))
    heads = "with both auxiliary heads" if auxiliary else "without auxiliary heads"
    return net.network(name, (3, 224, 224), f"Szegedy et al. 2015 in Caffe's form, {heads}")


def _googlenet_block(net: NetworkBuilder, block: str, source: str, widths: tuple[int, ...]) -> str:
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


GOOGLENET = {
    "googlenet": ZooEntry(
        _googlenet, {"auxiliary": Argument(("false", "true"), "whether the two auxiliary heads are trained")}
    )
}


# block: 1x1; 3x3 reduced, 3x3; double 3x3 reduced, double 3x3; projection behind the pooling (0, 0: stride 2)
_INCEPTION_BN_BLOCKS = {
    "3a": (64, 64, 64, 64, 96, 32), "3b": (64, 64, 96, 64, 96, 64), "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128), "4b": (192, 96, 128, 96, 128, 128), "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128), "4e": (0, 128, 192, 192, 256, 0), "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}  # fmt: skip
_POOLED_BY_MAXIMUM = ("3c", "4e", "5b")


def _inception_bn(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    unit = partial(net.unit, bias=True)
    top = net.pool("pool1", unit("conv1", "input", 64, 7, stride=2), 3, 2)
    top = unit("conv2", unit("conv2.reduce", top, 64, 1), 192, 3)
    top = net.pool("pool2", top, 3, 2)
    for block, widths in _INCEPTION_BN_BLOCKS.items():
        top = _inception_bn_block(net, block, top, widths)
    net.classify(net.top("pool5", top))
    return net.network(name, (3, 224, 224), "Ioffe and Szegedy 2015 in MXNet's form")


def _inception_bn_block(net: NetworkBuilder, block: str, source: str, widths: tuple[int, ...]) -> str:
    one, reduced, three, reduced_double, double, projected = widths
    stride, unit = 1 if one else 2, partial(net.unit, bias=True)
    top = unit(f"{block}.3x3.reduce", source, reduced, 1)
    branches = [unit(f"{block}.3x3", top, three, 3, stride=stride)]
    top = unit(f"{block}.double.reduce", source, reduced_double, 1)
    top = unit(f"{block}.double.1", top, double, 3)
    branches.append(unit(f"{block}.double.2", top, double, 3, stride=stride))
    mode = "max" if block in _POOLED_BY_MAXIMUM else "average"
    branches.append(net.pool(f"{block}.pool", source, 3, stride, padding=1, mode=mode))
    if one:
        branches[-1] = unit(f"{block}.project", branches[-1], projected, 1)
        branches.insert(0, unit(f"{block}.1x1", source, one, 1))
    return net.add("concat", f"{block}.concat", tuple(branches))


INCEPTION_BN = {"inception-bn": ZooEntry(_inception_bn)}


Step = tuple[int, Pair]  # channels, kernel; sizes are kept by padding
_WIDE, _TALL = (1, 7), (7, 1)


def _inception_v3(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    unit, chains = partial(net.unit, padding=0), dict[str, tuple[Step, ...]]()
    top = unit("conv1", "input", 32, 3, stride=2)
    top = unit("conv2", top, 32, 3)
    top = net.pool("pool1", _chain(net, "conv3", top, (64, 3)), 3, 2)
    top = unit("conv5", unit("conv4", top, 80, 1), 192, 3)
    top = net.pool("pool2", top, 3, 2)
    for block, projected in (("5a", 32), ("5b", 64), ("5c", 64)):
        chains = {"1x1": ((64, 1),), "5x5": ((48, 1), (64, 5)), "3x3": ((64, 1), (96, 3), (96, 3))}
        top = _block(net, block, top, projected, chains)
    top = _reduction_17(net, "6a", top)
    for block, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        deep = ((width, 1), (width, _TALL), (width, _WIDE), (width, _TALL), (192, _WIDE))
        chains = {"1x1": ((192, 1),), "7x7": ((width, 1), (width, _WIDE), (192, _TALL)), "deep": deep}
        top = _block(net, block, top, 192, chains)
    top = _reduction_8(net, "7a", top)
    for block in ("7b", "7c"):
        top = _block_8(net, block, top)
    top = net.add("flatten", "flatten", net.add("dropout", "dropout", net.add("global_pool", "pool3", top)))
    net.classify(top)
    return net.network(name, (3, 299, 299), "Szegedy et al. 2016 in torchvision's form, without the auxiliary head")


def _chain(net: NetworkBuilder, name: str, source: str, *steps: Step) -> str:
    """Append units that keep the size of the image, one behind the other."""
    for number, step in enumerate(steps, 1):
        source = net.unit(f"{name}.{number}" if len(steps) > 1 else name, source, *step)
    return source


def _block(net: NetworkBuilder, block: str, source: str, projected: int, chains: Mapping[str, tuple[Step, ...]]) -> str:
    """Append chains, and a projection behind the pooling, side by side."""
    branches = [_chain(net, f"{block}.{name}", source, *steps) for name, steps in chains.items()]
    pooled = net.pool(f"{block}.pool", source, 3, 1, padding=1, mode="average")
    return net.add("concat", f"{block}.concat", (*branches, net.unit(f"{block}.project", pooled, projected, 1)))


def _reduction_17(net: NetworkBuilder, block: str, source: str) -> str:
    unit = partial(net.unit, padding=0, stride=2)
    branches = (
        unit(f"{block}.3x3", source, 384, 3),
        unit(f"{block}.deep", _chain(net, f"{block}.deep", source, (64, 1), (96, 3)), 96, 3),
        net.pool(f"{block}.pool", source, 3, 2),
    )
    return net.add("concat", f"{block}.concat", branches)


def _reduction_8(net: NetworkBuilder, block: str, source: str) -> str:
    unit = partial(net.unit, padding=0, stride=2)
    deep = _chain(net, f"{block}.7x7", source, (192, 1), (192, _WIDE), (192, _TALL))
    branches = (
        unit(f"{block}.3x3", _chain(net, f"{block}.3x3.reduce", source, (192, 1)), 320, 3),
        unit(f"{block}.7x7", deep, 192, 3),
        net.pool(f"{block}.pool", source, 3, 2),
    )
    return net.add("concat", f"{block}.concat", branches)


def _block_8(net: NetworkBuilder, block: str, source: str) -> str:
    middle = _chain(net, f"{block}.3x3.reduce", source, (384, 1))
    deep = _chain(net, f"{block}.deep", source, (448, 1), (384, 3))
    branches = (
        _chain(net, f"{block}.1x1", source, (320, 1)),
        _chain(net, f"{block}.3x3.wide", middle, (384, (1, 3))),
        _chain(net, f"{block}.3x3.tall", middle, (384, (3, 1))),
        _chain(net, f"{block}.deep.wide", deep, (384, (1, 3))),
        _chain(net, f"{block}.deep.tall", deep, (384, (3, 1))),
        net.unit(f"{block}.project", net.pool(f"{block}.pool", source, 3, 1, padding=1, mode="average"), 192, 1),
    )
    return net.add("concat", f"{block}.concat", branches)


INCEPTION_V3 = {"inception-v3": ZooEntry(_inception_v3)}


_DENSENET_BLOCKS = (6, 12, 24, 16)
_GROWTH = 32


def _densenet121(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.unit("conv1", "input", 2 * _GROWTH, 7, stride=2)
    top, channels = net.pool("pool1", top, 3, 2, padding=1), 2 * _GROWTH
    for block, layers in enumerate(_DENSENET_BLOCKS, 1):
        if block > 1:
            channels //= 2
            top = net.convolution(
                f"transition{block - 1}", net.norm_relu(f"transition{block - 1}", top), channels, 1, bias=False
            )
            top = net.pool(f"transition{block - 1}.pool", top, 2, 2, mode="average")
        features = [top]
        for number in range(1, layers + 1):
            layer = f"block{block}.{number}"
            inner = net.unit(f"{layer}.conv1", net.norm_relu(layer, top), 4 * _GROWTH, 1)
            features.append(net.convolution(f"{layer}.conv2", inner, _GROWTH, 3, padding=1, bias=False))
            top = net.add("concat", f"{layer}.concat", tuple(features))
        channels += layers * _GROWTH
    net.classify(net.top("pool", net.norm_relu("last", top)))
    return net.network(name, (3, 224, 224), "Huang et al. 2017, 121 weight layers, growth 32, in torchvision's form")


DENSENET = {"densenet121": ZooEntry(_densenet121)}


_UNET_WIDTHS = (64, 128, 256, 512, 1024)
_OF_UNET = {
    "input": Argument(("256",), "height and width of the image, a multiple of 16", counts=True),
    "classes": Argument(("2",), "classes that each pixel is one of", counts=True),
}


def _unet(name: str, arguments: Mapping[str, str]) -> Network:
    side, *widths = int(arguments["input"]), *_UNET_WIDTHS
    if side % 16:
        raise ParameterError("argument input of network unet", "a multiple of 16", side)
    net = NetworkBuilder()
    top, ends = "input", list[str]()
    for level, width in enumerate(widths, 1):
        top = _double(net, f"down{level}", net.pool(f"pool{level}", top, 2, 2) if ends else top, width)
        ends.append(top)
    for level, width in reversed(list(enumerate(widths[:-1], 1))):
        top = net.add("up_convolution", f"up{level}", top, channels=width)
        top = _double(net, f"up{level}", net.add("concat", f"up{level}.concat", (ends[level - 1], top)), width)
    top = net.add("sequence", "pixels", net.convolution("out", top, int(arguments["classes"]), 1))
    net.add("loss", "loss", top)
    return net.network(name, (3, side, side), "Ronneberger et al. 2015, padded, as milesial/Pytorch-UNet", None)


def _double(net: NetworkBuilder, name: str, source: str, width: int) -> str:
    return net.unit(f"{name}.conv2", net.unit(f"{name}.conv1", source, width, 3), width, 3)


UNET = {"unet": ZooEntry(_unet, _OF_UNET)}
