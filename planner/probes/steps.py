"""PyTorch modules of networks, and short training steps: a framework's own time shows beside that of its kernels."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from planner.domain.arrays import check_count
from planner.domain.kernels import UPDATE
from planner.domain.layers import LAYER_KINDS
from planner.domain.network import INPUT, Layer, Network, input_shapes, layer_shapes
from planner.domain.samples import TimedStep
from planner.numbers import constant
from planner.probes.bench import DISTURBED_RATIO, Bench, CpuBench, as_if_quiet, least_disturbed, quietest
from planner.probes.gpu import check_computes, first_line
from planner.probes.layer_points import OPTIMIZERS
from planner.probes.precisions import autocast, computing_in, import_torch
from planner.probes.timing import EVENT_RESOLUTION_S, Timing, give_back_memory, keep_freed_memory, own_clock, summary
from planner.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import torch

__all__ = [
    "CPU_BYTES", "STEP_PRECISIONS", "StepNeed", "StepTimes", "build_module", "gradient_time", "probe_networks",
    "timed_steps",
]  # fmt: skip

WARM_UP_STEPS = 3
PASSES = "forward", "backward"
AHEAD_STEPS = 2
"""With one step to go the device still waits for nothing, where it is the slower one."""


def build_module(network: Network, device: str = "cpu") -> torch.nn.Module:
    """Return a module, made on a device, whose ``forward(samples, targets)`` is the network's loss.

    The loss is the weighted sum of the network's ``loss`` layers; without one the mean of the last layer's output. A
    value is released after its last reader, as local variables of a hand-written module are; nothing is done in place.
    ``samples``: shape (n, *network.input_shape), of token numbers where an embedding reads them; ``targets``: class
    numbers of shape (n,), or (n, positions) where the loss reads a sequence.

    MissingPackageError: PyTorch is not installed. ParameterError: the network's shapes do not fit together.
    torch.OutOfMemoryError: the device does not hold it.
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
            calls: list[Any] = [
                LAYER_KINDS[layer.kind].module(library, layer, input_shapes(layer, shapes)) for layer in network.layers
            ]
            parts = {layer.name: part for layer, part in zip(network.layers, calls, strict=True)}
            tables = [parts[layer.name].words.weight for layer in network.layers if layer.kind == "embedding"]
            for layer in network.layers:
                if layer.kind == "linear" and layer.attributes["tied"]:  # to the table of the embedding
                    parts[layer.name].weight = tables[0]
            for layer in network.layers:
                if layer.is_frozen and isinstance(parts[layer.name], library.nn.Module):
                    parts[layer.name].requires_grad_(requires_grad=False)
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
    optimizer: str = "",
) -> Timing:
    """Return the time of one gradient computation: loss forward and backward, gradients None before.

    Its parts are those two passes, and the update behind them.

    On one thread of a CPU it is what the thread ran, whatever else the CPU did meanwhile; of several the wall time.
    On a GPU steps follow each other without waiting, as in training: the time is that between events before and after.
    The host is at most two steps ahead, so that its clock tells when time is up.

    Parameters
    ----------
    module : of ``build_module(network)``, on the device to be timed
    repeats : timed, after steps that are not
    precision : 16-bit ones as mixed precision; whether fp32 may be TF32 is the caller's to set
    until_s : what :func:`time.perf_counter` may show when a repeat begins [s]; the first one is made in any case
    warm_up : steps that are not timed: by the third one all memory has been touched, most of it in the first one
    optimizer : one of OPTIMIZERS, whose update follows each computation; empty: none does
    """
    check_count("sub_batch", sub_batch)
    check_count("repeats", repeats)
    torch = import_torch()
    keep_freed_memory()
    device = next((str(parameter.device) for parameter in module.parameters()), "cpu")
    generator = torch.Generator().manual_seed(sub_batch)
    samples, targets = (tensor.to(device) for tensor in _batch(torch, network, sub_batch, generator))
    module.train()
    kind, options = OPTIMIZERS.get(optimizer, ("", {}))
    update = getattr(torch.optim, kind)(module.parameters(), **options).step if kind else None
    mark, wait, between_s = _marks(torch, device)
    steps: list[list[Any]] = []
    for step in range(repeats + warm_up):
        if step >= AHEAD_STEPS:
            wait(steps[-AHEAD_STEPS][-1])
        if step > warm_up and time.perf_counter() >= until_s:
            break
        module.zero_grad(set_to_none=True)
        moments = [mark()]
        with autocast(device, precision):
            loss = module(samples, targets)
        moments.append(mark())
        loss.backward()
        moments.append(mark())
        del loss
        if update:
            update()
            moments.append(mark())
        steps.append(moments)
    module.zero_grad(set_to_none=True)
    steps = steps[warm_up:]
    whole = summary([between_s(one[0], one[2]) for one in steps])
    parts = {
        name: summary([between_s(one[at], one[at + 1]) for one in steps])
        for at, name in enumerate((*PASSES, *([UPDATE] if update else [])))
    }
    return replace(whole, parts=parts)


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


def _batch(library: Any, network: Network, sub_batch: int, generator: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random samples, token numbers where an embedding reads them, and random targets."""
    shape, shapes = (sub_batch, *network.input_shape), layer_shapes(network)
    rows = [layer.integer("vocabulary") for layer in network.layers if layer.kind == "embedding"]
    random = partial(library.randint, 0, min(rows), shape) if rows else partial(library.randn, shape)
    samples: torch.Tensor = random(generator=generator)
    logits = min((shapes[layer.inputs[0]] for layer in network.layers if layer.kind == "loss"), default=(1,))
    targets: torch.Tensor = library.randint(0, logits[-1], (sub_batch, *logits[:-1]), generator=generator)
    return samples, targets


CLASSES = 100
REPEATS = 7
SUB_BATCHES = {"cpu": (1, 4), "gpu": (1, 64)}
"""By kind of device; on a GPU one sample waits for the host alone."""
OWN_SUB_BATCHES = {"cpu": (2,), "gpu": (16, 1, 64)}
"""Of networks that a calibration is for, in their order: on a GPU that of small steps is the host's time, that of large
ones the device's, and one sub-batch alone does not tell which it is. A larger one than the first is for a device that
held the first, in the time that is left. A CPU does both one after the other: one sample besides makes it no better
(docs/cpu.md)."""
LARGEST_SUB_BATCH_RATIO = 4
"""From the first of these to a larger one."""
STEP_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
"""That PyTorch trains in by itself."""
CPU_BYTES = 1e9
"""What a step on a CPU may take by the model of memory: with PyTorch and the operands of calls 2 GB in all."""
REFERENCE_FLOP = 2 * 2 * 56 * 56 * 64 * 64 * 9
"""Of the convolution that is most of the reference kernel (:func:`~planner.probes.kernels.reference_call`)."""
STEP_FACTOR = constant("own_steps.slower")
"""Than by the rate of the reference a step on a CPU is, roughly (docs/numbers.md)."""


SHORTEST_SHARE = (WARM_UP_STEPS + 1) / (WARM_UP_STEPS + REPEATS)
"""Of what timing a step takes, where time is up after the first repeat: no other network is begun in less."""
LARGEST_DISTURBANCE = 1.5
"""Of the reference: steps beside a slower one are left out, those beside a disturbed one are corrected by it."""


class StepNeed(NamedTuple):
    """What a step of a network asks of a CPU.

    ``flop``: of products, forward and backward, a sample; ``most``: samples that fit CPU_BYTES.
    """

    flop: float
    most: int


class StepTimes(NamedTuple):
    """Steps that were timed in quiet, or corrected to it where they were disturbed a little, and what was seen besides.

    ``failed``: networks and precisions without steps, each with why; ``reference_s``: the fastest time of the reference
    kernel, the slower of before and after a step [s]; inf: no step was tried.
    """

    steps: tuple[TimedStep, ...] = ()
    failed: tuple[str, ...] = ()
    reference_s: float = math.inf


def probe_networks(kind: str = "cpu") -> tuple[Network, ...]:
    """Return the networks: convolutions with batch normalisation, with biases only, and linear layers.

    Of a GPU also one of two tiny linear layers, whose time is the host's.
    """
    block = (_linear("probe-block", 64, (64,)),) if kind == "gpu" else ()
    return (
        *block,
        _convolutional("probe-cnn-narrow", 32, (16, 32, 64), normalised=True),
        _convolutional("probe-cnn-wide", 72, (48, 96, 192), normalised=True),
        _convolutional("probe-cnn-plain", 60, (40, 80, 160), normalised=False),
        _linear("probe-mlp", 2048, (2560, 2048, 2560)),
    )


def timed_steps(
    bench: Bench,
    quiet_s: float,
    until_s: float,
    networks: Sequence[Network] = (),
    *,
    device: str = "cpu",
    precisions: Sequence[str] = ("fp32",),
    left_out: Collection[str] = (),
    needs: Mapping[str, StepNeed] | None = None,
) -> StepTimes:
    """Return the time of a gradient computation of every probe network at every sub-batch of SUB_BATCHES.

    All networks come in the first precision before any comes in the others. Each is made for every turn anew, on the
    device: no two of them need its memory at once. Networks and precisions that PyTorch fails in, or the device's
    memory does not hold, are left out from then on; those in which a device was lost before, which ``left_out`` names
    as :class:`DeviceLostError` does, are not tried. Of what does not fit the memory half the samples are taken.

    With ``networks`` those are timed instead, at OWN_SUB_BATCHES: all at the first one before any at the others; on a
    GPU the probe network of two layers at one sample too, whose time is the host's. ``needs``, by name, say of which
    fewer samples are taken for memory or time, or none; where no network remains, the probe networks are timed.

    Steps on a machine less quiet than ``quiet_s`` [s], or a faster reference seen meanwhile, are corrected by it, or
    left out beside a much slower one. None begins when the bench's clock shows ``until_s`` [s].

    DeviceLostError: the device computes nothing any more.
    """
    kind = "cpu" if device == "cpu" else "gpu"
    names = [precision for precision in precisions if precision in STEP_PRECISIONS]
    steps: list[tuple[TimedStep, float]] = []
    fastest_s, shortest_s = math.inf, 0.0
    failures: dict[tuple[str, str], str] = {}
    slowdown = bench.slowed if isinstance(bench, CpuBench) else 1.0
    left_s = until_s - bench.clock()
    most, too_large = _most(needs or {}, quiet_s, left_s / slowdown)
    networks = [network for network in networks if most.get(network.name, 1)]
    for network, cases in _turns(kind, networks, names):
        making = f"the module of {network.name}"
        if not cases or making in left_out or bench.clock() + shortest_s >= until_s:
            continue
        try:
            module = build_module(network, device)
        except RuntimeError as error:
            check_computes(device, error, making)
            failures |= dict.fromkeys(((network.name, precision) for _, precision in cases), first_line(error))
            continue
        for size, precision in cases:
            sub_batch = min(size, most.get(network.name) or size)
            what = f"training steps of {network.name} in {precision}"
            left_s = (until_s - bench.clock()) / slowdown
            is_useless = networks and not _is_of_use(steps, (network, sub_batch, precision), left_s)
            if (network.name, precision) in failures or what in left_out or is_useless:
                continue
            try:
                limits, began_s = (quietest(quiet_s, fastest_s), until_s), bench.clock()
                step = _step(bench, limits, (module, network, sub_batch, precision))
                shortest_s = max(shortest_s, SHORTEST_SHARE * (bench.clock() - began_s))
            except RuntimeError as error:  # PyTorch's only one for whatever a library or the device refuses
                check_computes(device, error, what)
                failures[network.name, precision] = first_line(error)
                module.zero_grad(set_to_none=True)
            else:
                steps += [step] if step else []
                fastest_s = min(fastest_s, step[1] if step else math.inf)
        del module  # before the next one is made
    quiet_s = quietest(quiet_s, fastest_s)
    quiet_steps = (_in_quiet(step, reference_s / quiet_s) for step, reference_s in steps)
    reasons = (f"{name} in {precision}, as PyTorch failed: {reason}" for (name, precision), reason in failures.items())
    return StepTimes(tuple(filter(None, quiet_steps)), (*too_large, *reasons), fastest_s)


def _in_quiet(step: TimedStep, slower: float) -> TimedStep | None:
    """Return a step as in quiet, that was timed on a machine so many times slower; None: it was too slow."""
    if slower > LARGEST_DISTURBANCE:
        return None
    return replace(step, time_s=as_if_quiet(step.time_s, slower)) if slower > DISTURBED_RATIO else step


def _most(needs: Mapping[str, StepNeed], quiet_s: float, left_s: float) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return how many samples of networks a step may take, and of those that may take none, why."""
    most, reasons = {}, []
    for name, need in needs.items():
        sample_s = STEP_FACTOR * need.flop / REFERENCE_FLOP * quiet_s  # its products at the rate of the reference
        in_time = max(int(left_s / ((WARM_UP_STEPS + 1) * sample_s)), 0) if sample_s else need.most
        most[name] = min(need.most, in_time)
        if not need.most:
            reasons.append(f"{name}, as one sample takes more than {format_bytes(CPU_BYTES)}")
        elif not in_time:
            reasons.append(f"{name}, as one sample takes about {format_seconds(sample_s)}: give a larger --budget")
    return most, tuple(reasons)


def _turns(
    kind: str, networks: Sequence[Network], precisions: Sequence[str]
) -> Iterator[tuple[Network, tuple[tuple[int, str], ...]]]:
    """Yield networks with sub-batches and precisions of their steps, what matters most first."""
    turns: list[tuple[Sequence[Network], Sequence[int], Sequence[str]]]
    first, others, probes = precisions[:1], precisions[1:], probe_networks(kind)
    if networks:
        host = probes[:1] if kind == "gpu" else ()
        sizes = OWN_SUB_BATCHES[kind]
        turns = [
            (host, SUB_BATCHES[kind][:1], first),
            (networks, sizes[:1], first),
            (networks, sizes[1:2], first),
            (host, SUB_BATCHES[kind][:1], others),
            (networks, sizes[:2], others),
            (networks, sizes[2:], precisions),
        ]
    else:
        turns = [(probes, SUB_BATCHES[kind], first), (probes, SUB_BATCHES[kind], others)]
    for some, sub_batches, names in turns:
        for network in some:
            yield network, tuple(itertools.product(sub_batches, names))


def _is_of_use(steps: Sequence[tuple[TimedStep, float]], what: tuple[Network, int, str], left_s: float) -> bool:
    """Tell whether a step is to be timed besides earlier ones of its network and precision."""
    network, sub_batch, precision = what  # a larger one only where the first says that it fits memory and time
    earlier = [step for step, _ in steps if (step.network, step.precision) == (network, precision)]
    if not earlier or sub_batch < earlier[0].sub_batch:
        return all(step.sub_batch != sub_batch for step in earlier)
    ratio = sub_batch / earlier[0].sub_batch
    return 1 < ratio <= LARGEST_SUB_BATCH_RATIO and (WARM_UP_STEPS + 1) * ratio * earlier[0].time_s <= left_s


def _step(
    bench: Bench, limits: tuple[float, float], what: tuple[torch.nn.Module, Network, int, str]
) -> tuple[TimedStep, float] | None:
    """Return the time of a step of as many samples as fit, and the reference's beside it [s]; None: none in time."""
    (quiet_s, until_s), (module, network, sub_batch, precision) = limits, what
    library = import_torch()
    while True:
        give_back_memory()  # what calls left in pieces would come on top of what a step takes
        measure = partial(gradient_time, module, network, sub_batch, REPEATS, precision=precision, until_s=until_s)
        try:
            with computing_in(precision):
                trial = least_disturbed(measure, bench, quiet_s, until_s=until_s)
        except library.OutOfMemoryError:
            if sub_batch == 1:
                raise
            sub_batch //= 2
            module.zero_grad(set_to_none=True)
            library.cuda.empty_cache()
        else:
            if trial is None:
                return None
            timing, slower = trial
            return TimedStep(network, sub_batch, timing.time_s, timing.spread_s, precision), slower * quiet_s


def _chain(name: str, input_shape: tuple[int, ...], layers: Sequence[tuple[str, Mapping[str, Any]]]) -> Network:
    """Return a network of layers that each read the one before, with a linear one and the loss behind them."""
    whole = [*layers, ("linear", {"features": CLASSES}), ("loss", {})]
    names = [f"{kind}-{at}" for at, (kind, _) in enumerate(whole)]
    each = zip(names, [INPUT, *names], whole, strict=False)
    return Network(name, input_shape, tuple(Layer(own, kind, (source,), of) for own, source, (kind, of) in each))


def _convolutional(name: str, side: int, channels: tuple[int, ...], *, normalised: bool) -> Network:
    layers: list[tuple[str, Mapping[str, Any]]] = []
    for count in channels:
        for kernel in (3, 1, 5):
            sizes = {"channels": count, "kernel": kernel, "padding": kernel // 2, "bias": not normalised}
            layers += [("convolution", sizes), *[("batch_norm", {})] * normalised, ("activation", {})]
        layers.append(("pool", {"mode": "max" if normalised else "average", "window": 2, "stride": 2}))
    return _chain(name, (3, side, side), [*layers, ("global_pool", {}), ("flatten", {})])


def _linear(name: str, features: int, sizes: tuple[int, ...]) -> Network:
    return _chain(
        name, (features,), [layer for size in sizes for layer in (("linear", {"features": size}), ("activation", {}))]
    )
