"""A PyTorch module of any network, and the time of a real gradient computation with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from planner.domain.arrays import check_count
from planner.domain.layers import LAYER_KINDS
from planner.domain.network import INPUT, Network
from planner.domain.shapes import input_shapes, layer_shapes
from planner.probes.precisions import autocast
from planner.probes.timing import EVENT_RESOLUTION_S, Timing, keep_freed_memory, own_clock, summary
from planner.probes.torch_package import import_torch

if TYPE_CHECKING:
    import torch

__all__ = ["build_module", "gradient_time"]


WARM_UP_STEPS = 3
AHEAD_STEPS = 2
"""With one step to go the device still waits for nothing, where it is the slower one."""


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
            calls = [
                LAYER_KINDS[layer.kind].module(library, layer, input_shapes(layer, shapes)) for layer in network.layers
            ]
            _tie(network, calls)
            self.parts = library.nn.ModuleList(part for part in calls if isinstance(part, library.nn.Module))
            self._calls: list[Callable[..., Any]] = calls

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
    for step in range(repeats + warm_up):
        if step >= AHEAD_STEPS:
            wait(times[-AHEAD_STEPS][1])
        if step > warm_up and time.perf_counter() >= until_s:
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


def _tie(network: Network, calls: list[Any]) -> None:
    """Give tied linear layers the table of the embedding as their weights."""
    parts = {layer.name: part for layer, part in zip(network.layers, calls, strict=True)}
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
