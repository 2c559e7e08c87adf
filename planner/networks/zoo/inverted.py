"""Networks of inverted residual blocks.

A 1 x 1 convolution widens, a square one works on every channel alone, a 1 x 1 narrows, without an activation behind
it. Squeeze and excite multiplies channels by what two 1 x 1 convolutions make of their means (Hu et al. 2018,
arXiv:1709.01507). All as in torchvision.

``mobilenet-v2``: width 1 of Sandler et al. (2018), arXiv:1801.04381. ReLU6 costs what ReLU does and stands as ReLU.
``mobilenet-v3``: the large one of Howard et al. (2019), arXiv:1905.02244. ``efficientnet-b0``: Tan, Le (2019),
arXiv:1905.11946; blocks are dropped for some samples at the rate of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder, ZooEntry

__all__ = ["EFFICIENTNET", "MOBILENET"]


class _Block(NamedTuple):
    """Channels between and out, side of the kernel, stride, activation; of squeeze and excite the channels, or 0."""

    wide: int
    channels: int
    kernel: int
    stride: int
    function: str
    squeezed: int = 0
    gates: tuple[str, str] = ("relu", "hard_sigmoid")


def _unit(net: NetworkBuilder, name: str, source: str, sizes: tuple[int, int], function: str, **more: int) -> str:
    """Append a convolution of so many channels and such a side, its normalisation and activation."""
    norm = net.convolution_norm(name, source, *sizes, padding=sizes[1] // 2, **more)
    return net.add("activation", f"{name}.{function}", norm, function=function)


def _inverted_residual(
    net: NetworkBuilder, block: str, source: str, width: int, of: _Block, *, dropped: float = 0.0
) -> str:
    """Append a block that reads ``width`` channels, and its sum with what it reads where that has the same shape."""
    top = source
    if of.wide != width:
        top = _unit(net, f"{block}.widen", top, (of.wide, 1), of.function)
    top = _unit(net, f"{block}.depthwise", top, (of.wide, of.kernel), of.function, stride=of.stride, groups=of.wide)
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


def _classifier(net: NetworkBuilder, source: str) -> str:
    return net.add("flatten", "flatten", net.add("global_pool", "pool", source))


def _end(net: NetworkBuilder, source: str) -> None:
    net.add("loss", "loss", net.linear("fc", net.add("dropout", "dropout", source, rate=0.2), 1000))


# stage: factor of widening, channels out, blocks, stride of the first (table 2 of the paper)
_MOBILENET_V2_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


def _mobilenet_v2(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top, width = _unit(net, "conv1", "input", (32, 3), "relu", stride=2), 32
    for stage, (factor, channels, blocks, stride) in enumerate(_MOBILENET_V2_STAGES, 1):
        for number in range(1, blocks + 1):
            block = _Block(factor * width, channels, 3, stride if number == 1 else 1, "relu")
            top, width = _inverted_residual(net, f"stage{stage}.{number}", top, width, block), channels
    _end(net, _classifier(net, _unit(net, "conv2", top, (1280, 1), "relu")))
    return net.network(name, (3, 224, 224), "Sandler et al. 2018, width 1, in torchvision's form")


# block: side of the kernel, channels between and out, of squeeze and excite, stride (table 1 of the paper); the
# activation is ReLU in the first six, then hard swish
_MOBILENET_V3_BLOCKS = (
    (3, 16, 16, 0, 1), (3, 64, 24, 0, 2), (3, 72, 24, 0, 1), (5, 72, 40, 24, 2), (5, 120, 40, 32, 1),
    (5, 120, 40, 32, 1), (3, 240, 80, 0, 2), (3, 200, 80, 0, 1), (3, 184, 80, 0, 1), (3, 184, 80, 0, 1),
    (3, 480, 112, 120, 1), (3, 672, 112, 168, 1), (5, 672, 160, 168, 2), (5, 960, 160, 240, 1), (5, 960, 160, 240, 1),
)  # fmt: skip


def _mobilenet_v3(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top, width = _unit(net, "conv1", "input", (16, 3), "hard_swish", stride=2), 16
    for number, (kernel, wide, channels, squeezed, stride) in enumerate(_MOBILENET_V3_BLOCKS, 1):
        block = _Block(wide, channels, kernel, stride, "relu" if number <= 6 else "hard_swish", squeezed)
        top, width = _inverted_residual(net, f"block{number}", top, width, block), channels
    top = net.linear("fc1", _classifier(net, _unit(net, "conv2", top, (960, 1), "hard_swish")), 1280)
    _end(net, net.add("activation", "fc1.hard_swish", top, function="hard_swish"))
    return net.network(name, (3, 224, 224), "Howard et al. 2019, large, in torchvision's form", optimizer="rmsprop")


MOBILENET = {"mobilenet-v2": ZooEntry(_mobilenet_v2), "mobilenet-v3": ZooEntry(_mobilenet_v3)}


# stage: factor of widening, side of the kernel, stride of the first, channels out, blocks (table 1 of the paper)
_EFFICIENTNET_STAGES = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)  # fmt: skip


def _efficientnet_b0(name: str, _arguments: Mapping[str, str]) -> Network:
    net = NetworkBuilder()
    top, width = _unit(net, "conv1", "input", (32, 3), "silu", stride=2), 32
    for stage, (factor, kernel, stride, channels, blocks) in enumerate(_EFFICIENTNET_STAGES, 1):
        for number in range(1, blocks + 1):
            sizes = (factor * width, channels, kernel, stride if number == 1 else 1)
            block = _Block(*sizes, "silu", width // 4, ("silu", "sigmoid"))
            top = _inverted_residual(net, f"stage{stage}.{number}", top, width, block, dropped=0.2)
            width = channels
    _end(net, _classifier(net, _unit(net, "conv2", top, (1280, 1), "silu")))
    return net.network(name, (3, 224, 224), "Tan and Le 2019, B0, in torchvision's form", optimizer="rmsprop")


EFFICIENTNET = {"efficientnet-b0": ZooEntry(_efficientnet_b0)}
