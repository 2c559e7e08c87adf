"""A builder of networks: append layers, get back the name that the next layer reads."""

from __future__ import annotations

from planner.domain.network import AttributeValue, Layer, Network

__all__ = ["NetworkBuilder"]

Pair = int | tuple[int, int]


class NetworkBuilder:
    """Appends layers in topological order; every method returns the name of the layer it appended."""

    def __init__(self) -> None:
        self._layers: list[Layer] = []

    def add(self, kind: str, name: str, source: str | tuple[str, ...], **attributes: AttributeValue) -> str:
        """Append a layer of any kind that reads ``source``."""
        sources = (source,) if isinstance(source, str) else source
        self._layers.append(Layer(name, kind, sources, attributes))
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

    def pool(self, name: str, source: str, window: int, stride: int, **attributes: AttributeValue) -> str:
        """Append a pooling layer, of the maximum unless ``mode`` says otherwise."""
        return self.add("pool", name, source, window=window, stride=stride, **attributes)

    def relu(self, name: str, source: str) -> str:
        """Append a ReLU."""
        return self.add("activation", name, source)

    def linear(self, name: str, source: str, features: int, **attributes: AttributeValue) -> str:
        """Append a fully connected layer."""
        return self.add("linear", name, source, features=features, **attributes)

    def classifier(self, names: tuple[str, ...], source: str, hidden: tuple[int, ...], classes: int = 1000) -> str:
        """Append flattening, hidden layers each with ReLU and dropout, the output layer, and the loss."""
        top = self.add("flatten", "flatten", source)
        for name, features in zip(names[:-1], hidden, strict=True):
            top = self.relu(f"{name}.relu", self.linear(name, top, features))
            top = self.add("dropout", f"{name}.dropout", top)
        return self.add("loss", "loss", self.linear(names[-1], top, classes))

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
        return Network(name, input_shape, tuple(self._layers), dataset, optimizer, notes)
