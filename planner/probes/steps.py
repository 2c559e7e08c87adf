"""Short training steps of small generic networks: what a framework adds to its kernels shows in their times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from planner.domain.network import INPUT, AttributeValue, Layer, Network
from planner.domain.training import TimedStep
from planner.probes.bench import Bench, undisturbed
from planner.probes.modules import build_module, gradient_time

__all__ = ["probe_networks", "timed_steps"]

CLASSES = 100
REPEATS = 7
SUB_BATCHES = (1, 4)
OWN_SUB_BATCH = 2


def probe_networks() -> tuple[Network, ...]:
    """Return the networks: convolutions with batch normalisation, with biases only, and linear layers."""
    return (
        _convolutional("probe-cnn-narrow", 32, (16, 32, 64), normalised=True),
        _convolutional("probe-cnn-wide", 72, (48, 96, 192), normalised=True),
        _convolutional("probe-cnn-plain", 60, (40, 80, 160), normalised=False),
        _linear("probe-mlp", 2048, (2560, 2048, 2560)),
    )


def timed_steps(
    bench: Bench, quiet_s: float, until_s: float, networks: Sequence[Network] = ()
) -> tuple[TimedStep, ...]:
    """Return the time of a gradient computation of every probe network at every sub-batch of SUB_BATCHES.

    With ``networks`` those are timed instead, at OWN_SUB_BATCH.

    Those that could not be measured on a machine as quiet as the reference time ``quiet_s`` [s] says are left out, and
    those that could not be begun before the bench's clock shows ``until_s`` [s].
    """
    steps: list[TimedStep] = []
    for network in networks or probe_networks():
        if bench.clock() >= until_s:
            break
        module = build_module(network)
        for sub_batch in (OWN_SUB_BATCH,) if networks else SUB_BATCHES:
            measure = partial(gradient_time, module, network, sub_batch, REPEATS)
            timing = undisturbed(measure, bench, quiet_s, until_s=until_s)
            if timing:
                steps.append(TimedStep(network, sub_batch, timing.time_s, timing.spread_s))
    return tuple(steps)


class _Chain:
    """Layers that each read the one before."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def add(self, kind: str, **attributes: AttributeValue) -> None:
        source = self.layers[-1].name if self.layers else INPUT
        self.layers.append(Layer(f"{kind}-{len(self.layers)}", kind, (source,), attributes))


def _convolutional(name: str, side: int, channels: tuple[int, ...], *, normalised: bool) -> Network:
    chain = _Chain()
    for count in channels:
        for kernel in (3, 1, 5):
            chain.add("convolution", channels=count, kernel=kernel, padding=kernel // 2, bias=not normalised)
            if normalised:
                chain.add("batch_norm")
            chain.add("activation")
        chain.add("pool", mode="max" if normalised else "average", window=2, stride=2)
    chain.add("global_pool")
    chain.add("flatten")
    chain.add("linear", features=CLASSES)
    chain.add("loss")
    return Network(name, (3, side, side), tuple(chain.layers))


def _linear(name: str, features: int, sizes: tuple[int, ...]) -> Network:
    chain = _Chain()
    for size in sizes:
        chain.add("linear", features=size)
        chain.add("activation")
    chain.add("linear", features=CLASSES)
    chain.add("loss")
    return Network(name, (features,), tuple(chain.layers))
