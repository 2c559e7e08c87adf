"""Networks of plain chains of layers, mostly convolutions, and a perceptron.

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
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from planner.domain.network import Network
from planner.networks.builder import Argument, NetworkBuilder, ZooEntry

__all__ = ["ALEXNET", "MLP", "OVERFEAT", "SPRINT", "VGG"]


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
