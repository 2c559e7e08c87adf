"""A PyTorch module of any network, and the time of a real gradient computation with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from planner.domain.arrays import check_count
from planner.domain.network import INPUT, Layer, Network
from planner.domain.shapes import Shape, input_shapes, layer_shapes
from planner.probes.precisions import autocast
from planner.probes.sequence_parts import attention, embedding, first_position, layer_norm
from planner.probes.timing import EVENT_RESOLUTION_S, Timing, keep_freed_memory, own_clock, summary
from planner.probes.torch_package import import_torch

if TYPE_CHECKING:
    import torch

__all__ = ["PARTS", "build_module", "gradient_time"]


WARM_UP_STEPS = 3
AHEAD_STEPS = 2
"""With one step to go the device still waits for nothing, where it is the slower one."""
LEAKY_SLOPE = 0.1
"""Of a leaky ReLU below zero, as in YOLO; no time depends on it."""


def build_module(network: Network, device: str = "cpu") -> torch.nn.Module:
    """Return a module whose ``forward(samples, targets)`` is the network's loss.

    The loss is the weighted sum of the network's ``loss`` layers; without one it is the mean of the last layer's
    output. A value is released after its last reader, as local variables of a hand-written module are; activations are
    not done in place.

    Parameters
    ----------
    network : Network
    device : str
        That its parameters are made on, as PyTorch names it.

    Returns
    -------
    torch.nn.Module
        ``samples``: tensor of shape (n, *network.input_shape), of token numbers where an embedding reads them;
        ``targets``: tensor of class numbers of shape (n,), or (n, positions) where the loss reads a sequence.

    Raises
    ------
    MissingPackageError
        PyTorch is not installed.
    ParameterError
        The network's shapes do not fit together.
    torch.OutOfMemoryError
        The device does not hold it.
    """
    library = import_torch()
    base: Any = library.nn.Module
    shapes = layer_shapes(network)
    last_reader = {source: layer.name for layer in network.layers for source in layer.inputs}
    losses = [layer.name for layer in network.layers if layer.kind == "loss"]

    class Graph(base):  # type: ignore[misc]  # imported as Any
        """The network; see :func:`build_module`."""

        def __init__(self) -> None:
            super().__init__()
            made = [PARTS[layer.kind](library, layer, input_shapes(layer, shapes)) for layer in network.layers]
            _tie(network, made)
            self.parts = library.nn.ModuleList(part for part in made if isinstance(part, library.nn.Module))
            self._calls: list[Callable[..., Any]] = made

        def forward(self, samples: Any, targets: Any) -> Any:
            values = {INPUT: samples}
            for layer, call in zip(network.layers, self._calls, strict=True):
                inputs = [values[source] for source in layer.inputs]
                values[layer.name] = call(*inputs, targets) if layer.kind == "loss" else call(*inputs)
                for source in layer.inputs:
                    if last_reader[source] == layer.name:
                        values.pop(source, None)
            if losses:
                return sum((values[name] for name in losses[1:]), values[losses[0]])
            return values[network.layers[-1].name].mean()

    with library.device(device):
        graph: torch.nn.Module = Graph()
    return graph


def gradient_time(
    module: torch.nn.Module,
    network: Network,
    sub_batch: int,
    repeats: int = 5,
    *,
    precision: str = "fp32",
    until_s: float = math.inf,
    warm_up: int = WARM_UP_STEPS,
) -> Timing:
    """Return the time of one gradient computation: loss forward and backward, gradients None before.

    On one thread of a CPU it is what the thread ran, whatever else the CPU did meanwhile; of several the wall time.
    On a GPU steps follow each other without waiting, as in training: the time is that between events before and after.
    The host is at most two steps ahead, so that its clock tells when time is up.

    Parameters
    ----------
    module : torch.nn.Module
        Of ``build_module(network)``, on the device to be timed.
    network : Network
    sub_batch : int
    repeats : int
        Timed, after steps that are not.
    precision : str
        16-bit ones as mixed precision; whether fp32 may be TF32 is the caller's to set.
    until_s : float
        What :func:`time.perf_counter` may show when a repeat begins [s]; the first one is made in any case.
    warm_up : int
        Steps that are not timed: by the third one all memory has been touched, most of it in the first one.

    Returns
    -------
    Timing
        Median and spread over the repeats.
    """
    check_count("sub_batch", sub_batch)
    check_count("repeats", repeats)
    torch = import_torch()
    keep_freed_memory()
    device = next((str(parameter.device) for parameter in module.parameters()), "cpu")
    generator = torch.Generator().manual_seed(sub_batch)
    samples = _samples(torch, network, sub_batch, generator).to(device)
    targets = _targets(torch, network, sub_batch, generator).to(device)
    module.train()
    mark, wait, between_s = _marks(torch, device)
    times: list[tuple[Any, Any]] = []
    for made in range(repeats + warm_up):
        if made >= AHEAD_STEPS:
            wait(times[-AHEAD_STEPS][1])
        if made > warm_up and time.perf_counter() >= until_s:
            break
        module.zero_grad(set_to_none=True)
        start = mark()
        with autocast(device, precision):
            loss = module(samples, targets)
        loss.backward()
        times.append((start, mark()))
        del loss
    module.zero_grad(set_to_none=True)
    return summary([between_s(*pair) for pair in times[warm_up:]])


def _marks(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[Any], None], Callable[[Any, Any], float]]:
    """Return what marks a moment of a device, what waits for one, and what tells the seconds between two."""
    if device == "cpu":
        clock = own_clock() if torch.get_num_threads() == 1 else time.perf_counter
        return clock, lambda _moment: None, lambda start, end: end - start

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(moment: Any) -> None:
        moment.synchronize()

    def between_s(start: Any, end: Any) -> float:
        wait(end)
        return max(float(start.elapsed_time(end)) * 1e-3, EVENT_RESOLUTION_S)

    return mark, wait, between_s


def _tie(network: Network, made: list[Any]) -> None:
    """Give tied linear layers the table of the embedding as their weights."""
    parts = {layer.name: part for layer, part in zip(network.layers, made, strict=True)}
    tables = [parts[layer.name].words.weight for layer in network.layers if layer.kind == "embedding"]
    for layer in network.layers:
        if layer.kind == "linear" and layer.attributes["tied"]:
            parts[layer.name].weight = tables[0]


def _samples(library: Any, network: Network, sub_batch: int, generator: Any) -> torch.Tensor:
    shape = (sub_batch, *network.input_shape)
    rows = [layer.integer("vocabulary") for layer in network.layers if layer.kind == "embedding"]
    samples: torch.Tensor
    if rows:
        samples = library.randint(0, min(rows), shape, generator=generator)
    else:
        samples = library.randn(*shape, generator=generator)
    return samples


def _targets(library: Any, network: Network, sub_batch: int, generator: Any) -> torch.Tensor:
    shapes = layer_shapes(network)
    logits = min((shapes[layer.inputs[0]] for layer in network.layers if layer.kind == "loss"), default=(1,))
    targets: torch.Tensor = library.randint(0, logits[-1], (sub_batch, *logits[:-1]), generator=generator)
    return targets


def _convolution(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    return torch.nn.Conv2d(
        inputs[0][0],
        layer.integer("channels"),
        layer.pair("kernel"),
        layer.pair("stride"),
        layer.pair("padding"),
        groups=layer.integer("groups"),
        bias=bool(layer.attributes["bias"]),
    )


def _pool(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    kind = torch.nn.MaxPool2d if layer.attributes["mode"] == "max" else torch.nn.AvgPool2d
    ceil = bool(layer.attributes["ceil"])
    return kind(layer.pair("window"), layer.pair("stride"), layer.pair("padding"), ceil_mode=ceil)


def _linear(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    return torch.nn.Linear(inputs[0][-1], layer.integer("features"), bias=bool(layer.attributes["bias"]))


def _activation(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    functions = {
        "relu": torch.nn.ReLU,
        "leaky_relu": lambda: torch.nn.LeakyReLU(LEAKY_SLOPE),
        "tanh": torch.nn.Tanh,
        "sigmoid": torch.nn.Sigmoid,
        "gelu": torch.nn.GELU,
    }
    return functions[str(layer.attributes["function"])]()


def _batch_norm(torch: Any, _layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    kind = torch.nn.BatchNorm2d if len(inputs[0]) == 3 else torch.nn.BatchNorm1d
    return kind(inputs[0][0])


def _lrn(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    return torch.nn.LocalResponseNorm(layer.integer("window"))


def _dropout(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    return torch.nn.Dropout(layer.number("rate"))


def _global_pool(torch: Any, _layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    return torch.nn.AdaptiveAvgPool2d(1)


def _upsample(torch: Any, layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    return torch.nn.Upsample(scale_factor=layer.integer("factor"), mode="nearest")


def _flatten(torch: Any, _layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    return torch.nn.Flatten()


def _add(_torch: Any, _layer: Layer, _inputs: tuple[Shape, ...]) -> Any:
    return lambda first, *others: sum(others, first)


def _concat(torch: Any, _layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    axis = 2 if len(inputs[0]) == 2 else 1
    return lambda *values: torch.cat(values, dim=axis)


def _loss(torch: Any, layer: Layer, inputs: tuple[Shape, ...]) -> Any:
    weight = layer.number("weight")
    classes = inputs[0][-1]

    def loss(logits: Any, targets: Any) -> Any:
        entropy = torch.nn.functional.cross_entropy(logits.reshape(-1, classes), targets.reshape(-1))
        return entropy if math.isclose(weight, 1.0) else entropy * weight

    return loss


PARTS: dict[str, Callable[[Any, Layer, tuple[Shape, ...]], Any]] = {
    "convolution": _convolution,
    "pool": _pool,
    "global_pool": _global_pool,
    "upsample": _upsample,
    "linear": _linear,
    "activation": _activation,
    "batch_norm": _batch_norm,
    "layer_norm": layer_norm,
    "embedding": embedding,
    "attention": attention,
    "first_position": first_position,
    "lrn": _lrn,
    "dropout": _dropout,
    "add": _add,
    "concat": _concat,
    "flatten": _flatten,
    "loss": _loss,
}
