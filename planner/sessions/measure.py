"""Measuring this machine for ``planner calibrate``: what for, for how long, and what is said meanwhile."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from planner import catalog
from planner.domain.configuration import Configurations
from planner.domain.network import Network
from planner.domain.samples import BUDGET, NETWORKS, Samples
from planner.errors import CoverageError, OutputError
from planner.fitting.kernels import learns_from_calls
from planner.networks.zoo import build, zoo_names
from planner.probes.calibrate import Measurement, Own
from planner.probes.layer_points import Extent, layer_points
from planner.probes.places import Place
from planner.probes.points import Point
from planner.probes.resume import holds_measured
from planner.probes.run import EXPECTED_ERROR, Goal, Progress, used_before
from planner.probes.steps import CPU_BYTES, StepNeed
from planner.probes.torch_package import check_torch
from planner.sessions.coverage import check_started
from planner.sessions.left_out import enough_s, left_out
from planner.sessions.request import Request, needed_bytes, trained
from planner.sessions.session import Session
from planner.sessions.values import Say
from planner.workload.calls import distinct_calls
from planner.workload.memory import Memory
from planner.workload.memory_rules import MemoryRules
from planner.workload.totals import totals

__all__ = ["check_writable", "measured"]

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
    place = session.place_of(request.device, request.precisions, catalog.known_accelerator)
    calls, extent = distinct_calls(request.all_networks), place.extent()
    _check_loaded(request, used_s + session.clock_s() - began, partial)
    for sentence in left_out(calls, request.all_networks, extent):
        session.say(sentence)
    goal = _goal(request, place, session)
    left_s = max(request.budget_s - ENDING_S - used_s, LEAST_MEASURING_S)
    device = "this CPU" if request.device == "cpu" else f"this {place.accelerator.name}"
    own = layer_points(calls, extent)
    names = {point.name for point in (*own, *place.points(), *goal.later)}
    used_before_s = used_before(partial, place.circumstances, names)
    sentence = f"measuring {device} for {max(left_s - used_before_s, 0.0):.0f} s{' more' if used_before_s else ''}"
    with session.bar(f"measuring {device}", left_s, sentence) as show:
        measurement = session.measure(
            place,
            left_s,
            own=Own(request.networks, own, _step_needs(request)),
            goal=goal,
            input_folder=Path(),
            resume=partial,
            progress=lambda now: show(now.elapsed_s, _state(now)),
            say=session.say,
        )
    check_started(measurement, request, session.say)
    _tell_error(measurement.samples, request, session.say)
    return _of_networks(measurement, request)


def _kept_s(request: Request, place: Place, session: Session) -> Callable[[int], float]:
    """Return what is kept of the budget to fit so many points [s]: a part in any case, the rest by their number."""

    @cache
    def whole_s() -> float:
        return session.expected_fit_s(place.accelerator, _times_fp32(place))

    def kept_s(points: int) -> float:
        most = math.inf if learns_from_calls(place.accelerator) else 1.0
        share = LEAST_FIT_SHARE + (1 - LEAST_FIT_SHARE) * min(points / len(place.points()), most)
        return min(share * whole_s(), LARGEST_FIT_SHARE * request.budget_s)

    return kept_s


def _check_loaded(request: Request, used_s: float, partial: Path) -> None:
    """Refuse a budget that is as good as spent before anything is measured, unless an earlier run measured it."""
    if used_s > MOST_LOADING_SHARE * request.budget_s and not holds_measured(partial):
        raise CoverageError(
            f"--budget must leave time to measure, got {request.budget_s:.0f} s, of which loading PyTorch took "
            f"{used_s:.0f} s; use --budget {enough_s(request.budget_s):.0f}s, or wait until the machine is less busy"
        )


def _step_needs(request: Request) -> dict[str, StepNeed]:
    """Return what steps of the networks ask of a CPU; of a GPU it is tried out."""
    rules = MemoryRules.of("fp32", "none", device_kind="cpu")
    return {
        network.name: StepNeed(
            float(totals(network).training_flop),
            int(Memory(network, rules).largest_sub_batches(Configurations.having(), CPU_BYTES)),
        )
        for network in (request.networks if request.device == "cpu" else ())
    }


def _times_fp32(place: Place) -> float:
    """Return how many points the generic design has for each one in fp32."""
    points = place.points()
    return len(points) / sum(point.precision == "fp32" for point in points)


def _of_networks(measurement: Measurement, request: Request) -> Measurement:
    """Return measurements that name the networks that they were made for, and the budget."""
    if not request.networks:
        return measurement
    names = "; ".join(network.name for network in request.networks)
    circumstances = {NETWORKS: names, BUDGET: f"{request.budget_s:.0f}"}
    return replace(
        measurement,
        samples=replace(measurement.samples, circumstances={**measurement.samples.circumstances, **circumstances}),
    )


def _goal(request: Request, place: Place, session: Session) -> Goal:
    """Return what the measuring is for: the networks, or, from the generic design, all bundled ones that fit.

    The layers of these are timed as they are where time is left.
    """
    device = place.accelerator
    networks = request.all_networks or _bundled(device.kind, device.memory_bytes)
    later = () if request.networks else _bundled_layers(device.kind, device.memory_bytes, place.extent())
    precisions = trained(place.precisions)
    products = tuple(one for one in place.precisions if one not in precisions)
    return Goal(
        lambda points: session.next_points(points, networks, device, precisions, products),
        later,
        request.target_error,
        _kept_s(request, place, session),
    )


@cache
def _bundled(kind: str, memory_bytes: float) -> tuple[Network, ...]:
    """Return the bundled networks that a device holds, and one with fused attention, which none of them asks for."""
    every = (*(build(name, {}) for name in zoo_names()), build("gpt", {"attention": "fused"}))
    return tuple(one for one in every if needed_bytes(one, kind) <= memory_bytes)


@cache
def _bundled_layers(kind: str, memory_bytes: float, extent: Extent) -> tuple[Point, ...]:
    return layer_points(distinct_calls(_bundled(kind, memory_bytes)), extent)


def _tell_error(samples: Samples, request: Request, say: Say) -> None:
    """Say whether the error that is aimed at is reached, as far as is known."""
    if request.target_error is None:
        return
    error = float(samples.circumstances.get(EXPECTED_ERROR, "inf"))
    is_reached = error <= request.target_error
    outcome = "is reached" if is_reached else "is not reached: a larger --budget goes on"
    say(f"target error {request.target_error:.1%} {outcome}; steps are expected to miss by {error:.1%} on average")


def _state(now: Progress) -> str:
    disturbed = f", {now.disturbed} disturbed" if now.disturbed else ""
    error = f", expected error {now.expected_error:.1%}" if now.expected_error is not None else ""
    left_s = max(now.budget_s - now.elapsed_s, 0.0)
    return f"{now.doing}: {now.done}/{now.total} points{disturbed}{error}, {left_s:.0f} s left"
