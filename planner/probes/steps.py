"""PyTorch modules of networks, and short training steps: a framework's own time shows beside that of its kernels.

And short real training runs of the sub-batches and precisions that plans of one network differ in.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from planner.domain.arrays import check_count
from planner.domain.kernels import UPDATE
from planner.domain.layers import LAYER_KINDS
from planner.domain.layers.record import INPUT, Layer
from planner.domain.network import Network, input_shapes, layer_shapes
from planner.domain.samples import TimedStep
from planner.numbers import constant
from planner.probes.bench import DISTURBED_RATIO, Bench, CpuBench, as_if_quiet, bench_of, least_disturbed, quietest
from planner.probes.gpu import NO_MEMORY, check_computes, first_line
from planner.probes.layer_points import OPTIMIZERS
from planner.probes.precisions import autocast, computing_in, import_torch
from planner.probes.timing import EVENT_RESOLUTION_S, Timing, give_back_memory, keep_freed_memory, own_clock, summary
from planner.units import format_bytes, format_seconds

if TYPE_CHECKING:
    import torch


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
    shape, shapes = (sub_batch, *network.input_shape), layer_shapes(network)
    rows = [layer.integer("vocabulary") for layer in network.layers if layer.kind == "embedding"]
    random = partial(torch.randint, 0, min(rows), shape) if rows else partial(torch.randn, shape)
    samples = random(generator=generator).to(device)
    logits = min((shapes[layer.inputs[0]] for layer in network.layers if layer.kind == "loss"), default=(1,))
    targets = torch.randint(0, logits[-1], (sub_batch, *logits[:-1]), generator=generator).to(device)
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

    def between_s(start: Any, end: Any) -> float:
        end.synchronize()
        return max(float(start.elapsed_time(end)) * 1e-3, EVENT_RESOLUTION_S)

    return mark, lambda moment: moment.synchronize(), between_s


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
    slowed = [(step, reference_s / quiet_s) for step, reference_s in steps]
    quiet_steps = (
        replace(step, time_s=as_if_quiet(step.time_s, slower)) if slower > DISTURBED_RATIO else step
        for step, slower in slowed
        if slower <= LARGEST_DISTURBANCE
    )
    reasons = (f"{name} in {precision}, as PyTorch failed: {reason}" for (name, precision), reason in failures.items())
    return StepTimes(tuple(quiet_steps), (*too_large, *reasons), fastest_s)


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
            (host, SUB_BATCHES[kind][:1], first), (networks, sizes[:1], first), (networks, sizes[1:2], first),
            (host, SUB_BATCHES[kind][:1], others), (networks, sizes[:2], others), (networks, sizes[2:], precisions),
        ]  # fmt: skip
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


FEWEST_STEPS = 2
"""One that is not timed, and one that is."""
FIRST_STEP_S = 1e-3
"""A first try may begin for at least so long [s], where the steps take all the time there is."""
RUN_FACTOR = 1.15
"""What a run takes besides its steps, and what a first step takes longer."""
REFERENCES = 5
PAUSE_S = 0.2
MOST_TRIES = 1000
TOUCHED_FACTOR = constant("plan_runs.touched")
"""Times the memory of a run is touched before, so that its steps meet no new pages (docs/numbers.md)."""
BLOCK_BYTES = 2**26
MOST_FREE_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class WantedRun:
    """A run that is wanted: ``expected_s`` of forward and backward [s], ``memory_bytes``; 0: not known.

    ``optimizer``: whose updates are timed too, and part of what is expected; empty: none.
    """

    sub_batch: int
    precision: str
    expected_s: float
    memory_bytes: float = 0.0
    optimizer: str = ""


@dataclass(frozen=True, slots=True)
class PlanRun:
    """What came of a wanted run.

    ``step``: None where it could not be made, or not in time; ``failed``: why not, as PyTorch said. ``slower``: than
    the quiet machine, so many times; above DISTURBED_RATIO no try was in quiet. ``parts``: of the step, and its update.
    """

    step: TimedStep | None = None
    slower: float = 1.0
    failed: str = ""
    parts: Mapping[str, Timing] = field(default_factory=dict)

    @property
    def is_disturbed(self) -> bool:
        """Whether it was made, but never in quiet."""
        return self.step is not None and self.slower > DISTURBED_RATIO


def timed_runs(
    network: Network,
    wanted: Sequence[WantedRun],
    seconds: float,
    *,
    device: str = "cpu",
    quiet_s: float = 0.0,
    progress: Callable[[float, str], None] = lambda _used_s, _state: None,
) -> tuple[PlanRun, ...]:
    """Return what came of every wanted run: on a machine that is not quiet, the least disturbed of its tries.

    The first come first: one that fits with fewest steps is run, those after it where they fit beside it. All of
    these get as many steps as there is time for; those left out are looked at again after every run, with the time that
    is left by then and by what steps have taken, of what was expected.

    ``seconds``: wall time to spend [s]; ``quiet_s``: reference time of the quiet machine from an earlier run [s]; 0:
    from now on alone; ``progress`` takes the seconds used, and the state. DeviceLostError: the device computes nothing
    any more.
    """
    with bench_of(device) as bench:
        began_s = bench.clock()
        now_s = min(bench.reference() for _ in range(REFERENCES))
        reference_s = min(now_s, quiet_s) if quiet_s > 0 else now_s
        try:
            module = build_module(network, device)
        except (RuntimeError, MemoryError) as error:
            return (_failed(device, error, f"making {network.name}"),) * len(wanted)
        largest_bytes, block = 0.0, None
        runs: dict[int, PlanRun] = {}
        while choice := _next(wanted, runs, began_s + seconds - bench.clock()):
            at, step_s, steps = choice
            one = wanted[at]
            state = f"sub-batch {one.sub_batch} in {one.precision}, {len(runs) + 1} of {len(wanted)}"
            progress(bench.clock() - began_s, state)
            if device == "cpu" and one.memory_bytes > largest_bytes:
                largest_bytes, block = one.memory_bytes, _touched(TOUCHED_FACTOR * one.memory_bytes)
            runs[at] = _run(bench, module, (network, one, device), (steps, step_s), reference_s)
            if runs[at].failed:  # only now, as the error held what the step did
                module.zero_grad(set_to_none=True)
                import_torch().cuda.empty_cache()
        del block
        return tuple(runs.get(at, PlanRun()) for at in range(len(wanted)))


def _touched(wanted_bytes: float) -> torch.Tensor | None:
    """Touch so much memory, as far as it is free, and leave it to the allocator; return the last block of it."""
    # While that block is kept, the rest is not at the end of the heap: glibc gives back more than 2 GiB there.
    library = import_torch()
    keep_freed_memory()
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count = int(min(wanted_bytes, MOST_FREE_SHARE * free_bytes) / BLOCK_BYTES)
    blocks: list[torch.Tensor] = [library.ones(BLOCK_BYTES, dtype=library.uint8) for _ in range(count + 1)]
    return blocks[-1] if count else None


def _next(wanted: Sequence[WantedRun], runs: Mapping[int, PlanRun], left_s: float) -> tuple[int, float, float] | None:
    """Return the first that fits the time left [s], what a step may take [s], and how many it may make."""
    pace = RUN_FACTOR * _pace(wanted, runs)
    fitting: list[int] = []
    together_s = 0.0
    for at, one in enumerate(wanted):
        step_s = pace * one.expected_s
        if at not in runs and FEWEST_STEPS * (together_s + step_s) <= left_s:
            fitting.append(at)
            together_s += step_s
    return (fitting[0], pace * wanted[fitting[0]].expected_s, left_s / together_s) if fitting else None


def _pace(wanted: Sequence[WantedRun], runs: Mapping[int, PlanRun]) -> float:
    """Return how many times longer than expected the steps of the runs took, together; 1 of none."""
    times = [(run.step.time_s, wanted[at].expected_s) for at, run in runs.items() if run.step]
    return sum(time_s for time_s, _ in times) / sum(expected_s for _, expected_s in times) if times else 1.0


def enough_s(wanted: Sequence[WantedRun], runs: Sequence[PlanRun]) -> float:
    """Return the time [s] that suffices for every wanted run, by what runs of some have taken.

    ``runs``: what came of each; those that failed are left out.
    """
    timings = {at: run for at, run in enumerate(runs) if run.step}
    expected_s = sum(one.expected_s for one, run in zip(wanted, runs, strict=True) if not run.failed)
    return FEWEST_STEPS * RUN_FACTOR * max(1.0, _pace(wanted, timings)) * expected_s


def _run(
    bench: Bench,
    module: torch.nn.Module,
    what: tuple[Network, WantedRun, str],
    steps: tuple[float, float],
    quiet_s: float,
) -> PlanRun:
    """Return what came of a run; ``steps``: at most so many, each of so long [s]; fewer where that time is up."""
    (network, one, device), (count, step_s) = what, steps
    warm_up = min(WARM_UP_STEPS, int(count) // FEWEST_STEPS)
    repeats = min(REPEATS, int(count) - warm_up)

    def measure() -> Timing:
        to_s = max(bench.clock() + (warm_up + repeats - 1) * step_s, end_s - step_s)
        options = {"precision": one.precision, "optimizer": one.optimizer}
        return gradient_time(module, network, one.sub_batch, repeats, until_s=to_s, warm_up=warm_up, **options)

    end_s = bench.clock() + count * step_s
    until_s = max(end_s - (WARM_UP_STEPS + REPEATS) * step_s, bench.clock() + FIRST_STEP_S)
    try:
        with computing_in(one.precision):
            trial = least_disturbed(measure, bench, quiet_s, tries=MOST_TRIES, pause_s=PAUSE_S, until_s=until_s)
    except (RuntimeError, MemoryError) as error:
        return _failed(device, error, f"training steps of {network.name} on {one.sub_batch} samples in {one.precision}")
    if trial is None:
        return PlanRun()
    timing, slower = trial
    step = TimedStep(network, one.sub_batch, timing.time_s, timing.spread_s, one.precision)
    return PlanRun(step, slower, parts=timing.parts)


def _failed(device: str, error: RuntimeError | MemoryError, what: str) -> PlanRun:
    """Return the run that an error left out: PyTorch raises RuntimeError for whatever a library or device refuses."""
    if isinstance(error, MemoryError):
        return PlanRun(failed=NO_MEMORY)
    check_computes(device, error, what)
    return PlanRun(failed=first_line(error))
