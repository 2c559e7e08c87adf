"""Measuring this machine: what with, what for, for how long, what is said meanwhile, and what to measure next."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from planner import catalog
from planner.domain.calibration import Calibration, Gap
from planner.domain.cluster import Cluster, Node
from planner.domain.configuration import Configurations, Settings
from planner.domain.kernels import DIRECTIONS, OF_BANDWIDTH, SERVED_BY, TRAFFIC_KINDS, UPDATE
from planner.domain.network import LOOKED_UP, LayerCall, Network, Point
from planner.domain.precision import PRECISIONS
from planner.domain.request import Problem
from planner.domain.samples import BUDGET, FREE_CIRCUMSTANCES, NETWORKS, number_in
from planner.errors import NOTHING, CoverageError, OutputError, ParameterError, PlannerError
from planner.fitting.calibration import fit_calibration
from planner.fitting.kernels import expected_fit_s, learns_from_calls
from planner.fitting.next_points import CanMeasure, NextPoints
from planner.networks.zoo import build, zoo_names
from planner.probes.bench import DISTURBED_RATIO
from planner.probes.calibrate import Measurement, Own, Place, measure_device, place_of
from planner.probes.gpu import Gpu, check_gpu, default_device, describe_gpu, present_gpus
from planner.probes.layer_points import SMALL_SUB_BATCH, Extent, layer_points, unmeasurable
from planner.probes.machine import describe_cpu
from planner.probes.precisions import check_torch
from planner.probes.run import EXPECTED_ERROR, Goal, Progress, holds_measured, seconds_used
from planner.probes.steps import CPU_BYTES, STEP_PRECISIONS, PlanRun, StepNeed, timed_runs
from planner.sessions.inputs import Say
from planner.sources.source import is_used
from planner.sources.sources import Sources
from planner.units import format_bytes, format_seconds
from planner.workload.calls import distinct_calls, layer_calls, lower, totals
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from planner.workload.shards import has_tensor_shards, tensor_shard

DEFAULT_BUDGET_S = 60.0
"""Of the time that ``planner calibrate`` takes [s]."""
Kernel = tuple[str, str]
"""Kind and direction."""
THREE_WAYS = frozenset(DIRECTIONS) - {UPDATE}


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be measured.

    ``target_error``: at which measuring ends; None: once time is up.
    """

    budget_s: float
    networks: tuple[Network, ...] = ()
    precisions: tuple[str, ...] = ()
    target_error: float | None = None
    device: str = "cpu"
    shards: tuple[Network, ...] = ()
    threads: int = 1

    @property
    def needed(self) -> tuple[str, ...]:
        """Precisions without whose steps a calibration is refused."""
        return trained(("fp32", *self.precisions))

    @property
    def all_networks(self) -> tuple[Network, ...]:
        """Networks and shards: whose calls are timed."""
        return (*self.networks, *self.shards)


def trained(precisions: Iterable[str]) -> tuple[str, ...]:
    """Return those that training steps are timed in, each once."""
    return tuple(one for one in dict.fromkeys(precisions) if one in STEP_PRECISIONS)


def networks_of(names: Iterable[str], device: str = "cpu") -> tuple[Network, ...]:
    """Return the networks whose own layers are to be measured, each once; refuse one that the device cannot hold."""
    networks = tuple(catalog.find_network(name) for name in dict.fromkeys(names))
    if not networks:
        return ()
    own = describe_cpu()[0] if device == "cpu" else describe_gpu(device, catalog.known_accelerator).accelerator
    for network in networks:
        bytes_needed = needed_bytes(network, own.kind)
        if bytes_needed > own.memory_bytes:
            memory, at = format_bytes(own.memory_bytes), f"at a sub-batch of {SMALL_SUB_BATCH}"
            rule = f"a network that fits the {memory} of this machine {at}"
            raise ParameterError("--network", rule, f"{network.name}, which needs {format_bytes(bytes_needed)}")
    return networks


def shards_of(networks: Sequence[Network], degrees: Sequence[int]) -> tuple[Network, ...]:
    """Return a rank's shard of every network with attention, of each tensor-parallel degree."""
    if degrees and not networks:
        raise ParameterError("--network", "given with --tensor-parallel", NOTHING, "name the networks to be split")
    split = [network for network in networks if has_tensor_shards(network)] or networks
    return tuple(tensor_shard(network, degree) for network in split for degree in degrees if degree > 1)


def needed_bytes(network: Network, kind: str) -> float:
    """Return the bytes of a network at the small sub-batch, on a device of a kind."""
    ledger = Memory(network, MemoryRules.of("fp32", network.optimizer, device_kind=kind))
    return float(ledger.fullest(Configurations.having(sub_batch=SMALL_SUB_BATCH)).total)


def check_served(
    calibration: Calibration, node: Node, request: Request, say: Say, precisions: Sequence[str] = ("fp32",)
) -> None:
    """Refuse a calibration that serves no step of the networks; say how many of their calls were left to fits.

    In 8 bits there are no steps, only products: steps of the other precisions that were measured are looked at.
    CoverageError: names what is missing in fp32 or in a precision that was asked for, and the budget that suffices.
    """
    missing: dict[str, dict[Kernel, None]] = {}
    fits, total, hopeless = 0, 0, 0
    obligatory = request.needed
    for precision, network in itertools.product(trained((*obligatory, *precisions)), request.all_networks):
        settings = Settings(optimizer=network.optimizer)
        cluster = Cluster("local", 1, node)
        sources = Sources(Problem(network, None, cluster, (calibration,), explicit_calibration=True, settings=settings))
        own = sources.layer_calls(precision)
        if precision in obligatory and node.accelerator.kind == "cpu":
            hopeless += never_timed(network, Extent(precisions=tuple(precisions)), precision)
        for calls in lower(network, np.ones(1, dtype=np.int64), optimizer=network.optimizer):
            for part, source in own.split(calls, np.ones(1, dtype=np.int64)):
                is_left = source is None and SERVED_BY.get(part.kind, part.kind) != "bias"
                if precision in obligatory:
                    count = int(part.count.sum())
                    fits, total = fits + is_left * count, total + count
                if is_left and not sources.is_calibrated(part.kind, part.direction, precision):
                    missing.setdefault(precision, {})[part.kind, part.direction] = None
    _check_none("a calibration must hold every kernel of the networks", missing, request, say)
    if fits > hopeless:
        enough = f"--budget {enough_s(request.budget_s):.0f}s"
        say(f"{fits} of the {total} calls of the networks are left to fits; with {enough} more of them are timed")


def _check_none(rule: str, missing: Mapping[str, Iterable[Kernel]], request: Request, say: Say) -> None:
    """Refuse what is missing in a precision that is needed; say what is in others."""
    budget = f"--budget {enough_s(request.budget_s):.0f}s"
    gaps = {name: grouped(kernels) for name, kernels in missing.items()}
    refusals = [
        f"{gap}{'' if name == 'fp32' else f' in {name}'}" for name, gap in gaps.items() if name in request.needed
    ]
    if refusals:
        kept = f"what was measured is kept, and the same command with {budget} goes on from there"
        raise CoverageError(f"{rule}, got too few timings of {'; '.join(refusals)}; {kept}")
    for name, gap in gaps.items():
        say(f"{name} has too few timings of {gap} for predictions; {budget} takes more")


def check_complete(
    calibration: Calibration,
    kernels: Sequence[Kernel],
    request: Request,
    say: Say,
    precisions: Sequence[str] = ("fp32",),
) -> None:
    """Refuse a calibration without every kernel of the bundled networks: it would serve none of them.

    ``kernels``: these kernels. Other parameters and errors are those of :func:`check_served`.
    """
    keys = {
        (one.kind, way, one.precision)
        for one in calibration.entries
        for way in ((one.direction,) if one.direction else DIRECTIONS)
        if one.term != LOOKED_UP and (is_used(one) or one.kind in TRAFFIC_KINDS)  # for what moves bytes others serve
    }
    gaps = {
        name: [pair for pair in kernels if not {(*pair, name), (*pair, "any")} & keys]
        for name in trained((*request.needed, *precisions))
    }
    missing = {name: pairs for name, pairs in gaps.items() if pairs}
    _check_none("a calibration must hold every kernel of the bundled networks", missing, request, say)


Bar = Callable[[str, float, str], AbstractContextManager[Callable[[float, str], None]]]
"""Takes a label, a total and a sentence; gives what shows how much is done, and a state in words."""


def needed_kernels() -> tuple[tuple[str, str], ...]:
    """Return kind and direction of every kernel that a bundled network calls, products first.

    Without those that a data sheet's bandwidth serves.
    """
    one = np.ones(1, dtype=np.int64)
    pairs = {(calls.kind, calls.direction) for name in zoo_names() for calls in lower(build(name, {}), one)}
    return tuple(sorted(pairs - {*OF_BANDWIDTH}, key=lambda pair: (pair[0] not in ("convolution", "gemm"), pair)))


@dataclass(frozen=True, slots=True)
class Session:
    """Whom a session tells, and what it measures, times and fits with: this machine's unless others are given."""

    say: Say
    bar: Bar
    clock_s: Callable[[], float] = time.perf_counter
    check_gpu: Callable[[str], object] = check_gpu
    default_device: Callable[[Say], str] = default_device
    present_gpus: Callable[..., tuple[Gpu, ...]] = present_gpus
    place_of: Callable[..., Place] = place_of
    measure: Callable[..., Measurement] = measure_device
    run_plans: Callable[..., tuple[PlanRun, ...]] = timed_runs
    needed_kernels: Callable[[], tuple[tuple[str, str], ...]] = needed_kernels
    expected_fit_s: Callable[..., float] = expected_fit_s
    next_points: Callable[..., Any] = NextPoints
    fit: Callable[..., Calibration] = fit_calibration


LARGEST_STEAL_SHARE = 0.05
"""Of the wall time, taken by the host from the one thread that measures."""
REFERENCE_KEY, STEAL_KEY = "reference_s", "steal_during_s"


def with_doubts(measurement: Measurement, wall_s: float, earlier: Iterable[Calibration], say: Say) -> Measurement:
    """Return a measurement that warns of a run that was slow throughout, and say so.

    ``wall_s``: that the run took [s]; ``earlier``: of this machine.
    """
    circumstances, device = measurement.samples.circumstances, measurement.accelerator.name
    doubts = {
        "warning_slower": slower_than_before(circumstances, device, earlier),
        "warning_steal": stolen(circumstances, wall_s),
    }
    sentences = {key: sentence for key, sentence in doubts.items() if sentence}
    for sentence in sentences.values():
        say(sentence)
    return replace(measurement, samples=replace(measurement.samples, circumstances={**circumstances, **sentences}))


def slower_than_before(circumstances: Mapping[str, str], device: str, earlier: Iterable[Calibration]) -> str:
    """Return that the reference kernel was much slower than in an earlier run of the same circumstances, else ''."""
    # Another design may have another reference kernel.
    lasting = {key: value for key, value in circumstances.items() if key not in FREE_CIRCUMSTANCES or key == "design"}
    of_device = [one for one in earlier if one.accelerator == device]
    alike = [
        one for one in of_device if all(one.environment.get(key, value) == value for key, value in lasting.items())
    ]
    times = [(seconds, one) for one in alike if (seconds := number_in(one.environment.get(REFERENCE_KEY, "")))]
    now_s = number_in(circumstances.get(REFERENCE_KEY, ""))
    if not times or not now_s:
        return ""
    best_s, best = min(times, key=lambda pair: pair[0])
    if now_s <= DISTURBED_RATIO * best_s:
        return ""
    return (
        f"the reference kernel took {format_seconds(now_s)} in the quiet part of this run, {now_s / best_s:.2g} times "
        f"the {format_seconds(best_s)} of calibration {best.name!r} of {best.date or 'an unknown day'} under the same "
        "circumstances: the machine was slow throughout; run it again when it is quiet"
    )


def stolen(circumstances: Mapping[str, str], wall_s: float) -> str:
    """Return that the host took much of the CPU time during a run of ``wall_s`` seconds, else ''."""
    share = number_in(circumstances.get(STEAL_KEY, "")) / wall_s
    if share <= LARGEST_STEAL_SHARE:
        return ""
    return (
        f"the host took CPU time worth {share:.0%} of this run for other machines: times are too long by about as "
        "much; run it again when the host is quiet"
    )


LARGEST_FIT_SHARE = 0.4
"""Of the budget that is kept for fitting, however long it is expected to take."""
LEAST_FIT_SHARE = 0.3
"""Of the time that fitting a whole design takes, for a few rows, with what is checked and written after it."""
MOST_LOADING_SHARE = 0.4
"""Of the budget: where loading alone takes more, choosing points and fitting them would take the rest."""
ENDING_S = 1.0
"""Of the budget: what a process that has loaded PyTorch takes to end [s]."""
LEAST_MEASURING_S = 0.1
"""What is measured for at least [s]."""


def check_writable(what: str, path: Path) -> None:
    """Refuse a path whose folder, or the nearest one above that exists, cannot be written; nothing is left there."""
    folder = next((above for above in path.absolute().parents if above.exists()), path.parent)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"{what} must be in a folder that can be written, got {folder}: {error.strerror}") from error


def measured(request: Request, partial: Path, session: Session, used_s: float = 0.0) -> Measurement:
    """Return the measurements of a device, going on from ``partial`` where it has some.

    ``used_s``: of the budget, before [s]. What fitting is expected to take is kept of it too.
    """
    check_torch()
    check_writable("what is measured", partial)
    began = session.clock_s()
    place = session.place_of(request.device, request.precisions, catalog.known_accelerator, request.threads)
    calls, extent = distinct_calls(request.all_networks), place.extent()
    loading_s = used_s + session.clock_s() - began
    if loading_s > MOST_LOADING_SHARE * request.budget_s and not holds_measured(partial):
        raise CoverageError(
            f"--budget must leave time to measure, got {request.budget_s:.0f} s, of which loading PyTorch took "
            f"{loading_s:.0f} s; use --budget {enough_s(request.budget_s):.0f}s, or wait until the machine is less busy"
        )
    for sentence in left_out(calls, request.all_networks, extent):
        session.say(sentence)
    goal = _goal(request, place, session)
    left_s = max(request.budget_s - ENDING_S - used_s, LEAST_MEASURING_S)
    device = "this CPU" if request.device == "cpu" else f"this {place.accelerator.name}"
    own = layer_points(calls, extent)
    names = {point.name for point in (*own, *place.points(), *goal.later)}
    used_before_s = seconds_used(partial, place.circumstances, names)
    sentence = f"measuring {device} for {max(left_s - used_before_s, 0.0):.0f} s{' more' if used_before_s else ''}"
    rules, needs = MemoryRules.of("fp32", "none", device_kind="cpu"), dict[str, StepNeed]()
    for network in request.networks if request.device == "cpu" else ():  # of a GPU it is tried out
        largest = Memory(network, rules).largest_sub_batches(Configurations.having(), CPU_BYTES)
        needs[network.name] = StepNeed(float(totals(network).training_flop), int(largest))
    with session.bar(f"measuring {device}", left_s, sentence) as show:
        measurement = session.measure(
            place,
            left_s,
            own=Own(request.networks, own, needs),
            goal=goal,
            input_folder=Path(),
            resume=partial,
            progress=lambda now: show(now.elapsed_s, _state(now)),
            say=session.say,
        )
    missing: dict[str, dict[Kernel, None]] = {}  # of the points that come first
    for point in measurement.missing:
        precision = "fp32" if point.kind in TRAFFIC_KINDS else point.precision
        missing.setdefault(precision, {})[point.kind, point.direction] = None
    of = "the networks" if request.networks else "the bundled networks"
    _check_none(f"a calibration must hold every kernel of {of}", missing, request, session.say)
    circumstances = measurement.samples.circumstances
    if request.target_error is not None:
        error = float(circumstances.get(EXPECTED_ERROR, "inf"))
        outcome = "is reached" if error <= request.target_error else "is not reached: a larger --budget goes on"
        expected = f"steps are expected to miss by {error:.1%} on average"
        session.say(f"target error {request.target_error:.1%} {outcome}; {expected}")
    if not request.networks:
        return measurement
    own_names = "; ".join(network.name for network in request.networks)
    circumstances = {**circumstances, NETWORKS: own_names, BUDGET: f"{request.budget_s:.0f}"}
    return replace(measurement, samples=replace(measurement.samples, circumstances=circumstances))


def _goal(request: Request, place: Place, session: Session) -> Goal:
    """Return what the measuring is for: the networks, or all bundled ones that fit, by the generic design first."""
    device = place.accelerator
    networks = request.all_networks or _bundled(device.kind, device.memory_bytes)
    later = () if request.networks else _bundled_layers(device.kind, device.memory_bytes, place.extent())
    precisions = trained(place.precisions)
    products = tuple(one for one in place.precisions if one not in precisions)

    @cache
    def whole_s() -> float:
        points = place.points()
        return session.expected_fit_s(device, len(points) / sum(one.precision == "fp32" for one in points))

    def kept_s(points: int) -> float:  # to fit so many points: a part in any case, the rest by their number
        most = math.inf if learns_from_calls(device) else 1.0
        share = LEAST_FIT_SHARE + (1 - LEAST_FIT_SHARE) * min(points / len(place.points()), most)
        return min(share * whole_s(), LARGEST_FIT_SHARE * request.budget_s)

    def next_points(points: Sequence[Point]) -> Any:
        return session.next_points(points, networks, device, precisions, products)

    return Goal(next_points, later, request.target_error, kept_s)


@cache
def _bundled(kind: str, memory_bytes: float) -> tuple[Network, ...]:
    """Return the bundled networks that a device holds, and one with fused attention, which none of them asks for."""
    every = (*(build(name, {}) for name in zoo_names()), build("gpt", {"attention": "fused"}))
    return tuple(one for one in every if needed_bytes(one, kind) <= memory_bytes)


@cache
def _bundled_layers(kind: str, memory_bytes: float, extent: Extent) -> tuple[Point, ...]:
    return layer_points(distinct_calls(_bundled(kind, memory_bytes)), extent)


def _state(now: Progress) -> str:
    disturbed = f", {now.disturbed} disturbed" if now.disturbed else ""
    error = f", expected error {now.expected_error:.1%}" if now.expected_error is not None else ""
    left_s = max(now.budget_s - now.elapsed_s, 0.0)
    return f"{now.doing}: {now.done}/{now.total} points{disturbed}{error}, {left_s:.0f} s left"


def left_out(calls: Sequence[LayerCall], networks: Sequence[Network], extent: Extent) -> Iterator[str]:
    """Yield a sentence for every layer with calls that are not measured: which, why, and what predicts them instead.

    Layers that are kept out in the same words share one. What is timed in fp32 alone is told with the other precisions.

    ``calls``: of the networks, each once.
    """
    kernels: dict[tuple[str, str, str], list[Kernel]] = {}
    most: dict[tuple[str, str, str], int] = {}
    for call in calls:
        reasons = {name: unmeasurable(call, extent, name) for name in extent.precisions}
        names = [name for name, reason in reasons.items() if reason]
        reason = next(filter(None, reasons.values()), None)
        if reason:
            owner = next((network.name for network in networks if call.layer in network.layers), "")
            layer = call.layer.name + (f" of {owner}" if owner else "")
            key = layer, "" if "fp32" in names else f" in {', '.join(names)}", reason.words
            kernels.setdefault(key, []).append((call.kind, call.direction))
            most[key] = max(reason.needed_bytes, most.get(key, 0))
    alike: dict[str, list[str]] = {}
    for (layer, precisions, words), ways in kernels.items():
        several, mib = len(set(ways)) > 1, most[layer, precisions, words] / 2**20
        verb = f"{'have up to' if several else 'has'} {mib:,.0f} MiB" if mib else "are" if several else "is"
        alike.setdefault(f"{grouped(ways)}{precisions} {verb} {words}", []).append(layer)
    for what, layers in alike.items():
        more = f" (and {len(layers) - 1} more layer{'s' if layers[2:] else ''})" if layers[1:] else ""
        yield f"layer {layers[0]}{more}: {what}; not timed as in the network, but predicted by a fit to other kernels"


def never_timed(network: Network, extent: Extent, precision: str = "fp32") -> int:
    """Return how many calls of a network no budget is enough for in a precision."""
    calls = (call for of in layer_calls(network, optimizer=network.optimizer).values() for call in of)
    return sum(call.count for call in calls if call.kind != "bias" and unmeasurable(call, extent, precision))


def enough_s(budget_s: float) -> float:
    """Return the budget to try after one that was too short [s]: the default, or twice what was not below that."""
    return DEFAULT_BUDGET_S if budget_s < DEFAULT_BUDGET_S else 2 * budget_s


def grouped(kernels: Iterable[Kernel]) -> str:
    """Return kinds and directions in words: kinds of the same directions together, these in brackets behind them."""
    ways: dict[str, set[str]] = {}
    for kind, direction in kernels:
        ways.setdefault(kind, set()).add(direction)
    kinds: dict[str, list[str]] = {}
    for kind, own in ways.items():
        text = "all three directions" if own >= THREE_WAYS else ", ".join(way for way in DIRECTIONS if way in own)
        kinds.setdefault("" if own == {kind} else f" ({text})", []).append(kind)  # an update has no direction
    return "; ".join(", ".join(alike) + text for text, alike in kinds.items()).replace("_", " ")


NEXT_NETWORKS = ("resnet50", "gpt")
"""Networks whose kernels a calibration made for none should know: one of convolutions, one of products."""


def measured_for(calibration: Calibration) -> tuple[Network, ...]:
    """Return the networks that a calibration was made for, those known here; of none, those of usual kernels."""
    networks: dict[str, Network] = {}
    for name in calibration.environment.get(NETWORKS, "").split("; "):
        with contextlib.suppress(PlannerError):
            networks[name] = catalog.find_network(name)
    return tuple(networks.values()) or tuple(catalog.find_network(name) for name in NEXT_NETWORKS)


def can_be_measured(calibration: Calibration) -> CanMeasure:
    """Return what tells which calls can be timed on the calibration's device; a GPU is taken to hold any.

    On a CPU in the precisions that the calibration was measured in: further ones take of the memory.
    """
    of_any_memory = Extent(operand_elements=sys.maxsize, elements=sys.maxsize, on_gpu=True)
    extent = of_any_memory if _is_gpu(calibration) else Extent(precisions=_precisions(calibration))
    return lambda call, precision: not unmeasurable(call, extent, precision)


def _precisions(calibration: Calibration) -> tuple[str, ...]:
    """Return the precisions that a calibration was measured in, fp32 first."""
    return tuple(
        dict.fromkeys(("fp32", *(one.precision for one in calibration.entries if one.precision in PRECISIONS)))
    )


def _is_gpu(calibration: Calibration) -> bool:
    return calibration.node is not None and calibration.node.accelerator.kind == "gpu"


def measuring(gaps: Iterable[Gap], calibration: Calibration) -> str:
    """Return the command that measures the kernels of gaps on the calibration's device.

    On a CPU in the precisions that it has. With more time where it was made for one of the networks: the same command
    would come to the same.
    """
    names = tuple(dict.fromkeys(gap.network for gap in gaps))
    networks = "".join(f" --network {name}" for name in names)
    more = ""
    if set(names) & set(calibration.environment.get(NETWORKS, "").split("; ")):
        budgets_s = re.findall(r"\d+", calibration.environment.get(BUDGET, ""))
        more = f" --budget {enough_s(max(map(float, budgets_s), default=DEFAULT_BUDGET_S)):.0f}s"
    others = ",".join(_precisions(calibration)[1:])
    device = "cuda" if _is_gpu(calibration) else f"cpu{f' --precision {others}' if others else ''}"
    return f"planner calibrate --device {device}{networks}{more}"
