"""What to measure next: the kernels of networks whose expected error costs a training step most.

A kernel's part in the error of a step is its share of the kernel time times its own expected error: the held-out error
of its entry, twice that where it lies outside the fit, and a stated one where nothing was measured. Calls that were
timed as they are, and those that cannot be, are none of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from planner.costs.terms import RANGE_MARGIN, Work, evaluate, extrapolates, features_of, term_named
from planner.domain.arrays import BoolArray, FloatArray
from planner.domain.calibration import Calibration, Entry, Gap
from planner.domain.cluster import Cluster
from planner.domain.configuration import Settings
from planner.domain.kernels import PRODUCT_KINDS, KernelCalls
from planner.domain.network import LayerCall, Network
from planner.domain.precision import PRECISIONS, precision_named
from planner.domain.request import Problem
from planner.numbers import constant, constants
from planner.sources.sources import Source, Sources
from planner.steps.compute import call_work
from planner.workload.calls import layer_calls, lower

__all__ = ["CanMeasure", "gaps_of"]

IMAGES, SEQUENCES = {"gpu": 32, "cpu": 8}, {"gpu": 8, "cpu": 2}
"""Samples of the step whose shares are taken, by kind of device."""
STATED_ERROR = constants("intervals.stated")["kernels"] * math.sqrt(2 / math.pi)
"""Mean error of kernels from data sheets, and of an entry that states none on rows left out (docs/numbers.md)."""
OUTSIDE_FACTOR = constant("gaps.outside")
"""Times the held-out error, outside the fit (docs/numbers.md)."""
POOR_ERROR = 0.25
"""Held-out error from which an entry is poor."""
LEAST_WEIGHT = 0.001
"""Of the step's time: less is not worth a measurement."""
UNTIMED_PRECISIONS = ("int8",)
"""PyTorch has no int8 convolutions to time on a GPU, nor backward on a CPU."""


CanMeasure = Callable[[LayerCall, str], bool]
"""Call of a network's layer, precision -> whether it can be timed as it is."""


def gaps_of(
    calibration: Calibration, networks: Sequence[Network], can_measure: CanMeasure = lambda *_: True
) -> tuple[Gap, ...]:
    """Return what a calibration knows badly of networks, what costs their steps most first.

    A precision of the device that the calibration has neither products nor convolutions in is one gap a network.

    Parameters
    ----------
    calibration : one without kernels, or of no known device, has no gaps
    """
    precisions = {entry.precision for entry in calibration.entries if entry.kind in PRODUCT_KINDS}
    if calibration.node is None or not precisions:
        return ()
    device = calibration.node.accelerator
    gaps: list[Gap] = []
    for network in networks:
        cluster = Cluster(calibration.cluster or "local", 1, calibration.node)
        settings = Settings(optimizer=network.optimizer, input="synthetic")
        sources = Sources(Problem(network, None, cluster, (calibration,), settings=settings))
        device_precisions = [
            name for name in PRECISIONS if name in device.peak_flop_per_s and name not in UNTIMED_PRECISIONS
        ]
        gaps += [
            gap for name in PRECISIONS if name in precisions for gap in _of_step(sources, network, name, can_measure)
        ]
        gaps += _of_precisions(sources, network, [name for name in device_precisions if name not in precisions])
    return tuple(sorted((gap for gap in gaps if gap.weight >= LEAST_WEIGHT), key=lambda gap: -gap.weight))


def _of_precisions(sources: Sources, network: Network, absent: Sequence[str]) -> Iterator[Gap]:
    """Yield the gap that products were measured in none of these precisions, of that where they take most of a step."""
    shares: dict[str, float] = {}
    kinds: dict[str, None] = {}
    for precision in absent:
        seconds = {True: 0.0, False: 0.0}
        for calls, _, _, times, _ in _timed(sources, network, precision):
            seconds[calls.kind in PRODUCT_KINDS] += float(times.sum())
            kinds |= {calls.kind: None} if calls.kind in PRODUCT_KINDS else {}
        shares[precision] = seconds[True] / (sum(seconds.values()) or 1.0)
    if kinds:
        worst, *others = sorted(shares, key=lambda name: -shares[name])
        nor = f"nor in {', '.join(others)}" if others else ""
        yield Gap(network.name, " and ".join(kinds), "", worst, "missing", shares[worst], STATED_ERROR, nor)


def _of_step(sources: Sources, network: Network, precision: str, can_measure: CanMeasure) -> Iterator[Gap]:
    """Yield a gap for every kind and direction of kernels in a step of a network; two where part lies outside."""
    parts = list(_timed(sources, network, precision, can_measure))
    total = sum(float(times.sum()) for *_, times, _ in parts)
    for calls, source, work, every_s, is_open in parts:
        times = every_s * is_open
        entry, key = source.entry, (network.name, calls.kind, calls.direction, precision)
        if source.origin == "specified":
            yield Gap(*key, "missing", float(times.sum()) / total, STATED_ERROR)
            continue
        error = STATED_ERROR if entry.held_out_error is None else entry.held_out_error
        outside = np.broadcast_to(extrapolates(entry, work), times.shape) if entry.ranges else np.zeros_like(times)
        far_s = float((times * outside).sum())
        if far_s:
            yield Gap(*key, "outside", far_s / total, OUTSIDE_FACTOR * error, _farthest(entry, work))
        yield Gap(*key, "poor" if error >= POOR_ERROR else "worst known", (float(times.sum()) - far_s) / total, error)


def _timed(
    sources: Sources, network: Network, precision: str, can_measure: CanMeasure = lambda *_: True
) -> Iterator[tuple[KernelCalls, Source, Work, FloatArray, BoolArray]]:
    """Yield calls of a step that are served, work, times [s] of shape (1, k), and which could be timed but were not."""
    is_image = len(network.input_shape) > 1
    sub_batch = np.array([(IMAGES if is_image else SEQUENCES)[sources.accelerator.kind]])
    itemsize = precision_named(precision).activation_bytes
    convolution = sources.convolution_lowering(precision)
    by_kernel = layer_calls(network, convolution=convolution, optimizer=network.optimizer)
    for calls in lower(network, sub_batch, convolution=convolution, optimizer=network.optimizer):
        of_layers = zip(calls.layer.tolist(), by_kernel[calls.kind, calls.direction], strict=True)
        can = {(layer, *call.at(int(sub_batch[0])).values()): can_measure(call, precision) for layer, call in of_layers}
        for part, looked_up, runs_in in sources.split(calls, sub_batch, precision):
            source = looked_up or sources.find_kernel(part.kind, part.direction, runs_in)
            if source is not None:
                work = call_work(part, itemsize)
                times = np.broadcast_to(evaluate(source.entry, work), (1, part.layer.size)) * part.count
                columns = [np.broadcast_to(one, times.shape)[0].tolist() for one in part.work.values()]
                keys = zip(part.layer.tolist(), *columns, strict=True)
                is_open = looked_up is None and runs_in == precision
                yield part, source, work, times, np.array([is_open and can[key] for key in keys])


def _farthest(entry: Entry, work: Work) -> str:
    """Return which feature of calls lies farthest outside the fit, and the end of the range that was seen."""
    features = features_of(entry, work)
    names = term_named(entry.term).names(entry.settings)
    values = {name: np.asarray(work[name], dtype=np.float64) for name in entry.ranges if name in work}
    values |= {name: features[..., at] for at, name in enumerate(names) if name in entry.ranges}
    far: list[tuple[float, str]] = []
    for name, of_calls in values.items():
        low, high = entry.ranges[name]
        margin = RANGE_MARGIN * max(abs(low), abs(high))
        least, most = float(of_calls.min()), float(of_calls.max())
        if most > high + margin:
            far.append((most / high if high else np.inf, f"{name} up to {most:.3g}, seen to {high:.3g}"))
        elif least < low - margin:
            far.append((low / least if least else np.inf, f"{name} down to {least:.3g}, seen from {low:.3g}"))
    return max(far)[1] if far else ""
