"""AlexNet in its three common forms.

``alexnet``: Krizhevsky, Sutskever, Hinton (2012) as Caffe ships it (``bvlc_alexnet``): two groups in conv2, conv4 and
conv5, local response normalisation before pooling, input 227 x 227.
``alexnet-owt``: the single tower of Krizhevsky (2014), "One weird trick for parallelizing convolutional neural
networks", as torchvision ships it: no groups, no normalisation, dropout before fc6 and fc7, input 224 x 224.
``alexnet-mxnet``: the widths of 2012 without groups, normalisation behind the pooling, input 224 x 224 without padding,
so that fc6 reads 256 x 5 x 5 (apache/mxnet, example/image-classification/symbols/alexnet.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import ZooEntry

__all__ = ["ENTRIES"]


def _grouped(name: str, _arguments: Mapping[str, str]) -> Network:
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


def _one_tower(name: str, _arguments: Mapping[str, str]) -> Network:
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


def _ungrouped(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top = net.convolution_relu("conv1", "input", 96, 11, stride=4)
    top = net.add("lrn", "norm1", net.pool("pool1", top, 3, 2))
    top = net.convolution_relu("conv2", top, 256, 5, padding=2)
    top = net.add("lrn", "norm2", net.pool("pool2", top, 3, 2))
    for number, channels in ((3, 384), (4, 384), (5, 256)):
        top = net.convolution_relu(f"conv{number}", top, channels, 3, padding=1)
    net.classifier(("fc6", "fc7", "fc8"), net.pool("pool5", top, 3, 2), (4096, 4096))
    return net.network(name, (3, 224, 224), "Krizhevsky et al. 2012 without groups, in MXNet's form")


ENTRIES = {
    "alexnet": ZooEntry(_grouped), "alexnet-owt": ZooEntry(_one_tower), "alexnet-mxnet": ZooEntry(_ungrouped)
}  # fmt: skip
