"""Measuring this machine for ``planner calibrate``: the device, a progress bar, what is kept when interrupted."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from planner import catalog
from planner.cli.left_out import Kernel, enough_s, grouped, left_out, never_timed
from planner.cli.progress import bar
from planner.cli.streams import note
from planner.domain.calibration import Calibration
from planner.domain.calls import LOOKED_UP
from planner.domain.cluster import Accelerator, Cluster, Node
from planner.domain.configuration import Settings
from planner.domain.kernels import DIRECTIONS, SERVED_BY, TRAFFIC_KINDS
from planner.domain.network import Network
from planner.domain.request import Problem
from planner.domain.samples import BUDGET, NETWORKS, Samples
from planner.errors import CoverageError, OutputError, ParameterError
from planner.fitting.duration import expected_fit_s
from planner.fitting.next_points import NextPoints
from planner.networks.zoo import build, zoo_names
from planner.probes.calibrate import Measurement, Own, measure_device
from planner.probes.gpu import check_gpu, describe_gpu
from planner.probes.layer_points import SMALL, Extent, layer_points
from planner.probes.machine import describe_cpu
from planner.probes.places import Place, place_of
from planner.probes.resume import holds_measured
from planner.probes.run import EXPECTED_ERROR, Progress, Wanted, used_before
from planner.probes.steps import CPU_BYTES, STEP_PRECISIONS, StepNeed
from planner.probes.torch_package import check_torch
from planner.steps.source import is_used
from planner.steps.sources import Sources
from planner.units import format_bytes
from planner.workload.calls import distinct_calls
from planner.workload.lowering import lower
from planner.workload.memory import largest_sub_batch, memory_bytes
from planner.workload.totals import totals

__all__ = [
    "Asked",
    "check_complete",
    "check_device",
    "check_networks",
    "check_served",
    "check_writable",
    "measured",
    "needed_kernels",
]

LARGEST_FIT_SHARE = 0.4
"""Of the budget that is kept for fitting, however long it is expected to take."""
LEAST_FIT = 0.3
"""Of the time that fitting a whole design takes, for a few rows, with what is checked and written after it."""
MOST_LOADING = 0.4
"""Of the budget: where loading alone takes more, choosing points and fitting them would take the rest."""
LEAST_S = 0.1
"""What is measured for at least [s]."""


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have."""
    if device != "cpu":
        check_gpu(device)


def _accelerator(device: str) -> Accelerator:
    return describe_cpu()[0] if device == "cpu" else describe_gpu(device, catalog.known_accelerator).accelerator


def check_writable(what: str, path: Path) -> None:
    """Refuse a path whose folder, or the nearest one above that exists, cannot be written; nothing is left there."""
    folder = next((above for above in path.absolute().parents if above.exists()), path.parent)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"{what} must be in a folder that can be written, got {folder}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured.

    Attributes
    ----------
    budget_s : float
        Time for all, measuring, fitting and writing [s].
    networks : tuple of Network
        Whose own calls are timed; none: points of a generic design serve the bundled ones.
    precisions : tuple of str
        Empty: fp32 of a CPU, all that a GPU has.
    target_error : float or None
        Expected mean relative error of these networks' steps at which measuring stops; None: it uses its time up.
    device : str
        As PyTorch names it.
    shards : tuple of Network
        What one rank computes of networks under tensor parallelism: their calls are timed too, no steps.
    """

    budget_s: float
    networks: tuple[Network, ...] = ()
    precisions: tuple[str, ...] = ()
    target_error: float | None = None
    device: str = "cpu"
    shards: tuple[Network, ...] = ()


def measured(asked: Asked, partial: Path, used_s: float = 0.0) -> Measurement:
    """Return the measurements of a device, going on from ``partial`` where it has some.

    ``used_s``: of the budget, before [s]. What fitting is expected to take is kept of it too.
    """
    check_torch()
    check_writable("what is measured", partial)
    began = time.perf_counter()
    place = place_of(asked.device, asked.precisions, catalog.known_accelerator)
    calls, extent = distinct_calls((*asked.networks, *asked.shards)), place.extent()
    _check_loaded(asked, used_s + time.perf_counter() - began, partial)
    for sentence in left_out(calls, (*asked.networks, *asked.shards), extent):
        note(sentence)
    wanted = _wanted(asked, place)
    end_s = began + asked.budget_s - used_s
    left_s = max(end_s - place.began_s, LEAST_S)
    shown = "this CPU" if asked.device == "cpu" else f"this {place.accelerator.name}"
    own = layer_points(calls, extent)
    names = {point.name for point in (*own, *place.points(), *wanted.later)}
    used_before_s = used_before(partial, place.circumstances, names)
    sentence = f"measuring {shown} for {max(left_s - used_before_s, 0.0):.0f} s{' more' if used_before_s else ''}"
    with bar(f"measuring {shown}", left_s, sentence) as show:
        found = measure_device(
            place,
            left_s,
            own=Own(asked.networks, own, _step_needs(asked)),
            wanted=wanted,
            input_folder=Path(),
            resume=partial,
            progress=lambda now: show(now.elapsed_s, _state(now)),
            say=note,
        )
    _check_started(found, asked)
    _tell_error(found.samples, asked)
    return _of_networks(found, asked)


def _kept_s(asked: Asked, place: Place) -> Callable[[int], float]:
    """Return what is kept of the budget to fit so many points [s]: a part in any case, the rest in proportion."""

    @cache
    def whole_s() -> float:
        return expected_fit_s(place.accelerator, _times_fp32(place))

    def kept_s(points: int) -> float:
        share = LEAST_FIT + (1 - LEAST_FIT) * min(points / len(place.points()), 1.0)
        return min(share * whole_s(), LARGEST_FIT_SHARE * asked.budget_s)

    return kept_s


def _check_loaded(asked: Asked, used_s: float, partial: Path) -> None:
    """Refuse a budget that is as good as spent before anything is measured, unless an earlier run measured it."""
    if used_s > MOST_LOADING * asked.budget_s and not holds_measured(partial):
        raise CoverageError(
            f"--budget must leave time to measure, got {asked.budget_s:.0f} s, of which loading PyTorch took "
            f"{used_s:.0f} s; use --budget {enough_s(asked.budget_s):.0f}s, or wait until the machine is less busy"
        )


def _check_started(found: Measurement, asked: Asked) -> None:
    """Refuse measurements that cannot be fitted: the whole budget did not suffice for the points that come first."""
    missing: dict[str, dict[Kernel, None]] = {}
    for point in found.missing:
        precision = "fp32" if point.kind in TRAFFIC_KINDS else point.precision
        missing.setdefault(precision, {})[point.kind, point.direction] = None
    networks = "the networks" if asked.networks else "the bundled networks"
    _check_none(f"a calibration must hold every kernel of {networks}", missing, asked)


def _step_needs(asked: Asked) -> dict[str, StepNeed]:
    """Return what steps of the networks ask of a CPU; of a GPU it is tried out."""
    return {
        network.name: StepNeed(
            float(totals(network).training_flop),
            largest_sub_batch(network, "fp32", "none", "cpu", CPU_BYTES),
        )
        for network in (asked.networks if asked.device == "cpu" else ())
    }


def _times_fp32(place: Place) -> float:
    """Return how many points the generic design has for each one in fp32."""
    points = place.points()
    return len(points) / sum(point.precision == "fp32" for point in points)


def _of_networks(found: Measurement, asked: Asked) -> Measurement:
    """Return measurements that name the networks that they were made for, and the budget."""
    if not asked.networks:
        return found
    names = "; ".join(network.name for network in asked.networks)
    named = {NETWORKS: names, BUDGET: f"{asked.budget_s:.0f}"}
    return replace(found, samples=replace(found.samples, circumstances={**found.samples.circumstances, **named}))


def _wanted(asked: Asked, place: Place) -> Wanted:
    """Return what the measuring is for: the networks, or, from the generic design, all bundled ones that fit.

    The layers of these are timed as they are where time is left.
    """
    device = place.accelerator
    networks = (*asked.networks, *asked.shards) or tuple(
        one for one in _bundled() if _needed_bytes(one, device) <= device.memory_bytes
    )
    later = () if asked.networks else layer_points(distinct_calls(networks), place.extent())
    trained = _trained(place.precisions)
    products = tuple(one for one in place.precisions if one not in trained)
    return Wanted(
        lambda points: NextPoints(points, networks, device, trained, products),
        later,
        asked.target_error,
        _kept_s(asked, place),
    )


def _bundled() -> Iterator[Network]:
    """Yield the bundled networks, and one with fused attention, which none of them asks for by itself."""
    yield from (build(name, {}) for name in zoo_names())
    yield build("gpt", {"attention": "fused"})


def _tell_error(samples: Samples, asked: Asked) -> None:
    """Say whether the error that is aimed at is reached, as far as is known."""
    if asked.target_error is None:
        return
    expected = float(samples.circumstances.get(EXPECTED_ERROR, "inf"))
    is_reached = expected <= asked.target_error
    said = "is reached" if is_reached else "is not reached: a larger --budget goes on"
    note(f"target error {asked.target_error:.1%} {said}; steps are expected to miss by {expected:.1%} on average")


def _needed_bytes(network: Network, accelerator: Accelerator) -> float:
    """Return the bytes of a network at the small sub-batch."""
    needed = memory_bytes(network, np.array([SMALL]), "fp32", network.optimizer, accelerator.kind)
    return float(needed.total[0])


def check_networks(networks: Sequence[Network], device: str = "cpu") -> None:
    """Refuse a network that this machine cannot hold at the small sub-batch."""
    if not networks:
        return
    accelerator = _accelerator(device)
    for network in networks:
        needed = _needed_bytes(network, accelerator)
        if needed > accelerator.memory_bytes:
            raise ParameterError(
                "--network",
                f"a network that fits the {format_bytes(accelerator.memory_bytes)} of this machine at a sub-batch of "
                f"{SMALL}",
                f"{network.name}, which needs {format_bytes(needed)}",
            )


def check_served(
    calibration: Calibration, node: Node, asked: Asked, precisions: Sequence[str] = STEP_PRECISIONS[:1]
) -> None:
    """Refuse a calibration that serves no step of the networks; say how many of their calls were left to fits.

    In 8 bits there are no steps, only products: steps of the other precisions are looked at.

    Parameters
    ----------
    calibration : Calibration
    node : Node
    asked : Asked
    precisions : sequence of str
        That were measured; of those that nobody asked for, what is missing is said.

    Raises
    ------
    CoverageError
        Names what is missing in fp32 or in a precision that was asked for, and the budget that suffices; what was
        measured is kept.
    """
    missing: dict[str, dict[Kernel, None]] = {}
    left, whole, never = 0, 0, 0
    needed = _needed(asked)
    for precision, network in itertools.product(_trained((*needed, *precisions)), (*asked.networks, *asked.shards)):
        settings = Settings(optimizer=network.optimizer)
        cluster = Cluster("local", 1, node)
        sources = Sources(Problem(network, None, cluster, (calibration,), explicit_calibration=True, settings=settings))
        own = sources.layer_calls(precision)
        if precision in needed and node.accelerator.kind == "cpu":
            never += never_timed(network, Extent(precisions=tuple(precisions)), precision)
        for calls in lower(network, np.ones(1, dtype=np.int64), optimizer=network.optimizer):
            for part, source in own.split(calls, np.ones(1, dtype=np.int64)):
                is_left = source is None and SERVED_BY.get(part.kind, part.kind) != "bias"
                if precision in needed:
                    left, whole = left + is_left * int(part.count.sum()), whole + int(part.count.sum())
                if is_left and not sources.is_calibrated(part.kind, part.direction, precision):
                    missing.setdefault(precision, {})[part.kind, part.direction] = None
    _check_none("a calibration must hold every kernel of the networks", missing, asked)
    if left > never:
        enough = f"--budget {enough_s(asked.budget_s):.0f}s"
        note(f"{left} of the {whole} calls of the networks are left to fits; with {enough} more of them are timed")


def _trained(precisions: Iterable[str]) -> tuple[str, ...]:
    """Return those that training steps are timed in, each once."""
    return tuple(one for one in dict.fromkeys(precisions) if one in STEP_PRECISIONS)


def _needed(asked: Asked) -> tuple[str, ...]:
    """Return the precisions without whose steps a calibration is refused."""
    return _trained(("fp32", *asked.precisions))


def _check_none(rule: str, missing: Mapping[str, Iterable[Kernel]], asked: Asked) -> None:
    """Refuse what is missing in a precision that is needed; say what is in others."""
    needed = _needed(asked)
    refused = {name: kernels for name, kernels in missing.items() if name in needed}
    if refused:
        raise CoverageError(_too_few(rule, refused, asked))
    for name, kernels in missing.items():
        budget_s = enough_s(asked.budget_s)
        note(f"{name} has too few timings of {grouped(kernels)} for predictions; --budget {budget_s:.0f}s takes more")


def _too_few(rule: str, missing: Mapping[str, Iterable[Kernel]], asked: Asked) -> str:
    by_precision = (f"{grouped(kernels)}{'' if name == 'fp32' else f' in {name}'}" for name, kernels in missing.items())
    return (
        f"{rule}, got too few timings of {'; '.join(by_precision)}; what was measured is kept, and the same command "
        f"with --budget {enough_s(asked.budget_s):.0f}s goes on from there"
    )


def check_complete(calibration: Calibration, asked: Asked, precisions: Sequence[str] = STEP_PRECISIONS[:1]) -> None:
    """Refuse a calibration without every kernel of the bundled networks: it would serve none of them.

    Parameters and errors are those of :func:`check_served`.
    """
    fitted = {
        (one.kind, way, one.precision)
        for one in calibration.entries
        for way in ((one.direction,) if one.direction else DIRECTIONS)
        if one.term != LOOKED_UP and (is_used(one) or one.kind in TRAFFIC_KINDS)  # for what moves bytes others serve
    }
    kernels = needed_kernels()
    found = {
        name: [pair for pair in kernels if not {(*pair, name), (*pair, "any")} & fitted]
        for name in _trained((*_needed(asked), *precisions))
    }
    missing = {name: pairs for name, pairs in found.items() if pairs}
    _check_none("a calibration must hold every kernel of the bundled networks", missing, asked)


def needed_kernels() -> tuple[tuple[str, str], ...]:
    """Return kind and direction of every kernel that a bundled network calls, products first."""
    one = np.ones(1, dtype=np.int64)
    pairs = {(calls.kind, calls.direction) for name in zoo_names() for calls in lower(build(name, {}), one)}
    return tuple(sorted(pairs, key=lambda pair: (pair[0] not in ("convolution", "gemm"), pair)))


def _state(now: Progress) -> str:
    disturbed = f", {now.disturbed} disturbed" if now.disturbed else ""
    error = f", expected error {now.expected_error:.1%}" if now.expected_error is not None else ""
    left_s = max(now.budget_s - now.elapsed_s, 0.0)
    return f"{now.doing}: {now.done}/{now.total} points{disturbed}{error}, {left_s:.0f} s left"
