"""A multi-layer perceptron: linear layers of equal width, each with ReLU, and a linear classifier."""

from __future__ import annotations

from collections.abc import Mapping

from planner.domain.network import Network
from planner.networks.builder import NetworkBuilder
from planner.networks.zoo.entry import Argument, ZooEntry

__all__ = ["ENTRIES"]

_ARGUMENTS = {
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


ENTRIES = {"mlp": ZooEntry(_mlp, _ARGUMENTS)}
