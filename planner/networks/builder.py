"""What the zoo is written with: a builder of networks, and the declaration of a network and its arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner.domain.layers.record import AttributeValue, Layer
from planner.domain.network import Network

Pair = int | tuple[int, int]


class NetworkBuilder:
    """Appends layers in topological order; every method returns the name of the layer it appended."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def add(self, kind: str, name: str, source: str | tuple[str, ...], **attributes: AttributeValue) -> str:
        """Append a layer of any kind that reads ``source``."""
        sources = (source,) if isinstance(source, str) else source
        self.layers.append(Layer(name, kind, sources, attributes))
        return name

    def convolution(self, name: str, source: str, channels: int, kernel: Pair, **attributes: AttributeValue) -> str:
        """Append a convolution."""
        return self.add("convolution", name, source, channels=channels, kernel=kernel, **attributes)

    def convolution_relu(
        self, name: str, source: str, channels: int, kernel: Pair, **attributes: AttributeValue
    ) -> str:
        """Append a convolution and its ReLU."""
        return self.relu(f"{name}.relu", self.convolution(name, source, channels, kernel, **attributes))

    def convolution_norm(
        self, name: str, source: str, channels: int, kernel: Pair, **attributes: AttributeValue
    ) -> str:
        """Append a convolution, without bias unless told otherwise, and its batch normalisation."""
        convolution = self.convolution(name, source, channels, kernel, **{"bias": False, **attributes})
        return self.add("batch_norm", f"{name}.norm", convolution)

    def unit(
        self, name: str, source: str, channels: int, kernel: Pair, function: str = "relu", **attributes: AttributeValue
    ) -> str:
        """Append a convolution, its batch normalisation and activation; padding keeps the size but for the stride."""
        sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = sides[0] // 2 if sides[0] == sides[1] else (sides[0] // 2, sides[1] // 2)
        norm = self.convolution_norm(name, source, channels, kernel, **{"padding": padding, **attributes})
        return self.add("activation", f"{name}.{function}", norm, function=function)

    def top(self, name: str, source: str) -> str:
        """Append the means over all pixels, as a vector."""
        return self.add("flatten", "flatten", self.add("global_pool", name, source))

    def classify(self, source: str, classes: int = 1000) -> None:
        """Append the last linear layer, and the loss."""
        self.add("loss", "loss", self.linear("fc", source, classes))

    def pool(self, name: str, source: str, window: int, stride: int, **attributes: AttributeValue) -> str:
        """Append a pooling layer, of the maximum unless ``mode`` says otherwise."""
        return self.add("pool", name, source, window=window, stride=stride, **attributes)

    def relu(self, name: str, source: str) -> str:
        """Append a ReLU."""
        return self.add("activation", name, source)

    def norm_relu(self, name: str, source: str) -> str:
        """Append a batch normalisation and its ReLU."""
        return self.relu(f"{name}.relu", self.add("batch_norm", f"{name}.norm", source))

    def linear(self, name: str, source: str, features: int, **attributes: AttributeValue) -> str:
        """Append a fully connected layer."""
        return self.add("linear", name, source, features=features, **attributes)

    def classifier(self, names: tuple[str, ...], source: str, hidden: tuple[int, ...]) -> str:
        """Append flattening, hidden layers each with ReLU and dropout, the output layer, and the loss."""
        top = self.add("flatten", "flatten", source)
        for name, features in zip(names[:-1], hidden, strict=True):
            top = self.relu(f"{name}.relu", self.linear(name, top, features))
            top = self.add("dropout", f"{name}.dropout", top)
        return self.add("loss", "loss", self.linear(names[-1], top, 1000))

    def network(
        self,
        name: str,
        input_shape: tuple[int, ...],
        notes: str,
        dataset: str | None = "imagenet-1k",
        *,
        optimizer: str = "sgd-momentum",
    ) -> Network:
        """Return the network, trained on ``dataset`` with ``optimizer`` unless the user says otherwise."""
        return Network(name, input_shape, tuple(self.layers), dataset, optimizer, notes)


_COUNT = re.compile("[1-9][0-9]{0,6}")
_FACTOR = re.compile("[0-9]{1,4}([.][0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a network: its values, the default first, and one line on what it does.

    One that ``counts`` takes any whole number from 1 to ``most``, and its default, which may be in words; one that is a
    ``factor`` any number above 0 and up to ``most``, of at most three decimals.
    """

    values: tuple[str, ...]
    doc: str
    counts: bool = False
    most: int = 9999
    factor: bool = False

    @property
    def rule(self) -> str:
        """What it takes, in words."""
        if self.factor:
            return f"a number above 0, at most {self.most}, of at most three decimals, or {self.values[0]}"
        return f"a whole number from 1 to {self.most}" if self.counts else " or ".join(self.values)

    def takes(self, value: str) -> bool:
        """Tell whether a value is one that it takes."""
        if value in self.values or not (self.counts or self.factor):
            return value in self.values
        if self.factor:
            return bool(_FACTOR.fullmatch(value)) and 0 < float(value) <= self.most
        return bool(_COUNT.fullmatch(value)) and int(value) <= self.most


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One network of the zoo.

    ``make`` gets the network's name as the user typed it and the value of every argument, each one of those declared.
    """

    make: Callable[[str, Mapping[str, str]], Network]
    arguments: Mapping[str, Argument] = field(default_factory=dict)
