"""What a session is given by who runs it: whom it tells, and what it measures with."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.domain.calibration import Calibration
from planner.domain.kernels import FORWARD
from planner.fitting.calibration import fit_calibration
from planner.fitting.duration import expected_fit_s
from planner.fitting.next_points import NextPoints
from planner.networks.zoo import build, zoo_names
from planner.probes.calibrate import Measurement, measure_device
from planner.probes.gpu import Gpu, check_gpu, default_device, present_gpus
from planner.probes.places import Place, place_of
from planner.probes.plan_runs import PlanRun, timed_runs
from planner.sessions.values import Say
from planner.workload.lowering import lower

__all__ = ["Bar", "Session", "needed_kernels"]

Bar = Callable[[str, float, str], AbstractContextManager[Callable[[float, str], None]]]
"""Takes a label, a total and a sentence; gives what shows how much is done, and a state in words."""


def needed_kernels() -> tuple[tuple[str, str], ...]:
    """Return kind and direction of every kernel that a bundled network calls, products first.

    Without copies forward, which experts and tables of positions alone make: where there are too few timings of them, a
    data sheet's bandwidth serves.
    """
    one = np.ones(1, dtype=np.int64)
    pairs = {(calls.kind, calls.direction) for name in zoo_names() for calls in lower(build(name, {}), one)}
    pairs -= {("copy", FORWARD)}
    return tuple(sorted(pairs, key=lambda pair: (pair[0] not in ("convolution", "gemm"), pair)))


@dataclass(frozen=True, slots=True)
class Session:
    """Whom a session tells, and what it measures, times and fits with: those of this machine unless others are given.

    Attributes
    ----------
    say : callable
    bar : callable
    clock_s : callable
        The time now [s], from any start.
    check_gpu, default_device, present_gpus, place_of, measure, run_plans : callable
        As in :mod:`planner.probes`.
    needed_kernels : callable
        Kind and direction of every kernel that a calibration for no network must hold.
    expected_fit_s, next_points, fit : callable
        As in :mod:`planner.fitting`.
    """

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
